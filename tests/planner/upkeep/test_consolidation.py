"""Nodes that take no new job so that they empty: which, when, and that a job gets them back at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.drains import emptying_text
from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import JobState, RankAllocation
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import BootNode, CordonNode, DrainNode, UndrainNode
from nodemanager.core.upkeep.rules import Disruption
from nodemanager.planner.snapshot import Peak
from nodemanager.planner.timings import ends_in_s, with_runs
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_job,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    busy,
    drained,
    orders,
    rank_of,
    tasks,
)

SECONDS = a_type("cloud", slots=6, cores=8, window_s=1.0)
HOURS = a_type("cloud", slots=6, cores=8)


def a_world(of: Any = SECONDS, **changes: Any) -> World:
    settings = {"consolidate": True, "disruption": Disruption(nodes=1), **changes}
    policy = a_policy(of, **settings)
    return World(policy, a_snapshot(policy))


def running(world: World, slot: str, *, cores: int, ends_in: float | None = 100.0, emptying: bool = False) -> World:
    """A node with one running job, which ends by its time limit."""
    rank = busy(a_rank(slot, world.policy), cores_free=8 - cores)
    launch = LaunchId(f"{slot}-1")
    if emptying:
        rank = drained(rank, emptying_text(launch))
    world.busy_node(slot).node(slot, NodeState.BUSY, rank=rank)
    job = a_job(
        100 + len(world.snapshot.jobs),
        tasks(1, cores=cores),
        state=JobState.RUN,
        allocations=(RankAllocation(rank_of(world.policy, slot), cores, 0),),
        began_at=WALL_AT - 60,
        ends_at=WALL_AT + ends_in if ends_in is not None else None,
    )
    return world.but(jobs={**world.snapshot.jobs, job.id: job})


def given(world: World, kind: type[Any]) -> list[str]:
    actions = world.plan().actions
    return [it.launch.slot if kind is BootNode else world.snapshot.nodes[it.launch].launch.slot
            for it in actions if isinstance(it, kind)]  # fmt: skip


def three_nodes(of: Any = SECONDS, **changes: Any) -> World:
    world = running(a_world(of, **changes), "cloud1", cores=2, ends_in=900.0)
    return running(running(world, "cloud2", cores=2, ends_in=50.0), "cloud3", cores=2, ends_in=500.0)


def test_the_node_that_is_empty_soonest_takes_no_new_job() -> None:
    world = three_nodes()
    (order,) = (it for it in world.plan().actions if isinstance(it, CordonNode))
    assert (order.launch, order.text) == ("cloud2-1", emptying_text(LaunchId("cloud2-1")))
    assert world.why("cloud2") == "empties"
    assert world.why("cloud1") == "busy"


def test_nothing_is_done_unless_the_site_says_so() -> None:
    assert not given(three_nodes(consolidate=False), CordonNode)


def test_not_more_at_once_than_the_disruption_budget_allows() -> None:
    assert len(given(three_nodes(disruption=Disruption(nodes=2)), CordonNode)) == 2
    assert not given(three_nodes(disruption=Disruption(nodes=0)), CordonNode)


def test_a_node_that_empties_already_takes_its_share_of_the_disruption_budget() -> None:
    world = running(three_nodes(disruption=Disruption(nodes=1)), "cloud4", cores=2, ends_in=60.0, emptying=True)
    assert not given(world, CordonNode)


def test_the_others_must_have_room_for_its_work_and_one_more_job() -> None:
    world = running(running(a_world(), "cloud1", cores=5), "cloud2", cores=3)
    assert not given(world, CordonNode)


def test_one_node_stays_and_so_does_nodes_min() -> None:
    assert not given(running(a_world(), "cloud1", cores=1), CordonNode)
    assert not given(three_nodes(nodes_min=3), CordonNode)


def test_a_node_in_use_by_no_job_that_is_known_is_left_alone() -> None:
    """Its housekeeping runs, or a job has just started there."""
    world = three_nodes()
    unknown = {id_: it for id_, it in world.snapshot.jobs.items() if it.ends_at != WALL_AT + 50.0}
    world.but(jobs=unknown)
    assert given(world, CordonNode) == ["cloud3"]


def test_a_gain_below_the_floor_is_not_worth_it() -> None:
    assert given(three_nodes(consolidate_gain=0.33), CordonNode)
    assert not given(three_nodes(consolidate_gain=0.34), CordonNode)


def test_a_node_that_would_not_be_empty_in_time_is_left_alone() -> None:
    """All windows end in 3000 s. Long before that, paid time is better used than emptied."""
    world = three_nodes(HOURS)
    assert not given(world, CordonNode)
    for node in list(world.snapshot.nodes.values()):
        world.node(node.launch.slot, NodeState.BUSY, rank=node.rank, billed_from_s=NOW_S - 3600 + 300)
    assert given(world, CordonNode) == ["cloud2"]


def test_a_job_whose_end_is_unknown_keeps_its_node() -> None:
    world = running(running(a_world(HOURS), "cloud1", cores=1, ends_in=None), "cloud2", cores=1, ends_in=None)
    assert not given(world, CordonNode)


def test_a_waiting_job_gets_an_emptying_node_back_before_anything_is_bought() -> None:
    world = running(running(a_world(), "cloud1", cores=8), "cloud2", cores=2, emptying=True).job(tasks(1, cores=4))
    assert given(world, UndrainNode) == ["cloud2"]
    assert not given(world, BootNode)
    assert world.why_job(3).code == "node_kept_for_it"


def test_a_job_that_it_cannot_take_either_gets_a_new_node() -> None:
    world = running(running(a_world(), "cloud1", cores=8), "cloud2", cores=6, emptying=True).job(tasks(1, cores=4))
    assert len(given(world, BootNode)) == 1


def test_it_takes_jobs_again_if_the_others_have_no_room_any_more_or_the_site_says_no() -> None:
    full = running(running(a_world(), "cloud1", cores=8), "cloud2", cores=2, emptying=True)
    assert (given(full, UndrainNode), full.why("cloud2")) == (["cloud2"], "empties_no_more")
    off = running(running(a_world(consolidate=False), "cloud1", cores=1), "cloud2", cores=2, emptying=True)
    assert given(off, UndrainNode) == ["cloud2"]


def emptied(world: World, *, looks: int = 2, idle_s: float = 400.0, hour_ends_in_s: float = 1800.0) -> World:
    rank = drained(a_rank("cloud2", world.policy, online=True), emptying_text(LaunchId("cloud2-1")))
    since_s = NOW_S - idle_s
    return running(world, "cloud1", cores=2).node(
        "cloud2", NodeState.IDLE, rank=rank, idle_looks=looks, idle_since_s=since_s,
        billed_from_s=NOW_S - 3600 + hour_ends_in_s,
    )  # fmt: skip


def test_once_empty_it_leaves_as_other_idle_nodes_do() -> None:
    world = emptied(a_world())
    (order,) = (it for it in world.plan().actions if isinstance(it, DrainNode))
    assert (order.launch, order.replaces) == ("cloud2-1", emptying_text(LaunchId("cloud2-1")))
    assert not given(emptied(a_world(), looks=1), DrainNode)
    assert not given(emptied(a_world(), idle_s=100.0), DrainNode)
    assert not given(emptied(a_world(HOURS)), DrainNode)
    assert given(emptied(a_world(HOURS), hour_ends_in_s=50), DrainNode) == ["cloud2"]


def test_the_last_node_takes_jobs_again_although_it_is_empty() -> None:
    """The node that was to take over its work has gone meanwhile."""
    world = emptied(a_world())
    others = {it.id: it for it in world.snapshot.nodes.values() if it.launch.slot != "cloud1"}
    alone = world.but(nodes=others, jobs={}).rank("cloud1")
    assert (given(alone, UndrainNode), alone.why("cloud2")) == (["cloud2"], "empties_no_more")


def test_a_node_that_emptied_serves_a_waiting_job_again() -> None:
    world = emptied(a_world()).job(tasks(1, cores=8))
    assert given(world, UndrainNode) == ["cloud2"]
    assert not given(world, BootNode)


@pytest.mark.parametrize(
    ("ran_s", "ends"), [((100.0, 130.0, 90.0), 70.0), ((100.0, 130.0), 540.0), ((50.0,) * 3, 540.0)]
)
def test_the_end_of_a_job_is_learned_from_that_users_jobs_of_its_shape(
    ran_s: tuple[float, ...], ends: float
) -> None:
    snapshot = a_snapshot()
    for number, seconds in enumerate(ran_s):
        done = a_job(number, tasks(1), state=JobState.RUN, userid=7, began_at=WALL_AT - seconds)
        snapshot = with_runs(snapshot, [done])
    job = a_job(99, tasks(1), state=JobState.RUN, userid=7, began_at=WALL_AT - 60, ends_at=WALL_AT + 540)
    assert ends_in_s(job, snapshot) == pytest.approx(ends)
    assert ends_in_s(replace(job, userid=8), snapshot) == pytest.approx(540)
    assert ends_in_s(replace(job, ends_at=WALL_AT - 5), snapshot) == 0.0, "it is past its time limit"


def test_short_jobs_one_after_the_other_do_not_have_a_node_drained_each_time() -> None:
    """The others have room for the one that runs now, but not for as much as ran there a moment ago."""
    world = running(a_world(), "cloud1", cores=4).idle_node("cloud2")
    assert given(world, CordonNode) == ["cloud2"]
    minute = int(NOW_S // 60)
    lately = world.but(peaks={SECONDS.name: (Peak(minute - 1, 9),)})
    assert not given(lately, CordonNode)
    long_ago = world.but(peaks={SECONDS.name: (Peak(minute - 2, 9), Peak(minute, 4))})
    assert given(long_ago, CordonNode) == ["cloud2"]


def test_short_jobs_in_a_row_have_no_node_drained_and_undrained_between_them() -> None:
    """Three seconds of work on the second node, three without: the first node has room for none of it."""
    world = running(a_world(), "cloud1", cores=4, ends_in=3000.0).idle_node("cloud2")
    free = world.rank_now("cloud2")
    ordered: list[str] = []
    for second in range(48):
        world.wait(1.0)
        works = second % 6 < 3
        job = a_job(
            500 + second // 6,
            tasks(1, cores=6),
            state=JobState.RUN,
            allocations=(RankAllocation(free.rank, 6, 0),),
            began_at=WALL_AT,
            ends_at=WALL_AT + 3000.0,
        )
        now_s = world.snapshot.now_s
        world.see(QueueSeen(now_s, (job,)) if works else QueueSeen(now_s, ended=(job.id,)))
        world.see_ranks(busy(free, cores_free=2) if works else free).all_is_fresh()
        ordered += orders(world.decide())
    assert ordered == []


def test_an_idle_node_that_is_kept_free_says_so() -> None:
    world = running(a_world(idle_timeout_s=600.0), "cloud1", cores=4)
    rank = drained(a_rank("cloud2", world.policy, online=True), emptying_text(LaunchId("cloud2-1")))
    world.idle_node("cloud2", rank=rank)
    reason = world.plan().nodes[world.id("cloud2")]
    assert reason.code == "idle_not_long"
    assert reason.figures["drain_reason"] == emptying_text(LaunchId("cloud2-1"))
