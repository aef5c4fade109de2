"""How facts change the snapshot."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import get_args

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    BrokerStopped,
    ClaimRefused,
    CloudCallFailed,
    CloudListed,
    Fact,
    FluxCallFailed,
    FluxUnreachable,
    LaunchesRecorded,
    LeaseEnded,
    NodeCordoned,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    NodeUndrained,
    OrderLapsed,
    QueueProbed,
    QueueSeen,
    RanksChanged,
    RecordSeen,
)
from nodemanager.core.jobs import Job, JobId, JobState, UnreadableJob
from nodemanager.core.nodes import CallKind, CloudState, FailureKind, FluxRank, NodeState
from nodemanager.core.orders import ClaimInstance
from nodemanager.core.reason_codes import Code
from nodemanager.core.records import Mark, Spend, Steering
from nodemanager.core.slots import Market, SlotName, TypeName
from nodemanager.planner.backoff import refusal_reason
from nodemanager.planner.observe import HANDLERS
from nodemanager.planner.observe_cloud import VANISHED_S_MAX
from nodemanager.planner.policy import BLOCK_S
from nodemanager.planner.snapshot import EVERYTHING, Scope
from tests.builders import (
    NOW_S,
    World,
    a_call,
    a_cloud_node,
    a_job,
    a_launch,
    a_node,
    a_policy,
    a_rank,
    a_world,
    busy,
    changed,
    drained,
    nodes,
    orders,
    tasks,
    whole_nodes,
)

LAUNCH = a_launch("cloud1")
OURS = drain_text(LAUNCH.id)
UP = a_rank("cloud1", online=True)


# --- the queue --------------------------------------------------------------------------------------------


def test_a_complete_queue_replaces_what_was_known_and_a_change_adds_to_it() -> None:
    world = a_world().see(QueueSeen(NOW_S, (a_job(1), a_job(2)), (UnreadableJob(JobId(3), "cut"),), complete=True))
    world.see(QueueSeen(NOW_S + 1, (a_job(4),), ended=(JobId(2), JobId(3))))
    assert world.snapshot.jobs.keys() == {1, 4}
    assert not world.snapshot.queues.unreadable
    world.see(QueueSeen(NOW_S + 2, (a_job(5),), complete=True))
    assert world.snapshot.jobs.keys() == {5}


def test_a_job_is_readable_or_not_never_both() -> None:
    world = a_world().see_queue(a_job(1))
    world.see(QueueSeen(NOW_S, unreadable=(UnreadableJob(JobId(1), "updated to nonsense"),)))
    assert not world.snapshot.jobs
    world.see_queue(a_job(1))
    assert not world.snapshot.queues.unreadable


def test_queues_that_were_not_asked_about_stay_as_they_were() -> None:
    world = a_world().see(QueueSeen(NOW_S, queues_stopped=frozenset({"debug"})))
    world.see(QueueSeen(NOW_S + 1))
    assert world.snapshot.queues.stopped == {"debug"}


@pytest.mark.parametrize(
    ("before", "now", "unsettles"),
    [
        (None, a_job(1), True),
        (a_job(1, state=JobState.DEPEND), a_job(1), True),
        (a_job(1, whole_nodes(1)), a_job(1, whole_nodes(2)), True),
        (a_job(1), a_job(1), False),
        (a_job(1), a_job(1, priority=20), False),
        (None, a_job(1, state=JobState.DEPEND), False),
        (a_job(1), a_job(1, state=JobState.RUN), False),
    ],
)
def test_only_a_job_that_begins_to_wait_starts_the_settling(before: Job | None, now: Job, unsettles: bool) -> None:
    world = a_world()
    if before is not None:
        world.see_queue(before)
    world.but(newest_job_s=None, unsettled_s=None).see_queue(now)
    assert (world.snapshot.news.newest_job_s == NOW_S) is unsettles


def test_a_probe_makes_the_source_fresh_and_nothing_else() -> None:
    world = a_world().job(nodes(1))
    before = world.snapshot
    world.see(QueueProbed(NOW_S + 1))
    seen = replace(before.sources.queue, seen_s=NOW_S + 1)
    assert world.snapshot == changed(before, queue=seen, asked_s=NOW_S + 1)


# --- ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "rank", "after"),
    [
        (NodeState.BOOTING, UP, NodeState.IDLE),
        (NodeState.BOOTING, busy(UP), NodeState.BUSY),
        (NodeState.BOOTING, a_rank("cloud1"), NodeState.BOOTING),
        (NodeState.IDLE, busy(UP), NodeState.BUSY),
        (NodeState.IDLE, a_rank("cloud1"), NodeState.LOST),
        (NodeState.IDLE, drained(UP, OURS), NodeState.DRAINING),
        (NodeState.IDLE, drained(UP, "broken fan"), NodeState.IDLE),
        (NodeState.BUSY, UP, NodeState.IDLE),
        (NodeState.BUSY, a_rank("cloud1", allocated=True), NodeState.LOST),
        (NodeState.LOST, UP, NodeState.IDLE),
        (NodeState.LOST, busy(UP), NodeState.BUSY),
        (NodeState.LOST, a_rank("cloud1"), NodeState.LOST),
        (NodeState.DRAINING, drained(UP, OURS), NodeState.DRAINING),
        (NodeState.DRAINING, UP, NodeState.IDLE),  # undrained by hand
        (NodeState.DRAINING, drained(UP, "broken fan"), NodeState.IDLE),  # taken over: a hold
        (NodeState.DRAINING, a_rank("cloud1"), NodeState.DRAINING),
        (NodeState.STOPPING, busy(UP), NodeState.STOPPING),
        (NodeState.REQUESTED, UP, NodeState.REQUESTED),
        (NodeState.GONE, UP, NodeState.GONE),
    ],
)
def test_a_look_brings_a_node_in_line_with_its_rank(before: NodeState, rank: FluxRank, after: NodeState) -> None:
    world = a_world().node("cloud1", before, rank_seen_s=NOW_S - 5).wait(1)
    world.see_ranks(rank)
    assert world["cloud1"].state is after
    assert world["cloud1"].rank == rank


def test_an_older_look_changes_nothing() -> None:
    world = a_world().idle_node("cloud1").wait(10).see_ranks()
    before = world.snapshot
    world.see_ranks(busy(UP), age_s=5)
    assert world.snapshot == before


def test_a_look_that_began_before_the_second_look_of_a_drain_changes_nothing_for_that_node() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN), drained_s=None).wait(10)
    world.see_drained("cloud1").see_ranks(UP, age_s=5)
    assert world["cloud1"].state is NodeState.DRAINING
    assert world["cloud1"].rank == drained(UP, OURS)


def test_a_look_that_shows_a_node_as_it_was_makes_nothing_new_of_it() -> None:
    world = a_world().idle_node("cloud1").wait(10).see_ranks(UP)
    world.wait(1).see_ranks(UP)
    before = world["cloud1"]
    assert world.wait(10).see_ranks(UP)["cloud1"] is before


@pytest.mark.parametrize(
    ("rank", "after"), [(UP, NodeState.IDLE), (a_rank("cloud1", allocated=True), NodeState.LOST)]
)
def test_a_look_that_shows_no_more_than_the_answer_to_a_cordon_did_still_counts(
    rank: FluxRank, after: NodeState
) -> None:
    """That answer changes the node's rank only, so the next look must change its state."""
    world = a_world().busy_node("cloud1", call=a_call(CallKind.DRAIN)).wait(1)
    world.see(NodeCordoned(LAUNCH.id, NOW_S + 1, rank))
    assert world["cloud1"].state is NodeState.BUSY
    assert world.wait(1).see_ranks(rank)["cloud1"].state is after


