"""Slots that move to other ranks: if Flux assigns the ranks, a slot is a host name."""

from __future__ import annotations

from dataclasses import replace

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import DrainNode
from nodemanager.core.slots import Rank, SlotName
from tests.builders import NOW_S, World, a_launch, a_rank, a_world, drained, orders, with_settings


def swapped(world: World, one: str, other: str, *, online: str) -> World:
    """A look that shows each node online with the other's former rank."""
    first, second = world.rank_now(one), world.rank_now(other)
    return world.see_ranks(
        replace(first, host=SlotName(other), online=online == other),
        replace(second, host=SlotName(one), online=online == one),
    )


def test_a_node_is_where_its_name_came_online() -> None:
    world = a_world().booting_node("cloud1").booting_node("cloud2")
    swapped(world, "cloud1", "cloud2", online="cloud2")
    assert world["cloud2"].state is NodeState.IDLE
    assert world["cloud2"].launch.rank == Rank(1)
    assert world["cloud1"].state is NodeState.BOOTING
    assert world["cloud1"].launch.rank == Rank(2)
    assert world.snapshot.slots.rank_of_slot[SlotName("cloud2")] == Rank(1)


def test_it_is_drained_there() -> None:
    world = a_world(nodes_max=2).booting_node("cloud1").booting_node("cloud2", requested_s=NOW_S, since_s=NOW_S)
    world.policy = with_settings(world.policy, boot_timeout_s=500.0)
    swapped(world, "cloud1", "cloud2", online="cloud2")
    (drain,) = [action for action in world.decide().actions if isinstance(action, DrainNode)]
    assert (drain.launch, drain.rank) == (world.id("cloud1"), Rank(2))


def test_the_answer_to_a_drain_that_met_another_proves_nothing() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=10)
    assert orders(world.decide()) == [f"drain {world.id('cloud1')}"]
    met = replace(drained(world.rank_now("cloud1"), drain_text(world.id("cloud1"))), host=SlotName("cloud2"))
    world.see_drained("cloud1", met)
    assert world["cloud1"].stop.drained_s is None
    assert not [order for order in orders(world.decide()) if order.startswith(("stop", "destroy"))]


def test_a_drain_that_was_meant_for_another_is_undone() -> None:
    stale = drained(a_rank("cloud1", online=True), "flux-node-manager:cloud9-9")
    world = a_world().idle_node("cloud1", rank=stale)
    assert world.why("cloud1") == "drained_for_another"
    assert orders(world.decide()) == [f"undrain {world.id('cloud1')}"]


def test_a_drain_of_its_own_with_a_note_behind_it_is_its_own() -> None:
    world = a_world()
    launch = a_launch("cloud1", world.policy)
    noted = f"{drain_text(launch.id)} has 2 of 4 cores"
    world.idle_node("cloud1", rank=drained(a_rank("cloud1", online=True), noted))
    assert world.why("cloud1") != "drained_for_another"
