"""Repack the nodes of a packing that are worth least for their cost, by trying all ways."""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.planner.packing import exact
from nodemanager.planner.packing.types import NO_LIMITS, Effort, Item, Load, Lot, total_cost
from nodemanager.planner.state.frozen import replace

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