def test_a_second_look_that_began_before_the_latest_look_at_all_changes_nothing_but_that_it_came() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN), drained_s=None).wait(10)
    world.see_ranks(drained(UP, OURS)).wait(5).see_ranks(drained(UP, OURS))
    began_s = world.snapshot.now_s - 3
    world.see(NodeDrained(world["cloud1"].id, began_s, busy(UP)))
    assert world["cloud1"].rank == drained(UP, OURS)
    assert world["cloud1"].stop.drained_s == began_s


def test_looks_in_a_row_that_find_it_idle_are_counted_as_far_as_the_policy_asks_for() -> None:
    world = a_world().node("cloud1", NodeState.BUSY)
    for looks in (1, 2, 2):
        world.wait(1).see_ranks(UP)
        assert world["cloud1"].seen.idle_looks == looks
    assert world["cloud1"].seen.idle_since_s == NOW_S + 1
    world.wait(1).see_ranks(busy(UP))
    assert world["cloud1"].seen.idle_looks == 0
    assert world["cloud1"].seen.idle_since_s is None


def test_a_look_is_due_until_one_has_begun_after_the_stir() -> None:
    world = a_world().see(RanksChanged()).see_ranks(age_s=0.5)
    assert world.snapshot.news.look_due_since_s == NOW_S
    world.wait(1).see_ranks()
    assert world.snapshot.news.look_due_since_s is None


