"""Choose where nodes are created: in the first zone of a type that is not blocked.

A create that fails for lack of capacity blocks its type in that zone and on that market for a while. The next zone
is tried at once, then the next type. A failure of the whole account, such as bad credentials, blocks every type.

The nodes of a type with ``placement = cluster`` are in one placement group for each zone. A job that needs several
of them is planned as if it asked for a single zone: all its new nodes are bought in one group.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Shape
from nodemanager.core.nodes import FailureKind, group_name
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodePlacement, NodeType, Rank
from nodemanager.planner.state.constraints import holds
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import ALL_TYPES, Block, Scope, Snapshot

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


def group_of(node_type: NodeType, zone: str, cluster_uuid: str) -> str:
    """The placement group of a type's new node in a zone; "" if it needs none."""
    clustered = node_type.placement is NodePlacement.CLUSTER
    return group_name(cluster_uuid, node_type.name, zone) if clustered else ""


def zones_passed_over(node_type: NodeType, zone: str, snapshot: Snapshot) -> tuple[str, ...]:
    """Why a node is not created in the zones that the site names before this one, in words."""
    zones = zones_of(node_type)
    before = zones[: zones.index(zone)] if zone in zones else ()
    found = ((name, block_on(node_type, name, snapshot)) for name in before)
    return tuple(f"{name} ({block.kind}: {block.detail})" for name, block in found if block is not None)


def gather_wide_jobs(fact: QueueSeen, snapshot: Snapshot, policy: Policy) -> QueueSeen:
    """The fact with ``one_zone`` set for each job that needs several nodes of a type with a placement group."""
    if not policy.clustered_types:
        return fact
    gathered = {
        request: replace(request, shape=replace(request.shape, one_zone=True))
        for request in {job.request for job in fact.jobs}
        if not request.shape.one_zone
        and any(_spans_nodes_of(of, request.shape, snapshot) for of in policy.clustered_types)
    }
    jobs = (replace(it, request=gathered[it.request]) if it.request in gathered else it for it in fact.jobs)
    return replace(fact, jobs=tuple(jobs))


def _spans_nodes_of(node_type: NodeType, shape: Shape, snapshot: Snapshot) -> bool:
    """Whether a job of this shape may run on nodes of the type, and needs more than one of them."""
    cores, gpus = shape.slots * shape.cores_per_slot, shape.slots * shape.gpus_per_slot
    if shape.nodes is not None:
        spans = shape.nodes > 1 and cores <= node_type.cores and gpus <= node_type.gpus
    else:
        spans = cores > node_type.cores or gpus > node_type.gpus
    ranks = snapshot.slots.rank_of_slot
    return spans and any(
        holds(shape.constraint, properties=node_type.properties, host=slot, rank=ranks.get(slot, Rank(-1)))
        for slot in node_type.slots
    )


def scopes_of(node_type: NodeType) -> tuple[Scope, ...]:
    """The scopes that include a type as one size, the account's first."""
    cloud = node_type.cloud
    account, market = Scope(ALL_TYPES, cloud=cloud), Scope(ALL_TYPES, node_type.market, cloud=cloud)
    scopes = account, market, Scope(node_type.name)
    return (*scopes, Scope(node_type.name, size=node_type.size)) if node_type.sizes else scopes


def zone_scope(node_type: NodeType, zone: str) -> Scope:
    """The scope of a type as one size, on its market, in one zone."""
    return Scope(node_type.name, node_type.market, zone, node_type.size if node_type.sizes else "")


def block_on(node_type: NodeType, zone: str, snapshot: Snapshot) -> Block | None:
    """What blocks the type in a zone now, the longest block; None if nothing does."""
    if not snapshot.learned.blocks:
        return None
    scopes = (*scopes_of(node_type), zone_scope(node_type, zone))
    blocks = [snapshot.learned.blocks[scope] for scope in scopes if scope in snapshot.learned.blocks]
    standing = [block for block in blocks if block.until_s > snapshot.now_s]
    return max(standing, key=lambda block: block.until_s, default=None)


def block_on_all_zones(node_type: NodeType, snapshot: Snapshot) -> Block | None:
    """The block that ends first, if no zone offers the type as this size now; None if a zone does."""
    blocks = [block_on(node_type, zone, snapshot) for zone in zones_of(node_type)]
    standing = [block for block in blocks if block is not None]
    return min(standing, key=lambda block: block.until_s) if len(standing) == len(blocks) else None


def block_reason(block: Block) -> Reason:
    """The reason that explains a block and when it ends."""
    return because(BLOCKED[block.kind], until_s=block.until_s, detail=block.detail)


def refusal_reason(block: Block) -> Reason:
    """The reason of the refused create that led to a block."""
    return because(REFUSED[block.kind], detail=block.detail)
