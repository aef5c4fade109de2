"""The next step of a node, by its state: idle, busy, not up, leaving."""

from __future__ import annotations

from enum import Enum, auto
from math import inf

from nodemanager.core.drains import drain_text, emptying_text, hold_text, is_our_drain
from nodemanager.core.nodes import FluxRank, NodeState
from nodemanager.core.orders import (
    CordonNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    RecordLaunches,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, ForeignDrain, NodeType
from nodemanager.planner import hardware
from nodemanager.planner.backoff import block_on, block_reason
from nodemanager.planner.billing import PREPAID
from nodemanager.planner.consolidation import is_emptying
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_health import (
    GivenUp,
    gets_no_work,
    hung_s,
    overdue_at_s,
    takes_jobs,
    why_give_up,
    why_held_for_data,
    why_unfit,
)
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Block, Node
from nodemanager.planner.spending import waits_for_record
from nodemanager.planner.stack import Stack, lowest_gap
from nodemanager.planner.step_context import (
    UNLIMITED,
    Step,
    StepContext,
    cordon,
    drain_again,
    give_up,
    is_drained,
    job_names,
    process_survives,
    reprieve,
    retire,
    should_retire,
    wait_for_answer,
    wait_for_jobs,
)


def step_idle(node: Node, context: StepContext) -> Step:
    """Keep, mend or retire an idle node."""
    policy = context.policy
    if is_emptying(node):
        return _step_emptied(node, context)
    # Most idle nodes are sound and not drained: nothing to mend.
    if (is_drained(node) or not node.is_sound) and (mended := _mend_idle(node, context)) is not None:
        return mended
    if (kept_up := _step_upkeep(node, context)) is not None:
        return kept_up
    counts = takes_jobs(node, context.snapshot, policy)
    # A node that takes no jobs does not count towards nodes_min.
    surplus = context.count_usable - policy.limits.nodes_min if counts else 1
    name = node.launch.type_name
    may_leave = not (counts and context.of_types.is_at_min(name)) and _is_confirmed_idle(node, policy)
    if (spent := context.why_overspent(node)) is not None and not is_drained(node):  # so that no job starts there
        return retire(node, spent, context)
    if (held := why_held_for_data(node, context.snapshot, policy)) is not None:
        return Step(held, again_at_s=overdue_at_s(node, context.snapshot, policy))
    if may_leave and (too_many := _why_too_many(node, context, surplus)) is not None:
        return _retire_surplus(node, too_many, context)
    node_type = policy.types.get(name)
    kept = _why_type_keeps(node_type, context) if node_type is not None and counts else None
    verdict = should_retire(node, node_type, policy, context.now_s, surplus, kept, context.stop_times(name))
    if not verdict.retires:
        return Step(verdict.reason, again_at_s=verdict.again_at_s)
    if counts and context.why_kept(node) is None:
        context.count_ready[name] = context.count_ready.get(name, 0) - 1
    return _retire_surplus(node, verdict.reason, context)


def _why_type_keeps(node_type: NodeType, context: StepContext) -> Reason | None:
    """Why a type needs all of its idle nodes; None if one may leave."""
    if context.of_types.is_at_min(node_type.name):
        return because(Code.NODES_MIN, nodes_min=node_type.limits.nodes_min, node_type=node_type.name)
    if 0 < node_type.spares >= context.count_ready.get(node_type.name, 0):
        return because(Code.SPARE, node_type=node_type.name, spares=node_type.spares)
    return None


def _why_too_many(node: Node, context: StepContext, surplus: int) -> Reason | None:
    """Why an idle node goes whatever is paid for it: a limit is exceeded, or a job needs the room; None if not."""
    nodes_max, name = context.policy.limits.nodes_max, node.launch.type_name
    if surplus > 0 and context.count_live > nodes_max:
        return because(Code.ABOVE_NODES_MAX, node_count=context.count_live, nodes_max=nodes_max)
    if surplus > 0 and context.of_types.is_above_max(name):
        nodes_max = context.policy.types[name].limits.nodes_max or 0
        count = nodes_max + context.of_types.above_max[name]
        return because(Code.TYPE_ABOVE_NODES_MAX, node_type=name, node_count=count, nodes_max=nodes_max)
    job = context.makes_room_for(node)
    return because(Code.MAKES_ROOM, job=str(job)) if job is not None else None


def _step_upkeep(node: Node, context: StepContext) -> Step | None:
    """The step of an idle node that is given back, replaced, wanted, or empties. None if none of that holds."""
    confirmed = _is_confirmed_idle(node, context.policy)
    if node.rank is not None and node.rank.given_back is not None and not is_drained(node):
        if not confirmed:
            looks, needs = node.seen.idle_looks, context.policy.rules.idle_confirmations
            again_at_s = context.now_s + context.policy.timing.probe_s
            return Step(because(Code.IDLE_UNCONFIRMED, looks=looks, needs=needs), again_at_s=again_at_s)
        return _retire_surplus(node, because(Code.NODE_GIVEN_BACK, job=str(node.rank.given_back)), context)
    if (why := context.upkeep.leaving.get(node.id)) is not None and confirmed:
        return retire(node, why, context)
    wanted = context.jobs.needed.get(node.launch.slot)
    if wanted is not None:
        return Step(because(Code.WANTED, jobs=job_names(wanted)))
    if (why := context.emptying.nodes.get(node.id)) is not None and confirmed:
        return Step(why, CordonNode(node.id, node.launch.rank, emptying_text(node.id), why))
    return None


def _step_emptied(node: Node, context: StepContext) -> Step:
    """Decide about an idle node that takes no jobs because it was emptied."""
    policy, node_type = context.policy, context.policy.types.get(node.launch.type_name)
    given_up = why_give_up(node, policy, context.now_s)
    unfit = given_up.reason if given_up is not None else why_unfit(node, policy, context.now_s)
    why = unfit or context.upkeep.leaving.get(node.id) or context.why_overspent(node)
    if why is None and node.id not in context.emptying.nodes:
        reason = because(Code.EMPTIES_NO_MORE)
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    looks, needs = node.seen.idle_looks, policy.rules.idle_confirmations
    if looks < needs:
        return Step(because(Code.IDLE_UNCONFIRMED, looks=looks, needs=needs))
    if why is None:
        undrained = replace(node, rank=replace(node.rank, drain_reason=None)) if node.rank is not None else node
        times = context.stop_times(node.launch.type_name)
        early = context.emptying.early.get(node.id)
        verdict = should_retire(
            undrained, node_type, policy, context.now_s, 1, stop_times=times, waits=early is None
        )
        if not verdict.retires:
            reason = verdict.reason.with_figures(drain_reason=emptying_text(node.id))
            return Step(reason, again_at_s=verdict.again_at_s)
        why = early or verdict.reason
    step = retire(node, why, context)
    return Step(step.reason, DrainNode(node.id, node.launch.rank, why, replaces=emptying_text(node.id)))


def _retire_surplus(node: Node, reason: Reason, context: StepContext) -> Step:
    """Retire a node that is sound but not needed, unless the provider keeps it all the same."""
    kept = context.why_kept(node)
    return Step(kept) if kept is not None else retire(node, reason, context)


def _mend_idle(node: Node, context: StepContext) -> Step | None:
    """Decide what to do with an idle node that is drained or unhealthy; None if it counts as idle all the same."""
    if _has_drain_of_previous_node(node):
        reason = because(Code.DRAINED_FOR_ANOTHER)
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    if is_drained(node):
        return _replace_drain_by_flux(node, context)
    given_up = why_give_up(node, context.policy, context.now_s)
    why = given_up.reason if given_up is not None else why_unfit(node, context.policy, context.now_s)
    return retire(node, why, context) if why is not None else None


def _replace_drain_by_flux(node: Node, context: StepContext) -> Step | None:
    """Retire an idle node that Flux itself drained, after a while; None if a person drained it or it is held."""
    since_s, policy = node.health.drained_by_flux_s, context.policy
    drain_reason = node.rank.drain_reason if node.rank is not None else None
    if since_s is None or drain_reason is None or policy.rules.foreign_drain is ForeignDrain.HOLD:
        return None
    lasts_s = context.now_s - since_s
    reason = because(
        Code.DRAINED_BY_FLUX,
        drain_reason=drain_reason,
        lasts_s=lasts_s,
        foreign_drain_after_s=policy.rules.foreign_drain_after_s,
    )
    if lasts_s < policy.rules.foreign_drain_after_s:
        return Step(reason, again_at_s=since_s + policy.rules.foreign_drain_after_s)
    if node.seen.idle_looks < policy.rules.idle_confirmations:
        return Step(reason)
    step = retire(node, reason, context)
    drain = DrainNode(node.id, node.launch.rank, reason, note=drain_reason, replaces=drain_reason)
    return Step(step.reason, drain)


def _has_drain_of_previous_node(node: Node) -> bool:
    """Whether its rank still carries our drain of an earlier node. This happens if Flux assigns the ranks."""
    reason = node.rank.drain_reason if node.rank is not None else None
    if reason is None or not is_our_drain(reason):
        return False
    # A note about the cause may follow the launch.
    return reason.split()[0] not in (drain_text(node.id), hold_text(node.id))


def _is_confirmed_idle(node: Node, policy: Policy) -> bool:
    return node.seen.idle_looks >= policy.rules.idle_confirmations and not is_drained(node)


# --- steps of busy nodes ----------------------------------------------------------------------------------
#
# Running jobs always continue.


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


# --- steps of nodes that are not up: requested, booting or lost -------------------------------------------


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
    priced = replace(size, price_per_hour=PREPAID.price_per_hour) if node.launch.prepaid else size
    none_left = _why_not_next(node, context) or context.allowance.why_none(priced)
    if none_left is not None:
        return Step(none_left, EndLease(node.launch, none_left))
    if context.create_credit[cloud] < 1.0:
        return _wait_for_turn(cloud, context)
    order = CreateNode(node.launch, size)
    if not context.create_calls[cloud].fits(order):
        return _wait_for_call(cloud, context)
    if not context.takes_call(cloud):
        return wait_for_answer(cloud, context)
    context.allowance.take(priced)
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
    review = context.unsent.get(node.id)
    if given_up is None and review is not None and review.ends:
        given_up = GivenUp(review.reason)
    if given_up is not None:
        kept = context.why_kept(node)
        return Step(kept) if kept is not None else give_up(node, given_up, context)
    if node.is_queued:
        return Step(because(Code.QUEUED_OUTSIDE, waited_s=context.now_s - node.create.requested_s))
    waited_s = context.now_s - node.create.boots_from_s
    boot_timeout_s = context.policy.timing.boot_timeout_s
    reason = because(Code.BOOTING, waited_s=waited_s, boot_timeout_s=boot_timeout_s)
    if node.cloud is not None and node.cloud.note:
        reason = because(
            Code.PENDING_AT_PROVIDER, waited_s=waited_s, boot_timeout_s=boot_timeout_s, detail=node.cloud.note
        )
    return Step(
        reason,
        again_at_s=max(
            node.create.boots_from_s + context.policy.timing.boot_timeout_s,
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


# --- steps of nodes that leave: the second look, the stop, and the end of the lease -----------------------


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
