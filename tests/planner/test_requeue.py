"""Jobs that ask for it are resubmitted when their node is taken back, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import FluxCallFailed, JobRequeued, NodeReported, OrderLapsed, QueueProbed, QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, RankAllocation
from nodemanager.core.nodes import JoinPhase
from tests.builders import World, a_job, a_world, busy, drained, orders, rank_of


def _world(**changes: object) -> World:
    world = a_world().busy_node("cloud1").busy_node("cloud2")
    job = _runs(7, "cloud1", **changes)
    return world.but(jobs={job.id: job})


def _runs(number: int, slot: str, **changes: object) -> Job:
    held = RankAllocation(rank_of(a_world().policy, slot), 4, 0)
    fields: dict[str, object] = {"state": JobState.RUN, "allocations": (held,), "requeue": True}
    return replace(a_job(number), **{**fields, **changes})  # type: ignore[arg-type]


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
    copy = replace(a_job(9), requeued_from=JobId(7), userid=userid)
    world.but(jobs={**world.snapshot.jobs, copy.id: copy})
    assert _requeued(_taken_back(world)) == requeues
