"""Find the cheapest packing of a few pieces by branch and bound.

Pieces are placed one by one, the most demanding first, on an open node or on a new one of each lot. A branch is cut
if it cannot cost less than the best so far. The bound: the rest costs at least its worth, less what the open nodes
may still take. The number of steps is limited, so the effort is the same every time; at the limit the best so far
is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodemanager.planner.packing.types import (
    Item,
    Load,
    Lot,
    PackingLimits,
    dominant_share,
    pieces_that_fit,
)

STEPS_MAX = 2000


def search(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    below: int | None = None,
) -> tuple[Load, ...] | None:
    """The cheapest packing of all pieces within the limits; None if none costs less than ``below``."""
    search_ = _Search(items, lots, fits, limits, below)
    search_.place(0, 0, 0)
    return search_.best


@dataclass(slots=True)
class _OpenNode:
    """An open node, and what is free on it."""

    lot: int
    cores: int
    gpus: int
    memory_bytes: int
    pieces: dict[int, int] = field(default_factory=dict)

    def state(self) -> tuple[object, ...]:
        return self.lot, self.cores, self.gpus, self.memory_bytes, tuple(sorted(self.pieces.items()))


@dataclass(slots=True)
class _Search:
    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    limits: PackingLimits
    below: int | None
    best: tuple[Load, ...] | None = None
    _order: list[int] = field(init=False)  # the item of each piece
    _rest: list[float] = field(init=False)  # the total worth of the pieces from here on
    _density: list[float] = field(init=False)  # the most that one of these pieces is worth per core
    _by_cost: list[list[int]] = field(init=False)  # by item: the lots that take a piece, the cheapest first
    _open: list[_OpenNode] = field(default_factory=list)
    _cores: int = 0  # free on open nodes
    _bought: int = 0  # open nodes that would be bought
    _count: list[int] = field(init=False)
    _price: int = 0
    _steps: int = 0

    def __post_init__(self) -> None:
        self._count = [lot.count for lot in self.lots]
        lots = sorted(range(len(self.lots)), key=lambda lot: (self.lots[lot].cost, lot))
        self._by_cost = [[lot for lot in lots if fits[lot]] for fits in self.fits]
        worth = [self._least_cost(number) for number in range(len(self.items))]
        self._order = [number for number in self._by_demand(worth) for _ in range(self.items[number].pieces)]
        self._rest = [0.0]
        self._density = [0.0]
        for number in reversed(self._order):
            self._rest.append(self._rest[-1] + worth[number])
            self._density.append(max(self._density[-1], worth[number] / self.items[number].cores))
        self._rest.reverse()
        self._density.reverse()

    def _by_demand(self, worth: list[float]) -> list[int]:
        numbers = [number for number, item in enumerate(self.items) if item.pieces]
        return sorted(numbers, key=lambda i: (sum(map(bool, self.fits[i])), -worth[i], -self.items[i].cores, i))

    def _least_cost(self, number: int) -> float:
        item = self.items[number]
        return min(
            (
                lot.cost * dominant_share(item, lot)
                for lot, fit in zip(self.lots, self.fits[number], strict=True)
                if fit and lot.count
            ),
            default=0.0,
        )

    def place(self, index: int, spent: int, first: int) -> None:
        """Place the piece with this index and all after it. Equal pieces are placed in the order of the nodes."""
        if self.below is not None and spent + self._lower_bound(index) >= self.below:
            return
        if index == len(self._order):
            self.below = spent
            self.best = tuple(Load(node.lot, 1, tuple(sorted(node.pieces.items()))) for node in self._open)
            return
        self._steps += 1
        if self._steps > STEPS_MAX:
            return
        number = self._order[index]
        follows = index + 1 < len(self._order) and self._order[index + 1] == number
        tried: set[tuple[object, ...]] = set()
        for place in range(first, len(self._open)):
            node = self._open[place]
            if not self._takes(node, number) or (state := node.state()) in tried:
                continue
            tried.add(state)
            self._put(node, number, 1)
            self.place(index + 1, spent, place if follows else 0)
            self._put(node, number, -1)
        for lot in self._lots_for(number):
            made = self.lots[lot]
            node = _OpenNode(lot, made.cores, made.gpus, made.memory_bytes)
            self._open_or_close(node, made, 1)
            self._put(node, number, 1)
            self.place(index + 1, spent + made.cost, len(self._open) - 1 if follows else 0)
            self._put(node, number, -1)
            self._open_or_close(node, made, -1)

    def _open_or_close(self, node: _OpenNode, made: Lot, way: int) -> None:
        """Open an empty node, or close it again."""
        if way > 0:
            self._open.append(node)
        else:
            self._open.pop()
        self._cores += way * node.cores
        self._bought += way * made.bought
        self._count[node.lot] -= way
        self._price += way * made.price

    def _lower_bound(self, index: int) -> float:
        taken_in = self._cores * self._density[index]
        # Slightly less, to allow for rounding errors.
        return max(0.0, self._rest[index] - taken_in) * 0.999_999

    def _lots_for(self, number: int) -> list[int]:
        return [lot for lot in self._by_cost[number] if self._count[lot] > 0 and self._allowed(self.lots[lot])]

    def _allowed(self, lot: Lot) -> bool:
        return not lot.bought or (self._bought < self.limits.nodes and self._price + lot.price <= self.limits.price)

    def _takes(self, node: _OpenNode, number: int) -> bool:
        item = self.items[number]
        if node.cores < item.cores or item.exclusive or not self.fits[number][node.lot]:
            return False
        if node.pieces.get(number, 0) >= item.per_node_max:
            return False
        return pieces_that_fit(item, node.cores, node.gpus, node.memory_bytes) > 0

    def _put(self, node: _OpenNode, number: int, pieces: int) -> None:
        item = self.items[number]
        self._cores -= node.cores
        if item.exclusive:
            whole = self.lots[node.lot]
            node.cores, node.gpus = (0, 0) if pieces > 0 else (whole.cores, whole.gpus)
        else:
            node.cores -= pieces * item.cores
            node.gpus -= pieces * item.gpus
            node.memory_bytes -= pieces * item.memory_bytes
        self._cores += node.cores
        had = node.pieces.pop(number, 0) + pieces
        if had:
            node.pieces[number] = had
