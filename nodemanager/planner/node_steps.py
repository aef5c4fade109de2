"""Decide the next step of one node by its state, with the reason, also if it takes none."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import takewhile
from math import inf
from typing import NamedTuple

from nodemanager.core.drains import drain_text, emptying_text, hold_text, is_our_drain
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import (
    CordonNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    KillHousekeeping,
    RecordLaunches,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import ForeignDrain, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.cost import billing, timings
from nodemanager.planner.cost.budget import waits_for_record
from nodemanager.planner.observe import hardware, operator
from nodemanager.planner.observe.backoff import Allowance
from nodemanager.planner.observe.node_health import (
    GivenUp,
    gets_no_work,
    health_changes_s,
    hung_s,
    overdue_housekeeping_s,
    survives_kills,
    why_give_up,
    why_unfit,
)
from nodemanager.planner.observe.zones import block_on, block_reason
from nodemanager.planner.retirement import StopObstacle, StopTimes, obstacle_reason, second_look, should_retire
from nodemanager.planner.spares import takes_jobs
from nodemanager.planner.stacked.growth import lowest_gap
from nodemanager.planner.stacked.stack import Stack
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.resting import EARLY_S, TimedNode
from nodemanager.planner.state.snapshot import EVERYTHING, Block, Snapshot
from nodemanager.planner.unsent_leases import LeaseReview
from nodemanager.planner.upkeep.consolidation import Emptying, is_emptying
from nodemanager.planner.upkeep.turns import UpkeepPlan

NodeAction = (
    RecordLaunches
    | CreateNode
    | DrainNode
    | CordonNode
    | UndrainNode
    | StopBroker
    | KillHousekeeping
    | DestroyNode
    | EndLease
)

BUSY = because(Code.BUSY)
# Nodes of an observed type are left alone in these states. A stop that was begun is finished.
LEFT_ALONE_IF_OBSERVED = (NodeState.BOOTING, NodeState.IDLE, NodeState.BUSY, NodeState.LOST)
BROKER_STOP_TRIES = 3  # how often a broker is told to stop before its machine is destroyed anyway

# How long the scheduler gets to notice a drain. A rank 0 that is stopping answers drains, but its scheduler misses
# them.
REDRAIN_AFTER_S = 1.0
UNLIMITED = 1_000_000  # calls, if one call does for all nodes
CREATES_EVERY_S = 1.0  # while the rate limiter delays creates, those of one second are sent together


@dataclass(slots=True)
class StepContext:
    """What a node's step depends on besides the node. The counts change as nodes take their steps."""

    snapshot: Snapshot
    policy: Policy
    needed: Mapping[SlotName, tuple[JobId, ...]]  # where waiting jobs are placed
    makes_room: tuple[JobId, frozenset[LaunchId]] | None  # a job stopped by a limit, and the nodes that go for it
    unsent: Mapping[LaunchId, LeaseReview]  # leases for which no create is sent now
    count_live: int  # billed nodes, without those that are leaving
    count_usable: int  # nodes that take jobs, without those about to be retired
    count_ready: dict[TypeName, int]  # by type with spares: nodes that no job needs, spares included
    overspent: Reason | None  # the budget is spent
    allowance: Allowance  # by quotas and breakers
    jobs_want_more: bool  # jobs wait for nodes that do not exist yet
    create_credit: float  # in the rate limiter's bucket
    cloud_calls_left: int  # creates and destroys that may still be sent
    upkeep: UpkeepPlan  # which nodes are replaced
    emptying: Emptying  # which nodes take no new job so that they empty
    gap: Rank | None = None  # the lowest slot without a node, if nodes come in the order of the slots
    stack: Stack | None = None  # the order in which nodes leave; None if any may leave
    known_stop_times: dict[TypeName, StopTimes] = field(default_factory=dict)
    now_s: float = field(init=False)  # and above the cache of ``stop_times``

    def __post_init__(self) -> None:
        self.now_s = self.snapshot.now_s

    def order_nodes(self) -> None:
        """Let nodes come and leave in the order of their slots. One call then creates or terminates any number."""
        self.stack = Stack(self.snapshot, lambda node: _is_terminable(node, self))
        self.gap = lowest_gap(self.snapshot, self.policy)
        self.create_credit, self.cloud_calls_left = inf, UNLIMITED

    @property
    def all_blocked(self) -> bool:
        """Whether all types are blocked now."""
        block = self.snapshot.learned.blocks.get(EVERYTHING)
        return block is not None and block.until_s > self.now_s

    def why_kept(self, node: Node) -> Reason | None:
        """Why the provider keeps the node now, whatever is decided; None if it can leave."""
        return self.stack.why_kept(node) if self.stack is not None else None

    def stop_times(self, name: TypeName) -> StopTimes:
        """How long stops of a node type take."""
        if name not in self.known_stop_times:
            lead_s = timings.stop_lead_s(self.snapshot, name, self.policy)
            self.known_stop_times[name] = StopTimes(lead_s, timings.quickest_stop_s(self.snapshot, name))
        return self.known_stop_times[name]


