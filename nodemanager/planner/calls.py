"""Calls for nodes: how they end, and what their answers change.

A call is an order in flight. If it fails or is not answered, nothing is assumed, and the node is left alone for a
while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import get_args

from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    ClaimRefused,
    CloudChanged,
    CopySettled,
    FluxCallFailed,
    FluxUnreachable,
    HousekeepingKilled,
    JobsHeld,
    JobsReleased,
    LaunchesRecorded,
    NodeDestroyed,
    NodeUndrained,
    OrderLapsed,
    RecordSeen,
    ResultRead,
    SlotsRefused,
)
from nodemanager.core.jobs import Job, JobId, JobResult
from nodemanager.core.nodes import LEAVING, CallKind, Launch, LaunchId, NodeState
from nodemanager.core.orders import FluxEffect
from nodemanager.planner import hardware, operator, spending
from nodemanager.planner.breakers import clear_record_fault, count_record_fault
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import with_nodes
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import queue_index_of, updated_queue_index
from nodemanager.planner.snapshot import CopyCall, Create, Event, Listing, Node, Snapshot, Source, allows, move

RETRY_S_MAX = 60.0
KILL_AGAIN_S = 15.0
SLOTS_ORDERS = frozenset({"ChangeSlots", "RefuseSlots"})
HOLD_ORDERS = frozenset({"HoldJobs", "ReleaseJobs"})
CALL_OF_ORDER = {it.__name__: it.call for it in get_args(FluxEffect) if it.call is not None}


def waits_for(node: Node, kind: CallKind) -> bool:
    """Whether a call of this kind is in flight for the node."""
    return node.call is not None and node.call.kind is kind


def end_call(node: Node, kind: CallKind) -> Node:
    """The node after a call of the kind was answered. A late answer does not end a later call of another kind."""
    call = node.call
    return (
        replace(node, call=None, tries=0, retry_s=0.0, failure="")
        if call is not None and call.kind is kind
        else node
    )


def fail_call(node: Node, now_s: float, retry_after_s: float = 0.0, why: str = "no answer in time") -> Node:
    """The node after a call for it failed or was not answered. Nothing is assumed; it is left alone a while."""
    if node.call is None:
        return node
    kind = node.call.kind
    if kind is CallKind.CREATE:
        # The create may have worked up to this moment, so lists that began earlier prove nothing.
        node = replace(node, listing=replace(node.listing, known_s=now_s, absences=0, absent_s=None))
    if kind is CallKind.END_LEASE and node.state is NodeState.REQUESTED:
        # The lease may or may not still be on record: write it again before the node is created.
        node = replace(node, create=replace(node.create, recorded=False))
    wait_s = max(retry_after_s, min(RETRY_S_MAX, 0.5 * 2.0**node.tries))
    return replace(delay_stop(node), call=None, tries=node.tries + 1, retry_s=now_s + wait_s, failure=why)


def delay_stop(node: Node) -> Node:
    """Mark the node's stop as delayed, so that its duration is not used as a measurement."""
    if node.state not in LEAVING or node.stop.delayed:
        return node
    return replace(node, stop=replace(node.stop, delayed=True))


def undo_order(node: Node, fact: OrderLapsed) -> Node:
    """The node after an order for it lapsed: nothing has happened, and the order may be given again."""
    if fact.order == "CreateNode" and node.state is NodeState.REQUESTED:
        node = replace(
            node, create=replace(node.create, sent_s=None), listing=replace(node.listing, absences=0, absent_s=None)
        )
    return end_call(node, node.call.kind) if node.call is not None else node


def change_nodes(snapshot: Snapshot, ids: Iterable[LaunchId], change: Callable[[Node], Node]) -> Snapshot:
    """Change the named nodes, and skip those we no longer know."""
    changed = {id_: change(snapshot.nodes[id_]) for id_ in ids if id_ in snapshot.nodes}
    return with_nodes(snapshot, changed)


def apply_recorded(snapshot: Snapshot, fact: LaunchesRecorded) -> Snapshot:
    """The launches are on record: their nodes may be created."""
    written = change_nodes(snapshot, (launch.id for launch in fact.launches), _mark_recorded)
    return clear_record_fault(written)


def _mark_recorded(node: Node) -> Node:
    return replace(end_call(node, CallKind.RECORD), create=replace(node.create, recorded=True))


def apply_undrain(snapshot: Snapshot, fact: NodeUndrained) -> Snapshot:
    """The node takes jobs again."""
    snapshot = change_nodes(snapshot, [fact.launch], lambda node: _undrain_node(node, snapshot.now_s))
    return require_look(snapshot)  # only a look shows which ranks are free there


