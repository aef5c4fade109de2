"""Nodes that are too old, made differently, or to be replaced: when their turn comes, and what that does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.drains import drain_text, emptying_text
from nodemanager.core.facts import NodeReleased, ReplacementsRequested
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import BootNode, CordonNode, DrainNode, UndrainNode
from nodemanager.core.records import Mark
from nodemanager.core.slots import NodeType
from nodemanager.core.upkeep.rules import Disruption, Drift, changed_parts, fingerprint_of
from nodemanager.core.upkeep.windows import opens_at, read_windows
from nodemanager.planner.snapshot import Node
from nodemanager.planner.upkeep import Stage
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_launch,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    busy,
    drained,
    tasks,
    whole_nodes,
)

OLD = fingerprint_of({"image": "img-1", "size": "s", "network": [], "user-data": []})
NEW = fingerprint_of({"image": "img-2", "size": "s", "network": [], "user-data": []})
DAY_S = 86_400.0


def the_type(**changes: Any) -> NodeType:
    return replace(a_type("cloud", slots=6), made_from=NEW, **changes)


def a_world(*, disruption: Disruption | None = None, of: NodeType | None = None, **changes: Any) -> World:
    rule = disruption if disruption is not None else Disruption(nodes=1)
    policy = a_policy(of if of is not None else the_type(), disruption=rule, **changes)
    return World(policy, a_snapshot(policy))


def old(world: World, slot: str, *, age_s: float = 600.0, zone: str = "") -> dict[str, Any]:
    launch = a_launch(slot, world.policy, age_s=age_s)
    return {"launch": replace(launch, made_from=OLD, zone=zone)}


def busy_old(world: World, *slots: str, cores_free: int = 0) -> World:
    for slot in slots:
        world.busy_node(slot, cores_free=cores_free, **old(world, slot))
    return world


def cordoned(world: World, slot: str) -> Node:
    """A busy node that was drained in its turn."""
    made = old(world, slot)
    rank = drained(busy(a_rank(slot, world.policy)), drain_text(made["launch"].id))
    world.node(slot, NodeState.BUSY, rank=rank, **made)
    return world[slot]


def emptying(world: World, slot: str, **made: Any) -> World:
    """Add a busy node that consolidation keeps free of new jobs."""
    rank = drained(busy(a_rank(slot, world.policy)), emptying_text(a_launch(slot, world.policy).id))
    return world.node(slot, NodeState.BUSY, rank=rank, **made)


def orders(world: World, kind: type[Any]) -> list[str]:
    """The launches that get orders of a kind in the next plan."""
    actions = world.plan().actions
    return [it.launch.id if kind is BootNode else it.launch for it in actions if isinstance(it, kind)]


def stages(world: World) -> dict[str, Stage]:
    return {world.snapshot.nodes[id_].launch.slot: it.stage for id_, it in world.plan().due.items()}


# --- what makes a node due ------------------------------------------------------------------------------


def test_a_fingerprint_says_what_differs_and_another_version_says_nothing() -> None:
    assert changed_parts(OLD, NEW) == ("image",)
    assert changed_parts(OLD, OLD) == ()
    assert changed_parts("", NEW) == ()
    assert changed_parts("2" + OLD[1:], NEW) == ()


def test_a_node_of_another_image_is_drained_while_idle_and_cordoned_while_busy() -> None:
    world = a_world(disruption=Disruption(nodes=2))
    world.idle_node("cloud1", **old(world, "cloud1"))
    busy_old(world, "cloud2")
    assert world.why("cloud1") == world.why("cloud2") == "drifted"
    assert orders(world, DrainNode) == ["cloud1-1"]
    assert orders(world, CordonNode) == ["cloud2-1"]


@pytest.mark.parametrize("drift", [Drift.WARN, Drift.IGNORE])
def test_it_is_left_alone_if_the_site_says_so(drift: Drift) -> None:
    world = a_world(drift=drift)
    busy_old(world, "cloud1")
    assert not world.plan().due
    warned = [it.code for it in world.plan().warnings]
    assert warned == (["nodes_drifted"] if drift is Drift.WARN else [])


def test_a_node_in_a_zone_that_the_site_dropped_is_due_and_one_without_a_zone_is_not() -> None:
    world = a_world(of=replace(the_type(zones=("eu-b", "eu-c")), made_from=OLD))
    world.busy_node("cloud1", **old(world, "cloud1", zone="eu-a"))
    world.busy_node("cloud2", **old(world, "cloud2", zone="eu-c"))
    world.busy_node("cloud3", **old(world, "cloud3"))
    (due,) = world.plan().due.values()
    assert due.why.figures == {"node_type": "cloud", "changed": ("zone",)}


def test_a_node_is_due_from_the_moment_at_which_it_is_too_old() -> None:
    world = a_world(of=replace(the_type(max_age_s=DAY_S), made_from=OLD))
    world.idle_node("cloud1", **old(world, "cloud1", age_s=DAY_S - 100), hour_ends_in_s=3000.0)
    assert not world.plan().due
    assert world.plan().again_at_s == pytest.approx(NOW_S + 100)
    world.wait(100).all_is_fresh()
    assert world.why("cloud1") == "too_old"


def test_an_operator_has_nodes_replaced_and_takes_it_back() -> None:
    world = a_world(of=replace(the_type(), made_from=OLD), disruption=Disruption(nodes=1))
    busy_old(world, "cloud1", "cloud2")
    both = (LaunchId("cloud1-1"), LaunchId("cloud2-1"))
    world.see(ReplacementsRequested(both, Mark("ada", WALL_AT)))
    assert stages(world) == {"cloud1": Stage.LEAVES, "cloud2": Stage.WAITS}
    world.see(NodeReleased(both[0]))
    assert stages(world) == {"cloud2": Stage.LEAVES}
    world.see(ReplacementsRequested((LaunchId("nobody"),), Mark("ada", WALL_AT)))
    assert set(world.snapshot.operator.steering.replacements) == {both[1]}


# --- how many at once, and when -------------------------------------------------------------------------


def test_only_as_many_as_the_budget_allows_go_and_the_others_say_what_they_wait_for() -> None:
    world = a_world(disruption=Disruption(share=0.5))
    busy_old(world, "cloud1", "cloud2", "cloud3", "cloud4")
    assert orders(world, CordonNode) == ["cloud1-1", "cloud2-1"]
    third = world.plan().due[LaunchId("cloud3-1")].reason
    assert third.figures == {"why": "drifted", "under_way": 2, "disruption_max": 2}


def test_a_share_above_zero_allows_one_and_zero_allows_none() -> None:
    for share, expected in ((0.1, ["cloud1-1"]), (0.0, [])):
        world = a_world(disruption=Disruption(share=share))
        busy_old(world, "cloud1", "cloud2")
        assert orders(world, CordonNode) == expected


def test_a_node_under_way_keeps_its_turn_after_a_restart_and_outside_of_the_windows() -> None:
    nights = read_windows("Mon-Sun 22:00-22:01 UTC")
    assert opens_at(nights, WALL_AT) > WALL_AT
    world = a_world(disruption=Disruption(nodes=1, windows=nights))
    cordoned(world, "cloud2")
    busy_old(world, "cloud1")
    assert stages(world) == {"cloud2": Stage.LEAVES, "cloud1": Stage.WAITS}
    assert not orders(world, UndrainNode)
    waits = world.plan().due[LaunchId("cloud1-1")]
    assert (waits.reason.code, waits.when_at) == ("waits_for_window", opens_at(nights, WALL_AT))
    assert world.plan().again_at_s <= NOW_S + opens_at(nights, WALL_AT) - WALL_AT


def test_a_type_has_a_limit_of_its_own_within_that_of_the_fleet() -> None:
    world = a_world(disruption=Disruption(nodes=3), of_type={"cloud": Disruption(nodes=1)})
    busy_old(world, "cloud1", "cloud2")
    assert orders(world, CordonNode) == ["cloud1-1"]


def test_the_limit_of_a_type_is_a_share_of_its_own_nodes_and_counts_no_other() -> None:
    """Half of two is one, although half of the fleet is three; and the nodes of another type take no turn of it."""
    own, other = replace(a_type("gpu", slots=2), made_from=NEW), the_type()
    policy = a_policy(other, own, disruption=Disruption(nodes=6), of_type={"gpu": Disruption(share=0.5)})
    world = busy_old(World(policy, a_snapshot(policy)), "cloud1", "cloud2", "cloud3", "cloud4", "gpu1", "gpu2")
    assert stages(world) == {
        **dict.fromkeys(("cloud1", "cloud2", "cloud3", "cloud4", "gpu1"), Stage.LEAVES),
        "gpu2": Stage.WAITS,
    }
    waits = world.plan().due[LaunchId("gpu2-1")].reason
    assert waits.figures == {"why": "drifted", "under_way": 1, "disruption_max": 1}


def test_a_node_that_is_due_no_more_is_undrained() -> None:
    world = a_world(of=replace(the_type(), made_from=OLD))
    cordoned(world, "cloud1")
    assert orders(world, UndrainNode) == ["cloud1-1"]


def test_a_held_node_and_one_that_a_person_drained_are_left_alone() -> None:
    world = a_world(disruption=Disruption(nodes=2))
    made = old(world, "cloud1")
    rank = drained(a_rank("cloud1", world.policy, online=True), "looked at")
    world.node("cloud1", NodeState.IDLE, rank=rank, **made)
    assert not world.plan().due


# --- a new node first, if a job would wait --------------------------------------------------------------


def busy_site(**changes: Any) -> World:
    """A job has come just now, so others are expected."""
    return a_world(**changes).but(newest_job_s=NOW_S - 20)


def test_while_jobs_come_a_new_node_is_bought_first_and_only_once() -> None:
    world = busy_old(busy_site(), "cloud1")
    assert stages(world) == {"cloud1": Stage.REPLACED_FIRST}
    (boot,) = (it for it in world.plan().actions if isinstance(it, BootNode))
    assert (boot.reason.code, boot.reason.figures["node"]) == ("replaces", "cloud1")
    assert not orders(world, CordonNode)
    world.booting_node("cloud2")
    assert stages(world) == {"cloud1": Stage.REPLACED_FIRST}
    assert not orders(world, BootNode)


def test_once_the_new_node_is_up_the_old_one_takes_no_more_jobs() -> None:
    world = busy_old(busy_site(), "cloud1").idle_node("cloud2", launch=replace_made(busy_site(), "cloud2"))
    assert orders(world, CordonNode) == ["cloud1-1"]
    assert not orders(world, BootNode)


def replace_made(world: World, slot: str) -> Any:
    return replace(a_launch(slot, world.policy), made_from=NEW)


def test_room_on_other_nodes_counts_once() -> None:
    world = busy_old(busy_site(disruption=Disruption(nodes=2)), "cloud1", "cloud2")
    world.idle_node("cloud3", launch=replace_made(world, "cloud3"))
    assert orders(world, CordonNode) == ["cloud1-1"]
    assert stages(world)["cloud2"] is Stage.REPLACED_FIRST


def test_without_new_jobs_it_is_drained_at_once() -> None:
    world = busy_old(a_world().but(newest_job_s=NOW_S - 4000), "cloud1")
    assert orders(world, CordonNode) == ["cloud1-1"]
    assert not orders(world, BootNode)


def test_if_the_limits_allow_no_node_beside_it_the_old_one_goes_first() -> None:
    world = busy_old(busy_site(nodes_max=1), "cloud1")
    assert orders(world, CordonNode) == ["cloud1-1"]
    assert not orders(world, BootNode)


def test_nodes_min_and_spares_are_kept_up_by_a_new_node_first() -> None:
    for changes in ({"nodes_min": 1}, {"of": the_type(spares=1)}):
        world = a_world(**changes)
        world.idle_node("cloud1", **old(world, "cloud1"))
        assert stages(world) == {"cloud1": Stage.REPLACED_FIRST}
        assert len(orders(world, BootNode)) == 1
        world.idle_node("cloud2", launch=replace_made(world, "cloud2"))
        assert orders(world, DrainNode) == ["cloud1-1"]


def test_a_job_that_is_about_to_start_there_goes_first() -> None:
    world = a_world().job(whole_nodes(1))
    world.idle_node("cloud1", **old(world, "cloud1"))
    assert world.plan().due[LaunchId("cloud1-1")].reason.code == "waits_for_jobs_to_start"
    assert not orders(world, DrainNode)


def test_a_node_that_is_leaving_is_not_kept_for_a_waiting_job() -> None:
    world = a_world().job(tasks(1))
    world.draining_node("cloud1", **old(world, "cloud1"))
    assert not orders(world, UndrainNode)
    assert len(orders(world, BootNode)) == 1


def test_a_lease_for_the_new_node_is_not_given_up_as_unwanted() -> None:
    world = busy_old(busy_site(), "cloud1")
    world.node("cloud2", NodeState.REQUESTED, launch=replace_made(world, "cloud2"))
    assert world.why("cloud2") != "lease_not_wanted"
    other = busy_site()
    other.node("cloud2", NodeState.REQUESTED, launch=replace_made(other, "cloud2"))
    assert other.why("cloud2") == "lease_not_wanted"


# --- beside consolidation ---------------------------------------------------------------------------------


def test_a_node_that_empties_takes_a_turn_from_others() -> None:
    world = emptying(busy_old(a_world(consolidate=True), "cloud1"), "cloud2")
    assert stages(world) == {"cloud1": Stage.WAITS}
    world = emptying(busy_old(a_world(consolidate=True, disruption=Disruption(nodes=2)), "cloud1"), "cloud2")
    assert stages(world)["cloud1"] is not Stage.WAITS


def test_a_due_node_that_empties_has_its_turn_already() -> None:
    world = a_world(consolidate=True)
    emptying(world, "cloud1", **old(world, "cloud1"))
    assert stages(world)["cloud1"] is not Stage.WAITS
