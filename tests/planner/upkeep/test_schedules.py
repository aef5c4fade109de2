"""Schedules: what applies at which time of the week, and that a decision is made at each edge."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from nodemanager.core.orders import BootNode
from nodemanager.core.upkeep.rules import Schedule
from nodemanager.core.upkeep.windows import read_windows
from nodemanager.planner.upkeep.schedules import schedule_changes_at, scheduled_policy
from tests.builders import NOW_S, WALL_AT, World, a_policy, a_snapshot, a_type

BERLIN = ZoneInfo("Europe/Berlin")
OFFICE = read_windows("Mon-Fri 08:00-18:00 Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def a_schedule(**settings: Any) -> Schedule:
    return Schedule("office", OFFICE, **settings)


def scheduled(when: str, *schedules: Schedule) -> Any:
    types = a_type("small"), a_type("large", price="0.80")
    return scheduled_policy(a_policy(*types, schedules=schedules, nodes_min=0, idle_timeout_s=300.0), at(when))


def test_within_the_window_its_settings_apply_and_outside_those_of_the_site() -> None:
    office = a_schedule(nodes_min=2, nodes_max=4, price_per_hour_max=Decimal(3), spares=1, idle_timeout_s=900.0)
    inside, outside = scheduled("2026-11-23T08:00", office), scheduled("2026-11-23T18:00", office)
    assert (inside.limits.nodes_min, inside.limits.nodes_max, inside.limits.price_per_hour_max) == (
        2,
        4,
        Decimal(3),
    )
    assert [of.spares for of in inside.node_types] == [1, 1]
    assert inside.idle_timeout_s(inside.node_types[0]) == 900.0
    assert (outside.limits.nodes_min, outside.limits.nodes_max) == (0, 6)
    assert [of.spares for of in outside.node_types] == [0, 0]


@pytest.mark.parametrize(("monday", "friday"), [("2026-03-30", "2026-03-27"), ("2026-10-26", "2026-10-23")])
def test_eight_oclock_is_eight_oclock_on_both_sides_of_a_change_of_daylight_saving_time(
    monday: str, friday: str
) -> None:
    office = a_schedule(nodes_min=2)
    policy = a_policy(schedules=(office,))
    assert schedule_changes_at(policy, at(f"{friday}T18:00")) == at(f"{monday}T08:00")
    for day in (monday, friday):
        assert scheduled(f"{day}T07:59:59", office).limits.nodes_min == 0
        assert scheduled(f"{day}T08:00", office).limits.nodes_min == 2


def test_spares_and_the_idle_timeout_can_be_set_for_one_type() -> None:
    made = scheduled("2026-11-23T09:00", a_schedule(node_types=("large",), spares=2, idle_timeout_s=60.0))
    small, large = made.node_types
    assert (small.spares, large.spares) == (0, 2)
    assert (made.idle_timeout_s(small), made.idle_timeout_s(large)) == (300.0, 60.0)


def test_of_two_that_are_open_the_last_counts_and_ensembles_keep_their_nodes() -> None:
    two = a_schedule(nodes_min=2), a_schedule(nodes_min=1)
    assert scheduled("2026-11-23T09:00", *two).limits.nodes_min == 1
    policy = a_policy(schedules=two[1:], nodes_min_of_ensembles=3, nodes_min=3)
    assert scheduled_policy(policy, at("2026-11-23T09:00")).limits.nodes_min == 3


def opening(seconds: float) -> tuple[World, float]:
    """A site whose window opens in so many seconds."""
    begins = datetime.fromtimestamp(WALL_AT, ZoneInfo("UTC")).replace(second=0)
    minute = (begins.hour * 60 + begins.minute + 60) % (24 * 60)
    windows = read_windows(f"Mon-Sun {minute // 60:02d}:{minute % 60:02d}-23:59 UTC")
    opens_at = begins.timestamp() + 3600
    policy = a_policy(schedules=(Schedule("later", windows, nodes_min=2),))
    world = World(policy, a_snapshot(policy))
    return world.wait(opens_at - WALL_AT - seconds).all_is_fresh(), opens_at


def test_the_brain_decides_at_the_edge_of_a_window() -> None:
    world, _ = opening(10)
    decision = world.brain.decide()
    assert not [it for it in decision.orders if isinstance(it, BootNode)]
    assert decision.next_at_s <= world.snapshot.now_s + 10
    world.wait(10).all_is_fresh()
    assert world.brain.is_due(world.snapshot.now_s)
    boots = [it for it in world.brain.decide().orders if isinstance(it, BootNode)]
    assert [it.reason.code for it in boots] == ["nodes_min", "nodes_min"]
    assert world.policy.limits.nodes_min == 2


def test_a_clock_that_is_set_back_closes_the_window_again() -> None:
    world, _ = opening(-10)
    world.brain.decide()
    assert world.brain.policy.limits.nodes_min == 2
    world.wait(0, wall_jumps_s=-60)
    assert world.brain.snapshot.now_s > NOW_S
    assert world.brain.policy.limits.nodes_min == 0


def test_the_end_of_a_contract_is_an_edge_too() -> None:
    of = replace(a_type("small"), prepaid=2, prepaid_until_at=WALL_AT + 50)
    policy = a_policy(of)
    assert schedule_changes_at(policy, WALL_AT) == WALL_AT + 50
    assert scheduled_policy(policy, WALL_AT + 49).node_types[0].prepaid == 2
    assert scheduled_policy(policy, WALL_AT + 50).node_types[0].prepaid == 0
