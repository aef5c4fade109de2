"""Decide the next step of one node by its state, with the reason, also if it takes none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.health.node_health import health_changes_s
from nodemanager.planner.observe import operator
from nodemanager.planner.state.node import Node
from nodemanager.planner.steps.busy import step_busy
from nodemanager.planner.steps.coming import step_booting, step_lost, step_requested
from nodemanager.planner.steps.context import Step, StepContext
from nodemanager.planner.steps.idle import step_idle
from nodemanager.planner.steps.leaving import step_draining, step_gone, step_stopping
from nodemanager.planner.steps.orders import process_survives, wait_for_jobs

# Nodes of an observed type are left alone in these states. A stop that was begun is finished.
LEFT_ALONE_IF_OBSERVED = (NodeState.BOOTING, NodeState.IDLE, NodeState.BUSY, NodeState.LOST)

STEP_OF_STATE: Mapping[NodeState, Callable[[Node, StepContext], Step]] = {
    NodeState.REQUESTED: step_requested,
    NodeState.BOOTING: step_booting,
    NodeState.IDLE: step_idle,
    NodeState.BUSY: step_busy,
    NodeState.LOST: step_lost,
    NodeState.DRAINING: step_draining,
    NodeState.STOPPING: step_stopping,
    NodeState.GONE: step_gone,
}


def next_step(node: Node, context: StepContext) -> Step:
    """Decide what to do with the node now. It has one call at a time, and a pause after a failed one."""
    survives = process_survives(node)
    if node.call is not None:  # until its answer; the brain watches the deadlines of all calls
        return Step(
            survives or because(Code.CALL_IN_FLIGHT, call=str(node.call.kind), deadline_s=node.call.deadline_s)
        )
    if context.now_s < node.retry_s:
        later = because(Code.RETRY_LATER, retry_s=node.retry_s, tries=node.tries)
        return Step(survives or later, again_at_s=node.retry_s)
    if context.snapshot.closed_clouds and (closed := _why_closed(node, context)) is not None:
        return Step(closed)
    step = _step_now(node, context)
    changes_s = health_changes_s(node, context.policy, context.now_s)
    return step._replace(again_at_s=changes_s) if changes_s < step.again_at_s else step


def _why_closed(node: Node, context: StepContext) -> Reason | None:
    """Why the node is left alone with its cloud. Leases without a machine end all the same."""
    if node.state is NodeState.GONE or (node.state is NodeState.REQUESTED and node.create.sent_s is None):
        return None
    return context.snapshot.closed_clouds.get(context.policy.cloud_of(node.launch))


def _step_now(node: Node, context: StepContext) -> Step:
    steered = operator.operator_step(node, context.snapshot.operator.steering)
    if steered is not None:
        waits = steered.waits_for_jobs
        return wait_for_jobs(node, steered.reason, context) if waits else Step(steered.reason, steered.action)
    if node.launch.type_name in context.policy.observed and _is_left_alone(node):
        return Step(because(Code.ONLY_OBSERVED, node_type=node.launch.type_name))
    return STEP_OF_STATE[node.state](node, context)


def _is_left_alone(node: Node) -> bool:
    """Whether no stop was begun: a drain of ours marks a begun stop, even while the node is still busy."""
    drained_by_us = node.rank is not None and node.rank.drain_reason == drain_text(node.id)
    return node.state in LEFT_ALONE_IF_OBSERVED and not drained_by_us