# --- answers of Flux --------------------------------------------------------------------------------------

ANSWERS: list[tuple[CallKind, Fact]] = [
    (CallKind.DRAIN, NodeDrained(LAUNCH.id, NOW_S + 1, drained(UP, OURS))),
    (CallKind.UNDRAIN, NodeUndrained(LAUNCH.id)),
    (CallKind.STOP_BROKER, BrokerStopped(LAUNCH.id)),
    (CallKind.RECORD, LaunchesRecorded((LAUNCH,))),
    (CallKind.CREATE, NodeCreated(LAUNCH.id, a_cloud_node(LAUNCH))),
    (CallKind.DESTROY, NodeDestroyed(LAUNCH.id, a_cloud_node(LAUNCH).provider_id)),
    (CallKind.DRAIN, FluxCallFailed((LAUNCH.id,), "DrainNode", "refused")),
    (CallKind.UNDRAIN, FluxCallFailed((LAUNCH.id,), "UndrainNode", "refused")),
    (CallKind.STOP_BROKER, FluxCallFailed((LAUNCH.id,), "StopBroker", "refused")),
    (CallKind.RECORD, FluxCallFailed((LAUNCH.id,), "RecordLaunches", "refused")),
    (CallKind.END_LEASE, FluxCallFailed((LAUNCH.id,), "EndLease", "refused")),
    (CallKind.CREATE, CloudCallFailed("create", LAUNCH.id, FailureKind.AMBIGUOUS, "reset")),
    (CallKind.DESTROY, CloudCallFailed("destroy", LAUNCH.id, FailureKind.TRANSIENT, "reset")),
]


@pytest.mark.parametrize(("kind", "answer"), ANSWERS)
@pytest.mark.parametrize("under_way", CallKind)
def test_an_answer_ends_its_own_call_and_no_other(kind: CallKind, answer: Fact, under_way: CallKind) -> None:
    """A late answer must not end another call that is in flight by now."""
    world = a_world().node("cloud1", NodeState.DRAINING, call=a_call(under_way), drained_s=None).see(answer)
    assert (world["cloud1"].call is None) is (kind is under_way)
    if kind is not under_way:
        assert world["cloud1"].state is NodeState.DRAINING
        assert world["cloud1"].stop.drained_s is None


def test_the_answer_to_an_earlier_drain_is_not_the_second_look_of_this_one() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN, started_s=NOW_S), drained_s=None)
    world.see(NodeDrained(LAUNCH.id, NOW_S - 30, drained(UP, OURS)))
    assert world["cloud1"].stop.drained_s is None
    assert world["cloud1"].call is not None


def test_a_drain_whose_rank_belongs_to_another_host_by_now_is_a_failed_call() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN, started_s=NOW_S), drained_s=None)
    before = world["cloud1"].rank
    world.see_drained("cloud1", replace(drained(UP, OURS), host=SlotName("cloud2")))
    node = world["cloud1"]
    assert (node.stop.drained_s, node.rank, node.call) == (None, before, None)
    assert node.retry_s > NOW_S
    assert not world.decide().actions


def test_an_undrained_node_is_idle_again_and_a_look_is_due() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.UNDRAIN)).wait(1)
    world.see(NodeUndrained(LAUNCH.id)).see_ranks(drained(UP, OURS), age_s=0.5)
    assert world["cloud1"].state is NodeState.IDLE  # the look began before the answer, so it is ignored
    assert world.snapshot.news.look_due_since_s == NOW_S + 1


def test_a_failed_call_is_left_alone_for_longer_each_time() -> None:
    world = a_world().draining_node("cloud1")
    waits = []
    for _ in range(9):
        node = replace(world["cloud1"], call=a_call(CallKind.DRAIN))
        world.but(nodes={node.id: node}).see(FluxCallFailed((node.id,), "DrainNode", "refused"))
        waits.append(world["cloud1"].retry_s - NOW_S)
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_record_that_may_or_may_not_be_written_is_read_again() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, recorded=False, call=a_call(CallKind.RECORD))
    world.see(FluxCallFailed((LAUNCH.id,), "RecordLaunches", "timed out"))
    assert not world.snapshot.sources.claimed


