"""Computes when the passing of time alone may change the plan.

The live service plans every few seconds and does not need to know. The replay reads from the reasons of a plan
until when each node stays as it is. For a reason it does not know, it plans again every minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Figure
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import TypeName
from nodemanager.planner.cost import billing, timings
from nodemanager.planner.plan import Plan
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot

POLL_S = 60.0
PLAN_EVERY_S = 1.0  # as the live service: never more often

# Reasons that end by an event, never by time alone.
BY_EVENTS = frozenset(
    {
        "busy", "wanted", "nodes_min", "held_by_drain", "call_in_flight", "calls_in_flight_max", "looked_for",
        "gone_yet_online", "job_slipped_in", "still_schedulable", "not_drained", "lease_to_record", "creating",
        "gone", "demand", "stopping", "wanted_again", "nothing_to_destroy", "found_drained", "window_closes",
        "makes_room", "above_nodes_max",
        "spare", "join_failed", "ticket_replayed", "never_joined", "broker_lost", "failed_at_provider",
        "unknown_type", "lease_not_wanted", "lease_above_limits", "only_observed",
    }
)  # fmt: skip
# Reasons of calls that wait until another call has been answered.
HELD_CALLS = frozenset({"calls_in_flight_max", "create_paced"})


def next_wake_s(plan: Plan, snapshot: Snapshot, policy: Policy) -> tuple[float, bool]:
    """Return the next time at which the plan may change, and whether a call waits for another call's answer."""
    wake_s = inf
    held = False
    leads_s = {name: timings.stop_lead_s(snapshot, name, policy) for name in policy.types}
    decided = plan.decided
    node_index = node_index_of(snapshot)
    for id_, node in {**node_index.to_check, **node_index.at_rest}.items():
        reason = decided.get(id_)
        if reason is None or node.call is not None:
            continue  # it is busy, or the answer to its call will change the plan
        held = held or reason.code in HELD_CALLS
        if reason.code not in BY_EVENTS:
            at_s = _node_wake_s(node, reason, snapshot, policy, leads_s, wake_s)
            wake_s = min(wake_s, max(at_s, snapshot.now_s + PLAN_EVERY_S))
    if plan.jobs:
        wake_s = min([wake_s, *(at_s for at_s in _retry_moments_s(snapshot) if at_s > snapshot.now_s)])
    return wake_s, held


def _retry_moments_s(snapshot: Snapshot) -> Iterator[float]:
    """Yield the times at which refused or failed calls may be tried again."""
    yield from (block.until_s for block in snapshot.blocks.values())
    yield from (quota.probe_s for quota in snapshot.quotas.values())
    yield from (streak.retry_s for streak in snapshot.streaks.values())


def _node_wake_s(
    node: Node,
    reason: Reason,
    snapshot: Snapshot,
    policy: Policy,
    leads_s: Mapping[TypeName, float],
    wake_s: float,
) -> float:
    """The time at which something may change for a node. Any time from ``wake_s`` on stands for "not sooner"."""
    now_s = snapshot.now_s
    match reason.code:
        case "paid_time_left" | "next_window_begins":
            return now_s + max(PLAN_EVERY_S, _paid_time_left_s(reason))
        case "idle_not_long" | "idle_unconfirmed":
            return max(_idle_end_s(node, policy, now_s, leads_s, wake_s), now_s + PLAN_EVERY_S)
        case "retry_later":
            # Only a list that shows the node gone changes anything.
            return inf if node.state is NodeState.STOPPING and node.tries == 0 else node.retry_s
        case "create_paced":
            return now_s + 1.0 / policy.creates_per_s
        case "booting":
            return max(node.requested_s + policy.boot_timeout_s, node.since_s + policy.rejoin_timeout_s)
        case "may_rejoin":
            return node.since_s + policy.rejoin_timeout_s
        case "settling":
            return max(_seconds(reason.figures["settles_at_s"]), now_s + PLAN_EVERY_S)
        case "broker_stopping":
            return (node.broker_told_s or now_s) + policy.broker_stop_s
        case code if code.startswith("blocked_"):
            return inf  # the end of the block itself counts, see _retry_moments_s
        case _:
            return now_s + POLL_S


def _paid_time_left_s(reason: Reason) -> float:
    figures = reason.figures
    if reason.code == "next_window_begins":
        return _seconds(figures["goes_in_s"])
    return _seconds(figures["window_left_s"]) - _seconds(figures["stop_lead_s"])


def _seconds(figure: Figure) -> float:
    return figure if isinstance(figure, float) else 0.0


def _idle_end_s(
    node: Node, policy: Policy, now_s: float, leads_s: Mapping[TypeName, float], wake_s: float
) -> float:
    """The earliest time at which an idle node may be terminated, by its idle time and its billing window."""
    node_type = policy.types.get(node.launch.type_name)
    confirmed_s = now_s if node.idle_looks >= policy.idle_confirmations else now_s + policy.probe_s
    if node_type is None:
        return confirmed_s
    rule = node_type.billing
    at_s = confirmed_s
    if rule.window_s <= policy.idle_timeout_s:
        idle_since_s = node.idle_since_s if node.idle_since_s is not None else now_s
        at_s = max(at_s, idle_since_s + policy.idle_timeout_s)
    if at_s >= wake_s:
        return at_s  # its billing window can only delay it
    born_s = now_s - billing.age_s(node, now_s)
    left_s = billing.window_left_s(rule, at_s - born_s)
    return at_s + max(0.0, left_s - leads_s[node_type.name])
