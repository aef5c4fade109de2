"""Nodes that no job needs yet: they keep the fleet at ``nodes_min``, and each type at its number of spares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.nodes import COMING, USABLE
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, SlotName
from nodemanager.planner.backoff.allowance import Allowance
from nodemanager.planner.backoff.zones import open_zones
from nodemanager.planner.placement.fleet_needs import FleetNeeds, Purchase
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.steps.taking_jobs import count_beyond_nodes_min, count_of_types, count_ready
from nodemanager.planner.supply.offers import SlotAndRank
from nodemanager.planner.supply.supply import Supply


def spare_purchases(
    snapshot: Snapshot, policy: Policy, purchaser: Purchaser, needs: FleetNeeds
) -> list[tuple[Purchase, Reason]]:
    """The purchases beyond what jobs need, each with its reason."""
    bought: list[tuple[Purchase, Reason]] = []
    if not policy.has_spares and policy.limits.nodes_min <= 0 and not policy.limited_types:
        return bought
    have = count_ready(snapshot, policy, needs.needed)
    for node_type in policy.node_types:
        for _ in range(node_type.spares - have.get(node_type.name, 0)):
            purchase = purchaser.buy(node_type)
            why = because(Code.SPARE, node_type=node_type.name, spares=node_type.spares)
            bought += [(purchase, why)] if purchase is not None else []
    bought += _purchases_for_type_minimums(
        snapshot, policy, purchaser, [*needs.purchases, *(it for it, _ in bought)]
    )
    short = -count_beyond_nodes_min(snapshot, policy)
    for _ in range(short - len(needs.purchases) - len(bought)):
        for node_type in policy.types_by_price:
            purchase = purchaser.buy(node_type)
            if purchase is not None:
                why = because(Code.NODES_MIN, node_type=node_type.name, nodes_min=policy.limits.nodes_min)
                bought.append((purchase, why))
                break
            if purchaser.frees_soon(node_type):
                break
    return bought


def _purchases_for_type_minimums(
    snapshot: Snapshot, policy: Policy, purchaser: Purchaser, purchases: Sequence[Purchase]
) -> list[tuple[Purchase, Reason]]:
    """The purchases that bring each type to its own ``nodes_min``."""
    bought: list[tuple[Purchase, Reason]] = []
    coming = Counter(purchase.node_type.name for purchase in purchases)
    for node_type in policy.limited_types:
        nodes_min = node_type.limits.nodes_min
        there = count_of_types(snapshot, policy, (*USABLE, *COMING)).get(node_type.name, 0)
        for _ in range(nodes_min - there - coming[node_type.name]):
            purchase = purchaser.buy(node_type)
            why = because(Code.NODES_MIN, node_type=node_type.name, nodes_min=nodes_min)
            bought += [(purchase, why)] if purchase is not None else []
    return bought


@dataclass(slots=True)
class Purchaser:
    """Buys spare nodes after those for jobs, within the limits."""

    supply: Supply
    placement: Placement
    needs: FleetNeeds
    nodes_left: int = field(init=False)
    price_left: Decimal = field(init=False)
    nodes: int = field(init=False)  # with those bought
    spot: int = field(init=False)  # the spot nodes among them
    taken: set[SlotName] = field(init=False)
    allowance: Allowance = field(init=False)  # what clouds and quotas leave after the purchases so far

    def __post_init__(self) -> None:
        self.nodes_left = self.placement.allocation.nodes_left
        self.price_left = self.placement.price_left
        self.nodes, self.spot = self.placement.allocation.fleet
        self.taken = {purchase.place[0] for purchase in self.needs.purchases} | set(self.needs.needed)
        self.allowance = self.supply.allowance()
        for purchase in self.needs.purchases:
            self.allowance.take(purchase.node_type)

    def buy(self, node_type: NodeType) -> Purchase | None:
        """Buy a node of the type for a free slot, within the limits; None if that cannot be."""
        size = self._size(node_type)
        place = self._first(node_type, self.supply.slots_free_now(node_type))
        if place is None:
            return None
        self.allowance.take(size)
        if size.market is Market.SPOT:
            self.spot += 1
        return Purchase(place, size, open_zones(size, self.supply.snapshot)[0], serves=(), job_count=0)

    def _size(self, node_type: NodeType) -> NodeType:
        """The type as the cheapest size that may be bought now, as a spot node only within their share."""
        may_be_spot = self.spot + 1 <= self.supply.policy.rules.spot_share_max * (self.nodes + 1)
        sizes = self.supply.on_sale.get(node_type.name, ())
        allowed = (it for it in sizes if may_be_spot or it.market is not Market.SPOT)
        return next(allowed, self.supply.cheapest(node_type))

    def frees_soon(self, node_type: NodeType) -> bool:
        """Whether a slot of the type is free in a moment. Wait for it before buying a dearer type."""
        return self._first(node_type, self.supply.slots_free_soon(node_type)) is not None

    def _first(self, node_type: NodeType, places: Iterator[SlotAndRank]) -> SlotAndRank | None:
        size = self._size(node_type)
        price = size.price_per_hour
        if node_type.name in self.supply.blocked or self.nodes_left <= 0 or price > self.price_left:
            return None
        if self.allowance.why_none(size) is not None:
            return None
        place = next((place for place in places if place[0] not in self.taken), None)
        if place is not None:
            self.taken.add(place[0])
            self.nodes_left -= 1
            self.nodes += 1
            self.price_left -= price
        return place