def test_a_lease_that_ended_is_forgotten_but_not_one_that_lives_again() -> None:
    assert not a_world().node("cloud1", NodeState.GONE).see(LeaseEnded(LAUNCH.id)).has("cloud1")
    assert a_world().busy_node("cloud1").see(LeaseEnded(LAUNCH.id)).has("cloud1")


def test_news_of_a_node_that_is_no_more_is_old_news() -> None:
    world = a_world()
    before = world.snapshot
    for _, answer in ANSWERS:
        if not isinstance(answer, NodeUndrained):
            world.see(answer)
    assert world.snapshot == before


# --- the claim --------------------------------------------------------------------------------------------


def test_launches_on_record_are_adopted_and_looked_for() -> None:
    world = a_world().but(claimed=False).see_claim(LAUNCH)
    node = world["cloud1"]
    assert node.state is NodeState.REQUESTED
    assert node.create.recorded
    assert node.create.sent_s == NOW_S
    assert node.create.requested_s == NOW_S - 600
    assert world.plan().nodes[node.id].code == "looked_for"


def test_what_is_known_of_a_node_survives_a_new_claim() -> None:
    world = a_world().busy_node("cloud1")
    before = world["cloud1"]
    assert world.see_claim(LAUNCH)["cloud1"] == before


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.STOPPING])
def test_a_second_look_from_before_a_new_claim_stops_nothing(state: NodeState) -> None:
    """Another manager may have acted meanwhile, and given the node work."""
    world = a_world().node("cloud1", state, departures_s=(NOW_S - 60,))
    assert orders(world.plan()) == ["stop-broker cloud1-1"]
    world.see_claim(LAUNCH).wait(1).all_is_fresh()
    assert (world["cloud1"].stop.drained_s, world["cloud1"].health.departures_s) == (None, ())
    assert orders(world.decide()) == ["drain cloud1-1"]
    assert orders(world.see_drained("cloud1").decide()) == ["stop-broker cloud1-1"]


def test_a_lease_that_was_never_recorded_nor_used_is_dropped() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, recorded=False)
    assert not world.see_claim().has("cloud1")


def test_a_node_that_is_not_on_record_is_recorded_again() -> None:
    world = a_world().idle_node("cloud1").see_claim()
    assert world["cloud1"].create.recorded is False


def test_a_slot_that_another_launch_holds_on_record_is_lost() -> None:
    other = a_launch("cloud1", number=7)
    world = a_world().idle_node("cloud1").see_claim(other)
    assert [node.id for node in world.snapshot.nodes.values()] == [other.id]


def test_without_the_claim_nothing_is_decided() -> None:
    facts: list[Fact] = [ClaimRefused(NOW_S, "held by another"), FluxUnreachable(NOW_S, "connection lost")]
    for fact in facts:
        world = a_world().job(nodes(1)).see(fact)
        made = world.plan()
        assert made.stands_still is not None
        assert made.stands_still.code == "not_the_actor"
        assert not made.actions
        assert not made.asks
        world.wait(1.5).see(QueueProbed(NOW_S + 1.5))
        assert ClaimInstance() in world.plan().asks


# --- the cloud --------------------------------------------------------------------------------------------


def test_a_node_appears_by_the_answer_or_by_the_list_and_the_bill_runs_from_its_creation() -> None:
    cloud = a_cloud_node(LAUNCH, state=CloudState.PENDING)
    facts: list[Fact] = [NodeCreated(LAUNCH.id, cloud), CloudListed(NOW_S, (cloud,))]
    for fact in facts:
        world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S - 5, call=a_call(CallKind.CREATE))
        node = world.see(fact)["cloud1"]
        assert node.state is NodeState.BOOTING
        assert node.cloud == cloud
        assert node.listing.billed_from_s == NOW_S - 600


def test_a_node_that_joined_before_the_provider_showed_it_is_up_at_once() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S - 5, rank_seen_s=0.0)
    world.see_ranks(busy(UP)).see_cloud(a_cloud_node(LAUNCH))
    assert world["cloud1"].state is NodeState.BUSY


def test_an_older_list_changes_nothing() -> None:
    world = a_world().idle_node("cloud1").wait(10).see_cloud(a_cloud_node(LAUNCH))
    before = world.snapshot
    world.see_cloud(age_s=5)
    assert world.snapshot == before


