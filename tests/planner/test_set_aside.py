"""A job on which the planner fails is set aside, and the others are served. Other failures are not hidden."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from nodemanager.actors.base import Fate
from nodemanager.actors.manager import Manager, Publication
from nodemanager.actors.messages import Begin, CloudActors
from nodemanager.core.facts import ClaimHeld, CloudListed, Fact, QueueSeen, RanksSeen, Tick
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.orders import BootNode, ShowOnJobs
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import DEFAULT_CLOUD
from nodemanager.planner import brain as brain_module
from nodemanager.planner.brain import Brain, Decision
from nodemanager.planner.observe import observe_all
from nodemanager.planner.plan import Plan, plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Snapshot
from tests.actors.test_manager import Post
from tests.builders import a_job, a_policy, a_snapshot, tasks

pytestmark = pytest.mark.sets_aside

POLICY = a_policy(settle_s=0.0)
FATAL_CORES = 3
plans: list[int] = []


def failing_plan(snapshot: Snapshot, policy: Policy) -> Plan:
    plans.append(len(snapshot.jobs))
    bad = [job.id for job in snapshot.jobs.values() if job.shape.cores_per_slot == FATAL_CORES]
    if bad:
        raise OverflowError(f"no room for {len(bad)}\x1b[2J")
    return plan(snapshot, policy)


@pytest.fixture(autouse=True)
def _planner_with_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    plans.clear()
    monkeypatch.setattr(brain_module, "plan", failing_plan)


def waits(id_: int, cores: int = 1, userid: int = 7) -> Job:
    return a_job(id_, tasks(1, cores=cores), userid=userid, submitted_at=1000.0)


def facts(jobs: Sequence[Job]) -> list[Fact]:
    ranks = tuple(a_snapshot(POLICY).ranks.values())
    seen = QueueSeen(1.0, tuple(jobs), complete=True, queues_stopped=frozenset())
    return [ClaimHeld(1.0, ()), seen, RanksSeen(1.0, ranks), CloudListed(1.0, ())]


def decided(jobs: Sequence[Job], brain: Brain | None = None) -> tuple[Brain, Decision]:
    brain = brain or Brain(POLICY)
    brain.advance(Tick(1.0, 1000.0))
    for fact in facts(jobs):
        brain.take(fact)
    brain.advance(Tick(2.0, 1001.0))
    return brain, brain.decide()


def test_the_job_that_makes_the_plan_fail_is_set_aside_and_the_others_are_served() -> None:
    brain, decision = decided([waits(1), waits(2, FATAL_CORES), *(waits(id_, 2) for id_ in range(3, 40))])
    assert set(decision.snapshot.queues.unreadable) == {2}
    reason = decision.plan.jobs[JobId(2)]
    assert (reason.code, reason.figures["why"]) == (Code.SET_ASIDE, "OverflowError: no room for 1\\x1b[2J")
    brain.advance(Tick(9.0, 1008.0))  # the queue has settled
    decision = brain.decide()
    assert any(isinstance(it, BootNode) for it in decision.orders)
    assert Code.JOBS_SET_ASIDE in {it.code for it in decision.plan.warnings}
    plans.clear()
    brain.take(QueueSeen(2.0, (waits(2, FATAL_CORES),)))
    brain.decide()
    brain.take(QueueSeen(3.0, (waits(1), waits(2, FATAL_CORES)), complete=True))
    assert set(brain.decide().snapshot.queues.unreadable) == {2}
    assert len(plans) == 2, "it is not tried again"
    brain.take(QueueSeen(4.0, ended=(JobId(2),)))
    assert brain.snapshot.queues.unreadable == {}


def test_many_bad_requests_of_one_user_cost_few_plans() -> None:
    bad = [a_job(id_, tasks(id_, cores=FATAL_CORES), userid=66, submitted_at=1000.0) for id_ in range(1, 200)]
    good = [waits(id_) for id_ in range(200, 210)]
    _, decision = decided([*good, *bad])
    assert set(decision.snapshot.queues.unreadable) == {job.id for job in bad}
    assert len(plans) < 150


def test_a_running_job_can_be_the_culprit_too() -> None:
    running = a_job(5, tasks(1, cores=FATAL_CORES), state=JobState.RUN, submitted_at=1000.0)
    _, decision = decided([running, waits(1)])
    assert decision.snapshot.queues.unreadable[JobId(5)].has_started
    assert set(decision.plan.jobs) == {1}


def test_a_failure_that_no_job_causes_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(snapshot: Snapshot, policy: Policy) -> Plan:
        raise KeyError("ours")

    monkeypatch.setattr(brain_module, "plan", broken)
    with pytest.raises(KeyError, match="ours"):
        decided([waits(1)])


def test_a_replay_contains_nothing() -> None:
    with pytest.raises(OverflowError):
        decided([waits(2, FATAL_CORES)], Brain(POLICY, hears_all=True))


def test_a_job_that_cannot_be_taken_in_is_set_aside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    known = observe_all

    def failing(snapshot: Snapshot, taken: Sequence[Fact], policy: Policy) -> Snapshot:
        for fact in taken:
            if isinstance(fact, QueueSeen) and any(job.shape.cores_per_slot == FATAL_CORES for job in fact.jobs):
                raise RecursionError
        return known(snapshot, taken, policy)

    monkeypatch.setattr(brain_module, "observe_all", failing)
    _, decision = decided([waits(1), waits(2, FATAL_CORES)])
    assert set(decision.snapshot.queues.unreadable) == {2}
    assert set(decision.snapshot.jobs) == {1}


@pytest.mark.parametrize("acts", [True, False])
def test_it_is_logged_once_as_an_error_and_has_a_memo(acts: bool) -> None:
    flux, seen = Post(), list[Publication]()
    manager = Manager(POLICY, acts, seen.append, Fate())
    with capture_logs() as said:
        manager.on_receive(Begin(flux, {DEFAULT_CLOUD: CloudActors(Post(), [Post()])}))
        manager.on_receive(Tick(1.0, 1000.0))
        for fact in facts([waits(1), waits(2, FATAL_CORES)]):
            manager.on_receive(fact)
        for now_s in (3.0, 5.0, 8.0):
            manager.on_receive(Tick(now_s, 1000.0 + now_s))
            manager.on_receive(QueueSeen(now_s, (waits(1), waits(2, FATAL_CORES)), complete=True))
    lines = [(line["log_level"], line["userid"]) for line in said if line["event"] == "job_set_aside"]
    assert lines == [("error", 7)]
    memos = [it.texts[JobId(2)] for it in flux.told if isinstance(it, ShowOnJobs) and JobId(2) in it.texts]
    assert memos == (["this job cannot be handled: OverflowError: no room for 1\\x1b[2J"] if acts else [])
    assert seen[-1].snapshot.queues.unreadable
