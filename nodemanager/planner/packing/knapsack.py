"""The best contents of one node, given what each piece is worth: a bounded knapsack in cores, memory and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodemanager.planner.packing.types import Item, Lot

BALANCES = (0.08, 0.25, 0.4, 0.5, 0.6, 0.75, 0.92)  # the share of memory in the size of a piece
BRANCHES_MAX = 300  # of one search
INFINITE = float("inf")

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
