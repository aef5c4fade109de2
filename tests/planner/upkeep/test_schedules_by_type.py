"""Schedules that set the limits of single node types: what is bought, what stays, what leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import BootNode, DrainNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, Size, TypeLimits
from nodemanager.core.upkeep.rules import Schedule
from nodemanager.core.upkeep.windows import read_windows
from nodemanager.planner.billing import nodes_left_of_type, nodes_max_of_type
from nodemanager.planner.plan import Plan
from nodemanager.planner.policy import schedule_changes_at, scheduled_policy
from nodemanager.planner.why_not import NOT_ENOUGH
from tests.builders import GPU, World, a_policy, a_type, a_world, boots, tasks, whole_nodes

BERLIN = ZoneInfo("Europe/Berlin")
ALWAYS = read_windows("Mon-Sun 00:00-24:00 UTC")
SMALL, LARGE = a_type("small", slots=6), a_type("large", slots=4, price="0.80")


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def for_type(*names: str, **settings: Any) -> Schedule:
    return Schedule("s", ALWAYS, names, **settings)


def world(*schedules: Schedule, types: tuple[NodeType, ...] = (SMALL, LARGE), **settings: Any) -> World:
    fleet = a_world(*types, nodes_max=10, schedules=schedules, **settings)
    fleet.brain.use_policy(fleet.policy)
    return fleet


def left(made: Plan) -> dict[str, Reason]:
    """The nodes that leave, by slot."""
    return {str(it.launch).rpartition("-")[0]: it.reason for it in made.actions if isinstance(it, DrainNode)}


# --- what applies -------------------------------------------------------------------------------------------


def test_limits_of_a_type_leave_the_fleet_and_other_types_alone() -> None:
    policy = world(for_type("large", nodes_min=1, nodes_max=2, price_per_hour_max=Decimal(1))).policy
    assert policy.types[LARGE.name].limits == TypeLimits(1, 2, Decimal(1))
    assert policy.types[SMALL.name].limits == TypeLimits()
    assert (policy.limits.nodes_min, policy.limits.nodes_max) == (0, 10)


def test_of_several_open_at_once_the_last_counts_for_each_setting_by_itself() -> None:
    """The fleet's limits and those of a type are different settings: one does not replace the other."""
    schedules = (
        Schedule("fleet", ALWAYS, nodes_max=8, idle_timeout_s=60.0),
        for_type("small", "large", nodes_max=4, nodes_min=2),
        for_type("large", nodes_max=1, idle_timeout_s=900.0),
        Schedule("night", read_windows("Mon 03:00-03:01 UTC"), ("large",), nodes_max=3),
        Schedule("later", ALWAYS, nodes_min=3),
    )
    policy = scheduled_policy(
        a_policy(SMALL, LARGE, nodes_max=10, schedules=schedules, idle_timeout_s=300.0), at("2026-11-25T12:00")
    )
    assert (policy.limits.nodes_min, policy.limits.nodes_max) == (3, 8)
    small, large = (policy.types[it.name] for it in (SMALL, LARGE))
    assert small.limits == TypeLimits(2, 4)
    assert large.limits == TypeLimits(1, 1), "a minimum is never above the maximum"
    assert (policy.idle_timeout_s(small), policy.idle_timeout_s(large)) == (60.0, 900.0)


@pytest.mark.parametrize(("night", "hours"), [("2026-03-28", 7), ("2026-10-24", 9)])
def test_a_window_over_the_night_of_the_change_has_an_hour_less_or_more(night: str, hours: int) -> None:
    windows = read_windows("Sat 22:00-06:00 Europe/Berlin")
    policy = a_policy(SMALL, schedules=(Schedule("night", windows, ("small",), nodes_max=1),))
    begins = at(f"{night}T22:00")
    assert schedule_changes_at(policy, begins - 60) == begins
    assert schedule_changes_at(policy, begins) == begins + hours * 3600
    for after_s, nodes_max in ((-1, None), (0, 1), (hours * 3600 - 1, 1), (hours * 3600, None)):
        assert scheduled_policy(policy, begins + after_s).types[SMALL.name].limits.nodes_max == nodes_max


# --- nodes_max and price_per_hour_max of a type -------------------------------------------------------------


def test_no_more_nodes_of_a_type_are_bought_than_its_schedule_allows() -> None:
    fleet = world(for_type("small", nodes_max=2)).job(whole_nodes(1), whole_nodes(1), whole_nodes(1))
    assert boots(fleet.plan()) == ["small1", "small2", "large1"], "the third job gets the dearer type"


def test_nodes_that_are_there_count() -> None:
    fleet = world(for_type("small", nodes_max=2), types=(SMALL,)).busy_node("small3")
    made = fleet.job(whole_nodes(1), whole_nodes(1)).plan()
    assert boots(made) == ["small1"]
    assert fleet.why_job(2).code is Code.TYPE_LIMIT
    assert fleet.why_job(2).figures["nodes_max"] == 2


