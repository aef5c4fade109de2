"""The contract of every ``PeerPort``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import Copy, PeerName, Phase
from nodemanager.delegation.jobspec import Marker, copy_jobspec, fit_question
from nodemanager.delegation.ports import (
    ChangeDuration,
    ChangeUrgency,
    CheckFit,
    CopyEvents,
    CopyMissing,
    CopyOutput,
    CopyOutputEnded,
    EndCopy,
    FindCopies,
    FitChecked,
    FollowOutput,
    PeerDone,
    PeerFact,
    PeerLoadSeen,
    PeerLost,
    PeerPort,
    PeerRequest,
    PeerSynced,
    ReadCopy,
    SubmitCopy,
    Submitted,
)
from nodemanager.delegation.relay import OUTPUT
from nodemanager.simulation.delegation.instance import SimulatedInstance
from nodemanager.simulation.delegation.ports import SimulatedPeer
from nodemanager.simulation.time.world import World
from tests.live.instance import eventually, why_no_flux

B = PeerName("b")
CLUSTER = "cafe"
WITHIN_S = 30.0
F = TypeVar("F", bound=PeerFact)


class Subject:
    """A port, the facts that it sends, and a way to let time pass until something holds."""

    def __init__(
        self, port: PeerPort, wait: Callable[[str, Callable[[], bool]], None], lose: Callable[[], None]
    ) -> None:
        self.port = port
        self.facts: list[PeerFact] = []
        self.lose = lose
        self._wait = wait
        self._next = 0

    def begin(self) -> None:
        self.port.start(self.facts.append)
        self.until(PeerSynced)

    def until(self, kind: type[F], holds: Callable[[F], bool] = lambda _: True) -> F:
        """Wait for a fact, among all that were ever sent."""
        self._wait(f"{kind.__name__}", lambda: self._found(kind, holds) is not None)
        found = self._found(kind, holds)
        assert found is not None
        return found

    def _found(self, kind: type[F], holds: Callable[[F], bool]) -> F | None:
        return next((it for it in list(self.facts) if isinstance(it, kind) and holds(it)), None)

    def asks(self, request: PeerRequest) -> PeerDone:
        self.port.send(request)
        return self.until(PeerDone, lambda it: it.request == request)

    def submits(self, command: str = "true", cluster: str = CLUSTER, duration: float = 0) -> tuple[JobId, JobId]:
        """Submit a copy; our job's id and its own."""
        self._next += 1
        job = JobId(self._next)
        self.port.send(SubmitCopy(job, copy_jobspec(a_jobspec(command, duration), Marker(cluster, job, 1.0))))
        return job, self.until(Submitted, lambda it: it.job == job).remote

    def copy(self, remote: JobId) -> Copy:
        """The copy as its events since the last connection show it."""
        copy = Copy(remote)
        for fact in list(self.facts):
            if isinstance(fact, CopyEvents) and fact.remote == remote:
                copy = (Copy(remote) if fact.marker else copy).after(fact.events)
        return copy

    def until_copy(self, remote: JobId, what: str, holds: Callable[[Copy], bool]) -> Copy:
        self._wait(what, lambda: holds(self.copy(remote)))
        return self.copy(remote)


def a_jobspec(command: str = "true", duration: float = 0, cores: int = 1) -> Mapping[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}
    return {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": ["sh", "-c", command], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": duration, "cwd": "/tmp", "environment": {"PATH": "/bin:/usr/bin"}}},  # noqa: S108
    }


@contextmanager
def a_real_peer() -> Iterator[Subject]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    from nodemanager.flux.delegate.peer import RealPeer  # noqa: PLC0415
    from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415
    from tests.live.pair import SoloInstance  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        instance = SoloInstance(Path(folder), "b")
        port = RealPeer(B, instance.uri, CLUSTER, SystemClock())

        def restart() -> None:
            instance.stop()
            instance.start()

        try:
            instance.start()
            subject = Subject(port, lambda what, holds: eventually(what, holds, WITHIN_S), restart)
            subject.begin()
            yield subject
        finally:
            port.stop()
            instance.reap()


@contextmanager
def a_simulated_peer() -> Iterator[Subject]:
    world = World(1)
    instance = SimulatedInstance(world, "b")
    instance.status = 0
    port = SimulatedPeer(B, instance, CLUSTER)

    def wait(what: str, holds: Callable[[], bool]) -> None:
        until_s = world.now_s + WITHIN_S
        while not holds():
            assert world.now_s < until_s, f"not within {WITHIN_S:g} s: {what}"
            world.advance_by(0.1)

    subject = Subject(port, wait, port.lose)
    subject.begin()
    yield subject


SUBJECTS: dict[str, Callable[[], AbstractContextManager[Subject]]] = {
    "real": a_real_peer,
    "simulated": a_simulated_peer,
}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with SUBJECTS[request.param]() as made:
        yield made


def test_a_copy_is_held_and_reported_with_its_marker(subject: Subject) -> None:
    job, remote = subject.submits()
    seen = subject.until(CopyEvents, lambda it: it.remote == remote)
    assert seen.marker == Marker(CLUSTER, job, 1.0)
    assert seen.cores == 1
    copy = subject.until_copy(remote, "it is validated", lambda it: it.phase.value >= Phase.WAITING.value)
    assert copy.urgency == 0
    assert copy.started_at is None
    subject.asks(EndCopy(remote, "the end of the test"))


