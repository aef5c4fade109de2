"""Mistakes of earlier node managers and autoscalers. The numbers are stable names, grouped by subject.

Demand and choice 1-9, bounds 10-13, boot 14-25, pairing 26-31, stop 32-43, data 44-48. Missing numbers concern
other packages, such as an adapter or the actors, and are tested there.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    BrokerStopped,
    CloudCallFailed,
    FluxCallFailed,
    LaunchesRecorded,
    LeaseEnded,
    NodeCreated,
    NodeDestroyed,
    NodeUndrained,
    QueueProbed,
    QueueSeen,
    RanksChanged,
)
from nodemanager.core.jobs import JobId, JobState, QueuePolicy, UnreadableJob
from nodemanager.core.nodes import (
    CallKind,
    CloudNode,
    CloudState,
    FailureKind,
    FluxRank,
    Identity,
    LaunchId,
    NodeState,
    ProviderId,
)
from nodemanager.core.orders import BootNode, ClaimInstance, DestroyNode, ListCloud, LookAtRanks
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.planner.snapshot import Block, Scope, Source
from tests.builders import (
    CLOUD,
    CLUSTER_UUID,
    GPU,
    GPU_FOR_ALL,
    NOW_S,
    World,
    a_call,
    a_cloud_node,
    a_job,
    a_launch,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    a_world,
    boots,
    busy,
    changed,
    drained,
    orders,
    tasks,
    whole_nodes,
)

LAUNCH = a_launch("cloud1")
OURS = drain_text(LAUNCH.id)
UP = a_rank("cloud1", online=True)
AWAY = a_rank("cloud1")


# --- demand and choice ------------------------------------------------------------------------------------


def test_01_a_job_that_an_idle_larger_node_serves_buys_nothing() -> None:
    world = a_world().idle_node("gpu1", hour_ends_in_s=5).job(tasks(1))
    assert orders(world.plan()) == []
    assert world.why("gpu1") == "wanted"
    assert world.why_job(1).figures["nodes"] == ("gpu1",)


def test_02_a_job_seen_as_pending_and_as_just_begun_counts_once() -> None:
    """The ranks show its start a moment before the queue does: nothing is bought in between."""
    world = a_world().idle_node("cloud1").job(whole_nodes(1)).wait(0.05).see_ranks(busy(UP))
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "settling"
    world.wait(0.05).see_queue(a_job(1, state=JobState.RUN)).wait(0.2)
    assert boots(world.plan()) == []


def test_02_nothing_is_bought_between_a_stir_and_the_look_that_it_calls_for() -> None:
    world = a_world().job(whole_nodes(1)).see(RanksChanged()).wait(1)
    assert boots(world.plan()) == []
    assert LookAtRanks() in world.plan().asks
    assert boots(world.see_ranks().wait(0.2).plan()) == ["cloud1"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"urgency": 0}, "held"),
        ({"priority": 0}, "held"),
        ({"state": JobState.DEPEND}, "dependency"),  # a begin-time is one of these
        ({"state": JobState.PRIORITY}, "not_yet_scheduled"),
        ({"queue": "debug"}, "queue_stopped"),
    ],
)
def test_03_a_job_that_pends_for_another_reason_than_shortage_buys_nothing(
    changes: dict[str, Any], code: str
) -> None:
    world = a_world().but(stopped=frozenset({"debug"})).job(whole_nodes(1), **changes)
    assert boots(world.plan()) == []
    assert world.why_job(1).code == code


def test_03_resources_drained_by_others_are_no_slots_to_buy() -> None:
    world = a_world(a_type("cloud", slots=1)).rank("cloud1", drain_reason="broken fan").job(whole_nodes(1))
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "no_free_slot"


def test_04_an_unsatisfiable_job_is_told_what_the_nearest_type_lacks_and_others_go_on() -> None:
    world = a_world(queue_policy=QueuePolicy.BACKFILL).job(tasks(1, cores=64), tasks(1))
    assert world.why_job(1).code == "no_type_fits"
    assert world.why_job(1).figures["nearest"] == "gpu"
    assert boots(world.plan()) == ["cloud1"]
    # In queue order they go on as soon as Flux has ended it. While it keeps the job, it starts none behind it.
    in_order = a_world().see(
        QueueSeen(NOW_S - 5, (a_job(1, tasks(1, cores=64)), a_job(2, tasks(1))), complete=True)
    )
    assert boots(in_order.wait(2).plan()) == []
    in_order.see(QueueSeen(in_order.snapshot.now_s, ended=(JobId(1),)))
    assert boots(in_order.wait(2).plan()) == ["cloud1"]


def test_05_a_malformed_job_is_said_and_harms_no_other() -> None:
    malformed = UnreadableJob(JobId(2), "resources: not a list")
    world = a_world().see(QueueSeen(NOW_S - 5, (a_job(1, tasks(1)),), (malformed,), complete=True))
    made = world.wait(2).plan()
    assert boots(made) == ["cloud1"]
    assert made.jobs[JobId(2)].figures["why"] == "resources: not a list"


def test_06_a_job_served_by_a_node_that_boots_buys_nothing_more_across_a_restart_too() -> None:
    world = a_world().job(whole_nodes(1))
    assert boots(world.decide()) == ["cloud1"]
    launch = world["cloud1"].launch
    assert boots(world.wait(2).decide()) == []

    restarted = a_world().job(whole_nodes(1)).but(claimed=False).see_claim(launch)
    assert boots(restarted.decide()) == []
    restarted.see_cloud(a_cloud_node(launch, state=CloudState.PENDING))
    assert boots(restarted.decide()) == []
    assert restarted.why_job(1).figures["nodes"] == ("cloud1",)


def test_07_gang_of_k_with_room_for_fewer_buys_nothing_and_says_why() -> None:
    world = a_world(nodes_max=3).busy_node("cloud1").job(whole_nodes(3))
    assert boots(world.plan()) == []
    reason = world.why_job(1)
    assert reason.code == "nodes_max"
    assert reason.figures["nodes_max"] == 3
    assert reason.figures["short"] == 1


def test_07_gang_larger_than_the_limit_neither_buys_nor_drains_for_its_sake() -> None:
    world = a_world(nodes_max=3).job(whole_nodes(4), tasks(1)).idle_node("cloud1")
    assert orders(world.plan()) == []
    assert world.why_job(1).code == "beyond_limits"
    assert world.why_job(2).code == "behind_a_stuck_job"


def test_07_a_scheduler_that_fills_gaps_gets_nodes_for_those_behind() -> None:
    world = a_world(nodes_max=3, queue_policy=QueuePolicy.BACKFILL).job(whole_nodes(4), tasks(1))
    assert boots(world.plan()) == ["cloud1"]


def test_08_a_partly_used_node_with_room_is_used_before_a_boot() -> None:
    world = a_world().busy_node("cloud1", cores_free=2).job(tasks(2))
    assert boots(world.plan()) == []
    assert world.why_job(1).figures["nodes"] == ("cloud1",)


def test_09_at_max_with_idle_nodes_and_waiting_jobs_the_idle_nodes_are_kept() -> None:
    world = a_world(nodes_max=2).job(whole_nodes(2))
    world.idle_node("cloud1", hour_ends_in_s=5).idle_node("cloud2", hour_ends_in_s=5)
    assert orders(world.plan()) == []
    assert world.why("cloud1") == world.why("cloud2") == "wanted"


# --- bounds -----------------------------------------------------------------------------------------------


def test_10_above_max_after_a_change_idle_nodes_go_first_and_no_more_than_the_surplus() -> None:
    world = a_world(nodes_max=2).busy_node("cloud1")
    for slot in ("cloud2", "cloud3", "cloud4"):
        world.idle_node(slot)
    assert orders(world.decide()) == ["drain cloud2-1", "drain cloud3-1"]
    world.wait(1)
    for slot in ("cloud2", "cloud3"):
        world.see_drained(slot)
    assert orders(world.decide()) == ["stop-broker cloud2-1", "stop-broker cloud3-1"]
    assert world.why("cloud4") == "paid_time_left"


def test_10_far_above_max_a_job_meets_the_limit_not_a_negative_number() -> None:
    world = a_world(nodes_max=1, price_per_hour_max=Decimal(1)).job(tasks(1))
    world.busy_node("cloud1").busy_node("cloud2")
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "nodes_max"


def test_11_nodes_min_counts_what_is_usable_or_coming_and_nothing_else() -> None:
    world = a_world(nodes_min=1)
    for state in (NodeState.DRAINING, NodeState.STOPPING, NodeState.GONE):
        world.node("cloud1", state)
        assert boots(world.plan()) == ["cloud2"]
    for state in (NodeState.IDLE, NodeState.BUSY, NodeState.BOOTING, NodeState.REQUESTED):
        world.node("cloud1", state)
        assert boots(world.plan()) == []


def test_12_the_price_cap_is_exact_with_dead_unknown_and_free_nodes() -> None:
    free, dime = a_type("free", slots=2, price="0"), a_type("dime", price="0.10")
    world = a_world(free, dime, price_per_hour_max=Decimal("0.30"), nodes_max=20)
    world.node("dime1", NodeState.GONE)
    retired = replace(a_launch("dime2", world.policy), type_name=TypeName("retired"), tariff=None)  # unknown
    world.busy_node("dime2", launch=retired)
    world.job(*[whole_nodes(1)] * 6)
    made = world.plan()
    assert boots(made) == ["free1", "free2", "dime3", "dime4"]
    assert made.price_per_hour == 0
    assert made.jobs[JobId(5)].code == "node_coming"  # dime1, as soon as its lease is ended
    assert made.jobs[JobId(6)].code == "no_free_slot"


def test_a_dearer_type_is_not_bought_while_the_lease_of_a_cheap_slot_is_being_ended() -> None:
    cheap, dear = a_type("cheap", slots=1, price="0.10"), a_type("dear", slots=1, price="2")
    world = a_world(cheap, dear).job(whole_nodes(1))
    world.node("cheap1", NodeState.GONE)
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "node_coming"


def test_13_the_last_slot_goes_to_the_job_of_the_highest_priority_whatever_its_type() -> None:
    world = a_world(nodes_max=2)
    world.job(whole_nodes(1), priority=20).job(whole_nodes(1)).job(tasks(1, gpus=1), priority=18)
    assert boots(world.plan()) == ["cloud1", "gpu1"]
    assert world.why_job(2).code == "nodes_max"


# --- boot -------------------------------------------------------------------------------------------------


def _requested(world: World) -> World:
    """A node whose lease is on record and whose create was sent."""
    (boot,) = (action for action in world.decide().actions if isinstance(action, BootNode))
    world.see(LaunchesRecorded((boot.launch,)))
    assert orders(world.decide()) == [f"create {boot.launch.id}"]
    return world


@pytest.mark.parametrize("lag", range(4))
@pytest.mark.parametrize("lost", ["before", "after", "never answered"])
def test_14_a_lost_reply_to_a_create_never_makes_a_second_node(lost: str, lag: int) -> None:
    world = _requested(a_world().job(whole_nodes(1)))
    launch = world["cloud1"].launch
    if lost == "never answered":
        world.wait(61)
    else:
        world.see(CloudCallFailed("create", launch.id, FailureKind.AMBIGUOUS, "connection reset"))
    for _ in range(lag):
        assert orders(world.wait(10).all_is_fresh().decide()) == []
    if lost == "before":
        for _ in range(13):
            world.wait(10).see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud()
        assert world["cloud1"].state is NodeState.GONE
        assert orders(world.decide()) == [f"end-lease {launch.id}", "boot cloud2"]
    else:
        world.wait(10).see_cloud(a_cloud_node(launch, state=CloudState.PENDING))
        assert world["cloud1"].state is NodeState.BOOTING
        assert orders(world.decide()) == []


def test_17_a_node_that_never_joins_is_stopped_after_the_boot_timeout_and_its_job_gets_another() -> None:
    world = a_world().booting_node("cloud1", requested_s=NOW_S - 890, since_s=NOW_S - 800).job(whole_nodes(1))
    assert orders(world.plan()) == []
    assert world.why_job(1).code == "node_coming"
    made = world.wait(10).see(QueueProbed(NOW_S + 10)).decide()
    assert orders(made) == ["drain cloud1-1", "boot cloud2"]
    assert made.nodes[LAUNCH.id].code == "never_joined"
    world.see_drained("cloud1", drained(AWAY, OURS))
    assert "destroy i-cloud1-1" in orders(world.decide())


def test_17_a_node_that_joined_is_awaited_while_the_scheduler_has_not_noticed_but_not_for_ever() -> None:
    unnoticed = a_rank("cloud1", online=True, schedulable=False, cores_free=0)
    world = a_world().idle_node("cloud1", rank=unnoticed, since_s=NOW_S - 1).job(whole_nodes(1))
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "node_coming"
    late = a_world().idle_node("cloud1", rank=unnoticed, since_s=NOW_S - 121).job(whole_nodes(1))
    assert boots(late.plan()) == ["cloud2"]


def test_19_a_type_without_capacity_gives_way_to_the_next_and_is_tried_again_later() -> None:
    world = _requested(a_world(CLOUD, GPU_FOR_ALL).job(tasks(1)))
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.CAPACITY, "none here"))
    assert boots(world.decide()) == ["gpu1"]
    fresh = a_world().but(blocks=world.snapshot.learned.blocks).job(tasks(1))
    assert boots(fresh.wait(121).all_is_fresh().plan()) == ["cloud1"]


def test_19_leases_that_wait_behind_a_type_without_capacity_are_given_back() -> None:
    world = a_world(creates_burst=1).job(whole_nodes(2))
    world.decide()
    for slot in ("cloud1", "cloud2"):
        world.see(LaunchesRecorded((world[slot].launch,)))
    world.decide()
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.CAPACITY, "none here"))
    made = orders(world.wait(1).decide())
    assert sorted(made[:2]) == [f"end-lease {world.id('cloud1')}", f"end-lease {world.id('cloud2')}"]


@pytest.mark.parametrize("lost", ["answer", "deadline"])
def test_19_a_lease_that_may_have_ended_is_recorded_before_the_node_is_made(lost: str) -> None:
    """The lease was to end, the answer was lost, and then the type is available again."""
    block = Block(NOW_S + 5, FailureKind.CAPACITY, "none")
    world = a_world().node("cloud1", NodeState.REQUESTED).but(blocks={Scope(TypeName("cloud")): block})
    world.job(whole_nodes(1))
    assert "end-lease cloud1-1" in orders(world.decide())
    if lost == "answer":
        world.see(FluxCallFailed((world.id("cloud1"),), "EndLease", "no answer"))
    world.wait(70).wait(5).all_is_fresh()
    assert orders(world.decide()) == ["record cloud1-1"]


def test_22_creates_that_wait_keep_to_what_the_provider_said_of_retrying() -> None:
    world = a_world(creates_burst=1, creates_per_s=10).job(whole_nodes(2))
    world.decide()
    world.see(LaunchesRecorded((world["cloud1"].launch, world["cloud2"].launch)))
    world.decide()
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.THROTTLED, "slower", 30.0))
    world.decide()
    assert orders(world.wait(29).all_is_fresh().decide()) == []
    assert world.why("cloud2") == "blocked_create_throttled"
    assert f"create {world.id('cloud2')}" in orders(world.wait(2).plan())


def test_25_the_lease_of_a_refused_boot_is_free_again_at_once() -> None:
    world = _requested(a_world(a_type("cloud", slots=1)).job(whole_nodes(1)))
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.TRANSIENT, "internal error"))
    assert orders(world.decide()) == [f"end-lease {world.id('cloud1')}"]
    world.see(LeaseEnded(world.id("cloud1")))
    assert boots(world.wait(11).plan()) == ["cloud1"]


# --- pairing ----------------------------------------------------------------------------------------------


def _stray(slot: str = "cloud1", *, number: int = 7, provider_id: str = "i-7") -> CloudNode:
    return a_cloud_node(a_launch(slot, number=number), provider_id=provider_id)


def test_15_of_two_nodes_with_one_launch_one_is_kept_and_the_other_goes() -> None:
    twin = a_cloud_node(LAUNCH, provider_id="twin")
    world = a_world(orphan_grace_s=600).busy_node("cloud1").wait(1).see_cloud(a_cloud_node(LAUNCH), twin)
    for _ in range(10):
        assert orders(world.wait(60).see(QueueProbed(world.snapshot.now_s)).see_ranks().decide()) == []
        world.see_cloud(twin, a_cloud_node(LAUNCH))
    # Which of the two runs the job is unknown: neither is stopped before it ends.
    made = orders(world.wait(1).see_ranks(UP).plan())
    assert made == ["destroy twin"]


def test_16_a_node_that_dies_before_it_was_listed_is_replaced_once() -> None:
    world = _requested(a_world().job(whole_nodes(1)))
    launch = world["cloud1"].launch
    world.see(NodeCreated(launch.id, a_cloud_node(launch, state=CloudState.PENDING)))
    world.wait(10).see_cloud(a_cloud_node(launch, state=CloudState.TERMINATED, died_because="host failure"))
    assert orders(world.decide()) == [f"end-lease {launch.id}", "boot cloud2"]
    assert orders(world.wait(10).all_is_fresh().decide()) == []


def test_26_an_address_or_a_host_name_used_again_makes_no_pair() -> None:
    world = a_world().booting_node("cloud1", cloud=a_cloud_node(LAUNCH, addresses=("10.0.0.7",)))
    world.wait(1).see_cloud(a_cloud_node(a_launch("cloud1", number=9), provider_id="i-9", addresses=("10.0.0.7",)))
    assert world["cloud1"].cloud == a_cloud_node(LAUNCH, addresses=("10.0.0.7",))
    assert list(world.snapshot.account_of().strays) == ["i-9"]


@pytest.mark.parametrize("skew_s", [-600, 600])
def test_27_clocks_that_disagree_by_ten_minutes_still_pair(skew_s: float) -> None:
    world = _requested(a_world().job(whole_nodes(1)))
    launch = world["cloud1"].launch
    created = a_cloud_node(launch, created_at=launch.requested_at + skew_s)
    world.wait(5).see(NodeCreated(launch.id, created)).see_cloud(created)
    rank = a_rank("cloud1", online=True, last_job_ended_at=world.snapshot.wall_at + skew_s)
    world.wait(5).see_ranks(rank).wait(1).see_ranks()
    assert world["cloud1"].state is NodeState.IDLE
    assert world.why("cloud1") == "wanted"


def test_28_a_list_that_shows_a_node_twice_or_in_another_order_changes_nothing() -> None:
    one, other = a_cloud_node(LAUNCH), a_cloud_node(a_launch("cloud2"))
    world = a_world().busy_node("cloud1").busy_node("cloud2").wait(1).see_cloud(one, other)
    before = (world["cloud1"].cloud, world["cloud2"].cloud, world.snapshot.account_of().strays)
    world.wait(1).see_cloud(other, one, other, one)
    assert (world["cloud1"].cloud, world["cloud2"].cloud, world.snapshot.account_of().strays) == before


def test_29_a_foreign_node_is_counted_once_and_never_touched() -> None:
    foreign = CloudNode(ProviderId("i-foreign"), CloudState.RUNNING, None)
    namesake = replace(
        _stray(), identity=Identity("demo", "another-uuid", LaunchId("x"), SlotName("cloud2"), TypeName("cloud"))
    )
    world = a_world()
    for _ in range(15):
        world.wait(60).see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud(foreign, namesake)
        assert orders(world.decide()) == []
    assert world.snapshot.account_of().strangers == 1
    assert [node.provider_id for node in world.snapshot.account_of().intruders] == ["i-7"]


def test_30_a_node_that_the_provider_no_longer_shows_is_left_alone_while_flux_talks_to_it() -> None:
    world = a_world().busy_node("cloud1")
    for _ in range(9):
        world.wait(10).see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud()
        assert orders(world.decide()) == []
    assert world["cloud1"].state is NodeState.BUSY
    world.wait(10).see_cloud(a_cloud_node(LAUNCH))
    assert world["cloud1"].listing.absences == 0
    assert world["cloud1"].launch == LAUNCH


def test_31_a_node_whose_broker_is_lost_gets_its_window_and_is_replaced_once() -> None:
    world = a_world(rejoin_timeout_s=120).busy_node("cloud1").job(whole_nodes(1)).wait(1).see_ranks(AWAY)
    assert orders(world.decide()) == []  # it may return
    world.wait(60).all_is_fresh()
    assert orders(world.decide()) == []
    world.wait(60).all_is_fresh()
    assert orders(world.decide()) == ["drain cloud1-1", "boot cloud2"]
    assert boots(world.wait(1).decide()) == []


def test_31_a_lost_node_on_which_a_job_may_still_run_is_waited_for() -> None:
    world = a_world().busy_node("cloud1").wait(1).see_ranks(a_rank("cloud1", allocated=True))
    for _ in range(10):
        assert orders(world.wait(60).all_is_fresh().decide()) == []


# --- strays -----------------------------------------------------------------------------------------------


def test_a_node_of_ours_without_a_lease_gets_it_back_where_its_slot_is_free() -> None:
    world = a_world().job(whole_nodes(1)).see_cloud(_stray())
    assert orders(world.decide()) == ["record cloud1-7", "boot cloud2"]
    world.see(LaunchesRecorded((world["cloud1"].launch,)))
    world.wait(700).see(QueueProbed(world.snapshot.now_s)).see_ranks()
    world.but(cloud=Source(seen_s=world.snapshot.now_s))
    assert "destroy i-7" not in orders(world.decide())  # not listed again yet, but no longer an orphan
    world.wait(1).see_cloud(_stray())
    assert world["cloud1"].state is NodeState.BOOTING
    assert not world.snapshot.account_of().strays


def test_a_list_that_was_begun_before_the_claim_gives_no_stray_its_lease() -> None:
    """The manager before may have ended the node since, and its lease, and have counted what it cost."""
    world = a_world(CLOUD).see_cloud(_stray()).wait(5).see_claim()
    assert orders(world.decide()) == []
    world.wait(1).see_cloud(_stray())
    assert orders(world.decide()) == ["record cloud1-7"]


def test_a_stray_that_is_stopping_gets_no_lease() -> None:
    world = a_world(CLOUD).see_cloud(replace(_stray(), state=CloudState.STOPPING))
    assert orders(world.decide()) == []


@pytest.mark.parametrize(("claimed_after_s", "recorded"), [(-1.0, True), (0.0, True), (1.0, False)])
def test_only_a_list_begun_after_the_claim_gives_a_stray_its_lease_back(
    claimed_after_s: float, recorded: bool
) -> None:
    """On an earlier list, the node may have ended since, with its lease."""
    world = a_world(CLOUD).see_cloud(_stray())
    world.but(claimed_s=world.snapshot.now_s + claimed_after_s)
    assert orders(world.plan()) == (["record cloud1-7"] if recorded else [])


def test_a_stray_counts_against_the_limits_and_its_slot_is_taken() -> None:
    world = a_world(CLOUD, nodes_max=2, price_per_hour_max=Decimal("0.80")).see_cloud(_stray()).job(whole_nodes(2))
    made = world.plan()
    assert orders(made) == ["record cloud1-7"]
    assert made.price_per_hour == Decimal("0.40")
    assert made.jobs[JobId(1)].code == "nodes_max"


def test_a_stray_whose_slot_is_taken_is_destroyed_in_the_end_and_again_until_it_is_gone() -> None:
    world = a_world(orphan_grace_s=600, relist_s=60).idle_node("cloud1").see_cloud(a_cloud_node(LAUNCH), _stray())
    assert orders(world.wait(599).all_is_fresh().decide()) == []
    made = world.wait(1).decide()
    assert [action.launch for action in made.actions if isinstance(action, DestroyNode)] == [None]
    assert orders(world.wait(59).all_is_fresh().decide()) == []
    assert orders(world.wait(1).decide()) == ["destroy i-7"]


def _a_stray_of_a_type_that_is_no_more(**rank: Any) -> World:
    """Its type and slot were removed from the site, its lease is lost, its grace is over, and its broker is up."""
    up = replace(a_rank("cloud1", online=True), rank=Rank(9), host=SlotName("old1"), **rank)
    policy = a_policy(orphan_grace_s=600)
    launch = replace(LAUNCH, id=LaunchId("old1-1"), slot=SlotName("old1"), rank=up.rank, type_name=TypeName("old"))
    world = World(policy, a_snapshot(policy, ranks=[up])).see_cloud(a_cloud_node(launch, provider_id="i-9"))
    return world.wait(600).all_is_fresh()


def test_a_stray_that_takes_jobs_is_drained_and_looked_at_again_before_it_is_destroyed() -> None:
    world = _a_stray_of_a_type_that_is_no_more()
    assert orders(world.decide()) == ["cordon old1-1 flux-node-manager:old1-1"]
    assert orders(world.wait(1).decide()) == []  # no look since
    seen = world.snapshot.ranks[Rank(9)]
    begun = replace(drained(seen, "flux-node-manager:old1-1"), allocated=True)
    assert (
        orders(world.wait(world.policy.timing.probe_s).see_ranks(begun).all_is_fresh().decide()) == []
    )  # a job slipped in
    world.wait(1).see_ranks(drained(seen, "flux-node-manager:old1-1"))
    assert orders(world.decide()) == ["destroy i-9"]


def test_a_stray_that_an_admin_drained_is_left_to_the_admin() -> None:
    world = _a_stray_of_a_type_that_is_no_more(schedulable=False, drain_reason="do not touch")
    assert orders(world.decide()) == []


# --- stop -------------------------------------------------------------------------------------------------


def test_32_a_node_that_is_idle_for_one_look_between_jobs_is_kept() -> None:
    world = a_world().busy_node("cloud1", billed_from_s=NOW_S - 3590)
    assert orders(world.wait(1).see_ranks(UP).decide()) == []
    assert world.why("cloud1") == "idle_unconfirmed"
    assert orders(world.wait(1).see_ranks(busy(UP)).decide()) == []
    assert orders(world.wait(1).see_ranks(UP).decide()) == []
    assert orders(world.wait(1).see_ranks(UP).decide()) == ["drain cloud1-1"]


def test_33_a_job_that_starts_before_the_drain_is_answered_keeps_its_node() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    assert orders(world.decide()) == ["drain cloud1-1"]
    world.wait(1).see_drained("cloud1", drained(busy(UP), OURS))
    assert orders(world.decide()) == ["undrain cloud1-1"]
    assert world.why("cloud1") == "call_in_flight"
    world.see(NodeUndrained(LAUNCH.id)).wait(1).see_ranks(busy(UP))
    assert world["cloud1"].state is NodeState.BUSY
    assert orders(world.decide()) == []


def test_33_a_job_that_is_there_when_the_broker_was_to_be_stopped_keeps_its_node() -> None:
    """Somebody undrained it in between, so that a job could start."""
    world = a_world().stopping_node("cloud1").wait(1).see_ranks(busy(UP))
    assert orders(world.decide()) == []
    assert world.why("cloud1") == "job_slipped_in"


@pytest.mark.parametrize("loss", ["refused", "lost"])
def test_34_without_an_answer_to_the_drain_nothing_is_destroyed(loss: str) -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    world.decide()
    for _ in range(6):
        if loss == "refused":
            world.see(FluxCallFailed((LAUNCH.id,), "DrainNode", "no"))
        world.wait(65).wait(60).all_is_fresh()
        assert orders(world.decide()) == ["drain cloud1-1"]


def test_35_a_node_in_housekeeping_is_not_idle() -> None:
    """Flux keeps it allocated, without a job: it may be released in parts."""
    world = a_world().busy_node("cloud1", billed_from_s=NOW_S - 3590).wait(1)
    world.see_ranks(busy(UP, cores_free=3)).wait(1).see_ranks(busy(UP, cores_free=4))
    assert world["cloud1"].state is NodeState.BUSY
    assert orders(world.decide()) == []


def test_36_a_node_that_stays_listed_is_destroyed_again_each_time() -> None:
    world = a_world(relist_s=60).stopping_node("cloud1", rank=AWAY)
    for _ in range(4):
        assert orders(world.decide()) == ["destroy i-cloud1-1"]
        world.see(NodeDestroyed(LAUNCH.id, ProviderId("i-cloud1-1")))
        assert orders(world.wait(59).all_is_fresh().decide()) == []
        world.wait(1)


@pytest.mark.parametrize("gone", ["shown terminated", "not shown"])
def test_37_a_destroy_that_timed_out_and_did_it_is_a_success(gone: str) -> None:
    world = a_world().stopping_node("cloud1", rank=AWAY)
    world.decide()
    world.wait(61)
    for _ in range(3):
        listed = [a_cloud_node(LAUNCH, state=CloudState.TERMINATED)] if gone == "shown terminated" else []
        world.wait(10).see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud(*listed)
    assert orders(world.decide()) == ["end-lease cloud1-1"]
    assert not world.see(LeaseEnded(LAUNCH.id)).has("cloud1")


def test_38_when_demand_returns_during_a_drain_the_node_is_undrained_and_nothing_is_bought() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    assert orders(world.decide()) == ["drain cloud1-1"]
    world.wait(1).see_drained("cloud1").see_queue(a_job(1, whole_nodes(1)))
    assert orders(world.decide()) == ["undrain cloud1-1"]
    assert world.why_job(1).code == "node_kept_for_it"
    world.wait(2)
    assert orders(world.decide()) == []
    world.see(NodeUndrained(LAUNCH.id)).wait(0.2)
    assert orders(world.decide()) == []  # Flux has not been looked at since, and shows it drained
    world.wait(0.2).see_ranks(UP).wait(2)
    assert orders(world.decide()) == []
    assert world.why("cloud1") == "wanted"


def test_38_an_undrain_that_was_not_answered_makes_the_second_look_void() -> None:
    """It may have worked, and a job may have started: nothing is stopped without a new drain."""
    world = a_world().draining_node("cloud1").job(whole_nodes(1))
    assert orders(world.decide()) == ["undrain cloud1-1"]
    world.wait(65).see(QueueSeen(world.snapshot.now_s, ended=(JobId(1),))).wait(1)
    assert orders(world.decide()) == ["drain cloud1-1"]


def test_39_a_window_that_opens_between_two_looks_is_not_missed() -> None:
    world = a_world(stop_lead_s=60).idle_node("cloud1", hour_ends_in_s=61)
    assert orders(world.plan()) == []
    assert orders(world.wait(1).plan()) == ["drain cloud1-1"]


def test_39_a_drain_that_outlasts_the_window_is_carried_through() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    world.decide()
    world.wait(20).see_drained("cloud1")
    assert orders(world.decide()) == ["stop-broker cloud1-1"]
    world.see(BrokerStopped(LAUNCH.id)).wait(6).all_is_fresh()
    assert orders(world.decide()) == ["destroy i-cloud1-1"]


def test_39_per_second_billing_waits_for_the_idle_timeout() -> None:
    by_the_second = a_type("cloud", window_s=1, minimum_s=60)
    world = a_world(by_the_second, idle_timeout_s=300).node("cloud1", NodeState.IDLE, idle_since_s=NOW_S - 299)
    assert world.why("cloud1") == "idle_not_long"
    assert orders(world.wait(1).plan()) == ["drain cloud1-1"]


def test_40_a_node_of_an_unknown_type_is_drained_when_idle() -> None:
    launch = replace(LAUNCH, type_name=TypeName("retired"))
    world = a_world().busy_node("cloud1", launch=launch)
    assert world.why("cloud1") == "busy"
    world.wait(1).see_ranks(UP).wait(1).see_ranks()
    assert orders(world.plan()) == ["drain cloud1-1"]
    assert world.why("cloud1") == "unknown_type"


def test_41_a_drain_that_an_earlier_life_began_is_gone_on_with_or_undone() -> None:
    def restarted() -> World:
        world = a_world().but(claimed=False, nodes={}).see_claim(LAUNCH).wait(1)
        return world.see_cloud(a_cloud_node(LAUNCH)).see_ranks(drained(UP, OURS)).wait(1)

    assert orders(restarted().decide()) == ["drain cloud1-1"]
    wanted = restarted().see_queue(a_job(1, whole_nodes(1))).wait(2)
    assert orders(wanted.decide()) == ["undrain cloud1-1"]
    at_work = restarted().see_ranks(drained(busy(UP), OURS))
    assert orders(at_work.decide()) == ["drain cloud1-1"]
    at_work.wait(1).see_drained("cloud1")
    assert orders(at_work.decide()) == ["undrain cloud1-1"]


def test_42_what_somebody_else_drained_is_neither_stopped_nor_undrained_nor_given_work() -> None:
    held = drained(UP, "broken fan")
    world = a_world(CLOUD).idle_node("cloud1", hour_ends_in_s=5, rank=held).job(whole_nodes(4))
    assert orders(world.plan()) == []
    assert world.why("cloud1") == "held_by_drain"
    assert world.why_job(1).code == "no_free_slot"


@pytest.mark.parametrize("rank", [drained(UP, "broken fan"), drained(busy(UP), "broken fan"), drained(UP, "")])
def test_42_somebody_else_s_drain_that_came_before_ours_stays(rank: FluxRank) -> None:
    """Flux keeps the first reason; the answer to our drain shows that it is not ours."""
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    world.decide()
    world.wait(1).see_drained("cloud1", rank).see_queue(a_job(1, whole_nodes(1)))
    world.wait(2)
    assert not [order for order in orders(world.decide()) if "cloud1" in order]
    world.wait(1).see_ranks().wait(1)
    assert not [order for order in orders(world.decide()) if "cloud1" in order]
    assert world["cloud1"].state in (NodeState.IDLE, NodeState.BUSY)


def test_43_the_least_number_is_kept_while_the_rest_leaves() -> None:
    world = a_world(nodes_min=2)
    for slot in ("cloud1", "cloud2", "cloud3"):
        world.idle_node(slot, hour_ends_in_s=5)
    assert orders(world.decide()) == ["drain cloud1-1"]
    assert orders(world.wait(1).decide()) == []
    assert world.why("cloud2") == world.why("cloud3") == "nodes_min"


# --- data -------------------------------------------------------------------------------------------------


def _fleet_cut_off(count: int) -> World:
    world = a_world(a_type("cloud", slots=20), nodes_max=20).job(whole_nodes(1))
    for number in range(1, count + 1):
        slot = f"cloud{number}"
        world.node(slot, NodeState.LOST, rank=a_rank(slot, world.policy, allocated=True), since_s=NOW_S)
    return world


@pytest.mark.parametrize("kept", [0, 2])
def test_44_a_list_that_lacks_a_large_part_at_once_forgets_and_buys_nothing(kept: int) -> None:
    world = _fleet_cut_off(8)
    listed = [a_cloud_node(a_launch(f"cloud{number}", world.policy)) for number in range(1, kept + 1)]
    before = {node.id: node.state for node in world.snapshot.nodes.values()}
    for _ in range(3):
        world.wait(10).see_cloud(*listed)
        assert {node.id: node.state for node in world.snapshot.nodes.values()} == before
    assert world.snapshot.account_of().doubted_lists == 3


def test_44_a_fleet_that_is_really_gone_is_believed_in_the_end() -> None:
    world = _fleet_cut_off(8)
    for _ in range(6):
        world.wait(10).see_cloud()
    assert {node.state for node in world.snapshot.nodes.values()} == {NodeState.GONE}


def test_44_an_empty_list_after_a_restart_is_not_an_empty_fleet() -> None:
    world = a_world().but(claimed=False).see_claim(LAUNCH).job(whole_nodes(1)).see_cloud()
    assert boots(world.decide()) == []


@pytest.mark.parametrize("source", ["queue", "flux", "cloud"])
def test_45_with_one_source_stale_nothing_is_decided_and_it_is_said_which(source: str) -> None:
    world = a_world(stale_after_s=180).idle_node("cloud1", hour_ends_in_s=5).job(whole_nodes(2))
    assert orders(world.plan())
    world.but(**{source: Source(seen_s=NOW_S - 181, failure="no route")})
    made = world.plan()
    assert made.actions == ()
    assert made.stands_still is not None
    assert made.stands_still.figures == {
        "source": source, "age_s": 181.0, "stale_after_s": 180.0, "failure": "no route",
    }  # fmt: skip


@pytest.mark.parametrize("source", ["queue", "flux", "cloud"])
def test_45_what_was_never_seen_is_not_decided_upon(source: str) -> None:
    world = a_world().job(whole_nodes(1)).but(**{source: Source()})
    assert world.plan().stands_still is not None
    assert world.plan().actions == ()


def test_46_after_a_long_pause_everything_is_asked_for_before_anything_is_done() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=1800).booting_node("cloud2", requested_s=NOW_S - 100)
    made = world.wait(1200).decide()
    assert made.actions == ()
    assert set(made.asks) == {LookAtRanks(), ListCloud()}
    up = a_rank("cloud2", online=True)
    world.see(QueueProbed(NOW_S + 1200)).wait(1).see_ranks(up).see_cloud(
        a_cloud_node(LAUNCH), a_cloud_node(a_launch("cloud2"))
    )
    assert orders(world.decide()) == []
    assert world["cloud2"].state is NodeState.IDLE


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_47_a_wall_clock_that_jumps_an_hour_moves_no_timer(jump_s: float) -> None:
    by_the_second = a_type("cloud", window_s=1)
    world = a_world(by_the_second, idle_timeout_s=300)
    world.busy_node("cloud1").idle_node("cloud2").booting_node("cloud3")
    before = orders(world.plan())
    world.wait(1, wall_jumps_s=jump_s)
    idle = a_rank("cloud1", online=True, last_job_ended_at=world.snapshot.wall_at - jump_s)
    world.see_ranks(idle).wait(1).see_ranks().wait(1)
    assert orders(world.plan()) == before
    assert world.why("cloud1") == "idle_not_long"
    assert world["cloud1"].seen.idle_since_s == NOW_S + 1


def test_47_a_jump_leaves_the_staleness_and_the_deadlines_as_they_are() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN), drained_s=None)
    world.wait(1, wall_jumps_s=3600)
    assert world["cloud1"].call is not None
    assert world.plan().stands_still is None


# --- and from the others' lists ---------------------------------------------------------------------------


def test_a_drain_that_the_scheduler_has_not_noticed_is_not_repeated_at_every_plan() -> None:
    # While rank 0 stops, its scheduler misses drains: one was ordered every 25 ms.
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN), drained_s=None)
    world.see_drained("cloud1", a_rank("cloud1", online=True, drain_reason=OURS))
    assert orders(world.wait(0.9).decide()) == []
    assert world.why("cloud1") == "still_schedulable"
    assert orders(world.wait(0.1).decide()) == ["drain cloud1-1"]


def test_a_drain_that_the_next_look_shows_noticed_is_not_repeated() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN), drained_s=None)
    world.see_drained("cloud1", a_rank("cloud1", online=True, drain_reason=OURS)).wait(0.1)
    world.see_ranks(drained(a_rank("cloud1", online=True), OURS))
    assert orders(world.decide()) == ["stop-broker cloud1-1"]


def test_a_node_that_leaves_counts_once_against_the_limit() -> None:
    world = a_world(CLOUD, nodes_max=2).stopping_node("cloud1").busy_node("cloud2").job(whole_nodes(1))
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "nodes_max"


def test_a_lease_lasts_until_the_list_shows_the_node_gone() -> None:
    world = a_world(a_type("cloud", slots=1)).stopping_node("cloud1", rank=AWAY).job(whole_nodes(1))
    world.decide()
    world.see(NodeDestroyed(LAUNCH.id, ProviderId("i-cloud1-1")))
    assert boots(world.wait(2).plan()) == []
    assert world.why_job(1).code == "no_free_slot"


def test_a_broker_that_cannot_be_stopped_does_not_keep_its_machine_for_ever() -> None:
    world = a_world().draining_node("cloud1")
    for _ in range(3):
        assert orders(world.wait(5).all_is_fresh().decide()) == ["stop-broker cloud1-1"]
        world.see(FluxCallFailed((LAUNCH.id,), "StopBroker", "no such service"))
    assert orders(world.wait(5).all_is_fresh().decide()) == ["destroy i-cloud1-1"]


def test_a_busy_instance_that_is_never_quiet_gets_its_nodes_all_the_same() -> None:
    """Ranks that change many times a second delay the purchase, but not beyond ``settle_max_s``."""
    world = a_world(settle_max_s=10).busy_node("cloud1").job(whole_nodes(1))
    bought: list[str] = []
    for step in range(110):
        world.wait(0.1).see(RanksChanged(), QueueProbed(world.snapshot.now_s))
        world.see_ranks(busy(UP, cores_free=step % 2), age_s=0.05)
        bought += boots(world.decide())
    assert bought == ["cloud2"]


def test_a_token_is_another_for_each_launch_however_long_the_slot_s_name() -> None:
    long_name = "x" * 60
    node_type = replace(a_type("cloud", slots=1), slots=(SlotName(long_name),))
    tokens = set()
    for later_s in (0, 1):
        world = a_world(node_type).wait(later_s).job(whole_nodes(1))
        (boot,) = (action for action in world.plan().actions if isinstance(action, BootNode))
        tokens.add(boot.launch.client_token)
        assert len(boot.launch.client_token) <= 64
        assert boot.launch.client_token.startswith(CLUSTER_UUID[:8])
    assert len(tokens) == 2


def test_what_is_claimed_first_is_the_instance() -> None:
    world = World(a_world(CLOUD, GPU).policy, changed(a_world().snapshot, claimed=False, claim=Source()))
    assert world.plan().asks == (ClaimInstance(),)


def test_23_five_hundred_jobs_at_once_keep_so_many_calls_under_way_and_no_more() -> None:
    many = a_type("cloud", slots=600)
    world = a_world(many, nodes_max=600, price_per_hour_max=Decimal(1000), calls_in_flight_max=8, creates_burst=100)
    world.job(*[whole_nodes(1)] * 500)
    made = world.decide()
    assert len(boots(made)) == 500, "recorded together"
    world.wait(1.0).see(LaunchesRecorded(tuple(node.launch for node in world.snapshot.nodes.values())))
    for _ in range(5):
        world.decide()
        under_way = [node for node in world.snapshot.nodes.values() if node.call is not None]
        assert len(under_way) <= 8
        world.wait(1.0)


def test_24_demand_that_vanishes_during_a_create_leaves_a_node_that_goes_as_any_other() -> None:
    world = a_world().job(whole_nodes(1))
    (boot,) = world.decide().actions
    assert isinstance(boot, BootNode)
    world.wait(1.0).see(LaunchesRecorded((boot.launch,)))
    assert orders(world.decide()) == [f"create {boot.launch.id}"]
    world.see(QueueSeen(world.snapshot.now_s, complete=True))
    assert orders(world.wait(1.0).plan()) == [], "the call is waited for, not cut off"
    world.see(NodeCreated(boot.launch.id, a_cloud_node(boot.launch, created_at=world.snapshot.wall_at)))
    up = a_rank("cloud1", world.policy, online=True)
    world.wait(30.0).see_ranks(up).wait(1.0).all_is_fresh().wait(1.0).all_is_fresh()
    assert world.why("cloud1") == "paid_time_left", "it is paid for: a spare until its window closes"


def test_48_a_source_that_answers_slower_than_it_is_asked_is_asked_once_at_a_time() -> None:
    world = a_world().booting_node().but(cloud=Source(seen_s=NOW_S - 3600.0), look_due_since_s=NOW_S)
    asked = 0
    for _ in range(50):
        asked += sum(isinstance(ask, ListCloud) for ask in world.decide().asks)
        world.wait(1.0)
    assert asked == 1


def test_50_a_call_that_hangs_holds_up_its_own_node_only() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S, call=a_call(CallKind.CREATE))
    world.idle_node("cloud2", hour_ends_in_s=30.0)
    assert orders(world.plan()) == ["drain cloud2-1"]
    world.wait(600.0).all_is_fresh()
    assert world["cloud1"].call is None, "past its deadline it is looked at again"
