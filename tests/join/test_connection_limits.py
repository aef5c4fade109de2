"""The limits on the join service's connections, on real sockets: which are cut, which are answered, and when."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from nodemanager.core.nodes import LaunchId
from nodemanager.join import connection_limits
from nodemanager.join.admission import AdmissionRules
from nodemanager.join.connection_limits import (
    FILES_SPARE,
    ConnectionBounds,
    ConnectionGate,
    ProvenConnection,
    SecuredProtocol,
    allowed_connections,
)
from nodemanager.join.key_material import MaterialPaths, tls_context
from nodemanager.join.server import JoinApi, JoinServer, RequestLimits, ServiceNotReady
from tests.join.admission import KEY, LAUNCH, NONCE, AdmissionRig, entry
from tests.join.test_user_data import a_site
from tests.paths import ROOT

WITHIN_S = 20.0
LOOSE = RequestLimits(requests_per_s=1e9, requests_burst=1e9)
LONG_S = 3600.0
CHEAP = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Door:
    server: JoinServer
    port: int

    @property
    def gate(self) -> ConnectionGate:
        return self.server.gate

    async def knock(self, source: str = "127.0.0.1") -> Connection:
        """Open a TCP connection without TLS."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))

    async def enter(self) -> Connection:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)


@asynccontextmanager
async def a_door(
    context: ssl.SSLContext,
    bounds: ConnectionBounds,
    limits: RequestLimits = LOOSE,
    rig: AdmissionRig | None = None,
    requests: RequestLimits = LOOSE,
) -> AsyncIterator[Door]:
    app = JoinApi((rig or AdmissionRig()).admission, requests).make_app()
    server = JoinServer(app, "127.0.0.1:0", context, limits, bounds)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn only sets a flag
            await asyncio.sleep(0)
        yield Door(server, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    return tls_context(MaterialPaths(a_site(tmp_path).join.material_dir))


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, WITHIN_S))


async def is_cut(connection: Connection) -> bool:
    """Wait until the connection is cut, with or without an answer before."""
    reader, writer = connection
    try:
        while await reader.read(1000):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.transport.abort()
    return True


async def answer(connection: Connection, request: bytes = CHEAP) -> bytes:
    connection[1].write(request)
    head = await connection[0].readuntil(b"\r\n\r\n")
    await connection[0].readexactly(len(b'{"error":"malformed"}'))
    return head.partition(b"\r\n")[0]


def test_one_source_has_a_limit_and_its_oldest_connection_gives_way(context: ssl.SSLContext) -> None:
    async def story() -> None:
        async with a_door(context, ConnectionBounds(per_source_max=3)) as door:
            other = await door.knock("127.0.0.2")
            silent = [await door.knock() for _ in range(3)]
            secured = await door.enter()
            assert await is_cut(silent[0])
            assert await answer(secured) == b"HTTP/1.1 404 Not Found"
            assert len(door.gate) == 4
            for _, writer in (other, *silent, secured):
                writer.transport.abort()
            while len(door.gate):  # noqa: ASYNC110 - nothing tells when the server notices
                await asyncio.sleep(0.01)

    run(story())


@pytest.mark.parametrize("hello", [b"", b"\x16"], ids=["silent", "stalled in the handshake"])
def test_connections_that_prove_nothing_keep_no_node_out(context: ssl.SSLContext, hello: bytes) -> None:
    async def story() -> None:
        bounds = ConnectionBounds(connections_max=64, per_source_max=8, handshake_s=LONG_S, lifetime_s=LONG_S)
        async with a_door(context, bounds, rig=a_rig_of(14)) as door:
            held = [await door.knock(f"127.0.0.{2 + number % 16}") for number in range(64)]
            for _, writer in held:
                writer.write(hello)
            for number in range(1, 15):
                held.append(await door.enter())
                assert await redeem(held[-1], number) == b"HTTP/1.1 200 OK"
            assert len(door.gate) <= 64
            for _, writer in held:
                writer.transport.abort()

    run(story())