def _undrain_node(node: Node, now_s: float) -> Node:
    if not waits_for(node, CallKind.UNDRAIN):
        return node
    rank = replace(node.rank, drain_reason=None) if node.rank is not None else None
    # Ignore looks that began earlier: they may still show the drain.
    node = replace(
        end_call(node, CallKind.UNDRAIN),
        rank=rank,
        seen=replace(node.seen, rank_seen_s=now_s, idle_looks=0),
        stop=replace(node.stop, retiring=None, by_operator=False, retired_s=None),
    )
    return move(node, Event.REPRIEVED, now_s) if allows(node, Event.REPRIEVED) else node


def note_broker_told(node: Node, fact: BrokerStopped, snapshot: Snapshot, policy: Policy) -> Node:
    """The broker was told to stop. Its leave shows in a later look."""
    del fact, policy
    if not waits_for(node, CallKind.STOP_BROKER):
        return node
    return replace(end_call(node, CallKind.STOP_BROKER), stop=replace(node.stop, broker_told_s=snapshot.now_s))


def count_housekeeping_kill(node: Node, fact: HousekeepingKilled, snapshot: Snapshot, policy: Policy) -> Node:
    """The kill was sent. A later look shows whether the housekeeping ended; until the next kill we wait a while."""
    del fact, policy
    if not waits_for(node, CallKind.KILL_HOUSEKEEPING):
        return node
    node = end_call(node, CallKind.KILL_HOUSEKEEPING)
    return replace(
        node,
        health=replace(node.health, housekeeping_kills=node.health.housekeeping_kills + 1),
        retry_s=snapshot.now_s + KILL_AGAIN_S,
    )


def note_destroy_accepted(node: Node, fact: NodeDestroyed, snapshot: Snapshot, policy: Policy) -> Node:
    """The provider accepted the destroy. A later list shows whether the node is gone."""
    del fact
    if not waits_for(node, CallKind.DESTROY):
        return node
    node = replace(node, stop=replace(node.stop, destroyed_s=snapshot.now_s))
    return replace(end_call(node, CallKind.DESTROY), retry_s=snapshot.now_s + policy.timing.relist_s)


def drop_ended_leases(snapshot: Snapshot, launches: Iterable[LaunchId]) -> Snapshot:
    """Forget the nodes whose leases ended."""
    ended = [
        node.id
        for launch in launches
        if (node := snapshot.nodes.get(launch)) is not None
        # If neither holds, the news is old: the slot has been leased again.
        and (node.state is NodeState.GONE or waits_for(node, CallKind.END_LEASE))
    ]
    snapshot = with_nodes(snapshot, {}, ended)
    for launch in ended:
        snapshot = operator.forget_steering(snapshot, launch)
    return snapshot


def apply_failed_flux_call(snapshot: Snapshot, fact: FluxCallFailed) -> Snapshot:
    """An order to Flux failed. What it was for may be ordered again."""
    if fact.order in SLOTS_ORDERS:
        return distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        # It may have been done in part. Read the record again before relying on it.
        failed = apply_hold_failed(snapshot, fact.why)
        return replace(failed, sources=replace(failed.sources, claimed=False))
    if fact.order in COPY_ORDERS and fact.job is not None:
        return retry_copy_order(snapshot, fact.job)
    if fact.job is not None:
        # The copy may have been submitted all the same: the queue will show it.
        return replace(
            snapshot,
            queues=replace(
                snapshot.queues, requeued=snapshot.queues.requeued - {fact.job}, requeue_failed_s=snapshot.now_s
            ),
        )
    kind = CALL_OF_ORDER[fact.order]
    waiting = [id_ for id_ in fact.launches if id_ in snapshot.nodes and waits_for(snapshot.nodes[id_], kind)]
    snapshot = change_nodes(snapshot, waiting, lambda node: fail_call(node, snapshot.now_s, why=fact.why))
    if not waiting or kind is not CallKind.RECORD:
        return snapshot
    snapshot = count_record_fault(snapshot, fact.why)
    # The record may or may not have been written: read it again before relying on it.
    return replace(snapshot, sources=replace(snapshot.sources, claimed=False))


def apply_lapsed_order(snapshot: Snapshot, fact: OrderLapsed) -> Snapshot:
    """Give up the claim. It must be renewed, and the record read, before anything else is ordered."""
    if fact.order in SLOTS_ORDERS:
        return distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        snapshot = apply_hold_failed(snapshot, fact.why)
    if fact.order in COPY_ORDERS and fact.job is not None:
        snapshot = retry_copy_order(snapshot, fact.job)
    elif fact.job is not None:
        snapshot = replace(
            snapshot, queues=replace(snapshot.queues, requeued=snapshot.queues.requeued - {fact.job})
        )  # this job was certainly not resubmitted
    snapshot = change_nodes(snapshot, fact.launches, lambda node: undo_order(node, fact))
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why)
    return replace(snapshot, sources=replace(snapshot.sources, claimed=False, claim=claim))