def _listed_without(world: World, times: int, every_s: float = 10) -> World:
    for _ in range(times):
        world.wait(every_s).see_cloud()
    return world


def test_a_node_ends_when_enough_lists_lack_it() -> None:
    away = a_rank("cloud1")
    world = a_world().node("cloud1", NodeState.STOPPING, rank=away)
    assert _listed_without(world, 2)["cloud1"].state is NodeState.STOPPING
    assert _listed_without(world, 1)["cloud1"].state is NodeState.GONE


def test_absence_is_counted_anew_once_it_was_listed_again() -> None:
    world = a_world().node("cloud1", NodeState.STOPPING, rank=a_rank("cloud1"))
    _listed_without(world, 2).wait(1).see_cloud(a_cloud_node(LAUNCH))
    assert _listed_without(world, 2)["cloud1"].state is NodeState.STOPPING


def test_the_same_list_twice_counts_once() -> None:
    world = a_world().node("cloud1", NodeState.STOPPING, rank=a_rank("cloud1")).wait(10)
    assert world.see_cloud().see_cloud().see_cloud()["cloud1"].listing.absences == 1


def test_a_list_that_began_when_the_node_was_last_known_proves_nothing() -> None:
    world = a_world().node("cloud1", NodeState.STOPPING, known_s=NOW_S).see_cloud()
    assert world["cloud1"].listing.absences == 0
    world.wait(0.1).see_cloud()
    assert world["cloud1"].listing.absences == 1


def test_lists_from_before_a_create_that_failed_do_not_count_against_it() -> None:
    """The create may have worked up to the moment of its failure. Too few lists since then lack the node."""
    world = a_world(create_grace_s=20).node("cloud1", NodeState.REQUESTED, sent_s=NOW_S, known_s=NOW_S)
    _listed_without(world, 2)
    assert world["cloud1"].listing.absences == 2
    node = replace(world["cloud1"], call=a_call(CallKind.CREATE))
    world.but(nodes={node.id: node}).see(CloudCallFailed("create", node.id, FailureKind.AMBIGUOUS, "reset"))
    assert (world["cloud1"].listing.absences, world["cloud1"].listing.absent_s) == (0, None)
    assert _listed_without(world, 2)["cloud1"].state is NodeState.REQUESTED
    assert _listed_without(world, 1)["cloud1"].state is NodeState.GONE


def test_lists_from_before_a_create_that_lapsed_do_not_count_against_the_next_one() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S, absences=2, absent_s=NOW_S - 5)
    world.see(OrderLapsed("CreateNode", (LAUNCH.id,), None, "1.0 s too late"))
    node = world["cloud1"]
    assert (node.create.sent_s, node.listing.absences, node.listing.absent_s) == (None, 0, None)


def test_a_create_is_disproved_only_by_lists_over_a_while() -> None:
    world = a_world(create_grace_s=120).node("cloud1", NodeState.REQUESTED, sent_s=NOW_S, known_s=NOW_S)
    assert _listed_without(world, 11)["cloud1"].state is NodeState.REQUESTED
    assert _listed_without(world, 1)["cloud1"].state is NodeState.GONE


PROVIDER_ID = a_cloud_node(LAUNCH).provider_id


def test_a_booting_node_that_lists_lack_is_destroyed_before_its_slot_is_free() -> None:
    world = a_world(create_grace_s=120).job().booting_node("cloud1", known_s=NOW_S)
    assert _listed_without(world, 11)["cloud1"].state is NodeState.BOOTING, "lists may show it late"
    _listed_without(world, 1).all_is_fresh()
    made = world.decide()
    assert orders(made) == ["drain cloud1-1"]
    assert made.nodes[world.id("cloud1")].code is Code.VANISHED
    world.see_drained("cloud1")
    _listed_without(world, 3).all_is_fresh()
    assert orders(world.decide()) == [f"destroy {PROVIDER_ID}"]
    world.see(CloudCallFailed("destroy", world.id("cloud1"), FailureKind.TRANSIENT, "502"))
    assert _listed_without(world, 3)["cloud1"].state is NodeState.STOPPING, "nobody took the destroy: it may run"
    world.all_is_fresh()
    assert orders(world.decide()) == [f"destroy {PROVIDER_ID}"]
    world.see(NodeDestroyed(world.id("cloud1"), PROVIDER_ID))
    assert _listed_without(world, 3)["cloud1"].state is NodeState.GONE


