"""The bridge to a Flux whose bindings this Python cannot import: the frames, and every way in which it can fail.

A small ``flux`` command runs the far side with stand-ins for the bindings. The contract suite has what real
bindings do through a bridge.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.core.untrusted import TOO_DEEP
from nodemanager.flux import bindings
from nodemanager.flux.handles import direct
from nodemanager.flux.handles.bridged import BridgedHandle, bridge_command
from nodemanager.flux.reactor import Reactor, RpcRequest

WITHIN_S = 30.0
# The bindings: topics that answer at once, stream, refuse, hang, ask our service, or end the process.
FLUX = """
import errno, os, selectors

class Future:
    handle = "of a future"
    def __init__(self, flux, answers): self.flux, self.answers, self.take = flux, answers, None
    def then(self, take, timeout=-1): self.take = take; self.flux.futures.append(self)
    def get_str(self):
        if isinstance(self.answers[0], OSError): raise self.answers[0]
        return self.answers[0]
    def get(self): return self.get_str()
    def reset(self): self.answers.pop(0)
    def error_string(self): return ""
    def __exit__(self, *_):
        if self in self.flux.futures: self.flux.futures.remove(self)
    class pimpl:
        get_matchtag = staticmethod(lambda: 7)
    def __enter__(self): return self

class Message:
    handle = "of a message"
    payload_str = '{"id": "f1"}'
    class pimpl:
        @staticmethod
        def get_userid(value): value[0] = 1234
        @staticmethod
        def get_rolemask(value): value[0] = 2

class Watcher:
    def __init__(self, then=lambda: None): self.start = then

class Flux:
    def __init__(self, uri=""):
        if uri == "local:///nowhere": raise OSError(errno.ENOENT, "No such file or directory")
        self.futures, self.stopped, self.on_message = [], False, None
    def get_rank(self): return 0
    def rpc(self, topic, payload, rank, flags):
        if topic == "die": os.write(2, b"the far side is ill"); os._exit(3)
        if topic == "write": os.write(1, b"0123")
        if topic == "refuse": raise OSError(errno.EPERM, "Operation not permitted")
        if topic == "hang": return Future(self, [])
        if topic == "big": return Future(self, ['"' + payload["size"] * "x" + '"'])
        if topic == "deep":
            memo = '{"id": %d, "memo": ' + payload["depth"] * "[" + payload["depth"] * "]" + "}"
            return Future(self, [memo % 1, '{"id": 2}', OSError(errno.ENODATA, "the end")])
        if topic == "numbers":
            numbers = [str(n) for n in range(payload["count"])]
            return Future(self, [*numbers, OSError(errno.ENODATA, "the end")])
        if topic == "numbers-cancel":
            self.futures[-1].answers[:] = [OSError(errno.ENODATA, "cancelled")]
            return Future(self, [])
        if topic == "ask-us": self.on_message(self, None, Message, None)
        return Future(self, ['{"topic": "%s", "rank": %d}' % (topic, rank), None][:1])
    def service_register(self, name): return Future(self, [None])
    service_unregister = service_register
    def msg_watcher_create(self, callback, type_mask, topic_glob, rolemask):
        self.on_message = callback
        return Watcher()
    def respond(self, message, text): self.futures.append(self.told(text))
    def respond_error(self, message, number, text): self.futures.append(self.told("%d %s" % (number, text)))
    def told(self, text):
        open(os.environ["TOLD"], "a").write(text + "\\n")
        return Future(self, [])
    def fd_watcher_create(self, fd, callback, flags):
        self.selector = selectors.DefaultSelector()
        return Watcher(lambda: self.selector.register(fd, flags, callback))
    def reactor_stop(self): self.stopped = True
    def reactor_run(self):
        while not self.stopped:
            for future in [it for it in self.futures if it.answers and it.take]: future.take(future)
            busy = any(it.answers and it.take for it in self.futures)
            for key, _ in self.selector.select(0 if busy else None): key.data()
"""
CORE = """
class ffi:
    string = staticmethod(lambda text: text)
    new = staticmethod(lambda kind: [0])
class lib:
    flux_core_version_string = staticmethod(lambda: b"0.88.0")
"""
CONSTANTS = """
FLUX_RPC_STREAMING, FLUX_RPC_NORESPONSE, FLUX_POLLIN, FLUX_MSGTYPE_REQUEST = 4, 2, 1, 1
FLUX_ROLE_OWNER, FLUX_ROLE_USER = 1, 2
"""


@pytest.fixture
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a ``flux`` on PATH. Returns the file to which its service's answers go."""
    site = tmp_path / "site"
    for package in ("flux", "_flux"):
        (site / package).mkdir(parents=True)
    (site / "flux" / "__init__.py").write_text(FLUX)
    (site / "flux" / "constants.py").write_text(CONSTANTS)
    (site / "_flux" / "_core.py").write_text(CORE)
    command = tmp_path / "flux"
    command.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(bindings, "_bridge", bindings.Bridge.ALWAYS)
    return tmp_path / "told"


