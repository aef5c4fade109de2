"""Jobs whose data is in one cloud: nodes are bought there, or elsewhere if that is cheaper with the egress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import Near, Shape
from nodemanager.core.nodes import FailureKind
from nodemanager.core.orders import BootNode
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName, Market, NodeType, TypeName
from nodemanager.planner.placement import Placement
from nodemanager.planner.policy import CloudRules
from nodemanager.planner.snapshot import Account, Block, Scope, Source
from nodemanager.planner.work import Home, outlay
from tests.builders import NOW_S, World, a_type, a_world, boots, tasks, whole_nodes
from tests.planner.test_clouds import in_cloud

EAST, WEST, NORTH = CloudName("east"), CloudName("west"), CloudName("north")
GIB = 2**30
HOUR_S = 3600.0


def a_type_in(cloud: CloudName, price: str, slots: int = 4, cores: int = 4) -> NodeType:
    return replace(a_type(cloud, price=price, slots=slots, cores=cores), cloud=cloud)


def clouds(
    *types: NodeType, egress: Mapping[CloudName, str] | None = None, nodes_max: int = 20, price_max: str = "99"
) -> World:
    """East is dear, west is cheap, unless other types are given. ``egress``: the price of a GiB that leaves."""
    types = types or (a_type_in(EAST, "0.40"), a_type_in(WEST, "0.10"))
    prices = egress if egress is not None else {}
    names = dict.fromkeys(it.cloud for it in types)
    rules = {it: CloudRules(egress_price_per_gib=Decimal(prices[it]) if it in prices else None) for it in names}
    world = a_world(*types, clouds=rules, nodes_max=nodes_max, price_per_hour_max=Decimal(price_max))
    fresh = Account(source=Source(seen_s=NOW_S - 1), swept_s=NOW_S - 1)
    return world.but(accounts=dict.fromkeys(names, fresh))


def near(cloud: CloudName, gib: int = 0, shape: Shape | None = None) -> Shape:
    return replace(shape if shape is not None else whole_nodes(1), near=Near(cloud, gib * GIB))


def bought(world: World) -> list[str]:
    return sorted(boots(world.plan()))


def sentence(reason: Reason) -> str:
    return to_sentence(reason.code, reason.figures)


# --- one job ----------------------------------------------------------------------------------------------


def test_without_a_price_its_node_is_bought_near_its_data_though_it_is_dearer() -> None:
    assert bought(clouds().job(whole_nodes(1))) == ["west1"]
    assert bought(clouds().job(near(EAST))) == ["east1"]
    assert bought(clouds().job(near(EAST, 200))) == ["east1"], "the price of its egress is unknown"
    assert bought(clouds(egress={EAST: "0.09"}).job(near(EAST))) == ["east1"], "its size is unknown"


def test_egress_is_weighed_against_the_nodes_for_as_long_as_the_job_may_run() -> None:
    """An hour costs 0.30 more near its data. 4 GiB cost 0.36 of egress, 3 GiB 0.27."""
    for gib, node in ((4, "east1"), (3, "west1")):
        assert bought(clouds(egress={EAST: "0.09"}).job(near(EAST, gib), duration_s=900.0)) == [node]
    # For a job without a time limit, a day counts: it costs 7.20 more near its data.
    for gib, node in ((81, "east1"), (79, "west1")):
        assert bought(clouds(egress={EAST: "0.09"}).job(near(EAST, gib))) == [node]


def test_a_cloud_of_a_higher_priority_is_used_whatever_the_egress() -> None:
    types = a_type_in(EAST, "0.40"), replace(a_type_in(WEST, "0.90"), priority=1)
    assert bought(clouds(*types, egress={EAST: "9"}).job(near(EAST, 200))) == ["west1"]
    assert bought(clouds(*types).job(near(EAST))) == ["east1"], "what the user asks for goes before it"


@pytest.mark.parametrize("gib", [0, 500])
def test_the_wish_is_no_reason_to_wait(gib: int) -> None:
    refused = Block(NOW_S + 60, FailureKind.CAPACITY, "none here")
    scope = Scope(TypeName("east"), Market.ON_DEMAND, "")
    world = clouds(egress={EAST: "0.09"}).job(near(EAST, gib)).but(blocks={scope: refused})
    assert bought(world) == ["west1"]
    small = clouds(a_type_in(EAST, "0.10", cores=2), a_type_in(WEST, "0.40"), egress={EAST: "0.09"})
    assert bought(small.job(near(EAST, gib, tasks(1, cores=4)))) == ["west1"], "no type there is large enough"
    poor = clouds(egress={EAST: "0.09"}, price_max="0.20").job(near(EAST, gib))
    assert bought(poor) == ["west1"], "a node there would exceed the limits"


def test_a_cloud_that_the_site_does_not_have_changes_nothing_and_is_named() -> None:
    world = clouds(egress={EAST: "0.09"}).job(near(CloudName("mars"), 200), whole_nodes(1))
    assert bought(world) == ["west1", "west2"]
    assert world.why_job(1).figures["not_near"] == "near: the site has no cloud mars; it has east, west"
    assert "not_near" not in world.why_job(2).figures


def test_nodes_that_are_up_or_boot_are_used_wherever_they_are() -> None:
    assert bought(in_cloud(clouds().idle_node("west1"), "west1", WEST).job(near(EAST))) == []
    world = in_cloud(clouds().booting_node("west1"), "west1", WEST).job(near(EAST))
    assert bought(world) == []
    assert sentence(world.why_job(1)) == "booting west1, away from its data in east"
    world = in_cloud(clouds().idle_node("west1"), "west1", WEST).job(near(EAST))
    assert sentence(world.why_job(1)).endswith(
        "away from its data in east; Flux starts it on any node that is free"
    )


def test_a_gang_reads_its_data_in_equal_parts_and_keeps_to_one_zone() -> None:
    types = (
        replace(a_type_in(EAST, "0.40"), zones=("e1",)),
        replace(a_type_in(WEST, "0.10"), zones=("w1",)),
    )
    gang = replace(whole_nodes(2), one_zone=True)
    # Two nodes for an hour cost 0.60 more near the data.
    for gib, nodes in ((7, ["east1", "east2"]), (6, ["west1", "west2"]), (0, ["east1", "east2"])):
        world = clouds(*types, egress={EAST: "0.09"}).job(near(EAST, gib, gang), duration_s=900.0)
        assert bought(world) == nodes
        world = clouds(egress={EAST: "0.09"}).job(near(EAST, gib, whole_nodes(2)), duration_s=900.0)
        assert bought(world) == nodes


# --- many jobs --------------------------------------------------------------------------------------------


def test_jobs_that_differ_only_in_their_data_are_not_merged() -> None:
    world = clouds(egress={EAST: "0.09"}).job(whole_nodes(1), near(EAST), near(EAST, 1), duration_s=900.0)
    assert bought(world) == ["east1", "west1", "west2"]


def test_what_the_home_cloud_has_no_node_for_runs_elsewhere() -> None:
    for gib in (0, 500):
        world = clouds(egress={EAST: "0.09"}).job(*[near(EAST, gib)] * 6)
        assert bought(world) == ["east1", "east2", "east3", "east4", "west1", "west2"]
        assert sentence(world.why_job(6)).endswith("; no further node there can be bought now")


def test_a_full_node_is_shared_by_jobs_of_both_kinds() -> None:
    """Two cores are near their data, two do not care: one node of four cores holds both."""
    assert bought(clouds().job(near(EAST, 0, tasks(2)), tasks(2))) == ["east1"]


def test_each_kind_of_job_goes_where_it_is_cheapest() -> None:
    types = a_type_in(EAST, "0.40", 9), a_type_in(WEST, "0.10", 9), a_type_in(NORTH, "0.20", 9)
    world = clouds(*types, egress={EAST: "0.09", NORTH: "1.00", WEST: "1.00"})
    world.job(near(EAST, 50), near(EAST, 1), near(NORTH, 1), near(WEST, 9), duration_s=900.0)
    assert bought(world) == ["east1", "north1", "west1", "west2"]


def test_nodes_are_bought_within_the_limits_even_if_that_means_elsewhere() -> None:
    """Four jobs need four small nodes near their data, and one large node elsewhere."""
    types = a_type_in(EAST, "0.10", cores=2), a_type_in(WEST, "0.90", cores=8)
    world = clouds(*types, nodes_max=1).job(*[near(EAST, 0, tasks(2))] * 4)
    assert bought(world) == ["west1"]
    assert sentence(world.why_job(1)).endswith("; with nodes there not all jobs could be served within the limits")


def test_nothing_is_decided_otherwise_next_time() -> None:
    """What was bought near the data stays planned for the jobs, so the next plan buys nothing."""
    world = clouds(egress={EAST: "0.09"}).job(near(EAST, 200, tasks(2)), tasks(4), tasks(4))
    first = sorted(order.launch.slot for order in world.decide().actions if isinstance(order, BootNode))
    assert first == ["east1", "west1", "west2"]
    world.wait(1.0)
    assert boots(world.plan()) == []


# --- reasons ----------------------------------------------------------------------------------------------


def test_the_reasons_name_the_way_not_taken_with_its_price_and_the_egress() -> None:
    world = clouds(egress={EAST: "0.09"}).job(near(EAST, 200), duration_s=900.0)
    boot = world.plan().actions[0]
    assert isinstance(boot, BootNode)
    told = ", near its data in east (0.40; as west 0.10 and 18.00 of egress)"
    assert sentence(boot.reason) == f"bought for 1 job{told}"
    assert sentence(world.why_job(1)) == f"east1 ordered{told}"
    world = clouds(egress={EAST: "0.09"}).job(near(EAST, 1), duration_s=900.0)
    told = ", away from its data in east (0.10 and 0.09 of egress; as east 0.40)"
    assert sentence(world.why_job(1)) == f"west1 ordered{told}"
    assert sentence(clouds().job(near(EAST)).why_job(1)) == "east1 ordered, near its data in east"
    refused = Block(NOW_S + 60, FailureKind.CAPACITY, "none here")
    scope = Scope(TypeName("east"), Market.ON_DEMAND, "")
    world = clouds().job(near(EAST)).but(blocks={scope: refused})
    assert sentence(world.why_job(1)) == (
        "west1 ordered, away from its data in east; no node there can be bought now"
    )


# --- the cost ---------------------------------------------------------------------------------------------


def total(placement: Placement, data: Mapping[int, Shape] | None = None) -> tuple[int, int]:
    """The outlay of an allocation. ``data``: of each work, by its number, its shape with the place of its data."""
    made = placement.allocation
    works = list(made.works)
    for number, shape in (data or {}).items():
        works[number] = replace(works[number], shape=shape)
    return outlay(made.groups, works, made.offers, made.cost, made.places.homes)


@st.composite
def sites(draw: st.DrawFn) -> tuple[NodeType, ...]:
    def drawn(cloud: CloudName) -> NodeType:
        price, slots = draw(st.integers(1, 99)), draw(st.integers(1, 6))
        return a_type_in(cloud, f"0.{price:02}", slots, cores=draw(st.sampled_from((2, 4, 8))))

    return drawn(EAST), drawn(WEST), drawn(NORTH)


def placed(world: World) -> Placement:
    made = world.plan()
    assert made.basis is not None
    return made.basis.placement


@given(sites(), st.integers(1, 30), st.integers(1, 2), st.integers(1, 12), st.sampled_from((60.0, 9000.0, 0.0)))
@settings(max_examples=60, deadline=None)
def test_equal_jobs_cost_no_more_than_if_egress_were_ignored(
    types: tuple[NodeType, ...], gib: int, cores: int, count: int, duration_s: float
) -> None:
    wish = near(EAST, gib, tasks(1, cores=cores))
    world = clouds(*types, egress={EAST: "0.03"}).job(*[wish] * count, duration_s=duration_s)
    ignoring = clouds(*types).job(*[tasks(1, cores=cores)] * count, duration_s=duration_s)
    weighed, plain = placed(world), placed(ignoring)
    assert (weighed.stuck is None) == (plain.stuck is None)
    if weighed.stuck is None and weighed.allocation.works:
        data = dict.fromkeys(range(len(plain.allocation.works)), wish)
        assert cost(weighed) <= cost(plain, data, weighed.allocation.places.homes)


def cost(
    placement: Placement, data: Mapping[int, Shape] | None = None, homes: Mapping[Shape, Home] | None = None
) -> int:
    """What bought nodes and egress cost. ``data``: of each work, by its number, its shape with the data's place."""
    made = placement.allocation
    works = [replace(it, shape=(data or {}).get(number, it.shape)) for number, it in enumerate(made.works)]
    astray, total = outlay(
        made.groups, works, made.offers, made.cost, homes if homes is not None else made.places.homes
    )
    assert not astray
    return total


@given(sites(), st.lists(st.integers(1, 2), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_prices_of_egress_change_nothing_for_jobs_that_do_not_say_where_their_data_is(
    types: tuple[NodeType, ...], cores: list[int]
) -> None:
    shapes = [tasks(1, cores=it) for it in cores]
    priced = clouds(*types, egress={EAST: "0.03", WEST: "9", NORTH: "0"}).job(*shapes)
    assert priced.plan().actions == clouds(*types).job(*shapes).plan().actions