class Step(NamedTuple):
    """What is done with a node, if anything, and why.

    ``again_at_s``: when the passing of time alone may change this; infinity if only news can. ``held``: a call for
    the node waits until another node's call has been answered.
    """

    reason: Reason
    action: NodeAction | None = None
    again_at_s: float = inf
    held: bool = False


def next_step(node: Node, context: StepContext) -> Step:
    """Decide what to do with the node now. It has one call at a time, and a pause after a failed one."""
    survives = _process_survives(node)
    if node.call is not None:  # until its answer; the brain watches the deadlines of all calls
        return Step(
            survives or because(Code.CALL_IN_FLIGHT, call=str(node.call.kind), deadline_s=node.call.deadline_s)
        )
    if context.now_s < node.retry_s:
        later = because(Code.RETRY_LATER, retry_s=node.retry_s, tries=node.tries)
        return Step(survives or later, again_at_s=node.retry_s)
    step = _step_now(node, context)
    changes_s = health_changes_s(node, context.policy, context.now_s)
    return step._replace(again_at_s=changes_s) if changes_s < step.again_at_s else step


def _step_now(node: Node, context: StepContext) -> Step:
    steered = operator.operator_step(node, context.snapshot.operator.steering)
    if steered is not None:
        waits = steered.waits_for_jobs
        return _wait_for_jobs(node, steered.reason, context) if waits else Step(steered.reason, steered.action)
    if node.launch.type_name in context.policy.observed and _is_left_alone(node):
        return Step(because(Code.ONLY_OBSERVED, node_type=node.launch.type_name))
    return STEP_OF_STATE[node.state](node, context)


def _is_left_alone(node: Node) -> bool:
    """Whether no stop was begun: a drain of ours marks a begun stop, even while the node is still busy."""
    drained_by_us = node.rank is not None and node.rank.drain_reason == drain_text(node.id)
    return node.state in LEFT_ALONE_IF_OBSERVED and not drained_by_us


def _step_requested(node: Node, context: StepContext) -> Step:
    node_type = context.policy.types.get(node.launch.type_name)
    if not node.create.recorded:
        return Step(because(Code.LEASE_TO_RECORD), RecordLaunches((node.launch,)))
    if node.create.sent_s is not None:
        return Step(because(Code.LOOKED_FOR, absences=node.listing.absences, since_s=node.listing.known_s))
    if context.overspent is not None:
        return Step(context.overspent, EndLease(node.launch, context.overspent))
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
    block = block_on(size, node.launch.zone, context.snapshot)
    if block is not None:
        return _step_blocked(node, block, context)
    none_left = _why_not_next(node, context) or context.allowance.why_none(size)
    if none_left is not None:
        return Step(none_left, EndLease(node.launch, none_left))
    if context.create_credit < 1.0:
        return _wait_for_turn(context)
    if context.cloud_calls_left <= 0:
        return _wait_for_answer(context)
    context.allowance.take(size)
    context.create_credit -= 1.0
    context.cloud_calls_left -= 1
    return Step(because(Code.CREATING), CreateNode(node.launch, size))


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