# --- claim ------------------------------------------------------------------------------------------------
#
# The claim on the instance and the record that comes with it: launches, spending, steering, slot types.
#
# Only the manager that holds the claim acts. When it gets the claim, it takes over the record of the one before.


def lose_instance(snapshot: Snapshot, fact: FluxUnreachable) -> Snapshot:
    """The instance is unreachable, so the claim on it is lost too and must be renewed."""
    away = replace(snapshot.sources.flux, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=False, flux=away, claim=claim, unreachable_s=fact.started_s),
    )


def apply_claim(snapshot: Snapshot, fact: ClaimHeld) -> Snapshot:
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
    claim = with_answer(snapshot.sources.claim, fact.started_s)
    # A look is due, and before it nothing is bought.
    snapshot = spending.apply_spend_record(require_look(with_nodes(snapshot, nodes, gone)), fact.spend)
    snapshot = replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=True, claimed_s=snapshot.now_s, claim=claim),
        queues=replace(snapshot.queues, held_jobs=fact.held_jobs),
    )
    return operator.apply_steering_record(with_held_jobs(snapshot, fact.held_jobs), fact.steering)


def apply_refused_claim(snapshot: Snapshot, fact: ClaimRefused) -> Snapshot:
    """Note why the claim was refused, and try again soon."""
    refused = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    refused_claim = replace(snapshot, sources=replace(snapshot.sources, claimed=False, claim=refused))
    return clear_record_fault(refused_claim)  # another manager writes the record


def apply_record(snapshot: Snapshot, fact: RecordSeen) -> Snapshot:
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
    return operator.apply_steering_record(spending.apply_spend_record(known, fact.spend), fact.steering)


def _void_second_look(node: Node) -> Node:
    """Void the second look: another manager may have acted meanwhile.

    Departures are forgotten too. If rank 0 was away, every node was, which says nothing about a single node.
    """
    if node.stop.drained_s is None and not node.health.departures_s:
        return node
    return replace(node, stop=replace(node.stop, drained_s=None), health=replace(node.health, departures_s=()))


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


def apply_slots_refusal(snapshot: Snapshot, fact: SlotsRefused) -> Snapshot:
    """Forget the wish for other slots, and the promise that came with it."""
    return hardware.drop_promise(
        replace(snapshot, slots=replace(snapshot.slots, wish=None, wish_due_s=None)), fact.wish_id
    )


def distrust_slots(snapshot: Snapshot, why: str) -> Snapshot:
    """A change of slot types may be half done. Renew the claim, which repairs it, and look at the ranks again."""
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=why, retry_s=snapshot.now_s + 1.0)
    flux = replace(snapshot.sources.flux, seen_s=None, answer_due_s=None)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=False, claim=claim, flux=flux),
        slots=replace(snapshot.slots, wish=None, wish_due_s=None),
    )


# --- held jobs --------------------------------------------------------------------------------------------
#
# Jobs that the manager holds: those that limits or a budget keep from being served for long, and copies.
#
# The former have urgency 0. In the snapshot such a job has the urgency and priority that it had before, and
# ``held_by_us``. So the planner treats it as a waiting job, and finds out when it can be served. The copy of a
# job is held until it is known how the job ended.


HOLD_AGAIN_S = 5.0
COPY_ORDERS = frozenset({"ReadResult", "StartCopy", "CancelCopy"})
_COPY_AGAIN_S = 1.0


def as_waiting(job: Job, snapshot: Snapshot) -> Job:
    """The job as the planner sees it: with its former urgency if we hold it."""
    held = snapshot.queues.held_jobs.get(job.id) if job.urgency == 0 else None
    if held is None:
        return job
    return replace(job, urgency=held.urgency, priority=held.priority, held_by_us=True)


def apply_held(snapshot: Snapshot, fact: JobsHeld | JobsReleased) -> Snapshot:
    """The snapshot after jobs were held or released."""
    if isinstance(fact, JobsHeld):
        held = {**snapshot.queues.held_jobs, **fact.jobs}
    else:
        held = {id_: it for id_, it in snapshot.queues.held_jobs.items() if id_ not in fact.jobs}
    return with_held_jobs(
        replace(snapshot, queues=replace(snapshot.queues, held_jobs=held, hold_write=Source())), fact.jobs
    )


