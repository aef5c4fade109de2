"""The least cost of a packing, by column generation with HiGHS: the yardstick of tests and benchmarks.

Gilmore and Gomory (1961): the linear program over all patterns of a node, whose columns are found one by one as
knapsacks. Its value bounds every packing from below. If the columns do not close within the rounds, the bound of
Farley (1990) is used, which holds for any worths, or that of the linear program that may split pieces of work and
nodes at will, whichever is higher. Without limits on nodes and slots.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import highspy

from nodemanager.planner.packing.columns import Knapsack
from nodemanager.planner.packing.types import Item, Lot

KNAPSACK_GAP, KNAPSACK_S = 1e-4, 2.0
CLOSE = 3e-4  # the bound is near enough to the value of the program

Pattern = tuple[int, tuple[tuple[int, int], ...]]  # the lot, and (item, pieces)


@dataclass(frozen=True)
class Bound:
    """``least``: no packing costs less. ``best``: what one found costs. ``closed``: no column is missing."""

    least: float
    best: float
    closed: bool


def bound(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    *,
    known: Sequence[Pattern] = (),
    rounds: int = 3000,
    limit_s: float = 120.0,
    mip_s: float = 20.0,
) -> Bound:
    """The bound, and the best packing of the columns found. Needs ``highspy``.

    ``known``: patterns to begin with. After ``limit_s`` of processor time the bound so far is the result.
    """
    lots_used = _undominated(lots, fits)
    at_will = split_at_will(items, lots, fits, lots_used)
    program = _Program(items, lots)
    columns = program.columns
    alone = [
        (lot, ((number, min(item.pieces, fits[number][lot])),))
        for number, item in enumerate(items)
        for lot in lots_used
        if fits[number][lot]
    ]
    program.add([*alone, *known])
    sacks = {lot: Knapsack(items, lots[lot], [row[lot] for row in fits]) for lot in lots_used}
    least, closed = 0.0, False
    end_s = time.process_time() + limit_s
    for _ in range(rounds):
        value, worth = program.solve()
        new = _quick(sacks, worth, lots, columns)
        out_of_time = time.process_time() > end_s
        if new and not out_of_time:
            program.add(new)
            continue
        ratio = 1.0
        for lot in lots_used:
            pattern, most = _knapsack(items, lots[lot], lot, fits, worth)
            ratio = min(ratio, lots[lot].cost / most if most > 0 else 1.0)
            if most > lots[lot].cost * (1 + 1e-7) and pattern not in columns:
                new.append(pattern)
        least = max(least, value * ratio)
        if not new:
            closed = True
            break
        program.add(new)
        if value <= least * (1 + CLOSE) or out_of_time:
            closed = value <= least * (1 + CLOSE)
            break
    best = program.solve_whole(mip_s) if mip_s else float("inf")
    return Bound(max(least, at_will), best, closed)


def split_at_will(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], lots_used: Sequence[int]
) -> float:
    """The least cost if pieces and nodes may be split at will: a part of a node for each part of a piece.

    For each lot one row for every resource: what its nodes have, less what the pieces there want, is not negative.
    """
    highs = highspy.Highs()
    highs.silent()
    resources = ("cores", "gpus", "memory_bytes")
    row_of = {
        (lot, resource): len(items) + number for number, (lot, resource) in enumerate(product(lots_used, resources))
    }
    for item in items:
        highs.addRow(item.pieces, highspy.kHighsInf, 0, [], [])
    for _ in row_of:
        highs.addRow(0, highspy.kHighsInf, 0, [], [])
    for lot in lots_used:
        has = [(row_of[lot, resource], 1.0) for resource in resources if getattr(lots[lot], resource)]
        highs.addCol(lots[lot].cost, 0, highspy.kHighsInf, len(has), *map(list, zip(*has, strict=True)))
        for number, item in enumerate(items):
            if not fits[number][lot]:
                continue
            entries = [(number, 1.0)]
            for resource in resources:
                if whole := getattr(lots[lot], resource):
                    share = 1.0 if item.exclusive else getattr(item, resource) / whole
                    entries += [(row_of[lot, resource], -share)] if share else []
            highs.addCol(0, 0, highspy.kHighsInf, len(entries), *map(list, zip(*entries, strict=True)))
    highs.run()
    return float(highs.getObjectiveValue())


def _quick(
    sacks: Mapping[int, Knapsack], worth: Sequence[float], lots: Sequence[Lot], columns: Mapping[Pattern, None]
) -> list[Pattern]:
    """Patterns that save something, found greedily: they spare most of the exact searches."""
    found = [(lot, sack.fill(worth, float("inf"))) for lot, sack in sacks.items()]
    good = [(lot, pieces) for lot, (value, pieces) in found if value > lots[lot].cost * (1 + 1e-7)]
    return [pattern for pattern in good if pattern not in columns]


def _undominated(lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> list[int]:
    """The lots for which no other is as large in every way, suits the same items and costs no more."""

    def beats(other: int, lot: int) -> bool:
        a, b = lots[other], lots[lot]
        larger = a.cores >= b.cores and a.gpus >= b.gpus and a.memory_bytes >= b.memory_bytes
        same = all(row[other] >= row[lot] for row in fits)
        return larger and same and (a.cost, other) < (b.cost, lot)

    numbers = range(len(lots))
    return [lot for lot in numbers if not any(beats(other, lot) for other in numbers if other != lot)]


class _Program:
    """The linear program over the columns so far. It is kept, so that each solution begins with the one before."""

    def __init__(self, items: Sequence[Item], lots: Sequence[Lot]) -> None:
        self.columns: dict[Pattern, None] = {}
        self._lots = lots
        self._highs = highspy.Highs()
        self._highs.silent()
        for item in items:
            self._highs.addRow(item.pieces, highspy.kHighsInf, 0, [], [])

    def add(self, patterns: Sequence[Pattern]) -> None:
        """Add columns that are not known yet."""
        for lot, pieces in patterns:
            if (lot, pieces) not in self.columns:
                self.columns[lot, pieces] = None
                rows, counts = [number for number, _ in pieces], [float(count) for _, count in pieces]
                self._highs.addCol(self._lots[lot].cost, 0, highspy.kHighsInf, len(rows), rows, counts)

    def solve(self) -> tuple[float, list[float]]:
        """The value of the program, and the worth of a piece of each item."""
        self._highs.run()
        return float(self._highs.getObjectiveValue()), list(self._highs.getSolution().row_dual)

    def solve_whole(self, limit_s: float) -> float:
        """The cost of the best whole numbers of nodes with these columns."""
        self._highs.setOptionValue("time_limit", limit_s)
        self._highs.setOptionValue("mip_rel_gap", 1e-6)
        for column in range(len(self.columns)):
            self._highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        self._highs.run()
        return float(self._highs.getInfo().objective_function_value)


def _knapsack(
    items: Sequence[Item], lot: Lot, number: int, fits: Sequence[Sequence[int]], worth: Sequence[float]
) -> tuple[Pattern, float]:
    """The pattern of one node with the greatest worth."""
    alone = [i for i, item in enumerate(items) if item.exclusive and fits[i][number]]
    best_alone = max(alone, key=lambda i: worth[i], default=None)
    shared = [i for i, item in enumerate(items) if not item.exclusive and fits[i][number] and worth[i] > 1e-9]
    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("mip_rel_gap", KNAPSACK_GAP)
    highs.setOptionValue("time_limit", KNAPSACK_S)
    for i in shared:
        highs.addCol(-worth[i], 0, min(fits[i][number], items[i].pieces), 0, [], [])
    for resource in ("cores", "gpus", "memory_bytes"):
        wants = [(column, getattr(items[i], resource)) for column, i in enumerate(shared)]
        wants = [(column, size) for column, size in wants if size]
        if wants:
            columns, sizes = zip(*wants, strict=True)
            highs.addRow(-highspy.kHighsInf, getattr(lot, resource), len(columns), columns, sizes)
    for column in range(len(shared)):
        highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    highs.run()
    value = -float(highs.getInfo().objective_function_value) if shared else 0.0
    if best_alone is not None and worth[best_alone] >= value:
        return (number, ((best_alone, 1),)), worth[best_alone]
    if not shared:
        return (number, ()), 0.0
    chosen = [round(count) for count in highs.getSolution().col_value]
    pieces = tuple((i, count) for i, count in zip(shared, chosen, strict=True) if count)
    return (number, pieces), max(value, -float(highs.getInfo().mip_dual_bound))
