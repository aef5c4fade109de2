"""Which nodes a scope covers: a type, a size, a market, or the whole account; and how many of them exist."""

from __future__ import annotations

from collections.abc import Iterable

from nodemanager.core.nodes import NodeState
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import bought_as, node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import ALL_TYPES, Bought, Scope, Snapshot


def trial_scope(node_type: NodeType) -> Scope:
    """The scope under which trial boots of a type are counted while its breaker is open."""
    return Scope(node_type.name, zone="trial")


def scope_name(scope: Scope) -> str:
    if scope.type_name != ALL_TYPES:
        return f"{scope.type_name} as {scope.size}" if scope.size else str(scope.type_name)
    return str(scope.market) if scope.market is not None else "account"


def count_granted(scope: Scope, snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes of the scope exist at the provider, as far as it has listed them."""
    return sum(node.exists_at_provider for node in _nodes_in(scope, snapshot.nodes.values(), policy))


def count_billed(scope: Scope, snapshot: Snapshot, policy: Policy, sent_only: bool) -> int:
    """How many nodes of the scope are, or may be, billed."""
    if sent_only:
        waits = sum(
            1
            for node in _nodes_in(scope, node_index_of(snapshot).to_check.values(), policy)
            if node.state is NodeState.REQUESTED and node.create.sent_s is None
        )
        return count_billed(scope, snapshot, policy, sent_only=False) - waits
    counts = node_index_of(snapshot).count_by_size.items()
    return sum(count for bought, count in counts if _is_in_scope(scope, bought, policy))


def _nodes_in(scope: Scope, nodes: Iterable[Node], policy: Policy) -> Iterable[Node]:
    return (node for node in nodes if _is_in_scope(scope, bought_as(node.launch), policy))


def _is_in_scope(scope: Scope, bought: Bought, policy: Policy) -> bool:
    name, size, market = bought
    if scope.type_name != ALL_TYPES:
        return name == scope.type_name and scope.size in ("", size)
    node_type = policy.types.get(name)
    if node_type is not None and node_type.cloud != scope.cloud:
        return False
    return scope.market is None or (market or _market_of(name, policy)) is scope.market


def _market_of(name: TypeName, policy: Policy) -> Market | None:
    node_type = policy.types.get(name)
    return node_type.market if node_type is not None else None
