"""Nodes that no job needs yet: those that keep the fleet at its least size, and a type at its spares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.fleet import supply
from nodemanager.fleet.layout import Layout
from nodemanager.fleet.obstacles import cheapest
from nodemanager.fleet.policy import Policy
from nodemanager.fleet.roll import roll_of
from nodemanager.fleet.snapshot import Snapshot
from nodemanager.fleet.steering import steered_of
from nodemanager.fleet.supply import Market, Place
from nodemanager.fleet.verdicts import Purchase, Verdicts
from nodemanager.model import NodeState, NodeType, SlotName, TypeName


def spare_purchases(
    snapshot: Snapshot, policy: Policy, layout: Layout, found: Verdicts
) -> list[tuple[Purchase, str]]:
    """What is to be bought beside what jobs need, each with why."""
    bought: list[tuple[Purchase, str]] = []
    if not policy.has_spares and policy.nodes_min <= 0:
        return bought
    till = _Till(layout.market, layout, found)
    have = idle_or_coming(snapshot, policy, found.needed)
    for node_type in policy.node_types:
        for _ in range(node_type.spares - have.get(node_type.name, 0)):
            place = till.take(node_type)
            bought += (
                [(Purchase(place, node_type, layout.market.open_zones[node_type.name][0], (), 0), "spare")]
                if place is not None
                else []
            )
    states = roll_of(snapshot).states
    counted = (*supply.USABLE, *supply.COMING)
    there = sum(states.get(state, 0) for state in counted) - steered_of(snapshot, counted)
    for _ in range(policy.nodes_min - there - len(found.purchases) - len(bought)):
        for node_type in sorted(policy.node_types, key=cheapest):
            place = till.take(node_type)
            if place is not None:
                bought.append(
                    (Purchase(place, node_type, layout.market.open_zones[node_type.name][0], (), 0), "nodes_min")
                )
                break
            if till.waits_for(node_type):
                break
    return bought


def idle_or_coming(snapshot: Snapshot, policy: Policy, needed: Mapping[SlotName, object]) -> dict[TypeName, int]:
    """How many nodes of each type stand ready, or will, that no waiting job needs; not counted without spares."""
    counts: dict[TypeName, int] = {}
    if not policy.has_spares:
        return counts
    for node in roll_of(snapshot).restless.values():
        ready = node.state in supply.COMING or (node.state is NodeState.IDLE and node.retiring is None)
        if ready and node.launch.slot not in needed and not snapshot.steered(node):
            counts[node.launch.type_name] = counts.get(node.launch.type_name, 0) + 1
    return counts


@dataclass(slots=True)
class _Till:
    """What is left to buy once the jobs have theirs."""

    market: Market
    layout: Layout
    found: Verdicts
    nodes_left: int = field(init=False)
    price_left: Decimal = field(init=False)
    taken: set[SlotName] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes_left = self.layout.shelf.nodes_left
        self.price_left = self.layout.price_left
        self.taken = {purchase.place[0] for purchase in self.found.purchases} | set(self.found.needed)

    def take(self, node_type: NodeType) -> Place | None:
        """A free slot of the type, within the limits; None if there is none."""
        return self._first(node_type, self.market.free_now(node_type))

    def waits_for(self, node_type: NodeType) -> bool:
        """Whether a slot of the type is free in a moment: that is waited for before a dearer one is bought."""
        return self._first(node_type, self.market.free_soon(node_type)) is not None

    def _first(self, node_type: NodeType, places: Iterator[Place]) -> Place | None:
        price = node_type.price_per_hour
        if node_type.name in self.market.blocked or self.nodes_left <= 0 or price > self.price_left:
            return None
        place = next((place for place in places if place[0] not in self.taken), None)
        if place is not None:
            self.taken.add(place[0])
            self.nodes_left -= 1
            self.price_left -= price
        return place
