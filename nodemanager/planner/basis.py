"""What a plan is made from: the placement, the purchases and upkeep, each computed on first use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import COMING, USABLE, FailureKind, LaunchId
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, SlotName
from nodemanager.planner.backoff import Allowance, open_zones
from nodemanager.planner.breakers import why_no_purchases
from nodemanager.planner.budgets import place_within_budget
from nodemanager.planner.consolidation import Emptying, plan_emptying
from nodemanager.planner.frozen import lazy_property
from nodemanager.planner.limits import make_room
from nodemanager.planner.node_health import count_beyond_nodes_min, count_of_types, count_ready, counts_of_types
from nodemanager.planner.placement import FleetNeeds, Placement, Purchase, fleet_needs, place_jobs
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import Hindrance, QueueIndex, queue_index_of
from nodemanager.planner.snapshot import Snapshot
from nodemanager.planner.supply import SlotAndRank, Supply
from nodemanager.planner.upkeep import UpkeepPlan, plan_giving_back, plan_upkeep


@dataclass(frozen=True)
class Basis:
    """What a plan is made from, kept to explain it later.

    While no job waits, a plan needs no placement, unless spares or ``nodes_min`` have to be bought.
    """

    snapshot: Snapshot
    policy: Policy
    price_per_hour: Decimal

    @lazy_property
    def placement(self) -> Placement:
        """Where each job runs."""
        place = place_within_budget if self.policy.budgets else place_jobs
        return place(self.snapshot, self.policy, self.price_per_hour)

    @lazy_property
    def needs(self) -> FleetNeeds:
        """The nodes that waiting jobs need, and those to buy for them."""
        return fleet_needs(self.snapshot.jobs, self.placement) if self.queue.batches else FleetNeeds()

    @lazy_property
    def queue(self) -> QueueIndex:
        """The waiting jobs."""
        return queue_index_of(self.snapshot.jobs, self.snapshot.indexes.queue)

    @lazy_property
    def purchaser(self) -> Purchaser:
        """Buys what no job needs, from what the jobs leave of the limits."""
        return Purchaser(self.placement.supply, self.placement, self.needs)

    @property
    def upkeep(self) -> UpkeepPlan:
        """What upkeep does now."""
        return self._upkeep_and_purchases[0]

    @property
    def upkeep_purchases(self) -> tuple[tuple[Purchase, Reason], ...]:
        """The nodes that upkeep buys to replace others."""
        return self._upkeep_and_purchases[1]

    @lazy_property
    def _upkeep_and_purchases(self) -> tuple[UpkeepPlan, tuple[tuple[Purchase, Reason], ...]]:
        if self.policy.stacked:  # no single node of a stack can be replaced
            return plan_giving_back(self.snapshot, self.policy), ()
        if self.overspent is not None:
            return UpkeepPlan(), ()
        bought: list[Purchase] = []

        def can_buy(node_type: NodeType) -> bool:
            purchase = self.purchaser.buy(node_type)
            bought.extend([purchase] if purchase is not None else [])
            return purchase is not None

        made = plan_upkeep(self.snapshot, self.policy, lambda: self.needs.needed, can_buy)
        return made, tuple(zip(bought, (why for _, why in made.to_buy), strict=True))

    @lazy_property
    def emptying(self) -> Emptying:
        """Which nodes take no new job so that they empty."""
        if self.overspent is not None or self.policy.stacked or not self.policy.upkeep.consolidate:
            return Emptying()
        leaving = self.upkeep.leaving
        return plan_emptying(self.snapshot, self.policy, self.needs.needed, leaving, self.placement.dear)

    @property
    def overspent(self) -> Reason | None:
        """Why all nodes leave: the budget is spent."""
        return self.placement.limits.overspent if self.policy.budgets else None


@dataclass(frozen=True)
class Claims:
    """What the waiting jobs want of the nodes. ``ended``: leases that end now."""

    basis: Basis
    ended: Collection[LaunchId]

    @property
    def needed(self) -> Mapping[SlotName, tuple[JobId, ...]]:
        """Where waiting jobs are placed."""
        return self.basis.needs.needed

    @lazy_property
    def makes_room(self) -> tuple[JobId, frozenset[LaunchId]] | None:
        """A job stopped by a limit, and the nodes that go for it."""
        basis = self.basis
        if not basis.queue.batches or why_no_purchases(basis.snapshot) is not None:
            return None
        of_types = counts_of_types(basis.snapshot, basis.policy, self.ended)
        return make_room(basis.snapshot, basis.policy, basis.placement, self.needed, of_types, self.ended)

    @lazy_property
    def want_more(self) -> bool:
        """Whether jobs wait for nodes that do not exist yet."""
        basis = self.basis
        if not basis.queue.batches:
            return False
        placement = basis.placement
        return bool(basis.needs.purchases) or placement.stuck is not None or bool(placement.unserved)


# --- spares -----------------------------------------------------------------------------------------------
#
# Nodes that no job needs yet: they keep the fleet at ``nodes_min``, and each type at its number of spares.


def spare_purchases(
    snapshot: Snapshot, policy: Policy, purchaser: Purchaser, needs: FleetNeeds
) -> list[tuple[Purchase, Reason]]:
    """The purchases beyond what jobs need, each with its reason.

    None while a job waits for room below a limit: they would fill the room that others make for it. For the same
    reason none with nodes for jobs that are ordered after the provider was full.
    """
    bought: list[tuple[Purchase, Reason]] = []
    if not policy.has_spares and policy.limits.nodes_min <= 0 and not policy.limited_types:
        return bought
    at_limit = purchaser.placement.at_limit
    if at_limit is not None and at_limit.obstacle.kind is not Hindrance.SPOT_SHARE:
        return bought
    if needs.purchases and _tries_capacity(snapshot):
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


def _tries_capacity(snapshot: Snapshot) -> bool:
    """Whether the provider has not created a node since it lacked capacity."""
    blocks = snapshot.learned.blocks.values()
    return any(it.kind is FailureKind.CAPACITY and it.until_s <= snapshot.now_s for it in blocks)


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
        if place is None or size is None:
            return None
        self.allowance.take(size)
        if size.market is Market.SPOT:
            self.spot += 1
        return Purchase(place, size, open_zones(size, self.supply.snapshot)[0], serves=(), job_count=0)

    def _size(self, node_type: NodeType) -> NodeType | None:
        """The type as the cheapest size that may be bought now, as a spot node only within their share."""
        waits = self.placement.at_limit
        is_free = (
            waits is None or waits.obstacle.kind is not Hindrance.SPOT_SHARE
        )  # else that job gets the next one
        may_be_spot = is_free and self.spot + 1 <= self.supply.policy.rules.spot_share_max * (self.nodes + 1)
        sizes = self.supply.on_sale.get(node_type.name, ())
        return next((it for it in sizes if may_be_spot or it.market is not Market.SPOT), None)

    def frees_soon(self, node_type: NodeType) -> bool:
        """Whether a slot of the type is free in a moment. Wait for it before buying a dearer type."""
        return self._first(node_type, self.supply.slots_free_soon(node_type)) is not None

    def _first(self, node_type: NodeType, places: Iterator[SlotAndRank]) -> SlotAndRank | None:
        size = self._size(node_type)
        if size is None or self.nodes_left <= 0 or (price := size.price_per_hour) > self.price_left:
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
