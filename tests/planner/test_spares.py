"""Nodes that are kept beyond demand: only nodes that take jobs count, and the cheap ones stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.nodes import NodeState
from tests.builders import (
    CLOUD,
    NOW_S,
    World,
    a_rank,
    a_world,
    boots,
    busy,
    drained,
    orders,
)

BY_AN_ADMIN = "bad disk"
ENDS = 50.0  # seconds, within the lead


def held(world: World, slot: str = "cloud1", **changes: Any) -> World:
    rank = drained(a_rank(slot, world.policy, online=True), BY_AN_ADMIN)
    return world.node(slot, NodeState.IDLE, rank=rank, **changes)


def unseen_by_the_scheduler(world: World, since_s: float, slot: str = "cloud1") -> World:
    rank = replace(a_rank(slot, world.policy, online=True), schedulable=False, cores_free=0)
    return world.node(slot, NodeState.IDLE, rank=rank, rank_seen_s=since_s, billed_from_s=NOW_S - 3600 + ENDS)


# --- nodes_min --------------------------------------------------------------------------------------------


def test_one_that_somebody_drained_is_none_of_the_least_number() -> None:
    assert boots(held(a_world(nodes_min=1)).plan()) == ["cloud2"]
    at_work = drained(busy(a_rank("cloud1")), BY_AN_ADMIN)
    assert boots(a_world(nodes_min=1).node("cloud1", NodeState.BUSY, rank=at_work).plan()) == ["cloud2"]


def test_beside_one_that_somebody_drained_a_sound_one_stays() -> None:
    world = held(a_world(nodes_min=1)).idle_node("cloud2", hour_ends_in_s=ENDS)
    assert (orders(world.plan()), world.why("cloud2")) == ([], "nodes_min")


def test_one_that_is_excluded_is_none_of_them() -> None:
    excluded = replace(a_rank("cloud1", online=True), excluded=True, schedulable=False, cores_free=0)
    world = a_world(nodes_min=1).node("cloud1", NodeState.IDLE, rank=excluded)
    assert boots(world.plan()) == ["cloud2"]
    just_seen = a_world(nodes_min=1).node("cloud1", NodeState.IDLE, rank=excluded, rank_seen_s=NOW_S - 1.0)
    assert boots(just_seen.plan()) == ["cloud2"], "the scheduler will not take it however long it is waited for"


def test_one_that_the_scheduler_does_not_take_is_waited_for_a_while_and_then_none_of_them() -> None:
    world = unseen_by_the_scheduler(a_world(nodes_min=1, rejoin_timeout_s=120), NOW_S - 119)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "nodes_min")
    world = unseen_by_the_scheduler(a_world(nodes_min=1, rejoin_timeout_s=120), NOW_S - 120)
    assert sorted(order.split()[0] for order in orders(world.plan())) == ["boot", "drain"]
    assert world.why("cloud1") == "window_closes"


def test_one_that_is_away_counts_until_it_is_given_up() -> None:
    away = {"rank": a_rank("cloud1"), "since_s": NOW_S - 10}
    assert boots(a_world(nodes_min=1).node("cloud1", NodeState.LOST, **away).plan()) == []


def test_one_that_takes_no_jobs_goes_without_another_s_leave() -> None:
    """Only one of the two may go by ``nodes_min``; the other takes no jobs, so it does not count."""
    world = unseen_by_the_scheduler(a_world(nodes_min=2), NOW_S - 500, "cloud1")
    world.idle_node("cloud2", hour_ends_in_s=ENDS).idle_node("cloud3", hour_ends_in_s=ENDS)
    assert orders(world.plan()) == ["drain cloud1-1"]


# --- spares -----------------------------------------------------------------------------------------------


def test_one_that_somebody_drained_is_no_spare() -> None:
    world = held(a_world(replace(CLOUD, spares=1)))
    assert boots(world.plan()) == ["cloud2"]
    world.idle_node("cloud2", hour_ends_in_s=ENDS)
    assert (orders(world.plan()), world.why("cloud2")) == ([], "spare")


# --- which of them ----------------------------------------------------------------------------------------


def two_that_may_go(**settings: Any) -> World:
    return a_world(**settings).idle_node("cloud1", hour_ends_in_s=ENDS).idle_node("gpu1", hour_ends_in_s=ENDS)


@pytest.mark.parametrize("settings", [{"nodes_min": 1}, {"nodes_max": 1, "nodes_min": 1}, {"nodes_max": 1}])
def test_of_those_that_may_go_the_dearest_goes_first(settings: dict[str, Any]) -> None:
    assert orders(two_that_may_go(**settings).plan())[0] == "drain gpu1-1"
    if "nodes_min" in settings:
        assert orders(two_that_may_go(**settings).plan()) == ["drain gpu1-1"]


def test_among_equals_the_one_goes_first_that_was_first_launched() -> None:
    world = a_world(nodes_min=1).idle_node("cloud2", hour_ends_in_s=ENDS).idle_node("cloud1", hour_ends_in_s=ENDS)
    assert orders(world.plan()) == ["drain cloud1-1"]
