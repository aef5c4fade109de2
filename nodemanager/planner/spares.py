"""Nodes that no job needs yet: they keep the fleet at ``nodes_min``, and each type at its number of spares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.nodes import COMING, USABLE, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, SlotName, TypeName
from nodemanager.planner.backoff.zones import open_zones
from nodemanager.planner.outcome import FleetNeeds, Purchase
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.steps.takes_jobs import takes_jobs
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


@dataclass(slots=True)
class Purchaser:
    """Buys what is left after the jobs' purchases, within the limits."""

    supply: Supply
    placement: Placement
    needs: FleetNeeds
    nodes_left: int = field(init=False)
    price_left: Decimal = field(init=False)
    nodes: int = field(init=False)  # with those bought
    spot: int = field(init=False)  # the spot nodes among them
    taken: set[SlotName] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes_left = self.placement.allocation.nodes_left
        self.price_left = self.placement.price_left
        self.nodes, self.spot = self.placement.allocation.fleet
        self.taken = {purchase.place[0] for purchase in self.needs.purchases} | set(self.needs.needed)

    def buy(self, node_type: NodeType) -> Purchase | None:
        """Buy a node of the type for a free slot, within the limits; None if that cannot be."""
        size = self._size(node_type)
        place = self._first(node_type, self.supply.slots_free_now(node_type))
        if place is None:
            return None
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
        price = self._size(node_type).price_per_hour
        if node_type.name in self.supply.blocked or self.nodes_left <= 0 or price > self.price_left:
            return None
        place = next((place for place in places if place[0] not in self.taken), None)
        if place is not None:
            self.taken.add(place[0])
            self.nodes_left -= 1
            self.nodes += 1
            self.price_left -= price
        return place
