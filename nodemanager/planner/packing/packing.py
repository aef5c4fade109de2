"""Pack pieces of work onto empty nodes at the least cost: vector bin packing with several types of bins.

Nothing here knows jobs, slots or time. Counts go in and counts come out: a :class:`Load` is a number of nodes with
equal contents. So the effort depends on the kinds of work and of nodes, not on their numbers.

Greedy packings come first. Columns (``columns``) then bring the cost near its lower bound, and the last few pieces
are repacked by trying all ways (``exact``). The cheapest result counts, so it never costs more than a greedy one.
The effort is counted in steps: at the limit the best so far is the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.planner.packing import exact
from nodemanager.planner.packing.columns import ROUNDING, ColumnPacking
from nodemanager.planner.packing.greedy import pack_best_fit, pack_by_patterns
from nodemanager.planner.packing.types import Effort, Item, Load, Lot, Packed, PackingLimits, total_cost
from nodemanager.planner.state.frozen import replace

STEPS_MAX = 200_000  # of one packing
STEPS_PER_PIECE = 2_500  # of a packing of few pieces
ITEMS_MAX = 64  # up to so many items, columns are computed
ENOUGH = 1.0002  # a packing that is so near to the bound is not improved
PIECES_EXACT = 10  # up to so many pieces are packed by trying all ways
# The nodes that are worth least for their cost are repacked: how many of them, and how many steps a search takes.
NODES_REPACKED, STEPS_REPACKED = 16, 4_000
NO_LIMITS = PackingLimits(10**9, 10**18)
# Penalties for each node, as multiples of the dearest cost: tried in turn if there are not enough nodes.
NODE_PENALTIES = (0.0, 0.25, 1.0, 4.0, 64.0)


def pack(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort | None = None,
) -> Packed:
    """Pack all pieces at the least cost, or as many as the limits allow.

    ``fits[item][lot]``: the most pieces of an item that an empty node of the lot takes; 0 if the lot does not suit.
    Without ``effort`` it is ``STEPS_MAX``. With none left, the packing is greedy.
    """
    effort = effort if effort is not None else Effort(STEPS_MAX)
    order = _Order(items, lots, fits)
    return order.restored(_pack(order.items, order.lots, order.fits, limits, effort))


def fill(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    """Pack as much as these nodes take, ignoring limits: they are paid for."""
    return pack_by_patterns(items, lots, fits)


class _Order:
    """Items and lots in an order of their own, so that the order in which they came makes no difference.

    Only equal lots stay in the order in which they came: what is at hand comes before what is free in a moment.
    """

    def __init__(self, items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> None:
        self._lots = sorted(range(len(lots)), key=lambda lot: (_lot_key(lots[lot]), lot))
        rows = [[row[lot] for lot in self._lots] for row in fits]
        self._items = sorted(range(len(items)), key=lambda item: (_item_key(items[item]), rows[item], item))
        self.items = [items[item] for item in self._items]
        self.lots = [lots[lot] for lot in self._lots]
        self.fits = [rows[item] for item in self._items]

    def restored(self, packed: Packed) -> Packed:
        """The packing in the numbers of the order in which items and lots came. The fullest nodes come first."""
        left = [0] * len(self._items)
        for place, pieces in enumerate(packed.left):
            left[self._items[place]] = pieces
        loads = [
            Load(self._lots[it.lot], it.nodes, tuple(sorted((self._items[item], of) for item, of in it.pieces)))
            for it in packed.loads
        ]
        loads.sort(key=lambda load: -sum(pieces for _, pieces in load.pieces))
        return Packed(tuple(loads), tuple(left))


def _lot_key(lot: Lot) -> tuple[int, ...]:
    return lot.cost, lot.price, lot.cores, lot.memory_bytes, lot.gpus, lot.bought


def _item_key(item: Item) -> tuple[int, ...]:
    return item.cores, item.memory_bytes, item.gpus, item.per_node_max, item.exclusive, item.pieces


def _pack(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort,
) -> Packed:
    dearest = max((lot.cost for lot in lots), default=0)
    packed = Packed((), tuple(item.pieces for item in items))
    for penalty in NODE_PENALTIES:
        dear = [replace(lot, cost=lot.cost + int(penalty * dearest)) if lot.bought else lot for lot in lots]
        packed = _cheapest_greedy(items, dear, fits) if effort.left > 0 else pack_by_patterns(items, dear, fits)
        if limits.allow(packed.loads, lots):
            own = Effort(min(effort.left, STEPS_PER_PIECE * sum(item.pieces for item in items)))
            effort.left -= own.left
            better = _improved(packed, items, dear, fits, limits, own)
            effort.left += own.left
            return better if total_cost(better.loads, lots) <= total_cost(packed.loads, lots) else packed
    if 0 < sum(item.pieces for item in items) <= PIECES_EXACT:
        loads = exact.search(items, lots, fits, limits, Effort(exact.STEPS_MAX))
        if loads is not None:
            return Packed(loads, (0,) * len(items))
    return _cut_to_limits(packed, lots, limits)


def _cheapest_greedy(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    """The cheapest of the greedy packings that places the most."""
    best = pack_by_patterns(items, lots, fits)
    for by_share in (True, False):
        below = float("inf") if any(best.left) else total_cost(best.loads, lots)
        found = pack_best_fit(items, lots, fits, by_share=by_share, below=below)
        if found is not None and sum(found.left) <= sum(best.left):
            best = found
    return best


def _improved(
    packed: Packed,
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort,
) -> Packed:
    """A cheaper packing of the same pieces within the limits, or the same."""
    if any(packed.left) or effort.left <= 0:
        return packed
    if len(items) > ITEMS_MAX:
        return packed
    columns = ColumnPacking(items, lots, fits, effort)
    columns.solve(packed.loads)
    best, least = list(packed.loads), total_cost(packed.loads, lots)
    for way in ROUNDING:
        if least <= columns.bound * ENOUGH or effort.left <= 0:
            break
        loads = _completed(*columns.rounded(way), items, lots, fits)
        if loads is not None and total_cost(loads, lots) < least and limits.allow(loads, lots):
            best, least = loads, total_cost(loads, lots)
    if least > columns.bound * ENOUGH:
        loads = _repacked(best, items, lots, fits, columns.worth, effort)
        if limits.allow(loads, lots):
            best = loads
    return Packed(tuple(best), packed.left)


def _completed(
    loads: list[Load],
    left: Sequence[int],
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
) -> list[Load] | None:
    """The loads, and a greedy packing of what is left; None if that is not all."""
    if not any(left):
        return loads
    free = [lot.count for lot in lots]
    for load in loads:
        free[load.lot] -= load.nodes
    rest = [replace(item, pieces=pieces) for item, pieces in zip(items, left, strict=True)]
    more = _cheapest_greedy(rest, [replace(lot, count=of) for lot, of in zip(lots, free, strict=True)], fits)
    return None if any(more.left) else [*loads, *more.loads]


def _repacked(
    loads: Sequence[Load],
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    worth: Sequence[float],
    effort: Effort,
) -> list[Load]:
    """Repack a few nodes by trying all ways, again and again, beginning with those that are worth least.

    What a node is worth is the worth of its contents, for its cost.
    """

    def value(node: Load) -> tuple[float, int, tuple[tuple[int, int], ...]]:
        of = sum(worth[item] * pieces for item, pieces in node.pieces)
        return of / (lots[node.lot].cost + 1), node.lot, node.pieces

    few: list[Load] = []
    rest: list[Load] = []
    for load in sorted(loads, key=value):
        nodes = min(load.nodes, NODES_REPACKED - len(few))
        few += [Load(load.lot, 1, load.pieces)] * nodes
        rest += [Load(load.lot, load.nodes - nodes, load.pieces)] if load.nodes > nodes else []
    free = [lot.count for lot in lots]
    for load in loads:
        free[load.lot] -= load.nodes
    first = 0
    while first < len(few) and effort.left > 0:
        chosen, pieces = [], 0
        for place in range(first, len(few)):
            of = sum(count for _, count in few[place].pieces)
            if pieces + of <= PIECES_EXACT:
                chosen.append(place)
                pieces += of
        found = (
            _repack([few[place] for place in chosen], items, lots, fits, worth, free, effort) if chosen else None
        )
        if found is None:
            first += 1
            continue
        few = sorted([*(node for place, node in enumerate(few) if place not in chosen), *found], key=value)
        first = 0
    return [*rest, *few]


def _repack(
    nodes: Sequence[Load],
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    worth: Sequence[float],
    free: list[int],
    effort: Effort,
) -> tuple[Load, ...] | None:
    """A cheaper packing of what lies on these nodes; None if none was found. ``free`` is updated."""
    pieces = [0] * len(items)
    count = list(free)
    for node in nodes:
        count[node.lot] += 1
        for item, of in node.pieces:
            pieces[item] += of
    numbers = [number for number, of in enumerate(pieces) if of]
    found = exact.search(
        [replace(items[number], pieces=pieces[number]) for number in numbers],
        [replace(lot, count=left) for lot, left in zip(lots, count, strict=True)],
        [fits[number] for number in numbers],
        NO_LIMITS,
        effort,
        below=total_cost(nodes, lots),
        steps_max=STEPS_REPACKED,
        worth=[worth[number] for number in numbers],
    )
    if found is None:
        return None
    free[:] = count
    for node in found:
        free[node.lot] -= 1
    return tuple(Load(it.lot, 1, tuple((numbers[index], of) for index, of in it.pieces)) for it in found)


def _cut_to_limits(packed: Packed, lots: Sequence[Lot], limits: PackingLimits) -> Packed:
    """Keep the first loads, as far as the limits allow."""
    nodes, price = limits.nodes, limits.price
    kept: list[Load] = []
    left = list(packed.left)
    for load in packed.loads:
        each = lots[load.lot].price
        can = min(load.nodes, nodes, price // each if each else nodes) if lots[load.lot].bought else load.nodes
        if can > 0:
            kept.append(replace(load, nodes=can))
            nodes -= can
            price -= can * each
        for item, pieces in load.pieces:
            left[item] += (load.nodes - max(0, can)) * pieces
    return Packed(tuple(kept), tuple(left))
