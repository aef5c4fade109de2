"""Jobs that are to run again: those that asked for it, and whose node its provider is about to take back.

Flux does not start a job again whose node has died. A job that says ``node-manager.requeue`` is submitted once
more, to start only if it does not end well: the new one names the old one, and the old one the new one.
"""

from __future__ import annotations

from nodemanager.core.jobs import JobState
from nodemanager.core.orders import RequeueJob
from nodemanager.core.reasons import because
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot


def requeue_orders(snapshot: Snapshot, policy: Policy) -> tuple[RequeueJob, ...]:
    """The jobs that are to be submitted once more now, each once; none of those on nodes that are only observed."""
    taken_back = {
        node.launch.rank: node
        for node in node_index_of(snapshot).to_check.values()
        if node.reclaimed is not None and _takes_no_job(node) and node.launch.type_name not in policy.observed
    }
    if not taken_back or _may_have_been(snapshot):
        return ()
    again = {job.requeued_from for job in snapshot.jobs.values() if job.requeued_from is not None}
    orders = []
    for job in snapshot.jobs.values():
        if not job.requeue or job.state is not JobState.RUN or job.id in again or job.id in snapshot.requeued:
            continue
        node = next((taken_back[held.rank] for held in job.allocations if held.rank in taken_back), None)
        if node is not None:
            orders.append(RequeueJob(job.id, node.id, because("requeued", job=str(job.id), node=node.launch.slot)))
    return tuple(orders)


def _may_have_been(snapshot: Snapshot) -> bool:
    """Whether a job was submitted, and not answered, since the queue was last seen."""
    failed_s, seen_s = snapshot.requeue_failed_s, snapshot.queue.seen_s
    return failed_s is not None and (seen_s is None or seen_s <= failed_s)


def _takes_no_job(node: Node) -> bool:
    """Drained first: for a tenth of a second after a node's death Flux would give it to the next job."""
    return node.rank is not None and node.rank.drain_reason is not None
