"""Prepaid nodes: bought first, kept first, and without cost."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.jobs import Unserved
from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import BootNode
from nodemanager.core.slots import CloudName
from nodemanager.planner import billing
from nodemanager.planner.billing import fleet_price_per_hour
from nodemanager.planner.policy import CloudRules
from tests.builders import WALL_AT, World, a_launch, a_policy, a_snapshot, a_type, whole_nodes

CHEAP = a_type("cheap", price="0.10")
DEAR = replace(a_type("dear", price="0.90"), prepaid=2)


def a_site(*types: Any, **changes: Any) -> World:
    policy = a_policy(*(types or (CHEAP, DEAR)), **changes)
    return World(policy, a_snapshot(policy))


def prepaid_launch(world: World, slot: str) -> Any:
    return replace(a_launch(slot, world.policy), prepaid=True)


def test_the_prepaid_nodes_are_bought_first_though_their_type_is_dear_and_no_more_of_them() -> None:
    world = a_site().job(whole_nodes(1), whole_nodes(1), whole_nodes(1))
    boots = [it.launch for it in world.plan().actions if isinstance(it, BootNode)]
    assert sorted((it.slot, it.prepaid) for it in boots) == [("cheap1", False), ("dear1", True), ("dear2", True)]


def test_a_prepaid_node_that_exists_counts_also_while_it_boots() -> None:
    world = a_site().job(whole_nodes(1), whole_nodes(1))
    world.busy_node("dear1", launch=prepaid_launch(world, "dear1"))
    boots = [it.launch for it in world.plan().actions if isinstance(it, BootNode)]
    assert sorted((it.slot, it.prepaid) for it in boots) == [("cheap1", False), ("dear2", True)]


def test_a_prepaid_node_costs_nothing_and_does_not_count_towards_the_price_limit() -> None:
    world = a_site(price_per_hour_max=Decimal("0.90")).job(whole_nodes(1), whole_nodes(1), whole_nodes(1))
    assert len([it for it in world.plan().actions if isinstance(it, BootNode)]) == 3
    world = a_site()
    world.busy_node("dear1", launch=prepaid_launch(world, "dear1")).busy_node("dear2")
    assert fleet_price_per_hour(world.snapshot, world.policy) == Decimal("0.90")
    assert billing.price_per_hour(world["dear1"].launch, world.policy) == 0


@pytest.mark.parametrize(("price_max", "paid"), [("0.05", 0), ("0.95", 1)])
def test_prepaid_nodes_do_not_count_towards_the_price_limit_of_their_cloud_when_they_are_bought(
    price_max: str, paid: int
) -> None:
    rules = {CloudName("default"): CloudRules(price_per_hour_max=Decimal(price_max))}
    world = a_site(DEAR, clouds=rules).job(*[whole_nodes(1)] * 4)
    launches = [it.launch for it in world.plan().actions if isinstance(it, BootNode)]
    assert sorted(it.prepaid for it in launches) == [False] * paid + [True, True]
    assert world.why_job(3 + paid).code == "cloud_full"


def test_a_recorded_prepaid_node_is_created_whatever_its_price() -> None:
    rules = {CloudName("default"): CloudRules(price_per_hour_max=Decimal("0.05"))}
    world = a_site(DEAR, clouds=rules).job(whole_nodes(1))
    world.node("dear1", NodeState.REQUESTED, launch=prepaid_launch(world, "dear1"))
    assert [type(it).__name__ for it in world.plan().actions] == ["CreateNode"]


def test_a_prepaid_node_costs_a_users_budget_nothing_also_once_it_is_ordered() -> None:
    budgets = {("user", "month"): Decimal(9)}
    world = a_site(budgets=budgets, unserved=Unserved.HOLD).job(whole_nodes(1), duration_s=86_400.0)
    (boot,) = world.plan().actions
    assert isinstance(boot, BootNode)
    assert boot.launch.prepaid
    world.node("dear1", NodeState.REQUESTED, launch=boot.launch)
    made = world.plan()
    assert [type(it).__name__ for it in made.actions] == ["CreateNode"]
    assert world.why_job(1).code == "node_coming"


def test_an_idle_prepaid_node_stays_and_others_leave_before_it() -> None:
    world = a_site()
    world.idle_node("dear1", launch=prepaid_launch(world, "dear1"), hour_ends_in_s=10)
    world.idle_node("dear2", hour_ends_in_s=10)
    assert (world.why("dear1"), world.why("dear2")) == ("prepaid", "window_closes")
    assert world.plan().price_per_hour == Decimal("0.90")


def test_of_idle_nodes_above_the_limit_the_prepaid_ones_go_last() -> None:
    world = a_site(nodes_max=1)
    world.idle_node("dear1", launch=prepaid_launch(world, "dear1"))
    world.idle_node("cheap1")
    assert (world.why("cheap1"), world.why("dear1")) == ("above_nodes_max", "prepaid")


def test_after_the_contract_it_leaves_as_others_do() -> None:
    world = a_site(CHEAP, replace(DEAR, prepaid=0))
    world.node("dear1", NodeState.IDLE, launch=prepaid_launch(world, "dear1"))
    assert world.why("dear1") != "prepaid"


def test_a_price_that_is_out_of_date_is_a_warning() -> None:
    world = a_site(replace(CHEAP, price_until_at=WALL_AT - 1), DEAR)
    assert [it.code for it in world.plan().warnings] == ["price_out_of_date"]
