"""Steps of nodes that are not up: requested, booting or lost."""

from __future__ import annotations

from math import inf

from nodemanager.core.orders import CreateNode, EndLease, RecordLaunches
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.planner.backoff.zones import block_on, block_reason
from nodemanager.planner.health.node_health import GivenUp, why_give_up
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.snapshot import Block
from nodemanager.planner.steps.context import Step, StepContext
from nodemanager.planner.steps.orders import give_up, wait_for_answer

CREATES_EVERY_S = 1.0  # while the rate limiter delays creates, those of one second are sent together


def step_requested(node: Node, context: StepContext) -> Step:
    """Record the lease, then send the create when it is the node's turn, or end the lease."""
    node_type = context.policy.types.get(node.launch.type_name)
    if not node.create.recorded:
        return Step(because(Code.LEASE_TO_RECORD), RecordLaunches((node.launch,)))
    if node.create.sent_s is not None:
        return Step(because(Code.LOOKED_FOR, absences=node.listing.absences, since_s=node.listing.known_s))
    if (spent := context.why_overspent(node)) is not None:
        return Step(spent, EndLease(node.launch, spent))
    if (review := context.unsent.get(node.id)) is not None:
        return Step(review.reason, EndLease(node.launch, review.reason) if review.ends else None)
    if node_type is None:
        return Step(because(Code.UNKNOWN_TYPE, node_type=node.launch.type_name))
    size = context.policy.type_as_bought(node.launch)
    if size is None:
        reason = because(Code.UNKNOWN_SIZE, node_type=node_type.name, size=node.launch.size)
        return Step(reason, EndLease(node.launch, reason))
    return _create(node, size, context)


def _create(node: Node, size: NodeType, context: StepContext) -> Step:
    """Create the node as the size of its launch, unless that is blocked or it is not its turn."""
    cloud = context.policy.cloud_of(node.launch)
    if cloud != size.cloud:  # the type has moved since: its next node is bought there
        reason = because(Code.CLOUD_CLOSED, cloud=cloud, why=f"nodes of {size.name} are now bought in {size.cloud}")
        return Step(reason, EndLease(node.launch, reason))
    block = block_on(size, node.launch.zone, context.snapshot)
    if block is not None:
        return _step_blocked(node, block, context)
    none_left = _why_not_next(node, context) or context.allowance.why_none(size)
    if none_left is not None:
        return Step(none_left, EndLease(node.launch, none_left))
    if context.create_credit[cloud] < 1.0:
        return _wait_for_turn(cloud, context)
    order = CreateNode(node.launch, size)
    if not context.create_calls[cloud].fits(order):
        return _wait_for_call(cloud, context)
    if not context.takes_call(cloud):
        return wait_for_answer(cloud, context)
    context.allowance.take(size)
    context.create_credit[cloud] -= 1.0
    context.create_calls[cloud].take(order)
    return Step(because(Code.CREATING), order)


def _why_not_next(node: Node, context: StepContext) -> Reason | None:
    """Why the node cannot be created: nodes come in the order of the slots, and a lower one has none."""
    skips = context.gap is not None and node.launch.rank > context.gap
    return because(Code.LOWER_SLOT_IS_FREE) if skips else None


def _step_blocked(node: Node, block: Block, context: StepContext) -> Step:
    """End the lease if only its type is blocked, so that the next plan may choose another type; else wait."""
    reason = block_reason(block)
    if context.all_blocked:
        return Step(reason, again_at_s=block.until_s)
    return Step(reason, EndLease(node.launch, reason))


def _wait_for_turn(cloud: CloudName, context: StepContext) -> Step:
    """Wait for the cloud's rate limiter. Creates that become due within a second are sent together."""
    rate = context.policy.calls_of(cloud).creates_per_s
    wait_s = max(CREATES_EVERY_S, (1.0 - context.create_credit[cloud]) / rate)
    return Step(because(Code.CREATE_PACED, creates_per_s=rate), again_at_s=context.now_s + wait_s, held=True)


def _wait_for_call(cloud: CloudName, context: StepContext) -> Step:
    """Wait until the provider lets through another create call."""
    rate = context.policy.calls_of(cloud).create_calls_per_s
    wait_s = (1.0 - context.create_calls[cloud].credit) / rate
    return Step(because(Code.CREATE_CALLS_PACED, calls_per_s=rate), again_at_s=context.now_s + wait_s, held=True)


def step_booting(node: Node, context: StepContext) -> Step:
    """Wait for the node to join, or give it up."""
    given_up = why_give_up(node, context.policy, context.now_s)
    if given_up is None and (spent := context.why_overspent(node)) is not None:
        given_up = GivenUp(spent)
    if given_up is not None:
        kept = context.why_kept(node)
        return Step(kept) if kept is not None else give_up(node, given_up, context)
    waited_s = context.now_s - node.create.requested_s
    boot_timeout_s = context.policy.timing.boot_timeout_s
    queued = node.cloud is not None and node.cloud.queued
    reason = because(
        Code.QUEUED_OUTSIDE if queued else Code.BOOTING, waited_s=waited_s, boot_timeout_s=boot_timeout_s
    )
    if node.cloud is not None and node.cloud.note:
        reason = because(
            Code.PENDING_AT_PROVIDER, waited_s=waited_s, boot_timeout_s=boot_timeout_s, detail=node.cloud.note
        )
    return Step(
        reason,
        again_at_s=max(
            node.create.requested_s + context.policy.timing.boot_timeout_s,
            node.since_s + context.policy.timing.rejoin_timeout_s,
        ),
    )


def step_lost(node: Node, context: StepContext) -> Step:
    """Wait for the broker to return, or give the node up."""
    given_up = why_give_up(node, context.policy, context.now_s)
    if given_up is not None and not (node.rank is not None and node.rank.allocated):
        kept = context.why_kept(node)
        return Step(kept) if kept is not None else give_up(node, given_up, context)
    again_at_s = node.since_s + context.policy.timing.rejoin_timeout_s if given_up is None else inf
    return Step(because(Code.MAY_REJOIN, away_s=context.now_s - node.since_s), again_at_s=again_at_s)