def test_the_price_of_a_type_is_limited_too() -> None:
    fleet = world(for_type("large", price_per_hour_max=Decimal("1.70")), types=(LARGE,))
    assert boots(fleet.job(*[whole_nodes(1)] * 3).plan()) == ["large1", "large2"]


def test_of_several_sizes_the_dearest_counts() -> None:
    sizes = tuple(Size(name, Market.ON_DEMAND, Decimal(price)) for name, price in (("a", "1"), ("b", "2")))
    large = replace(LARGE, sizes=sizes, limits=TypeLimits(price_per_hour_max=Decimal(5)))
    assert nodes_max_of_type(large) == 2
    fleet = a_world(large)
    assert nodes_left_of_type(large, fleet.snapshot, fleet.policy) == 2


def test_a_job_that_needs_more_is_told_so_and_blocks_as_one_beyond_the_limits() -> None:
    fleet = world(for_type("small", nodes_max=2), types=(SMALL,)).job(whole_nodes(3))
    assert boots(fleet.plan()) == []
    assert fleet.why_job(1) == because(
        Code.TYPE_LIMIT, schedule="s", node_type="small", nodes_max=2, short=1, ends=NOT_ENOUGH
    )


def test_a_job_that_no_slots_could_serve_is_not_blamed_on_the_schedule() -> None:
    fleet = world(for_type("small", nodes_max=2), types=(SMALL,)).job(whole_nodes(7))
    assert fleet.why_job(1).code is Code.TOO_FEW_SLOTS


def test_a_type_that_is_closed_is_explained() -> None:
    fleet = world(for_type("large", nodes_max=0)).job(*[whole_nodes(1)] * 6)
    assert fleet.plan().types[LARGE.name] == because(Code.TYPE_LIMIT, schedule="s", node_type="large", nodes_max=0)


def test_idle_nodes_above_the_maximum_leave_and_busy_ones_stay() -> None:
    fleet = world(for_type("small", nodes_max=2), idle_timeout_s=9000.0)
    fleet.busy_node("small1").idle_node("small2").idle_node("small3").idle_node("large1")
    why = because(Code.TYPE_ABOVE_NODES_MAX, node_type="small", node_count=3, nodes_max=2)
    assert list(left(fleet.plan()).values()) == [why]


def test_only_as_many_leave_as_are_too_many() -> None:
    fleet = world(for_type("small", nodes_max=2), idle_timeout_s=9000.0)
    for slot in ("small1", "small2", "small3", "small4"):
        fleet.idle_node(slot)
    assert len(left(fleet.plan())) == 2


# --- nodes_min of a type ------------------------------------------------------------------------------------


def test_a_type_is_kept_at_its_minimum() -> None:
    made = world(for_type("large", nodes_min=2)).plan()
    assert boots(made) == ["large1", "large2"]
    why = because(Code.NODES_MIN, node_type="large", nodes_min=2)
    assert [it.reason for it in made.actions if isinstance(it, BootNode)] == [why, why]


def test_busy_and_booting_nodes_count_for_it() -> None:
    fleet = world(for_type("large", nodes_min=3)).busy_node("large1").booting_node("large2")
    assert boots(fleet.plan()) == ["large3"]


def test_nodes_that_jobs_buy_count_for_it() -> None:
    fleet = world(for_type("small", nodes_min=2)).job(whole_nodes(1), whole_nodes(1))
    assert boots(fleet.plan()) == ["small1", "small2"]


def test_an_idle_node_within_the_minimum_stays_and_the_rest_leaves() -> None:
    fleet = world(for_type("small", nodes_min=1))
    fleet.idle_node("small1", hour_ends_in_s=10.0).idle_node("small2", hour_ends_in_s=10.0)
    fleet.idle_node("large1", hour_ends_in_s=10.0)
    made = fleet.plan()
    assert sorted(left(made)) in (["large1", "small1"], ["large1", "small2"])
    (stays,) = (reason for reason in made.nodes.values() if reason.code is Code.NODES_MIN)
    assert stays == because(Code.NODES_MIN, node_type="small", nodes_min=1)


def test_a_node_that_its_type_keeps_makes_no_room_for_a_job_and_a_cheaper_one_does() -> None:
    fleet = a_world(SMALL, LARGE, GPU, nodes_max=2, schedules=(for_type("large", nodes_min=1),))
    fleet.brain.use_policy(fleet.policy)
    fleet.idle_node("small1").idle_node("large1").job(tasks(1, gpus=1))
    assert {slot: why.code for slot, why in left(fleet.plan()).items()} == {"small1": Code.MAKES_ROOM}


def test_a_lease_that_the_minimum_needs_is_kept() -> None:
    fleet = world(for_type("small", nodes_min=1)).node("small1", NodeState.REQUESTED)
    assert boots(fleet.plan()) == []
    assert fleet.why("small1") != "lease_not_wanted"


def test_without_such_limits_nothing_is_counted() -> None:
    assert world().policy.limited_types == ()
