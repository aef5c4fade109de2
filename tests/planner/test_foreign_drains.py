"""Nodes that Flux itself drained are retired after a while; those that a person drained are held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.nodes import FluxRank, NodeState
from nodemanager.core.orders import BootNode, DrainNode
from nodemanager.core.slots import ForeignDrain
from nodemanager.planner.node_health import drained_nodes
from tests.builders import CLOUD, World, a_rank, a_world, boots, busy, drained, orders, whole_nodes

BY_FLUX = "ƒ2YXZLLFZPj terminated before first barrier"
UP = a_rank("cloud1", online=True)


def drained_by_flux(world: World, ago_s: float, rank: FluxRank = UP, reason: str = BY_FLUX) -> World:
    drained_at = world.snapshot.wall_at + 1.0 - ago_s
    return world.wait(1.0).see_ranks(replace(drained(rank, reason), drained_at=drained_at))


def test_a_node_that_flux_drained_is_retired_after_a_while_with_the_reason_that_it_replaces() -> None:
    world = drained_by_flux(a_world().idle_node(), 10.0)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "drained_by_flux")
    world.wait(world.policy.rules.foreign_drain_after_s - 11.0).all_is_fresh()
    assert orders(world.plan()) == []
    world.wait(2.0).all_is_fresh()
    (action,) = world.plan().actions
    assert isinstance(action, DrainNode)
    assert (action.note, action.replaces) == (BY_FLUX, BY_FLUX)


def test_how_long_it_has_been_drained_survives_a_restart_of_ours() -> None:
    world = drained_by_flux(a_world().idle_node(), a_world().policy.rules.foreign_drain_after_s)
    assert orders(world.plan()) == ["drain cloud1-1"]


def test_a_clock_that_jumps_later_does_not_shorten_the_wait() -> None:
    world = drained_by_flux(a_world().idle_node(), 0.0)
    world.wait(10.0, wall_jumps_s=3600.0).all_is_fresh()
    assert orders(world.plan()) == []


def test_a_drain_that_was_undone_does_not_shorten_the_wait_after_the_next() -> None:
    world = drained_by_flux(a_world().idle_node(), 0.0)
    world.wait(60.0).see_ranks(UP)
    assert world["cloud1"].health.drained_by_flux_s is None
    drained_by_flux(world, 0.0)
    assert world["cloud1"].health.drained_by_flux_s == world.snapshot.now_s


def test_while_a_job_runs_there_it_is_left_alone() -> None:
    world = drained_by_flux(a_world().busy_node(), 3600.0, busy(UP))
    assert (orders(world.plan()), world.why("cloud1")) == ([], "busy")


def test_a_node_whose_job_has_just_ended_is_looked_at_once_more_before_it_is_retired() -> None:
    """In one look a node may seem idle although a job runs there."""
    world = drained_by_flux(a_world().busy_node(), 3600.0, busy(UP))
    world.wait(10.0).see_ranks(drained(UP, BY_FLUX))
    assert (orders(world.plan()), world.why("cloud1")) == ([], "drained_by_flux")
    world.wait(10.0).see_ranks(drained(UP, BY_FLUX))
    assert orders(world.plan()) == ["drain cloud1-1"]


def test_a_person_who_gives_the_drain_another_reason_holds_the_node() -> None:
    world = drained_by_flux(a_world().idle_node(), 3600.0)
    assert orders(world.plan()) == ["drain cloud1-1"]
    world.wait(1.0).see_ranks(drained(UP, "ada looks at it"))
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_drain")


def test_a_site_may_hold_such_nodes() -> None:
    world = drained_by_flux(a_world(foreign_drain=ForeignDrain.HOLD).idle_node(), 3600.0)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_drain")


@pytest.mark.parametrize(("reason", "usable"), [(BY_FLUX, True), ("broken fan", False)])
def test_an_empty_slot_that_only_flux_drained_is_used_again(reason: str, *, usable: bool) -> None:
    world = a_world(CLOUD).rank("cloud1", drain_reason=reason).job(whole_nodes(1))
    made = world.plan()
    slots = [action.launch.slot for action in made.actions if isinstance(action, BootNode)]
    assert boots(made) == slots == (["cloud1"] if usable else ["cloud2"])


def test_nodes_that_others_drained_are_counted_with_their_price() -> None:
    world = a_world(CLOUD).idle_node("cloud1").busy_node("cloud2").idle_node("cloud3").booting_node("cloud4")
    world.wait(1.0).see_ranks(
        drained(UP, BY_FLUX),
        drained(busy(a_rank("cloud2", online=True)), "broken fan"),  # a job runs there
        drained(a_rank("cloud3", online=True), "broken fan"),
        drained(a_rank("cloud4"), "broken fan"),  # nothing is up there
    )
    found = drained_nodes(world.snapshot, world.policy)
    assert {by: (it.count, it.price_per_hour) for by, it in found.items()} == {
        "flux": (1, CLOUD.price_per_hour),
        "person": (1, CLOUD.price_per_hour),
    }
    assert world["cloud3"].state is NodeState.IDLE
