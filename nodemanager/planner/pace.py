"""Decide when to plan again if no news arrives before.

Time alone changes decisions too. A wait whose end is known is planned for at its end; calls in flight are checked
every second. If nodes are merely idle and no job waits, the reasons of the last plan tell when the first idle
node's time is up, so no plan is needed before.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemanager.core.nodes import NodeState
from nodemanager.planner.plan import Plan, settles_at_s
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot

PLAN_EVERY_S = 1.0
QUIET_EVERY_S = 5.0


def next_plan_s(snapshot: Snapshot, plan: Plan, policy: Policy) -> float:
    """When to plan again after a plan that was just made and committed to the snapshot."""
    now_s = snapshot.now_s
    moments = [*_deadlines_s(snapshot, policy)]
    if _is_quiet(snapshot, plan):
        moments += [now_s + QUIET_EVERY_S, *_idle_deadlines_s(snapshot, plan)]
    else:
        moments.append(now_s + PLAN_EVERY_S)
    return min(moment for moment in moments if moment > now_s)


def _is_quiet(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether nothing is ordered, no job waits, and every node is either simply busy or merely idle."""
    if plan.stands_still is not None or plan.actions or plan.jobs or snapshot.strays or snapshot.doubted_lists:
        return False
    return all(map(_is_merely_idle, node_index_of(snapshot).to_check.values()))


def _is_merely_idle(node: Node) -> bool:
    return node.state is NodeState.IDLE and node.call is None and not node.retry_s and not node.absences


def _idle_deadlines_s(snapshot: Snapshot, plan: Plan) -> Iterator[float]:
    """When each idle node's patience ends, or its paid window closes."""
    for id_ in node_index_of(snapshot).to_check:
        reason = plan.nodes[id_]
        match reason.code, reason.figures:
            case "idle_not_long", {"idle_s": float(idle_s), "idle_timeout_s": float(timeout_s)}:
                yield snapshot.now_s + timeout_s - idle_s
            case "paid_time_left", {"window_left_s": float(left_s), "stop_lead_s": float(lead_s)}:
                yield snapshot.now_s + left_s - lead_s
            case "next_window_begins", {"goes_in_s": float(goes_in_s)}:
                yield snapshot.now_s + goes_in_s
            case _:
                pass


def _deadlines_s(snapshot: Snapshot, policy: Policy) -> Iterator[float]:
    """When a source must be asked again, an answer is overdue, or the queue has settled."""
    if snapshot.look_due_since_s is not None and snapshot.flux.answer_due_s is None:
        yield snapshot.flux.retry_s
    if snapshot.unsettled_s is not None:
        yield settles_at_s(snapshot, policy)
        yield snapshot.unsettled_s + policy.settle_max_s
    for source, every_s in ((snapshot.flux, policy.probe_s), (snapshot.cloud, policy.relist_s)):
        if source.answer_due_s is not None:
            yield source.answer_due_s
        elif source.seen_s is not None:
            yield source.seen_s + every_s
    for node in node_index_of(snapshot).with_call.values():
        if node.call is not None:
            yield node.call.deadline_s
