"""Greedy packings: by patterns, and plain best fit. They are quick, and the columns begin with them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter

from nodemanager.planner.packing.types import (
    MIXES,
    Effort,
    Item,
    Load,
    Lot,
    Packed,
    PackingLimits,
    dominant_share,
    pieces_that_fit,
    total_cost,
)

# Up to so many pairs of item and lot, all patterns are computed again when an item runs out.
PAIRS_REFRESHED_MAX = 2_000
STEPS_PER_FILLING, STEPS_PER_CHOICE = 8, 2  # a step takes about a microsecond, and as long as two looks at an item

_free_cores = attrgetter("cores")


def pack_by_patterns(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], worth: Sequence[float] | None = None
) -> Packed:
    """In each step take the node whose best filling is worth most for its cost, as often as there is work for it.

    ``worth``: of a piece of each item. Without it, the least that a piece costs alone: its dominant share of a
    node, times the node's cost.
    """
    packing = _PatternPacking(items, lots, fits, worth)
    loads = tuple(packing.loads())
    return Packed(loads, tuple(packing.left), packing.steps)


# --- by patterns ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pattern:
    value: float  # the worth of its pieces, divided by the node's cost
    pieces: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _PatternPacking:
    """A greedy packing by patterns, while it is computed."""

    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    worth: Sequence[float] | None
    steps: int = 0
    left: list[int] = field(init=False)
    _count: list[int] = field(init=False)
    _worth: Sequence[float] = field(init=False)
    _cores: list[int] = field(init=False)  # of a piece of each item, and so on: the innermost loop reads them
    _bytes: list[int] = field(init=False)
    _most: list[int] = field(init=False)
    _scarce: list[list[int]] = field(init=False)  # by lot: items that take a whole node or want GPUs
    _plain: list[list[int]] = field(init=False)  # by lot: the others, from the least memory per core to the most
    _least: list[tuple[int, int]] = field(init=False)  # by lot: the fewest cores and bytes of those

    def __post_init__(self) -> None:
        items, numbers = self.items, range(len(self.items))
        self.left = [item.pieces for item in items]
        self._cores = [item.cores for item in items]
        self._bytes = [item.memory_bytes for item in items]
        self._most = [item.per_node_max for item in items]
        self._count = [lot.count for lot in self.lots]
        self._worth = self.worth if self.worth is not None else [self._least_cost(number) for number in numbers]
        by_memory = sorted(numbers, key=lambda i: (items[i].memory_bytes / items[i].cores, items[i].cores, i))
        scarce = sorted(
            (i for i in numbers if items[i].exclusive or items[i].gpus),
            key=lambda i: (not items[i].exclusive, -items[i].gpus, -items[i].cores, i),
        )
        plain = [i for i in by_memory if not items[i].exclusive and not items[i].gpus]
        self._scarce = [[i for i in scarce if self.fits[i][lot]] for lot in range(len(self.lots))]
        self._plain = [[i for i in plain if self.fits[i][lot]] for lot in range(len(self.lots))]
        self._least = [self._least_sizes(numbers) for numbers in self._plain]
        self.steps = len(items) * (len(self.lots) + 4) // 2

    def _least_sizes(self, numbers: Sequence[int]) -> tuple[int, int]:
        cores, memory = map(self._cores.__getitem__, numbers), map(self._bytes.__getitem__, numbers)
        return min(cores, default=0), min(memory, default=0)

    def loads(self) -> Iterator[Load]:
        """Use the best pattern as often as possible, then the next, until nothing more fits."""
        refresh = len(self.items) * len(self.lots) <= PAIRS_REFRESHED_MAX
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
            if waiting and waiting[0] < (-pattern.value, lot):
                heappush(waiting, (-pattern.value, lot))
                continue
            nodes = min(self.left[item] // pieces for item, pieces in pattern.pieces)
            nodes = min(nodes, self._count[lot])
            yield self._take(lot, nodes, pattern)
            if self._count[lot] > 0:
                heappush(waiting, (-pattern.value, lot))
            if refresh and not all(self.left[item] for item, _ in pattern.pieces):
                # Without that item the pattern of another lot may have become better.
                patterns.clear()
                waiting = [(-float("inf"), lot) for _, lot in waiting]
                heapify(waiting)

    def _take(self, lot: int, nodes: int, pattern: _Pattern) -> Load:
        self._count[lot] -= nodes
        for item, pieces in pattern.pieces:
            self.left[item] -= nodes * pieces
        return Load(lot, nodes, pattern.pieces)

    def _least_cost(self, number: int) -> float:
        item = self.items[number]
        lots = (lot for lot, fit in zip(self.lots, self.fits[number], strict=True) if fit and lot.count)
        if item.exclusive or item.gpus:
            return min(((lot.cost + 1) * dominant_share(item, lot) for lot in lots), default=0.0)
        cores, memory = item.cores, item.memory_bytes  # the same without calls: most items are so
        return min(
            ((lot.cost + 1) * max(cores / lot.cores, memory / max(1, lot.memory_bytes)) for lot in lots),
            default=0.0,
        )

    def _pattern(self, lot: int) -> _Pattern:
        """A good filling of one node with the pieces that are left."""
        for looks, item in enumerate(self._scarce[lot]):
            if self.items[item].exclusive and self.left[item] > 0:
                self.steps += STEPS_PER_FILLING + looks // 4
                return _Pattern(self._worth[item] / (self.lots[lot].cost + 1), ((item, 1),))
        chosen = self._filling(lot)
        worth = sum(self._worth[item] * pieces for item, pieces in chosen.items())
        return _Pattern(worth / (self.lots[lot].cost + 1), tuple(sorted(chosen.items())))

    def _filling(self, lot: int) -> dict[int, int]:
        """Fill one node: items with GPUs first, then the others so that cores and memory run out together.

        While the rest of the node has at least as much memory per core as the empty node, the item with the most
        memory per core is taken, else the one with the least. Among equals the largest comes first.
        """
        left, of_cores, of_bytes = self.left, self._cores, self._bytes
        chosen, cores, memory_bytes = self._with_gpus(lot)
        order = self._plain[lot]
        whole_cores, whole_bytes = self.lots[lot].cores, self.lots[lot].memory_bytes
        least_cores, least_bytes = self._least[lot]
        low, high, gone = 0, len(order) - 1, 0
        while low <= high and cores >= least_cores and memory_bytes >= least_bytes:
            rich = memory_bytes * whole_cores >= whole_bytes * cores
            number = order[high] if rich else order[low]
            if not left[number]:
                gone += 1
            elif (its_cores := of_cores[number]) <= cores and (its_bytes := of_bytes[number]) <= memory_bytes:
                had = chosen.get(number, 0)
                most = self._pieces_more(number, had, cores, memory_bytes)
                if most > 0:
                    if rich is (its_bytes * whole_cores > whole_bytes * its_cores):
                        most = 1  # it changes the balance: check again after one
                    chosen[number] = had + most
                    cores -= most * its_cores
                    memory_bytes -= most * its_bytes
                    continue
            if rich:
                high -= 1
            else:
                low += 1
        looks = low + len(order) - 1 - high
        self.steps += STEPS_PER_FILLING + STEPS_PER_CHOICE * len(chosen) + looks // 2
        if gone > 16 and 4 * gone > len(order):
            self._plain[lot] = [number for number in order if left[number] > 0]
            self._least[lot] = self._least_sizes(self._plain[lot])
        return chosen

    def _pieces_more(self, number: int, had: int, cores: int, memory_bytes: int) -> int:
        """How many more pieces of an item without GPUs a node takes, which has some already."""
        most = min(self.left[number] - had, self._most[number] - had, cores // self._cores[number])
        its_bytes = self._bytes[number]
        return min(most, memory_bytes // its_bytes) if its_bytes else most

    def _with_gpus(self, lot: int) -> tuple[dict[int, int], int, int]:
        """The pieces with GPUs that one node takes, and what cores and memory they leave."""
        whole = self.lots[lot]
        cores, gpus, memory_bytes = whole.cores, whole.gpus, whole.memory_bytes
        chosen: dict[int, int] = {}
        for number in self._scarce[lot]:
            item = self.items[number]
            if self.left[number] <= 0 or item.exclusive:
                continue
            pieces = min(self.left[number], item.per_node_max, pieces_that_fit(item, cores, gpus, memory_bytes))
            if pieces > 0:
                chosen[number] = pieces
                cores -= pieces * item.cores
                gpus -= pieces * item.gpus
                memory_bytes -= pieces * item.memory_bytes
        return chosen, cores, memory_bytes


# --- best fit ---------------------------------------------------------------------------------------------


def pack_best_fit(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    *,
    by_share: bool,
    below: float = float("inf"),
    order: Sequence[int] | None = None,
) -> Packed | None:
    """Plain best fit, the largest pieces first: onto the open node with the fewest free cores, else onto a new one.

    A new node is of the cheapest lot that takes the piece; ``by_share``: of the one where its share costs least.
    None if it costs no less than ``below``. ``order``: of the items, instead of the largest first.
    """
    packing = _BestFit(items, lots, fits, by_share, below)
    loads = tuple(packing.loads(order if order is not None else largest_first(items, lots, fits)))
    return Packed(loads, tuple(packing.left)) if packing.cost < below else None


def largest_first(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the items, by the largest part of a node that a piece takes."""
    largest = [
        max((dominant_share(item, lot) for lot, fit in zip(lots, row, strict=True) if fit), default=0.0)
        for item, row in zip(items, fits, strict=True)
    ]
    return sorted(range(len(items)), key=lambda i: (-items[i].exclusive, -largest[i], -items[i].cores, i))


