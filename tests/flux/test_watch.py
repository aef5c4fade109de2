"""The order in which the watch publishes what Flux sends it, on a reactor that the test answers for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Self

import pytest

from nodemanager.core.facts import QueueProbed, QueueSeen, RanksChanged
from nodemanager.flux import instance, link
from nodemanager.simulation.time.world import World

JOBSPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "attributes": {"system": {"duration": 60}},
}


class Periodic:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call, self.runs = call, False

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False


class ScriptedReactor:
    """A connection on which a script plays Flux: it answers requests, and sends events."""

    def __init__(self, script: Callable[[ScriptedReactor], None]) -> None:
        self._script = script
        self._ends: Callable[[], None] = lambda: None
        self.streams: dict[str, Callable[[Any], None]] = {}
        self.timers: list[Periodic] = []
        self.asked: list[tuple[str, Callable[[Any], None]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """As Reactor's."""

    def run(self) -> None:
        self._script(self)
        self._ends()

    def stop(self) -> None:
        """The script ends by itself."""

    def on_readable(self, _fd: int, call: Callable[[], None]) -> None:
        self._ends = call

    def every(self, _period_s: float, call: Callable[[], None]) -> Periodic:
        self.timers.append(Periodic(call))
        return self.timers[-1]

    def subscribe(self, topic: str, _payload: object, on_response: Any, _on_end: Any) -> Callable[[], None]:
        self.streams[topic] = on_response
        return lambda: None

    def request(self, topic: str, _payload: object, on_answer: Any, _on_failure: Any, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.asked.append((topic, on_answer))

    # -- what the script says

    def answer(self, topic: str, answer: object) -> None:
        asked, on_answer = self.asked.pop(0)
        assert asked == topic
        on_answer(answer)

    def answer_probe(self) -> None:
        """Answer both rounds of a probe of an instance without named queues."""
        self.answer("job-manager.queue-list", {"queues": []})
        self.answer("job-manager.queue-status", {"start": True})

    def send(self, job: int, *events: dict[str, Any]) -> None:
        response: dict[str, Any] = {"id": job, "events": list(events), "jobspec": JOBSPEC}
        self.streams["job-manager.events-journal"](response)

    def probe(self) -> None:
        """Let the next probe come due: the first of the connection's timers."""
        self.timers[0].call()


SUBMIT = {"name": "submit", "timestamp": 1.0, "context": {"userid": 1000, "urgency": 16}}


def followed(monkeypatch: pytest.MonkeyPatch, script: Callable[[ScriptedReactor], None]) -> list[Any]:
    """What a watch publishes on a connection that the script plays."""
    told: list[Any] = []
    monkeypatch.setattr(link, "Reactor", lambda _uri: ScriptedReactor(script))
    periods = instance._Periods(10.0, 60.0, 5.0)
    session = instance._WatchSession("local:///x", World(1).clock(), periods, told.append)
    wake, waker = socket.socketpair()
    with wake, waker:
        session.run("local:///x", wake, session.stop)
    return told


def test_what_the_journal_sent_before_an_answer_to_a_probe_is_published_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer makes the queue fresh, so a job that Flux sent earlier must be known by then."""

    def script(flux: ScriptedReactor) -> None:
        flux.answer_probe()
        flux.send(-1)
        flux.probe()
        flux.send(7, SUBMIT)
        flux.answer_probe()

    first, ranks, changes, probed = followed(monkeypatch, script)
    assert (first.complete, ranks) == (True, RanksChanged())
    assert isinstance(changes, QueueSeen)
    assert [job.id for job in changes.jobs] == [7]
    assert isinstance(probed, QueueProbed)


def test_the_queue_is_complete_only_once_its_queues_were_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(flux: ScriptedReactor) -> None:
        flux.send(7, SUBMIT)
        flux.send(-1)
        flux.answer("job-manager.queue-list", {"queues": ["batch", "debug"]})
        flux.answer("job-manager.queue-status", {"start": False})

    def to_the_end(flux: ScriptedReactor) -> None:
        script(flux)
        flux.answer("job-manager.queue-status", {"start": True})

    assert followed(monkeypatch, script) == []
    seen, _ = followed(monkeypatch, to_the_end)
    assert (seen.complete, seen.queues_stopped, [job.id for job in seen.jobs]) == (True, {"batch"}, [7])
