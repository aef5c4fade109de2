"""Find the cheapest packing of a few pieces by branch and bound.

Pieces are placed one by one, the most demanding first, on an open node or on a new one of each lot. A branch is cut
if it cannot cost less than the best so far. The bound, for each resource alone: the rest costs at least its worth,
less what the open nodes may still take. The number of steps is limited, so the effort is the same every time. At
the limit the best so far is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from nodemanager.planner.packing.types import Effort, Item, Load, Lot, PackingLimits, pieces_that_fit

STEPS_MAX = 30_000  # of one search: each node or lot that is tried for a piece is one


def search(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort,
    below: int | None = None,
    enough: float = 0.0,
    steps_max: int = STEPS_MAX,
    worth: Sequence[float] = (),
) -> tuple[Load, ...] | None:
    """The cheapest packing of all pieces within the limits; None if none costs less than ``below``.

    The search ends at a packing that costs no more than ``enough``. ``worth``: of a piece of each item, if
    known; no contents of a node are worth more than the node costs.
    """
    search_ = _Search(items, lots, fits, limits, below, enough, worth, min(effort.left, steps_max))
    search_.place(0, 0, 0)
    effort.left -= search_.steps
    return search_.best


@dataclass(slots=True)
class _OpenNode:
    """An open node, and its free resources."""

    lot: int
    cores: int
    gpus: int
    memory_bytes: int
    slack: float  # its cost, less the worth of its contents
    pieces: dict[int, int] = field(default_factory=dict)

    def state(self) -> tuple[object, ...]:
        return self.lot, self.cores, self.gpus, self.memory_bytes, tuple(sorted(self.pieces.items()))


Sizes = tuple[int, int, int]  # cores, memory, GPUs


@dataclass(slots=True)
class _Search:
    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    limits: PackingLimits
    below: int | None
    enough: float
    worth: Sequence[float]
    steps_max: int
    steps: int = 0
    best: tuple[Load, ...] | None = None
    _order: list[int] = field(init=False)  # the item of each piece
    _rest: list[list[float]] = field(init=False)  # by resource: the total worth of the pieces from here on
    _density: list[list[float]] = field(init=False)  # the most that one of these pieces is worth for its size
    _worth_rest: list[float] = field(init=False)  # the same by the worth that was given
    _worth_density: list[float] = field(init=False)
    _by_cost: list[list[int]] = field(init=False)  # by item: the lots that take a piece, the cheapest first
    _open: list[_OpenNode] = field(default_factory=list)
    _bought: int = 0  # open nodes that would be bought
    _count: list[int] = field(init=False)
    _price: int = 0

    def __post_init__(self) -> None:
        self._count = [lot.count for lot in self.lots]
        lots = sorted(range(len(self.lots)), key=lambda lot: (self.lots[lot].cost, lot))
        self._by_cost = [[lot for lot in lots if fits[lot]] for fits in self.fits]
        worth = [[self._least_cost(number, resource) for number in range(len(self.items))] for resource in range(3)]
        self._order = [
            number
            for number in self._by_demand([max(of) for of in zip(*worth, strict=True)])
            for _ in range(self.items[number].pieces)
        ]
        self._rest, self._density = [], []
        for resource in range(3):
            rest, density = [0.0], [0.0]
            for number in reversed(self._order):
                rest.append(rest[-1] + worth[resource][number])
                size = _sizes(self.items[number])[resource]
                of_size = worth[resource][number] / size if size and not self.items[number].exclusive else 0.0
                density.append(max(density[-1], of_size))
            self._rest.append(rest[::-1])
            self._density.append(density[::-1])
        self._worth_rest, self._worth_density = [0.0], [0.0]
        for number in reversed(self._order) if self.worth else ():
            of = self.worth[number]
            self._worth_rest.append(self._worth_rest[-1] + of)
            of_core = 0.0 if self.items[number].exclusive else of / self.items[number].cores
            self._worth_density.append(max(self._worth_density[-1], of_core))
        self._worth_rest.reverse()
        self._worth_density.reverse()

    def _by_demand(self, worth: Sequence[float]) -> list[int]:
        numbers = [number for number, item in enumerate(self.items) if item.pieces]
        return sorted(numbers, key=lambda i: (sum(map(bool, self.fits[i])), -worth[i], -self.items[i].cores, i))

    def _least_cost(self, number: int, resource: int) -> float:
        """The least that a piece's share of one resource costs."""
        item = self.items[number]
        size = _sizes(item)[resource]
        return min(
            (
                float(lot.cost) if item.exclusive else lot.cost * size / _sizes(lot)[resource]
                for lot, fit in zip(self.lots, self.fits[number], strict=True)
                if fit and lot.count and (size or item.exclusive)
            ),
            default=0.0,
        )

    def place(self, index: int, spent: int, first: int) -> None:
        """Place the piece with this index and all after it. Equal pieces are placed in the order of the nodes."""
        self.steps += 5 + len(self._open)
        if self.below is not None and (self.below <= self.enough or spent + self._least(index) >= self.below):
            return
        if index == len(self._order):
            self.below = spent
            self.best = tuple(Load(node.lot, 1, tuple(sorted(node.pieces.items()))) for node in self._open)
            return
        number = self._order[index]
        follows = index + 1 < len(self._order) and self._order[index + 1] == number
        tried: set[tuple[object, ...]] = set()
        for place in range(first, len(self._open)):
            node = self._open[place]
            self.steps += 3
            if not self._takes(node, number) or (state := node.state()) in tried:
                continue
            if self.steps > self.steps_max:
                return
            tried.add(state)
            self._put(node, number, 1)
            self.place(index + 1, spent, place if follows else 0)
            self._put(node, number, -1)
        for lot in self._by_cost[number]:
            if self._count[lot] <= 0 or not self._allowed(self.lots[lot]):
                continue
            self.steps += 3
            if self.steps > self.steps_max:
                return
            made = self.lots[lot]
            node = _OpenNode(lot, made.cores, made.gpus, made.memory_bytes, float(made.cost))
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
        self._bought += way * made.bought
        self._count[node.lot] -= way
        self._price += way * made.price

    def _least(self, index: int) -> float:
        """The least cost of the pieces from here on, beyond the cost so far."""
        cores = memory = gpus = 0
        for node in self._open:
            cores += node.cores
            memory += node.memory_bytes
            gpus += node.gpus
        rest, density = self._rest, self._density
        least = max(
            rest[0][index] - cores * density[0][index],
            rest[1][index] - memory * density[1][index],
            rest[2][index] - gpus * density[2][index],
            0.0,
        )
        if self.worth:
            of_core = self._worth_density[index]
            taken_in = sum([min(node.slack, node.cores * of_core) for node in self._open if node.slack > 0.0])
            least = max(least, self._worth_rest[index] - taken_in)
        return least * 0.999_999  # to allow for rounding errors

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
        if item.exclusive:
            whole = self.lots[node.lot]
            node.cores, node.gpus = (0, 0) if pieces > 0 else (whole.cores, whole.gpus)
        else:
            node.cores -= pieces * item.cores
            node.gpus -= pieces * item.gpus
            node.memory_bytes -= pieces * item.memory_bytes
        if self.worth:
            node.slack -= pieces * self.worth[number]
        had = node.pieces.pop(number, 0) + pieces
        if had:
            node.pieces[number] = had


