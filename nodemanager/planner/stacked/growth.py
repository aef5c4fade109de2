"""The order in which nodes come at a provider that has only a number of nodes: the lowest free slot first."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from decimal import Decimal

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import NodeType, Rank, SlotName
from nodemanager.planner.cost.fleet import ownerless_strays
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.supply.offers import SlotAndRank
from nodemanager.planner.supply.supply import Supply


def lowest_gap(snapshot: Snapshot, policy: Policy, ended: Container[LaunchId] = ()) -> Rank | None:
    """The rank of the lowest slot that has no node, ours or others'; None if every slot has one.

    ``ended``: leases that end now.
    """
    nodes = (node for node in snapshot.nodes.values() if node.state is not NodeState.GONE and node.id not in ended)
    held = {node.launch.rank for node in nodes}
    rank_of_slot = snapshot.slots.rank_of_slot
    for stray in ownerless_strays(snapshot):
        if stray.node.identity is not None and stray.node.identity.slot in rank_of_slot:
            held.add(rank_of_slot[stray.node.identity.slot])
    for slot in policy.type_of_slot:
        rank = rank_of_slot.get(slot)
        if rank is not None and rank not in held and not snapshot.ranks[rank].online:
            return rank
    return None


def places_between(
    wanted: Collection[SlotName], supply: Supply, nodes_left: int, price_left: Decimal
) -> tuple[list[tuple[SlotAndRank, NodeType]], frozenset[SlotName]]:
    """The free slots below the highest wanted one, which are filled too, and the wanted slots that are reached.

    Jobs may ask for a host, and all slots below it come first. ``nodes_left``, ``price_left``: what the limits
    allow besides the wanted ones. If that is too little, the higher slots are not reached.
    """
    fills: list[tuple[SlotAndRank, NodeType]] = []
    reached: set[SlotName] = set()
    skipped: list[tuple[SlotAndRank, NodeType]] = []
    for place, node_type in _free_places(supply):
        if place[0] not in wanted:
            skipped.append((place, node_type))
            continue
        nodes_left -= len(skipped)
        price_left -= sum((it.price_per_hour for _, it in skipped), Decimal(0))
        if skipped and (nodes_left < 0 or price_left < 0):
            break
        fills += skipped
        skipped.clear()
        reached.add(place[0])
    return fills, frozenset(reached)


def _free_places(supply: Supply) -> Iterator[tuple[SlotAndRank, NodeType]]:
    for node_type in supply.policy.node_types:
        for place in supply.slots_free_now(node_type):
            yield place, node_type
