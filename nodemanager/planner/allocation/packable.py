"""Works that are packed together, and which nodes suit them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from nodemanager.core.jobs import ANYWHERE, Shape
from nodemanager.planner.allocation.near import Kept, Places
from nodemanager.planner.allocation.work import NodeGroup, Source, Work, offer_number
from nodemanager.planner.packing.types import Item, Lot, pieces_on_empty
from nodemanager.planner.scheduler.sched_simple import on_different_nodes, slots_per_piece
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.supply.offers import Offer


@dataclass(slots=True)
class Packable:
    """Works that are packed together, and their pieces that are left.

    ``first``: the number of the first of them in the allocation. ``items``: one a work. ``left``: of each, the
    pieces without a node. ``span_s``: for how long the longest of them needs its nodes. ``offers``, ``places`` and
    ``all_works``: those of the allocation. ``kept``: the kinds that use no node bought elsewhere.
    """

    works: Sequence[Work]
    first: int
    items: Sequence[Item]
    left: list[int]
    span_s: float
    offers: Sequence[Offer]
    places: Places
    all_works: Sequence[Work]
    kept: Kept = frozenset()

    def items_left(self) -> list[Item]:
        """The items with the pieces that are left of them."""
        return [
            replace(item, pieces=left) if left != item.pieces else item
            for item, left in zip(self.items, self.left, strict=True)
        ]

    def in_zone(self, offers: Sequence[int]) -> Sequence[int]:
        """The offers in the zone that this work wants: works packed together want the same zone or none."""
        zone = next((self.places.zones[work.shape] for work in self.works if work.shape.one_zone), None)
        return offers if zone is None else [it for it in offers if zone in self.offers[it].zones]

    def kinds(self, sources: Sequence[Source]) -> list[Hashable]:
        """For each source a key that is equal if the same of this work may use it."""
        constraints = dict.fromkeys(
            work.shape.constraint for work in self.works if work.shape.constraint is not ANYWHERE
        )
        zoned = any(work.shape.one_zone for work in self.works)
        found: list[Hashable] = []
        for source in sources:
            offer = self.offers[offer_number(source)]
            met = tuple(offer.suits(constraint) for constraint in constraints)
            cloud = offer.node_type.cloud if self.kept else ""
            found.append((offer.availability, met, offer.zones if zoned else (), cloud))
        return found

    def fits(self, items: Sequence[Item], sources: Sequence[Source], lots: Sequence[Lot]) -> list[list[int]]:
        """For each item, how many of its pieces an empty node of each lot takes."""
        fits: list[list[int]] = []
        all_alike = not self.kept and not any(isinstance(source, NodeGroup) for source in sources)
        for work, item in zip(self.works, items, strict=True):
            anywhere = all_alike and work.shape.constraint is ANYWHERE and not work.shape.one_zone
            row = [
                pieces_on_empty(item, lot) if anywhere or self.may_use(source, work) else 0
                for source, lot in zip(sources, lots, strict=True)
            ]
            if item.exclusive:
                # Flux starts it even on a node that is too small. Use such a node only if there is no larger one.
                roomy = [self._is_roomy(source, work.shape) for source in sources]
                if any(has and is_roomy for has, is_roomy in zip(row, roomy, strict=True)):
                    row = [has if is_roomy else 0 for has, is_roomy in zip(row, roomy, strict=True)]
            fits.append(row)
        return fits

    def may_use(self, source: Source, work: Work) -> bool:
        """Whether pieces of this work may go onto these nodes, apart from their size."""
        if isinstance(source, NodeGroup):
            if work.shape.exclusive:
                return False
            # The pieces of such jobs are dealt round robin: two lots of them on one node might be of the same job.
            if on_different_nodes(work.shape) and any(self.all_works[it] is work for it, _ in source.pieces):
                return False
        offer = self.offers[offer_number(source)]
        is_kept = (work.shape, work.span_s) in self.kept and not offer.is_ordered
        if is_kept and self.places.homes[work.shape].cloud != offer.node_type.cloud:
            return False
        if work.shape.one_zone:
            zones = (source.zone,) if isinstance(source, NodeGroup) else offer.zones
            if self.places.zones[work.shape] not in zones:
                return False
        return offer.suits(work.shape.constraint)

    def _is_roomy(self, source: Source, shape: Shape) -> bool:
        node_type = self.offers[offer_number(source)].node_type
        slots = slots_per_piece(shape)
        return node_type.cores >= slots * shape.cores_per_slot and node_type.gpus >= slots * shape.gpus_per_slot