@pytest.mark.parametrize("bounds", [ConnectionBounds(connections_max=1), ConnectionBounds(per_source_max=1)])
def test_a_handshake_under_way_is_not_cut_for_a_new_connection(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, bounds: ConnectionBounds
) -> None:
    monkeypatch.setattr(connection_limits, "TURN_S", LONG_S)

    async def story() -> None:
        async with a_door(context, bounds) as door:
            working = await door.enter()
            assert await is_cut(await door.knock())
            assert await answer(working) == b"HTTP/1.1 404 Not Found"
            working[1].transport.abort()

    run(story())


def test_sources_take_turns_however_many_handshakes_of_one_of_them_wait(context: ssl.SSLContext) -> None:
    begun: list[str] = []

    def waiting(name: str, *, is_gone: bool = False) -> Callable[[], bool]:
        def begin() -> bool:
            begun.append(name)
            return not is_gone

        return begin

    gate = ConnectionGate(context, ConnectionBounds(), lambda _: False, nobody_secured, lambda _: None)
    gate.handshakes = connection_limits.HANDSHAKES_MAX
    for number in range(3):
        gate.wait_for_turn("crowd", waiting(f"crowd {number}", is_gone=number == 1))
    gate.wait_for_turn("node", waiting("node"))
    for _ in range(3):
        gate.end_turn()
    assert begun == ["crowd 0", "node", "crowd 1", "crowd 2"]
    assert gate.handshakes == connection_limits.HANDSHAKES_MAX


def nobody_secured(_: ProvenConnection) -> SecuredProtocol:
    raise AssertionError("nobody completed a handshake")


async def redeem(connection: Connection, number: int, ticket: str = "") -> bytes:
    """Show the ticket of ``cloudN-1`` and keep the connection open. Return the status line."""
    launch = LaunchId(f"cloud{number}-1")
    body = json.dumps({"launch": launch, "ticket": ticket or KEY.ticket(launch), "nonce": NONCE}).encode()
    head = f"POST /v1/redeem HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection[1].write(head + body)
    answered = await connection[0].readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", answered)
    assert length is not None
    await connection[0].readexactly(int(length[1]))
    return answered.partition(b"\r\n")[0]


def a_rig_of(nodes: int) -> AdmissionRig:
    rig = AdmissionRig()
    rig.roster = tuple(entry(LaunchId(f"cloud{number}-1"), f"cloud{number}") for number in range(1, nodes + 1))
    return rig


def test_nodes_behind_one_address_share_no_limit_once_their_tickets_are_accepted(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "TURN_S", LONG_S)  # no connection of theirs gives way to a new one

    async def story() -> None:
        async with a_door(context, ConnectionBounds(per_source_max=2), rig=a_rig_of(9)) as door:
            held = []
            for number in range(1, 10):
                held.append(await door.enter())
                assert await redeem(held[-1], number) == b"HTTP/1.1 200 OK"
            strangers = [await door.enter() for _ in range(2)]
            assert await redeem(strangers[0], 1, "0" * 64) == b"HTTP/1.1 403 Forbidden"
            assert await is_cut(await door.knock()), "a client without a ticket counts for the address"
            for _, writer in (*held, *strangers):
                writer.transport.abort()

    run(story())


def test_a_launch_has_a_limit_of_its_own_and_the_rest_counts_for_its_source(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "TURN_S", LONG_S)  # no connection of theirs gives way to a new one

    async def story() -> None:
        bounds = ConnectionBounds(per_source_max=2, per_launch_max=3)
        async with a_door(context, bounds, rig=a_rig_of(1)) as door:
            held = []
            for _ in range(5):
                held.append(await door.enter())
                assert await redeem(held[-1], 1) == b"HTTP/1.1 200 OK"
            assert await is_cut(await door.knock())
            held[0][1].transport.abort()
            for _, writer in held:
                writer.transport.abort()

    run(story())


def test_nodes_behind_one_address_do_not_use_up_its_rate(context: ssl.SSLContext) -> None:
    async def story() -> None:
        slow = RequestLimits(requests_per_s=1e-6, requests_burst=2.0)
        async with a_door(context, ConnectionBounds(), slow, a_rig_of(9), slow) as door:
            for number in range(1, 10):
                connection = await door.enter()
                assert await redeem(connection, number) == b"HTTP/1.1 200 OK"
                connection[1].transport.abort()
            stranger = await door.enter()
            statuses = [await redeem(stranger, 1, "0" * 64) for _ in range(3)]
            assert statuses == [b"HTTP/1.1 403 Forbidden"] * 2 + [b"HTTP/1.1 429 Too Many Requests"]
            stranger[1].transport.abort()

    run(story())


