"""Pack pieces of work onto empty nodes at the least cost: vector bin packing with several types of bins.

Nothing here knows jobs, slots or time. Counts go in and counts come out: a :class:`Load` is a number of nodes with
equal contents. So the effort depends on the kinds of work and of nodes, not on their numbers.

Few pieces are packed optimally (``exact``). Many are packed greedily by patterns. In each step the kind of
node is taken whose best filling is worth most for its cost, as often as there is work for it. The last few pieces,
for which the choice matters most, are then repacked optimally.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from nodemanager.planner.packing import exact
from nodemanager.planner.packing.types import (
    Item,
    Load,
    Lot,
    Packed,
    PackingLimits,
    dominant_share,
    pieces_that_fit,
)
from nodemanager.planner.state.frozen import replace

# Up to so many pieces are packed optimally.
PIECES_EXACT = 10
# Penalties for each node, as multiples of the dearest cost: tried in turn if there are not enough nodes.
NODE_PENALTIES = (0.0, 0.25, 1.0, 4.0, 64.0)


def pack(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], limits: PackingLimits
) -> Packed:
    """Pack all pieces at the least cost, or as many as the limits allow.

    ``fits[item][lot]``: the most pieces of an item that an empty node of the lot takes; 0 if the lot does not suit.
    """
    if sum(item.pieces for item in items) <= PIECES_EXACT:
        loads = exact.search(items, lots, fits, limits)
        if loads is not None:
            return Packed(loads, (0,) * len(items))
    dearest = max((lot.cost for lot in lots), default=0)
    packed = Packed((), tuple(item.pieces for item in items))
    for penalty in NODE_PENALTIES:
        dear = [replace(lot, cost=lot.cost + int(penalty * dearest)) if lot.bought else lot for lot in lots]
        packed = _pack_by_patterns(items, dear, fits)
        if limits.allow(packed.loads, lots):
            better = _repack_last(packed, items, dear, fits)
            return better if limits.allow(better.loads, lots) else packed
    return _cut_to_limits(packed, lots, limits)


def _repack_last(
    packed: Packed, items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]
) -> Packed:
    """Repack the last few nodes optimally."""
    kept = list(packed.loads)
    again = [0] * len(items)
    free = [lot.count - sum(load.nodes for load in kept if load.lot == number) for number, lot in enumerate(lots)]
    spent = 0
    while kept:
        load = kept[-1]
        each = sum(pieces for _, pieces in load.pieces)
        nodes = min(load.nodes, (PIECES_EXACT - sum(again)) // each)
        if nodes <= 0:
            break
        for item, pieces in load.pieces:
            again[item] += nodes * pieces
        free[load.lot] += nodes
        spent += nodes * lots[load.lot].cost
        kept[-1:] = [replace(load, nodes=load.nodes - nodes)] if nodes < load.nodes else []
    if not spent:
        return packed
    few = [replace(item, pieces=pieces) for item, pieces in zip(items, again, strict=True)]
    rest = [replace(lot, count=count) for lot, count in zip(lots, free, strict=True)]
    found = exact.search(few, rest, fits, PackingLimits(sum(again), spent * 2), below=spent)
    return packed if found is None else Packed((*kept, *found), packed.left)


def fill(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    """Pack as much as these nodes take, ignoring limits: they are paid for."""
    return _pack_by_patterns(items, lots, fits)


def _cut_to_limits(packed: Packed, lots: Sequence[Lot], limits: PackingLimits) -> Packed:
    """Keep the first loads, as far as the limits allow."""
    nodes, price = limits.nodes, limits.price
    kept: list[Load] = []
    left = list(packed.left)
    for load in packed.loads:
        each = lots[load.lot].price
        can = min(load.nodes, nodes, price // each if each else nodes) if lots[load.lot].bought else load.nodes
        if can > 0:
            kept.append(replace(load, nodes=can))
            nodes -= can
            price -= can * each
        for item, pieces in load.pieces:
            left[item] += (load.nodes - max(0, can)) * pieces
    return Packed(tuple(kept), tuple(left))


# --- by patterns ------------------------------------------------------------------------------------------


def _pack_by_patterns(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    bench = _PatternPacking(items, lots, fits)
    return Packed(tuple(bench.loads()), tuple(bench.left))


@dataclass(frozen=True, slots=True)
class _Pattern:
    worth: float  # of its pieces, divided by the node's cost
    pieces: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _PatternPacking:
    """A greedy packing by patterns, while it is computed.

    The worth of a piece is the least it would cost alone: its dominant share of a node, times the node's cost. The
    worth of a pattern is that of its pieces, divided by the cost of the node.
    """

    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    left: list[int] = field(init=False)
    _count: list[int] = field(init=False)
    _worth: list[float] = field(init=False)
    _scarce: list[list[int]] = field(init=False)  # by lot: items that take a whole node or want GPUs
    _plain: list[list[int]] = field(init=False)  # by lot: the others, from the least memory per core to the most

    def __post_init__(self) -> None:
        numbers = range(len(self.items))
        self.left = [item.pieces for item in self.items]
        self._count = [lot.count for lot in self.lots]
        self._worth = [self._least_cost(number) for number in numbers]
        by_memory = sorted(numbers, key=lambda i: (self._memory_per_core(i), self.items[i].cores, i))
        scarce = sorted(
            (i for i in numbers if self.items[i].exclusive or self.items[i].gpus),
            key=lambda i: (not self.items[i].exclusive, -self.items[i].gpus, -self.items[i].cores, i),
        )
        plain = [i for i in by_memory if not self.items[i].exclusive and not self.items[i].gpus]
        self._scarce = [[i for i in scarce if self.fits[i][lot]] for lot in range(len(self.lots))]
        self._plain = [[i for i in plain if self.fits[i][lot]] for lot in range(len(self.lots))]

    def loads(self) -> Iterator[Load]:
        """Use the best pattern as often as possible, then the next, until nothing more fits."""
        waiting = [(-float("inf"), lot) for lot in range(len(self.lots)) if self._count[lot] > 0]
        patterns: dict[int, _Pattern] = {}
        heapify(waiting)
        while waiting:
            _, lot = heappop(waiting)
            pattern = patterns.get(lot)
            if pattern is None or not all(self.left[item] >= pieces for item, pieces in pattern.pieces):
                pattern = patterns[lot] = self._pattern(lot)
            if not pattern.pieces:
                continue  # nothing left fits this lot, now or later
            if waiting and waiting[0] < (-pattern.worth, lot):
                heappush(waiting, (-pattern.worth, lot))
                continue
            nodes = min(self.left[item] // pieces for item, pieces in pattern.pieces)
            nodes = min(nodes, self._count[lot])
            yield self._take(lot, nodes, pattern)
            if self._count[lot] > 0:
                heappush(waiting, (-pattern.worth, lot))

    def _take(self, lot: int, nodes: int, pattern: _Pattern) -> Load:
        self._count[lot] -= nodes
        for item, pieces in pattern.pieces:
            self.left[item] -= nodes * pieces
        return Load(lot, nodes, pattern.pieces)

    def _least_cost(self, number: int) -> float:
        item = self.items[number]
        costs = [
            (lot.cost + 1) * dominant_share(item, lot)
            for lot, fit in zip(self.lots, self.fits[number], strict=True)
            if fit and lot.count
        ]
        return min(costs, default=0.0)

    def _memory_per_core(self, number: int) -> float:
        return self.items[number].memory_bytes / self.items[number].cores

    def _pattern(self, lot: int) -> _Pattern:
        """A good filling of one node with what is left."""
        for item in self._scarce[lot]:
            if self.items[item].exclusive and self.left[item] > 0:
                return _Pattern(self._worth[item] / (self.lots[lot].cost + 1), ((item, 1),))
        chosen = self._filling(lot)
        worth = sum(self._worth[item] * pieces for item, pieces in chosen.items())
        return _Pattern(worth / (self.lots[lot].cost + 1), tuple(sorted(chosen.items())))

    def _filling(self, lot: int) -> dict[int, int]:
        """Fill one node: items with GPUs first, then the others so that cores and memory run out together.

        While the rest of the node has at least as much memory per core as the empty node, the item with the most
        memory per core is taken, else the one with the least. Among equals the largest comes first.
        """
        items, left, whole = self.items, self.left, self.lots[lot]
        cores, gpus, memory_bytes = whole.cores, whole.gpus, whole.memory_bytes
        chosen: dict[int, int] = {}
        for number in self._scarce[lot]:
            item = items[number]
            if left[number] <= 0 or item.exclusive:
                continue
            pieces = min(left[number], item.per_node_max, pieces_that_fit(item, cores, gpus, memory_bytes))
            if pieces > 0:
                chosen[number] = pieces
                cores -= pieces * item.cores
                gpus -= pieces * item.gpus
                memory_bytes -= pieces * item.memory_bytes
        order = self._plain[lot]
        low, high = 0, len(order) - 1
        while low <= high and cores > 0:
            rich = memory_bytes * whole.cores >= whole.memory_bytes * cores
            number = order[high] if rich else order[low]
            item = items[number]
            had = chosen.get(number, 0)
            pieces = min(left[number], item.per_node_max) - had
            if pieces > 0:
                pieces = min(pieces, cores // item.cores)
                if item.memory_bytes and pieces > 0:
                    pieces = min(pieces, memory_bytes // item.memory_bytes)
            if pieces <= 0:
                if rich:
                    high -= 1
                else:
                    low += 1
                continue
            if rich is (item.memory_bytes * whole.cores > whole.memory_bytes * item.cores):
                pieces = 1  # it changes the balance: check again after one
            chosen[number] = had + pieces
            cores -= pieces * item.cores
            memory_bytes -= pieces * item.memory_bytes
        return chosen
