"""Take facts in: the snapshot and a fact make the next snapshot.

State is replaced, never tracked: a fact replaces what we believed about its subject, unless it is older than what
we know. The age of an answer counts from the moment its query *began*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, assert_never

from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    ClaimRefused,
    CloudCallFailed,
    CloudListed,
    DecisionsPaused,
    DecisionsResumed,
    Fact,
    FluxCallFailed,
    FluxUnreachable,
    HoldPlaced,
    HousekeepingKilled,
    JobRequeued,
    JobsHeld,
    JobsReleased,
    LaunchesRecorded,
    LeaseEnded,
    LeftoversRemoved,
    NodeCordoned,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    NodeMeasured,
    NodeReleased,
    NodeReported,
    NodeUndrained,
    OrderLapsed,
    QueueProbed,
    QueueSeen,
    RanksChanged,
    RanksMeasured,
    RanksSeen,
    RecordSeen,
    RetirementRequested,
    SlotsChanged,
    SlotsRefused,
    SpendKept,
    SpendNotKept,
    SteeringKept,
    SteeringNotKept,
    Tick,
)
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import CallKind, FailureKind, JoinPhase, Launch, LaunchId, NodeState
from nodemanager.planner.cost import budget
from nodemanager.planner.cost.budget import accrue
from nodemanager.planner.observe import backoff, drain_breaker, hardware, held_jobs, operator, rank_facts
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, allows, move
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of, updated_queue_index
from nodemanager.planner.state.snapshot import Node, Snapshot, Source


def observe(snapshot: Snapshot, fact: Fact, policy: Policy) -> Snapshot:
    """The snapshot after a fact. It never raises for bad input from outside, only for a bug of ours."""
    return accrue(snapshot, _apply(snapshot, fact, policy), fact, policy)


def observe_all(snapshot: Snapshot, facts: Iterable[Fact], policy: Policy) -> Snapshot:
    """The snapshot after several facts: the same as one by one, but faster."""
    for kind, alike in groupby(facts, key=type):
        run = tuple(alike)
        # Facts that concern a budget, or the next purchase, are applied one by one.
        counts = policy.budgets or (kind is NodeCreated and (snapshot.blocks or snapshot.quotas))
        if kind is LeaseEnded and not counts:
            snapshot = _drop_ended_leases(snapshot, [fact.launch for fact in run if isinstance(fact, LeaseEnded)])
        elif kind in NODE_FACTS and not counts:
            snapshot = _apply_to_nodes(snapshot, run, policy)
        else:
            for fact in run:
                snapshot = observe(snapshot, fact, policy)
    return snapshot


def _apply_to_nodes(snapshot: Snapshot, facts: Iterable[Any], policy: Policy) -> Snapshot:
    """Apply facts that each concern one node. News of a node we no longer know is ignored."""
    changed: dict[LaunchId, Node] = {}
    for fact in facts:
        node = changed.get(fact.launch) or snapshot.nodes.get(fact.launch)
        if node is not None:
            changed[node.id] = NODE_FACTS[type(fact)](node, fact, snapshot, policy)
    return with_nodes(snapshot, changed)


def _apply(snapshot: Snapshot, fact: Fact, policy: Policy) -> Snapshot:  # noqa: C901, PLR0912 - one arm a fact
    match fact:
        case QueueSeen():
            return _apply_queue(snapshot, fact)
        case QueueProbed():
            return replace(
                snapshot, queue=_answered_source(snapshot.queue, fact.started_s), queues_asked_s=fact.started_s
            )
        case RanksChanged():
            return _require_look(snapshot)
        case RanksSeen():
            return hardware.apply_repaired_promises(rank_facts.apply_ranks(snapshot, fact, policy), policy)
        case RanksMeasured():
            return hardware.apply_rank_measurements(snapshot, fact, policy)
        case FluxUnreachable():
            return _lose_instance(snapshot, fact)
        case SlotsChanged():
            return _apply_slots_change(snapshot, fact, policy)
        case SlotsRefused():
            return hardware.drop_promise(replace(snapshot, wish=None, wish_due_s=None), fact.wish_id)
        case ClaimHeld():
            return _apply_claim(snapshot, fact)
        case RecordSeen():
            return _apply_record(snapshot, fact)
        case ClaimRefused():
            refused = replace(snapshot.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
            return replace(snapshot, claimed=False, claim=refused)
        case LaunchesRecorded():
            return _change_nodes(snapshot, (launch.id for launch in fact.launches), _mark_recorded)
        case NodeDrained() | NodeCordoned() | BrokerStopped() | HousekeepingKilled() | NodeDestroyed():
            return _apply_to_nodes(snapshot, (fact,), policy)
        case NodeUndrained():
            return _apply_undrain(snapshot, fact)
        case JobRequeued():
            return snapshot  # the queue shows the new job
        case JobsHeld() | JobsReleased():
            return held_jobs.apply_held(snapshot, fact)
        case LeaseEnded():
            return _drop_ended_leases(snapshot, [fact.launch])
        case SteeringKept() | SteeringNotKept():
            return operator.apply_steering_written(snapshot, fact)
        case SpendKept() | SpendNotKept():
            return budget.apply_spend_written(snapshot, fact)
        case HoldPlaced() | RetirementRequested() | NodeReleased() | DecisionsPaused() | DecisionsResumed():
            return operator.apply_operator_fact(snapshot, fact)
        case FluxCallFailed():
            return _apply_failed_flux_call(snapshot, fact)
        case OrderLapsed():
            return _apply_lapsed_order(snapshot, fact)
        case NodeReported():
            return _apply_report(snapshot, fact, policy)
        case NodeMeasured():
            return hardware.apply_measurement(snapshot, fact, policy)
        case CloudListed():
            return rank_facts.apply_cloud_list(snapshot, fact, policy)
        case NodeCreated():
            return rank_facts.apply_create(snapshot, fact, policy)
        case LeftoversRemoved():
            return snapshot  # they belonged to no node
        case CloudCallFailed():
            return rank_facts.apply_cloud_failure(snapshot, fact, policy)
        case _:
            assert_never(fact)


def advance_to(snapshot: Snapshot, tick: Tick) -> Snapshot:
    """The snapshot at a later moment: calls past their deadline count as failed."""
    snapshot = replace(snapshot, now_s=tick.now_s, wall_at=tick.wall_at)
    for source in _sources(snapshot):
        if source.answer_due_s is not None and source.answer_due_s <= tick.now_s:
            snapshot = _expire_calls(snapshot)
            break
    if snapshot.wish_due_s is not None and snapshot.wish_due_s <= tick.now_s:
        snapshot = _distrust_slots(snapshot, "the change of slot types was not answered in time")
    # This runs with every fact and every plan, so it checks only the few nodes with a call.
    waiting = node_index_of(snapshot).with_call.values()
    late = [node.id for node in waiting if node.call is not None and node.call.deadline_s <= tick.now_s]
    return _change_nodes(snapshot, late, lambda node: rank_facts.fail_call(node, tick.now_s)) if late else snapshot


def _sources(snapshot: Snapshot) -> tuple[Source, ...]:
    writes = snapshot.steering_write, snapshot.spend_write, snapshot.hold_write
    return (snapshot.claim, *writes, snapshot.flux, snapshot.cloud)


def _expire_calls(snapshot: Snapshot) -> Snapshot:
    now_s = snapshot.now_s
    return replace(
        snapshot,
        claim=_expired(snapshot.claim, now_s),
        steering_write=_expired(snapshot.steering_write, now_s),
        spend_write=_expired(snapshot.spend_write, now_s),
        hold_write=_expired(snapshot.hold_write, now_s),
        flux=_expired(snapshot.flux, now_s),
        cloud=_expired(snapshot.cloud, now_s),
    )


def _expired(source: Source, now_s: float) -> Source:
    if source.answer_due_s is None or source.answer_due_s > now_s:
        return source
    return replace(source, answer_due_s=None, failure="no answer in time", retry_s=now_s + 1.0)


def _answered_source(source: Source, started_s: float) -> Source:
    return replace(source, seen_s=started_s, answer_due_s=None, failure="", retry_s=0.0)


def _change_nodes(snapshot: Snapshot, ids: Iterable[LaunchId], change: Callable[[Node], Node]) -> Snapshot:
    """Change the named nodes, and skip those we no longer know."""
    changed = {id_: change(snapshot.nodes[id_]) for id_ in ids if id_ in snapshot.nodes}
    return with_nodes(snapshot, changed)


def _require_look(snapshot: Snapshot) -> Snapshot:
    """Make a look at the ranks due; nothing is bought before it."""
    return replace(snapshot, look_due_since_s=snapshot.now_s, unsettled_s=rank_facts.unsettled_since_s(snapshot))


def _drop_ended_leases(snapshot: Snapshot, launches: Iterable[LaunchId]) -> Snapshot:
    ended = [
        node.id
        for launch in launches
        if (node := snapshot.nodes.get(launch)) is not None
        # If neither holds, the news is old: the slot has been leased again.
        and (node.state is NodeState.GONE or rank_facts.waits_for(node, CallKind.END_LEASE))
    ]
    snapshot = with_nodes(snapshot, {}, ended)
    for launch in ended:
        snapshot = operator.forget_steering(snapshot, launch)
    return snapshot


def _mark_recorded(node: Node) -> Node:
    return replace(rank_facts.end_call(node, CallKind.RECORD), recorded=True)


def _apply_report(snapshot: Snapshot, fact: NodeReported, policy: Policy) -> Snapshot:
    node = snapshot.nodes.get(fact.launch)
    if node is None:
        return snapshot
    match fact.phase:
        case JoinPhase.REPLAYED:
            return with_nodes(snapshot, {node.id: replace(node, replayed=True)})
        case JoinPhase.RECLAIMED:
            # The provider is short of capacity here, so nodes of this type are bought elsewhere for a while.
            if node.reclaimed is None:
                snapshot = backoff.apply_refusal(snapshot, node, FailureKind.CAPACITY, fact.detail, policy)
            return with_nodes(snapshot, {node.id: replace(node, reclaimed=fact.detail)})
        case _:
            return with_nodes(snapshot, {node.id: replace(node, phase=fact.phase, phase_detail=fact.detail)})


def _count_housekeeping_kill(node: Node, fact: HousekeepingKilled, snapshot: Snapshot, policy: Policy) -> Node:
    """The kill was sent. A later look shows whether the housekeeping ended; until the next kill we wait a while."""
    del fact, policy
    if not rank_facts.waits_for(node, CallKind.KILL_HOUSEKEEPING):
        return node
    node = rank_facts.end_call(node, CallKind.KILL_HOUSEKEEPING)
    return replace(node, housekeeping_kills=node.housekeeping_kills + 1, retry_s=snapshot.now_s + KILL_AGAIN_S)


def _note_broker_told(node: Node, fact: BrokerStopped, snapshot: Snapshot, policy: Policy) -> Node:
    del fact, policy
    if not rank_facts.waits_for(node, CallKind.STOP_BROKER):
        return node
    return replace(rank_facts.end_call(node, CallKind.STOP_BROKER), broker_told_s=snapshot.now_s)


def _apply_undrain(snapshot: Snapshot, fact: NodeUndrained) -> Snapshot:
    snapshot = _change_nodes(snapshot, [fact.launch], lambda node: _undrain_node(node, snapshot.now_s))
    return _require_look(snapshot)  # only a look shows what is free there


def _undrain_node(node: Node, now_s: float) -> Node:
    if not rank_facts.waits_for(node, CallKind.UNDRAIN):
        return node
    rank = replace(node.rank, drain_reason=None) if node.rank is not None else None
    # Ignore looks that began earlier: they may still show the drain.
    node = replace(
        rank_facts.end_call(node, CallKind.UNDRAIN),
        rank=rank,
        rank_seen_s=now_s,
        retiring=None,
        retired_by_operator=False,
        retired_s=None,
        idle_looks=0,
    )
    return move(node, Event.REPRIEVED, now_s) if allows(node, Event.REPRIEVED) else node


# --- the queue --------------------------------------------------------------------------------------------


def _apply_queue(snapshot: Snapshot, fact: QueueSeen) -> Snapshot:
    known = snapshot.jobs
    jobs: dict[JobId, Job] = {} if fact.complete else dict(known)
    unreadable = {} if fact.complete else dict(snapshot.unreadable)
    for job in fact.jobs:
        jobs[job.id] = held_jobs.as_waiting(job, snapshot) if snapshot.held_jobs else job
        unreadable.pop(job.id, None)
    for job_id in fact.ended:
        jobs.pop(job_id, None)
        unreadable.pop(job_id, None)
    for bad in fact.unreadable:
        unreadable[bad.id] = bad
        jobs.pop(bad.id, None)
    gone, come = _changed_jobs(known, jobs, None if fact.complete else fact)
    now_s = snapshot.now_s
    if any(_starts_waiting(job, known) for job in come):
        snapshot = replace(snapshot, newest_job_s=now_s, unsettled_s=rank_facts.unsettled_since_s(snapshot))
    stopped = snapshot.queues_stopped if fact.queues_stopped is None else fact.queues_stopped
    if gone or come or stopped != snapshot.queues_stopped:
        snapshot = replace(snapshot, changed_s=now_s)
    if gone and snapshot.requeued:
        snapshot = replace(snapshot, requeued=snapshot.requeued & jobs.keys())
    if gone or come:
        queue_index = updated_queue_index(queue_index_of(known, snapshot.queue_index), jobs, gone, come)
        snapshot = drain_breaker.remember_users(replace(snapshot, jobs=jobs, queue_index=queue_index), gone)
    return replace(
        snapshot,
        unreadable=unreadable,
        queues_stopped=stopped,
        queues_asked_s=snapshot.queues_asked_s if fact.queues_stopped is None else fact.started_s,
        queue=_answered_source(snapshot.queue, fact.started_s),
    )


def _changed_jobs(
    before: Mapping[JobId, Job], after: Mapping[JobId, Job], fact: QueueSeen | None
) -> tuple[list[Job], list[Job]]:
    """The changed jobs as they were, and as they are. ``fact``: compare only the jobs it names; None: all."""
    if fact is None:
        named: Iterable[JobId] = {**before, **after}
    else:
        named = dict.fromkeys([*(job.id for job in fact.jobs), *fact.ended, *(bad.id for bad in fact.unreadable)])
    gone: list[Job] = []
    come: list[Job] = []
    for id_ in named:
        was, is_ = before.get(id_), after.get(id_)
        if was is not is_ and was != is_:
            gone += [was] if was is not None else []
            come += [is_] if is_ is not None else []
    return gone, come


def _starts_waiting(job: Job, known: Mapping[JobId, Job]) -> bool:
    before = known.get(job.id)
    return job.state is JobState.SCHED and (
        before is None or before.state is not JobState.SCHED or before.shape != job.shape
    )


# --- the instance and the claim on it ---------------------------------------------------------------------


def _lose_instance(snapshot: Snapshot, fact: FluxUnreachable) -> Snapshot:
    """The instance is unreachable, so the claim on it is lost too and must be renewed."""
    away = replace(snapshot.flux, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    claim = replace(snapshot.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    return replace(snapshot, claimed=False, flux=away, claim=claim, unreachable_s=fact.started_s)


def _apply_claim(snapshot: Snapshot, fact: ClaimHeld) -> Snapshot:
    """Follow the record: adopt launches we do not know, and drop those that were never made.

    If the record gives a node's slot to another launch, the node has lost it: its machine is a stray from now on.
    """
    on_record = {launch.id: launch for launch in fact.launches}
    held = {launch.slot for launch in fact.launches}
    nodes: dict[LaunchId, Node] = {}
    for node in snapshot.nodes.values():
        if node.id in on_record:
            nodes[node.id] = replace(node, recorded=True)
        elif node.launch.slot in held:
            continue
        elif node.call is not None or node.create_sent_s is not None or node.cloud is not None:
            nodes[node.id] = replace(node, recorded=False)
    for launch in fact.launches:
        nodes.setdefault(launch.id, adopt(launch, snapshot))
    gone = [id_ for id_ in snapshot.nodes if id_ not in nodes]
    nodes = {id_: _void_second_look(node) for id_, node in nodes.items()}
    claim = _answered_source(snapshot.claim, fact.started_s)
    # A look is due, and before it nothing is bought.
    snapshot = budget.apply_spend_record(_require_look(with_nodes(snapshot, nodes, gone)), fact.spend)
    snapshot = replace(snapshot, claimed=True, claim=claim, held_jobs=fact.held_jobs)
    return operator.apply_steering_record(held_jobs.with_held_jobs(snapshot, fact.held_jobs), fact.steering)


def _apply_record(snapshot: Snapshot, fact: RecordSeen) -> Snapshot:
    """Take over the record. An observer has created nothing itself, so the record is complete."""
    on_record = {launch.id: launch for launch in fact.launches}
    come = {id_: adopt(launch, snapshot) for id_, launch in on_record.items() if id_ not in snapshot.nodes}
    gone = [id_ for id_ in snapshot.nodes if id_ not in on_record]
    known = with_nodes(snapshot, come, gone)
    # The acting manager has recorded the costs that were counted here since the last look, or will do so.
    known = replace(known, spend={}, spend_counted=frozenset(), steering=known.steering_on_record)
    return operator.apply_steering_record(budget.apply_spend_record(known, fact.spend), fact.steering)


def _void_second_look(node: Node) -> Node:
    """Void the second look: another manager may have acted meanwhile.

    Departures are forgotten too. If rank 0 was away, every node was, which says nothing about a single node.
    """
    if node.drained_s is None and not node.departures_s:
        return node
    return replace(node, drained_s=None, departures_s=())


def _apply_lapsed_order(snapshot: Snapshot, fact: OrderLapsed) -> Snapshot:
    """Give up the claim. It must be renewed, and the record read, before anything else is ordered."""
    if fact.order in SLOTS_ORDERS:
        return _distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        snapshot = held_jobs.apply_hold_failed(snapshot, fact.why)
    if fact.job is not None:
        snapshot = replace(
            snapshot, requeued=snapshot.requeued - {fact.job}
        )  # this job was certainly not resubmitted
    snapshot = _change_nodes(snapshot, fact.launches, lambda node: rank_facts.undo_order(node, fact))
    claim = replace(snapshot.claim, answer_due_s=None, failure=fact.why)
    return replace(snapshot, claimed=False, claim=claim)


def adopt(launch: Launch, snapshot: Snapshot) -> Node:
    """A node for a launch of an earlier process. Its create may or may not have been sent, so we look for it."""
    age_s = max(0.0, snapshot.wall_at - launch.requested_at)
    return Node(
        launch=launch,
        state=NodeState.REQUESTED,
        since_s=snapshot.now_s,
        requested_s=snapshot.now_s - age_s,
        adopted=True,
        recorded=True,
        create_sent_s=snapshot.now_s,
        known_s=snapshot.now_s,
    )


KILL_AGAIN_S = 15.0
SLOTS_ORDERS = frozenset({"ChangeSlots", "RefuseSlots"})
HOLD_ORDERS = frozenset({"HoldJobs", "ReleaseJobs"})
CALL_OF_ORDER: Mapping[str, CallKind] = {
    "RecordLaunches": CallKind.RECORD,
    "DrainNode": CallKind.DRAIN,
    "CordonNode": CallKind.DRAIN,
    "UndrainNode": CallKind.UNDRAIN,
    "StopBroker": CallKind.STOP_BROKER,
    "KillHousekeeping": CallKind.KILL_HOUSEKEEPING,
    "EndLease": CallKind.END_LEASE,
}


def _apply_slots_change(snapshot: Snapshot, fact: SlotsChanged, policy: Policy) -> Snapshot:
    """The slot types changed. Earlier looks are void; the look that came with the answer replaces them."""
    changed = hardware.apply_kept_promise(replace(snapshot, wish_due_s=None), fact.wish_id)
    changed = replace(changed, flux=replace(snapshot.flux, seen_s=None))
    return rank_facts.apply_ranks(changed, RanksSeen(fact.started_s, fact.ranks), policy)


def _distrust_slots(snapshot: Snapshot, why: str) -> Snapshot:
    """A change of slot types may be half done. Renew the claim, which repairs it, and look at the ranks again."""
    claim = replace(snapshot.claim, answer_due_s=None, failure=why, retry_s=snapshot.now_s + 1.0)
    flux = replace(snapshot.flux, seen_s=None, answer_due_s=None)
    return replace(snapshot, claimed=False, claim=claim, flux=flux, wish=None, wish_due_s=None)


def _apply_failed_flux_call(snapshot: Snapshot, fact: FluxCallFailed) -> Snapshot:
    if fact.order in SLOTS_ORDERS:
        return _distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        # It may have been done in part. Read the record again before relying on it.
        return replace(held_jobs.apply_hold_failed(snapshot, fact.why), claimed=False)
    if fact.job is not None:
        # The copy may have been submitted all the same: the queue will show it.
        return replace(snapshot, requeued=snapshot.requeued - {fact.job}, requeue_failed_s=snapshot.now_s)
    kind = CALL_OF_ORDER[fact.order]
    waiting = [
        id_ for id_ in fact.launches if id_ in snapshot.nodes and rank_facts.waits_for(snapshot.nodes[id_], kind)
    ]
    snapshot = _change_nodes(snapshot, waiting, lambda node: rank_facts.fail_call(node, snapshot.now_s))
    # The record may or may not have been written: read it again before relying on it.
    return replace(snapshot, claimed=False) if waiting and kind is CallKind.RECORD else snapshot


def _note_destroy_accepted(node: Node, fact: NodeDestroyed, snapshot: Snapshot, policy: Policy) -> Node:
    del fact
    if not rank_facts.waits_for(node, CallKind.DESTROY):
        return node
    return replace(rank_facts.end_call(node, CallKind.DESTROY), retry_s=snapshot.now_s + policy.relist_s)


# Handlers of facts that concern one node only.
NODE_FACTS: Mapping[type[Any], Callable[[Node, Any, Snapshot, Policy], Node]] = {
    NodeCreated: rank_facts.apply_create_to_node,
    NodeDrained: rank_facts.apply_drain,
    NodeCordoned: rank_facts.apply_cordon,
    BrokerStopped: _note_broker_told,
    HousekeepingKilled: _count_housekeeping_kill,
    NodeDestroyed: _note_destroy_accepted,
}
