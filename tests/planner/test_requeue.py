"""Jobs that ask for it are resubmitted when their node is taken back, each once."""

from __future__ import annotations

from typing import Any

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    CopySettled,
    Fact,
    FluxCallFailed,
    JobRequeued,
    NodeReported,
    OrderLapsed,
    QueueProbed,
    QueueSeen,
    ResultRead,
)
from nodemanager.core.jobs import Job, JobId, JobResult, JobState, RankAllocation
from nodemanager.core.nodes import JoinPhase
from nodemanager.core.orders import CancelCopy, StartCopy
from nodemanager.core.reason_codes import Code
from tests.builders import World, a_job, a_world, busy, drained, orders, rank_of


def _world(**changes: Any) -> World:
    world = a_world().busy_node("cloud1").busy_node("cloud2")
    job = _runs(7, "cloud1", **changes)
    return world.but(jobs={job.id: job})


def _runs(number: int, slot: str, **changes: Any) -> Job:
    held = RankAllocation(rank_of(a_world().policy, slot), 4, 0)
    return a_job(number, **{"state": JobState.RUN, "allocations": (held,), "requeue": True, **changes})


def _taken_back(world: World, slot: str = "cloud1") -> World:
    """A node whose reclaim was announced, and that takes no more jobs."""
    _announced(world, slot)
    rank = drained(busy(world.rank_now(slot)), drain_text(world.id(slot)))
    return world.wait(1.0).see_ranks(rank)


def _announced(world: World, slot: str = "cloud1") -> World:
    return world.see(NodeReported(world.id(slot), JoinPhase.RECLAIMED, "terminate", 0.0))


def _requeued(world: World) -> list[str]:
    return [order for order in orders(world.decide()) if order.startswith("requeue ")]


def test_57_a_job_that_asked_for_it_is_submitted_once_more_before_its_node_is_lost() -> None:
    world = _taken_back(_world())
    assert _requeued(world) == ["requeue 7"]
    world.see(JobRequeued(JobId(7), JobId(8)))
    assert _requeued(world.wait(2.0)) == []


def test_57_its_node_is_drained_first() -> None:
    """If not, the copy might get the same node just when it is lost, and be lost with it."""
    assert orders(_announced(_world()).decide()) == ["cordon cloud1-1 flux-node-manager:cloud1-1"]


def test_57_one_that_did_not_ask_is_left_alone() -> None:
    assert _requeued(_taken_back(_world(requeue=False))) == []


def test_57_one_on_another_node_is_left_alone() -> None:
    assert _requeued(_taken_back(_world(), "cloud2")) == []


def test_57_after_a_restart_its_successor_tells_that_it_was_done() -> None:
    world = _taken_back(_world())
    successor = a_job(8, state=JobState.DEPEND, requeued_from=JobId(7), requeue=True)
    world.see(QueueSeen(world.snapshot.now_s, (successor,)))
    assert _requeued(world) == []


def test_57_what_failed_is_tried_again_and_what_was_refused_is_not() -> None:
    world = _taken_back(_world())
    assert _requeued(world) == ["requeue 7"]
    world.see(FluxCallFailed((), "RequeueJob", "no answer", JobId(7)))
    assert _requeued(world.wait(2.0)) == [], "it may have been done: the queue will tell"
    assert _requeued(world.all_is_fresh()) == ["requeue 7"]
    world.see(JobRequeued(JobId(7), None, "it is another user's"))
    assert _requeued(world.wait(2.0)) == []


@pytest.mark.parametrize(
    "left_undone",
    [
        OrderLapsed("RequeueJob", (), None, "0.5 s too late", JobId(7)),
        FluxCallFailed((), "RequeueJob", "no answer", JobId(7)),
    ],
)
@pytest.mark.parametrize("answered", [True, False])
def test_57_one_that_was_left_undone_has_no_other_submitted_twice(
    left_undone: OrderLapsed | FluxCallFailed, *, answered: bool
) -> None:
    """The other job was resubmitted, or is about to be, but the queue shows its copy only later."""
    world = _world()
    other = _runs(9, "cloud1")
    _taken_back(world.but(jobs={**world.snapshot.jobs, other.id: other}))
    assert _requeued(world) == ["requeue 7", "requeue 9"]
    if answered:
        world.see(JobRequeued(JobId(9), JobId(10)))
    world.see(left_undone).see_claim(*(node.launch for node in world.snapshot.nodes.values())).wait(1.0)
    drained_ = drained(busy(world.rank_now("cloud1")), drain_text(world.id("cloud1")))
    world.see_ranks(drained_).see(QueueProbed(world.snapshot.now_s)).wait(1.0)
    assert _requeued(world) == ["requeue 7"]


