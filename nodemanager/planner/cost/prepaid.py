"""Nodes that are paid for in advance: reserved instances, savings plans, own hardware."""

from __future__ import annotations

from collections import Counter

from nodemanager.core.nodes import Launch
from nodemanager.core.slots import TypeName
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


def prepaid_launches(snapshot: Snapshot) -> list[Launch]:
    """The launches of nodes that were bought as prepaid ones and still exist. Costs nothing if there are none."""
    if not any(prepaid for _, _, _, prepaid in node_index_of(snapshot).count_by_make):
        return []
    return [node.launch for node in snapshot.nodes.values() if node.launch.prepaid and node.may_be_billed]


def prepaid_left(snapshot: Snapshot, policy: Policy) -> dict[TypeName, int]:
    """How many further nodes of each type cost nothing. Types without any are left out.

    A contract names one size, so a type of several sizes has none.
    """
    if not policy.has_prepaid:
        return {}
    there = Counter(launch.type_name for launch in prepaid_launches(snapshot))
    left = {it.name: it.prepaid - there[it.name] for it in policy.node_types if len(policy.by_size[it.name]) == 1}
    return {name: count for name, count in left.items() if count > 0}
