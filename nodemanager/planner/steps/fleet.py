"""Give each node that needs a decision its next step, in the order of the states."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.planner.observe import operator
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.steps.context import Step, StepContext
from nodemanager.planner.steps.next_step import next_step
from nodemanager.planner.steps.resting import STATE_RANKING, RestingReasons, step_order


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
    to_decide = {**to_check, **operator.steered_nodes(snapshot), **leaving, **_nodes_of_overspent_clouds(context)}
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
        if context.count_usable > context.policy.limits.nodes_min or node.launch.id in to_decide:
            steps[node.launch.id] = step = next_step(node, context)
            if step.action is not None:
                resting.note(turn)
    steps |= {node.launch.id: next_step(node, context) for _, node in by_turn[after_idle:]}
    decided_s = min((step.again_at_s for step in steps.values()), default=inf)
    return FleetSteps(steps, resting, resting.again_at_s(steps, decided_s))
