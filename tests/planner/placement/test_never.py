"""Jobs that no fleet could ever serve, and those that only look so."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import product

import pytest

from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.planner.policy import CloudRules
from tests.builders import World, a_type, a_world, boots, tasks, whole_nodes

SMALL = a_type("small", cores=4, price="0.10", slots=20)
LARGE = a_type("large", cores=64, price="1.00", slots=2)


def why(world: World) -> Reason:
    return world.why_job(1)


def test_a_few_large_nodes_serve_a_job_that_too_many_small_ones_would_take() -> None:
    """The small ones are cheaper each, and sixteen of them are more than the limits allow."""
    assert boots(a_world(SMALL, LARGE, nodes_max=10).job(tasks(64)).plan()) == ["large1"]
    dear = a_world(SMALL, LARGE, nodes_max=40, price_per_hour_max=Decimal("1.20"))
    assert boots(dear.job(tasks(64)).plan()) == ["large1"]


def test_the_figures_are_those_of_the_fleet_that_comes_nearest() -> None:
    reason = why(a_world(SMALL, LARGE, nodes_max=2).job(tasks(160)))
    assert (reason.code, reason.figures["node_count"]) == ("beyond_limits", 10)  # two large ones, eight small ones
    reason = why(a_world(SMALL, LARGE, nodes_max=40, price_per_hour_max=Decimal("0.90")).job(tasks(64)))
    assert (reason.code, reason.figures["node_count"], reason.figures["price_per_hour"]) == ("beyond_limits", 1, 1)


def test_prepaid_nodes_cost_nothing() -> None:
    prepaid = replace(a_type(price="0.40"), prepaid=2)
    assert boots(a_world(prepaid, price_per_hour_max=Decimal("0.50")).job(whole_nodes(3)).plan())
    reason = why(a_world(prepaid, price_per_hour_max=Decimal("0.50")).job(whole_nodes(4)))
    assert (reason.code, reason.figures["price_per_hour"]) == ("beyond_limits", Decimal("0.80"))


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (CloudRules(nodes_max=2), "its nodes_max is 2"),
        (CloudRules(price_per_hour_max=Decimal("0.90")), "its price_per_hour_max of 0.90 pays for 2"),
    ],
)
def test_the_limits_of_the_only_cloud_with_nodes_for_it_are_named(rules: CloudRules, text: str) -> None:
    east = CloudName("default")
    world = a_world(replace(a_type(price="0.40"), cloud=east), clouds={east: rules})
    assert boots(world.job(whole_nodes(2)).plan()) == ["cloud1", "cloud2"]
    reason = why(a_world(*world.policy.node_types, clouds={east: rules}).job(whole_nodes(3)))
    assert (reason.code, reason.figures["node_count"], reason.figures["why"]) == ("beyond_cloud", 3, text)


def test_a_cloud_whose_price_limit_is_below_one_node_is_named() -> None:
    """The slots are free, so no_free_slot would send the user to the wrong setting."""
    east = CloudName("default")
    rules = CloudRules(price_per_hour_max=Decimal("0.30"))
    world = a_world(replace(a_type(price="0.40"), cloud=east), clouds={east: rules}).job(whole_nodes(1))
    assert boots(world.plan()) == []
    text = "its price_per_hour_max of 0.30 pays for 0"
    assert (why(world).code, why(world).figures["why"]) == ("beyond_cloud", text)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (CloudRules(nodes_max=2), "its nodes_max is 2"),
        (CloudRules(price_per_hour_max=Decimal("0.20")), "its price_per_hour_max of 0.20 pays for too few"),
    ],
)
def test_types_of_one_cloud_share_its_limits(rules: CloudRules, text: str) -> None:
    """Each type alone could give two nodes, and both together no more."""
    cloud = CloudName("default")
    types = [replace(a_type(name, price="0.10", slots=4), cloud=cloud) for name in ("a", "b")]
    world = a_world(*types, clouds={cloud: rules}).job(whole_nodes(3))
    assert boots(world.plan()) == []
    assert (why(world).code, why(world).figures["why"]) == ("beyond_cloud", text)
    assert boots(a_world(*types, clouds={cloud: rules}).job(whole_nodes(2)).plan()) == ["a1", "a2"]


def test_a_second_cloud_gives_what_the_limits_of_the_first_forbid() -> None:
    home, other = CloudName("default"), CloudName("other")
    types = [replace(a_type(name, price="0.10", slots=2), cloud=home) for name in ("a", "b")]
    types.append(replace(a_type("c", price="0.10", slots=4), cloud=other))
    world = a_world(*types, clouds={home: CloudRules(nodes_max=2), other: CloudRules()})
    assert why(world.job(whole_nodes(6))).code != "beyond_cloud"


def cheapest_fleet(types: list[NodeType], want: int, nodes_max: int, price_max: Decimal) -> bool:
    """Whether any fleet within the limits has so many cores, found by trying all of them."""
    for counts in product(*(range(len(it.slots) + 1) for it in types)):
        cores = sum(count * it.cores for count, it in zip(counts, types, strict=True))
        price = sum((count * it.price_per_hour for count, it in zip(counts, types, strict=True)), Decimal(0))
        if cores >= want and sum(counts) <= nodes_max and price <= price_max:
            return True
    return False


@pytest.mark.parametrize("nodes_max", [1, 2, 4, 6])
@pytest.mark.parametrize("price_max", ["0.30", "0.70", "1.10", "2.00"])
def test_no_job_is_given_up_that_some_fleet_could_serve(nodes_max: int, price_max: str) -> None:
    types = [
        a_type("a", cores=3, price="0.10", slots=4),
        a_type("b", cores=8, price="0.35", slots=3),
        a_type("c", cores=16, price="0.50", slots=2),
    ]
    for want in range(1, 69, 3):
        limits = {"nodes_max": nodes_max, "price_per_hour_max": Decimal(price_max)}
        code = why(a_world(*types, **limits).job(tasks(want))).code
        if cheapest_fleet(types, want, nodes_max, Decimal(price_max)):
            assert code == "node_ordered", (want, code)
        else:
            assert code != "node_ordered"