def test_a_vanished_node_that_no_call_destroys_is_forgotten_after_an_hour_with_a_warning() -> None:
    """It held its slot, and counted against the limits and the budget, for ever."""
    world = a_world(create_grace_s=120).job().booting_node("cloud1", known_s=NOW_S)
    cloud = world["cloud1"].cloud
    assert cloud is not None
    _listed_without(world, 12).all_is_fresh().decide()
    world.see_drained("cloud1").all_is_fresh().decide()
    world.see(CloudCallFailed("destroy", world.id("cloud1"), FailureKind.CREDENTIALS, "denied"))
    world.wait(VANISHED_S_MAX - 240.0)
    assert _listed_without(world, 1)["cloud1"].state is NodeState.STOPPING
    (warning,) = (it for it in world.all_is_fresh().plan().warnings if it.code is Code.VANISHED_NOT_DESTROYED)
    assert warning.figures["detail"] == "denied"
    assert _listed_without(world, 20)["cloud1"].state is NodeState.GONE
    assert not [it for it in world.plan().warnings if it.code is Code.VANISHED_NOT_DESTROYED]


def test_a_booting_node_that_a_late_list_shows_boots_on() -> None:
    world = a_world(create_grace_s=120).job().booting_node("cloud1", known_s=NOW_S)
    cloud = world["cloud1"].cloud
    assert cloud is not None
    _listed_without(world, 11).wait(10).see_cloud(cloud)
    assert _listed_without(world, 11)["cloud1"].state is NodeState.BOOTING
    assert not world["cloud1"].listing.vanished


def test_a_node_that_no_list_has_shown_yet_is_not_missed() -> None:
    """Some providers list a new node minutes after they created it. It was ended, and bought again."""
    world = (
        a_world(create_grace_s=120, boot_timeout_s=900).job().booting_node("cloud1", known_s=NOW_S, listed=False)
    )
    asked_s = world["cloud1"].create.requested_s
    _listed_without(world, 29).all_is_fresh()
    assert world["cloud1"].state is NodeState.BOOTING
    assert not world["cloud1"].listing.vanished
    assert orders(world.decide()) == []
    world.wait(asked_s + 900 - world.snapshot.now_s)
    assert _listed_without(world, 1)["cloud1"].listing.vanished, "no boot takes longer"


def test_a_node_that_no_list_has_shown_yet_keeps_its_slot_while_it_stops() -> None:
    """Its slot would get a second node, while the first one may still run."""
    world = a_world(boot_timeout_s=900).node("cloud1", NodeState.STOPPING, rank=a_rank("cloud1"), listed=False)
    assert _listed_without(world, 20)["cloud1"].state is NodeState.STOPPING
    cloud = world["cloud1"].cloud
    assert cloud is not None
    world.wait(10).see_cloud(cloud)
    assert _listed_without(world, 3)["cloud1"].state is NodeState.GONE


def test_the_create_is_no_list_and_the_first_list_is_one() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S, call=a_call(CallKind.CREATE), listed=False)
    world.see(NodeCreated(LAUNCH.id, a_cloud_node(LAUNCH)))
    assert not world["cloud1"].listing.listed
    world.wait(10).see_cloud(a_cloud_node(LAUNCH))
    assert world["cloud1"].listing.listed


def test_a_lease_whose_create_was_never_sent_is_not_disproved_by_lists() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=None)
    assert _listed_without(world, 50)["cloud1"].state is NodeState.REQUESTED


def test_a_refused_create_frees_the_slot_and_blocks_what_was_refused() -> None:
    for kind, scope in [
        (FailureKind.CAPACITY, Scope(TypeName("cloud"), Market.ON_DEMAND, "")),
        (FailureKind.CONFIG, Scope(TypeName("cloud"))),
        (FailureKind.TRANSIENT, EVERYTHING),
    ]:
        world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S, call=a_call(CallKind.CREATE))
        world.see(CloudCallFailed("create", LAUNCH.id, kind, "no"))
        assert world["cloud1"].state is NodeState.GONE
        assert world.snapshot.learned.blocks[scope].until_s == NOW_S + BLOCK_S[kind]


