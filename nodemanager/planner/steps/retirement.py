"""Decide which idle nodes are retired, when, and why the others stay."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner.cost import billing
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy


class StopTimes(NamedTuple):
    """How long stops of a node type take, in seconds."""

    lead_s: float  # how long before a billing window's end a stop begins
    quickest_s: float | None = None  # the shortest stop measured; None if there is none


class Verdict(NamedTuple):
    """Whether an idle node is retired, and why, or why not. ``again_at_s``: when time alone may change that."""

    reason: Reason
    retires: bool = False
    again_at_s: float = inf


def should_retire(
    node: Node,
    node_type: NodeType | None,
    policy: Policy,
    now_s: float,
    surplus: int,
    kept: Reason | None = None,
    stop_times: StopTimes | None = None,
    waits: bool = True,
) -> Verdict:
    """Whether to retire an idle node that no waiting job would use.

    ``surplus``: how many nodes there are beyond ``nodes_min``. ``kept``: why its type needs the node.
    ``waits``: whether it waits for ``idle_timeout``. Paid time is used up in any case.
    """
    if node.rank is not None and node.rank.drain_reason is not None:
        return Verdict(because(Code.HELD_BY_DRAIN, drain_reason=node.rank.drain_reason))
    times = stop_times if stop_times is not None else StopTimes(policy.rules.stop_lead_s)
    if node.seen.idle_looks < policy.rules.idle_confirmations:
        why = because(Code.IDLE_UNCONFIRMED, looks=node.seen.idle_looks, needs=policy.rules.idle_confirmations)
        return Verdict(
            why, again_at_s=_goes_at_s(node, node_type, policy, now_s + policy.timing.probe_s, now_s, times)
        )
    if surplus <= 0:
        return Verdict(because(Code.NODES_MIN, nodes_min=policy.limits.nodes_min))
    if kept is not None:
        return Verdict(kept)
    if node_type is None:
        return Verdict(because(Code.UNKNOWN_TYPE, node_type=node.launch.type_name), retires=True)
    idle_s = _idle_s(node, now_s)
    if node.launch.prepaid and node_type.prepaid:
        return Verdict(because(Code.PREPAID, node_type=node_type.name, prepaid=node_type.prepaid))
    timeout_s = policy.idle_timeout_s(node_type)
    if waits and node_type.billing.window_s <= timeout_s and idle_s < timeout_s:
        why = because(Code.IDLE_NOT_LONG, idle_s=idle_s, idle_timeout_s=timeout_s)
        return Verdict(why, again_at_s=_goes_at_s(node, node_type, policy, now_s, now_s, times))
    return _judge_paid_time(node, node_type, policy, now_s, times)


def _judge_paid_time(node: Node, node_type: NodeType, policy: Policy, now_s: float, times: StopTimes) -> Verdict:
    """Whether to retire a node that has been idle for long enough, by the end of its paid time.

    It is retired at the last safe moment of its paid window, ``lead_s`` before the end. If windows are longer than
    ``idle_timeout_s`` and even the quickest stop would end after this window, the node is kept for the next one,
    which is paid anyway.
    """
    rule = node_type.billing
    left_s = billing.window_left_s(rule, billing.age_s(node, now_s))
    figures: Figures = {"idle_s": _idle_s(node, now_s), "window_left_s": left_s, "stop_lead_s": times.lead_s}
    if left_s > times.lead_s:
        return Verdict(because(Code.PAID_TIME_LEFT, **figures), again_at_s=now_s + left_s - times.lead_s)
    if times.quickest_s is not None and rule.window_s > policy.idle_timeout_s(node_type):
        # Measured stops may be one interval too long, because only the next list shows a stop. Decisions may be
        # late too.
        too_late_s = min(times.quickest_s, times.lead_s) - policy.timing.probe_s
        if left_s < too_late_s:
            goes_in_s = left_s + max(0.0, rule.window_s - times.lead_s)
            why = because(Code.NEXT_WINDOW_BEGINS, **figures)
            why = why.with_figures(quickest_stop_s=times.quickest_s, goes_in_s=goes_in_s)
            return Verdict(why, again_at_s=now_s + goes_in_s)
    return Verdict(because(Code.WINDOW_CLOSES, **figures), retires=True)


def _idle_s(node: Node, now_s: float) -> float:
    return now_s - (node.seen.idle_since_s if node.seen.idle_since_s is not None else now_s)


def _goes_at_s(
    node: Node, node_type: NodeType | None, policy: Policy, at_s: float, now_s: float, times: StopTimes
) -> float:
    """The earliest time, not before ``at_s``, at which an idle node may go by its idle time and its paid window."""
    if node_type is None:
        return at_s
    rule = node_type.billing
    if rule.window_s <= policy.idle_timeout_s(node_type):
        idle_since_s = node.seen.idle_since_s if node.seen.idle_since_s is not None else now_s
        at_s = max(at_s, idle_since_s + policy.idle_timeout_s(node_type))
    left_s = billing.window_left_s(rule, billing.age_s(node, at_s))
    return at_s + max(0.0, left_s - times.lead_s)
