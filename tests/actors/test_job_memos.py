"""The memos on jobs: set while a job waits, gone as soon as it starts, also those of an earlier manager."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from nodemanager.actors.base import Fate
from nodemanager.actors.job_memos import TEXTS_PER_UPDATE_MAX, UPDATE_EVERY_S, JobMemos
from nodemanager.actors.manager import Manager
from nodemanager.actors.messages import Begin, CloudActors
from nodemanager.core.facts import ClaimHeld, CloudListed, QueueSeen, RanksSeen, Tick
from nodemanager.core.jobs import Job, JobId, JobState, UnreadableJob
from nodemanager.core.orders import ShowOnJobs
from nodemanager.core.slots import DEFAULT_CLOUD
from nodemanager.planner.plan import plan
from nodemanager.planner.snapshot import Snapshot
from tests.builders import a_job, a_policy, a_snapshot, whole_nodes

POLICY = a_policy()


def waits(id_: int) -> Job:
    return a_job(id_, whole_nodes(1), submitted_at=1000.0)


def runs(id_: int, began_at: float = 1001.0) -> Job:
    return replace(waits(id_), state=JobState.RUN, began_at=began_at)


def later(snapshot: Snapshot, *jobs: Job) -> Snapshot:
    now = a_snapshot(POLICY, jobs=list(jobs))
    return replace(now, now_s=snapshot.now_s + UPDATE_EVERY_S)


def changes(memos: JobMemos, snapshot: Snapshot) -> dict[JobId, str | None]:
    return dict(memos.changes(snapshot, plan(snapshot, POLICY)))


def test_a_memo_goes_with_the_news_that_its_job_has_started() -> None:
    memos = JobMemos()
    first = a_snapshot(POLICY, jobs=[waits(1), waits(2)])
    assert set(changes(memos, first)) == {1, 2}
    assert memos.removals(QueueSeen(1.0, jobs=(runs(1), waits(2)))) == {1: None}
    assert memos.removals(QueueSeen(1.1, jobs=(runs(1),))) == {}, "once is enough"
    assert 1 not in changes(memos, later(first, runs(1), waits(2)))


def test_an_ended_job_is_forgotten_for_flux_no_longer_changes_its_memo() -> None:
    memos = JobMemos()
    first = a_snapshot(POLICY, jobs=[waits(1)])
    changes(memos, first)
    assert memos.removals(QueueSeen(1.0, ended=(JobId(1),))) == {}
    assert changes(memos, later(first)) == {}


def test_after_a_restart_the_memos_of_jobs_that_started_meanwhile_go_the_latest_first() -> None:
    started = [runs(id_, began_at=1000.0 + id_) for id_ in range(1, TEXTS_PER_UPDATE_MAX + 6)]
    memos = JobMemos()
    first = a_snapshot(POLICY, jobs=[*started, waits(99)])
    gone = changes(memos, first)
    assert gone == dict.fromkeys([job.id for job in started[5:]], None)
    second = changes(memos, later(first, *started, waits(99)))
    assert {id_ for id_, text in second.items() if text is None} == {1, 2, 3, 4, 5}
    assert second[JobId(99)]


def test_a_waiting_job_that_starts_before_its_memo_is_replaced_loses_the_earlier_one() -> None:
    many = [waits(id_) for id_ in range(1, TEXTS_PER_UPDATE_MAX + 2)]
    memos = JobMemos()
    changes(memos, a_snapshot(POLICY, jobs=many))
    last = many[-1].id
    assert memos.removals(QueueSeen(1.0, jobs=(runs(last),))) == {last: None}


def test_after_another_claim_the_memos_are_written_again() -> None:
    memos = JobMemos()
    first = a_snapshot(POLICY, jobs=[waits(1)])
    assert changes(memos, first)
    again = later(first, waits(1))
    assert changes(memos, again) == {}
    memos.distrust()
    assert changes(memos, later(again, waits(1)))


@dataclass
class Post:
    told: list[Any] = field(default_factory=list)

    def tell(self, message: Any) -> None:
        self.told.append(message)


def begun(flux: Post) -> Manager:
    """A manager that holds the instance and has shown the memo of a waiting job."""
    manager = Manager(POLICY, acts=True, publish=lambda _: None, fate=Fate())
    manager.on_receive(Begin(flux, {DEFAULT_CLOUD: CloudActors(Post(), [Post()])}))
    manager.on_receive(Tick(1.0, 1000.0))
    ranks = tuple(a_snapshot(POLICY).ranks.values())
    seen = QueueSeen(1.0, complete=True, jobs=(waits(1),), queues_stopped=frozenset())
    for fact in (ClaimHeld(1.0, ()), seen, RanksSeen(1.0, ranks), CloudListed(1.0, ())):
        manager.on_receive(fact)
    manager.on_receive(Tick(2.0, 1001.0))
    assert shown(flux) == [[1]]
    return manager


def shown(flux: Post) -> list[list[JobId]]:
    """The jobs whose memos were written, by order."""
    return [list(order.texts) for order in flux.told if isinstance(order, ShowOnJobs)]


def test_the_manager_removes_a_memo_before_it_plans() -> None:
    flux = Post()
    manager = begun(flux)
    flux.told.clear()
    manager.on_receive(QueueSeen(2.1, jobs=(runs(1),)))
    assert flux.told == [ShowOnJobs({JobId(1): None})]


def cannot_be_read(id_: int, *, has_started: bool = False) -> UnreadableJob:
    return UnreadableJob(JobId(id_), "attributes.system.node-manager.memory: oops", has_started)


def with_unreadable(snapshot: Snapshot, *bad: UnreadableJob) -> Snapshot:
    return replace(snapshot, queues=replace(snapshot.queues, unreadable={it.id: it for it in bad}))


def test_a_job_that_cannot_be_read_gets_a_memo_that_says_why_once() -> None:
    memos = JobMemos()
    first = with_unreadable(a_snapshot(POLICY, jobs=[waits(1)]), cannot_be_read(2))
    said = changes(memos, first)
    assert said[JobId(2)] == "its jobspec cannot be read: attributes.system.node-manager.memory: oops"
    assert said[JobId(1)]
    assert changes(memos, with_unreadable(later(first, waits(1)), cannot_be_read(2))) == {}


def test_the_memo_of_a_job_that_cannot_be_read_goes_when_it_starts() -> None:
    memos = JobMemos()
    first = with_unreadable(a_snapshot(POLICY), cannot_be_read(2))
    assert changes(memos, first)
    running = cannot_be_read(2, has_started=True)
    assert memos.removals(QueueSeen(1.0, unreadable=(running,))) == {2: None}
    assert changes(memos, with_unreadable(later(first), running)) == {}
    assert changes(JobMemos(), with_unreadable(a_snapshot(POLICY), running)) == {2: None}, "of an earlier manager"


def test_the_manager_writes_the_memos_again_after_it_claims_the_instance_again() -> None:
    """Another manager may have held the instance meanwhile, and written memos of its own."""
    flux = Post()
    manager = begun(flux)
    manager.on_receive(Tick(3.5, 1002.5))
    flux.told.clear()
    manager.on_receive(Tick(5.0, 1004.0))
    assert not shown(flux), "they are as they were"
    manager.on_receive(ClaimHeld(5.0, ()))
    manager.on_receive(RanksSeen(5.1, tuple(a_snapshot(POLICY).ranks.values())))
    manager.on_receive(Tick(6.5, 1005.5))
    assert shown(flux) == [[1]]
