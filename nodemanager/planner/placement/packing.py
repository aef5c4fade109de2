"""Work, in pieces of so many kinds, onto empty nodes of so many kinds, at the least cost.

Nothing here knows jobs, slots or time. Counts go in and counts come out: a :class:`Load` is a number of nodes that
are loaded alike. So the effort goes by kinds of work and kinds of nodes, not by jobs and nodes.

Few pieces are packed at the least cost there is (``smallest``). Many are packed by patterns: again and again the
kind of node is taken whose best filling saves most for what it costs, as often as the work lasts; the last few
pieces, where a choice weighs most, are then packed anew at the least cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from nodemanager.planner.placement import packing_exact
from nodemanager.planner.placement.packing_types import (
    Item,
    Load,
    Lot,
    Packed,
    PackingLimits,
    dominant_share,
    pieces_that_fit,
)
from nodemanager.planner.state.frozen import replace

# Up to so many pieces the cheapest packing of all is looked for.
PIECES_EXACT = 10
# What a node costs beside its price, in shares of the dearest: tried in turn where nodes run short.
NODE_PENALTIES = (0.0, 0.25, 1.0, 4.0, 64.0)


def pack(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], limits: PackingLimits
) -> Packed:
    """All pieces at the least cost, or as many as the limits allow.

    ``fits[item][lot]``: the most pieces of an item that an empty node of the lot takes; 0 where it suits none.
    """
    if sum(item.pieces for item in items) <= PIECES_EXACT:
        loads = packing_exact.search(items, lots, fits, limits)
        if loads is not None:
            return Packed(loads, (0,) * len(items))
    dearest = max((lot.cost for lot in lots), default=0)
    packed = Packed((), tuple(item.pieces for item in items))
    for penalty in NODE_PENALTIES:
        dear = [replace(lot, cost=lot.cost + int(penalty * dearest)) if lot.bought else lot for lot in lots]
        packed = _by_patterns(items, dear, fits)
        if limits.allow(packed.loads, lots):
            better = _improved(packed, items, dear, fits)
            return better if limits.allow(better.loads, lots) else packed
    return _cut(packed, lots, limits)


def _improved(packed: Packed, items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    """The last few nodes, packed anew at the least cost."""
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
    found = packing_exact.search(few, rest, fits, PackingLimits(sum(again), spent * 2), below=spent)
    return packed if found is None else Packed((*kept, *found), packed.left)


def fill(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    """As much as these nodes take, without regard to limits: they are paid for."""
    return _by_patterns(items, lots, fits)


def _cut(packed: Packed, lots: Sequence[Lot], limits: PackingLimits) -> Packed:
    """The first of the loads, as far as the limits go."""
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


def _by_patterns(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    bench = _Bench(items, lots, fits)
    return Packed(tuple(bench.loads()), tuple(bench.left))


@dataclass(frozen=True, slots=True)
class _Pattern:
    worth: float  # what it saves for each unit of what it costs
    pieces: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Bench:
    """The packing while it is made.

    A piece is worth what it costs at the least to have it done, taken alone: its share of a node by what it takes
    most of. A pattern is worth what its pieces are, over what its node costs.
    """

    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    left: list[int] = field(init=False)
    _count: list[int] = field(init=False)
    _worth: list[float] = field(init=False)
    _scarce: list[list[int]] = field(init=False)  # by lot: what takes a node whole, or wants GPUs
    _plain: list[list[int]] = field(init=False)  # by lot: the rest, from many cores to much memory

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
        """The best pattern first, as often as it goes; until nothing is left that fits anywhere."""
        waiting = [(-float("inf"), lot) for lot in range(len(self.lots)) if self._count[lot] > 0]
        patterns: dict[int, _Pattern] = {}
        heapify(waiting)
        while waiting:
            _, lot = heappop(waiting)
            pattern = patterns.get(lot)
            if pattern is None or not all(self.left[item] >= pieces for item, pieces in pattern.pieces):
                pattern = patterns[lot] = self._pattern(lot)
            if not pattern.pieces:
                continue  # what is left fits none of it, and there is never more
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
        """GPUs first; then so that cores and memory run out together.

        Work with much memory is taken while the node has at least as much memory for each core as when it was
        empty, work with little memory otherwise; the largest first among those that are alike.
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
                pieces = 1  # it turns the balance: look again
            chosen[number] = had + pieces
            cores -= pieces * item.cores
            memory_bytes -= pieces * item.memory_bytes
        return chosen
