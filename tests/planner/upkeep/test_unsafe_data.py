"""Nodes that stay until the data of their jobs was copied off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import RetirementRequested
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import FluxRank, NodeState, UnsafeData
from nodemanager.core.orders import DestroyNode, DrainNode, StopBroker, UndrainNode
from nodemanager.core.records import Mark
from nodemanager.core.upkeep.rules import Disruption
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    busy,
    drained,
    whole_nodes,
)

JOB = JobId(77)
ENDINGS = (DrainNode, StopBroker, DestroyNode)


def a_world(properties: str = "scratch", **changes: Any) -> World:
    of = replace(a_type("cloud", slots=4), properties=frozenset({properties}))
    policy = a_policy(of, wait_for_data="scratch", data_max_s=100.0, **changes)
    return World(policy, a_snapshot(policy))


def unsafe(world: World, slot: str = "cloud1", *, ended_s_ago: float = 60.0) -> FluxRank:
    return replace(a_rank(slot, world.policy, online=True), unsafe=(UnsafeData(JOB, WALL_AT - ended_s_ago),))


def endings(world: World) -> list[object]:
    return [it for it in world.plan().actions if isinstance(it, ENDINGS)]


def test_an_idle_node_whose_paid_time_ends_stays_until_its_data_is_safe() -> None:
    world = a_world()
    world.idle_node("cloud1", hour_ends_in_s=50, rank=unsafe(world))
    assert (world.why("cloud1"), endings(world)) == ("held_for_data", [])
    world.see_ranks(replace(unsafe(world), unsafe=()))
    assert world.why("cloud1") == "window_closes"


def test_other_types_do_not_wait_nor_do_nodes_for_what_ran_before_them() -> None:
    other = a_world("fast")
    other.idle_node("cloud1", hour_ends_in_s=50, rank=unsafe(other))
    assert other.why("cloud1") == "window_closes"
    world = a_world()
    world.idle_node("cloud1", hour_ends_in_s=50, rank=unsafe(world, ended_s_ago=4000.0))
    assert world.why("cloud1") == "window_closes"


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.STOPPING])
def test_a_node_that_leaves_is_not_stopped_before_its_data_is_safe(state: NodeState) -> None:
    """Whatever it leaves for: it may be too old, unfit, lost, or the budget may be spent."""
    world = a_world()
    world.node("cloud1", state)
    rank = replace(world.rank_now("cloud1"), unsafe=(UnsafeData(JOB, WALL_AT - 5.0),))
    world.node("cloud1", state, rank=rank)
    assert (world.why("cloud1"), endings(world)) == ("held_for_data", [])
    world.node("cloud1", state, rank=replace(rank, unsafe=()))
    assert endings(world)


def test_a_lost_node_is_kept_too_but_gets_no_job() -> None:
    world = a_world()
    rank = replace(unsafe(world), online=False, schedulable=False, cores_free=0)
    world.node("cloud1", NodeState.LOST, rank=rank, since_s=NOW_S - 10_000)
    (drain,) = endings(world)
    assert isinstance(drain, DrainNode)
    world.node("cloud1", NodeState.DRAINING, rank=drained(rank, drain_text(world.id("cloud1"))))
    assert (world.why("cloud1"), endings(world)) == ("held_for_data", [])


def test_a_waiting_job_may_use_the_node_meanwhile() -> None:
    world = a_world()
    world.idle_node("cloud1", hour_ends_in_s=50, rank=unsafe(world)).job(whole_nodes(1))
    assert world.why("cloud1") == "wanted"
    leaves = a_world()
    leaves.node("cloud1", NodeState.DRAINING)
    rank = replace(leaves.rank_now("cloud1"), unsafe=(UnsafeData(JOB, WALL_AT - 5.0),))
    leaves.node("cloud1", NodeState.DRAINING, rank=rank).job(whole_nodes(1))
    assert any(isinstance(it, UndrainNode) for it in leaves.plan().actions)


def test_an_operator_may_give_the_data_up() -> None:
    world = a_world()
    world.node("cloud1", NodeState.DRAINING)
    rank = replace(world.rank_now("cloud1"), unsafe=(UnsafeData(JOB, WALL_AT - 5.0),))
    world.node("cloud1", NodeState.DRAINING, rank=rank)
    assert not endings(world)
    world.see(RetirementRequested(world.id("cloud1"), Mark("alice", WALL_AT)))
    assert endings(world)


def test_an_alarm_is_raised_after_data_max_whatever_the_node_does() -> None:
    world = a_world(disruption=Disruption())
    world.idle_node("cloud1", rank=unsafe(world, ended_s_ago=99.0))
    assert not [it for it in world.plan().warnings if it.code == "data_not_safe"]
    assert world.plan().again_at_s <= NOW_S + 2.0  # time alone changes it
    world.idle_node("cloud1", rank=unsafe(world, ended_s_ago=101.0))
    world.node("cloud2", NodeState.BUSY, rank=busy(unsafe(world, "cloud2", ended_s_ago=101.0)))
    found = [it.figures["node"] for it in world.plan().warnings if it.code == "data_not_safe"]
    assert found == ["cloud1", "cloud2"]
