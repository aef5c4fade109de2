"""Pack at the bound: column generation (Gilmore and Gomory, 1961), then whole numbers of nodes.

The linear program says how often each pattern is used, and what each piece is worth. Knapsacks with these worths
give further patterns, until none saves anything. Then every pattern is used as often as the program says, rounded
down. The other pieces are packed in the same way again, with at least one node fixed each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nodemanager.planner.frozen import replace
from nodemanager.planner.packing.types import Effort, Item, Load, Lot

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


# --- simplex ----------------------------------------------------------------------------------------------
#
# The linear program of the packing: how often each pattern is used to cover all pieces at the least cost.
#
# A revised simplex with an explicit inverse of the basis (Dantzig and Orchard-Hays, 1954). Rows are the items,
# each to be covered, and the lots that may run out, each with the most nodes. Columns are patterns. The inverse
# is kept by its columns, since a pattern has few pieces. The order of all sums is fixed: the same input gives the
# same result.


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


# --- knapsack ---------------------------------------------------------------------------------------------
#
# The best contents of one node, given what each piece is worth: a bounded knapsack in cores, memory and GPUs.


BALANCES = (0.08, 0.25, 0.4, 0.5, 0.6, 0.75, 0.92)  # the share of memory in the size of a piece
BRANCHES_MAX = 300  # of one search

Contents = tuple[tuple[int, int], ...]
Row = tuple[int, int, int, int, int, tuple[float, ...]]  # item, most, cores, memory, GPUs; 1 / size


@dataclass(slots=True)
class Knapsack:
    """The node of one lot, and the items that fit it. ``most``: of each item, how many may lie on the node."""

    items: Sequence[Item]
    lot: Lot
    most: Sequence[int]
    steps: int = 0
    alone: list[int] = field(init=False)  # items that take the whole node
    _rows: list[Row] = field(init=False)
    _balance: int = 3  # the one that was best last time

    def __post_init__(self) -> None:
        lot, items = self.lot, self.items
        self.alone = [i for i, most in enumerate(self.most) if most and items[i].exclusive]
        cores, memory, gpus = 1.0 / lot.cores, 1.0 / max(1, lot.memory_bytes), 1.0 / max(1, lot.gpus)
        self._rows = [
            (
                i, min(most, it.pieces), it.cores, it.memory_bytes, it.gpus,
                tuple(
                    1.0 / ((1.0 - part) * it.cores * cores + part * it.memory_bytes * memory + it.gpus * gpus)
                    for part in BALANCES
                ),
            )
            for i, (it, most) in enumerate(zip(items, self.most, strict=True))
            if most and it.pieces and not it.exclusive
        ]  # fmt: skip

    def fill(self, worth: Sequence[float], enough: float) -> tuple[float, Contents]:
        """Good contents, and their worth: greedily by worth for size, with several measures of size.

        The first that are worth more than ``enough`` will do.
        """
        best, alone = self._best_alone(worth)
        contents = list(alone)
        balance, tried = self._balance, 0
        while 0 <= balance < len(BALANCES) and not tried >> balance & 1:
            tried |= 1 << balance
            value, found, more_memory = self._fill_in_order(self._by_density(worth, balance), worth)
            self.steps += 2 * len(self._rows) + 10
            if value > best + 1e-12:
                best, contents = value, found
                self._balance = balance
            if more_memory == 0 or best > enough:
                break
            balance += more_memory
        return best, tuple(sorted(contents))

    def search(self, worth: Sequence[float], above: float) -> tuple[float, Contents] | None:
        """The best contents worth more than ``above``, by branch and bound; None if none was found."""
        value, contents = self._best_alone(worth)
        best = (value, contents) if value > above else None
        above = max(above, value)
        value, found, branches = _branch(
            self._by_density(worth, self._balance), worth, self.lot, above, BALANCES[self._balance]
        )
        self.steps += 12 * branches
        return (value, tuple(sorted(found))) if value > above else best

    def _by_density(self, worth: Sequence[float], balance: int) -> list[Row]:
        """The items that are worth something, by worth for size."""
        rows = self._rows
        density = [(-worth[row[0]] * row[5][balance], index) for index, row in enumerate(rows)]
        density.sort()
        return [rows[index] for value, index in density if value < 0.0]

    def _best_alone(self, worth: Sequence[float]) -> tuple[float, Contents]:
        best = max(self.alone, key=lambda i: worth[i], default=None)
        return (0.0, ()) if best is None or worth[best] <= 0.0 else (worth[best], ((best, 1),))

    def _fill_in_order(
        self, order: Sequence[Row], worth: Sequence[float]
    ) -> tuple[float, list[tuple[int, int]], int]:
        """The contents and their worth, and what to try next: 1 to count memory more, -1 less, 0 if all is in."""
        lot = self.lot
        cores, memory, gpus = lot.cores, lot.memory_bytes, lot.gpus
        value, full = 0.0, True
        contents: list[tuple[int, int]] = []
        for item, most, of_cores, of_memory, of_gpus, _ in order:
            pieces = most
            if cores // of_cores < pieces:
                pieces, full = cores // of_cores, False
            if of_memory and memory // of_memory < pieces:
                pieces, full = memory // of_memory, False
            if of_gpus and gpus // of_gpus < pieces:
                pieces, full = gpus // of_gpus, False
            if pieces > 0:
                contents.append((item, pieces))
                value += worth[item] * pieces
                cores -= pieces * of_cores
                memory -= pieces * of_memory
                gpus -= pieces * of_gpus
                if cores <= 0:
                    full = False
                    break
        if full:
            return value, contents, 0
        return value, contents, 1 if cores * lot.memory_bytes > memory * lot.cores else -1


def _branch(
    rows: Sequence[Row], worth: Sequence[float], lot: Lot, above: float, balance: float
) -> tuple[float, list[tuple[int, int]], int]:
    """Depth first, the most of each first. The bound of a branch: the best worth for a size, for a core or for a
    byte, times the size, the cores or the bytes that are free.
    """
    count = len(rows)
    of_core, of_byte, of_gpu = 1.0 / lot.cores, 1.0 / max(1, lot.memory_bytes), 1.0 / max(1, lot.gpus)
    rest = 1.0 - balance
    by_size, by_cores, by_memory = [0.0] * (count + 1), [0.0] * (count + 1), [0.0] * (count + 1)
    for index in range(count - 1, -1, -1):
        item, _, cores, memory, gpus, _ = rows[index]
        value = worth[item]
        size = rest * cores * of_core + balance * memory * of_byte + gpus * of_gpu
        by_size[index] = max(by_size[index + 1], value / size)
        by_cores[index] = max(by_cores[index + 1], value / cores)
        by_memory[index] = max(by_memory[index + 1], value / memory if memory else INFINITE)
    best: list[tuple[int, int]] = []
    stack: list[tuple[int, float, int, int, int, tuple[object, ...]]] = [
        (0, 0.0, lot.cores, lot.memory_bytes, lot.gpus, ())
    ]
    branches = 0
    while stack and branches < BRANCHES_MAX:
        index, value, cores, memory, gpus, contents = stack.pop()
        while index < count:
            branches += 1
            short = above + 1e-9 - value
            if (
                (rest * cores * of_core + balance * memory * of_byte + gpus * of_gpu) * by_size[index] <= short
                or cores * by_cores[index] <= short
                or memory * by_memory[index] <= short
            ):
                break
            item, most, of_cores, of_memory, of_gpus, _ = rows[index]
            most = min(most, cores // of_cores)
            if of_memory:
                most = min(most, memory // of_memory)
            if of_gpus:
                most = min(most, gpus // of_gpus)
            index += 1
            if most > 0:
                # Smaller numbers are tried later, the largest of them first.
                each = worth[item]
                stack.extend(
                    (
                        index, value + pieces * each, cores - pieces * of_cores, memory - pieces * of_memory,
                        gpus - pieces * of_gpus, (contents, item, pieces) if pieces else contents,
                    )
                    for pieces in range(most)
                )  # fmt: skip
                contents = (contents, item, most)
                value += most * each
                cores -= most * of_cores
                memory -= most * of_memory
                gpus -= most * of_gpus
        if value > above:
            above, best = value, _unroll(contents)
    return above, best, branches


def _unroll(contents: tuple[object, ...]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while contents:
        contents, item, pieces = contents  # type: ignore[assignment]
        found.append((item, pieces))  # type: ignore[arg-type]
    return found