def with_held_jobs(snapshot: Snapshot, ids: Iterable[JobId]) -> Snapshot:
    """The snapshot with these jobs seen as waiting if they are held on record."""
    known = snapshot.jobs
    seen = {id_: as_waiting(known[id_], snapshot) for id_ in ids if id_ in known}
    come = [job for id_, job in seen.items() if job is not known[id_]]
    if not come:
        return snapshot
    jobs = {**known, **{job.id: job for job in come}}
    gone = [known[job.id] for job in come]
    return replace(
        snapshot,
        jobs=jobs,
        indexes=replace(
            snapshot.indexes,
            queue=updated_queue_index(queue_index_of(known, snapshot.indexes.queue), jobs, gone, come),
        ),
    )


def apply_hold_failed(snapshot: Snapshot, why: str) -> Snapshot:
    """The snapshot after a hold or release failed: it is tried again soon."""
    failed = replace(
        snapshot.queues.hold_write, answer_due_s=None, failure=why, retry_s=snapshot.now_s + HOLD_AGAIN_S
    )
    return replace(snapshot, queues=replace(snapshot.queues, hold_write=failed))


# --- copies -----------------------------------------------------------------------------------------------


def commit_copy_order(snapshot: Snapshot, copy: JobId, answer_s: float) -> Snapshot:
    """The snapshot after the order. It is repeated if nothing has answered within ``answer_s`` seconds."""
    return _with_call(snapshot, copy, retry_s=snapshot.now_s + answer_s)


def apply_copy_answer(snapshot: Snapshot, fact: ResultRead | CopySettled) -> Snapshot:
    """The snapshot after an answer. A settled copy is left alone: if it still waits, it is not ours."""
    if isinstance(fact, CopySettled):
        return _with_call(snapshot, fact.job, retry_s=inf)
    if fact.result is None:
        return retry_copy_order(snapshot, fact.job)
    return _with_call(snapshot, fact.job, retry_s=snapshot.now_s, result=fact.result)


def retry_copy_order(snapshot: Snapshot, copy: JobId) -> Snapshot:
    """The snapshot after an order failed or lapsed. All of them can be repeated."""
    return _with_call(snapshot, copy, retry_s=snapshot.now_s + _COPY_AGAIN_S)


def _with_call(snapshot: Snapshot, copy: JobId, *, retry_s: float, result: JobResult | None = None) -> Snapshot:
    known = snapshot.queues.copy_calls.get(copy, CopyCall())
    call = CopyCall(retry_s, result or known.result)
    calls = {id_: it for id_, it in snapshot.queues.copy_calls.items() if id_ in snapshot.jobs}
    return replace(snapshot, queues=replace(snapshot.queues, copy_calls={**calls, copy: call}))


# --- how old each thing that we know is, and what has to be asked again -----------------------------------


def all_sources(snapshot: Snapshot) -> tuple[Source, ...]:
    """The sources whose calls have a deadline."""
    writes = snapshot.operator.steering_write, snapshot.spending.write, snapshot.queues.hold_write
    clouds = (account.source for account in snapshot.accounts.values())
    return (snapshot.sources.claim, *writes, snapshot.sources.flux, *clouds)


def expire_calls(snapshot: Snapshot) -> Snapshot:
    """The snapshot with calls past their deadline counted as failed."""
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


def with_answer(source: Source, started_s: float) -> Source:
    """The source after an answer whose query began at ``started_s``."""
    return replace(source, seen_s=started_s, answer_due_s=None, failure="", retry_s=0.0)


def is_old(source: Source, started_s: float) -> bool:
    """Whether this answer or a later one is known already."""
    return source.seen_s is not None and started_s <= source.seen_s


def newer(news_s: float | None, started_s: float) -> float | None:
    """The time of news that a query begun at ``started_s`` may lack; None if there is none."""
    return news_s if news_s is not None and news_s > started_s else None


def unsettled_since_s(snapshot: Snapshot) -> float:
    """Since when news has arrived that no plan has considered: now, if there was none."""
    return snapshot.news.unsettled_s if snapshot.news.unsettled_s is not None else snapshot.now_s


def require_look(snapshot: Snapshot) -> Snapshot:
    """Make a look at the ranks due; nothing is bought before it."""
    return replace(
        snapshot,
        news=replace(snapshot.news, look_due_since_s=snapshot.now_s, unsettled_s=unsettled_since_s(snapshot)),
    )


def require_list(snapshot: Snapshot, fact: CloudChanged, policy: Policy) -> Snapshot:
    """Make a list of the cloud due: its nodes have changed."""
    name = policy.only_cloud(fact.cloud)
    account = snapshot.account_of(name)
    source = replace(account.source, news_s=snapshot.now_s)
    return snapshot.with_account(name, replace(account, source=source))
