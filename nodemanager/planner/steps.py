"""Give each node that needs a decision its next step, in the order of the states; say why nodes at rest stay."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import takewhile
from math import inf

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import TypeName
from nodemanager.planner import billing, operator
from nodemanager.planner.node_health import health_changes_s
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.node_steps import (
    step_booting,
    step_busy,
    step_draining,
    step_gone,
    step_idle,
    step_lost,
    step_requested,
    step_stopping,
)
from nodemanager.planner.policy import Policy
from nodemanager.planner.slot_types import TypeCounts
from nodemanager.planner.snapshot import EARLY_S, Node
from nodemanager.planner.step_context import Step, StepContext, process_survives, wait_for_jobs

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


def step_order(node: Node, policy: Policy) -> tuple[int, Decimal, LaunchId]:
    """The order in which nodes take their steps. The dearest idle node comes first, so the cheap ones are kept.

    If only the highest node can leave, the highest comes first.
    """
    if policy.stacked:
        return STATE_RANKING[node.state], Decimal(-node.launch.rank), node.launch.id
    tariff = billing.tariff_of(node.launch, policy) if node.state is NodeState.IDLE else None
    return STATE_RANKING[node.state], -tariff.price_per_hour if tariff is not None else FREE, node.launch.id


FREE = Decimal(0)
FIRST_OF_ALL = (-1, FREE, LaunchId(""))


@dataclass(slots=True)
class FleetSteps:
    """The steps of the nodes that needed a decision, in their order, and the reasons of those at rest."""

    steps: dict[LaunchId, Step]
    resting: RestingReasons
    again_at_s: float  # when the passing of time alone may change a step


def _nodes_of_overspent_clouds(context: StepContext) -> Mapping[LaunchId, Node]:
    """The nodes of clouds that have spent their own budget: their busy nodes need a decision too."""
    if not context.overspent_clouds:
        return {}
    nodes = context.snapshot.nodes
    return {id_: node for id_, node in nodes.items() if context.why_overspent(node) is not None}


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
    steering = snapshot.operator.steering
    steered = operator.steered_nodes(snapshot) if steering.holds or steering.retirements else {}
    to_decide = {**to_check, **steered, **leaving, **_nodes_of_overspent_clouds(context)}
    if context.stack is not None and (top := context.stack.top) is not None and top.state is NodeState.BUSY:
        to_decide[top.id] = top  # it may keep idle nodes below it
    by_turn = [(step_order(node, context.policy), node) for node in to_decide.values()]
    by_turn.sort(key=lambda it: it[0])
    first_idle = bisect_left(by_turn, STATE_RANKING[NodeState.IDLE], key=lambda it: it[0][0])
    steps = {node.launch.id: next_step(node, context) for _, node in by_turn[:first_idle]}
    after_idle = bisect_right(by_turn, STATE_RANKING[NodeState.IDLE], key=lambda it: it[0][0])
    resting = RestingReasons(context)
    idle = by_turn[first_idle:after_idle]
    due = [it for it in resting.due() if it.launch.id not in to_decide]
    idle += [(step_order(node, context.policy), node) for node in due]
    idle.sort(key=lambda it: it[0])
    for turn, node in idle:
        may_leave = (
            context.count_usable > context.policy.limits.nodes_min or context.makes_room_for(node) is not None
        )
        if may_leave or node.launch.id in to_decide:
            steps[node.launch.id] = step = next_step(node, context)
            if step.action is not None:
                resting.note(turn)
    steps |= {node.launch.id: next_step(node, context) for _, node in by_turn[after_idle:]}
    decided_s = min((step.again_at_s for step in steps.values()), default=inf)
    return FleetSteps(steps, resting, resting.again_at_s(steps, decided_s))


# --- nodes at rest ----------------------------------------------------------------------------------------------


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
        else:
            found: dict[LaunchId, None] = {}
            if self._at_rest and context.jobs.makes_room is not None:
                found |= dict.fromkeys(id_ for id_ in context.jobs.makes_room[1] if id_ in self._at_rest)
            if context.count_usable > policy.limits.nodes_min:
                above = (name for name in context.of_types.above_max if context.of_types.is_above_max(name))
                for resting in (self._resting[name] for name in above if name in self._resting):
                    found |= dict.fromkeys(id_ for _, id_ in resting.idle_since)
                for times in self._context.retirement_times():
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
        for times in self._context.retirement_times():
            for at_s, id_ in times:
                if at_s + EARLY_S >= latest_s:
                    break
                node = self._at_rest[id_]
                if id_ not in decided and node.launch.slot not in context.jobs.needed:
                    latest_s = min(latest_s, self._step(node).again_at_s)
        return latest_s

    def _step(self, node: Node) -> Step:
        turn = bisect_left(self._turns, step_order(node, self._context.policy))
        live, usable, ready, of_types = self._counts[turn - 1]
        stack = self._context.stack.copy() if self._context.stack is not None else None
        then = replace(
            self._context,
            count_live=live,
            count_usable=usable,
            count_ready=dict(ready),
            of_types=of_types.copy(),
            stack=stack,
        )
        return next_step(node, then)

    def _counts_now(self) -> tuple[int, int, Mapping[TypeName, int], TypeCounts]:
        context = self._context
        return context.count_live, context.count_usable, dict(context.count_ready), context.of_types.copy()

    def _kinds(self) -> object:
        """What the reasons of all nodes depend on, before the first and after the last step."""
        policy = self._context.policy
        kinds = []
        for _, usable, ready, of_types in (self._counts[0], self._counts[-1]):
            spares = [it.name for it in policy.node_types if 0 < it.spares >= ready.get(it.name, 0)]
            kinds.append((usable > policy.limits.nodes_min, spares, of_types.signs()))
        snapshot = self._context.snapshot
        return kinds, policy.observed, policy.node_types, snapshot.operator.steering, snapshot.closed_clouds

    def _wanted(self) -> set[LaunchId]:
        of_slot = node_index_of(self._context.snapshot).launch_of_slot
        return {id_ for slot in self._context.jobs.needed if (id_ := of_slot.get(slot)) in self._at_rest and id_}


# --- decide the next step of one node by its state, with the reason, also if it takes none ----------------


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
        if node.tries and node.failure:
            later = later.with_figures(detail=node.failure)
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
