"""When idle nodes may be retired."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from nodemanager.core.slots import NodeType
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.resting import TimedNode
from nodemanager.planner.steps.context import StepContext


def retirement_times(context: StepContext) -> Iterator[Iterator[TimedNode]]:
    """For each type, its nodes at rest by the time at which they may go, the first one first.

    Types whose idle nodes stay are left out.
    """
    policy = context.policy
    for name, resting in node_index_of(context.snapshot).resting.items():
        node_type = policy.types.get(name)
        if node_type is None:
            yield ((-inf, id_) for _, id_ in resting.idle_since)
        elif node_type.cloud in context.snapshot.closed_clouds:
            continue
        elif name not in policy.observed and not _are_needed(node_type, context):
            lead_s = context.stop_times(name).lead_s
            yield resting.by_time(node_type.billing, policy.idle_timeout_s(node_type), lead_s, context.now_s)


def _are_needed(node_type: NodeType, context: StepContext) -> bool:
    """Whether all idle nodes of the type are needed as spares, or for its ``nodes_min``."""
    if context.of_types.is_at_min(node_type.name):
        return True
    return 0 < node_type.spares >= context.count_ready.get(node_type.name, 0)