@pytest.mark.parametrize("complete", [True, False])
def test_a_job_that_has_ended_is_forgotten(complete: bool) -> None:
    world = _taken_back(_world())
    world.decide()
    ended = () if complete else (JobId(7),)
    world.see(QueueSeen(world.snapshot.now_s, ended=ended, complete=complete))
    assert world.snapshot.queues.requeued == frozenset()


@pytest.mark.parametrize(("userid", "requeues"), [(1000, []), (1001, ["requeue 7"])])
def test_a_copy_by_another_user_does_not_keep_a_job_from_being_submitted_again(
    userid: int, requeues: list[str]
) -> None:
    world = _world(userid=1000)
    copy = a_job(9, requeued_from=JobId(7), userid=userid)
    world.but(jobs={**world.snapshot.jobs, copy.id: copy})
    assert _requeued(_taken_back(world)) == requeues


# --- the copy ---------------------------------------------------------------------------------------------


def _ended(**changes: Any) -> World:
    """The copy 8 waits, and its original 7 is no longer in the queue."""
    copy = a_job(8, state=JobState.DEPEND, requeued_from=JobId(7), **changes)
    return a_world().idle_node("cloud1").but(jobs={copy.id: copy})


def _copies(world: World) -> list[str]:
    return [order for order in orders(world.decide()) if order.split()[0] in COPY_ORDERS]


COPY_ORDERS = ("read-result", "start-copy", "cancel-copy")


def test_nothing_is_done_with_a_copy_while_its_original_runs() -> None:
    copy = a_job(8, state=JobState.DEPEND, requeued_from=JobId(7))
    world = _world()
    world.but(jobs={**world.snapshot.jobs, copy.id: copy})
    assert _copies(world) == []
    assert world.why_job(8).code is Code.COPY_WAITS


@pytest.mark.parametrize(
    ("result", "order", "code"),
    [
        (JobResult.COMPLETED, "cancel-copy 8", Code.COPY_NOT_NEEDED),
        (JobResult.CANCELED, "cancel-copy 8", Code.COPY_NOT_NEEDED),
        (JobResult.FAILED, "start-copy 8", Code.COPY_STARTS),
        (JobResult.TIMEOUT, "start-copy 8", Code.COPY_STARTS),
        (JobResult.UNKNOWN, "cancel-copy 8", Code.COPY_UNDECIDED),
    ],
)
def test_how_the_original_ended_decides_on_its_copy(result: JobResult, order: str, code: Code) -> None:
    world = _ended()
    assert _copies(world) == ["read-result 7 for 8"]
    assert _copies(world.wait(0.1)) == [], "the answer is awaited"
    world.see(ResultRead(JobId(8), result))
    made = world.plan()
    (action,) = [it for it in made.actions if isinstance(it, StartCopy | CancelCopy)]
    assert action.reason.code is code
    assert _copies(world) == [order]
    world.see(CopySettled(JobId(8)))
    assert _copies(world.wait(100.0).all_is_fresh()) == [], "it is done, whatever the queue shows"


@pytest.mark.parametrize(
    "failed",
    [
        FluxCallFailed((), "ReadResult", "no answer", JobId(8)),
        OrderLapsed("ReadResult", (), None, "late", JobId(8)),
        ResultRead(JobId(8), None),
    ],
)
def test_a_call_that_failed_is_repeated_after_a_second(failed: Fact) -> None:
    world = _ended()
    assert _copies(world) == ["read-result 7 for 8"]
    world.see(failed)
    if isinstance(failed, OrderLapsed):
        world.see_claim(*(node.launch for node in world.snapshot.nodes.values()))
    assert _copies(world.wait(0.5)) == []
    assert world.plan().again_at_s <= world.snapshot.now_s + 0.5
    assert _copies(world.wait(0.6)) == ["read-result 7 for 8"]


def test_a_settling_that_failed_is_repeated_without_reading_the_result_again() -> None:
    world = _ended()
    world.decide()
    world.see(ResultRead(JobId(8), JobResult.FAILED))
    assert _copies(world) == ["start-copy 8"]
    world.see(FluxCallFailed((), "StartCopy", "no answer", JobId(8)))
    assert _copies(world.wait(1.1)) == ["start-copy 8"]


def test_a_copy_that_has_gone_is_forgotten() -> None:
    world = _ended()
    world.decide()
    world.see(QueueSeen(world.snapshot.now_s, ended=(JobId(8),)))
    world.see(CopySettled(JobId(9)))
    assert JobId(8) not in world.snapshot.queues.copy_calls


def test_many_jobs_that_look_like_copies_are_looked_at_a_few_at_a_time() -> None:
    copies = {JobId(n): a_job(n, state=JobState.DEPEND, requeued_from=JobId(7)) for n in range(100, 400)}
    world = a_world().idle_node("cloud1").but(jobs=copies)
    first = _copies(world)
    assert len(first) == 50
    assert not set(first) & set(_copies(world))
