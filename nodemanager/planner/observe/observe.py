"""Take facts in: the snapshot and a fact make the next snapshot.

State is replaced, never tracked: a fact replaces what we believed about its subject, unless it is older than what
we know. The age of an answer counts from the moment its query *began*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    ClaimRefused,
    CloudCallFailed,
    CloudChanged,
    CloudListed,
    CopySettled,
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
    PeersSeen,
    QueueProbed,
    QueueSeen,
    RanksChanged,
    RanksMeasured,
    RanksSeen,
    RecordSeen,
    ReplacementsRequested,
    ResultRead,
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
from nodemanager.planner.cost import budget, run_times
from nodemanager.planner.cost.budget import accrue
from nodemanager.planner.observe import backoff, drain_breaker, hardware, held_jobs, operator, rank_facts, zones
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, allows, move
from nodemanager.planner.state.node import Create, Listing, Node
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of, updated_queue_index
from nodemanager.planner.state.snapshot import Peers, Snapshot, Source


def observe(snapshot: Snapshot, fact: Fact, policy: Policy) -> Snapshot:
    """The snapshot after a fact. It never raises for bad input from outside, only for a bug of ours."""
    return accrue(snapshot, HANDLERS[type(fact)](snapshot, (fact,), policy), fact, policy)


def observe_all(snapshot: Snapshot, facts: Iterable[Fact], policy: Policy) -> Snapshot:
    """The snapshot after several facts: the same as one by one, but faster."""
    if policy.budgets:  # the cost of each fact is added up by itself
        for fact in facts:
            snapshot = observe(snapshot, fact, policy)
        return snapshot
    for kind, alike in groupby(facts, key=type):
        snapshot = HANDLERS[kind](snapshot, tuple(alike), policy)
    return snapshot


def advance_to(snapshot: Snapshot, tick: Tick) -> Snapshot:
    """The snapshot at a later moment: calls past their deadline count as failed."""
    snapshot = operator.withdraw_lapsed(replace(snapshot, now_s=tick.now_s, wall_at=tick.wall_at))
    for source in _sources(snapshot):
        if source.answer_due_s is not None and source.answer_due_s <= tick.now_s:
            snapshot = _expire_calls(snapshot)
            break
    if snapshot.slots.wish_due_s is not None and snapshot.slots.wish_due_s <= tick.now_s:
        snapshot = _distrust_slots(snapshot, "the change of slot types was not answered in time")
    # This runs with every fact and every plan, so it checks only the few nodes with a call.
    waiting = node_index_of(snapshot).with_call.values()
    late = [node.id for node in waiting if node.call is not None and node.call.deadline_s <= tick.now_s]
    return _change_nodes(snapshot, late, lambda node: rank_facts.fail_call(node, tick.now_s)) if late else snapshot


def _sources(snapshot: Snapshot) -> tuple[Source, ...]:
    writes = snapshot.operator.steering_write, snapshot.spending.write, snapshot.queues.hold_write
    clouds = (account.source for account in snapshot.accounts.values())
    return (snapshot.sources.claim, *writes, snapshot.sources.flux, *clouds)


def _expire_calls(snapshot: Snapshot) -> Snapshot:
    now_s = snapshot.now_s
    return replace(
        snapshot,
        sources=replace(
            snapshot.sources,
            claim=_expired(snapshot.sources.claim, now_s),
            flux=_expired(snapshot.sources.flux, now_s),
        ),
        accounts={
            name: replace(account, source=_expired(account.source, now_s))
            for name, account in snapshot.accounts.items()
        },
        operator=replace(snapshot.operator, steering_write=_expired(snapshot.operator.steering_write, now_s)),
        queues=replace(snapshot.queues, hold_write=_expired(snapshot.queues.hold_write, now_s)),
        spending=replace(snapshot.spending, write=_expired(snapshot.spending.write, now_s)),
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
    return replace(
        snapshot,
        news=replace(
            snapshot.news, look_due_since_s=snapshot.now_s, unsettled_s=rank_facts.unsettled_since_s(snapshot)
        ),
    )


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


def _apply_recorded(snapshot: Snapshot, fact: LaunchesRecorded) -> Snapshot:
    return _change_nodes(snapshot, (launch.id for launch in fact.launches), _mark_recorded)


def _mark_recorded(node: Node) -> Node:
    return replace(rank_facts.end_call(node, CallKind.RECORD), create=replace(node.create, recorded=True))


def _apply_report(snapshot: Snapshot, fact: NodeReported, policy: Policy) -> Snapshot:
    node = snapshot.nodes.get(fact.launch)
    if node is None:
        return snapshot
    match fact.phase:
        case JoinPhase.REPLAYED:
            return with_nodes(snapshot, {node.id: replace(node, health=replace(node.health, replayed=True))})
        case JoinPhase.RECLAIMED:
            # The provider is short of capacity here, so nodes of this type are bought elsewhere for a while.
            if node.health.reclaimed is None:
                snapshot = backoff.apply_refusal(snapshot, node, FailureKind.CAPACITY, fact.detail, policy)
            return with_nodes(
                snapshot, {node.id: replace(node, health=replace(node.health, reclaimed=fact.detail))}
            )
        case _:
            return with_nodes(
                snapshot,
                {
                    node.id: replace(
                        node, join_report=replace(node.join_report, phase=fact.phase, detail=fact.detail)
                    )
                },
            )


def _count_housekeeping_kill(node: Node, fact: HousekeepingKilled, snapshot: Snapshot, policy: Policy) -> Node:
    """The kill was sent. A later look shows whether the housekeeping ended; until the next kill we wait a while."""
    del fact, policy
    if not rank_facts.waits_for(node, CallKind.KILL_HOUSEKEEPING):
        return node
    node = rank_facts.end_call(node, CallKind.KILL_HOUSEKEEPING)
    return replace(
        node,
        health=replace(node.health, housekeeping_kills=node.health.housekeeping_kills + 1),
        retry_s=snapshot.now_s + KILL_AGAIN_S,
    )


def _note_broker_told(node: Node, fact: BrokerStopped, snapshot: Snapshot, policy: Policy) -> Node:
    del fact, policy
    if not rank_facts.waits_for(node, CallKind.STOP_BROKER):
        return node
    return replace(
        rank_facts.end_call(node, CallKind.STOP_BROKER), stop=replace(node.stop, broker_told_s=snapshot.now_s)
    )


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
        seen=replace(node.seen, rank_seen_s=now_s, idle_looks=0),
        stop=replace(node.stop, retiring=None, by_operator=False, retired_s=None),
    )
    return move(node, Event.REPRIEVED, now_s) if allows(node, Event.REPRIEVED) else node


# --- the queue --------------------------------------------------------------------------------------------


def _apply_queue(snapshot: Snapshot, fact: QueueSeen, policy: Policy) -> Snapshot:
    fact = zones.gather_wide_jobs(fact, snapshot, policy)
    known = snapshot.jobs
    jobs: dict[JobId, Job] = {} if fact.complete else dict(known)
    unreadable = {} if fact.complete else dict(snapshot.queues.unreadable)
    for job in fact.jobs:
        jobs[job.id] = held_jobs.as_waiting(job, snapshot) if snapshot.queues.held_jobs else job
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
        snapshot = replace(
            snapshot,
            news=replace(snapshot.news, newest_job_s=now_s, unsettled_s=rank_facts.unsettled_since_s(snapshot)),
        )
    stopped = snapshot.queues.stopped if fact.queues_stopped is None else fact.queues_stopped
    if gone or come or stopped != snapshot.queues.stopped:
        snapshot = replace(snapshot, news=replace(snapshot.news, changed_s=now_s))
    if gone and snapshot.queues.requeued:
        snapshot = replace(
            snapshot, queues=replace(snapshot.queues, requeued=snapshot.queues.requeued & jobs.keys())
        )
    if gone or come:
        queue_index = updated_queue_index(queue_index_of(known, snapshot.indexes.queue), jobs, gone, come)
        snapshot = replace(snapshot, jobs=jobs, indexes=replace(snapshot.indexes, queue=queue_index))
        snapshot = run_times.with_runs(drain_breaker.remember_users(snapshot, gone), gone)
    return replace(
        snapshot,
        queues=replace(
            snapshot.queues,
            unreadable=unreadable,
            stopped=stopped,
            asked_s=snapshot.queues.asked_s if fact.queues_stopped is None else fact.started_s,
        ),
        sources=replace(snapshot.sources, queue=_answered_source(snapshot.sources.queue, fact.started_s)),
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


def _apply_probe(snapshot: Snapshot, fact: QueueProbed) -> Snapshot:
    answered = _answered_source(snapshot.sources.queue, fact.started_s)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, queue=answered),
        queues=replace(snapshot.queues, asked_s=fact.started_s),
    )


def _apply_ranks(snapshot: Snapshot, fact: RanksSeen, policy: Policy) -> Snapshot:
    return hardware.apply_repaired_promises(rank_facts.apply_ranks(snapshot, fact, policy), policy)


# --- the instance and the claim on it ---------------------------------------------------------------------


def _lose_instance(snapshot: Snapshot, fact: FluxUnreachable) -> Snapshot:
    """The instance is unreachable, so the claim on it is lost too and must be renewed."""
    away = replace(snapshot.sources.flux, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=False, flux=away, claim=claim, unreachable_s=fact.started_s),
    )


def _apply_claim(snapshot: Snapshot, fact: ClaimHeld) -> Snapshot:
    """Follow the record: adopt launches we do not know, and drop those that were never made.

    If the record gives a node's slot to another launch, the node has lost it: its machine is a stray from now on.
    """
    on_record = {launch.id: launch for launch in fact.launches}
    held = {launch.slot for launch in fact.launches}
    nodes: dict[LaunchId, Node] = {}
    for node in snapshot.nodes.values():
        if node.id in on_record:
            nodes[node.id] = replace(node, create=replace(node.create, recorded=True))
        elif node.launch.slot in held:
            continue
        elif node.call is not None or node.create.sent_s is not None or node.cloud is not None:
            nodes[node.id] = replace(node, create=replace(node.create, recorded=False))
    for launch in fact.launches:
        nodes.setdefault(launch.id, adopt(launch, snapshot))
    gone = [id_ for id_ in snapshot.nodes if id_ not in nodes]
    nodes = {id_: _void_second_look(node) for id_, node in nodes.items()}
    claim = _answered_source(snapshot.sources.claim, fact.started_s)
    # A look is due, and before it nothing is bought.
    snapshot = budget.apply_spend_record(_require_look(with_nodes(snapshot, nodes, gone)), fact.spend)
    snapshot = replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=True, claim=claim),
        queues=replace(snapshot.queues, held_jobs=fact.held_jobs),
    )
    return operator.apply_steering_record(held_jobs.with_held_jobs(snapshot, fact.held_jobs), fact.steering)


def _apply_refused_claim(snapshot: Snapshot, fact: ClaimRefused) -> Snapshot:
    refused = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    return replace(snapshot, sources=replace(snapshot.sources, claimed=False, claim=refused))


def _apply_record(snapshot: Snapshot, fact: RecordSeen) -> Snapshot:
    """Take over the record. An observer has created nothing itself, so the record is complete."""
    on_record = {launch.id: launch for launch in fact.launches}
    come = {id_: adopt(launch, snapshot) for id_, launch in on_record.items() if id_ not in snapshot.nodes}
    gone = [id_ for id_ in snapshot.nodes if id_ not in on_record]
    known = with_nodes(snapshot, come, gone)
    # The acting manager has recorded the costs that were counted here since the last look, or will do so.
    known = replace(
        known,
        operator=replace(known.operator, steering=known.operator.steering_on_record),
        spending=replace(known.spending, amounts={}, counted=frozenset()),
    )
    return operator.apply_steering_record(budget.apply_spend_record(known, fact.spend), fact.steering)


def _void_second_look(node: Node) -> Node:
    """Void the second look: another manager may have acted meanwhile.

    Departures are forgotten too. If rank 0 was away, every node was, which says nothing about a single node.
    """
    if node.stop.drained_s is None and not node.health.departures_s:
        return node
    return replace(node, stop=replace(node.stop, drained_s=None), health=replace(node.health, departures_s=()))


def _apply_lapsed_order(snapshot: Snapshot, fact: OrderLapsed) -> Snapshot:
    """Give up the claim. It must be renewed, and the record read, before anything else is ordered."""
    if fact.order in SLOTS_ORDERS:
        return _distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        snapshot = held_jobs.apply_hold_failed(snapshot, fact.why)
    if fact.order in held_jobs.COPY_ORDERS and fact.job is not None:
        snapshot = held_jobs.retry_copy_order(snapshot, fact.job)
    elif fact.job is not None:
        snapshot = replace(
            snapshot, queues=replace(snapshot.queues, requeued=snapshot.queues.requeued - {fact.job})
        )  # this job was certainly not resubmitted
    snapshot = _change_nodes(snapshot, fact.launches, lambda node: rank_facts.undo_order(node, fact))
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why)
    return replace(snapshot, sources=replace(snapshot.sources, claimed=False, claim=claim))


def adopt(launch: Launch, snapshot: Snapshot) -> Node:
    """A node for a launch of an earlier process. Its create may or may not have been sent, so we look for it."""
    age_s = max(0.0, snapshot.wall_at - launch.requested_at)
    return Node(
        launch=launch,
        state=NodeState.REQUESTED,
        since_s=snapshot.now_s,
        create=Create(snapshot.now_s - age_s, adopted=True, recorded=True, sent_s=snapshot.now_s),
        listing=Listing(known_s=snapshot.now_s),
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
    changed = hardware.apply_kept_promise(
        replace(snapshot, slots=replace(snapshot.slots, wish_due_s=None)), fact.wish_id
    )
    changed = replace(changed, sources=replace(changed.sources, flux=replace(snapshot.sources.flux, seen_s=None)))
    return rank_facts.apply_ranks(changed, RanksSeen(fact.started_s, fact.ranks), policy)


def _apply_slots_refusal(snapshot: Snapshot, fact: SlotsRefused) -> Snapshot:
    return hardware.drop_promise(
        replace(snapshot, slots=replace(snapshot.slots, wish=None, wish_due_s=None)), fact.wish_id
    )


def _distrust_slots(snapshot: Snapshot, why: str) -> Snapshot:
    """A change of slot types may be half done. Renew the claim, which repairs it, and look at the ranks again."""
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=why, retry_s=snapshot.now_s + 1.0)
    flux = replace(snapshot.sources.flux, seen_s=None, answer_due_s=None)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=False, claim=claim, flux=flux),
        slots=replace(snapshot.slots, wish=None, wish_due_s=None),
    )


def _apply_failed_flux_call(snapshot: Snapshot, fact: FluxCallFailed) -> Snapshot:
    if fact.order in SLOTS_ORDERS:
        return _distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        # It may have been done in part. Read the record again before relying on it.
        failed = held_jobs.apply_hold_failed(snapshot, fact.why)
        return replace(failed, sources=replace(failed.sources, claimed=False))
    if fact.order in held_jobs.COPY_ORDERS and fact.job is not None:
        return held_jobs.retry_copy_order(snapshot, fact.job)
    if fact.job is not None:
        # The copy may have been submitted all the same: the queue will show it.
        return replace(
            snapshot,
            queues=replace(
                snapshot.queues, requeued=snapshot.queues.requeued - {fact.job}, requeue_failed_s=snapshot.now_s
            ),
        )
    kind = CALL_OF_ORDER[fact.order]
    waiting = [
        id_ for id_ in fact.launches if id_ in snapshot.nodes and rank_facts.waits_for(snapshot.nodes[id_], kind)
    ]
    snapshot = _change_nodes(snapshot, waiting, lambda node: rank_facts.fail_call(node, snapshot.now_s))
    # The record may or may not have been written: read it again before relying on it.
    return (
        replace(snapshot, sources=replace(snapshot.sources, claimed=False))
        if waiting and kind is CallKind.RECORD
        else snapshot
    )


def _require_list(snapshot: Snapshot, fact: CloudChanged, policy: Policy) -> Snapshot:
    name = policy.only_cloud(fact.cloud)
    account = snapshot.account_of(name)
    source = replace(account.source, news_s=snapshot.now_s)
    return snapshot.with_account(name, replace(account, source=source))


def _note_destroy_accepted(node: Node, fact: NodeDestroyed, snapshot: Snapshot, policy: Policy) -> Node:
    del fact
    if not rank_facts.waits_for(node, CallKind.DESTROY):
        return node
    return replace(rank_facts.end_call(node, CallKind.DESTROY), retry_s=snapshot.now_s + policy.timing.relist_s)


# --- the table --------------------------------------------------------------------------------------------

# Takes facts of one type in, in their order.
Handler = Callable[[Snapshot, Sequence[Any], Policy], Snapshot]


def one_by_one(apply: Callable[[Snapshot, Any, Policy], Snapshot]) -> Handler:
    """Takes facts in with a function of the snapshot, one fact and the policy."""

    def handle(snapshot: Snapshot, facts: Sequence[Any], policy: Policy) -> Snapshot:
        for fact in facts:
            snapshot = apply(snapshot, fact, policy)
        return snapshot

    return handle


def whatever_the_policy(apply: Callable[[Snapshot, Any], Snapshot]) -> Handler:
    """Takes facts in with a function of the snapshot and one fact."""
    return one_by_one(lambda snapshot, fact, _: apply(snapshot, fact))


def to_nodes(apply: Callable[[Node, Any, Snapshot, Policy], Node]) -> Handler:
    """Takes facts in that each concern one node. News of a node we no longer know is ignored."""

    def handle(snapshot: Snapshot, facts: Sequence[Any], policy: Policy) -> Snapshot:
        changed: dict[LaunchId, Node] = {}
        for fact in facts:
            node = changed.get(fact.launch) or snapshot.nodes.get(fact.launch)
            if node is not None:
                changed[node.id] = apply(node, fact, snapshot, policy)
        return with_nodes(snapshot, changed)

    return handle


_create_together = to_nodes(rank_facts.apply_create_to_node)
_create_one_by_one = one_by_one(rank_facts.apply_create)


def _apply_creates(snapshot: Snapshot, facts: Sequence[NodeCreated], policy: Policy) -> Snapshot:
    """While something is blocked or a quota is known, each create may lift it before the next is counted."""
    matters = snapshot.learned.blocks or snapshot.learned.quotas
    return (_create_one_by_one if matters else _create_together)(snapshot, facts, policy)


def _end_leases(snapshot: Snapshot, facts: Sequence[LeaseEnded], policy: Policy) -> Snapshot:
    del policy
    return _drop_ended_leases(snapshot, [fact.launch for fact in facts])


_nothing_follows = whatever_the_policy(lambda snapshot, _: snapshot)
_written = whatever_the_policy(operator.apply_steering_written)
_spend_written = whatever_the_policy(budget.apply_spend_written)
_told_by_operator = whatever_the_policy(operator.apply_operator_fact)


# What each type of fact does to the snapshot.
def _apply_peers(snapshot: Snapshot, fact: PeersSeen, policy: Policy) -> Snapshot:
    del policy
    ordered = {
        id_: until_s
        for id_, until_s in snapshot.peers.ordered.items()
        if until_s > snapshot.now_s and id_ not in fact.taken and id_ in snapshot.jobs
    }
    return replace(snapshot, peers=Peers(fact, ordered))


HANDLERS: Mapping[type[Fact], Handler] = {
    # the queue and the ranks
    QueueSeen: one_by_one(_apply_queue),
    QueueProbed: whatever_the_policy(_apply_probe),
    RanksChanged: whatever_the_policy(lambda snapshot, _: _require_look(snapshot)),
    RanksSeen: one_by_one(_apply_ranks),
    RanksMeasured: one_by_one(hardware.apply_rank_measurements),
    # the instance and the claim on it
    FluxUnreachable: whatever_the_policy(_lose_instance),
    ClaimHeld: whatever_the_policy(_apply_claim),
    ClaimRefused: whatever_the_policy(_apply_refused_claim),
    RecordSeen: whatever_the_policy(_apply_record),
    SlotsChanged: one_by_one(_apply_slots_change),
    SlotsRefused: whatever_the_policy(_apply_slots_refusal),
    # answers of Flux to orders
    LaunchesRecorded: whatever_the_policy(_apply_recorded),
    NodeDrained: to_nodes(rank_facts.apply_drain),
    NodeCordoned: to_nodes(rank_facts.apply_cordon),
    NodeUndrained: whatever_the_policy(_apply_undrain),
    BrokerStopped: to_nodes(_note_broker_told),
    HousekeepingKilled: to_nodes(_count_housekeeping_kill),
    LeaseEnded: _end_leases,
    JobRequeued: _nothing_follows,  # the queue shows the new job
    ResultRead: whatever_the_policy(held_jobs.apply_copy_answer),
    CopySettled: whatever_the_policy(held_jobs.apply_copy_answer),
    JobsHeld: whatever_the_policy(held_jobs.apply_held),
    JobsReleased: whatever_the_policy(held_jobs.apply_held),
    FluxCallFailed: whatever_the_policy(_apply_failed_flux_call),
    OrderLapsed: whatever_the_policy(_apply_lapsed_order),
    # the cloud
    CloudListed: one_by_one(rank_facts.apply_cloud_list),
    CloudChanged: one_by_one(_require_list),
    NodeCreated: _apply_creates,
    NodeDestroyed: to_nodes(_note_destroy_accepted),
    CloudCallFailed: one_by_one(rank_facts.apply_cloud_failure),
    LeftoversRemoved: _nothing_follows,  # they belonged to no node
    # what nodes report about themselves
    NodeReported: one_by_one(_apply_report),
    NodeMeasured: one_by_one(hardware.apply_measurement),
    # other Flux instances
    PeersSeen: one_by_one(_apply_peers),
    # operators, and what is written to the record
    HoldPlaced: _told_by_operator,
    RetirementRequested: _told_by_operator,
    ReplacementsRequested: _told_by_operator,
    NodeReleased: _told_by_operator,
    DecisionsPaused: _told_by_operator,
    DecisionsResumed: _told_by_operator,
    SteeringKept: _written,
    SteeringNotKept: _written,
    SpendKept: _spend_written,
    SpendNotKept: _spend_written,
}
