"""A node type of several sizes: the cheapest that can be had is bought, and each node has its own price."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from nodemanager.core.facts import CloudCallFailed
from nodemanager.core.jobs import Shape
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.orders import BootNode, CreateNode, DestroyNode, EndLease, RecordLaunches
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import Market, NodeType, Size, Tariff, TypeName
from nodemanager.planner import billing
from nodemanager.planner.budget import BudgetLimits
from nodemanager.planner.reasons import size_reasons
from nodemanager.planner.snapshot import EVERYTHING, Block, Quota, Scope, Stray
from nodemanager.planner.supply import current_supply
from tests.builders import (
    NOW_S,
    World,
    a_cloud_node,
    a_launch,
    a_policy,
    a_type,
    a_world,
    nodes,
    tasks,
    whole_nodes,
)

SMALL, MIDDLE, LARGE = (
    Size(name, Market.ON_DEMAND, Decimal(price))
    for name, price in (("c7i.4xlarge", "0.70"), ("m7i.4xlarge", "0.80"), ("c7a.8xlarge", "1.60"))
)
BIG = TypeName("big")


def big(*sizes: Size, slots: int = 6, zones: tuple[str, ...] = ()) -> NodeType:
    """A type of 16 cores that may be bought as any of three sizes, or of those given."""
    chosen = sizes or (SMALL, MIDDLE, LARGE)
    plain = a_type(BIG, slots=slots, cores=16, price=str(chosen[0].price_per_hour))
    return replace(plain, size=chosen[0].name, sizes=chosen, zones=zones)


def bought(world: World) -> list[tuple[str, str, str]]:
    """Slot, size and zone of each node that is ordered now."""
    boots = (it for it in world.plan().actions if isinstance(it, BootNode))
    return [(boot.launch.slot, boot.launch.size, boot.launch.zone) for boot in boots]


def refused(size: Size, zone: str = "", kind: FailureKind = FailureKind.CAPACITY) -> dict[Scope, Block]:
    return {Scope(BIG, size.market, zone, size.name): Block(NOW_S + 60, kind, "none left")}


def test_the_cheapest_size_is_bought_and_recorded_with_its_market_and_price() -> None:
    (boot,) = (it for it in a_world(big()).job(tasks(16)).plan().actions if isinstance(it, BootNode))
    launch = boot.launch
    assert (launch.type_name, launch.size, launch.market) == (BIG, SMALL.name, Market.ON_DEMAND)
    assert launch.tariff is not None
    assert launch.tariff.price_per_hour == SMALL.price_per_hour


def test_what_a_larger_size_has_beyond_the_declaration_is_not_used() -> None:
    world = a_world(big(LARGE)).job(tasks(32))
    assert [size for _, size, _ in bought(world)] == [LARGE.name, LARGE.name]


def test_a_refused_size_is_passed_over_for_the_next_one() -> None:
    world = a_world(big()).but(blocks=refused(SMALL)).job(tasks(16))
    assert bought(world) == [("big1", MIDDLE.name, "")]


def test_a_size_is_tried_in_each_zone_before_a_dearer_one() -> None:
    world = a_world(big(zones=("a", "b"))).but(blocks=refused(SMALL, "a")).job(tasks(16))
    assert bought(world) == [("big1", SMALL.name, "b")]
    world = world.but(blocks={**refused(SMALL, "a"), **refused(SMALL, "b")})
    assert bought(world) == [("big1", MIDDLE.name, "a")]


def test_the_same_decision_buys_the_next_size_where_a_quota_ends() -> None:
    quota = Quota(cap=2, probe_s=NOW_S + 60, pause_s=60, detail="two of these")
    world = a_world(big()).but(quotas={Scope(BIG, size=SMALL.name): quota}).job(nodes(5, cores=16))
    sizes = [size for _, size, _ in bought(world)]
    assert sizes == [SMALL.name] * 2 + [MIDDLE.name] * 3
    assert len({slot for slot, _, _ in bought(world)}) == 5


@pytest.mark.parametrize("first", [1, 16])
def test_a_quota_of_the_whole_account_lets_the_cheapest_sizes_through(first: int) -> None:
    quota = Quota(cap=2, probe_s=NOW_S + 60, pause_s=60, detail="two of any kind")
    world = a_world(big()).but(quotas={EVERYTHING: quota})
    for cores in (first, 12, 13, 14, 15, 16):
        world = world.job(tasks(cores))
    assert [size for _, size, _ in bought(world)] == [SMALL.name] * 2


def test_nodes_that_exist_use_up_the_quota_of_their_size_only() -> None:
    quota = Quota(cap=2, probe_s=NOW_S + 60, pause_s=60, detail="two of these")
    world = a_world(big()).node("big1", NodeState.BUSY).but(quotas={Scope(BIG, size=SMALL.name): quota})
    world.job(nodes(2, cores=16))
    assert [size for _, size, _ in bought(world)] == [SMALL.name, MIDDLE.name]


def test_if_no_size_can_be_had_the_type_is_not_bought_and_says_why() -> None:
    blocks = {**refused(SMALL), **refused(MIDDLE), **refused(LARGE)}
    made = a_world(big()).but(blocks=blocks).job(tasks(16)).plan()
    assert not any(isinstance(it, BootNode) for it in made.actions)
    assert made.types[BIG].code == "blocked_create_capacity"


def test_a_refusal_blocks_only_the_size_in_its_zone() -> None:
    world = with_refused_create(FailureKind.CAPACITY)
    assert list(world.snapshot.learned.blocks) == [Scope(BIG, Market.ON_DEMAND, "a", SMALL.name)]


def test_an_impossible_create_blocks_the_size_in_all_zones() -> None:
    world = with_refused_create(FailureKind.CONFIG)
    assert list(world.snapshot.learned.blocks) == [Scope(BIG, size=SMALL.name)]


def with_refused_create(kind: FailureKind) -> World:
    world = a_world(big(zones=("a", "b")))
    launch = replace(a_launch("big1", world.policy), zone="a")
    world.node("big1", NodeState.REQUESTED, launch=launch, sent_s=NOW_S - 1)
    return world.see(CloudCallFailed("create", launch.id, kind, "none left"))


def test_a_lease_whose_size_was_refused_meanwhile_is_given_back() -> None:
    world = a_world(big()).node("big1", NodeState.REQUESTED).job(tasks(16))
    assert any(isinstance(it, CreateNode) for it in world.plan().actions)
    (end,) = (it for it in world.but(blocks=refused(SMALL)).plan().actions if isinstance(it, EndLease))
    assert end.reason.code == "blocked_create_capacity"


def test_a_lease_of_a_size_that_the_site_no_longer_lists_is_given_back() -> None:
    world = a_world(big(MIDDLE, LARGE)).job(tasks(16))
    launch = replace(a_launch("big1", world.policy), size=SMALL.name)
    world.node("big1", NodeState.REQUESTED, launch=launch)
    (end,) = (it for it in world.plan().actions if isinstance(it, EndLease))
    assert (end.reason.code, end.reason.figures["size"]) == ("unknown_size", SMALL.name)


def test_the_create_names_the_size_of_the_launch() -> None:
    world = a_world(big()).job(tasks(16))
    world.node("big1", NodeState.REQUESTED, launch=replace(a_launch("big1", world.policy), size=LARGE.name))
    (create,) = (it for it in world.plan().actions if isinstance(it, CreateNode))
    assert (create.node_type.size, create.node_type.price_per_hour) == (LARGE.name, LARGE.price_per_hour)


# --- the price of a node ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "tariff", "price"),
    [
        (LARGE.name, None, LARGE.price_per_hour),
        ("gone", Decimal("0.55"), Decimal("0.55")),  # as it was bought
        ("gone", None, LARGE.price_per_hour),  # the dearest: never too little
    ],
)
def test_a_node_costs_what_its_size_costs(size: str, tariff: Decimal | None, price: Decimal) -> None:
    policy = a_policy(big())
    launch = replace(
        a_launch("big1", policy),
        size=size,
        tariff=Tariff(tariff, policy.node_types[0].billing) if tariff is not None else None,
    )
    world = a_world(big()).node("big1", NodeState.BUSY, launch=launch)
    assert billing.price_per_hour(launch, policy) == price
    assert billing.fleet_price_per_hour(world.snapshot, policy) == price
    assert world.plan().price_per_hour == price


def test_a_stray_counts_with_the_size_that_the_provider_shows_and_gets_it_back() -> None:
    world = a_world(big())
    launch = replace(a_launch("big2", world.policy), size=MIDDLE.name)
    stray = a_cloud_node(launch, size=MIDDLE.name, market=Market.ON_DEMAND)
    world = world.but(strays={stray.provider_id: Stray(stray, NOW_S)})
    made = world.plan()
    assert made.price_per_hour == MIDDLE.price_per_hour
    (record,) = (it for it in made.actions if isinstance(it, RecordLaunches))
    assert record.launches[0].size == MIDDLE.name
    assert not any(isinstance(it, DestroyNode) for it in made.actions)


def test_the_price_limit_counts_the_size_that_is_bought() -> None:
    world = a_world(big(), price_per_hour_max=Decimal("1.50")).job(tasks(16)).job(tasks(16))
    assert len(bought(world)) == 2
    world = a_world(big(), price_per_hour_max=Decimal("1.50")).but(blocks=refused(SMALL))
    assert len(bought(world.job(tasks(16)).job(tasks(16)))) == 1


def test_another_type_is_bought_if_it_is_cheaper_than_the_sizes_that_are_left() -> None:
    other = a_type("plain", cores=16, price="0.75")
    assert [slot for slot, _, _ in bought(a_world(big(), other).job(tasks(16)))] == ["big1"]
    world = a_world(big(), other).but(blocks=refused(SMALL)).job(tasks(16))
    assert [slot for slot, _, _ in bought(world)] == ["plain1"]


def test_a_job_for_one_zone_gets_a_dearer_size_there() -> None:
    shape = Shape(slots=1, cores_per_slot=16, nodes=4, one_zone=True)
    blocks = {**refused(SMALL, "a"), Scope(BIG, size=MIDDLE.name): next(iter(refused(SMALL).values()))}
    world = a_world(big(zones=("a",))).but(blocks=blocks).job(shape)
    assert bought(world) == [(f"big{number}", LARGE.name, "a") for number in range(1, 5)]


def test_a_spare_is_bought_as_the_size_that_can_be_had() -> None:
    world = a_world(replace(big(), spares=1)).but(blocks=refused(SMALL))
    assert bought(world) == [("big1", MIDDLE.name, "")]


def test_a_block_of_the_whole_account_blocks_every_size() -> None:
    block = Block(NOW_S + 60, FailureKind.CREDENTIALS, "expired")
    made = a_world(big()).but(blocks={EVERYTHING: block}).job(whole_nodes(1)).plan()
    assert made.types[BIG].code == "blocked_create_credentials"


def why_not(world: World) -> dict[tuple[str, Market], tuple[object, ...]]:
    """The code against each size, and the size that is named."""
    found = size_reasons(BIG, world.snapshot, world.policy)
    return {
        key: (str(it.code), *([it.figures["size"]] if "size" in it.figures else [])) for key, it in found.items()
    }


def test_a_dearer_size_names_the_cheaper_one_that_serves_the_same_jobs() -> None:
    world = a_world(big())
    assert why_not(world) == {
        (MIDDLE.name, Market.ON_DEMAND): ("another_size_is_cheaper", SMALL.name),
        (LARGE.name, Market.ON_DEMAND): ("another_size_is_cheaper", SMALL.name),
    }
    reason = size_reasons(BIG, world.snapshot, world.policy)[MIDDLE.name, Market.ON_DEMAND]
    assert reason.figures["price_per_hour"] == SMALL.price_per_hour


def test_a_size_that_cannot_be_had_says_so_and_is_no_reason_against_others() -> None:
    assert why_not(a_world(big()).but(blocks=refused(SMALL))) == {
        (SMALL.name, Market.ON_DEMAND): ("blocked_create_capacity",),
        (LARGE.name, Market.ON_DEMAND): ("another_size_is_cheaper", MIDDLE.name),
    }


def test_a_size_that_is_blocked_in_one_zone_is_no_reason_against_the_next() -> None:
    world = a_world(big(zones=("a", "b"))).but(blocks=refused(SMALL, "a"))
    assert why_not(world) == {(LARGE.name, Market.ON_DEMAND): ("another_size_is_cheaper", MIDDLE.name)}


def test_a_cheaper_spot_size_is_no_reason_against_one_on_demand() -> None:
    spot = replace(LARGE, market=Market.SPOT, price_per_hour=Decimal("0.30"))
    dear = replace(MIDDLE, market=Market.SPOT, price_per_hour=Decimal("0.75"))
    assert why_not(a_world(big(spot, SMALL, dear))) == {
        (MIDDLE.name, Market.SPOT): ("another_size_is_cheaper", LARGE.name)
    }
    assert why_not(a_world(big(SMALL, dear))) == {
        (MIDDLE.name, Market.SPOT): ("another_size_is_cheaper", SMALL.name)
    }


def test_the_type_as_each_size_is_the_cheapest_first() -> None:
    assert [it.size for it in a_policy(big()).by_size[BIG]] == [SMALL.name, MIDDLE.name, LARGE.name]
    plain = a_type("plain")
    assert plain.by_size() == (plain,)


def test_a_type_is_not_on_sale_if_the_provider_refuses_some_sizes_and_the_budget_forbids_the_others() -> None:
    world = a_world(big(), budgets={("", "day"): Decimal(100)}).but(blocks=refused(SMALL)).job(tasks(16))
    stopped = BudgetLimits(obstacle=because(Code.BUDGET_CHEAPEST_ONLY), cheapest_only=True)
    supply = current_supply(world.snapshot, world.policy, Decimal(0), stopped)
    assert supply.offers([]) == []
    assert BIG in supply.blocked
