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
from typing import NamedTuple

from nodemanager.core.jobs import ANYWHERE, Shape
from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.frozen import replace
from nodemanager.planner.packing.exact import find_dominated, nodes_used
from nodemanager.planner.packing.packing import PIECES_EXACT, Problem, fill, pack
from nodemanager.planner.packing.types import (
    Effort,
    Item,
    Load,
    Lot,
    Packed,
    PackingLimits,
    pieces_on_empty,
    pieces_that_fit,
)
from nodemanager.planner.seating import on_different_nodes, slots_per_piece
from nodemanager.planner.supply import Offer
from nodemanager.planner.work import (
    DAY_S,
    UNBOUNDED,
    Kept,
    Kind,
    NodeGroup,
    Places,
    Source,
    Work,
    is_home_likely,
    kinds_of,
    offer_number,
    outlay,
    pack_cheapest,
)

# Of each packing of an allocation, besides the steps that the packing counts itself.
STEPS_PER_WORK = 8
STEPS_PER_SOURCE = 3
STEPS_PER_LOAD = 8
COMPARISONS_PER_STEP = 3
STEPS_PER_OFFER = 2  # of each bound for the pieces that the offers take
SHARE_TRIES = 4  # how often work is packed again because too many spot nodes would be bought


@dataclass(slots=True)
class Allocation:
    """The offers, and what has been taken of them so far.

    ``effort``: for a packing that is better than a greedy one; shared by all allocations of a plan. ``searches``:
    for packings beyond those that every plan needs; all packings count. ``known_fits``: a cache of what fits
    (``packable``), shared too. ``dominated``: types on sale that were left out, and for each a better one.
    ``cost``: what a node of an offer costs for some seconds. ``memory_bytes``: the memory of a job's piece.
    ``fleet``: all nodes, and the spot nodes among them, with those bought here; ``spot_share_max``: the largest
    part of them that may be spot nodes after a purchase.
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
    searches: Effort = field(default_factory=lambda: Effort(UNBOUNDED))
    known_fits: KnownFits = field(default_factory=dict)
    fleet: tuple[int, int] = (0, 0)
    spot_share_max: float = 1.0
    works: list[Work] = field(default_factory=list)
    groups: list[NodeGroup] = field(default_factory=list)
    left: list[int] = field(default_factory=list)  # of each offer
    pool_left: dict[Hashable, int] = field(default_factory=dict)  # of the slots that several offers share
    dominated: dict[TypeName, TypeName] = field(default_factory=dict)
    to_pack: list[int] = field(default_factory=list)  # of the last works, the pieces that are packed later

    def __post_init__(self) -> None:
        if not self.left:
            self.left = [offer.count for offer in self.offers]
            for offer in self.offers:
                if offer.pool is not None:
                    self.pool_left[offer.pool] = max(offer.slots, self.pool_left.get(offer.pool, 0))

    def with_work(
        self, works: Sequence[Work], *, share: bool, greedily: bool = False, ignoring_egress: bool = False
    ) -> Allocation | None:
        """The allocation with this work added at the least cost; None if not all of it can be placed.

        ``share``: whether free resources on nodes with other work may be used. ``greedily``: without the effort.
        ``ignoring_egress``: without a look at what is cheaper near the data.
        """

        def pack(kept: Kept) -> Allocation | None:
            return self._with_work(works, kept, share=share, greedily=greedily)

        likely = self._likely_at_home(works) if self.places.homes and not ignoring_egress else {}
        if not likely:
            return pack(frozenset())
        return pack_cheapest(
            likely, self.places.homes, pack, Allocation._outlay, quickly=greedily, searches=self.searches
        )

    def with_stages(
        self,
        stages: Sequence[Sequence[Work]],
        *,
        share: bool,
        greedily: bool = False,
        ignoring_egress: bool = False,
    ) -> Allocation | None:
        """The same for several lists of work, packed one after another.

        Booting nodes first get what they were bought for, of all the work. Else the first work takes the nodes that
        were bought for the rest, for which others are then bought.
        """
        found: Allocation | None = self
        if len(stages) > 1 and any(offer.load for offer in self.offers):
            found = self._with_planned([work for stage in stages for work in stage])
        for stage in stages:
            if found is not None:
                found = found.with_work(stage, share=share, greedily=greedily, ignoring_egress=ignoring_egress)
        return found

    def _with_planned(self, works: Sequence[Work]) -> Allocation:
        """The allocation with the pieces of this work that go onto the booting nodes bought for them."""
        made, items = self._copy(), [work.item(self.memory_bytes(work.shape)) for work in works]
        made.works += works
        made.to_pack = [item.pieces for item in items]
        made._give_planned(  # noqa: SLF001 - its own class
            Packable(works, len(self.works), items, made.to_pack, 0.0, self.offers, self.places, made.works)
        )
        return made

    def _copy(self) -> Allocation:
        return replace(
            self,
            works=list(self.works),
            groups=list(self.groups),
            left=list(self.left),
            pool_left=dict(self.pool_left),
            dominated=dict(self.dominated),
        )

    def _outlay(self) -> tuple[int, int]:
        return outlay(self.groups, self.works, self.offers, self.cost, self.places.homes)

    def _likely_at_home(self, works: Sequence[Work]) -> Mapping[Kind, bool]:
        """The kinds of work for which nodes are on sale at home, and whether these are probably cheaper there."""
        numbers = self._offers(ordered=False, on_sale=True)
        lots = [self._lot(number, 0.0, self.left, sunk=False) for number in numbers]
        clouds = [self.offers[number].node_type.cloud for number in numbers]
        costs: dict[float, list[int]] = {}
        found: dict[Kind, bool] = {}
        for (shape, span_s), work in kinds_of(works, self.places.homes).items():
            if span_s not in costs:
                costs[span_s] = [self.cost(self.offers[it], min(span_s, DAY_S)) for it in numbers]
            item = work.item(self.memory_bytes(shape))
            row = pieces_on_offers(shape, item, numbers, lots, self.offers, self.known_fits)
            nodes = (
                (cloud, cost, each) for cloud, cost, each in zip(clouds, costs[span_s], row, strict=True) if each
            )
            is_likely = is_home_likely(work, self.places.homes[shape], nodes)
            found |= {} if is_likely is None else {(shape, span_s): is_likely}
        return found

    def _with_work(self, works: Sequence[Work], kept: Kept, *, share: bool, greedily: bool) -> Allocation | None:
        """The same. ``kept``: the kinds of work that get nodes bought away from home only if others run out."""
        items = [work.item(self.memory_bytes(work.shape)) for work in works]
        left = self.to_pack[: len(works)] or [item.pieces for item in items]
        if sum(pieces * item.cores for pieces, item in zip(left, items, strict=True)) > self.cores_left(
            share=share
        ):
            return None  # a shortcut: no packing could place it
        made = self._copy()
        made.effort = Effort(0) if greedily else self.effort
        span_s = max((work.span_s for work in works), default=0.0)
        first = len(self.works) - len(self.to_pack)
        if self.to_pack:
            made.to_pack = self.to_pack[len(works) :]
        else:
            made.works += works
        sources = len(self.groups) + len(self.offers)
        self.searches.left -= STEPS_PER_WORK * len(works) + STEPS_PER_SOURCE * sources
        self.searches.left -= len(works) * sources // COMPARISONS_PER_STEP
        work = Packable(
            works, first, items, left, span_s, self.offers, self.places, made.works, kept, self.known_fits
        )
        placed = made._pack_work(work, share=share)  # noqa: SLF001 - its own class
        if not placed and kept:
            work.kept = frozenset()
            placed = made._pack_work(work, share=share)  # noqa: SLF001
        made.effort = self.effort
        return made if placed else None

    def takes_at_most(self, work: Work) -> int:
        """An upper bound for the pieces of this work that fit on the nodes left in the offers."""
        item = work.item(self.memory_bytes(work.shape))
        pieces, nodes_left = 0, self.nodes_left
        self.searches.left -= STEPS_PER_OFFER * len(self.offers)
        on_sale: list[tuple[int, int]] = []
        for offer, left in zip(self.offers, self.separate_counts(), strict=True):
            if not left or not offer.suits(work.shape):
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

    def _pack_work(self, work: Packable, *, share: bool) -> bool:
        """Pack work in place, and return whether all of it fits.

        Few pieces are packed onto all nodes at once. Many go first onto nodes with other work, then onto booting
        nodes, then onto nodes on sale. Booting nodes get first what they were bought for, if it still waits.
        """
        self._give_planned(work)
        gpus = [bool(item.gpus) for item in work.items]
        if any(self.offers[it].keeps_off is not None for it in self._offers(ordered=False, on_sale=True)):
            # Nodes bought for jobs with GPUs have room left for others, but are not bought for these.
            others = [0 if has else left for has, left in zip(gpus, work.left, strict=True)]
            if any(others) and any(gpus):
                work.left[:] = [left if has else 0 for has, left in zip(gpus, work.left, strict=True)]
                if not self._pack_left(work, share=share):
                    return False
                work.left[:] = others
        return self._pack_left(work, share=share)

    def _pack_left(self, work: Packable, *, share: bool) -> bool:
        """Pack the pieces that are left."""
        if sum(work.left) <= PIECES_EXACT:
            # Those that got what they were bought for may take more.
            groups = self._groups_for(work, share=share)
            return self._pack_and_buy(work, groups, self._offers(ordered=True, on_sale=True))
        self._fill_up(work, self._groups_for(work, share=share), [])
        # Fill booting nodes in the order of their purchase.
        coming = self._offers(ordered=True, on_sale=False)
        for _, together in groupby(coming, key=lambda number: self.offers[number].ordered_s):
            self._fill_up(work, [], list(together))
        few = sum(work.left) <= PIECES_EXACT
        groups = list(self.groups) if few and share else []
        return self._pack_and_buy(work, groups, self._offers(ordered=few, on_sale=True))

    def _groups_for(self, work: Packable, *, share: bool) -> list[NodeGroup]:
        """The nodes that already have work: all of them, or those with none but this work."""
        own = range(work.first, work.first + len(work.works))
        return [it for it in self.groups if share or all(number in own for number, _ in it.pieces)]

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
        self.searches.left -= packed.steps + STEPS_PER_LOAD * len(packed.loads)
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


# --- pack with a long price list: first without the types that are no better than another one -------------
#
# If a better type runs out, those that were left out for it come back, and the work is packed again.


ENDLESS = PackingLimits(UNBOUNDED, UNBOUNDED)
PRICE_LIST_MIN = 32  # from so many node types on it pays to know how many nodes of each are wanted


class Chosen(NamedTuple):
    """A packing. ``sources``: its lots. ``left_out``: the other ones, by number, and for each a better one.

    The steps of the packing are those of all that were made to find it.
    """

    packed: Packed
    sources: list[Source]
    left_out: Mapping[int, int]


def pack_best(
    work: Packable,
    items: Sequence[Item],
    sources: Sequence[Source],
    lots: Sequence[Lot],
    limits: PackingLimits,
    effort: Effort,
) -> Chosen:
    """Pack the items of this work onto these nodes at the least cost. ``lots``: one a source."""
    kinds = work.kinds(sources)
    run_out = set[int]()
    left_out = find_dominated(lots, kinds)
    used: dict[int, int] = {}
    steps = 0
    wanted = sum(item.pieces for item in items)
    if len(lots) < PRICE_LIST_MIN:
        run_out = {number for number in left_out.values() if lots[number].count < wanted}  # or it may
    elif any(lots[number].count < wanted for number in left_out.values()):
        shown = [number for number in range(len(lots)) if number not in left_out]
        endless = [replace(lots[number], count=wanted) for number in shown]
        there = [sources[number] for number in shown]
        packed = pack(items, endless, work.fits(items, there, endless), ENDLESS, Effort(0))
        steps += packed.steps
        used = {shown[lot]: nodes for lot, nodes in nodes_used(packed.loads).items()}
    # No packing of equal pieces on equal nodes is cheaper than a greedy one.
    chosen = Effort(0) if len(lots) == 1 and _are_equal(items) else effort
    spent = Effort(0) if used else chosen  # until it is known which run out
    while True:
        left_out = find_dominated(lots, kinds, used, run_out)
        shown = [number for number in range(len(lots)) if number not in left_out]
        there, some = [sources[number] for number in shown], [lots[number] for number in shown]
        problem = Problem(items, some, work.fits(items, there, some))
        while True:
            packed = problem.pack(limits, spent)
            nodes = nodes_used(packed.loads).items()
            gone = {shown[lot] for lot, count in nodes if count >= some[lot].count} - run_out
            if gone.intersection(left_out.values()):
                run_out |= gone
                steps += problem.steps
                break
            if spent is chosen:
                return Chosen(replace(packed, steps=steps + problem.steps), there, left_out)
            spent = chosen


def _are_equal(items: Sequence[Item]) -> bool:
    """Whether all pieces are equal to the packing: of one item, or such that any of them may share a node."""
    sizes = {(it.cores, it.gpus, it.memory_bytes, it.exclusive, it.per_node_max) for it in items}
    return len(items) == 1 or (len(sizes) == 1 and items[0].per_node_max == UNBOUNDED)


# --- keep the spot nodes of a purchase within their share of the fleet ------------------------------------


def spot_nodes_allowed(
    packed: Packed,
    sources: Sequence[Source],
    offers: Sequence[Offer],
    fleet: tuple[int, int],
    share_max: float,
    *,
    last: bool,
) -> dict[int, int]:
    """How many nodes of each spot offer may be bought; empty if the packing keeps to ``share_max``.

    ``sources``: the lots of the packing. ``fleet``: all nodes, and the spot nodes among them. The share depends on
    how many nodes are bought in all. The ``last`` answer is certain to keep to it: it counts on no other purchase.
    """
    if share_max >= 1.0:
        return {}
    used: dict[int, int] = {}
    bought = 0
    for lot, nodes in nodes_used(packed.loads).items():
        source = sources[lot]
        if not isinstance(source, NodeGroup) and not offers[source].is_ordered:
            bought += nodes
            if offers[source].node_type.market is Market.SPOT:
                used[source] = nodes
    count, spot = fleet
    allowed = max(0, int(share_max * (count + bought) + 1e-9) - spot)
    if sum(used.values()) <= allowed:
        return {}
    if last:
        allowed = max(0, int((share_max * count - spot) / (1.0 - share_max) + 1e-9))
    most = {
        number: 0
        for number, offer in enumerate(offers)
        if not offer.is_ordered and offer.node_type.market is Market.SPOT
    }
    for source, nodes in sorted(used.items()):  # the cheapest first
        most[source] = min(nodes, allowed)
        allowed -= most[source]
    return most


# --- works that are packed together, and which nodes suit them --------------------------------------------


# By shape: how many pieces an empty node of each offer takes, if they may share it. It depends neither on the work
# packed with it nor on the nodes that are left, so all packings of a plan share it.
KnownFits = dict[Shape, list[int]]
UNKNOWN = -1


def pieces_on_offers(
    shape: Shape, item: Item, numbers: Sequence[int], lots: Sequence[Lot], offers: Sequence[Offer], known: KnownFits
) -> list[int]:
    """How many pieces an empty node of these offers takes, by size and constraint. ``lots``: one an offer."""
    row = known.setdefault(shape, [])
    if not row:
        row += [UNKNOWN] * len(offers)
    alone = replace(item, per_node_max=UNBOUNDED)
    for number, lot in zip(numbers, lots, strict=True):
        if row[number] == UNKNOWN:
            row[number] = pieces_on_empty(alone, lot) if offers[number].suits(shape) else 0
    most = item.per_node_max
    return [min(row[number], most) for number in numbers] if most < UNBOUNDED else [row[it] for it in numbers]


@dataclass(slots=True)
class Packable:
    """Works that are packed together, and their pieces that are left.

    ``first``: the number of the first of them in the allocation. ``items``: one a work. ``left``: of each, the
    pieces without a node. ``span_s``: for how long the longest of them needs its nodes. ``offers``, ``places`` and
    ``all_works``: those of the allocation. ``kept``: the kinds that use no node bought elsewhere.
    ``known_fits``: that of the allocation.
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
    known_fits: KnownFits = field(default_factory=dict)

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
        shapes = dict.fromkeys(work.shape for work in self.works)
        zoned = any(work.shape.one_zone for work in self.works)
        found: list[Hashable] = []
        for source in sources:
            offer = self.offers[offer_number(source)]
            met = tuple(offer.meets(constraint) for constraint in constraints)
            is_reserved = isinstance(source, int) and offer.keeps_off is not None
            kept_off = tuple(offer.suits(shape) for shape in shapes) if is_reserved else ()
            cloud = offer.node_type.cloud if self.kept else ""
            found.append((offer.availability, met, kept_off, offer.zones if zoned else (), cloud))
        return found

    def fits(self, items: Sequence[Item], sources: Sequence[Source], lots: Sequence[Lot]) -> list[list[int]]:
        """For each item, how many of its pieces an empty node of each lot takes."""
        fits: list[list[int]] = []
        groups = [source for source in sources if isinstance(source, NodeGroup)]  # they come first
        numbers = [source for source in sources if not isinstance(source, NodeGroup)]
        for work, item in zip(self.works, items, strict=True):
            there = zip(groups, lots, strict=False)
            row = [pieces_on_empty(item, lot) if self.may_use(group, work) else 0 for group, lot in there]
            row += pieces_on_offers(work.shape, item, numbers, lots[len(groups) :], self.offers, self.known_fits)
            if work.shape.one_zone or (work.shape, work.span_s) in self.kept:
                row = [has if has and self.may_use(it, work) else 0 for it, has in zip(sources, row, strict=True)]
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
        # Free room on a node is used by any job: Flux knows nothing of ``only_for``.
        if isinstance(source, NodeGroup):
            return offer.meets(work.shape.constraint)
        return offer.suits(work.shape)

    def _is_roomy(self, source: Source, shape: Shape) -> bool:
        node_type = self.offers[offer_number(source)].node_type
        slots = slots_per_piece(shape)
        return node_type.cores >= slots * shape.cores_per_slot and node_type.gpus >= slots * shape.gpus_per_slot


