"""The worked examples of ``doc/how-it-decides.md`` are what the planner does.

To regenerate the page's figures: ``python -m tests.stories.test_how_it_decides``, from the project's root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

import pytest

from nodemanager.core.jobs import JobId, JobState, RankAllocation
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.orders import BootNode
from nodemanager.core.slots import Market, Rank, TypeName
from nodemanager.planner.snapshot import Block, Scope
from nodemanager.planner.spending import periods
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_job,
    a_launch,
    a_rank,
    a_type,
    a_world,
    busy,
    nodes,
    orders,
    tasks,
    whole_nodes,
)
from tests.paths import DOC

PAGE = DOC / "how-it-decides.md"
BLOCK = re.compile(r"(<!-- example: (\w+) -->\n```text\n)(.*?)(```\n)", re.DOTALL)

SMALL = a_type("small", slots=8, cores=4, price="0.20")
LARGE = a_type("large", slots=4, cores=16, price="0.70")
GPU = a_type("gpu", slots=2, cores=8, gpus=2, price="3.00", properties=["gpu"])


def mix() -> World:
    return a_world(SMALL, LARGE, GPU, nodes_max=10).job(*[tasks(1, cores=2)] * 8, tasks(1, cores=4, gpus=1))


def worst_fit() -> World:
    world = a_world(SMALL, LARGE, GPU, nodes_max=10).idle_node("gpu1").idle_node("small1")
    return world.job(tasks(1), nodes(1, cores=8))


def gpu_taken() -> World:
    world = a_world(LARGE, GPU, nodes_max=10).idle_node("large1").job(tasks(1, cores=4, gpus=1), id=JobId(2))
    taken = replace(busy(a_rank("gpu1", world.policy)), gpus_free=2)
    return world.node("gpu1", NodeState.BUSY, rank=taken)


def gang() -> World:
    return a_world(SMALL, LARGE, nodes_max=5).idle_node("small1").busy_node("small2").job(whole_nodes(3), tasks(2))


def stuck() -> World:
    world = a_world(SMALL, LARGE, nodes_max=3).busy_node("small1").busy_node("small2")
    return world.job(whole_nodes(2), tasks(1))


def soon() -> World:
    world = a_world(SMALL, nodes_max=10).busy_node("small1").but(boots_s={TypeName("small"): (85.0, 90.0, 80.0)})
    ending = a_job(9, state=JobState.RUN, allocations=(RankAllocation(Rank(1), 4, 0),), ends_at=WALL_AT + 60)
    return world.but(jobs={ending.id: ending}).job(tasks(4), tasks(4))


def short_job() -> World:
    by_the_second = a_type("second", price="0.60", window_s=1, minimum_s=60)
    return a_world(a_type("hourly", price="0.40"), by_the_second).job(tasks(1), duration_s=120.0)


def one_zone() -> World:
    world = a_world(replace(SMALL, zones=("eu-a", "eu-b")), LARGE, nodes_max=10)
    world.node("small1", NodeState.IDLE, launch=replace(a_launch("small1", world.policy), zone="eu-b"))
    block = Block(NOW_S + 90, FailureKind.CAPACITY, "no small left")
    world.but(blocks={Scope(TypeName("small"), Market.ON_DEMAND, "eu-b"): block})
    return world.job(replace(whole_nodes(3), one_zone=True), tasks(2))


def spent() -> World:
    day, _ = periods(WALL_AT)
    world = a_world(SMALL, nodes_max=10, budgets={("", "day"): Decimal(100)})
    world.idle_node("small1").busy_node("small2").booting_node("small3").job(tasks(4))
    return world.but(amounts={("day", day.begins_at, ""): Decimal("99.40")})


def window() -> World:
    return a_world(SMALL).idle_node("small1", hour_ends_in_s=50).idle_node("small2", hour_ends_in_s=1700)


EXAMPLES: Mapping[str, Callable[[], World]] = {
    made.__name__: made
    for made in (mix, worst_fit, gpu_taken, gang, stuck, soon, short_job, one_zone, spent, window)
}


def told(world: World) -> str:
    """What is decided and why: orders, jobs, nodes, types."""
    made = world.plan()
    zones = [action.launch.zone for action in made.actions if isinstance(action, BootNode)]
    lines = [f"order  {order}" for order in orders(made)]
    lines += [f"zone   {zone}" for zone in zones if zone]
    lines += [f"job    {id_}: {made.jobs[JobId(id_)]}" for id_ in sorted(made.jobs)]
    lines += [f"node   {id_}: {reason}" for id_, reason in sorted(made.nodes.items())]
    lines += [f"type   {name}: {reason}" for name, reason in made.types.items()]
    lines += [f"warns  {warning}" for warning in made.warnings]
    return re.sub(r"(?<=\w)-[0-9a-f]{11}\b", "", "\n".join(lines) + "\n")  # when a launch was made


def blocks() -> Mapping[str, str]:
    return {name: text for _, name, text, _ in BLOCK.findall(PAGE.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_what_is_decided(name: str) -> None:
    assert blocks()[name] == told(EXAMPLES[name]()), "run: python -m tests.stories.test_how_it_decides"


def test_every_example_on_the_page_is_one_that_is_run() -> None:
    assert set(blocks()) == set(EXAMPLES)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda it: it[1] + told(EXAMPLES[it[2]]()) + it[4], page), encoding="utf-8")
