"""Jobs are seated on nodes in the order in which the scheduler tries them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nodemanager.core.facts import RanksSeen
from nodemanager.core.jobs import JobId, JobState, NodeOrder, Shape
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.ranks_and_queue import key_of
from nodemanager.planner.seating import Availability, Bin, Seater, host_number
from tests.builders import a_job, a_type, a_world, tasks

CORES = (2, 2, 4, 8)  # of the slots 1 to 4

# Where Fluxion 0.54 ran jobs of one core, submitted one after the other (tests/live/test_match_policy.py).
RAN = {
    NodeOrder.EMPTY_FIRST: [4, 3, 2, 1, 4, 4, 4, 4, 4, 3, 4, 3, 4, 3],
    NodeOrder.LEAST_USED: [1, 2, 3, 4, 1, 2, 3, 4, 3, 4, 3, 4, 4, 4],
    NodeOrder.MOST_FREE: [4, 4, 4, 4, 3, 4, 3, 4, 1, 2, 3, 4, 1, 2],
    NodeOrder.LOWEST: [1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4],
    NodeOrder.HIGHEST: [4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 2, 2],
}


def seated(order: NodeOrder, shapes: Sequence[Shape]) -> list[int | None]:
    """The rank of each job, in the order of submission; None for a job that found no room."""
    bins = [
        Bin(SlotName(f"slot{n}"), Rank(n), frozenset(), cores, 0, Availability.UP, order=order)
        for n, cores in enumerate(CORES, 1)
    ]
    jobs = [a_job(n, shape, state=JobState.SCHED) for n, shape in enumerate(shapes, 1)]
    batches: dict = {}  # type: ignore[type-arg]
    for job in jobs:
        batches.setdefault(key_of(job), []).append(job.id)
    seats = Seater(batches, bins, {}, {}).seat_all().seats
    return [seats[JobId(job.id)][0][0].rank if job.id in seats else None for job in jobs]


@pytest.mark.parametrize("order", NodeOrder)
def test_jobs_are_seated_where_the_scheduler_runs_them(order: NodeOrder) -> None:
    assert seated(order, [Shape(1, 1)] * len(RAN[order])) == RAN[order]


@pytest.mark.parametrize("order", NodeOrder)
def test_a_node_that_is_too_small_does_not_hide_a_larger_one(order: NodeOrder) -> None:
    assert seated(order, [Shape(1, 8), Shape(1, 4), Shape(1, 2), Shape(1, 2), Shape(1, 1)]) == [
        *(4, 3),
        *((2, 1) if order in {NodeOrder.HIGHEST, NodeOrder.EMPTY_FIRST} else (1, 2)),
        None,
    ]


@pytest.mark.parametrize(("host", "number"), [("cloud12", 12), ("a1-b07", 7), ("head", -1)])
def test_the_number_of_a_host(host: str, number: int) -> None:
    assert host_number(SlotName(host)) == number


@pytest.mark.parametrize(
    ("order", "node"), [(NodeOrder.LOWEST, "cloud1"), (NodeOrder.HIGHEST, "cloud3"), (None, "cloud1")]
)
def test_the_order_that_a_look_reports_is_planned_by(order: NodeOrder | None, node: str) -> None:
    world = a_world().idle_node("cloud1").idle_node("cloud2").idle_node("cloud3").job(tasks(1))
    ranks = tuple(world.snapshot.ranks.values())
    world.wait(1.0).see(RanksSeen(world.snapshot.now_s, ranks, node_order=order))
    assert world.why_job(1).figures["nodes"] == (node,)


def test_the_least_used_node_is_the_one_on_which_fewest_cores_are_taken_whatever_its_size() -> None:
    """Two of eight cores are taken on the first node, and three of four on the second."""
    world = a_world(a_type("large", cores=8, slots=1), a_type("small", cores=4, slots=1)).job(tasks(1))
    world = world.busy_node("large1", cores_free=6).busy_node("small1", cores_free=1)
    ranks = tuple(world.snapshot.ranks.values())
    world.wait(1.0).see(RanksSeen(world.snapshot.now_s, ranks, node_order=NodeOrder.LEAST_USED))
    assert world.why_job(1).figures["nodes"] == ("large1",)
