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

from nodemanager.core.jobs import ANYWHERE, Shape
from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.packing.dominated import find_dominated, nodes_used
from nodemanager.planner.packing.packing import fill, pack
from nodemanager.planner.packing.repack import PIECES_EXACT
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
from nodemanager.planner.placement.work import UNBOUNDED, Work
from nodemanager.planner.scheduler.sched_simple import on_different_nodes, slots_per_piece
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.supply.offers import Offer

ENDLESS = PackingLimits(UNBOUNDED, UNBOUNDED)
SHARE_TRIES = 4  # how often work is packed again because too many spot nodes would be bought
PRICE_LIST_MIN = 32  # from so many node types on it pays to know how many nodes of each are wanted


@dataclass(frozen=True)  # without slots, so that ``frozen.replace`` is fast
class NodeGroup:
    """Nodes of one offer with equal load.

    ``pieces``: (number of the work, pieces on each node). ``cores``, ``gpus``, ``memory_bytes``: free on each node.
    """

    offer: int
    nodes: int
    zone: str
    pieces: tuple[tuple[int, int], ...]
    cores: int
    gpus: int
    memory_bytes: int


@dataclass(slots=True)
class Packable:
    """Works that are packed together, and what is left of them.

    ``first``: the number of the first of them in the allocation. ``items``: one a work. ``left``: of each, the
    pieces without a node. ``span_s``: for how long the longest of them needs its nodes.
    """

    works: Sequence[Work]
    first: int
    items: Sequence[Item]
    left: list[int]
    span_s: float

    def items_left(self) -> list[Item]:
        """The items with the pieces that are left of them."""
        return [
            replace(item, pieces=left) if left != item.pieces else item
            for item, left in zip(self.items, self.left, strict=True)
        ]


