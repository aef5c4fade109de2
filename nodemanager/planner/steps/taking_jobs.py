"""Whether a node takes jobs, and how many do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping

from nodemanager.core.drains import drained_by_others
from nodemanager.core.nodes import COMING, LEAVING, USABLE, CallKind, LaunchId, NodeState
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner.health.node_health import gets_no_work
from nodemanager.planner.limits.type_limits import TypeCounts, type_counts
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.upkeep.due import is_on_its_way_out


def takes_jobs(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a node gets jobs once it is up. If not, keeping it ready is useless.

    A scheduler that was reloaded, or has not noticed the node yet, gets a moment to do so.
    """
    rank = node.rank
    if snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s) or _is_lease_ending(node):
        return False
    if is_on_its_way_out(node, snapshot, policy):
        return False
    if rank is None:
        return True
    if rank.excluded or rank.given_back is not None or drained_by_others(rank):
        return False
    unschedulable = node.state in USABLE and not (rank.schedulable or rank.drain_reason)
    return not unschedulable or snapshot.now_s - node.seen.rank_seen_s < policy.timing.rejoin_timeout_s


def _is_lease_ending(node: Node) -> bool:
    return node.call is not None and node.call.kind is CallKind.END_LEASE


# --- how many ----------------------------------------------------------------------------------------------


def count_of_types(
    snapshot: Snapshot, policy: Policy, states: Container[NodeState], ended: Container[LaunchId] = ()
) -> Mapping[TypeName, int]:
    """How many nodes in these states take jobs, of each type with limits of its own. ``ended``: leases left out."""
    names = {node_type.name for node_type in policy.limited_types}
    return Counter(
        node.launch.type_name
        for node in snapshot.nodes.values()
        if node.launch.type_name in names
        and node.state in states
        and node.id not in ended
        and takes_jobs(node, snapshot, policy)
    )


def count_usable(snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes are up and take jobs. Without ``nodes_min`` every node that is up counts."""
    if policy.limits.nodes_min <= 0:
        return sum(node_index_of(snapshot).count_by_state.get(state, 0) for state in USABLE)
    return _count_taking_jobs(snapshot, policy, USABLE)


def count_beyond_nodes_min(snapshot: Snapshot, policy: Policy, ended: Container[LaunchId] = ()) -> int:
    """How many nodes that take jobs, now or soon, exceed ``nodes_min``. Nodes in ``ended`` are not counted."""
    return _count_taking_jobs(snapshot, policy, (*USABLE, *COMING), ended) - policy.limits.nodes_min


def _count_taking_jobs(
    snapshot: Snapshot, policy: Policy, states: Container[NodeState], ended: Container[LaunchId] = ()
) -> int:
    at_rest = node_index_of(snapshot).at_rest  # these take jobs, except where an operator keeps them off
    others = (node for id_, node in snapshot.nodes.items() if id_ not in at_rest and node.state in states)
    taking = sum(takes_jobs(node, snapshot, policy) for node in others if node.id not in ended)
    return taking + len(at_rest) - len(steered_at_rest(snapshot))


def steered_at_rest(snapshot: Snapshot) -> set[LaunchId]:
    """The nodes at rest that an operator keeps jobs off."""
    at_rest = node_index_of(snapshot).at_rest
    return {
        id_
        for id_ in (*snapshot.operator.steering.holds, *snapshot.operator.steering.retirements)
        if id_ in at_rest
    }


def count_ready(
    snapshot: Snapshot, policy: Policy, needed: Mapping[SlotName, object], ended: Container[LaunchId] = ()
) -> dict[TypeName, int]:
    """How many nodes of each type are idle or booting and needed by no waiting job; empty if no type has spares.

    ``ended``: nodes that are not counted because their leases end.
    """
    counts: dict[TypeName, int] = {}
    if not policy.has_spares:
        return counts
    node_index = node_index_of(snapshot)
    counts = {name: len(resting.idle_since) for name, resting in node_index.resting.items()}
    owners = (node_index.launch_of_slot.get(slot) for slot in needed)
    for id_ in steered_at_rest(snapshot).union(id_ for id_ in owners if id_ is not None):
        if id_ in node_index.at_rest:
            counts[node_index.at_rest[id_].launch.type_name] -= 1
    for node in node_index.to_check.values():
        ready = node.state in COMING or (node.state is NodeState.IDLE and node.stop.retiring is None)
        unneeded = node.launch.slot not in needed and node.id not in ended
        if ready and unneeded and takes_jobs(node, snapshot, policy):
            counts[node.launch.type_name] = counts.get(node.launch.type_name, 0) + 1
    return counts


def counts_of_types(snapshot: Snapshot, policy: Policy, ended: Collection[LaunchId]) -> TypeCounts:
    """The nodes of the types that have limits of their own."""
    if not policy.limited_types:
        return TypeCounts()
    live = Counter(
        node.launch.type_name
        for node in snapshot.nodes.values()
        if node.may_be_billed and node.state not in LEAVING and node.id not in ended
    )
    return type_counts(policy.limited_types, count_of_types(snapshot, policy, USABLE), live)