@pytest.fixture
def handle(flux: Path) -> Iterator[BridgedHandle]:
    del flux
    opened = BridgedHandle(bridge_command("", here=True))
    yield opened
    opened.close()


def test_a_bridge_says_what_it_is_connected_to(handle: BridgedHandle) -> None:
    assert (handle.version, handle.rank) == ("0.88.0", 0)


def test_calls_sent_together_are_answered_each(handle: BridgedHandle) -> None:
    first, second = handle.rpc("a", None, 3), handle.rpc_text("b", None, 4)
    assert second.wait(WITHIN_S).get() == '{"topic": "b", "rank": 4}'
    assert first.wait(WITHIN_S).get() == {"topic": "a", "rank": 3}


def test_nothing_is_kept_of_calls_that_were_answered(handle: BridgedHandle) -> None:
    for _ in range(100):
        with handle.rpc("a", None, 0) as future:
            future.wait(WITHIN_S)
    assert (len(handle._futures), len(handle._due)) == (0, 0)


def test_a_refusal_has_its_number_and_text(handle: BridgedHandle) -> None:
    with pytest.raises(PermissionError, match="not permitted"):
        handle.rpc("refuse", None, 0).wait(WITHIN_S).get()
    assert handle.rpc("a", None, 0).wait(WITHIN_S).get()


def test_an_instance_that_cannot_be_reached_is_named(flux: Path) -> None:
    del flux
    with pytest.raises(bindings.CallFailed, match=r"cannot reach Flux at local:///nowhere: No such file"):
        bindings.connect("local:///nowhere")


def test_a_call_that_is_not_answered_times_out_and_leaves_nothing(handle: BridgedHandle) -> None:
    with pytest.raises(TimeoutError), handle.rpc("hang", None, 0) as future:
        future.wait(0.01)
    assert not handle._futures
    assert handle.rpc("a", None, 0).wait(WITHIN_S).get()


def test_answers_larger_than_a_pipe_and_requests_meanwhile_do_not_block_each_other(handle: BridgedHandle) -> None:
    size = 1 << 20
    futures = [handle.rpc("big", {"size": size, "padding": "y" * size}, 0) for _ in range(8)]
    assert [len(future.wait(WITHIN_S).get()) for future in futures] == 8 * [size]


def test_a_far_side_that_dies_is_a_lost_connection_with_its_last_words(handle: BridgedHandle) -> None:
    waiting = handle.rpc("hang", None, 0)
    with pytest.raises(OSError, match="the far side is ill") as lost:
        handle.rpc("die", None, 0).wait(WITHIN_S).get()
    assert lost.value.errno == errno.ENOTCONN
    with pytest.raises(OSError, match="the far side is ill"):
        waiting.wait(WITHIN_S).get()
    with pytest.raises(OSError, match="the far side is ill"):
        handle.rpc("a", None, 0)


def test_output_that_is_no_frame_ends_the_connection(handle: BridgedHandle) -> None:
    with pytest.raises(OSError, match="lost") as lost:
        handle.rpc("write", None, 0).wait(WITHIN_S).get()
    assert lost.value.errno == errno.ENOTCONN


def test_the_process_ends_with_the_handle(flux: Path) -> None:
    del flux
    handle = BridgedHandle(bridge_command("", here=True))
    process = handle._process
    handle.close()
    assert process.returncode == 0


def test_a_flux_that_cannot_run_python_is_told_in_its_words(flux: Path) -> None:
    command = flux.parent / "flux"
    command.write_text("#!/bin/sh\necho 'flux: no such command: python' >&2\nexit 1\n")
    with pytest.raises(bindings.CallFailed, match="no such command: python"):
        bindings.connect("")


