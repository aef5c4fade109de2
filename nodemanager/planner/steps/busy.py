"""Steps of busy nodes. Running jobs always continue."""

from __future__ import annotations

from nodemanager.core.drains import drain_text, emptying_text
from nodemanager.core.orders import CordonNode, UndrainNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.planner.health.node_health import hung_s, why_unfit
from nodemanager.planner.observe import hardware
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.steps.context import Step, StepContext
from nodemanager.planner.steps.orders import cordon, is_drained, wait_for_jobs
from nodemanager.planner.upkeep.consolidation import is_emptying

BUSY = because(Code.BUSY)


def step_busy(node: Node, context: StepContext) -> Step:
    """Leave a busy node alone, or keep new jobs off it."""
    if (why := why_unfit(node, context.policy, context.now_s)) is not None:
        # It takes no more jobs; running jobs continue.
        return wait_for_jobs(node, why, context) if is_drained(node) else cordon(node, why)
    if (hangs_s := hung_s(node, context.now_s)) is not None:
        return Step(because(Code.HANGS_AT_WORK, node=node.launch.slot, hangs_s=hangs_s))
    if node.health.misfit is not None:
        return cordon(node, node.health.misfit, hardware.drain_note(node.health.misfit))
    if (spent := context.why_overspent(node)) is not None and node.rank is not None:
        return cordon(node, spent)
    if (why := context.upkeep.leaving.get(node.id)) is not None:
        return wait_for_jobs(node, why, context) if is_drained(node) else cordon(node, why)
    if (step := _step_busy_top(node, context)) is not None:
        return step
    if (why := context.emptying.nodes.get(node.id)) is not None:
        empty = CordonNode(node.id, node.launch.rank, emptying_text(node.id), why)
        return Step(why, None if is_drained(node) else empty)
    if is_emptying(node):
        reason = because(Code.EMPTIES_NO_MORE)
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    if node.rank is not None and node.rank.drain_reason == drain_text(node.id):
        reason = because(Code.BUSY_YET_DRAINED_BY_US)
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    return Step(BUSY)


def _step_busy_top(node: Node, context: StepContext) -> Step | None:
    """Drain a busy node if idle nodes below it are due and can leave only after it; None if it keeps none."""
    stack = context.stack
    if stack is None or context.jobs.want_more or context.count_usable <= context.policy.limits.nodes_min:
        return None
    top = stack.top
    if top is None or top.id != node.id or context.why_kept(node) is not None:
        return None
    at_rest = node_index_of(context.snapshot).at_rest
    for times in context.retirement_times():
        for at_s, id_ in times:
            idle = at_rest[id_]
            if idle.launch.slot in context.jobs.needed or (idle.cloud is not None and idle.cloud.tenure.fixed):
                continue
            if at_s > context.now_s:
                return Step(BUSY, again_at_s=at_s) if not is_drained(node) else None
            return cordon(node, because(Code.IDLE_NODES_BELOW, node=idle.launch.slot))
    return None
