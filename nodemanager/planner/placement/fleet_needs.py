"""What a placement needs of the fleet: the nodes that are there or boot, and those to buy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from nodemanager.core.jobs import Job, JobId, NodeLoad
from nodemanager.core.slots import NodeType, SlotName
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.scheduler.seating import Availability
from nodemanager.planner.supply.offers import SlotAndRank

NAMES_MAX = 10  # jobs named with a slot or a purchase


@dataclass(frozen=True, slots=True)
class Purchase:
    """One node to buy. ``serves``: the first few of the jobs it is bought for; ``job_count``: all of them."""

    place: SlotAndRank
    node_type: NodeType
    zone: str
    serves: tuple[JobId, ...]
    job_count: int
    load: NodeLoad = ()


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What the placement needs of the fleet. ``needed``: the slots it uses, with the first few of their jobs."""

    needed: Mapping[SlotName, tuple[JobId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    purchases: tuple[Purchase, ...] = ()


def fleet_needs(jobs: Mapping[JobId, Job], placement: Placement) -> FleetNeeds:
    """What the placement needs of the fleet. Nodes for the first jobs in the queue are bought first."""
    needed: dict[SlotName, list[JobId]] = {}
    for key, seated in placement.seating.seated.items():
        for id_ in placement.demand.batches[key][: min(seated, placement.count_served(key))]:
            for bin_, _ in placement.seating.seats[id_]:
                needed.setdefault(bin_.slot, []).append(id_)
    purchases: list[Purchase] = []
    for node in placement.assignment.nodes():
        serves, count = placement.assignment.jobs_on(node, NAMES_MAX)
        if node.offer.availability is Availability.NEW:
            purchases.append(Purchase(node.place, node.offer.node_type, node.zone, serves, count, node.load))
        else:
            needed.setdefault(node.place[0], []).extend(serves)
    order = {id_: (-jobs[id_].priority, id_) for it in purchases for id_ in it.serves}
    purchases.sort(key=lambda it: (min(map(order.__getitem__, it.serves)), it.place[1]))
    of_slots = {slot: tuple(sorted(ids)[:NAMES_MAX]) for slot, ids in needed.items()}
    return FleetNeeds(of_slots, tuple(_cheapest_first(purchases)))


def _cheapest_first(purchases: Sequence[Purchase]) -> list[Purchase]:
    """The same purchases, where the first ones of a type, on a market, in a zone, are its cheapest sizes.

    A quota of the whole account may let only the first ones through. All sizes of a type have its declared room.
    """
    sizes: dict[Hashable, list[NodeType]] = {}
    for purchase in purchases:
        if purchase.node_type.sizes:
            sizes.setdefault(_size_pool(purchase), []).append(purchase.node_type)
    for bought in sizes.values():
        bought.sort(key=lambda it: it.price_per_hour, reverse=True)
    return [replace(it, node_type=sizes[_size_pool(it)].pop()) if it.node_type.sizes else it for it in purchases]


def _size_pool(purchase: Purchase) -> Hashable:
    return purchase.node_type.name, purchase.node_type.market, purchase.zone