def test_a_released_copy_runs_and_every_event_is_reported_in_order(subject: Subject) -> None:
    _, remote = subject.submits()
    subject.asks(ChangeUrgency(remote, 16))
    copy = subject.until_copy(remote, "it ends", lambda it: it.ended)
    assert copy.status == 0
    assert copy.urgency == 16
    events = [
        event for it in subject.facts if isinstance(it, CopyEvents) and it.remote == remote for event in it.events
    ]
    names = [event.name for event in events if event.name in {"submit", "start", "finish", "clean"}]
    assert names == ["submit", "start", "finish", "clean"]


def test_a_copy_that_is_cancelled(subject: Subject) -> None:
    _, remote = subject.submits()
    subject.asks(EndCopy(remote, "ended at home"))
    copy = subject.until_copy(remote, "it ends", lambda it: it.ended)
    assert copy.failure is not None
    assert (copy.failure.type, copy.failure.note) == ("cancel", "ended at home")
    subject.asks(EndCopy(remote, "once more, which is no error"))


def test_a_new_time_limit_is_reported(subject: Subject) -> None:
    _, remote = subject.submits(duration=100)
    subject.asks(ChangeDuration(remote, 50.0))
    subject.until_copy(remote, "it is shorter", lambda it: it.duration_s == 50.0)
    subject.asks(EndCopy(remote, "the end of the test"))


def test_whether_a_job_fits(subject: Subject) -> None:
    subject.port.send(CheckFit("small", fit_question(a_jobspec())))
    subject.port.send(CheckFit("large", fit_question(a_jobspec(cores=99))))
    assert not subject.until(FitChecked, lambda it: it.key == "small").misfit
    assert "unsatisfiable" in subject.until(FitChecked, lambda it: it.key == "large").misfit


def test_output_and_its_end(subject: Subject) -> None:
    _, remote = subject.submits("printf 'said\u2028\u2029\u0085\\n'; sleep 0.2")
    subject.asks(ChangeUrgency(remote, 16))
    subject.until_copy(remote, "it starts", lambda it: it.started_at is not None)
    subject.port.send(FollowOutput(remote, 7))
    subject.until(CopyOutputEnded, lambda it: it.remote == remote and it.stream == 7)
    chunks = [it for it in subject.facts if isinstance(it, CopyOutput) and (it.remote, it.key) == (remote, OUTPUT)]
    data = [event["context"].get("data", "") for it in chunks for event in it.events if event["name"] == "data"]
    assert "".join(data) == "said\u2028\u2029\u0085\n"  # Flux does not escape these


def test_a_copy_that_has_ended_can_still_be_read(subject: Subject) -> None:
    job, remote = subject.submits()
    subject.asks(EndCopy(remote, "ended at home"))
    subject.until_copy(remote, "it ends", lambda it: it.ended)
    before = len(subject.facts)
    subject.port.send(ReadCopy(remote))
    # The journal's last events of the copy, which have no marker, may come first.
    read = subject.until(
        CopyEvents, lambda it: it.remote == remote and it.marker is not None and it in subject.facts[before:]
    )
    assert (read.events[0].name, read.events[-1].name) == ("submit", "clean")
    assert read.cores == 1
    assert read.marker is not None
    assert read.marker.job == job


def test_copies_are_found_also_once_they_have_ended(subject: Subject) -> None:
    ended_job, ended = subject.submits()
    held_job, held = subject.submits()
    _, foreign = subject.submits(cluster="another-cluster")
    for remote in (ended, foreign):
        subject.asks(ChangeUrgency(remote, 16))
    subject.until_copy(ended, "it ends", lambda it: it.ended)
    before = len(subject.facts)
    subject.port.send(FindCopies())
    subject.until(PeerDone, lambda it: it.request == FindCopies())
    found = {it.remote: it for it in subject.facts[before:] if isinstance(it, CopyEvents) and it.marker}
    assert [found[it].marker for it in (ended, held)] == [
        Marker(CLUSTER, ended_job, 1.0),
        Marker(CLUSTER, held_job, 1.0),
    ]
    assert foreign not in found
    assert Copy(ended).after(found[ended].events).status == 0
    assert not Copy(held).after(found[held].events).ended
    subject.asks(EndCopy(held, "the end of the test"))


def test_a_copy_that_never_was_is_missing(subject: Subject) -> None:
    subject.port.send(ReadCopy(JobId(5)))
    assert subject.until(CopyMissing).remote == 5


def test_how_busy_it_is(subject: Subject) -> None:
    # A peer that has just started may have no rank that is up yet.
    load = subject.until(PeerLoadSeen, lambda it: it.load.nodes_free > 0).load
    assert load.cores >= load.cores_free > 0
    assert load.nodes >= load.nodes_free == 1


def test_after_a_lost_connection_active_copies_are_reported_whole_and_those_of_others_never(
    subject: Subject,
) -> None:
    job, remote = subject.submits()
    self_made = SubmitCopy(JobId(999), copy_jobspec(a_jobspec(), Marker("another-cluster", JobId(999), 1.0)))
    subject.port.send(self_made)
    foreign = subject.until(Submitted, lambda it: it.job == 999).remote
    subject.facts.clear()
    subject.lose()
    subject.until(PeerLost)
    subject.until(PeerSynced)
    lost = next(index for index, it in enumerate(subject.facts) if isinstance(it, PeerLost))
    synced = next(index for index, it in enumerate(subject.facts) if isinstance(it, PeerSynced))
    again = [it for it in subject.facts[lost:synced] if isinstance(it, CopyEvents)]
    assert [(it.remote, it.marker and it.marker.job, it.events[0].name) for it in again] == [
        (remote, job, "submit")
    ]
    assert foreign not in {it.remote for it in subject.facts if isinstance(it, CopyEvents)}