def _sizes(of: Item | Lot) -> Sizes:
    return of.cores, of.memory_bytes, of.gpus


# --- leave out lots that no packing needs: another is no smaller, costs no more and suits the same work ---
#
# Of a provider's price list a few dozen types remain. A lot comes back if those that are better may run out: how
# many nodes of each are wanted is known from a greedy packing that has as many as it likes.


RESERVE = 2.0  # so many times what the greedy packing uses must be there


def find_dominated(
    lots: Sequence[Lot],
    suits: Sequence[Hashable],
    used: Mapping[int, int] | None = None,
    run_out: Collection[int] = (),
) -> Mapping[int, int]:
    """The lots to leave out, and for each a better one.

    ``suits``: equal for lots that suit the same work. ``used``: how many nodes are wanted of the lots that are left
    if none runs out. Without it, none does. ``run_out``: lots that do not count as better.
    """
    best: dict[Hashable, list[int]] = {}
    dominated: dict[int, int] = {}
    wanted = dict(used or {})
    for number in sorted((lot for lot in range(len(lots)) if lots[lot].bought), key=lambda it: _key(lots[it], it)):
        lot, held, first = lots[number], 0.0, None
        rivals = best.setdefault(suits[number], [])
        for other in rivals:
            better = lots[other]
            if (
                better.cores >= lot.cores
                and better.memory_bytes >= lot.memory_bytes
                and better.gpus >= lot.gpus
                and better.price <= lot.price
                and other not in run_out
            ):
                first = other if first is None else first
                held += better.count / (RESERVE * wanted[other]) if wanted.get(other) else 1.0
                if held >= 1.0:
                    dominated[number] = first
                    break
        else:
            rivals.append(number)
            if first is not None:
                wanted.setdefault(number, wanted.get(first, 0))  # it stands in for the first
    return dominated


def nodes_used(loads: Sequence[Load]) -> dict[int, int]:
    """How many nodes of each lot a packing uses."""
    used: dict[int, int] = {}
    for load in loads:
        used[load.lot] = used.get(load.lot, 0) + load.nodes
    return used


def _key(lot: Lot, number: int) -> tuple[int, ...]:
    return lot.cost, lot.price, -lot.cores, -lot.memory_bytes, -lot.gpus, number