def test_a_launch_that_asks_too_fast_uses_up_the_rate_of_its_source(context: ssl.SSLContext) -> None:
    async def story() -> None:
        slow = RequestLimits(requests_per_s=1e-6, requests_burst=2.0)
        async with a_door(context, ConnectionBounds(), slow, a_rig_of(1), slow) as door:
            connection = await door.enter()
            statuses = [await redeem(connection, 1) for _ in range(5)]
            assert statuses == [b"HTTP/1.1 200 OK"] * 4 + [b"HTTP/1.1 429 Too Many Requests"]
            connection[1].transport.abort()

    run(story())


def test_the_total_number_of_connections_is_limited_and_proven_ones_never_give_way(context: ssl.SSLContext) -> None:
    async def story() -> None:
        async with a_door(context, ConnectionBounds(connections_max=3), rig=a_rig_of(2)) as door:
            proven = []
            for number in (1, 2):
                proven.append(await door.enter())
                assert await redeem(proven[-1], number) == b"HTTP/1.1 200 OK"
            silent = await door.knock("127.0.0.2")
            third = await door.enter()
            assert await is_cut(silent)
            assert await redeem(third, 1) == b"HTTP/1.1 200 OK"
            assert await is_cut(await door.knock()), "all connections have proven to be of a launch"
            for _, writer in (*proven, third):
                writer.transport.abort()

    run(story())


def test_connections_of_a_source_that_come_too_fast_are_cut(context: ssl.SSLContext) -> None:
    async def story() -> None:
        slow = RequestLimits(requests_per_s=1e-6, requests_burst=1.0)  # and twice that rate of connections
        async with a_door(context, ConnectionBounds(), slow) as door:
            held = [await door.enter() for _ in range(2)]
            assert await is_cut(await door.knock())
            for _, writer in held:
                writer.transport.abort()

    run(story())


@pytest.mark.parametrize(
    ("bounds", "sends"),
    [
        (ConnectionBounds(headers_s=LONG_S, lifetime_s=LONG_S, handshake_s=0.2), None),
        (ConnectionBounds(handshake_s=LONG_S, lifetime_s=LONG_S, headers_s=0.2), b""),
        (ConnectionBounds(handshake_s=LONG_S, lifetime_s=LONG_S, headers_s=0.2), b"G"),
        (
            ConnectionBounds(handshake_s=LONG_S, lifetime_s=LONG_S, headers_s=0.2),
            CHEAP + b"G",
        ),  # which ends uvicorn's own patience
        (ConnectionBounds(handshake_s=LONG_S, headers_s=LONG_S, lifetime_s=0.5), None),
        (ConnectionBounds(handshake_s=LONG_S, headers_s=LONG_S, lifetime_s=0.5), CHEAP + b"G"),
    ],
    ids=["no handshake", "no request", "part of one", "part of the second", "life, silent", "life, at work"],
)
def test_a_connection_is_not_held_as_long_as_its_client_likes(
    context: ssl.SSLContext, bounds: ConnectionBounds, sends: bytes | None
) -> None:
    async def story() -> None:
        async with a_door(context, bounds) as door:
            connection = await (door.knock() if sends is None else door.enter())
            connection[1].write(sends or b"")
            assert await is_cut(connection)
            connection[1].transport.abort()

    run(story())


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(context: ssl.SSLContext) -> None:
    async def story() -> None:
        async with a_door(context, ConnectionBounds()) as door:
            client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
            coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client.wrap_bio(coming, going)
            reader, writer = await door.knock()
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(going.read())
                    coming.write(await reader.read(10_000))
            tls.write(CHEAP)
            writer.write(going.read())  # the end of the handshake together with the request
            said = b""
            while b"malformed" not in said:
                coming.write(await reader.read(10_000))
                try:
                    said += tls.read(10_000)
                except ssl.SSLWantReadError:
                    continue
            assert said.startswith(b"HTTP/1.1 404")
            writer.transport.abort()

    run(story())


