"""Pack pieces of work onto empty nodes at the least cost: vector bin packing with several types of bins.

Nothing here knows jobs, slots or time. Counts go in and counts come out: a :class:`Load` is a number of nodes with
equal contents. So the effort depends on the kinds of work and of nodes, not on their numbers.

Greedy packings come first. Columns (``columns``) then bring the cost near its lower bound, and the last few pieces
are repacked by trying all ways (``exact``). Few pieces are also packed in many orders (``orders``). The cheapest
result counts, so it never costs more than a greedy one.
The effort is counted in steps: at the limit the best so far is the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.planner.frozen import replace
from nodemanager.planner.packing import exact
from nodemanager.planner.packing.classes import Classes
from nodemanager.planner.packing.columns import ROUNDING, ColumnPacking
from nodemanager.planner.packing.greedy import largest_first, pack_best_fit, pack_by_patterns, pack_in_orders
from nodemanager.planner.packing.types import (
    NO_LIMITS,
    Effort,
    Item,
    Load,
    Lot,
    Packed,
    PackingLimits,
    least_cost,
    total_cost,
)

STEPS_MAX = 500_000  # of one packing
STEPS_PER_PIECE = 2_500  # of a packing of few pieces
STEPS_ALL_WAYS = 6_000  # of a last search for so few pieces that all ways may be tried
ITEMS_MAX = 64  # up to so many items, columns are computed for each; more are packed in classes
ENOUGH = 1.0002  # a packing that is so near to the bound is not improved
NEAR_ENOUGH = 1.007  # the same for many items, beside a weaker bound
# Of classes: a packing that is near enough, and from which worth for its cost on a node is kept.
ENOUGH_CLASSES, KEPT_FROM = 1.002, 0.98
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
    return Problem(items, lots, fits).pack(limits, effort if effort is not None else Effort(STEPS_MAX))


def fill(items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> Packed:
    """Pack as much as these nodes take, ignoring limits: they are paid for."""
    return pack_by_patterns(items, lots, fits)


class Problem:
    """What to pack where: as for :func:`pack`. It may be packed first greedily and then with effort.

    Items and lots get an order of their own, so that the order in which they came makes no difference. Only equal
    lots stay in the order in which they came: nodes that are up come before nodes that are free in a moment.
    """

    def __init__(self, items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]]) -> None:
        self._lots = sorted(range(len(lots)), key=lambda lot: (_lot_key(lots[lot]), lot))
        rows = [[row[lot] for lot in self._lots] for row in fits]
        self._items = sorted(range(len(items)), key=lambda item: (_item_key(items[item]), rows[item], item))
        self.items = [items[item] for item in self._items]
        self.lots = [lots[lot] for lot in self._lots]
        self.fits = [rows[item] for item in self._items]
        self._greedy: Packed | None = None
        self.steps = 0  # of all greedy packings

    def pack(self, limits: PackingLimits, effort: Effort) -> Packed:
        """Pack all pieces at the least cost, or as many as the limits allow. With no effort left, greedily."""
        if self._greedy is None:
            self._greedy = pack_by_patterns(self.items, self.lots, self.fits)
            self.steps += self._greedy.steps
        packed = _pack(self.items, self.lots, self.fits, limits, effort, self._greedy)
        self.steps += packed.steps
        return self._restored(packed)

    def _restored(self, packed: Packed) -> Packed:
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
    greedy: Packed,
) -> Packed:
    """``greedy``: the packing by patterns. The steps of the result are those of further ones."""
    steps = 0
    dearest = max((lot.cost for lot in lots), default=0)
    packed = Packed((), tuple(item.pieces for item in items))
    for penalty in NODE_PENALTIES:
        dear = [replace(lot, cost=lot.cost + int(penalty * dearest)) if lot.bought else lot for lot in lots]
        packed = pack_by_patterns(items, dear, fits) if penalty else greedy
        steps += packed.steps if penalty else 0
        if effort.left > 0:
            steps += 2 * packed.steps  # as much again each
            packed = _cheapest_greedy(items, dear, fits, packed)
        if limits.allow(packed.loads, lots):
            own = Effort(min(effort.left, STEPS_PER_PIECE * sum(item.pieces for item in items)))
            effort.left -= own.left
            better = _improved(packed, items, dear, fits, limits, own)
            effort.left += own.left
            best = better if total_cost(better.loads, lots) <= total_cost(packed.loads, lots) else packed
            return replace(best, steps=steps)
    if 0 < sum(item.pieces for item in items) <= PIECES_EXACT:
        search = Effort(exact.STEPS_MAX)
        loads = exact.search(items, lots, fits, limits, search)
        steps += exact.STEPS_MAX - search.left
        if loads is not None:
            return Packed(loads, (0,) * len(items), steps)
    return replace(_cut_to_limits(packed, lots, limits), steps=steps)


def _cheapest_greedy(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], by_patterns: Packed | None = None
) -> Packed:
    """The cheapest of the greedy packings that places the most. ``by_patterns``: one of them, if it is known."""
    best = by_patterns if by_patterns is not None else pack_by_patterns(items, lots, fits)
    order = largest_first(items, lots, fits)
    for by_share in (True, False):
        below = float("inf") if any(best.left) else total_cost(best.loads, lots)
        found = pack_best_fit(items, lots, fits, by_share=by_share, below=below, order=order)
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
    if len(packed.loads) == 1 and sum(item.pieces for item in items) == 1:
        return packed  # one piece, on the cheapest node that takes it
    if sum(1 for item in items if item.pieces) > ITEMS_MAX:
        if total_cost(packed.loads, lots) <= NEAR_ENOUGH * least_cost(items, lots):
            return packed
        loads = _pack_classes(items, lots, fits, effort)
    else:
        loads, _ = _pack_columns(packed.loads, items, lots, fits, limits, effort)
    if loads is None or not limits.allow(loads, lots) or total_cost(loads, lots) > total_cost(packed.loads, lots):
        return packed
    return Packed(tuple(loads), packed.left)


def _pack_columns(
    known: Sequence[Load],
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort,
    enough: float = ENOUGH,
) -> tuple[list[Load], Sequence[float]]:
    """A packing by columns, no dearer than the one known, and what a piece of each item is worth."""
    columns = ColumnPacking(items, lots, fits, effort, tail_saving=enough - 1.0)
    columns.solve(known)
    best, least = list(known), total_cost(known, lots)
    for way in ROUNDING:
        if least <= columns.bound * enough or effort.left <= 0:
            break
        loads = _completed(*columns.rounded(way), items, lots, fits)
        if loads is not None and total_cost(loads, lots) < least and limits.allow(loads, lots):
            best, least = loads, total_cost(loads, lots)
    if least > columns.bound * enough:
        loads = repack_worst(best, items, lots, fits, columns.worth, effort)
        if limits.allow(loads, lots):
            best, least = loads, total_cost(loads, lots)
    if least > columns.bound * enough:
        found = pack_in_orders(items, lots, fits, limits, effort, below=least)
        if found is not None:
            loads = repack_worst(found, items, lots, fits, columns.worth, effort)
            best = loads if limits.allow(loads, lots) else list(found)
            least = total_cost(best, lots)
    if sum(item.pieces for item in items) <= PIECES_EXACT and (effort.left <= 0 or least > columns.bound * enough):
        # With many lots, few pieces get too few steps for all columns.
        all_ways = exact.search(items, lots, fits, limits, Effort(STEPS_ALL_WAYS), below=least, worth=columns.worth)
        best = list(all_ways) if all_ways is not None else best
    return best, columns.worth


def _pack_classes(
    items: Sequence[Item], lots: Sequence[Lot], fits: Sequence[Sequence[int]], effort: Effort
) -> list[Load] | None:
    """A packing by classes of similar items; None if it does not hold all pieces.

    Nodes that are worth their cost are kept. The other pieces are packed again, in classes of fewer items each,
    until few items are left.
    """
    left, free = [item.pieces for item in items], [lot.count for lot in lots]
    kept: list[Load] = []
    while True:
        numbers = [number for number, pieces in enumerate(left) if pieces]
        rest = [replace(items[number], pieces=left[number]) for number in numbers]
        some = [replace(lot, count=count) for lot, count in zip(lots, free, strict=True)]
        rows = [fits[number] for number in numbers]
        made: list[Load] = []
        if len(numbers) > ITEMS_MAX and effort.left > 0:
            classes = Classes(rest, some, rows)
            start = _cheapest_greedy(classes.items, classes.lots, classes.fits)
            if any(start.left):
                return None
            loads, worth = _pack_columns(
                start.loads, classes.items, classes.lots, classes.fits, NO_LIMITS, effort, ENOUGH_CLASSES
            )
            made = classes.realised(loads, effort)
            made = _worth_keeping(made, classes.worth_of_items(worth), rest, lots)
        if not made:
            packed = _cheapest_greedy(rest, some, rows)
            if len(numbers) <= ITEMS_MAX:
                packed = _improved(packed, rest, some, rows, NO_LIMITS, effort)
            made = list(packed.loads)
            if any(packed.left):
                return None
        for load in made:
            pieces = tuple((numbers[item], of) for item, of in load.pieces)
            kept.append(Load(load.lot, load.nodes, pieces))
            free[load.lot] -= load.nodes
            for number, of in pieces:
                left[number] -= load.nodes * of
        if not any(left):
            return kept


def _worth_keeping(
    loads: Sequence[Load], worth: Sequence[float], items: Sequence[Item], lots: Sequence[Lot]
) -> list[Load]:
    """The loads whose contents are worth what the node costs, or all if these hold less than half of the pieces."""
    good = [
        load
        for load in loads
        if sum(worth[item] * of for item, of in load.pieces) >= KEPT_FROM * lots[load.lot].cost
    ]
    pieces = sum(load.nodes * of for load in good for _, of in load.pieces)
    return good if 2 * pieces >= sum(item.pieces for item in items) else list(loads)


def _completed(
    loads: list[Load],
    left: Sequence[int],
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
) -> list[Load] | None:
    """The loads, and a greedy packing of the other pieces; None if some have no place."""
    if not any(left):
        return loads
    free = [lot.count for lot in lots]
    for load in loads:
        free[load.lot] -= load.nodes
    rest = [replace(item, pieces=pieces) for item, pieces in zip(items, left, strict=True)]
    more = _cheapest_greedy(rest, [replace(lot, count=of) for lot, of in zip(lots, free, strict=True)], fits)
    return None if any(more.left) else [*loads, *more.loads]


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


# --- repack the nodes of a packing that are worth least for their cost, by trying all ways ----------------


PIECES_EXACT = 10  # up to so many pieces are packed by trying all ways
# The nodes that are worth least for their cost are repacked: how many of them, and how many steps a search takes.
NODES_REPACKED, STEPS_REPACKED = 16, 4_000


def repack_worst(
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
