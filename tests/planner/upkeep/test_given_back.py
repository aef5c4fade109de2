"""Nodes that a running job has given back: they leave at once, and their slots wait for the end of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import FluxRank, NodeState
from nodemanager.core.orders import BootNode, DestroyNode, DrainNode, StopBroker
from nodemanager.planner.ranks_and_queue import is_vacant
from nodemanager.planner.slot_types import may_move
from tests.builders import World, a_policy, a_rank, a_snapshot, a_type, busy, drained, whole_nodes

JOB = JobId(77)


def a_world(slots: int = 4, **changes: Any) -> World:
    policy = a_policy(a_type("cloud", slots=slots), **changes)
    return World(policy, a_snapshot(policy))


def given_back(world: World, slot: str = "cloud1") -> FluxRank:
    """Its rank as a look shows it."""
    return replace(a_rank(slot, world.policy, online=True), cores_free=0, gpus_free=0, given_back=JOB)


def of_kind(world: World, kind: type[Any]) -> list[Any]:
    return [it for it in world.plan().actions if isinstance(it, kind)]


def test_it_is_retired_at_once_also_early_in_its_hour_and_below_nodes_min() -> None:
    world = a_world(nodes_min=2)
    world.idle_node("cloud1", hour_ends_in_s=3000, rank=given_back(world))
    assert world.why("cloud1") == "node_given_back"
    assert [it.launch for it in of_kind(world, DrainNode)] == [world.id("cloud1")]


def test_a_look_at_a_busy_node_shows_it_idle_and_two_looks_are_needed() -> None:
    world = a_world().busy_node("cloud1")
    world.see_ranks(given_back(world))
    assert (world["cloud1"].state, world.why("cloud1")) == (NodeState.IDLE, "idle_unconfirmed")
    world.wait(1).see_ranks(given_back(world))
    assert world.why("cloud1") == "node_given_back"


def test_it_takes_no_job_and_one_is_bought_instead() -> None:
    world = a_world()
    world.idle_node("cloud1", rank=given_back(world)).job(whole_nodes(1))
    assert world.why("cloud1") == "node_given_back"
    assert [it.launch.slot for it in of_kind(world, BootNode)] == ["cloud2"]


def test_the_second_look_decides_a_job_that_slipped_in_keeps_it() -> None:
    world = a_world()
    world.node("cloud1", NodeState.DRAINING, rank=drained(given_back(world), drain_text(world_id(world))))
    assert of_kind(world, StopBroker) or of_kind(world, DestroyNode)
    other = a_world()
    taken = drained(busy(a_rank("cloud1", other.policy, online=True)), drain_text(world_id(other)))
    other.node("cloud1", NodeState.DRAINING, rank=taken)
    assert not [*of_kind(other, StopBroker), *of_kind(other, DestroyNode)]
    assert other.why("cloud1") == "job_slipped_in"


def world_id(world: World) -> Any:
    made = World(world.policy, world.snapshot).node("cloud1", NodeState.DRAINING)
    return made.id("cloud1")


@pytest.mark.parametrize("holds", [True, False])
def test_its_slot_is_used_again_only_when_the_job_has_ended(*, holds: bool) -> None:
    world = a_world(slots=1)
    rank = replace(given_back(world), online=False, schedulable=False)
    rank = rank if holds else replace(rank, given_back=None)
    assert is_vacant(rank) is may_move(rank) is (not holds)
    world.snapshot = replace(world.snapshot, ranks={rank.rank: rank})
    world.job(whole_nodes(1))
    assert bool(of_kind(world, BootNode)) is not holds