def test_a_source_is_who_connects_whatever_a_request_says(context: ssl.SSLContext) -> None:
    async def story() -> None:
        rules = AdmissionRules("head", "10.0.0.1", check_source=True)
        rig = AdmissionRig(rules, roster=(entry(addresses=("10.9.9.9",)),))
        async with a_door(context, ConnectionBounds(), rig=rig) as door:
            body = json.dumps({"launch": LAUNCH, "ticket": KEY.ticket(LAUNCH), "nonce": NONCE})
            reader, writer = await door.enter()
            head = "POST /v1/redeem HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.9.9.9\r\nContent-Length: "
            writer.write(f"{head}{len(body)}\r\n\r\n{body}".encode())
            assert b" 403 " in await reader.readline()
            assert b"wrong_source" in await reader.readuntil(b"}")
            writer.transport.abort()

    run(story())


@pytest.mark.parametrize("turn_s", [LONG_S, 0.05], ids=["until it is gone", "until its turn is over"])
def test_a_handshake_waits_for_one_that_stalls(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, turn_s: float
) -> None:
    monkeypatch.setattr(connection_limits, "HANDSHAKES_MAX", 1)
    monkeypatch.setattr(connection_limits, "TURN_S", turn_s)

    async def story() -> None:
        async with a_door(context, ConnectionBounds(handshake_s=LONG_S)) as door:
            stalled, gone = await door.knock(), await door.knock()
            stalled[1].write(b"\x16")  # the first byte of a handshake
            while not door.gate.handshakes:  # noqa: ASYNC110 - nothing tells when the server has read it
                await asyncio.sleep(0)
            gone[1].write(b"\x16")  # it waits, and gives up
            gone[1].transport.abort()
            entering = asyncio.create_task(door.enter())
            if turn_s == LONG_S:
                stalled[1].transport.abort()
            entered = await entering
            assert await answer(entered) == b"HTTP/1.1 404 Not Found"
            for _, writer in (stalled, entered):
                writer.transport.abort()

    run(story())


