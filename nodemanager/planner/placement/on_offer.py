"""The booting nodes and those on sale for one placement, and the allocations to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.jobs import Constraint, PackingPolicy, Shape
from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.allocation.allocation import Allocation
from nodemanager.planner.allocation.near import Home, Places
from nodemanager.planner.allocation.work import Work
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.billing import SECONDS_PER_HOUR, paid_s
from nodemanager.planner.packing.types import Effort
from nodemanager.planner.placement import infeasibility
from nodemanager.planner.state.policy import Policy, by_price
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.supply.offers import Offer, coming_offers
from nodemanager.planner.supply.supply import Supply

PACKING_STEPS_MAX = 250_000  # for all packings of a plan that are better than greedy
DEARER = 1000  # how many times the nodes of a cloud count as dearer than those of the next higher priority


@dataclass(slots=True)
class OnOffer:
    """What jobs may get besides the existing nodes. Computed once a job is short of nodes."""

    snapshot: Snapshot
    policy: Policy
    supply: Supply
    constraints: Sequence[Constraint]  # of all batches
    with_booting: bool
    zones: Mapping[Shape, str] = field(default_factory=dict)  # for jobs that want all their nodes in one zone
    homes: Mapping[Shape, Home] = field(default_factory=dict)  # for jobs that want them in the cloud of their data
    effort: Effort = field(default_factory=lambda: Effort(PACKING_STEPS_MAX))
    price_decimals: int = field(init=False)  # with which prices are whole numbers
    known_offers: list[Offer] | None = None
    known_cores: int | None = None
    memory: dict[Shape, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.price_decimals = max(self.policy.price_decimals, -int(self.supply.price_left.as_tuple().exponent))

    @property
    def offers(self) -> list[Offer]:
        """The booting nodes and those on sale; computed once a job is short of nodes."""
        if self.known_offers is None:
            on_sale = sorted(self.supply.offers(self.constraints), key=lambda it: by_price(it.node_type))
            coming = []
            if self.with_booting:
                coming = coming_offers(self.snapshot, self.policy, self.constraints, self.supply.matches)
            self.known_offers = [*coming, *on_sale]
        return self.known_offers

    @property
    def cores(self) -> int:
        """An upper bound for the cores that booting and new nodes can give."""
        if self.known_cores is None:
            self.known_cores = self.empty_allocation(self.offers).cores_left(share=False)
        return self.known_cores

    def empty_allocation(self, offers: Sequence[Offer]) -> Allocation:
        """An allocation of nothing to these offers."""
        price_left = int(self.supply.price_left.scaleb(self.price_decimals))
        return Allocation(
            offers,
            self._cost(),
            self._price,
            self.supply.nodes_left,
            price_left,
            self._memory_bytes,
            Places(self.zones, self.homes),
            self.effort,
            fleet=self.supply.fleet,
            spot_share_max=self.policy.rules.spot_share_max,
        )

    def _memory_bytes(self, shape: Shape) -> int:
        if not shape.memory_bytes_per_slot:
            return 0
        if shape not in self.memory:
            self.memory[shape] = infeasibility.memory_per_piece(shape, self.supply)
        return self.memory[shape]

    def _price(self, offer: Offer) -> int:
        return int(offer.node_type.price_per_hour.scaleb(self.price_decimals))

    def _cost(self) -> Callable[[Offer, float], int]:
        """The cost of a node for as long as a job may run, plus 1: among equal costs, fewer nodes win.

        The cost of a spot node includes the work that is likely to be lost. A node on sale in a cloud of a lower
        priority counts as dearer than any node of a higher one.
        """
        levels = sorted({it.priority for it in self.policy.node_types}, reverse=True)
        below = {priority: level for level, priority in enumerate(levels)}
        dearest = max((self._price(it) for it in self.offers), default=0) if len(levels) > 1 else 0

        def cost(offer: Offer, span_s: float) -> int:
            boot_s = timings.boot_s(self.snapshot, offer.node_type.name) or 0.0
            billed_s = SECONDS_PER_HOUR if span_s == inf else paid_s(offer.node_type.billing, boot_s + span_s)
            cost = self._price(offer) * int(billed_s)
            factor = timings.rerun_factor(self.snapshot, offer.node_type, self.policy, span_s)
            cost = (int(cost * factor) if factor > 1.0 else cost) + 1
            level = 0 if offer.is_ordered else below[offer.node_type.priority]
            return (cost + dearest * int(billed_s)) * DEARER**level if level else cost

        return cost

    def price_left(self, allocation: Allocation) -> Decimal:
        """What the allocation leaves of the price per hour."""
        return Decimal(allocation.price_left).scaleb(-self.price_decimals)

    def left_to_buy(self, allocation: Allocation) -> infeasibility.LeftToBuy:
        """What may still be bought after the allocation."""
        free: dict[TypeName, int] = {}
        for offer, left in zip(allocation.offers, allocation.separate_counts(), strict=True):
            if not offer.is_ordered:
                free[offer.node_type.name] = free.get(offer.node_type.name, 0) + left
        return infeasibility.LeftToBuy(free, allocation.nodes_left, self.price_left(allocation))

    def share_left(self, allocation: Allocation) -> float:
        """How much of the limits is left: of nodes or of the price, whichever is less; 0 if it is exceeded."""
        price, limit = self.price_left(allocation), self.supply.price_left
        of_price = float(price / limit) if limit > 0 else 0.0
        return max(0.0, min(of_price, allocation.nodes_left / max(1, self.supply.nodes_left)))

    def stages(self, works: Sequence[Work]) -> list[list[Work]]:
        """Group the work: first jobs that want one zone, zone by zone, so that they share no node with others."""
        if not self.zones:
            return self._stages_by_cost(works)
        zones = dict.fromkeys(self.zones[work.shape] for work in works if work.shape.one_zone)
        return [
            stage
            for zone in (*zones, None)
            for stage in self._stages_by_cost([work for work in works if self.zones.get(work.shape) == zone])
        ]

    def _stages_by_cost(self, works: Sequence[Work]) -> list[list[Work]]:
        """Group the work for packing: together if all types share a billing rule, else the longest jobs first.

        Jobs that differ much in the risk of a spot node are packed apart, if there is a choice between the markets.
        """
        if not works:
            return []
        rules = {offer.node_type.billing for offer in self.offers}
        if len(rules) <= 1 and self.policy.rules.packing is PackingPolicy.SPREAD:
            risks = {span_s: self._risk_class(span_s) for span_s in {work.span_s for work in works}}
            classes = sorted(set(risks.values()), reverse=True)
            return [[work for work in works if risks[work.span_s] == risk] for risk in classes]
        spans = sorted({work.span_s for work in works}, reverse=True)
        return [[work for work in works if work.span_s == span_s] for span_s in spans]

    def _risk_class(self, span_s: float) -> int:
        """How risky a spot node is for jobs of this length: 0 for a loss up to a tenth, 1 up to a fifth, ..."""
        on_sale = [offer.node_type for offer in self.offers if not offer.is_ordered]
        if len({it.market for it in on_sale}) < 2:
            return 0
        spot = {it.name: it for it in on_sale if it.market is Market.SPOT}
        most = max(timings.rerun_factor(self.snapshot, it, self.policy, span_s) for it in spot.values())
        return int(10.0 * (most - 1.0)).bit_length()
