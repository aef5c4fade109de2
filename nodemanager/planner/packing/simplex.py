"""The linear program of the packing: how often each pattern is used to cover all pieces at the least cost.

A revised simplex with an explicit inverse of the basis (Dantzig and Orchard-Hays, 1954). Rows are the items, each
to be covered, and the lots that may run out, each with the most nodes. Columns are patterns. The inverse is kept by
its columns, since a pattern has few pieces. The order of all sums is fixed: the same input gives the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

EPSILON = 1e-9
UNCOVERED = 1e4  # the cost of a piece that is not covered, beside costs of 1 for the dearest node


@dataclass(frozen=True, slots=True)
class Column:
    """A pattern: the contents of one node of a lot. ``pieces``: (item, pieces), sorted."""

    lot: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class LinearProgram:
    """The program, solved for the columns so far. ``row_of_lot``: the rows of lots that may run out.

    ``worth``: the dual value of each row: what one more piece costs, and what one more node of a lot saves.
    """

    demand: Sequence[float]
    row_of_lot: dict[int, int]
    counts: Sequence[float]  # of those lots, in the order of their rows
    steps: int = 0
    worth: list[float] = field(init=False)
    _columns: list[list[float]] = field(init=False)  # of the inverse
    _basis: list[Column | None] = field(init=False)  # by row; None: a slack, or pieces that are not covered
    _value: list[float] = field(init=False)

    def __post_init__(self) -> None:
        items, rows = len(self.demand), len(self.demand) + len(self.counts)
        self._columns = [[0.0] * row + [1.0] + [0.0] * (rows - row - 1) for row in range(rows)]
        self._basis = [None] * rows
        self._value = [*map(float, self.demand), *map(float, self.counts)]
        self.worth = [UNCOVERED] * items + [0.0] * len(self.counts)

    def reduced_cost(self, column: Column, cost: float) -> float:
        """What the program saves by one use of a column, as a negative number; not negative if nothing."""
        worth = self.worth
        for item, pieces in column.pieces:
            cost -= worth[item] * pieces
        row = self.row_of_lot.get(column.lot)
        return cost if row is None else cost - worth[row]

    def enter(self, column: Column, cost: float) -> None:
        """Bring a column into the basis."""
        entries = list(column.pieces)
        if (row := self.row_of_lot.get(column.lot)) is not None:
            entries.append((row, 1))
        self._pivot(entries, self.reduced_cost(column, cost), column)

    def settle_slacks(self) -> None:
        """Bring in the slacks that save something: pieces covered too often, and lots not used up."""
        items = len(self.demand)
        for row, worth in enumerate(self.worth):
            if row < items and worth < -EPSILON:
                self._pivot([(row, -1)], worth, None)
            elif row >= items and worth > EPSILON:
                self._pivot([(row, 1)], -worth, None)

    def uses(self) -> list[tuple[Column, float]]:
        """The columns in use, and how often."""
        pairs = zip(self._basis, self._value, strict=True)
        return [(column, value) for column, value in pairs if column is not None and value > EPSILON]

    def _pivot(self, entries: Sequence[tuple[int, int]], saving: float, column: Column | None) -> None:
        inverse = self._columns
        rows = len(inverse)
        direction = [0.0] * rows
        for row, amount in entries:
            direction = [a + amount * b for a, b in zip(direction, inverse[row], strict=True)]
        leaving, least = -1, 0.0
        for row, along in enumerate(direction):
            if along > EPSILON:
                ratio = max(0.0, self._value[row]) / along
                if (
                    leaving < 0
                    or ratio < least - EPSILON
                    or (ratio < least + EPSILON and along > direction[leaving])
                ):
                    leaving, least = row, ratio
        if leaving < 0:
            return
        along = direction[leaving]
        self._value = [value - least * b for value, b in zip(self._value, direction, strict=True)]
        self._value[leaving] = least
        changed = 0
        for row, old in enumerate(inverse):
            part = old[leaving]
            if part:
                part /= along
                new = [a - part * b for a, b in zip(old, direction, strict=True)]
                new[leaving] = part
                inverse[row] = new
                self.worth[row] += saving * part
                changed += 1
        self._basis[leaving] = column
        self.steps += rows * (changed + len(entries)) // 8 + 10
