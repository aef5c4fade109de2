"""Choose where nodes are created: in the first zone of a type that is not blocked.

A create that fails for lack of capacity blocks its type in that zone and on that market for a while. The next zone
is tried at once, then the next type. A failure of the whole account, such as bad credentials, blocks every type.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.core.nodes import FailureKind
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import ALL_TYPES, EVERYTHING, Block, Scope, Snapshot

# By the kind of the failure. Kinds that block nothing are not in these tables.
REFUSED: Mapping[FailureKind, Code] = {
    FailureKind.CAPACITY: Code.CREATE_CAPACITY,
    FailureKind.THROTTLED: Code.CREATE_THROTTLED,
    FailureKind.CREDENTIALS: Code.CREATE_CREDENTIALS,
    FailureKind.CONFIG: Code.CREATE_CONFIG,
    FailureKind.GONE: Code.CREATE_GONE,
    FailureKind.TRANSIENT: Code.CREATE_TRANSIENT,
}
BLOCKED: Mapping[FailureKind, Code] = {
    FailureKind.CAPACITY: Code.BLOCKED_CREATE_CAPACITY,
    FailureKind.THROTTLED: Code.BLOCKED_CREATE_THROTTLED,
    FailureKind.CREDENTIALS: Code.BLOCKED_CREATE_CREDENTIALS,
    FailureKind.CONFIG: Code.BLOCKED_CREATE_CONFIG,
    FailureKind.GONE: Code.BLOCKED_CREATE_GONE,
    FailureKind.TRANSIENT: Code.BLOCKED_CREATE_TRANSIENT,
}


def zones_of(node_type: NodeType) -> tuple[str, ...]:
    """The zones of a type, in the order in which they are tried; "" lets the provider choose."""
    return node_type.zones or ("",)


def open_zones(node_type: NodeType, snapshot: Snapshot) -> tuple[str, ...]:
    """The zones for the type's next nodes: those that are not blocked, or the first one if all are."""
    zones = zones_of(node_type)
    if not snapshot.learned.blocks:
        return zones
    return tuple(zone for zone in zones if block_on(node_type, zone, snapshot) is None) or zones[:1]


def scopes_of(node_type: NodeType) -> tuple[Scope, ...]:
    """The scopes that include a type, the account's first."""
    return EVERYTHING, Scope(ALL_TYPES, node_type.market), Scope(node_type.name)


def block_on(node_type: NodeType, zone: str, snapshot: Snapshot) -> Block | None:
    """What blocks the type in a zone now, the longest block; None if nothing does."""
    if not snapshot.learned.blocks:
        return None
    scopes = (*scopes_of(node_type), Scope(node_type.name, node_type.market, zone))
    blocks = [snapshot.learned.blocks[scope] for scope in scopes if scope in snapshot.learned.blocks]
    standing = [block for block in blocks if block.until_s > snapshot.now_s]
    return max(standing, key=lambda block: block.until_s, default=None)


def blocked_types(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Reason]:
    """The types that no zone offers now, each with the block that ends first; and the observed types."""
    observed = {name: because(Code.ONLY_OBSERVED, node_type=name) for name in policy.observed}
    if not snapshot.learned.blocks:
        return observed
    blocked = {it.name: why for it in policy.node_types if (why := why_blocked(it, snapshot)) is not None}
    return {**blocked, **observed}


def why_blocked(node_type: NodeType, snapshot: Snapshot) -> Reason | None:
    """Why no zone offers the type now, by the block that ends first; None if a zone does."""
    blocks = [block_on(node_type, zone, snapshot) for zone in zones_of(node_type)]
    if any(block is None for block in blocks):
        return None
    first = min((block for block in blocks if block is not None), key=lambda block: block.until_s)
    return block_reason(first)


def block_reason(block: Block) -> Reason:
    """The reason that explains a block and when it ends."""
    return because(BLOCKED[block.kind], until_s=block.until_s, detail=block.detail)


def refusal_reason(block: Block) -> Reason:
    """The reason of the refused create that led to a block."""
    return because(REFUSED[block.kind], detail=block.detail)
