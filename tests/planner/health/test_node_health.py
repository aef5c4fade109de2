"""Nodes that are up but get no more work, nodes that hang, and mere alarms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    HoldPlaced,
    HousekeepingKilled,
    NodeCordoned,
    NodeReported,
    QueueProbed,
    RetirementRequested,
)
from nodemanager.core.nodes import CloudState, FluxRank, JoinPhase, NodeState
from nodemanager.core.orders import KillHousekeeping
from nodemanager.core.records import Mark
from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.node_health import FLAPS_WITHIN_S, KILLS_MAX
from nodemanager.planner.snapshot import Scope
from tests.builders import (
    CLOUD,
    GPU,
    GPU_FOR_ALL,
    World,
    a_cloud_node,
    a_rank,
    a_type,
    a_world,
    boots,
    busy,
    changed,
    drained,
    orders,
    whole_nodes,
)

TWO_ZONES = replace(a_type("cloud"), zones=("a", "b"), market=Market.SPOT)


def _reclaimed(world: World, slot: str = "cloud1") -> World:
    return world.see(NodeReported(world.id(slot), JoinPhase.RECLAIMED, "terminate at 14:02:00Z", 0.0))


def _cordoned(world: World, slot: str = "cloud1") -> World:
    """Answer the ordered cordon: a job still runs there."""
    node = world[slot]
    rank = drained(busy(world.rank_now(slot)), drain_text(node.id))
    return world.see(NodeCordoned(node.id, world.snapshot.now_s, rank)).see_ranks(rank)


# --- taken back by the provider ---------------------------------------------------------------------------


def test_57_an_idle_node_that_is_taken_back_goes_at_once() -> None:
    world = _reclaimed(a_world().idle_node(hour_ends_in_s=3000.0))
    assert orders(world.plan()) == ["drain cloud1-1"]
    assert world.why("cloud1") == "reclaimed"


def test_57_one_at_work_takes_no_more_jobs_and_what_runs_there_goes_on() -> None:
    world = _reclaimed(a_world().busy_node(cores_free=2))
    assert orders(world.decide()) == ["cordon cloud1-1 flux-node-manager:cloud1-1"]
    _cordoned(world)
    assert orders(world.wait(5.0).plan()) == [], "it is left to its job, and not undrained"


def test_57_it_goes_once_its_job_has_ended() -> None:
    world = _reclaimed(a_world().busy_node())
    world.decide()
    _cordoned(world)
    done = drained(a_rank("cloud1", online=True), drain_text(world.id("cloud1")))
    world.wait(1.0).see_ranks(done)
    assert world["cloud1"].state is NodeState.DRAINING
    assert orders(world.decide()) == ["drain cloud1-1"], "the second look"


def test_57_its_like_is_bought_in_another_zone_before_it_is_lost() -> None:
    world = a_world(TWO_ZONES)
    world.busy_node("cloud1")
    node = world["cloud1"]
    world.but(nodes={node.id: replace(node, launch=replace(node.launch, zone="a"))})
    _reclaimed(world).job(whole_nodes(1))
    (boot,) = [action for action in world.plan().actions if type(action).__name__ == "BootNode"]
    assert boot.launch.zone == "b"  # type: ignore[union-attr]
    assert Scope(TypeName("cloud"), Market.SPOT, "a") in world.snapshot.learned.blocks


def test_57_or_on_another_market_where_there_is_no_other_zone() -> None:
    spot = replace(a_type("spot", price="0.10"), market=Market.SPOT)
    world = _reclaimed(a_world(spot, CLOUD).busy_node("spot1"), "spot1").job(whole_nodes(1))
    assert boots(world.plan()) == ["cloud1"]


def test_57_one_that_still_boots_is_given_up() -> None:
    world = _reclaimed(a_world(CLOUD, GPU_FOR_ALL).booting_node()).job(whole_nodes(1))
    made = world.plan()
    assert "drain cloud1-1" in orders(made)
    assert world.why("cloud1") == "reclaimed"
    assert boots(made), "the waiting job is not left to it"


def test_57_it_is_not_kept_for_a_job_that_waits() -> None:
    world = _reclaimed(a_world(CLOUD, GPU_FOR_ALL).draining_node()).job(whole_nodes(1))
    made = world.plan()
    assert "undrain cloud1-1" not in orders(made)
    assert boots(made)


# --- unhealthy, by the provider or by itself --------------------------------------------------------------


def test_a_node_that_its_provider_calls_unhealthy_goes_once_nothing_runs_there() -> None:
    world = a_world().idle_node("cloud1").busy_node("cloud2")
    sick = []
    for slot in ("cloud1", "cloud2"):
        cloud = world[slot].cloud
        assert cloud is not None
        sick.append(replace(cloud, impaired="instance status check failed"))
    world.wait(1.0).see_cloud(*sick)
    assert set(orders(world.plan())) == {"drain cloud1-1", "cordon cloud2-1 flux-node-manager:cloud2-1"}
    assert world.why("cloud1") == "impaired"


def test_a_node_that_its_provider_calls_well_again_is_kept() -> None:
    world = a_world().busy_node()
    cloud = world["cloud1"].cloud
    assert cloud is not None
    world.wait(1.0).see_cloud(replace(cloud, impaired="impaired")).wait(1.0).see_cloud(cloud)
    assert orders(world.plan()) == []


def _flap(world: World, times: int, every_s: float) -> World:
    for _ in range(times):
        world.wait(every_s / 2).see_ranks(a_rank("cloud1"))
        world.wait(every_s / 2).see_ranks(a_rank("cloud1", online=True))
    return world


def test_a_rank_that_flaps_goes() -> None:
    world = _flap(a_world().idle_node(hour_ends_in_s=3400.0), 3, 30.0)
    assert world.why("cloud1") == "flaps"
    assert orders(world.plan()) == ["drain cloud1-1"]


def test_a_rank_that_was_away_now_and_then_stays() -> None:
    world = _flap(a_world().idle_node(hour_ends_in_s=3400.0), 2, 30.0)
    world.wait(FLAPS_WITHIN_S).all_is_fresh()
    assert world.why("cloud1") != "flaps"
    _flap(world, 1, 30.0)
    assert world.why("cloud1") != "flaps"


def test_rank_0_that_comes_and_goes_makes_no_node_flap() -> None:
    world = a_world().idle_node(hour_ends_in_s=3400.0)
    for _ in range(4):
        world.wait(5.0).see_claim(world["cloud1"].launch)
        world.wait(5.0).see_ranks(a_rank("cloud1")).wait(5.0).see_ranks(a_rank("cloud1", online=True))
    assert world.why("cloud1") != "flaps"


# --- brokers that hang ------------------------------------------------------------------------------------


def _hung(rank: FluxRank) -> FluxRank:
    return replace(rank, torpid=True, cores_free=0)


def test_a_node_that_hangs_with_jobs_on_it_is_an_alarm_only() -> None:
    world = a_world().busy_node()
    world.wait(1.0).see_ranks(_hung(world.rank_now("cloud1")))
    for _ in range(5):
        world.wait(600.0).all_is_fresh()
        made = world.plan()
        assert orders(made) == []
        assert [warning.code for warning in made.warnings] == ["hangs_at_work"]
        assert world.why("cloud1") == "hangs_at_work"


def test_a_node_that_hangs_and_is_idle_is_retired_after_a_while() -> None:
    world = a_world().idle_node(hour_ends_in_s=3400.0)
    world.wait(1.0).see_ranks(_hung(world.rank_now("cloud1")))
    assert orders(world.plan()) == [], "it may heal"
    world.wait(world.policy.timing.rejoin_timeout_s).all_is_fresh()
    assert orders(world.plan()) == ["drain cloud1-1"]
    assert world.why("cloud1") == "hangs"


def test_a_node_that_answers_again_is_as_before() -> None:
    world = a_world().idle_node(hour_ends_in_s=3400.0)
    well = world.rank_now("cloud1")
    world.wait(1.0).see_ranks(_hung(well)).wait(30.0).see_ranks(well).wait(200.0).all_is_fresh()
    assert world.why("cloud1") == "paid_time_left"


# --- housekeeping -----------------------------------------------------------------------------------------


def _in_housekeeping(world: World, began_ago_s: float) -> World:
    rank = replace(busy(world.rank_now("cloud1")), housekeeping_since_at=world.snapshot.wall_at - began_ago_s)
    return world.wait(1.0).see_ranks(rank)


def test_housekeeping_that_ends_in_time_is_left_alone() -> None:
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    world.wait(world.policy.timing.housekeeping_max_s - 60.0).all_is_fresh()
    assert orders(world.plan()) == []


def test_housekeeping_that_lasts_too_long_is_drained_then_told_to_end_then_killed() -> None:
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    world.wait(world.policy.timing.housekeeping_max_s).all_is_fresh()
    assert orders(world.decide()) == ["cordon cloud1-1 flux-node-manager:cloud1-1"]
    rank = drained(world.rank_now("cloud1"), drain_text(world.id("cloud1")))
    world.see(NodeCordoned(world.id("cloud1"), world.snapshot.now_s, rank)).wait(1.0).see_ranks(rank)
    for hard in (False, True, True):
        (kill,) = world.decide().actions
        assert isinstance(kill, KillHousekeeping)
        assert kill.hard is hard
        world.see(HousekeepingKilled(world.id("cloud1")))
        assert world.plan().actions == (), "it gets a while to end"
        world.wait(20.0).all_is_fresh()
    ended = drained(a_rank("cloud1", online=True), drain_text(world.id("cloud1")))
    world.wait(1.0).see_ranks(ended)
    assert orders(world.decide()) == ["drain cloud1-1"], "and then it goes"


def test_housekeeping_that_survives_sigkill_is_told_no_more_and_said_and_its_node_is_left() -> None:
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    world.wait(world.policy.timing.housekeeping_max_s).all_is_fresh()
    world.decide()
    rank = drained(world.rank_now("cloud1"), drain_text(world.id("cloud1")))
    world.see(NodeCordoned(world.id("cloud1"), world.snapshot.now_s, rank)).wait(1.0).see_ranks(rank)
    killed = 0
    for _ in range(40):
        killed += sum(isinstance(action, KillHousekeeping) for action in world.decide().actions)
        world.see(HousekeepingKilled(world.id("cloud1"))).wait(20.0).all_is_fresh()
    assert killed == KILLS_MAX
    made = world.plan()
    assert (orders(made), world.why("cloud1")) == ([], "housekeeping_survives")
    assert "housekeeping_survives" in {warning.code for warning in made.warnings}
    ended = drained(a_rank("cloud1", online=True), drain_text(world.id("cloud1")))
    world.wait(1.0).see_ranks(ended)
    assert orders(world.decide()) == ["drain cloud1-1"], "somebody has ended it: it goes"


@pytest.mark.parametrize(("word", "told"), [(RetirementRequested, True), (HoldPlaced, False)])
def test_housekeeping_that_hangs_does_not_keep_a_node_that_an_operator_retires(
    word: type[RetirementRequested | HoldPlaced], told: bool
) -> None:
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    rank = drained(world.rank_now("cloud1"), drain_text(world.id("cloud1")))
    world.see(word(world.id("cloud1"), Mark("ada", world.snapshot.wall_at))).wait(1.0).see_ranks(rank)
    world.but(steering_on_record=world.snapshot.operator.steering).wait(
        world.policy.timing.housekeeping_max_s
    ).all_is_fresh()
    kills = [action for action in world.decide().actions if isinstance(action, KillHousekeeping)]
    assert bool(kills) is told, "what an operator holds may be what he looks at"


def test_housekeeping_does_not_keep_the_slot_of_a_node_that_is_gone_for_ever() -> None:
    """Another machine has its rank, by the same ticket, and its housekeeping hangs."""
    world = a_world().node("cloud1", NodeState.GONE)
    held = replace(busy(a_rank("cloud1")), housekeeping_since_at=world.snapshot.wall_at)
    gone = a_cloud_node(world["cloud1"].launch, state=CloudState.TERMINATED)
    world.but(nodes={world.id("cloud1"): replace(world["cloud1"], cloud=gone)}).wait(1.0).see_ranks(held)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "gone_yet_online")
    world.wait(world.policy.timing.housekeeping_max_s).see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud(
        gone
    )
    (kill,) = world.decide().actions
    assert isinstance(kill, KillHousekeeping)


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.STOPPING])
def test_a_node_on_its_way_out_is_not_held_up_by_housekeeping_for_ever(state: NodeState) -> None:
    """A job slipped in and ended, and its housekeeping hangs."""
    world = a_world().node("cloud1", state, reclaimed="to be taken back")
    since_at = world.snapshot.wall_at
    held = replace(drained(busy(a_rank("cloud1")), drain_text(world.id("cloud1"))), housekeeping_since_at=since_at)
    world.wait(1.0).see_ranks(held)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "job_slipped_in")
    world.wait(world.policy.timing.housekeeping_max_s).all_is_fresh()
    (kill,) = world.decide().actions
    assert isinstance(kill, KillHousekeeping)
    world.see(HousekeepingKilled(world.id("cloud1"))).wait(20.0)
    world.see_ranks(drained(a_rank("cloud1", online=True), drain_text(world.id("cloud1"))))
    assert orders(world.decide()) == ["stop-broker cloud1-1"]


def test_a_wall_clock_that_jumps_makes_no_housekeeping_old() -> None:
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    world.wait(60.0, wall_jumps_s=7200.0).all_is_fresh()
    assert orders(world.plan()) == []


def test_each_jobs_housekeeping_has_its_own_time() -> None:
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    for _ in range(4):
        _in_housekeeping(world.wait(world.policy.timing.housekeeping_max_s / 2), 0.0)
    assert orders(world.plan()) == []


def test_a_job_beside_a_stuck_housekeeping_goes_on() -> None:
    """The node is drained and its housekeeping killed, but it stays for the other job."""
    world = _in_housekeeping(a_world().busy_node(), 10.0)
    world.wait(world.policy.timing.housekeeping_max_s).all_is_fresh()
    world.decide()
    _cordoned(world)
    world.but(nodes={world.id("cloud1"): changed(world["cloud1"], housekeeping_kills=1, retry_s=0.0)})
    rest = drained(busy(a_rank("cloud1")), drain_text(world.id("cloud1")))
    world.wait(1.0).see_ranks(rest)
    assert orders(world.plan()) == [], "neither undrained nor stopped"


@pytest.mark.parametrize("kind", ["reclaimed", "hangs"])
def test_what_somebody_else_drained_is_not_ours_to_stop(kind: str) -> None:
    world = a_world(CLOUD, GPU).idle_node()
    if kind == "reclaimed":
        _reclaimed(world)
    world.wait(1.0).see_ranks(
        replace(drained(world.rank_now("cloud1"), "broken fan, ada"), torpid=kind == "hangs")
    ).wait(600.0).all_is_fresh()
    assert orders(world.plan()) == []


def test_30_a_node_that_flux_talks_to_and_no_list_shows_is_an_alarm_and_left_alone() -> None:
    world = a_world().busy_node()
    for _ in range(world.policy.timing.absences + 1):
        world.wait(20.0).see_ranks().see_cloud()
    made = world.plan()
    assert orders(made) == []
    assert [warning.code for warning in made.warnings] == ["gone_at_provider_yet_up"]
    cloud = world["cloud1"].cloud
    assert cloud is not None
    world.wait(20.0).see_ranks().see_cloud(cloud)
    assert world.plan().warnings == (), "it is the same pair again"
