"""Leave out lots that no packing needs: another is no smaller, costs no more and suits the same work.

Of a provider's price list a few dozen types remain. A lot comes back if those that are better may run out: how many
nodes of each are wanted is known from a greedy packing that has as many as it likes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from nodemanager.planner.packing.types import Load, Lot

RESERVE = 2.0  # so many times what the greedy packing uses must be there


def find_dominated(
    lots: Sequence[Lot],
    suits: Sequence[Hashable],
    used: Mapping[int, int] | None = None,
    run_out: Collection[int] = (),
) -> Mapping[int, int]:
    """The lots to leave out, and for each a better one.

    ``suits``: equal for lots that suit the same work. ``used``: how many nodes are wanted of the lots that are left
    if none runs out. Without it, none does. ``run_out``: lots that do not count as better.
    """
    best: dict[Hashable, list[int]] = {}
    dominated: dict[int, int] = {}
    wanted = dict(used or {})
    for number in sorted((lot for lot in range(len(lots)) if lots[lot].bought), key=lambda it: _key(lots[it], it)):
        lot, held, first = lots[number], 0.0, None
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
                first = other if first is None else first
                held += better.count / (RESERVE * wanted[other]) if wanted.get(other) else 1.0
                if held >= 1.0:
                    dominated[number] = first
                    break
        else:
            rivals.append(number)
            if first is not None:
                wanted.setdefault(number, wanted.get(first, 0))  # it stands in for the first
    return dominated


def nodes_used(loads: Sequence[Load]) -> dict[int, int]:
    """How many nodes of each lot a packing uses."""
    used: dict[int, int] = {}
    for load in loads:
        used[load.lot] = used.get(load.lot, 0) + load.nodes
    return used


def _key(lot: Lot, number: int) -> tuple[int, ...]:
    return lot.cost, lot.price, -lot.cores, -lot.memory_bytes, -lot.gpus, number
