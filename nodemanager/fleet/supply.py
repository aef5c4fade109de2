"""The room there is for jobs, and the room that may be bought."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from nodemanager.fleet.packing import Bin, Market, Place, Standing, fresh_bin
from nodemanager.fleet.policy import Policy
from nodemanager.fleet.retirement import overdue
from nodemanager.fleet.sightings import DRAIN_MARK, drain_text
from nodemanager.fleet.snapshot import ALL_TYPES, Node, Snapshot, Stray
from nodemanager.model import FluxRank, NodeState, Rank, Reason, TypeName, because

USABLE = (NodeState.IDLE, NodeState.BUSY)
COMING = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST)


def room(snapshot: Snapshot, policy: Policy) -> list[Bin]:
    """What is free on every node that takes jobs, and on those that soon will."""
    leases: Mapping[Rank, Node] = {node.launch.rank: node for node in snapshot.nodes.values()}
    bins: dict[Rank, Bin] = {}
    for rank in snapshot.ranks.values():
        node = leases.get(rank.rank)
        takes_jobs = node is None or (node.state in USABLE and not snapshot.steered(node))
        if rank.online and rank.schedulable and takes_jobs:
            bins[rank.rank] = _what_is_free(rank, policy)
    for node in leases.values():
        if node.launch.rank not in bins and (bin_ := _to_come(node, snapshot, policy)) is not None:
            bins[node.launch.rank] = bin_
    return list(bins.values())


def _what_is_free(rank: FluxRank, policy: Policy) -> Bin:
    node_type = policy.type_of_slot.get(rank.host)
    return Bin(
        slot=rank.host,
        rank=rank.rank,
        properties=node_type.properties if node_type is not None else frozenset(),
        cores=rank.cores_free,
        gpus=rank.gpus_free,
        standing=Standing.UP,
        node_type=node_type,
        whole=not rank.allocated,
    )


def _to_come(node: Node, snapshot: Snapshot, policy: Policy) -> Bin | None:
    node_type = policy.types.get(node.launch.type_name)
    if node_type is None or snapshot.steered(node):
        return None
    place = (node.launch.slot, node.launch.rank)
    if node.state is NodeState.DRAINING and node.rank is not None and _may_be_kept(node, node.rank):
        return fresh_bin(node_type, place, Standing.DRAINING)
    if node.state is NodeState.IDLE and node.rank is not None and _just_up(node, node.rank, snapshot, policy):
        return fresh_bin(node_type, place, Standing.COMING)
    if node.state in COMING and overdue(node, policy, snapshot.now_s) is None:
        return fresh_bin(node_type, place, Standing.COMING)
    return None


def _may_be_kept(node: Node, rank: FluxRank) -> bool:
    return rank.online and rank.drain_reason in (None, drain_text(node.id))


def _just_up(node: Node, rank: FluxRank, snapshot: Snapshot, policy: Policy) -> bool:
    """Online, and the scheduler has not noticed yet: it hears of a rank a moment after the resource module."""
    kept_out = rank.schedulable or rank.drain_reason is not None or rank.excluded or rank.torpid
    return rank.online and not kept_out and snapshot.now_s - node.since_s < policy.rejoin_timeout_s


def strays(snapshot: Snapshot) -> list[Stray]:
    """Those that are still ownerless: one that was given its lease back stays listed until the next list."""
    return [stray for stray in snapshot.strays.values() if not _owned(stray, snapshot)]


def _owned(stray: Stray, snapshot: Snapshot) -> bool:
    owner = snapshot.nodes.get(stray.node.identity.launch) if stray.node.identity is not None else None
    return owner is not None and (owner.cloud is None or owner.cloud.provider_id == stray.node.provider_id)


def market(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal) -> Market:
    """What may be bought beside a fleet that costs ``price_per_hour`` now, those coming and going included."""
    ownerless = strays(snapshot)
    held = {stray.node.identity.slot for stray in ownerless if stray.node.identity is not None}
    leased = {node.launch.slot for node in snapshot.nodes.values()} | held
    # What keeps these is a lease whose end takes a moment.
    ending = {node.launch.slot for node in snapshot.nodes.values() if node.state is NodeState.GONE} - held
    places: dict[TypeName, list[Place]] = {}
    free: dict[TypeName, dict[Place, None]] = {}
    soon_free: dict[TypeName, dict[Place, None]] = {}
    for node_type in policy.node_types:
        known = [slot for slot in node_type.slots if slot in snapshot.rank_of_slot]
        places[node_type.name] = [(slot, snapshot.rank_of_slot[slot]) for slot in known]
        vacant = [place for place in places[node_type.name] if _vacant(snapshot.ranks[place[1]])]
        free[node_type.name] = {place: None for place in vacant if place[0] not in leased}
        soon_free[node_type.name] = {place: None for place in vacant if place[0] in ending}
    return Market(
        node_types=policy.node_types,
        free_slots=free,
        soon_free_slots=soon_free,
        all_slots=places,
        blocked=_blocked(snapshot, policy),
        nodes_left=policy.nodes_max - sum(1 for node in snapshot.nodes.values() if node.costs) - len(ownerless),
        nodes_max=policy.nodes_max,
        price_left=policy.price_per_hour_max - price_per_hour,
        price_per_hour_max=policy.price_per_hour_max,
    )


def _vacant(rank: FluxRank) -> bool:
    """Nobody is there, and nobody keeps it from being used: a drain that is not ours is a hold."""
    held = rank.drain_reason is not None and not rank.drain_reason.startswith(DRAIN_MARK)
    return not (rank.online or rank.allocated or rank.excluded or held)


def _blocked(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Reason]:
    standing = {
        name: because(f"blocked_{block.reason.code}", until_s=block.until_s, **block.reason.figures)
        for name, block in snapshot.blocks.items()
        if block.until_s > snapshot.now_s
    }
    if ALL_TYPES in standing:
        return {node_type.name: standing[ALL_TYPES] for node_type in policy.node_types}
    return standing


def price_per_hour(snapshot: Snapshot, policy: Policy) -> Decimal:
    """Of all that is, or may be, on the bill. A type that the site no longer names counts nothing."""
    names = [node.launch.type_name for node in snapshot.nodes.values() if node.costs]
    names += [stray.node.identity.type_name for stray in strays(snapshot) if stray.node.identity is not None]
    return sum((policy.types[name].price_per_hour for name in names if name in policy.types), Decimal(0))


def create_credit(snapshot: Snapshot, policy: Policy) -> float:
    """What the rate bucket for creates holds now: each call takes one."""
    if snapshot.create_credit_s is None:
        return float(policy.creates_burst)
    gained = (snapshot.now_s - snapshot.create_credit_s) * policy.creates_per_s
    return min(float(policy.creates_burst), snapshot.create_credit + gained)
