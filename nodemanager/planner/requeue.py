"""Resubmit jobs whose node the provider is about to take back, if they ask for it.

Flux does not restart a job whose node has died. A job with the attribute ``node-manager.requeue`` is submitted once
more. The copy is held until the original has ended. It starts if the original failed. It is cancelled if the
original ended well or was cancelled. Each of the two names the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf

from nodemanager.core.jobs import JobId, JobResult, JobState
from nodemanager.core.orders import CancelCopy, ReadResult, RequeueJob, StartCopy
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import queue_index_of
from nodemanager.planner.snapshot import CopyCall, Node, Snapshot

CopyOrder = ReadResult | StartCopy | CancelCopy
_AT_ONCE_MAX = 50  # any user may submit jobs that look like copies
_STARTS = (JobResult.FAILED, JobResult.TIMEOUT)


def requeue_orders(snapshot: Snapshot, policy: Policy) -> tuple[RequeueJob, ...]:
    """The orders to resubmit jobs, each job once. Jobs on nodes of observed types are left out."""
    taken_back = {
        node.launch.rank: node
        for node in node_index_of(snapshot).to_check.values()
        if node.health.reclaimed is not None and _is_drained(node) and node.launch.type_name not in policy.observed
    }
    if not taken_back or _is_unconfirmed(snapshot):
        return ()
    again = _already_requeued(snapshot)
    orders = []
    for job in snapshot.jobs.values():
        if (
            not job.request.requeue
            or job.state is not JobState.RUN
            or job.id in again
            or job.id in snapshot.queues.requeued
        ):
            continue
        node = next((taken_back[held.rank] for held in job.allocations if held.rank in taken_back), None)
        if node is not None:
            orders.append(
                RequeueJob(job.id, node.id, because(Code.REQUEUED, job=str(job.id), node=node.launch.slot))
            )
    return tuple(orders)


def _already_requeued(snapshot: Snapshot) -> set[JobId]:
    """The jobs that a copy replaces. A copy belongs to the same user: anybody can name any job as the original."""
    found: set[JobId] = set()
    for copy in snapshot.jobs.values():
        named = copy.request.requeued_from
        original = snapshot.jobs.get(named) if named is not None else None
        if original is not None and original.userid == copy.userid:
            found.add(original.id)
    return found


def _is_unconfirmed(snapshot: Snapshot) -> bool:
    """Whether a resubmission without an answer may not be visible in the queue yet."""
    failed_s, seen_s = snapshot.queues.requeue_failed_s, snapshot.sources.queue.seen_s
    return failed_s is not None and (seen_s is None or seen_s <= failed_s)


def _is_drained(node: Node) -> bool:
    """Whether the node is drained. If not, Flux may give it to the next job just after its death (for 0.1 s)."""
    return node.rank is not None and node.rank.drain_reason is not None


# --- the copies -------------------------------------------------------------------------------------------


def copy_orders(snapshot: Snapshot) -> tuple[CopyOrder, ...]:
    """The next order for each copy whose original has ended: read how, then start or cancel the copy."""
    calls = snapshot.queues.copy_calls
    orders = (
        _copy_order(copy, original, calls.get(copy, CopyCall()))
        for copy, original in _copies_to_settle(snapshot)
        if calls.get(copy, CopyCall()).retry_s <= snapshot.now_s
    )
    return tuple(islice(orders, _AT_ONCE_MAX))


def copies_change_s(snapshot: Snapshot) -> float:
    """When the next call about a copy may be repeated; infinity if none is."""
    calls = snapshot.queues.copy_calls
    return min((calls[copy].retry_s for copy, _ in _copies_to_settle(snapshot) if copy in calls), default=inf)


def _copies_to_settle(snapshot: Snapshot) -> Iterator[tuple[JobId, JobId]]:
    """Each held copy with its original, if that has ended."""
    for copy, original in queue_index_of(snapshot.jobs, snapshot.indexes.queue).copies.items():
        if original not in snapshot.jobs and original not in snapshot.queues.unreadable:
            yield copy, original


def _copy_order(copy: JobId, original: JobId, call: CopyCall) -> CopyOrder:
    if call.result is None:
        return ReadResult(copy, original, because(Code.ORIGINAL_ENDED, job=str(original)))
    if call.result is JobResult.UNKNOWN:
        return CancelCopy(copy, because(Code.COPY_UNDECIDED, job=str(original)))
    job, result = str(original), str(call.result)
    if call.result in _STARTS:
        return StartCopy(copy, because(Code.COPY_STARTS, job=job, result=result))
    return CancelCopy(copy, because(Code.COPY_NOT_NEEDED, job=job, result=result))
