"""Leave out lots that no packing needs: another is no smaller, costs no more and suits the same work.

Of a provider's price list a few dozen types remain. A lot comes back if those that are better may run out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from nodemanager.planner.packing.types import Item, Load, Lot

RESERVE = 2  # how many times the work must fit on the better lots


def find_dominated(items: Sequence[Item], lots: Sequence[Lot], suits: Sequence[Hashable]) -> Mapping[int, int]:
    """The lots to leave out, and for each a better one. ``suits``: equal for lots that suit the same work."""
    best: dict[Hashable, list[int]] = {}
    dominated: dict[int, int] = {}
    cores = sum(item.pieces * item.cores for item in items)
    gpus = sum(item.pieces * item.gpus for item in items)
    memory_bytes = sum(item.pieces * item.memory_bytes for item in items)
    nodes = sum(item.pieces for item in items if item.exclusive) + _most_apart(items)

    def holds(lot: Lot) -> bool:
        """Whether its nodes hold all of the work, with some to spare."""
        count = lot.count / RESERVE - nodes
        return (
            count * lot.cores >= cores and count * lot.memory_bytes >= memory_bytes and count * lot.gpus >= gpus
        ) or lot.count >= sum(item.pieces for item in items)

    enough: dict[int, bool] = {}
    order = sorted(
        (lot for lot in range(len(lots)) if lots[lot].bought),
        key=lambda lot: (
            lots[lot].cost, lots[lot].price, -lots[lot].cores, -lots[lot].memory_bytes, -lots[lot].gpus, lot,
        ),
    )  # fmt: skip
    for number in order:
        lot, kind = lots[number], suits[number]
        for other in best.setdefault(kind, []):
            better = lots[other]
            if (
                better.cores >= lot.cores
                and better.memory_bytes >= lot.memory_bytes
                and better.gpus >= lot.gpus
                and better.price <= lot.price
            ):
                if other not in enough:
                    enough[other] = holds(better)
                if enough[other]:
                    dominated[number] = other
                    break
        else:
            best[kind].append(number)
    return dominated


def used_up(loads: Sequence[Load], lots: Sequence[Lot], better: Mapping[int, int]) -> set[int]:
    """The lots among the better ones that a packing leaves no node of."""
    left = {number: lots[number].count for number in set(better.values())}
    for load in loads:
        if load.lot in left:
            left[load.lot] -= load.nodes
    return {number for number, count in left.items() if count <= 0}


def _most_apart(items: Sequence[Item]) -> int:
    """How many nodes the work needs at least because its pieces want different nodes."""
    return max((-(-item.pieces // item.per_node_max) for item in items if item.pieces), default=0)