@dataclass(order=True, slots=True)
class _Open:
    """Open nodes with equal contents, and the free resources of each. Sorted by free cores."""

    cores: int
    number: int
    nodes: int = field(compare=False)
    lot: int = field(compare=False)
    memory_bytes: int = field(compare=False)
    gpus: int = field(compare=False)
    pieces: tuple[tuple[int, int], ...] = field(compare=False)


@dataclass(slots=True)
class _BestFit:
    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    by_share: bool
    below: float
    cost: int = 0
    left: list[int] = field(init=False)
    _count: list[int] = field(init=False)
    _open: list[_Open] = field(default_factory=list)  # that still have free cores, the fullest first
    _full: list[_Open] = field(default_factory=list)
    _opened: int = 0

    def __post_init__(self) -> None:
        self.left = [item.pieces for item in self.items]
        self._count = [lot.count for lot in self.lots]

    def loads(self, order: Iterable[int]) -> Iterator[Load]:
        """Place all pieces, item by item, and tell what lies on the nodes."""
        for number in order:
            if not self.items[number].exclusive:
                self._join(number)
            self._start(number)
            if self.cost >= self.below:
                return
        for group in sorted((*self._full, *self._open), key=lambda it: it.number):
            yield Load(group.lot, group.nodes, tuple(sorted(group.pieces)))

    def _join(self, number: int) -> None:
        """Put pieces of an item onto open nodes."""
        item, fits = self.items[number], self.fits[number]
        changed: list[_Open] = []
        first = bisect_left(self._open, item.cores, key=_free_cores)
        kept = self._open[:first]
        memory_bytes, gpus = item.memory_bytes, item.gpus
        for place in range(first, len(self._open)):
            if not self.left[number]:
                kept += self._open[place:]
                break
            group = self._open[place]
            if group.memory_bytes < memory_bytes or group.gpus < gpus or not fits[group.lot]:
                kept.append(group)
                continue
            each = min(
                item.per_node_max,
                pieces_that_fit(item, group.cores, group.gpus, group.memory_bytes),
                self.left[number],
            )
            nodes = min(group.nodes, self.left[number] // each)
            changed.append(self._with(group, nodes, number, each))
            group.nodes -= nodes
            if group.nodes and self.left[number]:
                changed.append(self._with(group, 1, number, self.left[number]))
                group.nodes -= 1
            if group.nodes:
                kept.append(group)
        self._open = kept
        self._keep(changed)

    def _start(self, number: int) -> None:
        """Open nodes for the rest of an item."""
        item = self.items[number]
        while self.left[number]:
            lots = (lot for lot, fit in enumerate(self.fits[number]) if fit and self._count[lot])
            lot = min(lots, key=lambda lot: (self._cost(item, lot), -self.lots[lot].cores, lot), default=None)
            if lot is None:
                return
            each = min(self.fits[number][lot], item.per_node_max)
            while self.left[number] and self._count[lot]:
                each = min(each, self.left[number])
                nodes = min(self._count[lot], self.left[number] // each)
                size = self.lots[lot]
                empty = _Open(size.cores, 0, nodes, lot, size.memory_bytes, size.gpus, ())
                self._count[lot] -= nodes
                self.cost += nodes * size.cost
                self._keep([self._with(empty, nodes, number, each)])

    def _cost(self, item: Item, lot: int) -> float:
        cost = float(self.lots[lot].cost)
        return cost * dominant_share(item, self.lots[lot]) if self.by_share else cost

    def _with(self, group: _Open, nodes: int, number: int, each: int) -> _Open:
        item = self.items[number]
        self.left[number] -= nodes * each
        self._opened += 1
        cores = 0 if item.exclusive else group.cores - each * item.cores
        return _Open(
            cores,
            self._opened,
            nodes,
            group.lot,
            group.memory_bytes - each * item.memory_bytes,
            group.gpus - each * item.gpus,
            (*group.pieces, (number, each)),
        )

    def _keep(self, groups: Sequence[_Open]) -> None:
        for group in groups:
            if group.cores:
                insort(self._open, group)
            else:
                self._full.append(group)


# --- pack few pieces by best fit with the items in other orders, and keep the cheapest --------------------
#
# Best fit depends on the order of the items. Where a node is large for the work, another order may save a whole
# node, and patterns do not show which. Few pieces are packed so quickly that many orders can be tried: the
# largest first by several mixes of cores and memory, by memory per core, and fixed shuffles.


PIECES_MAX = 200  # of more pieces, one node more is a small part of the cost
STEPS_MAX = 5_000  # of all orders together
STEPS_PER_ITEM = 4  # of one packing, and one for each lot
SHUFFLES = 24
# A shuffle sorts by the powers of a number, different for each shuffle, modulo a prime.
PRIME, FACTOR = 65_537, 7_919


def pack_in_orders(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort,
    below: int,
) -> tuple[Load, ...] | None:
    """The cheapest best-fit packing of all pieces within the limits; None if none costs less than ``below``."""
    if sum(item.pieces for item in items) > PIECES_MAX:
        return None
    each = len(items) * (STEPS_PER_ITEM + len(lots))
    end = max(0, effort.left - STEPS_MAX)
    best: tuple[Load, ...] | None = None
    tried: set[tuple[int, ...]] = set()
    for order in _orders(items):
        if order in tried:
            continue
        tried.add(order)
        for by_share in (True, False) if len(lots) > 1 else (False,):
            if effort.left - each < end:
                return best
            effort.left -= each
            found = pack_best_fit(items, lots, fits, by_share=by_share, below=below, order=order)
            if found is not None and not any(found.left) and limits.allow(found.loads, lots):
                best, below = found.loads, total_cost(found.loads, lots)
    return best


def _orders(items: Sequence[Item]) -> Iterator[tuple[int, ...]]:
    """Orders of the items. Some may be equal."""
    numbers = range(len(items))
    cores = max(1, sum(item.pieces * item.cores for item in items))
    memory = max(1, sum(item.pieces * item.memory_bytes for item in items))

    def scarce(number: int) -> tuple[bool, int]:
        return not items[number].exclusive, -items[number].gpus

    def size(number: int, part: int) -> float:
        return (MIXES - part) * items[number].cores / cores + part * items[number].memory_bytes / memory

    def ratio(number: int) -> float:
        return items[number].memory_bytes / items[number].cores

    for part in range(MIXES, -1, -1):
        yield tuple(sorted(numbers, key=lambda i: (scarce(i), -size(i, part), i)))
    for way in (-1, 1):
        yield tuple(sorted(numbers, key=lambda i: (scarce(i), way * ratio(i), i)))
    for number in range(1, SHUFFLES + 1):
        yield tuple(sorted(numbers, key=lambda i: pow(FACTOR * number, i + 1, PRIME)))
