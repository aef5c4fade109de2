"""Pack few pieces by best fit with the items in other orders, and keep the cheapest.

Best fit depends on the order of the items. Where a node is large for the work, another order may save a whole node,
and patterns do not show which. Few pieces are packed so quickly that many orders can be tried: the largest first by
several mixes of cores and memory, by memory per core, and fixed shuffles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodemanager.planner.packing.greedy import pack_best_fit
from nodemanager.planner.packing.types import MIXES, Effort, Item, Load, Lot, PackingLimits, total_cost

PIECES_MAX = 200  # of more pieces, one node more is a small part of the cost
STEPS_MAX = 5_000  # of all orders together
STEPS_PER_ITEM = 4  # of one packing, and one for each lot
SHUFFLES = 24
# A shuffle sorts by the powers of a number, different for each shuffle, modulo a prime.
PRIME, FACTOR = 65_537, 7_919


def pack_in_orders(
    items: Sequence[Item],
    lots: Sequence[Lot],
    fits: Sequence[Sequence[int]],
    limits: PackingLimits,
    effort: Effort,
    below: int,
) -> tuple[Load, ...] | None:
    """The cheapest best-fit packing of all pieces within the limits; None if none costs less than ``below``."""
    if sum(item.pieces for item in items) > PIECES_MAX:
        return None
    each = len(items) * (STEPS_PER_ITEM + len(lots))
    end = max(0, effort.left - STEPS_MAX)
    best: tuple[Load, ...] | None = None
    tried: set[tuple[int, ...]] = set()
    for order in _orders(items):
        if order in tried:
            continue
        tried.add(order)
        for by_share in (True, False) if len(lots) > 1 else (False,):
            if effort.left - each < end:
                return best
            effort.left -= each
            found = pack_best_fit(items, lots, fits, by_share=by_share, below=below, order=order)
            if found is not None and not any(found.left) and limits.allow(found.loads, lots):
                best, below = found.loads, total_cost(found.loads, lots)
    return best


def _orders(items: Sequence[Item]) -> Iterator[tuple[int, ...]]:
    """Orders of the items. Some may be equal."""
    numbers = range(len(items))
    cores = max(1, sum(item.pieces * item.cores for item in items))
    memory = max(1, sum(item.pieces * item.memory_bytes for item in items))

    def scarce(number: int) -> tuple[bool, int]:
        return not items[number].exclusive, -items[number].gpus

    def size(number: int, part: int) -> float:
        return (MIXES - part) * items[number].cores / cores + part * items[number].memory_bytes / memory

    def ratio(number: int) -> float:
        return items[number].memory_bytes / items[number].cores

    for part in range(MIXES, -1, -1):
        yield tuple(sorted(numbers, key=lambda i: (scarce(i), -size(i, part), i)))
    for way in (-1, 1):
        yield tuple(sorted(numbers, key=lambda i: (scarce(i), way * ratio(i), i)))
    for number in range(1, SHUFFLES + 1):
        yield tuple(sorted(numbers, key=lambda i: pow(FACTOR * number, i + 1, PRIME)))