def _wait_for_turn(context: StepContext) -> Step:
    """Wait for the rate limiter. Creates that become due within a second are sent together."""
    rate = context.policy.calls.creates_per_s
    wait_s = max(CREATES_EVERY_S, (1.0 - context.create_credit) / rate)
    return Step(because(Code.CREATE_PACED, creates_per_s=rate), again_at_s=context.now_s + wait_s, held=True)


def _step_booting(node: Node, context: StepContext) -> Step:
    given_up = why_give_up(node, context.policy, context.now_s)
    why = given_up.reason if given_up is not None else context.overspent
    if why is not None and (kept := context.why_kept(node)) is not None:
        return Step(kept)
    if given_up is not None:
        return _give_up(node, given_up, context)
    if context.overspent is not None:
        return _give_up(node, GivenUp(context.overspent), context)
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


def _give_up(node: Node, given_up: GivenUp, context: StepContext) -> Step:
    """Drain a node that is not up."""
    if context.stack is not None:
        context.stack.note_leaving(node)
    return _drain(node, given_up.reason, boot_failed=given_up.boot_failed)


def _step_lost(node: Node, context: StepContext) -> Step:
    given_up = why_give_up(node, context.policy, context.now_s)
    if given_up is not None and not (node.rank is not None and node.rank.allocated):
        kept = context.why_kept(node)
        return Step(kept) if kept is not None else _give_up(node, given_up, context)
    again_at_s = node.since_s + context.policy.timing.rejoin_timeout_s if given_up is None else inf
    return Step(because(Code.MAY_REJOIN, away_s=context.now_s - node.since_s), again_at_s=again_at_s)


def _step_idle(node: Node, context: StepContext) -> Step:
    policy = context.policy
    if is_emptying(node):
        return _step_emptied(node, context)
    # Most idle nodes are sound and not drained: nothing to mend.
    if (_is_drained(node) or not node.is_sound) and (mended := _mend_idle(node, context)) is not None:
        return mended
    if (kept_up := _step_upkeep(node, context)) is not None:
        return kept_up
    counts = takes_jobs(node, context.snapshot, policy)
    # A node that takes no jobs does not count towards nodes_min.
    surplus = context.count_usable - policy.limits.nodes_min if counts else 1
    if context.overspent is not None and not _is_drained(node):  # at once, so that no job starts there
        return _retire(node, context.overspent, context)
    if context.count_live > policy.limits.nodes_max and surplus > 0 and _is_confirmed_idle(node, policy):
        return _retire_surplus(
            node,
            because(Code.ABOVE_NODES_MAX, node_count=context.count_live, nodes_max=policy.limits.nodes_max),
            context,
        )
    job, retiring = context.makes_room if context.makes_room is not None else (None, ())
    if node.launch.id in retiring and surplus > 0 and _is_confirmed_idle(node, policy):
        return _retire_surplus(node, because(Code.MAKES_ROOM, job=str(job)), context)
    name = node.launch.type_name
    node_type = policy.types.get(name)
    spares = node_type.spares if node_type is not None and counts else 0
    spare = spares > 0 and context.count_ready.get(name, 0) <= spares
    verdict = should_retire(node, node_type, policy, context.now_s, surplus, spare, context.stop_times(name))
    if not verdict.retires:
        return Step(verdict.reason, again_at_s=verdict.again_at_s)
    if counts and context.why_kept(node) is None:
        context.count_ready[name] = context.count_ready.get(name, 0) - 1
    return _retire_surplus(node, verdict.reason, context)


