"""Pack with a long price list: first without the types that are no better than another one.

If a better type runs out, those that were left out for it come back, and the work is packed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nodemanager.planner.allocation.packable import Packable
from nodemanager.planner.allocation.work import UNBOUNDED, Source
from nodemanager.planner.packing.dominated import find_dominated, nodes_used
from nodemanager.planner.packing.packing import Problem, pack
from nodemanager.planner.packing.types import Effort, Item, Lot, Packed, PackingLimits
from nodemanager.planner.state.frozen import replace

ENDLESS = PackingLimits(UNBOUNDED, UNBOUNDED)
PRICE_LIST_MIN = 32  # from so many node types on it pays to know how many nodes of each are wanted


class Chosen(NamedTuple):
    """A packing. ``sources``: its lots. ``left_out``: the other ones, by number, and for each a better one."""

    packed: Packed
    sources: list[Source]
    left_out: Mapping[int, int]


def pack_best(
    work: Packable,
    items: Sequence[Item],
    sources: Sequence[Source],
    lots: Sequence[Lot],
    limits: PackingLimits,
    effort: Effort,
) -> Chosen:
    """Pack the items of this work onto these nodes at the least cost. ``lots``: one a source."""
    kinds = work.kinds(sources)
    run_out = set[int]()
    left_out = find_dominated(lots, kinds)
    used: dict[int, int] = {}
    wanted = sum(item.pieces for item in items)
    if len(lots) < PRICE_LIST_MIN:
        run_out = {number for number in left_out.values() if lots[number].count < wanted}  # or it may
    elif any(lots[number].count < wanted for number in left_out.values()):
        shown = [number for number in range(len(lots)) if number not in left_out]
        endless = [replace(lots[number], count=wanted) for number in shown]
        there = [sources[number] for number in shown]
        packed = pack(items, endless, work.fits(items, there, endless), ENDLESS, Effort(0))
        used = {shown[lot]: nodes for lot, nodes in nodes_used(packed.loads).items()}
    # No packing of equal pieces on equal nodes is cheaper than a greedy one.
    chosen = Effort(0) if len(lots) == 1 and _are_equal(items) else effort
    spent = Effort(0) if used else chosen  # until it is known which run out
    while True:
        left_out = find_dominated(lots, kinds, used, run_out)
        shown = [number for number in range(len(lots)) if number not in left_out]
        there, some = [sources[number] for number in shown], [lots[number] for number in shown]
        problem = Problem(items, some, work.fits(items, there, some))
        while True:
            packed = problem.pack(limits, spent)
            nodes = nodes_used(packed.loads).items()
            gone = {shown[lot] for lot, count in nodes if count >= some[lot].count} - run_out
            if gone.intersection(left_out.values()):
                run_out |= gone
                break
            if spent is chosen:
                return Chosen(packed, there, left_out)
            spent = chosen


def _are_equal(items: Sequence[Item]) -> bool:
    """Whether all pieces are equal to the packing: of one item, or such that any of them may share a node."""
    sizes = {(it.cores, it.gpus, it.memory_bytes, it.exclusive, it.per_node_max) for it in items}
    return len(items) == 1 or (len(sizes) == 1 and items[0].per_node_max == UNBOUNDED)
