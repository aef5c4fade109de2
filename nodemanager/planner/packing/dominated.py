"""Leave out lots that no packing needs: another is no smaller, costs no more and suits the same work.

Of a provider's price list a few dozen types remain. A lot comes back if those that are better may run out.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from nodemanager.planner.packing.types import Item, Load, Lot


def find_dominated(
    items: Sequence[Item],
    lots: Sequence[Lot],
    suits: Sequence[Hashable],
    run_out: Collection[int] = (),
) -> Mapping[int, int]:
    """The lots to leave out, and for each a better one. The better ones together hold all of the work.

    ``suits``: equal for lots that suit the same work. ``run_out``: lots that no longer count as better.
    """
    best: dict[Hashable, list[int]] = {}
    dominated: dict[int, int] = {}
    wanted = _Wanted(items)
    shares: dict[int, float] = {}
    for number in sorted((lot for lot in range(len(lots)) if lots[lot].bought), key=lambda it: _key(lots[it], it)):
        lot, held = lots[number], 0.0
        rivals = best.setdefault(suits[number], [])
        for other in rivals:
            better = lots[other]
            if (
                better.cores >= lot.cores
                and better.memory_bytes >= lot.memory_bytes
                and better.gpus >= lot.gpus
                and better.price <= lot.price
                and other not in run_out
            ):
                if other not in shares:
                    shares[other] = wanted.share_held(better)
                held += shares[other]
                if held >= 1.0:
                    dominated[number] = other
                    break
        else:
            rivals.append(number)
    return dominated


class _Wanted:
    """What all pieces want together."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._pieces = sum(item.pieces for item in items)
        self._cores = sum(item.pieces * item.cores for item in items)
        self._gpus = sum(item.pieces * item.gpus for item in items)
        self._memory_bytes = sum(item.pieces * item.memory_bytes for item in items)
        self._alone = sum(item.pieces for item in items if item.exclusive)
        # How many nodes the work needs at least because its pieces want different nodes.
        self._apart = max((-(-item.pieces // item.per_node_max) for item in items if item.pieces), default=0)

    def share_held(self, lot: Lot) -> float:
        """Which part of the work the nodes of a lot hold, roughly."""
        if lot.count >= self._pieces:
            return 1.0
        nodes = max(
            self._cores / lot.cores,
            self._memory_bytes / lot.memory_bytes if lot.memory_bytes else 0.0,
            self._gpus / lot.gpus if lot.gpus else 0.0,
        )
        return lot.count / max(1.0, nodes + self._alone, float(self._apart))


def _key(lot: Lot, number: int) -> tuple[int, ...]:
    return lot.cost, lot.price, -lot.cores, -lot.memory_bytes, -lot.gpus, number


def used_up(loads: Sequence[Load], lots: Sequence[Lot]) -> set[int]:
    """The lots that a packing leaves no node of."""
    left = dict(enumerate(lot.count for lot in lots))
    for load in loads:
        left[load.lot] -= load.nodes
    return {number for number, count in left.items() if count <= 0}
