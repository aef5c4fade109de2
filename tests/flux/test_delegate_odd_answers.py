"""A peer may send anything: whatever its shape, at worst the connection ends with a reason."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import JobId
from nodemanager.core.ports import FluxError
from nodemanager.delegation.choose import Candidate, Needs, choose
from nodemanager.delegation.jobs import Copy, PeerName, Proxy
from nodemanager.delegation.ports import (
    CheckFit,
    CopyEvents,
    CopyOutput,
    FollowOutput,
    PeerLoadSeen,
    ReadCopy,
)
from nodemanager.delegation.relay import OUTPUT, OutputRelay
from nodemanager.flux import reactor as reactors
from nodemanager.flux.bindings import CallFailed, Future
from nodemanager.flux.claim import Claim
from nodemanager.flux.delegate import peer
from nodemanager.flux.delegate.home import _HomeSession
from nodemanager.flux.delegate.peer import _PeerSession
from nodemanager.flux.parse import eventlog
from nodemanager.simulation.time.world import World

CLUSTER = "cafe"
B = PeerName("b")
WHOLE = st.integers() | st.sampled_from([0, -1, 1 << 64, 10**400])
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@dataclass
class StubReactor:
    """Keeps the callbacks, so that a test can answer."""

    handle: Any = None
    waiting: list[tuple[str, Callable[[Any], None]]] = field(default_factory=list)
    stopped: bool = False

    def request(self, topic: str, _payload: object, on_answer: Any, _on_failure: Any, *, timeout_s: float) -> None:
        self.waiting.append((topic, on_answer))

    def subscribe(self, topic: str, _payload: object, on_response: Any, _on_end: Any) -> Callable[[], None]:
        self.waiting.append((topic, on_response))
        return lambda: None

    def every(self, _period_s: float, _callback: Any) -> Any:
        return self

    def start(self) -> None:
        """As a timer's."""

    def stop(self) -> None:
        self.stopped = True

    def answer(self, answers: dict[str, Any]) -> None:
        """Answer every request, and those that follow from the answers."""
        while self.waiting:
            topic, on_answer = self.waiting.pop(0)
            on_answer(copy.deepcopy(answers.get(topic)))


def an_event(name: str, **context: object) -> dict[str, Any]:
    return {"timestamp": 5.0, "name": name, "context": context}


