"""Nodes of one offer with equal load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodemanager.planner.allocation.work import Work
from nodemanager.planner.scheduler.sched_simple import slots_per_piece
from nodemanager.planner.state.frozen import replace


@dataclass(frozen=True)  # without slots, so that ``frozen.replace`` is fast
class NodeGroup:
    """Nodes of one offer with equal load.

    ``pieces``: (number of the work, pieces on each node). ``cores``, ``gpus``, ``memory_bytes``: free on each node.
    """

    offer: int
    nodes: int
    zone: str
    pieces: tuple[tuple[int, int], ...]
    cores: int
    gpus: int
    memory_bytes: int

    def with_pieces(self, pieces: tuple[tuple[int, int], ...], works: Sequence[Work]) -> NodeGroup:
        """The same nodes with more pieces on each. ``works``: all of the allocation."""
        cores, gpus, memory_bytes = self.cores, self.gpus, self.memory_bytes
        for number, count in pieces:
            work = works[number]
            if work.shape.exclusive:
                cores = gpus = 0
                continue
            slots = count * slots_per_piece(work.shape)
            cores -= slots * max(1, work.shape.cores_per_slot)
            gpus -= slots * work.shape.gpus_per_slot
            memory_bytes -= min(memory_bytes, slots * work.shape.memory_bytes_per_slot)
        return replace(self, pieces=(*self.pieces, *pieces), cores=cores, gpus=gpus, memory_bytes=memory_bytes)


Source = NodeGroup | int  # where pieces may go: nodes that already have some, or an offer by its number


def offer_number(source: Source) -> int:
    """The number of the offer from which the nodes come."""
    return source.offer if isinstance(source, NodeGroup) else source