def _retire_surplus(node: Node, reason: Reason, context: StepContext) -> Step:
    """Retire a node that is sound but not needed, unless the provider keeps it all the same."""
    kept = context.why_kept(node)
    return Step(kept) if kept is not None else _retire(node, reason, context)


def _step_upkeep(node: Node, context: StepContext) -> Step | None:
    """The step of an idle node that is replaced, or empties; or that jobs need. None if none of that holds."""
    confirmed = _is_confirmed_idle(node, context.policy)
    if (why := context.upkeep.leaving.get(node.id)) is not None and confirmed:
        return _retire(node, why, context)
    wanted = context.needed.get(node.launch.slot)
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
    why = unfit or context.upkeep.leaving.get(node.id) or context.overspent
    if why is None and node.id not in context.emptying.nodes:
        reason = because(Code.EMPTIES_NO_MORE)
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    if node.seen.idle_looks < policy.rules.idle_confirmations:
        return Step(
            because(Code.IDLE_UNCONFIRMED, looks=node.seen.idle_looks, needs=policy.rules.idle_confirmations)
        )
    if why is None:
        undrained = replace(node, rank=replace(node.rank, drain_reason=None)) if node.rank is not None else node
        verdict = should_retire(
            undrained, node_type, policy, context.now_s, 1, stop_times=context.stop_times(node.launch.type_name)
        )
        if not verdict.retires:
            return Step(verdict.reason, again_at_s=verdict.again_at_s)
        why = verdict.reason
    step = _retire(node, why, context)
    return Step(step.reason, DrainNode(node.id, node.launch.rank, why, replaces=emptying_text(node.id)))


def _retire(node: Node, reason: Reason, context: StepContext) -> Step:
    """Drain the node, and stop counting it for the steps of the nodes after it."""
    if context.stack is not None:
        context.stack.note_leaving(node)
    context.count_live -= 1
    context.count_usable -= takes_jobs(node, context.snapshot, context.policy)
    return _drain(node, reason)


def _mend_idle(node: Node, context: StepContext) -> Step | None:
    """Decide what to do with an idle node that is drained or unhealthy; None if it counts as idle all the same."""
    if _has_drain_of_previous_node(node):
        reason = because(Code.DRAINED_FOR_ANOTHER)
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    if _is_drained(node):
        return _replace_drain_by_flux(node, context)
    given_up = why_give_up(node, context.policy, context.now_s)
    why = given_up.reason if given_up is not None else why_unfit(node, context.policy, context.now_s)
    return _retire(node, why, context) if why is not None else None


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
    step = _retire(node, reason, context)
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
    return node.seen.idle_looks >= policy.rules.idle_confirmations and not _is_drained(node)


def _is_drained(node: Node) -> bool:
    return node.rank is not None and node.rank.drain_reason is not None


def _step_busy(node: Node, context: StepContext) -> Step:
    if (why := why_unfit(node, context.policy, context.now_s)) is not None:
        # It takes no more jobs; running jobs continue.
        return _wait_for_jobs(node, why, context) if _is_drained(node) else _cordon(node, why)
    if (hangs_s := hung_s(node, context.now_s)) is not None:
        return Step(because(Code.HANGS_AT_WORK, node=node.launch.slot, hangs_s=hangs_s))
    if node.health.misfit is not None:
        return _cordon(node, node.health.misfit, hardware.drain_note(node.health.misfit))
    if context.overspent is not None and node.rank is not None:
        return _cordon(node, context.overspent)
    if (why := context.upkeep.leaving.get(node.id)) is not None:
        return _wait_for_jobs(node, why, context) if _is_drained(node) else _cordon(node, why)
    if (step := _step_busy_top(node, context)) is not None:
        return step
    if (why := context.emptying.nodes.get(node.id)) is not None:
        cordon = CordonNode(node.id, node.launch.rank, emptying_text(node.id), why)
        return Step(why, None if _is_drained(node) else cordon)
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
    if stack is None or context.jobs_want_more or context.count_usable <= context.policy.limits.nodes_min:
        return None
    top = stack.top
    if top is None or top.id != node.id or context.why_kept(node) is not None:
        return None
    at_rest = node_index_of(context.snapshot).at_rest
    for times in _retirement_times(context):
        for at_s, id_ in times:
            idle = at_rest[id_]
            if idle.launch.slot in context.needed or (idle.cloud is not None and idle.cloud.fixed):
                continue
            if at_s > context.now_s:
                return Step(BUSY, again_at_s=at_s) if not _is_drained(node) else None
            return _cordon(node, because(Code.IDLE_NODES_BELOW, node=idle.launch.slot))
    return None


