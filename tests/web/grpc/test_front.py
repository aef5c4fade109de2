"""The bounds on the gRPC service's connections, on loopback."""

from __future__ import annotations

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.join.open_files import raise_file_limit
from nodemanager.web.grpc import front
from nodemanager.web.grpc.front import BOUNDS
from nodemanager.web.grpc.material import MemberMaterial, member_material, service_material
from nodemanager.web.grpc.server import MembersServer
from nodemanager.web.listen import CannotListen, TcpAddress
from tests.paths import ROOT
from tests.web.grpc.services import WITHIN_S, Member, MembersInMemory, serving
from tests.web.grpc.test_service import call

grpc = pytest.importorskip("grpc", reason="the extra ensemble is not installed")

LONG_S = 3600.0
PATIENT = replace(BOUNDS, handshake_s=LONG_S, headers_s=LONG_S)


@pytest.fixture
def members() -> MembersInMemory:
    return MembersInMemory()


def knock(address: TcpAddress, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((address.host, address.port), WITHIN_S, source_address=(source, 0))


def enter(address: TcpAddress) -> ssl.SSLSocket:
    """Complete the handshake, as any client can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(knock(address))


def ends(connection: socket.socket) -> bool:
    """Wait until the other side ends the connection."""
    try:
        while connection.recv(1000):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True


@pytest.mark.parametrize("sends", [b"", b"\x16"], ids=["silent", "a byte"])
def test_a_handshake_has_a_time_limit(tmp_path: Path, members: MembersInMemory, sends: bytes) -> None:
    bounds = replace(PATIENT, handshake_s=0.2)
    with serving(members, service_material(tmp_path), bounds=bounds) as address, knock(address) as client:
        client.sendall(sends)
        assert ends(client)


@pytest.mark.parametrize("sends", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["silent", "without a request"])
def test_a_client_that_shows_no_token_is_cut(tmp_path: Path, members: MembersInMemory, sends: bytes) -> None:
    bounds = replace(PATIENT, headers_s=0.2)
    with serving(members, service_material(tmp_path), bounds=bounds) as address, enter(address) as client:
        client.sendall(sends)
        assert ends(client)


def test_a_member_keeps_its_connection_and_others_find_a_place_while_strangers_fill_the_service(
    tmp_path: Path, members: MembersInMemory
) -> None:
    bounds = replace(PATIENT, connections_max=6, per_source_max=4)
    with serving(members, service_material(tmp_path), bounds=bounds) as address, ExitStack() as held:
        first = Member(address, member_material(tmp_path), name="first")
        assert first.ask((1, 1)) == [""]
        for number in range(60):
            held.enter_context(knock(address, f"127.0.0.{2 + number % 3}"))
        another = Member(address, member_material(tmp_path), name="another")
        assert another.ask((2, 2)) == [""]
        assert first.ask((2, 1)) == [""]
        first.nodes.close()
        another.nodes.close()
    assert members.kept == {"first": 2, "another": 2}


@pytest.mark.parametrize("secured", [False, True], ids=["without a token", "with the shared token"])
def test_invented_names_keep_nobody_out(tmp_path: Path, members: MembersInMemory, *, secured: bool) -> None:
    material = service_material(tmp_path) if secured else None
    shown = member_material(tmp_path) if secured else None
    bounds = replace(PATIENT, connections_max=6, per_source_max=6, per_launch_max=1)
    with serving(members, material, bounds=bounds) as address, ExitStack() as held:
        for number in range(6):
            ask_in_another_connection(held, address, f"invented-{number}", shown)
        member = Member(address, shown, name="member")
        held.callback(member.nodes.close)
        assert member.ask((2, 2)) == [""]


def ask_in_another_connection(
    held: ExitStack, address: TcpAddress, name: str, material: MemberMaterial | None
) -> None:
    """Ask once, and keep the connection. Without TLS, gRPC shares one among the channels of a process by itself."""
    if material is not None:
        member = Member(address, material, name=name)
        held.callback(member.nodes.close)
        assert member.ask((1, 1)) == [""]
        return
    own = [("grpc.use_local_subchannel_pool", 1)]
    channel = held.enter_context(grpc.insecure_channel(f"{address.host}:{address.port}", options=own))
    call(address, "RequestStatus", nullcontext(channel), name=name)


def test_a_fault_of_the_front_reaches_who_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(front, "use_small_tls_buffers", fails)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    started = front.Front(TcpAddress("127.0.0.1", 0), None)
    monkeypatch.setattr(started, "_ready", ready := Future[int]())
    starting = threading.Thread(target=lambda: suppressed(started.start), daemon=True)
    starting.start()
    with pytest.raises(TypeError, match="a bug"):
        ready.result(WITHIN_S)
    started.stop(WITHIN_S)


def suppressed(call: Callable[[], object]) -> None:
    with suppress(TypeError):
        call()


def test_a_connection_of_a_member_outlives_the_time_in_which_it_must_show_the_token(
    tmp_path: Path, members: MembersInMemory
) -> None:
    bounds = replace(PATIENT, headers_s=2.0, connections_max=1)
    with serving(members, service_material(tmp_path), bounds=bounds) as address:
        member = Member(address, member_material(tmp_path))
        assert member.ask((1, 1)) == [""]
        for _ in range(3):  # each is refused, because the only place is the member's
            with knock(address) as stranger:
                assert ends(stranger)
        assert member.ask((2, 1)) == [""]
        member.nodes.close()


def test_a_large_request_and_its_answer_arrive_whole(members: MembersInMemory) -> None:
    large = "x" * 10**6
    members.status = lambda name: {"name": name, "more": large}  # type: ignore[method-assign]
    with serving(members) as address:
        reply = call(address, "RequestStatus", name=large)
    assert json.loads(reply.payload) == {"name": large, "more": large}


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, members: MembersInMemory) -> None:
    material = replace(service_material(tmp_path / "ours"), key=service_material(tmp_path / "theirs").key)
    with pytest.raises(CannotListen, match=r"tls.key is not the key of tls.crt"):
        MembersServer(TcpAddress("127.0.0.1", 0), members, material).start()


SERVICE = """
import os, sys
from pathlib import Path
from nodemanager.web.grpc.material import service_material
from tests.web.grpc.services import MembersInMemory, serving

with serving(MembersInMemory(), service_material(Path(sys.argv[1]))) as address:
    print(address.port, flush=True)
    for line in sys.stdin:
        open(os.devnull).close()
        print(len(os.listdir("/proc/self/fd")), flush=True)
"""


def test_a_crowd_of_silent_clients_leaves_the_process_files_and_members_a_place(tmp_path: Path) -> None:
    raise_file_limit(4096)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4096:
        pytest.skip("this process may not open 2,000 files")
    with (
        subprocess.Popen(
            ["prlimit", "--nofile=1024:1024", sys.executable, "-c", SERVICE, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as service,
        ExitStack() as held,
    ):
        assert service.stdout is not None
        assert service.stdin is not None
        lines = (line for line in service.stdout if line.strip().isdigit())
        address = TcpAddress("127.0.0.1", int(next(lines)))
        for number in range(1300):
            held.enter_context(knock(address, f"127.0.0.{2 + number % 16}"))
        member = Member(address, member_material(tmp_path))
        assert member.ask((1, 1)) == [""]
        service.stdin.write("how many files?\n")
        service.stdin.close()
        assert int(next(lines)) < 512
        member.nodes.close()