@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING])
@pytest.mark.parametrize(
    ("kind", "scope"),
    [(FailureKind.CAPACITY, Scope(TypeName("cloud"), Market.ON_DEMAND, "")), (FailureKind.CREDENTIALS, EVERYTHING)],
)
@pytest.mark.parametrize("ended", [CloudState.FAILED, CloudState.TERMINATED])
def test_a_node_that_died_before_it_was_up_blocks_what_its_death_says(
    state: NodeState, kind: FailureKind, scope: Scope, ended: CloudState
) -> None:
    dead = a_cloud_node(LAUNCH, state=ended, died_because="No valid host was found.", died_of=kind)
    world = a_world().node("cloud1", state, sent_s=NOW_S - 50, known_s=NOW_S - 50)
    world.see_cloud(dead)
    assert world.snapshot.learned.blocks[scope].until_s == NOW_S + BLOCK_S[kind]
    assert (
        str(refusal_reason(world.snapshot.learned.blocks[scope]))
        == f"create_{kind} detail=No valid host was found."
    )
    world.wait(60).see_cloud(dead)
    decided = world.decide()
    assert "boot cloud2" not in orders(decided)


def test_a_death_that_says_nothing_of_the_next_node_blocks_nothing() -> None:
    dead = a_cloud_node(LAUNCH, state=CloudState.FAILED, died_because="a host broke")
    world = a_world().node("cloud1", NodeState.BOOTING, sent_s=NOW_S - 50)
    assert world.see_cloud(dead).snapshot.learned.blocks == {}


def test_a_node_that_was_up_blocks_nothing_when_it_dies() -> None:
    dead = a_cloud_node(LAUNCH, state=CloudState.FAILED, died_because="x", died_of=FailureKind.CAPACITY)
    assert a_world().idle_node("cloud1").see_cloud(dead).snapshot.learned.blocks == {}


def test_a_longer_block_is_not_shortened_by_a_shorter_one() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED).node("cloud2", NodeState.REQUESTED)
    world.see(CloudCallFailed("create", LAUNCH.id, FailureKind.CREDENTIALS, "expired"))
    world.see(CloudCallFailed("create", a_launch("cloud2").id, FailureKind.THROTTLED, "slower", 3.0))
    assert world.snapshot.learned.blocks[EVERYTHING].until_s == NOW_S + 20


def test_a_list_that_fails_is_asked_for_again_after_a_while() -> None:
    world = a_world().see(CloudCallFailed("list", None, FailureKind.THROTTLED, "slower", 25.0))
    assert world.snapshot.account_of().source.retry_s == NOW_S + 25
    assert world.snapshot.account_of().source.seen_s == NOW_S - 1


def test_lists_that_keep_failing_are_asked_for_ever_more_rarely() -> None:
    world, waits = a_world(), []
    for _ in range(6):
        world.see(CloudCallFailed("list", None, FailureKind.TRANSIENT, "502"))
        waits.append(world.snapshot.account_of().source.retry_s - NOW_S)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 16.0]
    world.wait(20.0).see_cloud().see(CloudCallFailed("list", None, FailureKind.TRANSIENT, "502"))
    assert world.snapshot.account_of().source.retry_s == NOW_S + 21.0


def test_an_answer_that_is_not_understood_is_warned_of_until_the_cloud_is_listed_again() -> None:
    world = a_world().idle_node("cloud1")
    for operation in ("list", "list", "sweep"):
        detail = "KeyError: 'instanceId'"
        world.see(CloudCallFailed(operation, None, FailureKind.TRANSIENT, detail, foreseen=False))
    assert [(it.code, it.figures["operation"], it.figures["times"]) for it in world.plan().warnings] == [
        ("answer_misread", "list", 2),
        ("answer_misread", "sweep", 1),
    ]
    assert "cloud1" in {node.launch.slot for node in world.snapshot.nodes.values()}
    cloud = world["cloud1"].cloud
    assert cloud is not None
    world.wait(20.0).see_ranks().see_cloud(cloud)
    assert [it.figures["operation"] for it in world.plan().warnings] == ["sweep"]
    world.wait(900.0).see_ranks().see_cloud(cloud)
    assert world.plan().warnings == (), "the sweeps since then were understood"


def test_a_call_past_its_deadline_is_no_longer_waited_for() -> None:
    world = a_world().draining_node("cloud1", call=a_call(CallKind.DRAIN, lasts_s=60), drained_s=None)
    assert world.wait(59)["cloud1"].call is not None
    node = world.wait(1)["cloud1"]
    assert node.call is None
    assert node.stop.drained_s is None
    assert node.retry_s > world.snapshot.now_s