@dataclass(slots=True)
class Allocation:
    """The offers, and what has been taken of them so far.

    ``effort``: for a packing that is better than a greedy one; shared by all allocations of a plan. ``dominated``:
    types on sale that were left out, and for each a better one. ``cost``: what a node of an offer costs for some
    seconds. ``memory_bytes``: the memory of a job's piece.
    ``zones``: the chosen zone of jobs that want all their nodes in one. ``fleet``: all nodes, and the spot nodes
    among them, with those bought here; ``spot_share_max``: the largest part of them that may be spot nodes after a
    purchase. Money is in the smallest unit of the prices.
    """

    offers: Sequence[Offer]
    cost: Callable[[Offer, float], int]
    price: Callable[[Offer], int]
    nodes_left: int
    price_left: int
    memory_bytes: Callable[[Shape], int]
    zones: Mapping[Shape, str]
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
        work = Packable(works, len(self.works), items, [item.pieces for item in items], span_s)
        made.works += works
        placed = made._pack_work(work, share=share)  # noqa: SLF001 - its own class
        made.effort = self.effort
        return made if placed else None

    def takes_at_most(self, work: Work) -> int:
        """An upper bound for the pieces of this work that fit on what is left of the offers."""
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

    def _pack_work(self, work: Packable, *, share: bool) -> bool:
        """Pack work in place, and return whether all of it fits.

        Few pieces are packed onto all nodes at once. Many go first onto nodes with other work, then onto booting
        nodes, then onto nodes on sale. Booting nodes get first what they were bought for, if it still waits.
        """
        old = len(self.groups)
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
        """Give booting nodes the pieces they were bought for.

        Any other packing of the same pieces might need one node more. Of jobs of one kind, those that lack more
        pieces come first: they need more different nodes.
        """
        of_kind: dict[tuple[Shape, float], list[int]] = {}
        works = work.works
        for number in sorted(range(len(works)), key=lambda number: -works[number].pieces_each):
            of_kind.setdefault((works[number].shape, works[number].span_s), []).append(number)
        for source, offer in enumerate(self.offers):
            if not offer.load or not self.left[source]:
                continue
            lot = self._lot(source, 0.0, self.left, sunk=True)
            while self.left[source]:
                contents = self._planned_contents(source, lot, work, of_kind)
                if not contents:
                    break
                each = (work.left[number] // count for number, count in contents)
                nodes = min(self.left[source], *each)
                self._add_loads(Packed((Load(0, nodes, contents),), ()), work.first, [source])
                for number, count in contents:
                    work.left[number] -= nodes * count

    def _planned_contents(
        self, source: int, lot: Lot, work: Packable, of_kind: Mapping[tuple[Shape, float], Sequence[int]]
    ) -> tuple[tuple[int, int], ...]:
        """What one node of an offer gets of that for which it was bought: (item, pieces)."""
        cores, gpus, memory_bytes = lot.cores, lot.gpus, lot.memory_bytes
        contents: dict[int, int] = {}
        for shape, span_s, pieces_each, planned in self.offers[source].load:
            numbers = of_kind.get((shape, span_s), ())
            # First the jobs that lack as many pieces as when the node was bought.
            for number in sorted(numbers, key=lambda it: work.works[it].pieces_each != pieces_each):
                item, left = work.items[number], work.left[number]
                if not planned or not self._may_use(source, work.works[number]):
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

    def _fill_up(self, work: Packable, groups: Sequence[NodeGroup], offers: Sequence[int]) -> None:
        """Pack as much of the work as fits onto nodes that are paid for."""
        if not any(work.left) or not (groups or offers):
            return
        items = work.items_left()
        sources, lots = self._lots(work, groups, offers, {}, sunk=False)
        self._take(work, fill(items, lots, self._fits(items, work.first, sources, lots)), sources)

    def _pack_and_buy(self, work: Packable, groups: Sequence[NodeGroup], offers: Sequence[int]) -> bool:
        """Pack the work onto these nodes at the least cost, and return whether all of it fits.

        The spot nodes among them keep to their share: if too many would be bought, it is packed again with fewer.
        """
        if not any(work.left):
            return True
        items, most = work.items_left(), dict[int, int]()
        for tries_left in range(SHARE_TRIES, -1, -1):
            sources, lots = self._lots(work, groups, offers, most, sunk=True)
            packed, shown, left_out = self._pack_best(items, lots, sources, work.first)
            if not (most := self._within_share(packed, shown, last=tries_left == 1)):
                break
        for number, other in left_out.items():
            worse, kept = (self.offers[self._offer_number(sources[it])].node_type.name for it in (number, other))
            if worse != kept:
                self.dominated[worse] = kept
        return self._take(work, packed, shown)

    def _lots(
        self,
        work: Packable,
        groups: Sequence[NodeGroup],
        offers: Sequence[int],
        most: Mapping[int, int],
        *,
        sunk: bool,
    ) -> tuple[list[NodeGroup | int], list[Lot]]:
        """The groups and offers with room, and each as a lot of the packing.

        ``most``: limits for some offers. ``sunk``: as in :meth:`_lot`.
        """
        counts = self.separate_counts(self._in_zone(offers, work.first), work.span_s, most)
        sources: list[NodeGroup | int] = [group for group in groups if group.cores > 0]
        sources += [number for number in offers if counts[number]]
        return sources, [self._lot(source, work.span_s, counts, sunk=sunk) for source in sources]

    def _take(self, work: Packable, packed: Packed, sources: list[NodeGroup | int]) -> bool:
        """Take the nodes of a packing, and return whether nothing of the work is left."""
        self._add_loads(packed, work.first, sources)
        work.left[:] = packed.left
        return not any(packed.left)

    def _pack_best(
        self,
        items: Sequence[Item],
        lots: Sequence[Lot],
        sources: Sequence[NodeGroup | int],
        first: int,
    ) -> tuple[Packed, list[NodeGroup | int], Mapping[int, int]]:
        """The packing, the sources that it uses, and which were left out for which better one."""
        limits = PackingLimits(self.nodes_left, self.price_left)
        suits, run_out = self._what_suits(sources, first), set[int]()
        left_out = find_dominated(lots, suits)
        used: dict[int, int] = {}
        wanted = sum(item.pieces for item in items)
        if len(lots) < PRICE_LIST_MIN:
            run_out = {number for number in left_out.values() if lots[number].count < wanted}  # or it may
        elif any(lots[number].count < wanted for number in left_out.values()):
            shown = [number for number in range(len(lots)) if number not in left_out]
            endless = [replace(lots[number], count=wanted) for number in shown]
            there = [sources[number] for number in shown]
            packed = pack(items, endless, self._fits(items, first, there, endless), ENDLESS, Effort(0))
            used = {shown[lot]: nodes for lot, nodes in nodes_used(packed.loads).items()}
        # No packing of equal pieces on equal nodes is cheaper than a greedy one.
        chosen = Effort(0) if len(lots) == 1 and _are_equal(items) else self.effort
        effort = Effort(0) if used else chosen  # until it is known which run out
        while True:
            left_out = find_dominated(lots, suits, used, run_out)
            shown = [number for number in range(len(lots)) if number not in left_out]
            there = [sources[number] for number in shown]
            some = [lots[number] for number in shown]
            packed = pack(items, some, self._fits(items, first, there, some), limits, effort)
            nodes = nodes_used(packed.loads).items()
            gone = {shown[lot] for lot, count in nodes if count >= some[lot].count} - run_out
            if gone.intersection(left_out.values()):
                run_out |= gone
            elif effort is not chosen:
                effort = chosen
            else:
                return packed, there, left_out

    def _within_share(self, packed: Packed, sources: Sequence[NodeGroup | int], *, last: bool) -> dict[int, int]:
        """How many nodes of each spot offer may be bought; empty if the packing keeps to ``spot_share_max``.

        The share depends on how many nodes are bought in all. The ``last`` answer is certain to keep to it: it
        counts on no other purchase.
        """
        if self.spot_share_max >= 1.0:
            return {}
        used: dict[int, int] = {}
        bought = 0
        for lot, nodes in nodes_used(packed.loads).items():
            source = sources[lot]
            if not isinstance(source, NodeGroup) and not self.offers[source].is_ordered:
                bought += nodes
                if self.offers[source].node_type.market is Market.SPOT:
                    used[source] = nodes
        count, spot = self.fleet
        share = self.spot_share_max
        allowed = max(0, int(share * (count + bought) + 1e-9) - spot)
        if sum(used.values()) <= allowed:
            return {}
        if last:
            allowed = max(0, int((share * count - spot) / (1.0 - share) + 1e-9))
        most = {
            number: 0
            for number, offer in enumerate(self.offers)
            if not offer.is_ordered and offer.node_type.market is Market.SPOT
        }
        for source, nodes in sorted(used.items()):  # the cheapest first
            most[source] = min(nodes, allowed)
            allowed -= most[source]
        return most

    @staticmethod
    def _offer_number(source: NodeGroup | int) -> int:
        return source.offer if isinstance(source, NodeGroup) else source

    def _what_suits(self, sources: Sequence[NodeGroup | int], first: int) -> list[tuple[object, ...]]:
        """For each source a key that is equal if the same of this work may use it."""
        works = self.works[first:]
        constraints = dict.fromkeys(
            work.shape.constraint for work in works if work.shape.constraint is not ANYWHERE
        )
        zoned = any(work.shape.one_zone for work in works)
        found: list[tuple[object, ...]] = []
        for source in sources:
            offer = self.offers[self._offer_number(source)]
            met = tuple(offer.suits(constraint) for constraint in constraints)
            found.append((offer.availability, met, offer.zones if zoned else ()))
        return found

    def _in_zone(self, offers: Sequence[int], first: int) -> Sequence[int]:
        """The offers in the zone that this work wants: works packed together want the same zone or none."""
        zone = next((self.zones[work.shape] for work in self.works[first:] if work.shape.one_zone), None)
        return offers if zone is None else [it for it in offers if zone in self.offers[it].zones]

    def _lot(self, source: NodeGroup | int, span_s: float, counts: Sequence[int], *, sunk: bool) -> Lot:
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

    def _fits(
        self, items: Sequence[Item], first: int, sources: Sequence[NodeGroup | int], lots: Sequence[Lot]
    ) -> list[list[int]]:
        """For each item, how many of its pieces an empty node of each lot takes."""
        fits: list[list[int]] = []
        for number, item in enumerate(items):
            work = self.works[first + number]
            row = [
                pieces_on_empty(item, lot) if self._may_use(source, work) else 0
                for source, lot in zip(sources, lots, strict=True)
            ]
            if item.exclusive:
                # Flux starts it even on a node that is too small. Use such a node only if there is no larger one.
                roomy = [self._is_roomy(source, work.shape) for source in sources]
                if any(has and is_roomy for has, is_roomy in zip(row, roomy, strict=True)):
                    row = [has if is_roomy else 0 for has, is_roomy in zip(row, roomy, strict=True)]
            fits.append(row)
        return fits

    def _may_use(self, source: NodeGroup | int, work: Work) -> bool:
        if isinstance(source, NodeGroup):
            if work.shape.exclusive:
                return False
            # The pieces of such jobs are dealt round robin: two lots of them on one node might be of the same job.
            if on_different_nodes(work.shape) and any(self.works[number] is work for number, _ in source.pieces):
                return False
        offer = self.offers[self._offer_number(source)]
        if work.shape.one_zone:
            zones = (source.zone,) if isinstance(source, NodeGroup) else offer.zones
            if self.zones[work.shape] not in zones:
                return False
        return offer.suits(work.shape.constraint)

    def _is_roomy(self, source: NodeGroup | int, shape: Shape) -> bool:
        node_type = self.offers[self._offer_number(source)].node_type
        slots = slots_per_piece(shape)
        return node_type.cores >= slots * shape.cores_per_slot and node_type.gpus >= slots * shape.gpus_per_slot

    def _add_loads(self, packed: Packed, first: int, sources: list[NodeGroup | int]) -> None:
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
            self.groups.append(self._with_pieces(empty, pieces))

    def _zone_of(self, offer: Offer, pieces: tuple[tuple[int, int], ...]) -> str:
        """The zone of a new group. Works packed together want the same zone or none; the placement ensures this."""
        shapes = (self.works[number].shape for number, _ in pieces)
        return next((self.zones[shape] for shape in shapes if shape.one_zone), offer.zones[0])

    def _split_group(self, group: NodeGroup, load: Load, pieces: tuple[tuple[int, int], ...]) -> NodeGroup:
        """Put pieces onto some nodes of a group, which splits it unless all are used. Returns the unused part."""
        place = self.groups.index(group)
        below, rest = replace(group, nodes=load.nodes), replace(group, nodes=group.nodes - load.nodes)
        self.groups[place : place + 1] = [self._with_pieces(below, pieces), *([rest] if rest.nodes else [])]
        return rest

    def _with_pieces(self, group: NodeGroup, pieces: tuple[tuple[int, int], ...]) -> NodeGroup:
        cores, gpus, memory_bytes = group.cores, group.gpus, group.memory_bytes
        for number, count in pieces:
            work = self.works[number]
            if work.shape.exclusive:
                cores = gpus = 0
                continue
            slots = count * slots_per_piece(work.shape)
            cores -= slots * max(1, work.shape.cores_per_slot)
            gpus -= slots * work.shape.gpus_per_slot
            memory_bytes -= min(memory_bytes, slots * work.shape.memory_bytes_per_slot)
        return replace(group, pieces=(*group.pieces, *pieces), cores=cores, gpus=gpus, memory_bytes=memory_bytes)


def _are_equal(items: Sequence[Item]) -> bool:
    """Whether all pieces are equal to the packing: of one item, or such that any of them may share a node."""
    sizes = {(it.cores, it.gpus, it.memory_bytes, it.exclusive, it.per_node_max) for it in items}
    return len(items) == 1 or (len(sizes) == 1 and items[0].per_node_max == UNBOUNDED)
