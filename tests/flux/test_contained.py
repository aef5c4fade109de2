"""A bug in a callback of a stream ends the connection, not the manager: it is logged, told, and begun again."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import pytest
from structlog.testing import capture_logs

from nodemanager.core.ports import FluxError
from nodemanager.flux import claim, instance, link, reactor
from nodemanager.flux.bindings import VersionsDiffer
from nodemanager.flux.ensembles import functions, runner
from nodemanager.flux.handles.handle import ServiceRequest
from nodemanager.flux.link import Link, LinkSession
from nodemanager.simulation.time.world import World

WITHIN_S = 20.0


def a_bug() -> None:
    raise TypeError("not subscriptable")


def _buggy_answer(_: object) -> str:
    a_bug()
    return ""


class StubReactor:
    """A connection whose loop calls a callback of its user, as the bindings do; then it waits for ``stop``."""

    made: ClassVar[list[StubReactor]] = []
    callback: ClassVar[Callable[[StubReactor], None]]

    def __init__(self, uri: str, *, any_version: bool = False) -> None:
        self.handle = None
        self.streams: dict[str, Callable[[Any], None]] = {}
        self.stopped = threading.Event()
        type(self).made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """As Reactor's."""

    def run(self) -> None:
        type(self).callback(self)

    def stop(self) -> None:
        self.stopped.set()

    def subscribe(self, topic: str, _payload: object, on_response: Any, _on_end: Any) -> Callable[[], None]:
        self.streams[topic] = on_response
        return lambda: None

    def every(self, _period_s: float, _callback: object) -> Any:
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    def on_readable(self, _fd: int, _callback: object) -> None:
        """Nothing wakes it up."""

    def request(self, *_: object, timeout_s: float) -> None:
        """Nothing answers."""


@dataclass
class Told:
    """What the owner of a stream was told, and an event once it was told twice."""

    why: list[str] = field(default_factory=list)
    twice: threading.Event = field(default_factory=threading.Event)

    def __call__(self, why: object) -> None:
        self.why.append(str(why))
        if len(self.why) == 2:
            self.twice.set()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[StubReactor]:
    class Made(StubReactor):
        made: ClassVar[list[StubReactor]] = []

    monkeypatch.setattr(link, "Reactor", Made)
    return Made


def test_the_watch_tells_why_and_begins_again(stub: type[StubReactor]) -> None:
    # Flux never sends this; a later version might.
    stub.callback = lambda it: it.streams["job-manager.events-journal"]({"id": 5})
    told = Told()
    watching = instance.RealFluxWatch("local:///x", World(1).clock())
    with capture_logs() as logs:
        watching.start(lambda _: None, told)
        assert told.twice.wait(WITHIN_S)
        watching.stop()
    assert "KeyError: 'events'" in told.why[0]
    assert len(stub.made) >= 2, "it was opened again"
    assert logs[0]["event"] == "stream_failed"
    assert isinstance(logs[0]["exc_info"], KeyError)


class BuggySession(LinkSession[str]):
    def _connected(self, uri: str) -> Any:
        made = StubReactor(uri)
        made.run = a_bug  # type: ignore[method-assign]
        return made

    def begin(self) -> None:
        """Nothing to ask."""


def test_a_run_of_an_ensemble_tells_why_and_can_be_tried_again(
    stub: type[StubReactor], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.callback = lambda _: a_bug()
    monkeypatch.setattr(runner, "Reactor", stub)
    monkeypatch.setattr(runner.Runner, "_claim", lambda *_: (None, False))
    monkeypatch.setattr(runner.Runner, "_session", lambda *_: SimpleNamespace(start=lambda: None))
    view = cast("Any", SimpleNamespace(opened=lambda *_, **__: None))
    assignment = runner.Assignment("e", "e.yaml", "", cast("Any", None), "/")
    stop_asked, ask_to_stop = socket.socketpair()
    with stop_asked, ask_to_stop, capture_logs() as logs:
        run = runner.Runner("", assignment, view, stop_asked, functions=cast("Any", None), nodes=cast("Any", None))
        with pytest.raises(FluxError, match="ensemble-e: TypeError: not subscriptable"):
            run.run()
    assert logs[0]["event"] == "stream_failed"


@pytest.mark.parametrize(
    "returned",
    ["NaN", "[" * 70 + "]" * 70, "1" * 21, '"\\ud800"', "[1]", "1"],
    ids=["NaN", "deep", "a large integer", "half a pair", "a list", "a number"],
)
def test_an_answer_of_a_custom_function_that_cannot_be_read_is_a_fault_of_that_call(returned: str) -> None:
    action, why = functions.read_answer(f'{{"action": {{"value": {returned}}}}}\n'.encode())
    if returned not in ("[1]", "1"):  # the ensemble refuses these
        assert (action, why[:26]) == (None, "its answer cannot be read:")
    action, why = functions.read_answer(f'{{"action": {returned}}}\n'.encode())
    assert (action, why[:26]) == (None, "its answer cannot be read:")
    assert functions.read_answer(b"[1]\n")[1].startswith("its answer cannot be read:")
    assert functions.read_answer(b'{"action": {"name": "terminate"}}\n') == ({"name": "terminate"}, "")


def test_a_link_to_an_instance_tells_why_and_begins_again() -> None:
    told = Told()
    linked = Link[str]("peer-b", lambda: "local:///b", lambda: BuggySession(1.0), told)
    with capture_logs() as logs:
        linked.start()
        assert told.twice.wait(WITHIN_S)
        linked.stop()
    assert "peer-b: TypeError: not subscriptable" in told.why[0]
    assert logs[0]["event"] == "stream_failed"


def test_what_a_peer_sends_and_cannot_be_read_is_no_bug() -> None:
    class Unreadable(BuggySession):
        def begin(self) -> None:
            raise ValueError("journal.id: a whole number is needed, not nothing")

    told = Told()
    linked = Link[str]("peer-b", lambda: "local:///b", lambda: Unreadable(1.0), told)
    with capture_logs() as logs:
        linked.start()
        assert told.twice.wait(WITHIN_S)
        linked.stop()
    assert "cannot be read: journal.id" in told.why[0]
    assert not logs


def test_a_wrong_version_still_ends_the_process() -> None:
    with pytest.raises(VersionsDiffer), reactor.contained("the watch"):
        raise VersionsDiffer("0.88 and 0.72")


def test_a_failed_call_stays_what_it_is() -> None:
    with pytest.raises(FluxError, match=r"^gone$"), reactor.contained("the watch"):
        raise FluxError("gone")


def test_a_bug_in_an_answer_of_the_claim_does_not_give_up_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, str]] = []
    request = cast(
        "ServiceRequest", SimpleNamespace(respond_error=lambda number, text: sent.append((number, text)))
    )
    monkeypatch.setattr(reactor, "_read_request", lambda _message: reactor.RpcRequest({"id": "f1"}, None))
    holder = claim.Claim("", timeout_s=1.0, floor=lambda it: {"why": _buggy_answer(it)})
    with capture_logs() as logs:
        reactor._respond(request, _buggy_answer)
        reactor._respond(request, holder._answer_floor)
    assert sent == 2 * [(errno.EIO, "a fault of the manager: TypeError: not subscriptable")]
    assert [log["event"] for log in logs] == 2 * ["request_failed"]
