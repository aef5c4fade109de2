"""Nodes that join by ticket: the roster, and their reports."""

from __future__ import annotations

import pytest

from nodemanager.core.facts import NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId, NodeState
from nodemanager.planner.snapshot import roster
from tests.builders import NOW_S, World, a_rank, a_world, busy, nodes, orders, tasks


def report(world: World, slot: str, phase: JoinPhase, detail: str = "") -> World:
    return world.see(NodeReported(world.id(slot), phase, detail, 0.0))


# --- the roster -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", NodeState)
def test_who_has_still_to_join_may_redeem_and_who_is_stopped_may_not_start(state: NodeState) -> None:
    world = a_world().node("cloud1", state)
    entries = roster(world.snapshot, world.policy)
    if state is NodeState.GONE:
        assert entries == ()
        return
    (entry,) = entries
    joining = state in (NodeState.REQUESTED, NodeState.BOOTING)
    until_at = world["cloud1"].launch.requested_at + world.policy.timing.boot_timeout_s
    assert entry.redeemable_until_at == (until_at if joining else 0.0)
    assert entry.may_start is (state is not NodeState.STOPPING)


def test_a_lease_that_is_not_on_record_yet_is_nobodys() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, recorded=False)
    assert roster(world.snapshot, world.policy) == ()


# --- reports ----------------------------------------------------------------------------------------------


def test_a_node_that_cannot_join_is_given_up_at_once_and_its_own_words_are_the_reason() -> None:
    world = a_world().booting_node(since_s=NOW_S, requested_s=NOW_S)
    assert world.why("cloud1") == "booting"
    report(world, "cloud1", JoinPhase.FAILED, "this node's image has flux-core 0.87.0")
    reason = world.plan().nodes[world.id("cloud1")]
    assert (reason.code, reason.figures["detail"]) == ("join_failed", "this node's image has flux-core 0.87.0")
    assert orders(world.decide()) == [f"drain {world.id('cloud1')}"]


def test_one_that_never_joined_is_given_up_with_the_last_that_it_said() -> None:
    world = a_world(boot_timeout_s=500.0).booting_node()
    report(world, "cloud1", JoinPhase.ENDED, "the broker ended with status 1")
    reason = world.plan().nodes[world.id("cloud1")]
    assert reason.code == "never_joined"
    assert reason.figures["phase"] == "ended"
    assert reason.figures["detail"] == "the broker ended with status 1"


def test_a_node_that_is_up_is_not_given_up_for_what_it_said_before() -> None:
    world = report(a_world().idle_node(), "cloud1", JoinPhase.FAILED)
    assert world.why("cloud1") == "paid_time_left"


def test_news_of_a_launch_that_is_no_more_is_old_news() -> None:
    world = a_world().idle_node()
    before = world.snapshot
    assert world.see(NodeReported(LaunchId("cloud9-9"), JoinPhase.FAILED, "", 0.0)).snapshot == before


# --- a ticket shown by two --------------------------------------------------------------------------------


def test_a_replay_is_told_and_changes_nothing_unless_the_site_wants_it() -> None:
    world = report(a_world().idle_node(), "cloud1", JoinPhase.REPLAYED)
    assert world.why("cloud1") == "paid_time_left"


@pytest.mark.parametrize("state", [NodeState.BOOTING, NodeState.IDLE, NodeState.LOST])
def test_it_goes_where_the_site_wants_it(state: NodeState) -> None:
    world = a_world(destroy_on_replay=True).node("cloud1", state, since_s=NOW_S, requested_s=NOW_S)
    report(world, "cloud1", JoinPhase.REPLAYED)
    assert world.why("cloud1") == "ticket_replayed"
    assert orders(world.decide()) == [f"drain {world.id('cloud1')}"]


def test_a_job_that_runs_there_runs_to_its_end() -> None:
    world = report(a_world(destroy_on_replay=True).busy_node(), "cloud1", JoinPhase.REPLAYED)
    assert world.why("cloud1") == "busy"
    world.see_ranks(a_rank("cloud1", online=True))
    assert world.why("cloud1") == "ticket_replayed"


def test_a_job_that_slipped_in_before_the_drain_runs_to_its_end_too() -> None:
    world = report(a_world(destroy_on_replay=True).idle_node(), "cloud1", JoinPhase.REPLAYED)
    world.decide()
    world.see_drained("cloud1", busy(world.rank_now("cloud1")))
    assert orders(world.decide()) == [f"undrain {world.id('cloud1')}"]


def test_it_is_not_kept_for_jobs_that_wait() -> None:
    world = report(a_world(destroy_on_replay=True).draining_node(), "cloud1", JoinPhase.REPLAYED)
    world.job(tasks(1), nodes(1))
    assert not [order for order in orders(world.plan()) if order.startswith("undrain")]


def test_a_drain_of_somebody_elses_is_a_hold_all_the_same() -> None:
    held = a_rank("cloud1", online=True, drain_reason="bad fan")
    world = report(a_world(destroy_on_replay=True).idle_node(rank=held), "cloud1", JoinPhase.REPLAYED)
    assert world.why("cloud1") == "held_by_drain"
