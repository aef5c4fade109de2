"""Decide which idle nodes are retired, when, and why the others stay."""

from __future__ import annotations

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import FluxRank
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner.cost import billing
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node


def should_retire(
    node: Node,
    node_type: NodeType | None,
    policy: Policy,
    now_s: float,
    surplus: int,
    spare: bool = False,
    stop_lead_s: float | None = None,
    quickest_stop_s: float | None = None,
) -> tuple[bool, Reason]:
    """Whether to retire an idle node that no waiting job would use, and why, or why not.

    A node is retired at the last safe moment of its paid window, ``stop_lead_s`` before the end. If windows are no
    longer than ``idle_timeout_s``, it must also have been idle for that long. If they are longer and even the
    quickest stop would end after this window, the node is kept for the next one, which is paid anyway.

    ``surplus``: how many nodes there are beyond ``nodes_min``. ``spare``: the node is one of its type's spares.
    ``quickest_stop_s``: the shortest stop measured; None if there is none.
    """
    lead_s = policy.rules.stop_lead_s if stop_lead_s is None else stop_lead_s
    idle_s = now_s - (node.idle_since_s if node.idle_since_s is not None else now_s)
    if node.rank is not None and node.rank.drain_reason is not None:
        return False, because(Code.HELD_BY_DRAIN, drain_reason=node.rank.drain_reason)
    if node.idle_looks < policy.rules.idle_confirmations:
        return False, because(Code.IDLE_UNCONFIRMED, looks=node.idle_looks, needs=policy.rules.idle_confirmations)
    if surplus <= 0:
        return False, because(Code.NODES_MIN, nodes_min=policy.limits.nodes_min)
    if spare and node_type is not None:
        return False, because(Code.SPARE, node_type=node_type.name, spares=node_type.spares)
    if node_type is None:
        return True, because(Code.UNKNOWN_TYPE, node_type=node.launch.type_name)
    rule = node_type.billing
    if rule.window_s <= policy.rules.idle_timeout_s and idle_s < policy.rules.idle_timeout_s:
        return False, because(Code.IDLE_NOT_LONG, idle_s=idle_s, idle_timeout_s=policy.rules.idle_timeout_s)
    left_s = billing.window_left_s(rule, billing.age_s(node, now_s))
    figures: Figures = {"idle_s": idle_s, "window_left_s": left_s, "stop_lead_s": lead_s}
    if left_s > lead_s:
        return False, because(Code.PAID_TIME_LEFT, **figures)
    if quickest_stop_s is not None and rule.window_s > policy.rules.idle_timeout_s:
        # Measured stops may be one interval too long, because only the next list shows a stop. Decisions may be
        # late too.
        too_late_s = min(quickest_stop_s, lead_s) - policy.timing.probe_s
        if left_s < too_late_s:
            goes_in_s = left_s + max(0.0, rule.window_s - lead_s)
            reason = because(Code.NEXT_WINDOW_BEGINS, **figures)
            return False, reason.with_figures(quickest_stop_s=quickest_stop_s, goes_in_s=goes_in_s)
    return True, because(Code.WINDOW_CLOSES, **figures)


def second_look(node: Node, rank: FluxRank) -> Reason | None:
    """What still forbids stopping the node after its drain was answered; None if nothing does."""
    if rank.online and rank.drain_reason not in (None, drain_text(node.id)):
        return because(Code.HELD_BY_DRAIN, drain_reason=rank.drain_reason or "")
    if rank.allocated:
        return because(Code.JOB_SLIPPED_IN)
    if rank.schedulable:
        return because(Code.STILL_SCHEDULABLE)
    if rank.online and rank.drain_reason is None:
        return because(Code.NOT_DRAINED)
    return None
