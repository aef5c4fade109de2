"""Steps of idle nodes: keep, mend or retire."""

from __future__ import annotations

from nodemanager.core.drains import drain_text, emptying_text, hold_text, is_our_drain
from nodemanager.core.orders import CordonNode, DrainNode, UndrainNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import ForeignDrain, NodeType
from nodemanager.planner.health.node_health import why_give_up, why_unfit
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.steps.context import Step, StepContext
from nodemanager.planner.steps.orders import is_drained, job_names, retire
from nodemanager.planner.steps.retirement import should_retire
from nodemanager.planner.steps.taking_jobs import takes_jobs
from nodemanager.planner.upkeep.consolidation import is_emptying
from nodemanager.planner.upkeep.unsafe_data import overdue_at_s, why_held_for_data


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
    may_leave = (
        surplus > 0 and not (counts and context.of_types.is_at_min(name)) and _is_confirmed_idle(node, policy)
    )
    if (spent := context.why_overspent(node)) is not None and not is_drained(node):  # so that no job starts there
        return retire(node, spent, context)
    if (held := why_held_for_data(node, context.snapshot, policy)) is not None:
        return Step(held, again_at_s=overdue_at_s(node, context.snapshot, policy))
    if may_leave and (too_many := _why_too_many(node, context)) is not None:
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


def _why_too_many(node: Node, context: StepContext) -> Reason | None:
    """Why an idle node goes whatever is paid for it: a limit is exceeded, or a job needs the room; None if not."""
    nodes_max, name = context.policy.limits.nodes_max, node.launch.type_name
    if context.count_live > nodes_max:
        return because(Code.ABOVE_NODES_MAX, node_count=context.count_live, nodes_max=nodes_max)
    if context.of_types.is_above_max(name):
        nodes_max = context.policy.types[name].limits.nodes_max or 0
        count = nodes_max + context.of_types.above_max[name]
        return because(Code.TYPE_ABOVE_NODES_MAX, node_type=name, node_count=count, nodes_max=nodes_max)
    job, retiring = context.jobs.makes_room if context.jobs.makes_room is not None else (None, ())
    return because(Code.MAKES_ROOM, job=str(job)) if node.launch.id in retiring else None


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
            return Step(verdict.reason, again_at_s=verdict.again_at_s)
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
