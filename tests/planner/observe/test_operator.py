"""Operators' commands: a held node gets no work, a retired one leaves when idle, a pause stops decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.drains import drain_text, hold_text
from nodemanager.core.facts import (
    ClaimHeld,
    DecisionsPaused,
    DecisionsResumed,
    HoldPlaced,
    LeaseEnded,
    NodeCordoned,
    NodeReleased,
    NodeUndrained,
    ReplacementsRequested,
    RetirementRequested,
    SteeringKept,
    SteeringNotKept,
)
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import KeepSteering
from nodemanager.core.records import Mark, Steering
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_cloud_node,
    a_node,
    a_rank,
    a_world,
    boots,
    busy,
    drained,
    orders,
    tasks,
    whole_nodes,
)

ADA = Mark("ada", WALL_AT)


def hold(world: World, slot: str = "cloud1") -> World:
    return world.see(HoldPlaced(world.id(slot), ADA))


def retire(world: World, slot: str = "cloud1") -> World:
    return world.see(RetirementRequested(world.id(slot), ADA))


def cordoned(world: World, text: str, slot: str = "cloud1") -> World:
    """Give the order and answer it: the rank carries the text."""
    world.decide()
    node = world[slot]
    looked = drained(node.rank or world.rank_now(slot), text)
    return world.wait(0.1).see(NodeCordoned(node.id, world.snapshot.now_s, looked)).see_ranks(looked)


# --- held -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [NodeState.IDLE, NodeState.BUSY, NodeState.BOOTING, NodeState.LOST])
def test_a_held_node_is_kept_from_work_by_a_drain_of_its_own_kind(state: NodeState) -> None:
    world = hold(a_world().node("cloud1", state))
    node = world.id("cloud1")
    assert orders(world.plan()) == [f"cordon {node} flux-node-manager:hold:{node}"]
    assert world.why("cloud1") == "held_by_operator"


def test_a_held_node_is_not_stopped_when_its_window_closes() -> None:
    world = hold(a_world().idle_node(hour_ends_in_s=50))
    world = cordoned(world, hold_text(world.id("cloud1"))).wait(3600).all_is_fresh()
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_operator")


def test_a_held_node_that_never_joins_is_not_given_up() -> None:
    world = hold(a_world().booting_node(requested_s=NOW_S - 100_000, since_s=NOW_S - 90_000))
    assert world.why("cloud1") == "held_by_operator"


def test_no_job_is_laid_out_on_a_held_node_and_another_is_bought() -> None:
    world = hold(a_world().booting_node().job(whole_nodes(1)))
    assert boots(world.plan()) == ["cloud2"]


def test_a_held_node_does_not_count_for_nodes_min() -> None:
    world = hold(a_world(nodes_min=1).idle_node())
    assert boots(world.plan()) == ["cloud2"]


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.BUSY])
def test_a_held_node_that_was_on_its_way_out_keeps_its_drain(state: NodeState) -> None:
    """If it were undrained and drained again as held, a job might start in between."""
    up = a_rank("cloud1", online=True)
    rank = drained(busy(up) if state is NodeState.BUSY else up, drain_text(LaunchId("cloud1-1")))
    world = hold(a_world().node("cloud1", state, rank=rank))
    assert (orders(world.decide()), world.why("cloud1")) == ([], "held_by_operator")
    world.wait(3600).see_ranks(rank).all_is_fresh()
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_operator")


def test_a_hold_takes_a_retirement_back_once_it_is_released() -> None:
    world = hold(a_world().draining_node())
    node = world.id("cloud1")
    world.see(NodeReleased(node))
    assert orders(world.decide()) == [f"undrain {node}"]
    world.wait(0.1).see(NodeUndrained(node)).see_ranks(a_rank("cloud1", online=True))
    assert world["cloud1"].state is NodeState.IDLE


def test_a_hold_of_a_draining_node_may_become_a_retirement() -> None:
    world = retire(hold(a_world().draining_node()))
    assert orders(world.plan()) == [f"stop-broker {world.id('cloud1')}"]
    assert world["cloud1"].stop.retiring is not None
    assert world["cloud1"].stop.retiring.code == "retired_by_operator"


def test_a_held_node_that_drains_is_released_after_a_restart_too() -> None:
    launch = a_node("cloud1").launch
    rank = drained(a_rank("cloud1", online=True), drain_text(launch.id))
    world = a_world().see(ClaimHeld(NOW_S, (launch,), Steering({launch.id: ADA})))
    world.see_cloud(a_cloud_node(launch)).wait(1.0).see_ranks(rank).all_is_fresh()
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_operator")
    assert orders(world.see(NodeReleased(launch.id)).plan()) == [f"undrain {launch.id}"]


def test_a_held_node_that_drains_does_not_count_as_one_that_goes() -> None:
    """Above ``nodes_max`` another node must be retired instead."""
    world = hold(a_world(nodes_max=1).draining_node().idle_node("cloud2"))
    assert world.why("cloud2") == "above_nodes_max"


def test_it_is_too_late_to_hold_what_is_being_stopped() -> None:
    world = hold(a_world().stopping_node())
    assert world.why("cloud1") != "held_by_operator"


def test_somebody_else_s_drain_serves_a_hold_and_outlives_it() -> None:
    rank = drained(a_rank("cloud1", online=True), "bad fan")
    world = hold(a_world().node("cloud1", NodeState.IDLE, rank=rank))
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_operator")
    released = world.see(NodeReleased(world.id("cloud1")))
    assert (orders(released.plan()), released.why("cloud1")) == ([], "held_by_drain")


def test_a_released_node_is_undrained() -> None:
    world = hold(a_world().busy_node())
    world = cordoned(world, hold_text(world.id("cloud1")))
    world = world.see(NodeReleased(world.id("cloud1")))
    assert orders(world.plan()) == [f"undrain {world.id('cloud1')}"]


def test_a_released_node_is_counted_on_before_it_is_undrained() -> None:
    world = hold(a_world().idle_node())
    world = cordoned(world, hold_text(world.id("cloud1"))).see(NodeReleased(world.id("cloud1")))
    world.job(tasks(1))
    assert orders(world.plan()) == [f"undrain {world.id('cloud1')}"]
    assert [reason.code for reason in world.plan().jobs.values()] == ["node_kept_for_it"]


# --- to be retired ----------------------------------------------------------------------------------------


def test_an_idle_node_is_retired_at_once_though_it_is_paid_for() -> None:
    world = retire(a_world().idle_node(hour_ends_in_s=3000))
    assert orders(world.plan()) == [f"drain {world.id('cloud1')}"]
    assert world.why("cloud1") == "retired_by_operator"


def test_a_busy_node_takes_no_more_work_and_goes_when_its_job_has_ended() -> None:
    world = retire(a_world().busy_node())
    node = world.id("cloud1")
    assert orders(world.plan()) == [f"cordon {node} {drain_text(node)}"]
    world = cordoned(world, drain_text(node))
    assert (orders(world.plan()), world["cloud1"].state) == ([], NodeState.BUSY)
    world = world.wait(60).see_ranks(drained(a_rank("cloud1", online=True), drain_text(node)))
    assert world["cloud1"].state is NodeState.DRAINING
    assert orders(world.decide()) == [f"drain {node}"]
    world = world.wait(0.1).see_drained("cloud1")
    assert orders(world.plan()) == [f"stop-broker {node}"]


def test_a_node_to_be_retired_is_not_kept_for_a_job_that_waits() -> None:
    world = a_world().draining_node()
    world = retire(world).job(whole_nodes(1))
    made = world.plan()
    assert f"stop-broker {world.id('cloud1')}" in orders(made)
    assert boots(made) == ["cloud2"]


def test_retiring_a_held_node_undoes_the_hold_s_drain_first() -> None:
    world = hold(a_world().idle_node())
    world = retire(cordoned(world, hold_text(world.id("cloud1"))))
    assert orders(world.plan()) == [f"undrain {world.id('cloud1')}"]


def test_somebody_else_s_drain_keeps_a_node_from_being_retired() -> None:
    rank = drained(a_rank("cloud1", online=True), "bad fan")
    world = retire(a_world().node("cloud1", NodeState.IDLE, rank=rank))
    assert (orders(world.plan()), world.why("cloud1")) == ([], "held_by_drain")


def test_a_retirement_that_is_released_is_undone_while_it_drains() -> None:
    world = retire(a_world().idle_node())
    world.decide()
    world = world.wait(0.1).see_drained("cloud1").see(NodeReleased(world.id("cloud1")))
    assert orders(world.plan()) == [f"undrain {world.id('cloud1')}"]


def test_a_booting_node_that_is_retired_goes_without_waiting_for_it() -> None:
    world = retire(a_world().booting_node())
    assert orders(world.plan()) == [f"drain {world.id('cloud1')}"]


# --- paused -----------------------------------------------------------------------------------------------


def test_while_paused_nothing_is_decided_and_everything_is_still_asked() -> None:
    world = a_world().job(whole_nodes(1)).idle_node(hour_ends_in_s=10).see(DecisionsPaused(ADA)).wait(30)
    made = world.plan()
    assert (made.actions, made.stands_still and made.stands_still.code) == ((), "paused")
    assert len(made.asks) >= 2
    assert world.see(DecisionsResumed()).plan().stands_still is None


def test_pausing_twice_keeps_who_did_it_first() -> None:
    world = a_world().see(DecisionsPaused(ADA), DecisionsPaused(Mark("grace", WALL_AT + 1)))
    assert world.snapshot.operator.steering.paused == ADA


# --- until a time -----------------------------------------------------------------------------------------

FOR_A_MINUTE = Mark("ada", WALL_AT, "its disk", WALL_AT + 60)


def test_a_hold_lapses_at_its_end_and_the_manager_wakes_for_it() -> None:
    world = a_world().idle_node(hour_ends_in_s=3000)
    world.see(HoldPlaced(world.id("cloud1"), FOR_A_MINUTE))
    reason = world.plan().nodes[world.id("cloud1")]
    assert (reason.figures["why"], reason.figures["until_at"]) == ("its disk", WALL_AT + 60)
    world = cordoned(world, hold_text(world.id("cloud1")))
    world.see(SteeringKept(world.snapshot.operator.steering))
    assert world.brain.decide().next_at_s <= NOW_S + 60
    world.wait(NOW_S + 59.5 - world.snapshot.now_s).all_is_fresh()
    assert world.why("cloud1") == "held_by_operator"
    world.wait(1).all_is_fresh()
    assert orders(world.plan()) == [f"undrain {world.id('cloud1')}"]
    assert KeepSteering(Steering()) in world.decide().asks, "the record loses it too"


def test_a_pause_a_retirement_and_a_replacement_lapse_each_by_itself() -> None:
    world = a_world().node("cloud1", NodeState.BUSY).node("cloud2", NodeState.BUSY)
    first, second = world.id("cloud1"), world.id("cloud2")
    later = replace(FOR_A_MINUTE, until_at=WALL_AT + 120)
    world.see(RetirementRequested(first, FOR_A_MINUTE), ReplacementsRequested((second,), later))
    world.see(DecisionsPaused(FOR_A_MINUTE), HoldPlaced(second, ADA), ReplacementsRequested((second,), later))
    assert world.snapshot.operator.steering.lapses_at == WALL_AT + 60
    steering = world.wait(60).snapshot.operator.steering
    assert (steering.retirements, steering.paused) == ({}, None)
    assert steering.replacements == {second: later}
    steering = world.wait(60).snapshot.operator.steering
    assert steering == Steering(holds={second: ADA}), "a hold without an end lasts"


def test_a_later_word_with_another_end_counts() -> None:
    world = hold(a_world().idle_node())
    world.see(HoldPlaced(world.id("cloud1"), FOR_A_MINUTE))
    assert world.snapshot.operator.steering.holds == {world.id("cloud1"): FOR_A_MINUTE}
    hold(world)
    assert world.snapshot.operator.steering.holds == {world.id("cloud1"): ADA}


# --- on record --------------------------------------------------------------------------------------------


def test_what_is_set_goes_on_record_until_it_is_there() -> None:
    world = hold(a_world().idle_node())
    steering = world.snapshot.operator.steering
    assert KeepSteering(steering) in world.decide().asks
    assert KeepSteering(steering) not in world.plan().asks, "one call at a time"
    world.see(SteeringNotKept("away"))
    assert KeepSteering(steering) not in world.plan().asks, "not at once again"
    assert KeepSteering(steering) in world.wait(2).decide().asks
    world.see(SteeringKept(steering))
    assert not any(isinstance(ask, KeepSteering) for ask in world.wait(5).plan().asks)


def test_a_change_while_the_record_is_written_is_written_next() -> None:
    world = hold(a_world().idle_node().idle_node("cloud2"))
    world.decide()
    first = world.snapshot.operator.steering
    hold(world, "cloud2").see(SteeringKept(first))
    assert KeepSteering(world.snapshot.operator.steering) in world.plan().asks


def test_42_holds_and_the_pause_survive_a_restart() -> None:
    before = a_node("cloud1")
    on_record = Steering({before.id: ADA, LaunchId("long-gone"): ADA}, paused=ADA)
    world = a_world().see(ClaimHeld(NOW_S, (before.launch,), on_record))
    assert world.snapshot.operator.steering == Steering({before.id: ADA}, paused=ADA)
    assert any(isinstance(ask, KeepSteering) for ask in world.plan().asks), "what is gone leaves the record"


def test_what_was_set_and_is_not_yet_on_record_is_not_lost_by_reading_it() -> None:
    world = hold(a_world().idle_node())
    launch = world["cloud1"].launch
    world.see(ClaimHeld(NOW_S, (launch,), Steering()))
    assert world.snapshot.operator.steering.holds == {launch.id: ADA}


def test_a_hold_ends_with_its_node() -> None:
    world = hold(a_world().idle_node())
    node = world["cloud1"]
    gone = replace(node, state=NodeState.GONE)
    world = world.but(nodes={gone.id: gone}).see(LeaseEnded(node.id))
    assert world.snapshot.operator.steering == Steering()


def test_nobody_holds_a_node_that_is_no_more() -> None:
    world = a_world().see(HoldPlaced(LaunchId("cloud9-1"), ADA), RetirementRequested(LaunchId("cloud9-1"), ADA))
    assert world.snapshot.operator.steering == Steering()


def test_a_busy_node_that_is_held_is_seen_to_though_busy_nodes_need_no_decision() -> None:
    world = hold(a_world().node("cloud1", NodeState.BUSY, rank=busy(a_rank("cloud1"))))
    assert orders(world.plan())[0].startswith("cordon")
