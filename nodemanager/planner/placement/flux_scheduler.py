"""Who sits where on what is there, as Flux's simple scheduler will have it: worst fit, in the order of the queue.

It gives a job the rank with the most free cores first, then the most free GPUs, then the lowest rank (flux-core
0.88, ``flux.resource.Rv1Pool``), and heeds no memory. What is up is filled first, then what can be kept from
leaving, then what will be free soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush, heapreplace

from nodemanager.core.jobs import ANYWHERE, Constraint, JobId, Shape
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.state.constraints import holds
from nodemanager.planner.state.queue_index import BatchKey


class Availability(IntEnum):
    """How soon a node can take a job; in this order they are filled."""

    UP = 0
    KEPT = 1  # draining, to be kept after all
    SOON = 2  # at work, and free before another could boot
    COMING = 3
    NEW = 4  # to be bought


SEATED_IN_ORDER = (
    Availability.UP,
    Availability.KEPT,
    Availability.SOON,
)  # what jobs are seated on, one after the other


@dataclass(slots=True)
class Bin:
    """What is free on one node while jobs are seated."""

    slot: SlotName
    rank: Rank
    properties: frozenset[str]
    cores: int
    gpus: int
    availability: Availability
    is_empty: bool = True  # nothing runs on it, nobody sits on it
    free_in_s: float = 0.0  # of one that will be free soon
    zone: str = ""

    def slots_that_fit(self, shape: Shape) -> int:
        """How many slots of the shape fit, as the scheduler counts.

        A job that takes nodes whole starts on any free node with the GPUs of one slot, however few its cores.
        """
        if shape.exclusive:
            fits = self.is_empty and self.cores > 0 and self.gpus >= shape.gpus_per_slot
            return slots_per_piece(shape) if fits else 0
        by_cores = self.cores // max(1, shape.cores_per_slot)
        return min(by_cores, self.gpus // shape.gpus_per_slot) if shape.gpus_per_slot else by_cores

    def suits(self, constraint: Constraint) -> bool:
        if constraint == ANYWHERE:
            return True
        return holds(constraint, properties=self.properties, host=self.slot, rank=self.rank)

    def take(self, shape: Shape, slots: int) -> None:
        self.is_empty = False
        if shape.exclusive:
            self.cores = self.gpus = 0
        else:
            self.cores -= slots * shape.cores_per_slot
            self.gpus -= slots * shape.gpus_per_slot

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """The scheduler's favourite is the least."""
        return -self.cores, -self.gpus, self.rank


def pieces_of(shape: Shape) -> int:
    """How many pieces a job is made of: its nodes, or its slots where it asks for slots wherever they are."""
    return shape.slots if shape.nodes is None else shape.nodes


def slots_per_piece(shape: Shape) -> int:
    return 1 if shape.nodes is None else shape.slots


def cores_of_piece(shape: Shape) -> int:
    """How many cores a node must have for a piece. One that takes its node whole asks for those of one slot."""
    return max(1, shape.cores_per_slot) * (1 if shape.exclusive else slots_per_piece(shape))


def on_different_nodes(shape: Shape) -> bool:
    """Slots that each take a node whole lie on as many nodes, too."""
    return shape.nodes is not None or shape.exclusive


@dataclass(slots=True)
class Seating:
    """``seats``: the bins of each job that got any, with the pieces on each. ``short``: what some of them lack.

    ``beyond``: from which job on those of a shape and span have nothing: it lacks more than can come; and how much.
    """

    seats: dict[JobId, tuple[tuple[Bin, int], ...]] = field(default_factory=dict)
    short: dict[JobId, tuple[BatchKey, int]] = field(default_factory=dict)
    seated: dict[BatchKey, int] = field(default_factory=dict)  # how many of each batch, from its first on, got any
    first_short: tuple[BatchKey, JobId, int] | None = None  # in the queue, and how many of its pieces found none
    out_of_reach: dict[tuple[Shape, float], tuple[BatchKey, JobId, int]] = field(default_factory=dict)