def test_a_source_that_does_not_answer_in_time_is_asked_again() -> None:
    world = a_world().but(claimed=False).wait(100)
    assert len(world.decide().asks) == 3
    assert not world.decide().asks
    world.wait(61)
    assert "no answer" in world.snapshot.sources.flux.failure
    assert len(world.wait(2).plan().asks) == 3


def test_idleness_survives_a_restart_by_what_flux_remembers() -> None:
    ended_at = a_world().snapshot.wall_at - 250
    rank = a_rank("cloud1", online=True, last_job_ended_at=ended_at)
    world = a_world().but(claimed=False).see_claim(LAUNCH).see_cloud(a_cloud_node(LAUNCH)).see_ranks(rank)
    assert world["cloud1"].state is NodeState.IDLE
    assert world["cloud1"].seen.idle_since_s == NOW_S - 250


def test_an_earlier_life_of_the_slot_does_not_make_a_node_old() -> None:
    """Nor does a provider's clock that is behind: no node is older than its order."""
    rank = a_rank("cloud1", online=True, last_job_ended_at=a_world().snapshot.wall_at - 7200)
    for created_before_s in (60, 10_000):
        cloud = a_cloud_node(LAUNCH, created_at=a_world().snapshot.wall_at - created_before_s)
        node = a_node("cloud1", NodeState.BOOTING, cloud=cloud, requested_s=NOW_S - 90)
        world = a_world().but(nodes={node.id: node}).wait(1).see_ranks(rank)
        assert world["cloud1"].seen.idle_since_s is not None
        assert world["cloud1"].seen.idle_since_s >= NOW_S - 90


def test_a_launch_of_a_type_that_the_site_no_longer_names_is_taken_in_like_any_other() -> None:
    launch = replace(LAUNCH, type_name=TypeName("retired"))
    world = World(a_policy(), a_world().snapshot).see_claim(launch).see_cloud(a_cloud_node(launch))
    assert world["cloud1"].state is NodeState.BOOTING
    assert world.job(tasks(1)).plan().stands_still is None


def test_a_node_that_waited_to_be_told_again_gives_its_slot_back_as_soon_as_it_is_gone() -> None:
    world = a_world().node("cloud1", NodeState.STOPPING, retry_s=NOW_S + 60, tries=1)
    world.see_cloud(a_cloud_node(LAUNCH, state=CloudState.TERMINATED))
    node = world.snapshot.nodes[LAUNCH.id]
    assert (node.state, node.retry_s) == (NodeState.GONE, 0.0)


# --- beside a manager that acts ---------------------------------------------------------------------------

ADA = Mark("ada", 900.0)


def test_who_observes_follows_the_record_of_the_one_that_acts() -> None:
    world = a_world().see(RecordSeen((a_launch("cloud1"),)))
    world.see_cloud(a_cloud_node(a_launch("cloud1"))).see_ranks(a_rank("cloud1", online=True))
    assert (world["cloud1"].state, world["cloud1"].create.recorded) == (NodeState.IDLE, True)
    assert not world.snapshot.account_of().strays

    world.see(RecordSeen(()))
    assert not world.snapshot.nodes, "whoever ended the lease has seen the node gone"


def test_a_record_that_is_as_before_changes_nothing_for_who_observes() -> None:
    node = a_node("cloud1")
    record = RecordSeen((node.launch,), Steering({node.id: ADA}), Spend({("day", 0, ""): Decimal(3)}))
    world = a_world().see(record).see_ranks()
    before = world.snapshot
    assert world.see(record).snapshot == before
    assert world.snapshot.nodes is before.nodes


def test_who_observes_takes_holds_and_spend_from_the_record_even_where_it_reckoned_otherwise() -> None:
    one, two = a_launch("cloud1"), a_launch("cloud2")
    day = ("day", 0, "")
    world = a_world().see(RecordSeen((one, two), Steering({one.id: ADA}), Spend({day: Decimal(3)})))
    world.but(amounts={day: Decimal(9)}, steering=Steering())
    world.see(RecordSeen((one, two), Steering({two.id: ADA}), Spend({day: Decimal(4)})))
    assert world.snapshot.operator.steering == Steering({two.id: ADA})
    assert world.snapshot.spending.amounts == {day: Decimal(4)}


def test_each_type_of_fact_has_a_handler() -> None:
    assert HANDLERS.keys() == set(get_args(Fact))