# --- what booting nodes get first: the pieces they were bought for, if these still wait -------------------
#
# Any other packing of the same pieces might need one node more.


WorksByKind = Mapping[tuple[Shape, float], Sequence[int]]


def works_by_kind(work: Packable) -> WorksByKind:
    """The numbers of the works of each shape and step of time limits. Those whose jobs lack more pieces come first.

    They need more different nodes.
    """
    of_kind: dict[tuple[Shape, float], list[int]] = {}
    works = work.works
    for number in sorted(range(len(works)), key=lambda number: -works[number].pieces_each):
        of_kind.setdefault((works[number].shape, works[number].span_s), []).append(number)
    return of_kind


def planned_contents(source: int, lot: Lot, work: Packable, of_kind: WorksByKind) -> tuple[tuple[int, int], ...]:
    """What one node of an offer gets of that for which it was bought: (item, pieces)."""
    cores, gpus, memory_bytes = lot.cores, lot.gpus, lot.memory_bytes
    contents: dict[int, int] = {}
    for shape, span_s, pieces_each, planned in work.offers[source].load:
        numbers = of_kind.get((shape, span_s), ())
        # First the jobs that lack as many pieces as when the node was bought.
        for number in sorted(numbers, key=lambda it: work.works[it].pieces_each != pieces_each):
            item, left = work.items[number], work.left[number]
            if not planned or not work.may_use(source, work.works[number]):
                continue
            if item.exclusive:
                alone = not contents and left and pieces_on_empty(item, lot)
                return ((number, 1),) if alone else tuple(sorted(contents.items()))
            fitting = pieces_that_fit(item, cores, gpus, memory_bytes)
            had = contents.get(number, 0)
            count = min(planned, left - had, item.per_node_max - had, fitting)
            if count > 0:
                contents[number] = had + count
                planned -= count  # noqa: PLW2901 - the rest goes to the next work of this kind
                cores -= count * item.cores
                gpus -= count * item.gpus
                memory_bytes -= count * item.memory_bytes
    return tuple(sorted(contents.items()))
