"""Steps of nodes that leave: the second look, the stop, and the end of the lease."""

from __future__ import annotations

from enum import Enum, auto
from math import inf

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import FluxRank, NodeState
from nodemanager.core.orders import DestroyNode, EndLease, StopBroker
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.cost.spending import waits_for_record
from nodemanager.planner.health.node_health import gets_no_work
from nodemanager.planner.stacked.growth import lowest_gap
from nodemanager.planner.stacked.stack import Stack
from nodemanager.planner.state.node import Node
from nodemanager.planner.steps.context import UNLIMITED, Step, StepContext
from nodemanager.planner.steps.orders import (
    drain_again,
    job_names,
    process_survives,
    reprieve,
    wait_for_answer,
    wait_for_jobs,
)
from nodemanager.planner.upkeep.unsafe_data import overdue_at_s, why_held_for_data

BROKER_STOP_TRIES = 3  # how often a broker is told to stop before its machine is destroyed anyway

# How long the scheduler gets to notice a drain. A rank 0 that is stopping answers drains, but its scheduler misses
# them.
REDRAIN_AFTER_S = 1.0


class StopObstacle(Enum):
    """What may still forbid stopping a node after its drain was answered."""

    HELD_BY_DRAIN = auto()  # somebody else has drained it
    JOB_SLIPPED_IN = auto()  # a job began just before the drain
    STILL_SCHEDULABLE = auto()  # the scheduler has not noticed the drain
    NOT_DRAINED = auto()


def second_look(node: Node, rank: FluxRank) -> StopObstacle | None:
    """What still forbids stopping the node after its drain was answered; None if nothing does."""
    if rank.online and rank.drain_reason not in (None, drain_text(node.id)):
        return StopObstacle.HELD_BY_DRAIN
    if rank.allocated:
        return StopObstacle.JOB_SLIPPED_IN
    if rank.schedulable:
        return StopObstacle.STILL_SCHEDULABLE
    return StopObstacle.NOT_DRAINED if rank.online and rank.drain_reason is None else None


def _obstacle_reason(obstacle: StopObstacle, rank: FluxRank) -> Reason:
    """The reason that explains an obstacle."""
    match obstacle:
        case StopObstacle.HELD_BY_DRAIN:
            return because(Code.HELD_BY_DRAIN, drain_reason=rank.drain_reason or "")
        case StopObstacle.JOB_SLIPPED_IN:
            return because(Code.JOB_SLIPPED_IN)
        case StopObstacle.STILL_SCHEDULABLE:
            return because(Code.STILL_SCHEDULABLE)
        case StopObstacle.NOT_DRAINED:
            return because(Code.NOT_DRAINED)


def step_draining(node: Node, context: StepContext) -> Step:
    """Look at a drained node once more, then stop it, keep it or wait."""
    wanted = context.jobs.needed.get(node.launch.slot)
    fit = not gets_no_work(node, context.policy, context.now_s) and node.id not in context.upkeep.leaving
    if wanted is not None and fit and not (context.policy.destroy_on_replay and node.health.replayed):
        return reprieve(node, context, because(Code.WANTED_AGAIN, jobs=job_names(wanted)))
    if node.stop.drained_s is None or node.rank is None:
        return drain_again(node, because(Code.DRAIN_UNANSWERED))
    obstacle = second_look(node, node.rank)
    if obstacle is None:
        return _held_for_data(node, context) or _stop(node, context)
    reason = _obstacle_reason(obstacle, node.rank)
    if obstacle is StopObstacle.JOB_SLIPPED_IN and node.rank.online and fit:
        return reprieve(node, context, reason)
    if obstacle in (StopObstacle.STILL_SCHEDULABLE, StopObstacle.NOT_DRAINED):
        if context.now_s - node.stop.drained_s >= REDRAIN_AFTER_S:
            return drain_again(node, reason)
        return wait_for_jobs(node, reason, context)._replace(again_at_s=node.stop.drained_s + REDRAIN_AFTER_S)
    return wait_for_jobs(node, reason, context)


