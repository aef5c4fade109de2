"""Calls for nodes: how they end, and what their answers change.

A call is an order in flight. If it fails or is not answered, nothing is assumed, and the node is left alone for a
while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nodemanager.core.facts import (
    BrokerStopped,
    FluxCallFailed,
    HousekeepingKilled,
    LaunchesRecorded,
    NodeDestroyed,
    NodeUndrained,
    OrderLapsed,
)
from nodemanager.core.nodes import LEAVING, CallKind, LaunchId, NodeState
from nodemanager.planner.observe import held_jobs, operator
from nodemanager.planner.observe.claim import distrust_slots
from nodemanager.planner.observe.sources import require_look
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, allows, move
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

RETRY_S_MAX = 60.0
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


def waits_for(node: Node, kind: CallKind) -> bool:
    """Whether a call of this kind is in flight for the node."""
    return node.call is not None and node.call.kind is kind


def end_call(node: Node, kind: CallKind) -> Node:
    """The node after a call of the kind was answered. A late answer does not end a later call of another kind."""
    call = node.call
    return replace(node, call=None, tries=0, retry_s=0.0) if call is not None and call.kind is kind else node


def fail_call(node: Node, now_s: float, retry_after_s: float = 0.0) -> Node:
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
    return replace(delay_stop(node), call=None, tries=node.tries + 1, retry_s=now_s + wait_s)


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
    return change_nodes(snapshot, (launch.id for launch in fact.launches), _mark_recorded)


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
    waiting = [id_ for id_ in fact.launches if id_ in snapshot.nodes and waits_for(snapshot.nodes[id_], kind)]
    snapshot = change_nodes(snapshot, waiting, lambda node: fail_call(node, snapshot.now_s))
    # The record may or may not have been written: read it again before relying on it.
    return (
        replace(snapshot, sources=replace(snapshot.sources, claimed=False))
        if waiting and kind is CallKind.RECORD
        else snapshot
    )


def apply_lapsed_order(snapshot: Snapshot, fact: OrderLapsed) -> Snapshot:
    """Give up the claim. It must be renewed, and the record read, before anything else is ordered."""
    if fact.order in SLOTS_ORDERS:
        return distrust_slots(snapshot, fact.why)
    if fact.order in HOLD_ORDERS:
        snapshot = held_jobs.apply_hold_failed(snapshot, fact.why)
    if fact.order in held_jobs.COPY_ORDERS and fact.job is not None:
        snapshot = held_jobs.retry_copy_order(snapshot, fact.job)
    elif fact.job is not None:
        snapshot = replace(
            snapshot, queues=replace(snapshot.queues, requeued=snapshot.queues.requeued - {fact.job})
        )  # this job was certainly not resubmitted
    snapshot = change_nodes(snapshot, fact.launches, lambda node: undo_order(node, fact))
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why)
    return replace(snapshot, sources=replace(snapshot.sources, claimed=False, claim=claim))
