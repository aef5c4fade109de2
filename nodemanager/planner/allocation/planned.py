"""What booting nodes get first: the pieces they were bought for, if these still wait.

Any other packing of the same pieces might need one node more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodemanager.core.jobs import Shape
from nodemanager.planner.allocation.packable import Packable
from nodemanager.planner.packing.types import Lot, pieces_on_empty, pieces_that_fit

WorksByKind = Mapping[tuple[Shape, float], Sequence[int]]


def works_by_kind(work: Packable) -> WorksByKind:
    """The numbers of the works of each shape and step of time limits. Those whose jobs lack more pieces come first.

    They need more different nodes.
    """
    of_kind: dict[tuple[Shape, float], list[int]] = {}
    works = work.works
    for number in sorted(range(len(works)), key=lambda number: -works[number].pieces_each):
        of_kind.setdefault((works[number].shape, works[number].span_s), []).append(number)
    return of_kind


def planned_contents(source: int, lot: Lot, work: Packable, of_kind: WorksByKind) -> tuple[tuple[int, int], ...]:
    """What one node of an offer gets of that for which it was bought: (item, pieces)."""
    cores, gpus, memory_bytes = lot.cores, lot.gpus, lot.memory_bytes
    contents: dict[int, int] = {}
    for shape, span_s, pieces_each, planned in work.offers[source].load:
        numbers = of_kind.get((shape, span_s), ())
        # First the jobs that lack as many pieces as when the node was bought.
        for number in sorted(numbers, key=lambda it: work.works[it].pieces_each != pieces_each):
            item, left = work.items[number], work.left[number]
            if not planned or not work.may_use(source, work.works[number]):
                continue
            if item.exclusive:
                alone = not contents and left and pieces_on_empty(item, lot)
                return ((number, 1),) if alone else tuple(sorted(contents.items()))
            fitting = pieces_that_fit(item, cores, gpus, memory_bytes)
            had = contents.get(number, 0)
            count = min(planned, left - had, item.per_node_max - had, fitting)
            if count > 0:
                contents[number] = had + count
                planned -= count  # noqa: PLW2901 - the rest goes to the next work of this kind
                cores -= count * item.cores
                gpus -= count * item.gpus
                memory_bytes -= count * item.memory_bytes
    return tuple(sorted(contents.items()))
