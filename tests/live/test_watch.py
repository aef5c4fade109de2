"""The watch on a real instance: what users do to the queue is seen, and a lost rank 0 is said and found again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from nodemanager.core.facts import QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.flux.instance import RealFlux, RealFluxWatch
from tests.contract.flux_subjects import CLUSTER_UUID, MonotonicClock
from tests.live.instance import LiveInstance, eventually


class Listener:
    """What the watch pushed, in order, and the queue that follows from it."""

    def __init__(self) -> None:
        self.facts: list[QueueSeen | QueueProbed | RanksChanged] = []
        self.losses: list[str] = []
        self.jobs: dict[JobId, Job] = {}
        self.threads: set[str] = set()

    def __call__(self, fact: QueueSeen | QueueProbed | RanksChanged) -> None:
        self.threads.add(threading.current_thread().name)
        if isinstance(fact, QueueSeen):
            kept = {} if fact.complete else self.jobs
            told = {job.id: job for job in fact.jobs}
            self.jobs = {id_: job for id_, job in {**kept, **told}.items() if id_ not in fact.ended}
        self.facts.append(fact)

    def seen(self) -> list[QueueSeen]:
        return [fact for fact in self.facts if isinstance(fact, QueueSeen)]

    def complete(self) -> list[QueueSeen]:
        return [seen for seen in self.seen() if seen.complete]

    def count(self, kind: type[QueueProbed | RanksChanged]) -> int:
        return sum(isinstance(fact, kind) for fact in self.facts)

    def state(self, job: int) -> JobState | None:
        return self.jobs[JobId(job)].state if JobId(job) in self.jobs else None


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def watch(instance: LiveInstance, listener: Listener) -> Iterator[RealFluxWatch]:
    """Started, with an instance that is up; probing and relisting only when a test asks for it."""
    yield from _watching(instance, listener, probe_s=600.0, relist_s=600.0)


@pytest.fixture
def busy_watch(instance: LiveInstance, listener: Listener) -> Iterator[RealFluxWatch]:
    yield from _watching(instance, listener, probe_s=0.05, relist_s=0.4)


def _watching(
    instance: LiveInstance, listener: Listener, *, probe_s: float, relist_s: float
) -> Iterator[RealFluxWatch]:
    flux = RealFlux(instance.uri, CLUSTER_UUID, MonotonicClock(), timeout_s=2.0)
    watch = flux.watch(probe_s=probe_s, relist_s=relist_s)
    watch.start(listener, listener.losses.append)
    eventually("the complete queue", listener.complete)
    yield watch
    watch.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "flux-watch"]


@pytest.mark.smoke
def test_the_queue_as_it_stood_comes_first_and_whole(instance: LiveInstance, listener: Listener) -> None:
    jobs = {instance.submit(), instance.submit("-N2", "--urgency=hold")}
    for _ in _watching(instance, listener, probe_s=600.0, relist_s=600.0):
        first = listener.facts[0]
        assert isinstance(first, QueueSeen)
        assert (first.complete, first.queues_stopped, first.unreadable) == (True, frozenset(), ())
        assert {job.id for job in first.jobs} == jobs
        assert sorted(job.urgency for job in first.jobs) == [0, 16]
        assert RanksChanged() in listener.facts
        assert listener.threads == {"flux-watch"}


def test_twenty_submissions_are_seen(instance: LiveInstance, listener: Listener, watch: RealFluxWatch) -> None:
    instance.run("submit", "--cc=1-20", "-n1", "sleep", "600")
    eventually("all wait for nodes", lambda: [job.state for job in listener.jobs.values()] == [JobState.SCHED] * 20)
    assert len({job.shape for job in listener.jobs.values()}) == 1
    assert len(listener.complete()) == 1


def test_what_users_change_on_a_waiting_job_is_seen(
    instance: LiveInstance, listener: Listener, watch: RealFluxWatch
) -> None:
    job = instance.submit("-N1", "-t10m")
    eventually("it waits", lambda: listener.state(job) is JobState.SCHED)
    instance.run("job", "urgency", str(job), "hold")
    eventually("it is held", lambda: listener.jobs[JobId(job)].urgency == 0)
    instance.run("job", "urgency", str(job), "20")
    eventually("it is not", lambda: listener.jobs[JobId(job)].urgency == 20)
    instance.run("update", str(job), "duration=1h")
    eventually("it runs for longer", lambda: listener.jobs[JobId(job)].duration_s == 3600.0)
    instance.run("cancel", str(job))
    eventually("it is gone", lambda: JobId(job) not in listener.jobs)


@pytest.mark.smoke
def test_a_job_is_followed_through_its_life_and_stirs_the_ranks(
    instance: LiveInstance, listener: Listener, watch: RealFluxWatch
) -> None:
    job = instance.submit("-N1")
    eventually("it waits", lambda: listener.state(job) is JobState.SCHED)
    stirred = listener.count(RanksChanged)
    instance.start_slot(1)
    eventually("it runs", lambda: listener.state(job) is JobState.RUN)
    eventually("the ranks stir", lambda: listener.count(RanksChanged) > stirred)
    stirred = listener.count(RanksChanged)
    instance.run("cancel", str(job))
    eventually("it is gone", lambda: listener.state(job) is None)
    eventually("the ranks stir again", lambda: listener.count(RanksChanged) > stirred)


def test_a_drain_stirs_the_ranks(instance: LiveInstance, listener: Listener, watch: RealFluxWatch) -> None:
    stirred = listener.count(RanksChanged)
    instance.run("resource", "drain", "2", "bad fan")
    eventually("the ranks stir", lambda: listener.count(RanksChanged) > stirred)


def test_probes_and_relists_come_by_themselves(
    instance: LiveInstance, listener: Listener, busy_watch: RealFluxWatch
) -> None:
    job = instance.submit("-N1")
    known = len(listener.complete())  # the next one may have begun before the job was there
    eventually("probes", lambda: listener.count(QueueProbed) >= 3)
    eventually("relists", lambda: len(listener.complete()) >= known + 2)
    assert [seen.id for seen in listener.complete()[-1].jobs] == [job]
    stamps = [fact.started_s for fact in listener.facts if isinstance(fact, QueueProbed)]
    assert stamps == sorted(stamps)
    assert stamps[-1] <= time.monotonic()


def test_a_queue_that_is_stopped_and_started_is_said(
    instance: LiveInstance, listener: Listener, busy_watch: RealFluxWatch
) -> None:
    instance.run("queue", "stop")
    eventually("it is stopped", lambda: _latest(listener) == frozenset({""}))
    instance.run("queue", "start")
    eventually("it is started", lambda: _latest(listener) == frozenset())


def test_a_queue_is_not_stopped_because_the_scheduler_is_away(
    instance: LiveInstance, listener: Listener, busy_watch: RealFluxWatch
) -> None:
    instance.unload_scheduler()
    heard = len(listener.seen())
    eventually("it is asked for again", lambda: sum(_hides(seen) for seen in listener.seen()[heard:]) > 1)
    assert {seen.queues_stopped for seen in listener.seen()} <= {None, frozenset()}


def test_a_queue_that_was_stopped_is_not_said_to_be_open_while_the_scheduler_is_away(
    instance: LiveInstance, listener: Listener, busy_watch: RealFluxWatch
) -> None:
    instance.run("queue", "stop")
    eventually("it is stopped", lambda: _latest(listener) == frozenset({""}))
    instance.unload_scheduler()
    heard = len(listener.seen())
    eventually("that is hidden", lambda: any(_hides(seen) for seen in listener.seen()[heard:]))
    instance.load_scheduler()
    again = len(listener.seen())
    eventually("it is told", lambda: any(seen.queues_stopped for seen in listener.seen()[again:]))
    assert frozenset() not in {seen.queues_stopped for seen in listener.seen()[heard:]}


def _latest(listener: Listener) -> frozenset[str] | None:
    return next(
        (seen.queues_stopped for seen in reversed(listener.seen()) if seen.queues_stopped is not None), None
    )


def _hides(seen: QueueSeen) -> bool:
    return not seen.complete and not seen.jobs and not seen.ended and seen.queues_stopped is None


def test_after_a_clean_restart_of_rank_0_the_queue_is_there_again(
    instance: LiveInstance, listener: Listener, watch: RealFluxWatch
) -> None:
    job = instance.submit("-N1")
    eventually("it waits", lambda: listener.state(job) is JobState.SCHED)
    instance.stop_head()
    eventually("the loss is said", lambda: listener.losses)
    listed = len(listener.complete())
    instance.start_head()
    eventually("the complete queue again", lambda: len(listener.complete()) > listed)
    assert [seen.id for seen in listener.complete()[-1].jobs] == [job]
    later = instance.submit("-N1")
    eventually("what comes later", lambda: listener.state(later) is JobState.SCHED)


def test_the_sudden_death_of_rank_0_is_said(
    instance: LiveInstance, listener: Listener, watch: RealFluxWatch
) -> None:
    instance.kill_head()
    eventually("the loss is said", lambda: listener.losses)


def test_a_job_manager_that_is_reloaded_is_a_loss_and_comes_back(
    instance: LiveInstance, listener: Listener, watch: RealFluxWatch
) -> None:
    listed = len(listener.complete())
    instance.unload_scheduler()
    instance.run("module", "reload", "-f", "job-manager")
    eventually("the loss is said", lambda: listener.losses)
    eventually("the complete queue again", lambda: len(listener.complete()) > listed)
