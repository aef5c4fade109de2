"""What a plan is made from: the placement, the purchases and upkeep, each computed on first use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LaunchId
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import NodeType, SlotName
from nodemanager.planner.limits.make_room import make_room
from nodemanager.planner.limits.within_budget import place_within_budget
from nodemanager.planner.placement.fleet_needs import FleetNeeds, Purchase, fleet_needs
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.spares import Purchaser
from nodemanager.planner.state.frozen import lazy_property
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import QueueIndex, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.upkeep.consolidation import Emptying, plan_emptying
from nodemanager.planner.upkeep.turns import UpkeepPlan, plan_giving_back, plan_upkeep


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
        return place_within_budget(self.snapshot, self.policy, self.price_per_hour)

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
        if not basis.queue.batches:
            return None
        return make_room(basis.snapshot, basis.policy, basis.placement, self.needed, self.ended)

    @lazy_property
    def want_more(self) -> bool:
        """Whether jobs wait for nodes that do not exist yet."""
        basis = self.basis
        if not basis.queue.batches:
            return False
        placement = basis.placement
        return bool(basis.needs.purchases) or placement.stuck is not None or bool(placement.unserved)