def test_a_client_that_waits_for_its_handshake_cannot_fill_the_memory(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HANDSHAKES_MAX", 0)

    async def story() -> None:
        async with a_door(context, ConnectionBounds()) as door:
            connection = await door.knock()
            connection[1].write(b"\x16" * (connection_limits.HELLO_MAX_BYTES + 1))
            assert await is_cut(connection)

    run(story())


def test_a_byte_buys_no_client_more_time_for_its_handshake(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HANDSHAKES_MAX", 0)  # its turn never comes

    async def story() -> None:
        async with a_door(context, ConnectionBounds(handshake_s=0.2, lifetime_s=LONG_S)) as door:
            connection = await door.knock()
            connection[1].write(b"\x16")
            assert await is_cut(connection)

    run(story())


def test_the_timer_of_a_handshake_ends_with_it(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[asyncio.TimerHandle] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def noting(delay: float, *arguments: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, *arguments)
            timers.extend([timer] if delay == LONG_S else [])
            return timer

        monkeypatch.setattr(loop, "call_later", noting)
        async with a_door(context, ConnectionBounds(handshake_s=LONG_S)) as door:
            connection = await door.enter()
            assert await answer(connection) == b"HTTP/1.1 404 Not Found"
            assert timers
            assert all(it.cancelled() for it in timers)
            connection[1].transport.abort()

    run(story())


def test_a_client_that_hangs_up_in_the_moment_of_its_turn_leaves_nothing_behind(context: ssl.SSLContext) -> None:
    async def story() -> None:
        gate = ConnectionGate(context, ConnectionBounds(), lambda _: False, nobody_secured, lambda _: None)
        ours, theirs = socket.socketpair()
        transport, protocol = await asyncio.get_running_loop().connect_accepted_socket(gate, ours)
        gate.handshakes = connection_limits.HANDSHAKES_MAX
        protocol.data_received(b"\x16")  # it waits for its turn
        transport.abort()  # the protocol hears of it in the loop's next round
        gate.end_turn()
        assert (gate.handshakes, gate.tasks) == (connection_limits.HANDSHAKES_MAX - 1, set())
        theirs.close()

    run(story())


def test_a_connection_whose_life_ends_in_its_handshake_no_longer_counts(context: ssl.SSLContext) -> None:
    async def story() -> None:
        bounds = ConnectionBounds(handshake_s=LONG_S, lifetime_s=0.5, per_source_max=1)
        async with a_door(context, bounds) as door:
            stalled = await door.knock()
            stalled[1].write(b"\x16")
            assert await is_cut(stalled)
            while len(door.gate):  # noqa: ASYNC110 - nothing tells when the server has counted it
                await asyncio.sleep(0)

    run(story())


def test_an_address_in_use_is_reported_with_its_config_key(context: ssl.SSLContext) -> None:
    async def story() -> None:
        async with a_door(context, ConnectionBounds()) as door:
            other = JoinServer(Starlette(), f"127.0.0.1:{door.port}", context, LOOSE, ConnectionBounds())
            with pytest.raises(ServiceNotReady, match=r"\[Join\] listen = 127.0.0.1:[0-9]+: "):
                await other.serve()

    run(story())


# --- memory -----------------------------------------------------------------------------------------------


SERVICE = """
import asyncio, sys
from pathlib import Path
from nodemanager.join.connection_limits import ConnectionBounds, allowed_connections, use_small_tls_buffers
from nodemanager.join.key_material import MaterialPaths, tls_context
from nodemanager.join.server import JoinApi, JoinServer
from tests.join.test_connection_limits import LONG_S, LOOSE, AdmissionRig

async def serve() -> None:
    use_small_tls_buffers()
    bounds = ConnectionBounds(
        connections_max=allowed_connections(2100), per_source_max=2100, handshake_s=LONG_S, lifetime_s=LONG_S
    )
    app = JoinApi(AdmissionRig().admission, LOOSE).make_app()
    server = JoinServer(app, "127.0.0.1:0", tls_context(MaterialPaths(Path(sys.argv[1]))), LOOSE, bounds)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    print("port", server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = True
    await serving

asyncio.run(serve())
"""


def test_two_thousand_silent_connections_take_little_memory_and_keep_nobody_out(tmp_path: Path) -> None:
    if allowed_connections(2100) < 2000:
        pytest.skip("this process may not open 2,000 files")
    folder = a_site(tmp_path).join.material_dir
    with (
        subprocess.Popen(
            [sys.executable, "-c", SERVICE, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as service,
        ExitStack() as silent,
    ):
        assert service.stdout is not None
        assert service.stdin is not None
        port = next(int(line.split()[1]) for line in service.stdout if line.startswith("port"))
        for _ in range(2000):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), WITHIN_S))
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        with client.wrap_socket(socket.create_connection(("127.0.0.1", port), WITHIN_S)) as last:
            last.sendall(CHEAP)
            assert last.recv(12) == b"HTTP/1.1 404"  # it was accepted after all the others
        status = Path(f"/proc/{service.pid}/status").read_text(encoding="ascii")
        rss_mb = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1000
        service.stdin.close()
    assert rss_mb < 150


def test_a_hello_larger_than_the_buffer_of_tls_arrives_whole() -> None:
    got = bytearray()

    class Small(asyncio.BufferedProtocol):
        def get_buffer(self, sizehint: int) -> bytearray:
            self.buffer = bytearray(10)
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            got.extend(self.buffer[:nbytes])

    class Plain(asyncio.Transport):
        def get_protocol(self) -> asyncio.BaseProtocol:
            return Small()

        def is_closing(self) -> bool:
            return False

    connection_limits._feed(Plain(), bytes(range(256)))
    assert got == bytes(range(256))


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "hard", "may_raise", "allowed"),
    [
        (1024, 4096, True, 2000),
        (1024, 1024, True, 1024 - FILES_SPARE),
        (1024, 4096, False, 1024 - FILES_SPARE),
        (1024, resource.RLIM_INFINITY, True, 2000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, False, 2000),
        (10, 10, True, 1),
    ],
)
def test_there_are_no_more_connections_than_the_process_may_have_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, may_raise: bool, allowed: int
) -> None:
    limits = [(soft, hard)]

    def raised(_: int, wanted: tuple[int, int]) -> None:
        if not may_raise:
            raise PermissionError
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", raised)
    assert allowed_connections(2000) == allowed
