"""Spot nodes and nodes on demand as two offers of one type: the risk has a price, and the share a limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.nodes import CloudState, NodeState
from nodemanager.core.orders import BootNode
from nodemanager.core.slots import Market, NodeType, Size
from nodemanager.planner import timings
from tests.builders import NOW_S, World, a_cloud_node, a_type, a_world, nodes, tasks

HOUR_S = 3600.0
SPOT = Size("c.16", Market.SPOT, Decimal("0.40"))
ON_DEMAND = Size("c.16", Market.ON_DEMAND, Decimal("0.80"))


def mixed(name: str = "mixed", *, slots: int = 12) -> NodeType:
    return replace(
        a_type(name, slots=slots, cores=16, price="0.40", window_s=1.0),
        size=SPOT.name,
        market=Market.SPOT,
        sizes=(SPOT, ON_DEMAND),
    )


def a_mixed_world(*node_types: NodeType, **settings: Any) -> World:
    return a_world(*(node_types or (mixed(),)), **{"nodes_max": 20, **settings})


def bought(world: World) -> Counter[Market | None]:
    """How many nodes are ordered on each market."""
    return Counter(it.launch.market for it in world.plan().actions if isinstance(it, BootNode))


def test_short_jobs_get_spot_nodes_and_long_ones_get_nodes_on_demand() -> None:
    rate = {"spot_reclaims_assumed": 0.05}
    assert bought(a_mixed_world(**rate).job(tasks(16), duration_s=HOUR_S)) == {Market.SPOT: 1}
    # Two days at a rate of 0.05: (exp(2.4) - 1) / 2.4 = 4.2 times the price.
    assert bought(a_mixed_world(**rate).job(tasks(16), duration_s=60 * HOUR_S)) == {Market.ON_DEMAND: 1}
    both = a_mixed_world(**rate).job(tasks(16), duration_s=HOUR_S).job(tasks(16), duration_s=60 * HOUR_S)
    assert bought(both) == {Market.SPOT: 1, Market.ON_DEMAND: 1}


@pytest.mark.parametrize(("rate", "hours", "factor"), [(0.1, 10.0, 1.71828), (0.0, 10.0, 1.0), (0.1, 0.0, 1.0)])
def test_the_factor_is_what_runs_from_the_beginning_cost_on_average(
    rate: float, hours: float, factor: float
) -> None:
    world = a_mixed_world(spot_reclaims_assumed=rate)
    spot, on_demand = world.policy.by_size[world.policy.node_types[0].name]
    found = timings.rerun_factor(world.snapshot, spot, world.policy, hours * HOUR_S)
    assert found == pytest.approx(factor, rel=1e-4)
    assert timings.rerun_factor(world.snapshot, on_demand, world.policy, hours * HOUR_S) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_spot_nodes_are_bought_up_to_their_share(share: float, count: int) -> None:
    made = bought(a_mixed_world(spot_share_max=share).job(nodes(count, cores=16), duration_s=HOUR_S))
    assert made.total() == count
    assert made[Market.SPOT] == int(share * count + 1e-9)


def test_nodes_that_exist_count_in_the_share() -> None:
    world = a_mixed_world(spot_share_max=0.5)
    for number in (1, 2, 3):
        world.busy_node(f"mixed{number}")  # on the spot market
    made = bought(world.job(nodes(5, cores=16), duration_s=HOUR_S))
    assert made == {Market.SPOT: 1, Market.ON_DEMAND: 4}


def test_the_share_holds_over_all_types() -> None:
    world = a_mixed_world(mixed("one", slots=3), mixed("two", slots=3), spot_share_max=0.5)
    assert bought(world.job(nodes(6, cores=16), duration_s=HOUR_S)) == {Market.SPOT: 3, Market.ON_DEMAND: 3}


def test_a_type_for_spot_alone_waits_for_its_share_and_says_so() -> None:
    spot = replace(a_type("spot", cores=16, price="0.40"), market=Market.SPOT)
    made = a_mixed_world(spot, spot_share_max=0.5).job(tasks(16), duration_s=HOUR_S).plan()
    assert not any(isinstance(it, BootNode) for it in made.actions)
    (reason,) = made.jobs.values()
    assert (reason.code, reason.figures["spot_share_max"]) == ("spot_share_max", 0.5)


def test_spares_keep_to_the_share() -> None:
    world = a_mixed_world(replace(mixed(), spares=4), spot_share_max=0.5)
    assert bought(world) == {Market.SPOT: 2, Market.ON_DEMAND: 2}


def test_reclaims_are_measured_and_change_the_choice() -> None:
    world = a_mixed_world(spot_reclaims_assumed=0.0)
    ten_hours = {"duration_s": 10 * HOUR_S}
    assert bought(a_mixed_world(spot_reclaims_assumed=0.0).job(tasks(16), **ten_hours)) == {Market.SPOT: 1}
    name = world.policy.node_types[0].name
    world.busy_node("mixed1", billed_from_s=NOW_S - HOUR_S)
    gone = a_cloud_node(
        world["mixed1"].launch,
        state=CloudState.TERMINATED,
        died_because="spot reclaim: capacity",
        market=Market.SPOT,
    )
    world.see_cloud(gone)
    assert world["mixed1"].state is NodeState.GONE
    count, lived_s = world.snapshot.learned.reclaims[name]
    assert count == 1
    assert lived_s == pytest.approx(HOUR_S, abs=2.0)
    world = a_mixed_world(spot_reclaims_assumed=0.0).but(reclaims={name: (40, 100 * HOUR_S)})
    assert bought(world.job(tasks(16), **ten_hours)) == {Market.ON_DEMAND: 1}
