"""Emptied nodes leave at once if the other nodes have room for the usual surge of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nodemanager.core.drains import emptying_text
from nodemanager.core.jobs import JobState, RankAllocation
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import DrainNode
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.core.upkeep.rules import Disruption
from nodemanager.planner.consolidation import MINUTES_KEPT, usual_surge, with_demand
from nodemanager.planner.snapshot import Peak
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
    rank_of,
    tasks,
)

SECONDS = a_type("cloud", slots=6, cores=8, window_s=1.0)
HOURS = a_type("cloud", slots=6, cores=8)
CLOUD = TypeName("cloud")


def peaks(*cores: int, first: int = 0) -> tuple[Peak, ...]:
    return tuple(Peak(first + minute, many) for minute, many in enumerate(cores))


def a_world(surges: Sequence[int], *, of: NodeType = SECONDS, emptied: int = 1, free: int = 8) -> World:
    """``cloud1`` has ``free`` of 16 cores free on two nodes; the emptied ones have just become idle."""
    policy = a_policy(of, consolidate=True, disruption=Disruption(nodes=4))
    world = World(policy, a_snapshot(policy))
    for slot, cores in (("cloud1", 8 - free // 2), ("cloud2", 8 - (free - free // 2))):
        rank = busy(a_rank(slot, policy), cores_free=8 - cores)
        world.busy_node(slot).node(slot, NodeState.BUSY, rank=rank)
        job = a_job(
            100 + len(world.snapshot.jobs),
            tasks(1, cores=cores),
            state=JobState.RUN,
            allocations=(RankAllocation(rank_of(policy, slot), cores, 0),),
            began_at=WALL_AT - 60,
            ends_at=WALL_AT + 900,
        )
        world.but(jobs={**world.snapshot.jobs, job.id: job})
    for number in range(3, 3 + emptied):
        slot = f"cloud{number}"
        rank = drained(a_rank(slot, policy, online=True), emptying_text(LaunchId(f"{slot}-1")))
        since_s = NOW_S - 20.0
        world.node(slot, NodeState.IDLE, rank=rank, idle_looks=2, idle_since_s=since_s, billed_from_s=NOW_S - 1800)
    history = peaks(*[it for surge in surges for it in (surge, 0)])
    learned = replace(world.snapshot.learned, peaks={CLOUD: history} if history else {})
    return world.but(learned=learned)


def retired(world: World) -> list[str]:
    return [str(it.launch) for it in world.plan().actions if isinstance(it, DrainNode)]


def test_an_emptied_node_leaves_at_once_if_the_others_have_room_for_the_usual_surge() -> None:
    world = a_world([8] * 10)
    assert retired(world) == ["cloud3-1"]
    assert world.why("cloud3") == "no_surge_needs_it"


def test_it_waits_for_idle_timeout_if_a_surge_would_need_it() -> None:
    world = a_world([12] * 10)
    assert not retired(world)
    assert world.why("cloud3") == "idle_not_long"


def test_it_waits_for_idle_timeout_while_little_is_known() -> None:
    assert not retired(a_world([]))
    assert not retired(a_world([8] * 5))


def test_of_several_emptied_nodes_enough_stay_for_a_surge() -> None:
    """Two of three may go: the third and the free cores of the busy ones make up three quarters of 20 cores."""
    assert len(retired(a_world([20] * 10, emptied=3))) == 2


def test_paid_time_is_used_up_all_the_same() -> None:
    world = a_world([8] * 10, of=HOURS)
    assert not retired(world)
    assert world.why("cloud3") == "paid_time_left"


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ([0, 10] * 10, 10.0),
        ([0, 4, 10] * 7, 10.0),  # a surge may last longer than a minute
        ([5] * 20, 0.0),
        ([0, 1] * 5 + [0, 100] + [0, 1] * 5, 10010 / 110),
        ([0, 10], None),
    ],
)
def test_the_usual_surge(cores: list[int], expected: float | None) -> None:
    assert usual_surge(peaks(*cores)) == (pytest.approx(expected) if expected is not None else None)


def test_the_peak_of_each_minute_of_the_last_hour_is_remembered() -> None:
    policy = a_policy(SECONDS)
    snapshot = replace(a_snapshot(policy), now_s=6000.0)
    for after_s, cores in ((0.0, 3), (10.0, 9), (20.0, 2), (60.0, 1)):
        snapshot = with_demand(replace(snapshot, now_s=6000.0 + after_s), {CLOUD: cores})
    assert snapshot.learned.peaks == {CLOUD: (Peak(100, 9), Peak(101, 1))}
    for minute in range(1, 2 * MINUTES_KEPT):
        snapshot = with_demand(replace(snapshot, now_s=6060.0 + 60 * minute), {})
    assert len(snapshot.learned.peaks[CLOUD]) == MINUTES_KEPT
    assert {it.cores for it in snapshot.learned.peaks[CLOUD]} == {0}
