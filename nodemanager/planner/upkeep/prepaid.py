"""Nodes that are paid for in advance: reserved instances, savings plans, own hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from nodemanager.core.slots import TypeName
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


def count_prepaid(snapshot: Snapshot) -> Mapping[TypeName, int]:
    """How many nodes of each type were bought as prepaid ones and still exist. Costs nothing if there are none."""
    if not any(prepaid for _, _, _, prepaid in node_index_of(snapshot).count_by_make):
        return {}
    nodes = (node for node in snapshot.nodes.values() if node.launch.prepaid and node.may_be_billed)
    return Counter(node.launch.type_name for node in nodes)


def prepaid_left(snapshot: Snapshot, policy: Policy) -> dict[TypeName, int]:
    """How many further nodes of each type cost nothing. Types without any are left out."""
    if not policy.has_prepaid:
        return {}
    there = count_prepaid(snapshot)
    left = {it.name: it.prepaid - there.get(it.name, 0) for it in policy.node_types}
    return {name: count for name, count in left.items() if count > 0}
