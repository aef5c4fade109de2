"""Many kinds of items as a few classes of similar sizes: these are packed, and then pieces are chosen for them.

A class is packed as so many pieces of its mean size. Each node of that packing then gets pieces of these classes:
the largest for which there is room if the others were of the mean size, so that large and small ones even out.
What finds no place is left over. It is little, and is packed again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from nodemanager.planner.packing.types import Effort, Item, Load, Lot, dominant_share, pieces_on_empty

CLASSES_MAX = 48
SCALE = 64  # mean sizes are whole numbers of such parts of a core and of a byte
LOOKS_MAX = 12  # how many items of a class are tried for one place
REPEATS = 6  # up to this part of the nodes of a load get equal contents
MASK_PENALTY = 0.2  # of its size: the error of a class whose items do not fit the same lots


@dataclass(slots=True)
class _Class:
    """Items of similar sizes, the smallest first, and the sums of their pieces that are left."""

    all_members: Sequence[int]
    members: list[int]  # of which pieces are left
    sizes: list[float]  # of the members, ascending
    pieces: int = 0
    cores: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Classes:
    """Items grouped into classes. ``items``, ``lots`` and ``fits`` are what to pack in their place."""

    _items: Sequence[Item]
    _lots: Sequence[Lot]
    _fits: Sequence[Sequence[int]]
    left: list[int] = field(init=False)  # pieces of each item that have no place yet
    items: list[Item] = field(default_factory=list)
    lots: list[Lot] = field(default_factory=list)
    fits: list[list[int]] = field(default_factory=list)
    _classes: list[_Class] = field(default_factory=list)
    _by_size: list[int] = field(default_factory=list)  # classes, the largest first
    _masks: list[tuple[bool, ...]] = field(default_factory=list)  # by item: the lots that take it
    _shares: list[float] = field(default_factory=list)  # by item: of the node on which a piece costs least
    _class_of: dict[int, _Class] = field(default_factory=dict)
    _unit: tuple[float, float] = (0.0, 0.0)  # what a core and a byte are of all that is asked for

    def __post_init__(self) -> None:
        cores = sum(item.pieces * item.cores for item in self._items)
        memory = sum(item.pieces * item.memory_bytes for item in self._items)
        self.left = [item.pieces for item in self._items]
        self._masks = [tuple(map(bool, row)) for row in self._fits]
        self._shares = [self._share_of_cheapest(number) for number in range(len(self._items))]
        self._unit = 1.0 / max(1, cores), 1.0 / max(1, memory)
        self.lots = [
            Lot(lot.cores * SCALE, lot.gpus, lot.memory_bytes * SCALE, lot.count, lot.cost, lot.price, lot.bought)
            for lot in self._lots
        ]
        for members in self._grouped():
            self._add_class(members)
        share = [
            max((dominant_share(item, lot) for lot, fit in zip(self.lots, row, strict=True) if fit), default=0.0)
            for item, row in zip(self.items, self.fits, strict=True)
        ]
        self._by_size = sorted(range(len(self.items)), key=lambda number: (-share[number], number))

    # --- grouping -----------------------------------------------------------------------------------------

    def _grouped(self) -> list[list[int]]:
        """Halve the class with the largest error, again and again."""
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, item in enumerate(self._items):
            if item.pieces:
                alike.setdefault(self._key(number), []).append(number)
        found = [(-self._error(members), members) for members in alike.values()]
        heapify(found)
        while found and len(found) < CLASSES_MAX:
            error, members = heappop(found)
            if error >= 0.0:
                heappush(found, (error, members))
                break
            for half in self._halved(members):
                heappush(found, (-self._error(half), half))
        return sorted(members for _, members in found)

    def _key(self, number: int) -> tuple[object, ...]:
        """Equal for items that may be in one class."""
        item, row = self._items[number], self._fits[number]
        if item.exclusive:
            return True, self._masks[number]
        shut = tuple(
            place
            for place, lot in enumerate(self._lots)
            if not row[place] and item.cores <= lot.cores and pieces_on_empty(item, lot) > 0
        )
        return False, item.gpus, item.per_node_max < item.pieces, shut

    def _size(self, number: int) -> float:
        item = self._items[number]
        return item.cores * self._unit[0] + item.memory_bytes * self._unit[1]

    def _error(self, members: Sequence[int]) -> float:
        """The loss if the sizes of the items are taken to be equal."""
        if len(members) == 1 or self._items[members[0]].exclusive:
            return 0.0
        pieces = [self._items[number].pieces for number in members]
        share = sum(of * self._shares[number] for of, number in zip(pieces, members, strict=True)) / sum(pieces)
        error = share * sum(self._errors(members))
        if len({self._masks[number] for number in members}) > 1:
            error += MASK_PENALTY * sum(of * self._size(number) for of, number in zip(pieces, members, strict=True))
        return error

    def _share_of_cheapest(self, number: int) -> float:
        """The share of a node that a piece takes where it costs least. Many small pieces even out."""
        row = zip(self._lots, self._fits[number], strict=True)
        return min(((lot.cost / fit, 1.0 / fit) for lot, fit in row if fit), default=(0.0, 1.0))[1]

    def _errors(self, members: Sequence[int]) -> tuple[float, float]:
        items = [self._items[number] for number in members]
        pieces = sum(item.pieces for item in items)
        cores = sum(item.pieces * item.cores for item in items) / pieces
        memory = sum(item.pieces * item.memory_bytes for item in items) / pieces
        return (
            self._unit[0] * sum(item.pieces * abs(item.cores - cores) for item in items),
            self._unit[1] * sum(item.pieces * abs(item.memory_bytes - memory) for item in items),
        )

    def _halved(self, members: Sequence[int]) -> tuple[list[int], list[int]]:
        of_cores, of_memory = self._errors(members)
        items = self._items

        def size(number: int) -> tuple[int, int]:
            item = items[number]
            return (item.cores, item.memory_bytes) if of_cores >= of_memory else (item.memory_bytes, item.cores)

        order = sorted(members, key=lambda number: (size(number), number))
        pieces = sum(items[number].pieces for number in order)
        mean = sum(items[number].pieces * size(number)[0] for number in order) / pieces
        cut = bisect_right([size(number)[0] for number in order], mean)
        cut = min(max(1, cut), len(order) - 1)
        return sorted(order[:cut]), sorted(order[cut:])

    def _add_class(self, members: Sequence[int]) -> None:
        order = sorted(members, key=lambda number: (self._size(number), number))
        made = _Class(tuple(order), order, [self._size(number) for number in order])
        for number in order:
            self._count(made, number, self.left[number])
            self._class_of[number] = made
        self._classes.append(made)
        items = [self._items[number] for number in order]
        bound = items[0].per_node_max < items[0].pieces
        item = Item(
            made.pieces,
            max(1, SCALE * made.cores // made.pieces),
            items[0].gpus,
            SCALE * made.memory_bytes // made.pieces,
            sum(it.per_node_max for it in items) if bound else made.pieces,
            items[0].exclusive,
        )
        self.items.append(item)
        rows = [self._fits[number] for number in order]
        self.fits.append(
            [
                max(1, self._most(item, lot)) if all(row[place] for row in rows) else 0
                for place, lot in enumerate(self.lots)
            ]
        )

    @staticmethod
    def _most(item: Item, lot: Lot) -> int:
        return 1 if item.exclusive else pieces_on_empty(item, lot)

    def _count(self, of: _Class, number: int, pieces: int) -> None:
        item = self._items[number]
        of.pieces += pieces
        of.cores += pieces * item.cores
        of.memory_bytes += pieces * item.memory_bytes

    def worth_of_items(self, worth: Sequence[float]) -> list[float]:
        """What a piece of each item is worth, given the worth of each class. Half of it depends on its size."""
        found = [0.0] * len(self._items)
        for of, item, each in zip(self._classes, self.items, worth, strict=True):
            mean = (item.cores * self._unit[0] + item.memory_bytes * self._unit[1]) / SCALE
            for number in of.all_members:
                found[number] = each * (0.5 + 0.5 * self._size(number) / mean)
        return found

    # --- choosing the pieces ------------------------------------------------------------------------------

    def realised(self, loads: Iterable[Load], effort: Effort) -> list[Load]:
        """Choose pieces for nodes that are packed with classes. Nodes with the most room to spare come first."""
        found: list[Load] = []
        for load in sorted(loads, key=lambda load: (-self._spare(load), load.lot, load.pieces)):
            wants = dict(load.pieces)
            order = [(number, wants[number]) for number in self._by_size if number in wants]
            nodes = load.nodes
            while nodes:
                contents = self._contents(load.lot, order, effort)
                if not contents:
                    break
                most = min(self.left[number] // pieces for number, pieces in contents.items())
                count = min(most, max(1, nodes // REPEATS))
                self._take(contents, count)
                found.append(Load(load.lot, count, tuple(sorted(contents.items()))))
                nodes -= count
        return found

    def _spare(self, load: Load) -> float:
        """The share of a node's cores or memory, whichever is more, that its contents leave."""
        lot = self.lots[load.lot]
        cores = sum(pieces * self.items[number].cores for number, pieces in load.pieces)
        memory = sum(pieces * self.items[number].memory_bytes for number, pieces in load.pieces)
        return max(1.0 - cores / lot.cores, 1.0 - memory / max(1, lot.memory_bytes))

    def _contents(self, lot: int, wants: Sequence[tuple[int, int]], effort: Effort) -> dict[int, int]:
        """Pieces for one node: those of the classes wanted, then what else there is room for."""
        node = _Room(self, lot)
        classes = self._classes
        means = [
            (of.cores / of.pieces, of.memory_bytes / of.pieces) if of.pieces else (0.0, 0.0)
            for of in (classes[number] for number, _ in wants)
        ]
        later_cores = sum(mean[0] * pieces for mean, (_, pieces) in zip(means, wants, strict=True))
        later_memory = sum(mean[1] * pieces for mean, (_, pieces) in zip(means, wants, strict=True))
        for (number, pieces), (cores, memory) in zip(wants, means, strict=True):
            for _ in range(pieces):
                later_cores -= cores
                later_memory -= memory
                if not node.put_largest(classes[number], later_cores, later_memory):
                    node.put_smallest(classes[number])
        room = node.size_left()
        for number in self._by_size:
            of = classes[number]
            while of.sizes and of.sizes[0] <= room and node.put_largest(of, 0.0, 0.0):
                room = node.size_left()
        effort.left -= node.looks + len(self._by_size) // 4
        return node.contents

    def _take(self, contents: Mapping[int, int], nodes: int) -> None:
        for number, pieces in contents.items():
            of = self._class_of[number]
            self.left[number] -= nodes * pieces
            self._count(of, number, -nodes * pieces)
            if not self.left[number]:
                place = of.members.index(number)
                del of.members[place], of.sizes[place]


