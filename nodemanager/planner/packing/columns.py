"""Pack at the bound: column generation (Gilmore and Gomory, 1961), then whole numbers of nodes.

The linear program says how often each pattern is used, and what each piece is worth. Knapsacks with these worths
give further patterns, until none saves anything. Then every pattern is used as often as the program says, rounded
down. The other pieces are packed in the same way again, with at least one node fixed each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nodemanager.planner.packing.knapsack import Knapsack
from nodemanager.planner.packing.simplex import Column, LinearProgram
from nodemanager.planner.packing.types import Effort, Item, Load, Lot
from nodemanager.planner.state.frozen import replace

# The search for columns ends if so many rounds together save less than this part of the cost.
TAIL_ROUNDS, TAIL_SAVING = 16, 2e-4
SMOOTH = 0.6  # how much of the former worths goes into those that columns are looked for with
INFINITE = float("inf")
SAVING = 1e-6  # a column must save at least this part of the dearest node's cost
COLUMNS_PER_ROUND = 4
ROUNDS_MAX = 300
ROUNDS_PRICED, ITEMS_PRICED = 3, 16  # while rounding
SEARCHED_PER_ROUND = 2
NEAR = 0.05  # columns that would cost so much more than they are worth are kept for the rounding
# From which fraction on a pattern is used once more, and how many of the likeliest are passed over the first time:
# the ways that are tried.
ROUNDING = ((0.7, 0), (0.5, 0), (1.0, 0), (1.0, 1), (1.0, 2), (1.0, 3), (1.0, 4), (1.0, 5))


@dataclass(slots=True)
class ColumnPacking:
    """A packing by columns. ``bound``: the value of the linear program over the columns found."""

    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    effort: Effort
    tail_saving: float = TAIL_SAVING
    bound: float = 0.0
    worth: list[float] = field(default_factory=list)  # of a piece of each item
    uses: list[tuple[Column, float]] = field(default_factory=list)
    _pool: list[Column] = field(default_factory=list)
    _cost: list[float] = field(init=False)
    _dearest: int = field(init=False)

    def __post_init__(self) -> None:
        self._dearest = max((lot.cost for lot in self.lots), default=0) or 1
        self._cost = [(lot.cost + 1e-6) / self._dearest for lot in self.lots]

    def solve(self, known: Iterable[Load]) -> None:
        """Solve the linear program. ``known``: loads whose patterns are a good start."""
        self._pool = list(dict.fromkeys(Column(load.lot, load.pieces) for load in known))
        left, count = [item.pieces for item in self.items], [lot.count for lot in self.lots]
        program = _Program(self, left, count)
        columns = program.find_columns()
        self.bound = program.value() * self._dearest
        self.uses = program.uses()
        self.worth = [0.0] * len(self.items)
        for number, worth in zip(program.numbers, program.linear.worth, strict=False):
            self.worth[number] = worth * self._dearest
        self._pool = columns

    def rounded(self, way: tuple[float, int]) -> tuple[list[Load], list[int]]:
        """Whole numbers of nodes, and the pieces of each item that found no place."""
        left, count = [item.pieces for item in self.items], [lot.count for lot in self.lots]
        loads: list[Load] = []
        uses = self.uses
        fraction, passed = way
        while any(left):
            fixed, is_whole = _fix(uses, left, count, fraction, passed)
            if not fixed:
                break
            passed = passed if is_whole else 0
            loads += fixed
            if not any(left) or self.effort.left <= 0:
                break
            program = _Program(self, left, count)
            if len(program.numbers) <= ITEMS_PRICED:
                program.find_columns(ROUNDS_PRICED)
            uses = program.uses()
        return loads, left


def _fix(
    uses: Iterable[tuple[Column, float]], left: list[int], count: list[int], fraction: float, passed: int
) -> tuple[list[Load], bool]:
    """Use patterns as often as whole nodes go in; if none does, use once those that are nearest to a whole.

    Also returns whether whole nodes went in. ``passed``: how many of the nearest are passed over.
    """
    loads: list[Load] = []
    uses = sorted(uses, key=lambda use: (-use[1], use[0].lot, use[0].pieces))
    for column, value in uses:
        if (nodes := int(value + 1e-6)) > 0:
            loads += _use(column, nodes, left, count)
    if loads:
        return loads, True
    for column, value in uses[min(passed, len(uses) - 1) :]:
        if loads and value < fraction:
            break
        loads += _use(column, 1, left, count)
    return loads, False


def _use(column: Column, nodes: int, left: list[int], count: list[int]) -> list[Load]:
    """So many nodes with a pattern, as far as there are pieces for it."""
    nodes = min(nodes, count[column.lot], *(left[item] // pieces for item, pieces in column.pieces))
    if nodes <= 0:
        return []
    count[column.lot] -= nodes
    for item, pieces in column.pieces:
        left[item] -= nodes * pieces
    return [Load(column.lot, nodes, column.pieces)]


class _Program:
    """The linear program for some of the pieces and lots, solved over the columns known."""

    def __init__(self, packing: ColumnPacking, left: Sequence[int], count: Sequence[int]) -> None:
        self.packing = packing
        self.numbers = [number for number, pieces in enumerate(left) if pieces]  # of the items in the program
        self._index_of = {number: index for index, number in enumerate(self.numbers)}
        self._items = [replace(packing.items[number], pieces=left[number]) for number in self.numbers]
        self._lots = [lot for lot, nodes in enumerate(count) if nodes]
        self._fits = [[packing.fits[number][lot] for lot in self._lots] for number in self.numbers]
        scarce = [lot for place, lot in enumerate(self._lots) if self._may_run_out(place, count[lot])]
        rows = {lot: len(self.numbers) + index for index, lot in enumerate(scarce)}
        self.linear = LinearProgram([item.pieces for item in self._items], rows, [count[lot] for lot in scarce])
        for index, row in enumerate(self._fits):
            self._enter_alone(index, row)
        columns = self._inside(packing._pool, left, count)  # noqa: SLF001 - the packing's other half
        self._optimise(columns)
        self._known = columns

    def _may_run_out(self, place: int, count: int) -> bool:
        """Whether a packing may want more nodes of a lot than there are."""
        rows = zip(self._items, self._fits, strict=True)
        return sum(-(-item.pieces // row[place]) for item, row in rows if row[place]) > count

    def _enter_alone(self, index: int, row: Sequence[int]) -> None:
        """Begin with nodes that hold an item alone."""
        pieces, cost = self._items[index].pieces, self.packing._cost  # noqa: SLF001
        alone = [(cost[lot] / min(pieces, fit), lot, fit) for lot, fit in zip(self._lots, row, strict=True) if fit]
        if alone:
            _, lot, fit = min(alone)
            self.linear.enter(Column(lot, ((index, min(pieces, fit)),)), cost[lot])

    def _inside(self, pool: Iterable[Column], left: Sequence[int], count: Sequence[int]) -> list[Column]:
        """The columns of the pool, cut to the pieces that are left, in the numbers of this program."""
        index_of = self._index_of
        found: dict[Column, None] = {}
        for column in pool:
            if count[column.lot]:
                pieces = tuple((index_of[item], min(n, left[item])) for item, n in column.pieces if left[item])
                if pieces:
                    found[Column(column.lot, pieces)] = None
        return list(found)

    def _outside(self, column: Column) -> Column:
        return Column(column.lot, tuple((self.numbers[index], n) for index, n in column.pieces))

    def value(self) -> float:
        """The cost of all columns in use."""
        cost = self.packing._cost  # noqa: SLF001
        return sum(cost[column.lot] * value for column, value in self.linear.uses())

    def uses(self) -> list[tuple[Column, float]]:
        """The columns in use, and how often."""
        return [(self._outside(column), value) for column, value in self.linear.uses()]

    def find_columns(self, rounds: int = ROUNDS_MAX) -> list[Column]:
        """Add columns as long as they save something, and return those that come near to it."""
        packing, linear = self.packing, self.linear
        cost = packing._cost  # noqa: SLF001
        sacks = [
            Knapsack(self._items, packing.lots[lot], [row[place] for row in self._fits])
            for place, lot in enumerate(self._lots)
        ]
        turns = list(range(len(sacks)))
        values = [self.value()]
        smooth = linear.worth
        end = packing.effort.left // 4  # kept for the rounding
        for _ in range(rounds):
            if packing.effort.left <= end:
                break
            before = sum(sack.steps for sack in sacks)
            smooth = [SMOOTH * a + (1 - SMOOTH) * b for a, b in zip(smooth, linear.worth, strict=True)]
            new = (
                self._price(sacks, turns, smooth)
                or self._price(sacks, turns, linear.worth)
                or self._search(sacks, turns)
            )
            packing.effort.left -= sum(sack.steps for sack in sacks) - before
            if not new:
                break
            self._known += new
            self._optimise(new)
            values.append(self.value())
            if len(values) > TAIL_ROUNDS and values[-1] > values[-TAIL_ROUNDS] * (1 - packing.tail_saving):
                break
        near = (it for it in self._known if linear.reduced_cost(it, cost[it.lot]) < NEAR * cost[it.lot])
        return [self._outside(column) for column in dict.fromkeys(near)]

    def _optimise(self, columns: Sequence[Column]) -> None:
        """Bring in these columns, the best first, until none of them saves anything."""
        linear, cost = self.linear, self.packing._cost  # noqa: SLF001
        before = linear.steps
        while columns:
            linear.settle_slacks()
            savings = [(linear.reduced_cost(column, cost[column.lot]), column) for column in columns]
            linear.steps += 5 * len(columns)
            savings = [it for it in savings if it[0] < -SAVING]
            if not savings or linear.steps - before > self.packing.effort.left:
                break
            best = min(savings, key=lambda it: it[0])[1]
            linear.enter(best, cost[best.lot])
            columns = [column for _, column in savings]
        self.packing.effort.left -= linear.steps - before

    def _price(self, sacks: Sequence[Knapsack], turns: list[int], worth: Sequence[float]) -> list[Column]:
        """New columns that save something, found greedily with these worths.

        ``turns``: the order in which the lots are tried. Those without success go to its end.
        """
        linear = self.linear
        new: list[Column] = []
        for place in tuple(turns):
            column = Column(self._lots[place], sacks[place].fill(worth, self._needed(place))[1])
            if linear.reduced_cost(column, self.packing._cost[column.lot]) < -SAVING:  # noqa: SLF001
                new.append(column)
                if len(new) >= COLUMNS_PER_ROUND:
                    break
            else:
                turns.remove(place)
                turns.append(place)
        return new

    def _search(self, sacks: Sequence[Knapsack], turns: list[int]) -> list[Column]:
        """New columns that save something, by a search of the lots, the most promising first."""
        worth = self.linear.worth
        hopes = [(-sack.fill(worth, INFINITE)[0] / self._needed(place), place) for place, sack in enumerate(sacks)]
        new: list[Column] = []
        for _, place in sorted(hopes):
            found = sacks[place].search(worth, self._needed(place))
            if found is not None:
                turns.remove(place)
                turns.insert(0, place)
                new.append(Column(self._lots[place], found[1]))
                if len(new) >= SEARCHED_PER_ROUND:
                    break
        return new

    def _needed(self, place: int) -> float:
        """What the contents of a node must be worth to save something."""
        lot, linear = self._lots[place], self.linear
        row = linear.row_of_lot.get(lot)
        return self.packing._cost[lot] - (linear.worth[row] if row is not None else 0.0) + SAVING  # noqa: SLF001
