"""The cheapest packing of a few pieces, found by trying: branch and bound.

Pieces are placed one by one, the most demanding first, on a node that is open or on a new one of each lot. A branch
is given up where it cannot end below the best so far: what is left costs at least what it is worth, less what the
open nodes may still take in. The effort has a bound, counted in steps, so it is the same every time; where it is
reached, the best so far stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodemanager.planner.placement.packing_types import (
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
    """The cheapest packing of all pieces within the limits, of those that cost less than ``below``; or None."""
    search_ = _Search(items, lots, fits, limits, below)
    search_.place(0, 0, 0)
    return search_.best


@dataclass(slots=True)
class _Node:
    """One that is open, and what is left on it."""

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
    _rest: list[float] = field(init=False)  # what the pieces from here on are worth
    _density: list[float] = field(init=False)  # the most that a core may be worth to those from here on
    _by_cost: list[list[int]] = field(init=False)  # the lots that take a piece of each item, the cheapest first
    _open: list[_Node] = field(default_factory=list)
    _cores: int = 0  # free on those that are open
    _bought: int = 0  # of them
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
        """Place the piece with this index and all after it. Equal pieces go in the order of the nodes."""
        if self.below is not None and spent + self._least_more(index) >= self.below:
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
        for lot in self._new(number):
            made = self.lots[lot]
            node = _Node(lot, made.cores, made.gpus, made.memory_bytes)
            self._turn(node, made, 1)
            self._put(node, number, 1)
            self.place(index + 1, spent + made.cost, len(self._open) - 1 if follows else 0)
            self._put(node, number, -1)
            self._turn(node, made, -1)

    def _turn(self, node: _Node, made: Lot, way: int) -> None:
        """Open an empty node, or close it again."""
        if way > 0:
            self._open.append(node)
        else:
            self._open.pop()
        self._cores += way * node.cores
        self._bought += way * made.bought
        self._count[node.lot] -= way
        self._price += way * made.price

    def _least_more(self, index: int) -> float:
        taken_in = self._cores * self._density[index]
        # A hair less, for what floats lose.
        return max(0.0, self._rest[index] - taken_in) * 0.999_999

    def _new(self, number: int) -> list[int]:
        return [lot for lot in self._by_cost[number] if self._count[lot] > 0 and self._allowed(self.lots[lot])]

    def _allowed(self, lot: Lot) -> bool:
        return not lot.bought or (self._bought < self.limits.nodes and self._price + lot.price <= self.limits.price)

    def _takes(self, node: _Node, number: int) -> bool:
        item = self.items[number]
        if node.cores < item.cores or item.exclusive or not self.fits[number][node.lot]:
            return False
        if node.pieces.get(number, 0) >= item.per_node_max:
            return False
        return pieces_that_fit(item, node.cores, node.gpus, node.memory_bytes) > 0

    def _put(self, node: _Node, number: int, pieces: int) -> None:
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
