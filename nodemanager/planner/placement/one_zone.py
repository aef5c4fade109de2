"""In which zone the nodes of a job stand that wants them all in one.

One zone is chosen for all jobs of a shape, anew in every plan: one in which a whole job can be had, and of those
the one where most of it stands already, or comes; then the one where the rest costs least; then the first of the
site. A zone that has run out of a type is passed over, and what was made there meanwhile serves others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.jobs import Shape
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.observe.zones import zones_of
from nodemanager.planner.placement.flux_scheduler import Bin, on_different_nodes, pieces_of, slots_per_piece
from nodemanager.planner.placement.infeasibility import by_preference, memory_per_piece, pieces_per_node
from nodemanager.planner.placement.supply import Offer, Supply


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    """``pieces``: how many of one job's pieces can be had in the zone, all jobs ahead left out of account."""

    zone: str
    pieces: int
    short: int

    @property
    def obstacle(self) -> Reason | None:
        if not self.short:
            return None
        return because("one_zone_short", zone=self.zone, have=self.pieces, short=self.short)


def choose_zones(
    shapes: Iterable[Shape], bins: Sequence[Bin], offers: Sequence[Offer], market: Supply
) -> Mapping[Shape, ZoneChoice]:
    """The zone for each of the shapes that want one."""
    wanted = [shape for shape in shapes if shape.one_zone]
    return {shape: _gathered(shape, bins, offers, market) for shape in wanted}


def _gathered(shape: Shape, bins: Sequence[Bin], offers: Sequence[Offer], market: Supply) -> ZoneChoice:
    site = [zone for node_type in market.policy.node_types for zone in zones_of(node_type)]
    zones = dict.fromkeys([*site, *(bin_.zone for bin_ in bins), *(zone for it in offers for zone in it.zones)])
    tried = [_in_zone(shape, zone, bins, offers, market) for zone in zones]
    return min(tried, key=lambda found: found[1])[0]


def _in_zone(
    shape: Shape, zone: str, bins: Sequence[Bin], offers: Sequence[Offer], market: Supply
) -> tuple[ZoneChoice, tuple[int, int, Decimal]]:
    """What can be had in a zone, and how good that is: the least is the best."""
    want = pieces_of(shape)
    there = min(want, _there(shape, zone, bins, offers, market))
    missing, price = want - there, Decimal(0)
    memory = memory_per_piece(shape, market)
    for node_type in by_preference(market.policy, shape):
        each = pieces_per_node(node_type, shape, memory)
        on_sale = zone in market.open_zones[node_type.name] and node_type.name not in market.blocked
        if each and on_sale and missing > 0:
            nodes = min(market.count_free_for(node_type, shape.constraint), -(-missing // each))
            missing -= min(missing, nodes * each)
            price += nodes * node_type.price_per_hour
    return ZoneChoice(zone, want - missing, missing), (missing, -there, price)


def _there(shape: Shape, zone: str, bins: Sequence[Bin], offers: Sequence[Offer], market: Supply) -> int:
    """How many pieces what is up, and what comes, has room for."""
    each, apart = slots_per_piece(shape), on_different_nodes(shape)
    rooms = [
        bin_.slots_that_fit(shape) // each for bin_ in bins if bin_.zone == zone and bin_.suits(shape.constraint)
    ]
    up = sum(min(room, 1) if apart else room for room in rooms)
    memory = memory_per_piece(shape, market)
    come = (it for it in offers if it.is_ordered and zone in it.zones and it.suits(shape.constraint))
    return up + sum(offer.count * pieces_per_node(offer.node_type, shape, memory) for offer in come)
