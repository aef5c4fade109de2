"""Choose the zone for jobs that want all their nodes in one zone.

Every plan chooses one zone for all jobs of a shape. It must have room for a whole job. Among such zones, the one
wins where nodes boot that were bought for these jobs, so that the next plan does not buy them elsewhere. Then
counts existing and booting room, then existing room alone, then what the rest costs, with the egress of the job's
data, then the site's order. A zone that has run out of a type is passed over; nodes that were created there serve
other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.jobs import Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.planner.allocation.near import cost_of_node
from nodemanager.planner.backoff.zones import zones_of
from nodemanager.planner.placement.infeasibility import by_preference, memory_per_piece, pieces_per_node
from nodemanager.planner.scheduler.sched_simple import pieces_of
from nodemanager.planner.scheduler.seating import Bin
from nodemanager.planner.state.obstacle import Hindrance, Obstacle
from nodemanager.planner.supply.offers import Offer
from nodemanager.planner.supply.supply import Supply


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    """The chosen zone. ``pieces``: how many pieces of a job fit there, ignoring jobs ahead; ``short``: the rest."""

    zone: str
    pieces: int
    short: int

    @property
    def obstacle(self) -> Obstacle | None:
        """Why the zone cannot serve a whole job; None if it can."""
        if not self.short:
            return None
        reason = because(Code.ONE_ZONE_SHORT, zone=self.zone, have=self.pieces, short=self.short)
        return Obstacle(Hindrance.UNAVAILABLE, reason)


def choose_zones(
    spans: Mapping[Shape, float], bins: Sequence[Bin], offers: Sequence[Offer], supply: Supply
) -> Mapping[Shape, ZoneChoice]:
    """Choose a zone for each shape that wants a single one. ``spans``: each with its longest time limit."""
    return {shape: _choose_zone(shape, span_s, bins, offers, supply) for shape, span_s in spans.items()}


def _choose_zone(
    shape: Shape, span_s: float, bins: Sequence[Bin], offers: Sequence[Offer], supply: Supply
) -> ZoneChoice:
    site = [zone for node_type in supply.policy.node_types for zone in zones_of(node_type)]
    zones = dict.fromkeys([*site, *(bin_.zone for bin_ in bins), *(zone for it in offers for zone in it.zones)])
    tried = [_try_zone(shape, span_s, zone, bins, offers, supply) for zone in zones]
    return min(tried, key=lambda found: found[1])[0]


def _try_zone(
    shape: Shape, span_s: float, zone: str, bins: Sequence[Bin], offers: Sequence[Offer], supply: Supply
) -> tuple[ZoneChoice, tuple[int, int, int, int, int, Decimal]]:
    """What a zone can provide, and its sort key: the least is the best."""
    want = pieces_of(shape)
    coming = [it for it in offers if it.is_ordered and zone in it.zones]
    bought = sum(it.count * pieces for it in coming for planned, _, _, pieces in it.load if planned == shape)
    up = min(want, _pieces_up(shape, zone, bins, supply))
    there = min(want, up + _pieces_coming(shape, coming, supply))
    missing, away, price = want - there, 0, Decimal(0)
    home, egress = supply.policy.home_of(shape), supply.policy.egress_of(shape)
    memory = memory_per_piece(shape, supply)
    for node_type in by_preference(supply.policy, shape):
        each = pieces_per_node(node_type, shape, memory)
        on_sale = zone in supply.open_zones[node_type.name] and node_type.name not in supply.blocked
        if each and on_sale and missing > 0:
            nodes = min(supply.count_free_for(node_type, shape.constraint), -(-missing // each))
            away += min(missing, nodes * each) if home not in (None, node_type.cloud) else 0
            missing -= min(missing, nodes * each)
            cheapest = supply.cheapest(node_type)
            price += nodes * (cheapest.price_per_hour if egress is None else cost_of_node(cheapest, span_s))
    if egress is not None:
        price, away = price + egress * away / want, 0
    return ZoneChoice(zone, want - missing, missing), (missing, -min(want, bought), -there, -up, away, price)


def _pieces_up(shape: Shape, zone: str, bins: Sequence[Bin], supply: Supply) -> int:
    """How many pieces fit on existing nodes of the zone."""
    return sum(
        bin_.pieces_that_fit(shape)
        for bin_ in bins
        if bin_.zone == zone and supply.matches.suits(shape.constraint, bin_.rank)
    )


def _pieces_coming(shape: Shape, coming: Iterable[Offer], supply: Supply) -> int:
    """How many pieces fit on the booting nodes of a zone."""
    memory = memory_per_piece(shape, supply)
    return sum(
        offer.count * pieces_per_node(offer.node_type, shape, memory)
        for offer in coming
        if offer.suits(shape.constraint)
    )