def _retirement_times(context: StepContext) -> Iterator[Iterator[TimedNode]]:
    """For each type, its nodes at rest by the time at which they may go, the first one first.

    Types whose idle nodes stay are left out.
    """
    policy = context.policy
    for name, resting in node_index_of(context.snapshot).resting.items():
        node_type = policy.types.get(name)
        if node_type is None:
            yield ((-inf, id_) for _, id_ in resting.idle_since)
        elif name not in policy.observed and not _are_spares(node_type, context):
            lead_s = context.stop_times(name).lead_s
            yield resting.by_time(node_type.billing, policy.idle_timeout_s(node_type), lead_s, context.now_s)


def _are_spares(node_type: NodeType, context: StepContext) -> bool:
    """Whether all idle nodes of the type are needed as spares."""
    return 0 < node_type.spares >= context.count_ready.get(node_type.name, 0)


def _wait_for_jobs(node: Node, why: Reason, context: StepContext) -> Step:
    """Wait for what runs there, but kill a housekeeping that lasts too long."""
    runs = node.rank is not None and node.rank.housekeeping_since_at is not None
    lasts_s = overdue_housekeeping_s(node, context.policy, context.now_s)
    if not runs or lasts_s is None or survives_kills(node):
        return Step(why)
    stuck = because(
        Code.HOUSEKEEPING_STUCK, lasts_s=lasts_s, housekeeping_max_s=context.policy.timing.housekeeping_max_s
    )
    return Step(stuck, KillHousekeeping(node.id, node.launch.rank, node.health.housekeeping_kills > 0, stuck))


def _cordon(node: Node, why: Reason, note: str = "") -> Step:
    """Drain a busy node: no new job starts, running jobs finish. Does nothing if it is drained already."""
    text = f"{drain_text(node.id)} {note}".rstrip()
    return Step(why, None if _is_drained(node) else CordonNode(node.id, node.launch.rank, text, why))


def _step_draining(node: Node, context: StepContext) -> Step:
    wanted = context.needed.get(node.launch.slot)
    fit = not gets_no_work(node, context.policy, context.now_s) and node.id not in context.upkeep.leaving
    if wanted is not None and fit and not (context.policy.destroy_on_replay and node.health.replayed):
        return _reprieve(node, context, because(Code.WANTED_AGAIN, jobs=job_names(wanted)))
    if node.stop.drained_s is None or node.rank is None:
        return _drain_again(node, because(Code.DRAIN_UNANSWERED))
    obstacle = second_look(node, node.rank)
    if obstacle is None:
        return _stop(node, context)
    reason = obstacle_reason(obstacle, node.rank)
    if obstacle is StopObstacle.JOB_SLIPPED_IN and node.rank.online and fit:
        return _reprieve(node, context, reason)
    if obstacle in (StopObstacle.STILL_SCHEDULABLE, StopObstacle.NOT_DRAINED):
        if context.now_s - node.stop.drained_s >= REDRAIN_AFTER_S:
            return _drain_again(node, reason)
        return _wait_for_jobs(node, reason, context)._replace(again_at_s=node.stop.drained_s + REDRAIN_AFTER_S)
    return _wait_for_jobs(node, reason, context)