class Seater:
    """Seats the jobs one after the other, as long as there is room.

    The work goes by the room there is, not by the jobs that wait: a batch that finds none is asked no more, because
    room only shrinks. ``first_failed``: from which place in the queue on jobs of a shape and span get nothing.
    ``zones``: where those that want one zone are to have what they do not start on at once. ``can_come``: no more
    pieces of a job than these can be had elsewhere. Of those that lack more, the first ``give_back`` leave what
    there is to those behind, and others sit on it for nothing; without ``can_come`` all sit on what they find.
    """

    def __init__(
        self,
        batches: Mapping[BatchKey, Sequence[JobId]],
        bins: Iterable[Bin],
        first_failed: Mapping[tuple[Shape, float], tuple[int, int]],
        zones: Mapping[Shape, str],
        can_come: Callable[[BatchKey, JobId], int] | None = None,
        give_back: int = 0,
    ) -> None:
        self.seating = Seating()
        self._batches = batches
        self._failed = dict(first_failed)
        self._can_come = can_come
        self._give_back = give_back
        self._floor = _Floor(list(bins), zones)
        self._keys = list(batches)
        # Each: the place in the queue, the number of the batch, and which of its jobs is next.
        self._turns = [
            (-key.priority, ids[0], number, 0) for number, (key, ids) in enumerate(batches.items()) if ids
        ]
        heapify(self._turns)

    def seat_all(self) -> Seating:
        while self._turns:
            self._next(stops_at_short=False)
        return self.seating

    def seat_to_first_short(self) -> Seating:
        """Only up to the first one that does not get all of its nodes."""
        while self._turns and self.seating.first_short is None:
            self._next(stops_at_short=True)
        return self.seating

    def _next(self, *, stops_at_short: bool) -> None:
        """Seat those of one batch that come before all others."""
        turns, made = self._turns, self.seating
        turn = heappop(turns)
        key, index = self._keys[turn[2]], turn[3]
        failed = self._failed.get((key.shape, key.span_s)) if self._failed else None
        if failed is not None and turn[:2] >= failed:
            return
        ids = self._batches[key]
        while index < len(ids):
            following = (-key.priority, ids[index], turn[2], index)
            if index > turn[3]:
                stops = (stops_at_short and made.first_short is not None) or (turns and turns[0] < following)
                if stops or (failed is not None and following[:2] >= failed):
                    heappush(turns, following)
                    return
            chosen, short = self._floor.find(key.shape)
            if short and self._can_come is not None and short > self._can_come(key, ids[index]):
                self._is_beyond(key, ids[index], short, chosen)
                return
            if short and made.first_short is None:
                made.first_short = key, ids[index], short
            if not chosen:
                return
            self._floor.take(key.shape, chosen)
            made.seats[ids[index]] = tuple(chosen)
            if short:
                made.short[ids[index]] = key, short
            index += 1
            made.seated[key] = index

    def _is_beyond(self, key: BatchKey, job: JobId, short: int, found: Iterable[tuple[Bin, int]]) -> None:
        self.seating.out_of_reach[key.shape, key.span_s] = key, job, short
        self._failed[key.shape, key.span_s] = -key.priority, job
        if found and self._give_back > 0:
            self._give_back -= 1
        else:
            self._floor.take(key.shape, found)


BinOrder = tuple[int, int, int]
BinQueueKind = tuple[Constraint | None, bool, bool, str | None]


@dataclass(slots=True)
class _Floor:
    """The bins; for each kind of job and each standing a queue of those that may take it, the favourite first.

    Room only shrinks, so an entry is never better than it says: it is put right when it comes to the front.
    """

    bins: list[Bin]
    zones: Mapping[Shape, str]
    queues: dict[BinQueueKind, list[list[tuple[BinOrder, int]]]] = field(default_factory=dict)

    def find(self, shape: Shape) -> tuple[list[tuple[Bin, int]], int]:
        """Room for one job: the bins with the pieces on each, and how many pieces found none.

        The scheduler knows no zones: a job that fits on what is up starts there.
        """
        chosen, short = self._found(shape, None)
        if shape.one_zone and (short or any(bin_.availability is not Availability.UP for bin_, _ in chosen)):
            chosen, short = self._found(shape, self.zones[shape])
        return chosen, short

    @staticmethod
    def take(shape: Shape, found: Iterable[tuple[Bin, int]]) -> None:
        for bin_, pieces in found:
            bin_.take(shape, pieces * slots_per_piece(shape))

    def _found(self, shape: Shape, zone: str | None) -> tuple[list[tuple[Bin, int]], int]:
        short = pieces_of(shape)
        chosen: list[tuple[Bin, int]] = []
        for queue in self._queues(shape, zone):
            if short > 0:
                short = self._choose_from(queue, shape, short, chosen)
        return chosen, short

    def _choose_from(
        self, queue: list[tuple[BinOrder, int]], shape: Shape, short: int, chosen: list[tuple[Bin, int]]
    ) -> int:
        each, apart = slots_per_piece(shape), on_different_nodes(shape)
        least = 1 if shape.exclusive else shape.cores_per_slot * each
        seen: list[tuple[BinOrder, int]] = []
        while queue and short > 0:
            order, number = queue[0]
            bin_ = self.bins[number]
            if bin_.cores == 0 or (shape.exclusive and not bin_.is_empty):
                heappop(queue)  # of no use to any job of this kind, now or later
            elif bin_.sort_key != order:
                heapreplace(queue, (bin_.sort_key, number))
            elif bin_.cores < least:
                break  # and so has every one behind it
            else:
                seen.append(heappop(queue))
                pieces = min(bin_.slots_that_fit(shape) // each, 1 if apart else short)
                if pieces > 0:
                    chosen.append((bin_, pieces))
                    short -= pieces
        for entry in seen:
            heappush(queue, entry)
        return short

    def _queues(self, shape: Shape, zone: str | None) -> list[list[tuple[BinOrder, int]]]:
        # Most ask for nothing, which is told by its identity the fastest.
        constraint = shape.constraint if shape.constraint is not ANYWHERE else None
        kind = (constraint, shape.gpus_per_slot > 0, shape.exclusive, zone)
        if kind not in self.queues:
            queues: list[list[tuple[BinOrder, int]]] = [[] for _ in SEATED_IN_ORDER]
            for number, bin_ in enumerate(self.bins):
                wanted = bin_.cores > 0 and (bin_.gpus > 0 or not kind[1]) and (bin_.is_empty or not kind[2])
                if wanted and zone in (None, bin_.zone) and bin_.suits(shape.constraint):
                    queues[bin_.availability].append((bin_.sort_key, number))
            for queue in queues:
                heapify(queue)
            self.queues[kind] = queues
        return self.queues[kind]