MARKER = {"node-manager": {"delegated-from": f"{CLUSTER}/7/1.000000"}}
JOBSPEC = {"attributes": {"system": {**MARKER, "duration": 60.0, "delegate": "b"}}}
ENTRIES = [
    an_event("submit", urgency=0, userid=os.getuid(), flags=0),
    an_event("set-flags", flags=["alloc-bypass"]),
    an_event("dependency-add", description="begin-time=4102444800.000"),
    an_event("validate"),
    an_event("urgency", urgency=16, userid=0),
    an_event("jobspec-update", **{"attributes.system.duration": 30.0, "attributes.system.alloc-bypass.R": {}}),
    an_event("annotations", annotations={"sched": {"t_estimate": 17.5}}),
    an_event("delegate::submit", jobid=5, peer="b"),
    an_event("delegate::refused", peer="b", why="full"),
    an_event("start"),
    an_event("exception", type="timeout", severity=0, note="too long"),
    an_event("finish", status=9),
    an_event("clean"),
]
EVENTLOG = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
R = {"execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-7"}}]}}
ANSWERS: dict[str, Any] = {
    "job-manager.events-journal": {"id": 5, "events": ENTRIES, "jobspec": JOBSPEC},
    "job-info.lookup": {"id": 5, "eventlog": EVENTLOG, "jobspec": json.dumps(JOBSPEC)},
    "job-info.eventlog-watch": {"event": EVENTLOG},
    peer.RESOURCES: {"all": R, "allocated": R, "down": R},
    peer.STATS: {"job_states": {"sched": 1, "run": 2}},
    peer.QUEUES: {"queues": ["batch", "debug"]},
    peer.QUEUE: {"enable": True, "start": True},
    peer.FLUXION: {"queues": {"default": {"pending_queues": {"pending": [1, 2], "blocked": []}}}},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def changed_at(value: Any, path: tuple[Any, ...], new: Any, *, remove: bool) -> Any:
    if not path:
        return new
    value = copy.deepcopy(value)
    at = value
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


@st.composite
def odd_answers(draw: st.DrawFn) -> dict[str, Any]:
    """The answers of a sound peer, but for one place in one of them, whose value is odd or is missing."""
    topic = draw(st.sampled_from(sorted(ANSWERS)))
    answer = ANSWERS[topic]
    path = draw(st.sampled_from(list(places(answer))))
    odd = changed_at(answer, path, draw(JSON), remove=draw(st.booleans()))
    if isinstance(odd, dict) and draw(st.booleans()) and "eventlog" in odd:
        entries = changed_at(ENTRIES, draw(st.sampled_from(list(places(ENTRIES)))), draw(JSON), remove=False)
        lines = [json.dumps(entry) for entry in entries if entry] if isinstance(entries, list) else ["[["]
        odd = {**odd, "eventlog": "\n".join(lines)}
    return {**ANSWERS, topic: odd}


def connected(facts: list[Any]) -> tuple[Any, StubReactor]:
    session: Any = _PeerSession(B, CLUSTER, World(1).clock(), facts.append, 1.0)
    session._reactor = reactor = StubReactor()
    session.synced = True
    session._output_again = reactor
    return session, reactor


def take_everything(session: Any, reactor: StubReactor, answers: dict[str, Any]) -> None:
    reactor.subscribe("job-manager.events-journal", {}, session._on_jobs, None)
    reactor.answer(answers)
    session._look_at_load()
    session.carry_out([ReadCopy(JobId(5)), FollowOutput(JobId(5), 1), CheckFit("key", {})])
    reactor.answer(answers)


def use(facts: list[Any]) -> None:
    """Do with the facts what the delegator does."""
    relay = OutputRelay({OUTPUT: 1}, 200, "flux job attach")
    for fact in facts:
        if isinstance(fact, CopyEvents):
            copied = Copy(fact.remote, duration_s=fact.duration_s).after(fact.events)
            assert copied.status is None or 0 <= copied.status <= 0xFFFF
            Proxy(JobId(7)).after(fact.events)
        elif isinstance(fact, CopyOutput):
            for line in relay.take(fact.key, fact.events).splitlines():
                json.loads(line, parse_constant=pytest.fail)
        elif isinstance(fact, PeerLoadSeen):
            str(choose(Needs(1), [Candidate(B, fact.load, price_per_core_hour=Decimal(1))], 5.0).reason)


def test_the_sound_answers_are_taken() -> None:
    facts: list[Any] = []
    take_everything(*connected(facts), ANSWERS)
    use(facts)
    kinds = [type(fact).__name__ for fact in facts]
    assert sorted(set(kinds)) == ["CopyEvents", "CopyOutput", "FitChecked", "PeerLoadSeen"]
    (seen,) = [fact.load for fact in facts if type(fact).__name__ == "PeerLoadSeen"]
    assert (seen.cores, seen.waiting, seen.running, seen.queues) == (32, 2, 2, {"batch": True, "debug": True})
    assert seen.last_start_at is None  # the job ended


@settings(max_examples=600)
@given(odd_answers())
def test_an_odd_answer_of_a_peer_only_ends_the_connection(answers: dict[str, Any]) -> None:
    facts: list[Any] = []
    session, reactor = connected(facts)
    with suppress(ValueError, FluxError):
        take_everything(session, reactor, answers)
    use(facts)


@settings(max_examples=300)
@given(odd_answers())
def test_an_odd_entry_of_our_own_journal_only_ends_the_connection(answers: dict[str, Any]) -> None:
    facts: list[Any] = []
    session = _HomeSession("", Claim("", timeout_s=1.0), Path("flux_delegate.py"), facts.append, 1.0)
    with suppress(ValueError):
        session._on_jobs(answers["job-manager.events-journal"])
    for fact in facts:
        Proxy(JobId(7)).after(fact.events)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", '{"a": Infinity}', "\x00"])
def test_text_that_is_no_json_is_a_fault(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any wording
        eventlog.read_json(text)


def test_a_huge_set_of_ranks_is_refused_before_it_is_listed() -> None:
    huge = {"execution": {"R_lite": [{"rank": "0-99999999999", "children": {"core": "0-7"}}]}}
    look = peer.LoadRound(0.0)
    look.answers[peer.RESOURCES] = {"all": huge}
    with pytest.raises(ValueError, match="more than"):
        look.read(None)


@pytest.mark.parametrize("status", [None, "0", 1.5, -1, 1 << 40, [], True])
def test_a_finish_without_a_readable_status_is_no_success(status: object) -> None:
    entries = eventlog.read_events([an_event("submit"), an_event("start"), an_event("finish", status=status)])
    assert Copy(JobId(5)).after(entries).status in {None, 1}


def test_an_exception_of_an_odd_type_can_still_be_raised_at_home() -> None:
    failed = Copy(JobId(5)).after(
        eventlog.read_events([an_event("exception", severity=0, type="a b=\n", note="x" * 9999)])
    )
    assert failed.failure is not None
    assert (failed.failure.type, len(failed.failure.note)) == ("delegate", 1000)


class OddFuture:
    """A future of the bindings whose answer is not JSON, or is nested too deep."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self) -> None:
        raise self._error


@pytest.mark.parametrize("error", [json.JSONDecodeError("bad", "x", 0), RecursionError(), UnicodeError()])
def test_an_answer_that_the_bindings_cannot_read_is_a_failed_call(error: Exception) -> None:
    with pytest.raises(OSError, match="cannot be read") as raised:
        reactors._read(cast("Future", OddFuture(error)))
    assert CallFailed("x", raised.value).answered