def _is_terminable(node: Node, context: StepContext) -> bool:
    """Whether a leaving node may be terminated now, apart from its place among the others."""
    if node.stop.drained_s is None or node.rank is None:
        return False
    if node.state is NodeState.STOPPING:
        return not node.rank.allocated
    unfit = gets_no_work(node, context.policy, context.now_s)
    return (
        node.call is None
        and second_look(node, node.rank) is None
        and (unfit or node.launch.slot not in context.needed)
    )


def _step_stopping(node: Node, context: StepContext) -> Step:
    """Stop the node again and again until it is seen gone, unless somebody undrained it after the second look."""
    if node.rank is not None and node.rank.allocated:
        return _wait_for_jobs(node, because(Code.JOB_SLIPPED_IN), context)
    if node.stop.drained_s is None:
        # The claim was renewed since. Another manager may have kept the node meanwhile and given it work.
        return _drain_again(node, because(Code.DRAIN_UNANSWERED))
    return _stop(node, context)


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
    if context.cloud_calls_left <= 0:
        return _wait_for_answer(context)
    context.cloud_calls_left -= 1
    return Step(_process_survives(node) or reason, DestroyNode(node.id, node.cloud.provider_id, reason))


def _process_survives(node: Node) -> Reason | None:
    """Why the node does not end although it was told to, if a guest's process keeps it."""
    if node.cloud is None or not node.cloud.survivors:
        return None
    return because(Code.PROCESS_SURVIVES, detail=node.cloud.survivors)


def _wait_for_answer(context: StepContext) -> Step:
    return Step(
        because(Code.CALLS_IN_FLIGHT_MAX, calls_in_flight_max=context.policy.calls.calls_in_flight_max), held=True
    )


def _step_gone(node: Node, context: StepContext) -> Step:
    rank = context.snapshot.ranks.get(node.launch.rank)
    if node.cloud is not None and rank is not None and rank.online:
        # Its slot is free only once Flux's overlay network has noticed too.
        return _wait_for_jobs(node, because(Code.GONE_YET_ONLINE), context)
    if waits_for_record(node, context.snapshot):
        return Step(because(Code.SPEND_TO_RECORD))
    reason = because(Code.GONE)
    return Step(reason, EndLease(node.launch, reason))


def _drain(node: Node, reason: Reason, *, boot_failed: bool = False, for_operator: bool = False) -> Step:
    """Drain the node so that it can be stopped."""
    note = hardware.drain_note(reason) if reason == node.health.misfit else ""
    order = DrainNode(node.id, node.launch.rank, reason, note, boot_failed=boot_failed, for_operator=for_operator)
    return Step(reason, order)


def _drain_again(node: Node, otherwise: Reason) -> Step:
    """Order a drain once more, for the reason for which the node leaves; ``otherwise`` if that is unknown."""
    return _drain(node, node.stop.retiring or otherwise, for_operator=node.stop.by_operator)


def _reprieve(node: Node, context: StepContext, reason: Reason) -> Step:
    """Undrain the node and keep it."""
    if context.stack is not None:
        context.stack.note_staying(node)
    context.count_live += 1
    context.count_usable += 1
    return Step(reason, UndrainNode(node.id, node.launch.rank, reason))


def job_names(jobs: tuple[JobId, ...]) -> tuple[str, ...]:
    """The jobs' ids as text, for a reason."""
    return tuple(str(job) for job in jobs)


STEP_OF_STATE: Mapping[NodeState, Callable[[Node, StepContext], Step]] = {
    NodeState.REQUESTED: _step_requested,
    NodeState.BOOTING: _step_booting,
    NodeState.IDLE: _step_idle,
    NodeState.BUSY: _step_busy,
    NodeState.LOST: _step_lost,
    NodeState.DRAINING: _step_draining,
    NodeState.STOPPING: _step_stopping,
    NodeState.GONE: _step_gone,
}