@dataclass(slots=True)
class _Room:
    """A node while its contents are chosen."""

    of: Classes
    lot: int
    contents: dict[int, int] = field(default_factory=dict)
    looks: int = 0
    cores: int = field(init=False)
    memory_bytes: int = field(init=False)
    gpus: int = field(init=False)

    def __post_init__(self) -> None:
        lot = self.of._lots[self.lot]  # noqa: SLF001 - the other half of the classes
        self.cores, self.memory_bytes, self.gpus = lot.cores, lot.memory_bytes, lot.gpus

    def size_left(self) -> float:
        """The size of the largest piece for which there may be room; 0 if no core is free."""
        unit = self.of._unit  # noqa: SLF001
        return (self.cores * unit[0] + self.memory_bytes * unit[1]) * 1.000_001 if self.cores > 0 else 0.0

    def put_largest(self, of: _Class, later_cores: float, later_memory: float) -> bool:
        """Put the largest piece of a class that leaves so many cores and bytes free."""
        cores, memory = self.cores - later_cores, self.memory_bytes - later_memory
        unit = self.of._unit  # noqa: SLF001
        place = bisect_right(of.sizes, (cores * unit[0] + memory * unit[1]) * 1.000_001)
        return self._put(of.members[max(0, place - LOOKS_MAX) : place][::-1], cores, memory)

    def put_smallest(self, of: _Class) -> bool:
        """Put the smallest piece of a class, if it fits at all."""
        return self._put(of.members[:LOOKS_MAX], self.cores, self.memory_bytes)

    def _put(self, members: Iterable[int], cores: float, memory: float) -> bool:
        items, fits, left = self.of._items, self.of._fits, self.of.left  # noqa: SLF001
        for number in members:
            self.looks += 1
            item = items[number]
            if item.exclusive and self.contents:
                return False
            if item.cores > cores or item.memory_bytes > memory or item.gpus > self.gpus:
                continue
            had = self.contents.get(number, 0)
            if had >= left[number] or had >= item.per_node_max or not fits[number][self.lot]:
                continue
            self.contents[number] = had + 1
            if item.exclusive:
                self.cores = self.memory_bytes = self.gpus = 0
            else:
                self.cores -= item.cores
                self.memory_bytes -= item.memory_bytes
                self.gpus -= item.gpus
            return True
        return False
