"""Pack many different items: similar ones are merged, columns are computed for the merged items, and then dealt out.

Merged items have the same cores, GPUs and lots, and similar memory. A pattern says how many pieces of a merged item
lie on a node. They are dealt from both ends of its items by memory, so that large and small ones even out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodemanager.planner.packing.columns import ColumnPacking
from nodemanager.planner.packing.types import Effort, Item, Load, Lot

MERGED_MAX = 40


@dataclass(slots=True)
class Merged:
    """Items that count as one. ``numbers``: those items, by memory; ``low`` and ``high``: the ends not yet used up."""

    numbers: list[int]
    weight: float  # what its spread of memory matters
    low: int = 0
    high: int = field(init=False)

    def __post_init__(self) -> None:
        self.high = len(self.numbers) - 1


def pack_merged(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], known: Sequence[Load], effort: Effort
) -> tuple[list[Load], list[int]]:
    """Loads, and the pieces of each item that are left."""
    merged = _merge(items, fits)
    joint = [_joint(group, items) for group in merged]
    joint_fits = [[min(fits[number][lot] for number in group.numbers) for lot in range(len(lots))] for group in merged]
    of_item = {number: index for index, group in enumerate(merged) for number in group.numbers}
    columns = ColumnPacking(joint, lots, joint_fits, effort)
    columns.solve(_joint_loads(known, of_item, joint, lots))
    dealer = _Dealer(items, lots, fits, merged)
    for column, value in sorted(columns.uses, key=lambda use: (-use[1], use[0].lot, use[0].pieces)):
        dealer.deal(column.lot, column.pieces, int(value + 0.5))
    return dealer.loads, dealer.left


def _merge(items: Sequence[Item], fits: Sequence[Sequence[int]]) -> list[Merged]:
    """Merge items until there are few enough: the widest group is halved as long as there may be more."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, item in enumerate(items):
        suits = tuple(map(bool, fits[number]))
        once = item.per_node_max if item.per_node_max < item.pieces else 0
        alike.setdefault((item.cores, item.gpus, item.exclusive, bool(once), suits), []).append(number)
    groups = [_group(numbers, items) for _, numbers in sorted(alike.items(), key=lambda it: it[1])]
    while len(groups) < MERGED_MAX:
        widest = max(range(len(groups)), key=lambda index: (groups[index].weight, -index))
        numbers = groups[widest].numbers
        if groups[widest].weight <= 0.0:
            break
        # In the middle of its pieces.
        half, upto, cut = sum(items[number].pieces for number in numbers) / 2, 0, 0
        while upto < half:
            upto += items[numbers[cut]].pieces
            cut += 1
        cut = min(max(1, cut), len(numbers) - 1)
        groups[widest : widest + 1] = [_group(numbers[:cut], items), _group(numbers[cut:], items)]
    return groups


def _group(numbers: Sequence[int], items: Sequence[Item]) -> Merged:
    numbers = sorted(numbers, key=lambda number: (items[number].memory_bytes, number))
    spread = items[numbers[-1]].memory_bytes - items[numbers[0]].memory_bytes
    return Merged(numbers, float(spread) * sum(items[number].pieces for number in numbers))


def _joint(group: Merged, items: Sequence[Item]) -> Item:
    """An item for all of a group, with their mean memory."""
    first = items[group.numbers[0]]
    pieces = sum(items[number].pieces for number in group.numbers)
    memory = sum(items[number].pieces * items[number].memory_bytes for number in group.numbers)
    per_node_max = max(items[number].per_node_max for number in group.numbers)
    return Item(pieces, first.cores, first.gpus, -(-memory // pieces), per_node_max, first.exclusive)


def _joint_loads(
    known: Sequence[Load], of_item: dict[int, int], joint: Sequence[Item], lots: Sequence[Lot]
) -> list[Load]:
    """The loads in terms of merged items, where they still fit."""
    found: list[Load] = []
    for load in known:
        counts: dict[int, int] = {}
        for number, pieces in load.pieces:
            counts[of_item[number]] = counts.get(of_item[number], 0) + pieces
        lot = lots[load.lot]
        cores = sum(joint[index].cores * pieces for index, pieces in counts.items())
        memory = sum(joint[index].memory_bytes * pieces for index, pieces in counts.items())
        if cores <= lot.cores and memory <= lot.memory_bytes:
            found.append(Load(load.lot, load.nodes, tuple(sorted(counts.items()))))
    return found


@dataclass(slots=True)
class _Dealer:
    """Deals the pieces of items to patterns of merged items."""

    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]
    merged: Sequence[Merged]
    loads: list[Load] = field(default_factory=list)
    left: list[int] = field(init=False)
    _count: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = [item.pieces for item in self.items]
        self._count = [lot.count for lot in self.lots]

    def deal(self, lot: int, pattern: Sequence[tuple[int, int]], nodes: int) -> None:
        """So many nodes with the pattern, as long as there are pieces for it."""
        nodes = min(nodes, self._count[lot])
        while nodes > 0:
            contents = self._contents(lot, pattern)
            if not contents:
                return
            of = min(nodes, *(self.left[number] // pieces for number, pieces in contents.items()))
            self.loads.append(Load(lot, of, tuple(sorted(contents.items()))))
            for number, pieces in contents.items():
                self.left[number] -= of * pieces
            self._count[lot] -= of
            nodes -= of

    def _contents(self, lot: int, pattern: Sequence[tuple[int, int]]) -> dict[int, int]:
        size = self.lots[lot]
        memory = size.memory_bytes
        contents: dict[int, int] = {}
        for index, pieces in pattern:
            for number, of in self._draw(self.merged[index], pieces):
                item = self.items[number]
                of = min(of, self.fits[number][lot], item.per_node_max)  # noqa: PLW2901
                if item.memory_bytes:
                    of = min(of, memory // item.memory_bytes)  # noqa: PLW2901
                if of > 0:
                    contents[number] = contents.get(number, 0) + of
                    memory -= of * item.memory_bytes
        return contents

    def _draw(self, group: Merged, pieces: int) -> list[tuple[int, int]]:
        """So many pieces from both ends, the large ones first."""
        left, numbers = self.left, group.numbers
        while group.low < group.high and not left[numbers[group.low]]:
            group.low += 1
        while group.low < group.high and not left[numbers[group.high]]:
            group.high -= 1
        drawn: list[tuple[int, int]] = []
        low, high = group.low, group.high
        of_high = pieces // 2
        want = of_high
        while want and high > low:
            of = min(want, left[numbers[high]])
            if of:
                drawn.append((numbers[high], of))
            want -= of
            high -= 1
        want += pieces - of_high
        while want and low <= high:
            of = min(want, left[numbers[low]])
            if of:
                drawn.append((numbers[low], of))
            want -= of
            low += 1
        return drawn
