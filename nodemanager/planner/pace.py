"""When the next plan is made, should nothing new come before.

Time alone moves things too: what waits for a moment that is known is planned then, and what is under way is looked
after every second. Where nodes only stand idle and no job waits, a plan would weigh each of them to find the same
again: there the reasons say when the first one's time is up.
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


def next_plan_s(snapshot: Snapshot, made: Plan, policy: Policy) -> float:
    """When to plan again after a plan that was just made, and whose orders stand in the snapshot."""
    now_s = snapshot.now_s
    moments = [*_moments(snapshot, policy)]
    if _quiet(snapshot, made):
        moments += [now_s + QUIET_EVERY_S, *_patience_ends_s(snapshot, made)]
    else:
        moments.append(now_s + PLAN_EVERY_S)
    return min(moment for moment in moments if moment > now_s)


def _quiet(snapshot: Snapshot, made: Plan) -> bool:
    """Whether nothing is ordered or wanted, and whoever is not at work only stands idle."""
    if made.stands_still is not None or made.actions or made.jobs or snapshot.strays or snapshot.doubted_lists:
        return False
    return all(map(_only_idle, node_index_of(snapshot).to_check.values()))


def _only_idle(node: Node) -> bool:
    return node.state is NodeState.IDLE and node.call is None and not node.retry_s and not node.absences


def _patience_ends_s(snapshot: Snapshot, made: Plan) -> Iterator[float]:
    """When each idle node has been so for long enough, or the window that is paid for it closes."""
    for id_ in node_index_of(snapshot).to_check:
        reason = made.nodes[id_]
        match reason.code, reason.figures:
            case "idle_not_long", {"idle_s": float(idle_s), "idle_timeout_s": float(timeout_s)}:
                yield snapshot.now_s + timeout_s - idle_s
            case "paid_time_left", {"window_left_s": float(left_s), "stop_lead_s": float(lead_s)}:
                yield snapshot.now_s + left_s - lead_s
            case "next_window_begins", {"goes_in_s": float(goes_in_s)}:
                yield snapshot.now_s + goes_in_s
            case _:
                pass


def _moments(snapshot: Snapshot, policy: Policy) -> Iterator[float]:
    """When something is asked anew, is not waited for any longer, or may be bought."""
    if snapshot.stirred_s is not None and snapshot.flux.answer_due_s is None:
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
