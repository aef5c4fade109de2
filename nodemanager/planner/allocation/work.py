"""What is allocated: work, which is equal jobs that wait for nodes, and groups, which are nodes with equal load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodemanager.core.jobs import JobId, Shape
from nodemanager.planner.packing.types import Item
from nodemanager.planner.scheduler.sched_simple import (
    cores_of_piece,
    on_different_nodes,
    pieces_of,
    slots_per_piece,
)
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.queue_index import BatchKey

UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Work:
    """Equal jobs, each with ``pieces_each`` pieces to place. ``runs``: (batch, its ids, begin, end), in order."""

    shape: Shape
    span_s: float
    pieces_each: int
    runs: tuple[tuple[BatchKey, Sequence[JobId], int, int], ...]

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return sum(end - begin for _, _, begin, end in self.runs)

    def job(self, number: int) -> JobId:
        """The id of the job with this number. Raises ``IndexError`` if there is none."""
        for _, ids, begin, end in self.runs:
            if number < end - begin:
                return ids[begin + number]
            number -= end - begin
        raise IndexError(number)

    def jobs_between(self, first: int, end: int) -> list[JobId]:
        """The ids of the jobs from number ``first`` to before ``end``."""
        found: list[JobId] = []
        for _, ids, begin, until in self.runs:
            if end <= 0:
                break
            found += ids[begin + max(0, first) : min(begin + end, until)]
            first -= until - begin
            end -= until - begin
        return found

    def number(self, key: BatchKey, index: int) -> int | None:
        """The number, within this work, of the job at an index of a batch; None if it is not part of it."""
        before = 0
        for batch, _, begin, end in self.runs:
            if batch == key and begin <= index < end:
                return before + index - begin
            before += end - begin
        return None

    def item(self, memory_bytes: int) -> Item:
        """The work as an item of the packing. ``memory_bytes``: the memory of each piece."""
        shape, jobs = self.shape, self.jobs
        return Item(
            pieces=jobs * self.pieces_each,
            cores=cores_of_piece(shape),
            gpus=shape.gpus_per_slot * (1 if shape.exclusive else slots_per_piece(shape)),
            memory_bytes=memory_bytes,
            per_node_max=jobs if on_different_nodes(shape) else UNBOUNDED,
            exclusive=shape.exclusive,
        )


def unplaced_work(shape: Shape, span_s: float, runs: Sequence[tuple[BatchKey, Sequence[JobId], int, int]]) -> Work:
    """The work of jobs without any placed piece."""
    return Work(shape, span_s, pieces_of(shape), tuple(runs))


def pieces_of_job(work: Work, job: int) -> range:
    if on_different_nodes(work.shape):
        return range(job, work.jobs * work.pieces_each, work.jobs)
    return range(job * work.pieces_each, (job + 1) * work.pieces_each)


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