# Undrain before anything is bought, and end costs before new ones begin.
STATE_ORDER = (
    NodeState.DRAINING,
    NodeState.BUSY,
    NodeState.GONE,
    NodeState.STOPPING,
    NodeState.LOST,
    NodeState.IDLE,
    NodeState.BOOTING,
    NodeState.REQUESTED,
)
STATE_RANKING: Mapping[NodeState, int] = {state: turn for turn, state in enumerate(STATE_ORDER)}


# --- all nodes --------------------------------------------------------------------------------------------

FIRST_OF_ALL = (-1, Decimal(0), LaunchId(""))


@dataclass(slots=True)
class FleetSteps:
    """The steps of the nodes that needed a decision, in their order, and the reasons of those at rest."""

    steps: dict[LaunchId, Step]
    resting: RestingReasons
    again_at_s: float  # when the passing of time alone may change a step


def step_nodes(context: StepContext) -> FleetSteps:
    """Give each node that needs a decision its next step.

    Of the nodes at rest, only those are looked at whose time may have come. The others would take no step.
    """
    snapshot = context.snapshot
    node_index = node_index_of(snapshot)
    to_check = node_index.to_check
    if context.overspent is not None:
        to_check = snapshot.nodes  # once the budget is spent, busy nodes need a decision too
    elif node_index.confirmations != context.policy.rules.idle_confirmations:
        to_check = {**to_check, **node_index.at_rest}  # the policy has changed since the last look
    leaving = {id_: snapshot.nodes[id_] for id_ in (*context.upkeep.leaving, *context.emptying.nodes)}
    to_decide = {**to_check, **operator.steered_nodes(snapshot), **leaving}
    if context.stack is not None and (top := context.stack.top) is not None and top.state is NodeState.BUSY:
        to_decide[top.id] = top  # it may keep idle nodes below it
    by_turn = [(_step_order(node, context.policy), node) for node in to_decide.values()]
    by_turn.sort(key=lambda it: it[0])
    first_idle = bisect_left(by_turn, STATE_RANKING[NodeState.IDLE], key=lambda it: it[0][0])
    steps = {node.launch.id: next_step(node, context) for _, node in by_turn[:first_idle]}
    after_idle = bisect_right(by_turn, STATE_RANKING[NodeState.IDLE], key=lambda it: it[0][0])
    resting = RestingReasons(context)
    idle = by_turn[first_idle:after_idle]
    due = [it for it in resting.due() if it.launch.id not in to_decide]
    idle += [(_step_order(node, context.policy), node) for node in due]
    idle.sort(key=lambda it: it[0])
    for turn, node in idle:
        if context.count_usable > context.policy.limits.nodes_min or node.launch.id in to_decide:
            steps[node.launch.id] = step = next_step(node, context)
            if step.action is not None:
                resting.note(turn)
    steps |= {node.launch.id: next_step(node, context) for _, node in by_turn[after_idle:]}
    decided_s = min((step.again_at_s for step in steps.values()), default=inf)
    return FleetSteps(steps, resting, resting.again_at_s(steps, decided_s))


def _step_order(node: Node, policy: Policy) -> tuple[int, Decimal, LaunchId]:
    """The order in which nodes take their steps. The dearest idle node comes first, so the cheap ones are kept.

    If only the highest node can leave, the highest comes first.
    """
    if policy.stacked:
        return STATE_RANKING[node.state], Decimal(-node.launch.rank), node.launch.id
    tariff = billing.tariff_of(node.launch, policy) if node.state is NodeState.IDLE else None
    price = tariff.price_per_hour if tariff is not None else Decimal(0)
    return STATE_RANKING[node.state], -price, node.launch.id


