"""Schedules: what applies at which time of the week, and that a decision is made at each edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from nodemanager.core.facts import QueueSeen, Tick
from nodemanager.core.jobs import JobId, Unserved
from nodemanager.core.orders import BootNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import because
from nodemanager.core.upkeep.rules import Schedule
from nodemanager.core.upkeep.windows import read_windows
from nodemanager.planner import supply
from nodemanager.planner.brain import Brain
from nodemanager.planner.policy import Policy, limits_ahead, schedule_changes_at, scheduled_policy
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_job,
    a_policy,
    a_snapshot,
    a_type,
    a_world,
    orders,
    tasks,
    whole_nodes,
)

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


def test_the_last_idle_timeout_counts_whether_its_schedule_names_types_or_not() -> None:
    of_one, of_all = a_schedule(node_types=("large",), idle_timeout_s=60.0), a_schedule(idle_timeout_s=900.0)
    for schedules, expected in (((of_one, of_all), (900.0, 900.0)), ((of_all, of_one), (900.0, 60.0))):
        made = scheduled("2026-11-23T09:00", *schedules)
        assert tuple(map(made.idle_timeout_s, made.node_types)) == expected


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


def closing(seconds: float, unserved: Unserved) -> World:
    """A site whose schedule allows a single node for so many seconds more. Its jobs need three nodes, and one."""
    ends = datetime.fromtimestamp(WALL_AT, ZoneInfo("UTC")) + timedelta(seconds=seconds)
    assert ends.second == 0
    night = read_windows(f"Mon-Sun 00:00-{ends:%H:%M} UTC")
    schedule = Schedule("small", night, nodes_max=1)
    world = a_world(schedules=(schedule,), unserved=unserved, nodes_max=6)
    world.see(QueueSeen(world.wait(1.0).snapshot.now_s, (a_job(1, whole_nodes(3)), a_job(2, whole_nodes(1)))))
    return world.wait(world.policy.timing.settle_max_s).all_is_fresh()


@pytest.mark.parametrize(
    ("unserved", "held", "second"),
    [(Unserved.BLOCK, [], "behind_a_stuck_job"), (Unserved.HOLD, ["hold 1"], "node_ordered")],
)
def test_a_job_that_only_a_schedule_forbids_waits_for_its_end_and_is_not_called_hopeless(
    unserved: Unserved, held: list[str], second: str
) -> None:
    seconds = 60 - WALL_AT % 60 + 240
    world = closing(seconds, unserved)
    made = world.plan()
    assert made.jobs[JobId(1)] == because(Code.BEYOND_SCHEDULE, until_at=WALL_AT + seconds)
    assert made.jobs[JobId(2)].code == second
    assert "job_never_runs" not in [reason.code for reason in made.warnings]
    assert [it for it in orders(world.decide()) if it.startswith("hold")] == held

    world.wait(seconds).all_is_fresh()
    assert world.plan().jobs[JobId(1)].code == "node_ordered"


def test_a_schedule_that_is_not_open_yet_may_bring_the_limits_that_the_job_needs() -> None:
    seconds = 60 - WALL_AT % 60 + 240
    begins = datetime.fromtimestamp(WALL_AT, ZoneInfo("UTC")) + timedelta(seconds=seconds)
    later = Schedule("large", read_windows(f"Mon-Sun {begins:%H:%M}-24:00 UTC"), nodes_max=6)
    world = a_world(schedules=(later,), nodes_max=1)
    world.see(QueueSeen(world.wait(1.0).snapshot.now_s, (a_job(1, whole_nodes(3)),)))
    reason = world.wait(world.policy.timing.settle_max_s).all_is_fresh().why_job(1)
    assert reason == because(Code.BEYOND_SCHEDULE, until_at=WALL_AT + seconds)
    said = to_sentence(reason.code, reason.figures)
    assert said.startswith("the limits do not allow its nodes until "), said
    assert said.endswith(", when a schedule changes them"), said


def test_a_job_that_no_part_of_the_week_allows_is_called_hopeless() -> None:
    schedule = Schedule("small", read_windows("Mon-Sun 00:00-24:00 UTC"), nodes_max=2)
    world = a_world(schedules=(schedule,), nodes_max=6)
    world.see(QueueSeen(world.wait(1.0).snapshot.now_s, (a_job(1, whole_nodes(3)),)))
    assert world.wait(world.policy.timing.settle_max_s).all_is_fresh().why_job(1).code == "beyond_limits"


def test_an_edge_and_the_limits_ahead_are_worked_out_once_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may submit thousands of shapes beyond the limits of a schedule."""
    calls: list[float] = []

    def counted(policy: Policy, wall_at: float) -> Iterator[tuple[float, Policy]]:
        calls.append(wall_at)
        return limits_ahead(policy, wall_at)

    monkeypatch.setattr(supply, "limits_ahead", counted)
    world = closing(60 - WALL_AT % 60 + 240, Unserved.BLOCK)
    jobs = tuple(a_job(number, tasks(8 + number)) for number in range(10, 50))
    brain = Brain(world.policy, snapshot=world.snapshot)
    for second in (1, 2, 3):
        brain.advance(Tick(world.snapshot.now_s + second, world.snapshot.wall_at + second))
        brain.take(QueueSeen(world.snapshot.now_s + second, jobs))
        made = brain.decide().plan
    assert made.jobs[JobId(10)].code == "beyond_limits"
    assert len(calls) == 1
