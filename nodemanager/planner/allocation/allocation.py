"""Allocate jobs to booting and new nodes: translates between jobs and offers, and the packing.

Work is a number of equal jobs; a group is a number of nodes with equal load. Which job gets which node is computed
only on demand (:class:`Assignment`). The pieces of a job that needs different nodes are dealt round robin, so that
no two of them share a node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from nodemanager.core.jobs import Shape
from nodemanager.core.slots import CloudName, Market, TypeName
from nodemanager.planner.allocation.near import (
    DAY_S,
    Kept,
    Kind,
    Places,
    is_home_likely,
    kinds_of,
    outlay,
    pack_cheapest,
)
from nodemanager.planner.allocation.packable import Packable
from nodemanager.planner.allocation.planned import planned_contents, works_by_kind
from nodemanager.planner.allocation.price_list import pack_best
from nodemanager.planner.allocation.spot_share import spot_nodes_allowed
from nodemanager.planner.allocation.work import NodeGroup, Source, Work, offer_number
from nodemanager.planner.packing.packing import fill
from nodemanager.planner.packing.repack import PIECES_EXACT
from nodemanager.planner.packing.types import Effort, Load, Lot, Packed, PackingLimits, pieces_on_empty
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.supply.offers import Offer

SHARE_TRIES = 4  # how often work is packed again because too many spot nodes would be bought


@dataclass(slots=True)
class Allocation:
    """The offers, and what has been taken of them so far.

    ``effort``: for a packing that is better than a greedy one; shared by all allocations of a plan. ``dominated``:
    types on sale that were left out, and for each a better one. ``cost``: what a node of an offer costs for some
    seconds. ``memory_bytes``: the memory of a job's piece. ``fleet``: all nodes, and the spot nodes among them,
    with those bought here; ``spot_share_max``: the largest part of them that may be spot nodes after a purchase.
    Money is in the smallest unit of the prices.
    """

    offers: Sequence[Offer]
    cost: Callable[[Offer, float], int]
    price: Callable[[Offer], int]
    nodes_left: int
    price_left: int
    memory_bytes: Callable[[Shape], int]
    places: Places = field(default_factory=Places)
    effort: Effort = field(default_factory=lambda: Effort(0))
    fleet: tuple[int, int] = (0, 0)
    spot_share_max: float = 1.0
    works: list[Work] = field(default_factory=list)
    groups: list[NodeGroup] = field(default_factory=list)
    left: list[int] = field(default_factory=list)  # of each offer
    pool_left: dict[Hashable, int] = field(default_factory=dict)  # of the slots that several offers share
    dominated: dict[TypeName, TypeName] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.left:
            self.left = [offer.count for offer in self.offers]
            for offer in self.offers:
                if offer.pool is not None:
                    self.pool_left[offer.pool] = max(offer.slots, self.pool_left.get(offer.pool, 0))

    def with_work(self, works: Sequence[Work], *, share: bool, greedily: bool = False) -> Allocation | None:
        """The allocation with this work added at the least cost; None if not all of it can be placed.

        ``share``: whether free resources on nodes with other work may be used. ``greedily``: without the effort.
        """

        def pack(kept: Kept) -> Allocation | None:
            return self._with_work(works, kept, share=share, greedily=greedily)

        likely = self._likely_at_home(works) if self.places.homes else {}
        if not likely:
            return pack(frozenset())
        return pack_cheapest(likely, self.places.homes, pack, Allocation._outlay, quickly=greedily)

    def _outlay(self) -> tuple[int, int]:
        return outlay(self.groups, self.works, self.offers, self.cost, self.places.homes)

    def _likely_at_home(self, works: Sequence[Work]) -> Mapping[Kind, bool]:
        """The kinds of work for which nodes are on sale at home, and whether these are probably cheaper there."""
        numbers = self._offers(ordered=False, on_sale=True)
        lots = {number: self._lot(number, 0.0, self.left, sunk=False) for number in numbers}
        costs: dict[float, list[int]] = {}
        found: dict[Kind, bool] = {}
        for (shape, span_s), work in kinds_of(works, self.places.homes).items():
            if span_s not in costs:
                costs[span_s] = [self.cost(self.offers[it], min(span_s, DAY_S)) for it in numbers]
            item, nodes = work.item(self.memory_bytes(shape)), list[tuple[CloudName, int, int]]()
            for number, cost in zip(numbers, costs[span_s], strict=True):
                each = pieces_on_empty(item, lots[number])
                if each and self.offers[number].suits(shape.constraint):
                    nodes.append((self.offers[number].node_type.cloud, cost, each))
            is_likely = is_home_likely(work, self.places.homes[shape], nodes)
            found |= {} if is_likely is None else {(shape, span_s): is_likely}
        return found

    def _with_work(self, works: Sequence[Work], kept: Kept, *, share: bool, greedily: bool) -> Allocation | None:
        """The same. ``kept``: the kinds of work that get nodes bought away from home only if others run out."""
        items = [work.item(self.memory_bytes(work.shape)) for work in works]
        if sum(item.pieces * item.cores for item in items) > self.cores_left(share=share):
            return None  # a shortcut: no packing could place it
        made = replace(
            self,
            works=list(self.works),
            groups=list(self.groups),
            left=list(self.left),
            pool_left=dict(self.pool_left),
            dominated=dict(self.dominated),
            effort=Effort(0) if greedily else self.effort,
        )
        span_s = max((work.span_s for work in works), default=0.0)
        made.works += works
        left = [item.pieces for item in items]
        first = len(self.works)
        work = Packable(works, first, items, left, span_s, self.offers, self.places, made.works, kept)
        old = len(made.groups)
        placed = made._pack_work(work, old, share=share)  # noqa: SLF001 - its own class
        if not placed and kept:
            work.kept = frozenset()
            placed = made._pack_work(work, old, share=share)  # noqa: SLF001
        made.effort = self.effort
        return made if placed else None

    def takes_at_most(self, work: Work) -> int:
        """An upper bound for the pieces of this work that fit on the nodes left in the offers."""
        item = work.item(self.memory_bytes(work.shape))
        pieces, nodes_left = 0, self.nodes_left
        on_sale: list[tuple[int, int]] = []
        for offer, left in zip(self.offers, self.separate_counts(), strict=True):
            if not left or not offer.suits(work.shape.constraint):
                continue
            node_type = offer.node_type
            each = pieces_on_empty(item, Lot(node_type.cores, node_type.gpus, node_type.memory_bytes, left, 0, 0))
            if offer.is_ordered:
                pieces += left * each
            else:
                price = self.price(offer)
                on_sale.append((each, min(left, self.price_left // price) if price > 0 else left))
        for each, count in sorted(on_sale, reverse=True):
            bought = max(0, min(count, nodes_left))
            nodes_left -= bought
            pieces += bought * each
        return pieces

    def cores_left(self, *, share: bool) -> int:
        """An upper bound for the cores that further work can get. ``share``: as in :meth:`with_work`."""
        cores = sum(group.nodes * group.cores for group in self.groups) if share else 0
        nodes_left = self.nodes_left
        counts = self.separate_counts()
        for number in sorted(range(len(self.offers)), key=lambda it: -self.offers[it].node_type.cores):
            offer, left = self.offers[number], counts[number]
            if not offer.is_ordered:
                left = max(0, min(left, nodes_left))
                nodes_left -= left
            cores += left * offer.node_type.cores
        return cores

    def separate_counts(
        self,
        numbers: Iterable[int] | None = None,
        span_s: float = inf,
        most: Mapping[int, int] | None = None,
    ) -> list[int]:
        """How many nodes are left of each offer if no slot is counted twice. ``numbers``: only these offers.

        Offers that share slots differ in price only: the cheapest, for a node of ``span_s`` seconds, comes first.
        ``most``: limits for some offers.
        """
        counts = self.left
        if most:
            counts = [min(left, most.get(number, left)) for number, left in enumerate(self.left)]
        if not self.pool_left:
            return counts
        own, counts, pool_left = counts, [0] * len(self.offers), dict(self.pool_left)
        shared: list[int] = []
        for number in range(len(self.offers)) if numbers is None else numbers:
            if self.offers[number].pool is None:
                counts[number] = own[number]
            else:
                shared.append(number)
        for number in sorted(shared, key=lambda it: (self.cost(self.offers[it], span_s), it)):
            pool = self.offers[number].pool
            counts[number] = min(own[number], pool_left[pool])
            pool_left[pool] -= counts[number]
        return counts

    def _pack_work(self, work: Packable, old: int, *, share: bool) -> bool:
        """Pack work in place, and return whether all of it fits. ``old``: how many groups have other work.

        Few pieces are packed onto all nodes at once. Many go first onto nodes with other work, then onto booting
        nodes, then onto nodes on sale. Booting nodes get first what they were bought for, if it still waits.
        """
        self._give_planned(work)
        if sum(work.left) <= PIECES_EXACT:
            # Those that got what they were bought for may take more.
            groups = list(self.groups) if share else self.groups[old:]
            return self._pack_and_buy(work, groups, self._offers(ordered=True, on_sale=True))
        self._fill_up(work, list(self.groups) if share else self.groups[old:], [])
        # Fill booting nodes in the order of their purchase.
        coming = self._offers(ordered=True, on_sale=False)
        for _, together in groupby(coming, key=lambda number: self.offers[number].ordered_s):
            self._fill_up(work, [], list(together))
        few = sum(work.left) <= PIECES_EXACT
        groups = list(self.groups) if few and share else []
        return self._pack_and_buy(work, groups, self._offers(ordered=few, on_sale=True))

    def _offers(self, *, ordered: bool, on_sale: bool) -> list[int]:
        """The offers with nodes left: the ordered ones, those on sale, or both."""
        return [
            number
            for number, offer in enumerate(self.offers)
            if self.left[number] and (ordered if offer.is_ordered else on_sale and self.nodes_left > 0)
        ]

    def _give_planned(self, work: Packable) -> None:
        """Give booting nodes the pieces they were bought for."""
        of_kind = works_by_kind(work)
        for source, offer in enumerate(self.offers):
            if not offer.load or not self.left[source]:
                continue
            lot = self._lot(source, 0.0, self.left, sunk=True)
            while self.left[source]:
                contents = planned_contents(source, lot, work, of_kind)
                if not contents:
                    break
                each = (work.left[number] // count for number, count in contents)
                nodes = min(self.left[source], *each)
                self._add_loads(Packed((Load(0, nodes, contents),), ()), work.first, [source])
                for number, count in contents:
                    work.left[number] -= nodes * count

    def _fill_up(self, work: Packable, groups: Sequence[NodeGroup], offers: Sequence[int]) -> None:
        """Pack as much of the work as fits onto nodes that are paid for."""
        if not any(work.left) or not (groups or offers):
            return
        items = work.items_left()
        sources, lots = self._lots(work, groups, offers, {}, sunk=False)
        self._take(work, fill(items, lots, work.fits(items, sources, lots)), sources)

    def _pack_and_buy(self, work: Packable, groups: Sequence[NodeGroup], offers: Sequence[int]) -> bool:
        """Pack the work onto these nodes at the least cost, and return whether all of it fits.

        The spot nodes among them keep to their share: if too many would be bought, it is packed again with fewer.
        """
        if not any(work.left):
            return True
        items, most = work.items_left(), dict[int, int]()
        for tries_left in range(SHARE_TRIES, -1, -1):
            sources, lots = self._lots(work, groups, offers, most, sunk=True)
            limits = PackingLimits(self.nodes_left, self.price_left)
            packed, used, left_out = pack_best(work, items, sources, lots, limits, self.effort)
            last = tries_left == 1
            most = spot_nodes_allowed(packed, used, self.offers, self.fleet, self.spot_share_max, last=last)
            if not most:
                break
        for number, other in left_out.items():
            worse, kept = (self.offers[offer_number(sources[it])].node_type.name for it in (number, other))
            if worse != kept:
                self.dominated[worse] = kept
        return self._take(work, packed, used)

    def _lots(
        self,
        work: Packable,
        groups: Sequence[NodeGroup],
        offers: Sequence[int],
        most: Mapping[int, int],
        *,
        sunk: bool,
    ) -> tuple[list[Source], list[Lot]]:
        """The groups and offers with room, and each as a lot of the packing.

        ``most``: limits for some offers. ``sunk``: as in :meth:`_lot`.
        """
        counts = self.separate_counts(work.in_zone(offers), work.span_s, most)
        sources: list[Source] = [group for group in groups if group.cores > 0]
        sources += [number for number in offers if counts[number]]
        return sources, [self._lot(source, work.span_s, counts, sunk=sunk) for source in sources]

    def _take(self, work: Packable, packed: Packed, sources: list[Source]) -> bool:
        """Take the nodes of a packing, and return whether nothing of the work is left."""
        self._add_loads(packed, work.first, sources)
        work.left[:] = packed.left
        return not any(packed.left)

    def _lot(self, source: Source, span_s: float, counts: Sequence[int], *, sunk: bool) -> Lot:
        """A group or an offer as a lot of the packing. ``counts``: of each offer. ``sunk``: ordered nodes are free.

        They cost nothing if they compete with nodes on sale. Alone, they are compared by price, as when they were
        bought, so that the same work is placed in the same way.
        """
        if isinstance(source, NodeGroup):
            return Lot(source.cores, source.gpus, source.memory_bytes, source.nodes, 0, 0, bought=False)
        offer = self.offers[source]
        node_type, count = offer.node_type, counts[source]
        if offer.is_ordered:
            cost = 0 if sunk else self.cost(offer, span_s)
            return Lot(node_type.cores, node_type.gpus, node_type.memory_bytes, count, cost, 0, bought=False)
        cost, price = self.cost(offer, span_s), self.price(offer)
        return Lot(node_type.cores, node_type.gpus, node_type.memory_bytes, count, cost, price)

    def _add_loads(self, packed: Packed, first: int, sources: list[Source]) -> None:
        """Take the nodes of a packing from the offers and the groups."""
        for load in packed.loads:
            source = sources[load.lot]
            pieces = tuple((first + item, count) for item, count in load.pieces)
            if isinstance(source, NodeGroup):
                sources[load.lot] = self._split_group(source, load, pieces)  # the next load goes onto the rest
                continue
            offer = self.offers[source]
            self.left[source] -= load.nodes
            if offer.pool is not None:
                self.pool_left[offer.pool] -= load.nodes
            if not offer.is_ordered:
                self.nodes_left -= load.nodes
                is_spot = offer.node_type.market is Market.SPOT
                self.fleet = (self.fleet[0] + load.nodes, self.fleet[1] + (load.nodes if is_spot else 0))
                self.price_left -= load.nodes * self.price(offer)
            zone, size = self._zone_of(offer, pieces), offer.node_type
            empty = NodeGroup(source, load.nodes, zone, (), size.cores, size.gpus, size.memory_bytes)
            self.groups.append(empty.with_pieces(pieces, self.works))

    def _zone_of(self, offer: Offer, pieces: tuple[tuple[int, int], ...]) -> str:
        """The zone of a new group. Works packed together want the same zone or none; the placement ensures this."""
        shapes = (self.works[number].shape for number, _ in pieces)
        return next((self.places.zones[shape] for shape in shapes if shape.one_zone), offer.zones[0])

    def _split_group(self, group: NodeGroup, load: Load, pieces: tuple[tuple[int, int], ...]) -> NodeGroup:
        """Put pieces onto some nodes of a group, which splits it unless all are used. Returns the unused part."""
        place = self.groups.index(group)
        below, rest = replace(group, nodes=load.nodes), replace(group, nodes=group.nodes - load.nodes)
        self.groups[place : place + 1] = [below.with_pieces(pieces, self.works), *([rest] if rest.nodes else [])]
        return rest