def step_stopping(node: Node, context: StepContext) -> Step:
    """Stop the node again and again until it is seen gone, unless somebody undrained it after the second look."""
    if node.rank is not None and node.rank.allocated:
        return wait_for_jobs(node, because(Code.JOB_SLIPPED_IN), context)
    if node.stop.drained_s is None:
        # The claim was renewed since. Another manager may have kept the node meanwhile and given it work.
        return drain_again(node, because(Code.DRAIN_UNANSWERED))
    return _held_for_data(node, context) or _stop(node, context)


def _held_for_data(node: Node, context: StepContext) -> Step | None:
    """The step of a node on which nothing runs, but from which data is still to be copied."""
    held = why_held_for_data(node, context.snapshot, context.policy)
    return Step(held, again_at_s=overdue_at_s(node, context.snapshot, context.policy)) if held is not None else None


def _stop(node: Node, context: StepContext) -> Step:
    """Stop a node on which nothing runs: first its broker, then the machine."""
    reason = node.stop.retiring or because(Code.STOPPING)
    if context.stack is not None:
        # Its broker is not stopped first: the provider would start it again.
        if (waits := context.stack.why_not_terminated(node)) is not None:
            return Step(waits)
    elif node.rank is not None and node.rank.online and node.tries < BROKER_STOP_TRIES:
        if node.stop.broker_told_s is None:
            return Step(reason, StopBroker(node.id, node.launch.rank))
        told_s = context.now_s - node.stop.broker_told_s
        if told_s < context.policy.fixed.broker_stop_s:
            return Step(
                because(Code.BROKER_STOPPING, told_s=told_s, broker_stop_s=context.policy.fixed.broker_stop_s),
                again_at_s=node.stop.broker_told_s + context.policy.fixed.broker_stop_s,
            )
    if node.cloud is None:
        return Step(because(Code.NOTHING_TO_DESTROY))
    cloud = context.policy.cloud_of(node.launch)
    # Without a call for each node there is no need to wait.
    if context.policy.calls_of(cloud).nodes_per_destroy == 1 and not context.takes_call(cloud):
        return wait_for_answer(cloud, context)
    return Step(process_survives(node) or reason, DestroyNode(node.id, node.cloud.provider_id, reason, cloud))


def step_gone(node: Node, context: StepContext) -> Step:
    """End the lease of a node that is gone, once nothing needs it any more."""
    rank = context.snapshot.ranks.get(node.launch.rank)
    if node.cloud is not None and rank is not None and rank.online:
        # Its slot is free only once Flux's overlay network has noticed too.
        return wait_for_jobs(node, because(Code.GONE_YET_ONLINE), context)
    if waits_for_record(node, context.snapshot):
        return Step(because(Code.SPEND_TO_RECORD))
    reason = because(Code.GONE)
    return Step(reason, EndLease(node.launch, reason))


def _is_terminable(node: Node, context: StepContext) -> bool:
    """Whether a leaving node may be terminated now, apart from its place among the others."""
    if node.stop.drained_s is None or node.rank is None:
        return False
    if why_held_for_data(node, context.snapshot, context.policy) is not None:
        return False
    if node.state is NodeState.STOPPING:
        return not node.rank.allocated
    unfit = gets_no_work(node, context.policy, context.now_s)
    return (
        node.call is None
        and second_look(node, node.rank) is None
        and (unfit or node.launch.slot not in context.jobs.needed)
    )


def order_nodes(context: StepContext) -> None:
    """Let nodes come and leave in the order of their slots. One call then creates or terminates any number."""
    context.stack = Stack(context.snapshot, lambda node: _is_terminable(node, context))
    ended = {id_ for id_, review in context.unsent.items() if review.ends}
    context.gap = lowest_gap(context.snapshot, context.policy, ended)
    clouds = context.policy.cloud_names
    context.create_credit, context.cloud_calls_left = dict.fromkeys(clouds, inf), dict.fromkeys(clouds, UNLIMITED)