class RestingReasons:
    """Why each node at rest stays. A reason is computed on access, because there may be very many nodes.

    Make it when the turn of the idle nodes comes. ``note`` each step that changes the counts in the context: a
    node's reason depends on the steps before its own turn.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._at_rest = node_index_of(context.snapshot).at_rest
        self._resting = node_index_of(context.snapshot).resting
        self._turns = [FIRST_OF_ALL]
        self._counts = [self._counts_now()]
        self._reasons: dict[LaunchId, Reason] = {}

    def note(self, turn: tuple[int, Decimal, LaunchId]) -> None:
        """Note that the step of this turn may have changed the counts."""
        self._turns.append(turn)
        self._counts.append(self._counts_now())

    def get(self, id_: LaunchId) -> Reason | None:
        """Why the node stays; None if it is not at rest."""
        if id_ not in self._reasons:
            node = self._at_rest.get(id_)
            if node is None:
                return None
            self._reasons[id_] = self._step(node).reason
        return self._reasons[id_]

    def changed_since(self, before: RestingReasons) -> Iterable[LaunchId]:
        """The nodes at rest, now or before, whose reason may have another code than before."""
        if self._kinds() != before._kinds():
            return {**self._at_rest, **before._at_rest}
        changed = self._wanted() ^ before._wanted()
        if self._at_rest is not before._at_rest:
            changed |= self._at_rest.keys() ^ before._at_rest.keys()
        return changed

    def due(self) -> Iterator[Node]:
        """The nodes that may be retired now. The others certainly take no step."""
        context, policy = self._context, self._context.policy
        if context.overspent is not None:
            return  # each node takes a step in any case
        if context.stack is not None:
            yield from (it for it in context.stack.candidates() if it.id in self._at_rest)
        elif context.count_live > policy.limits.nodes_max:
            yield from self._at_rest.values()
        elif context.count_usable > policy.limits.nodes_min:
            found: dict[LaunchId, None] = {}
            if context.makes_room is not None:
                found |= dict.fromkeys(id_ for id_ in context.makes_room[1] if id_ in self._at_rest)
            for times in _retirement_times(self._context):
                found |= dict.fromkeys(id_ for _, id_ in takewhile(lambda it: it[0] <= context.now_s, times))
            yield from map(self._at_rest.__getitem__, found)

    def again_at_s(self, decided: Container[LaunchId], latest_s: float) -> float:
        """When time alone may change the step of a node that is not in ``decided``; at most ``latest_s``."""
        context = self._context
        if context.count_usable <= context.policy.limits.nodes_min:
            return latest_s
        if context.stack is not None:
            top = [it for it in context.stack.candidates() if it.id in self._at_rest and it.id not in decided]
            return min((self._step(it).again_at_s for it in top[:1]), default=latest_s)
        for times in _retirement_times(self._context):
            for at_s, id_ in times:
                if at_s + EARLY_S >= latest_s:
                    break
                node = self._at_rest[id_]
                if id_ not in decided and node.launch.slot not in context.needed:
                    latest_s = min(latest_s, self._step(node).again_at_s)
        return latest_s

    def _step(self, node: Node) -> Step:
        turn = bisect_left(self._turns, _step_order(node, self._context.policy))
        live, usable, ready = self._counts[turn - 1]
        stack = self._context.stack.copy() if self._context.stack is not None else None
        then = replace(self._context, count_live=live, count_usable=usable, count_ready=dict(ready), stack=stack)
        return next_step(node, then)

    def _counts_now(self) -> tuple[int, int, Mapping[TypeName, int]]:
        context = self._context
        return context.count_live, context.count_usable, dict(context.count_ready)

    def _kinds(self) -> object:
        """What the reasons of all nodes depend on, before the first and after the last step."""
        policy = self._context.policy
        kinds = []
        for _, usable, ready in (self._counts[0], self._counts[-1]):
            spares = [it.name for it in policy.node_types if 0 < it.spares >= ready.get(it.name, 0)]
            kinds.append((usable > policy.limits.nodes_min, spares))
        return kinds, policy.observed, policy.node_types, self._context.snapshot.operator.steering

    def _wanted(self) -> set[LaunchId]:
        of_slot = node_index_of(self._context.snapshot).launch_of_slot
        return {id_ for slot in self._context.needed if (id_ := of_slot.get(slot)) in self._at_rest and id_}