def test_a_python_without_bindings_uses_the_bridge_by_itself(flux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del flux

    def find_none() -> None:
        raise bindings.BindingsMissing("none")

    monkeypatch.setattr(direct, "load", find_none)
    monkeypatch.setattr(bindings, "_bridge", bindings.Bridge.AUTO)
    with Reactor("", any_version=True) as reactor:
        assert isinstance(reactor.handle, BridgedHandle)
    monkeypatch.setattr(bindings, "_bridge", bindings.Bridge.NEVER)
    with pytest.raises(bindings.BindingsMissing, match="none"):
        bindings.connect("")


def test_without_flux_only_an_ssh_address_can_be_bridged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bindings, "_bridge", bindings.Bridge.ALWAYS)
    with pytest.raises(bindings.BindingsMissing, match=r"ssh://HOST/PATH: local:///run/flux"):
        bindings.connect("local:///run/flux")
    monkeypatch.setenv("FLUX_SSH", "ssh -i key")
    command = bridge_command("ssh://me@head:2222/run/flux/local", here=False)
    assert command[:8] == ["ssh", "-i", "key", "-o", "BatchMode=yes", "-p", "2222", "--"]
    assert command[8] == "me@head"
    assert command[9].startswith("flux python -c ")
    assert command[9].endswith(" local:///run/flux/local")


# --- in a reactor -----------------------------------------------------------------------------------------


def test_a_stream_gives_each_answer_in_order_and_then_its_end(flux: Path) -> None:
    del flux
    got: list[object] = []
    with Reactor("", any_version=True) as reactor:

        def end(failure: bindings.CallFailed) -> None:
            got.append(failure.errno)
            reactor.stop()

        reactor.subscribe("numbers", {"count": 1000}, got.append, end)
        reactor.run()
    assert got == [*range(1000), errno.ENODATA]


def test_a_cancelled_stream_says_nothing_more(flux: Path) -> None:
    del flux
    got: list[object] = []
    with Reactor("", any_version=True) as reactor:

        def take(number: object) -> None:
            got.append(number)
            cancel()
            reactor.after(
                0.0, lambda: reactor.request("a", None, lambda _: reactor.stop(), got.append, timeout_s=WITHIN_S)
            )

        cancel = reactor.subscribe("numbers", {"count": 1 << 14}, take, got.append)
        reactor.run()
    assert got == [0]


def test_a_request_that_times_out_fails_once(flux: Path) -> None:
    del flux
    failures: list[bindings.CallFailed] = []
    with Reactor("", any_version=True) as reactor:
        reactor.request("hang", None, print, failures.append, timeout_s=0.01)
        reactor.after(0.05, reactor.stop)
        reactor.run()
    assert [failure.timed_out for failure in failures] == [True]


def test_timers_and_descriptors_call_back_between_start_and_stop(flux: Path) -> None:
    del flux
    ticks: list[str] = []
    ours, theirs = socket.socketpair()
    with ours, theirs, Reactor("", any_version=True) as reactor:

        def tick() -> None:
            ticks.append("tick")
            if len(ticks) == 3:
                every.stop()
                theirs.send(b"x")

        def read() -> None:
            ticks.append(ours.recv(1).decode())
            reactor.stop()

        every = reactor.every(0.001, tick)
        every.start()
        reactor.on_readable(ours.fileno(), read)
        reactor.run()
    assert ticks == ["tick", "tick", "tick", "x"]


def test_an_exception_of_a_callback_is_raised_by_run(flux: Path) -> None:
    del flux

    def fail(_: object) -> None:
        raise KeyError("a bug")

    with Reactor("", any_version=True) as reactor:
        reactor.request("a", None, fail, fail, timeout_s=WITHIN_S)
        with pytest.raises(KeyError, match="a bug"):
            reactor.run()


def test_users_requests_reach_our_service_with_who_asks(flux: Path) -> None:
    asked: list[tuple[object, int | None]] = []
    with Reactor("", any_version=True) as reactor:

        def status(request: RpcRequest) -> str:
            asked.append((request.payload, request.userid))
            return json.dumps({"nodes": 3})

        reactor.serve("node-manager-info", {"status": status}, timeout_s=WITHIN_S, for_users=True)
        reactor.request("ask-us", None, lambda _: None, lambda _: None, timeout_s=WITHIN_S)
        reactor.after(0.0, lambda: reactor.request("a", None, lambda _: reactor.stop(), print, timeout_s=WITHIN_S))
        reactor.run()
        reactor.unserve("node-manager-info", timeout_s=WITHIN_S)
    assert asked == [({"id": "f1"}, 1234)]
    assert flux.read_text() == '{"nodes": 3}\n'


def test_a_value_too_deep_for_python_hides_no_other_answer_of_its_stream(flux: Path) -> None:
    del flux
    seen: list[object] = []
    with Reactor("", any_version=True) as reactor:
        reactor.subscribe("deep", {"depth": 1_900}, seen.append, lambda _: reactor.stop())
        reactor.run()
    assert seen == [{"id": 1, "memo": [TOO_DEEP]}, {"id": 2}]
