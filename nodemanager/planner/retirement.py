"""Which nodes go, when, and why the others stay."""

from __future__ import annotations

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import FluxRank
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
    """Whether an idle node that no waiting job would use goes now, and why, or why not.

    ``surplus``: how many nodes there are beyond ``nodes_min``; ``spare``: it is one of its type's spares. A node
    goes at the last safe moment of a window that is paid for, which is ``stop_lead_s`` before its end; where
    windows are shorter than ``idle_timeout_s`` it goes after that long without work. Where they are longer and not
    even the quickest stop (``quickest_stop_s``; None: none was measured) would end within this one, it is kept for
    the next, which is paid anyway.
    """
    lead_s = policy.stop_lead_s if stop_lead_s is None else stop_lead_s
    idle_s = now_s - (node.idle_since_s if node.idle_since_s is not None else now_s)
    if node.rank is not None and node.rank.drain_reason is not None:
        return False, because("held_by_drain", drain_reason=node.rank.drain_reason)
    if node.idle_looks < policy.idle_confirmations:
        return False, because("idle_unconfirmed", looks=node.idle_looks, needs=policy.idle_confirmations)
    if surplus <= 0:
        return False, because("nodes_min", nodes_min=policy.nodes_min)
    if spare and node_type is not None:
        return False, because("spare", node_type=node_type.name, spares=node_type.spares)
    if node_type is None:
        return True, because("unknown_type", node_type=node.launch.type_name)
    rule = node_type.billing
    if rule.window_s <= policy.idle_timeout_s and idle_s < policy.idle_timeout_s:
        return False, because("idle_not_long", idle_s=idle_s, idle_timeout_s=policy.idle_timeout_s)
    left_s = billing.window_left_s(rule, billing.age_s(node, now_s))
    figures = {"idle_s": idle_s, "window_left_s": left_s, "stop_lead_s": lead_s}
    if left_s > lead_s:
        return False, because("paid_time_left", **figures)
    if quickest_stop_s is not None and rule.window_s > policy.idle_timeout_s:
        # A stop is seen by the list after it: what was measured may be longer by that much, and a decision be late.
        too_late_s = min(quickest_stop_s, lead_s) - policy.probe_s
        if left_s < too_late_s:
            goes_in_s = left_s + max(0.0, rule.window_s - lead_s)
            return False, because(
                "next_window_begins", **figures, quickest_stop_s=quickest_stop_s, goes_in_s=goes_in_s
            )
    return True, because("window_closes", **figures)


def second_look(node: Node, rank: FluxRank) -> Reason | None:
    """What, after the drain was answered, still forbids to stop the node; None when nothing does."""
    if rank.online and rank.drain_reason not in (None, drain_text(node.id)):
        return because("held_by_drain", drain_reason=rank.drain_reason or "")
    if rank.allocated:
        return because("job_slipped_in")
    if rank.schedulable:
        return because("still_schedulable")
    if rank.online and rank.drain_reason is None:
        return because("not_drained")
    return None
