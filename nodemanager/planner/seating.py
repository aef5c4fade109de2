"""Seat jobs on existing nodes as Flux's scheduler will do it, in the order of the queue.

Nodes that are up are filled first, then draining nodes that can be kept, then nodes that will be free soon.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from nodemanager.core.jobs import ANYWHERE, Constraint, JobId, NodeOrder, Shape
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.constraints import Matches, Place
from nodemanager.planner.ranks_and_queue import BatchKey


class Availability(IntEnum):
    """How soon a node can take a job. Nodes are filled in this order."""

    UP = 0
    KEPT = 1  # draining, but may be kept
    SOON = 2  # busy, but free before a new node could boot
    COMING = 3
    NEW = 4  # on sale


SEATED_IN_ORDER = (
    Availability.UP,
    Availability.KEPT,
    Availability.SOON,
)  # jobs are seated on these, in this order


@dataclass(slots=True)
class Bin:
    """The free resources of one node while jobs are seated."""

    slot: SlotName
    rank: Rank
    properties: frozenset[str]
    cores: int
    gpus: int
    availability: Availability
    is_empty: bool = True  # no job runs or is seated there
    free_in_s: float = 0.0  # if it will be free soon
    zone: str = ""
    order: NodeOrder = NodeOrder.MOST_FREE
    used: int = 0  # cores that are not free

    def pieces_that_fit(self, shape: Shape) -> int:
        """How many pieces of the shape fit, as the scheduler counts."""
        return pieces_that_fit(shape, self.cores, self.gpus, is_empty=self.is_empty)

    def take(self, shape: Shape, pieces: int) -> None:
        """Take pieces of the shape from the free resources."""
        self.is_empty = False
        cores, gpus = resources_held(shape, pieces, self.cores, self.gpus)
        self.cores -= cores
        self.used += cores
        self.gpus -= gpus

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """The sort key of bins: the scheduler prefers the least."""
        return sort_key(
            self.order,
            self.slot,
            self.rank,
            cores=self.cores,
            gpus=self.gpus,
            used=self.used,
            is_empty=self.is_empty,
        )


@dataclass(slots=True)
class Seating:
    """Which jobs are seated where.

    ``seats``: the bins of each job that got some, with the pieces on each. ``short``: the pieces that some of these
    jobs lack. ``out_of_reach``: by shape and span, the first job that lacks more pieces than can be obtained, and
    how many; later jobs of the kind get nothing.
    """

    seats: dict[JobId, tuple[tuple[Bin, int], ...]] = field(default_factory=dict)
    short: dict[JobId, tuple[BatchKey, int]] = field(default_factory=dict)
    seated: dict[BatchKey, int] = field(
        default_factory=dict
    )  # how many jobs of each batch, from the first on, got seats
    first_short: tuple[BatchKey, JobId, int] | None = None  # the first job that lacks pieces, and how many
    out_of_reach: dict[tuple[Shape, float], tuple[BatchKey, JobId, int]] = field(default_factory=dict)


class Turn(NamedTuple):
    """A job's turn to be seated. The least comes first: by priority, then by id."""

    minus_priority: int
    job: JobId
    batch: int  # its number
    place: int  # of the job in the batch


class Seater:
    """Seats jobs one after the other, as long as there is room.

    The effort depends on the room, not on the number of jobs: room only shrinks, so a batch that finds none is
    done. ``first_failed``: by shape and span, the queue position from which jobs get nothing. ``zones``: the chosen
    zone of jobs that want a single one and cannot start at once. ``can_come``: the most pieces of a job that other
    nodes could provide. A job that lacks more is out of reach: the first ``give_back`` such jobs leave their seats
    to later jobs, others keep them in vain. Without ``can_come`` every job keeps what it finds. ``matches``: which
    ranks satisfy which constraints, if that is known.
    """

    def __init__(
        self,
        batches: Mapping[BatchKey, Sequence[JobId]],
        bins: Iterable[Bin],
        first_failed: Mapping[tuple[Shape, float], tuple[int, int]],
        zones: Mapping[Shape, str],
        can_come: Callable[[BatchKey, JobId], int] | None = None,
        give_back: int = 0,
        matches: Matches | None = None,
    ) -> None:
        self.seating = Seating()
        self._batches = batches
        self._failed = dict(first_failed)
        self._can_come = can_come
        self._give_back = give_back
        rooms = list(bins)
        self._bin_queues = _BinQueues(rooms, zones, matches if matches is not None else matches_of_bins(rooms))
        self._keys = list(batches)
        self._turns = [  # a heap
            Turn(-key.priority, ids[0], number, 0) for number, (key, ids) in enumerate(batches.items()) if ids
        ]
        heapify(self._turns)

    def seat_all(self) -> Seating:
        """Seat all jobs that find room."""
        while self._turns:
            self._seat_next_batch(stops_at_short=False)
        return self.seating

    def seat_to_first_short(self) -> Seating:
        """Seat jobs up to the first one that does not get all of its nodes."""
        while self._turns and self.seating.first_short is None:
            self._seat_next_batch(stops_at_short=True)
        return self.seating

    def _seat_next_batch(self, *, stops_at_short: bool) -> None:
        """Seat the next jobs of one batch, as long as they precede those of all other batches."""
        first = heappop(self._turns)
        key = self._keys[first.batch]
        ids = self._batches[key]
        for index in range(first.place, len(ids)):
            turn = Turn(-key.priority, ids[index], first.batch, index)
            if index > first.place and (
                (stops_at_short and self.seating.first_short is not None) or (self._turns and self._turns[0] < turn)
            ):
                heappush(self._turns, turn)
                return
            if self._has_failed(key, turn) or not self._seat_job(key, turn.job):
                return
            self.seating.seated[key] = index + 1

    def _has_failed(self, key: BatchKey, turn: Turn) -> bool:
        """Whether jobs of this kind get nothing from this turn on."""
        failed = self._failed.get((key.shape, key.span_s)) if self._failed else None
        return failed is not None and turn[:2] >= failed

    def _seat_job(self, key: BatchKey, job: JobId) -> bool:
        """Seat one job, and return whether it got any seats. If not, no later job of its batch gets some."""
        made = self.seating
        chosen, short = self._bin_queues.find_bins(key.shape)
        if short and self._can_come is not None and short > self._can_come(key, job):
            self._mark_out_of_reach(key, job, short, chosen)
            return False
        if short and made.first_short is None:
            made.first_short = key, job, short
        if not chosen:
            return False
        self._bin_queues.take(key.shape, chosen)
        made.seats[job] = tuple(chosen)
        if short:
            made.short[job] = key, short
        return True

    def _mark_out_of_reach(self, key: BatchKey, job: JobId, short: int, found: Iterable[tuple[Bin, int]]) -> None:
        self.seating.out_of_reach[key.shape, key.span_s] = key, job, short
        self._failed[key.shape, key.span_s] = -key.priority, job
        if found and self._give_back > 0:
            self._give_back -= 1
        else:
            self._bin_queues.take(key.shape, found)


BinOrder = tuple[int, int, int]
# The ranks that suit (all: -1), whether GPUs or a whole node are wanted, and the zone.
BinQueueKind = tuple[int, bool, bool, str | None]


def matches_of_bins(bins: Sequence[Bin]) -> Matches:
    """Which ranks of these bins satisfy which constraints."""
    return Matches(lambda: (Place(bin_.rank, bin_.slot, bin_.properties) for bin_ in bins))


@dataclass(slots=True)
class _BinQueues:
    """The bins; for each kind of job and each availability a heap of those that suit it, the preferred one first.

    Room only shrinks, so a stale entry is only too good: it is corrected when it reaches the front.
    """

    bins: list[Bin]
    zones: Mapping[Shape, str]
    matches: Matches
    here: int | None = None  # the ranks of all bins, once a job has a constraint
    queues: dict[BinQueueKind, list[list[tuple[BinOrder, int]]]] = field(default_factory=dict)

    def find_bins(self, shape: Shape) -> tuple[list[tuple[Bin, int]], int]:
        """Find room for one job: the bins with the pieces on each, and how many pieces found no room.

        The scheduler knows no zones: a job that fits on nodes that are up starts there, in whatever zones.
        """
        chosen, short = self._find_in_zone(shape, None)
        if shape.one_zone and (short or any(bin_.availability is not Availability.UP for bin_, _ in chosen)):
            chosen, short = self._find_in_zone(shape, self.zones[shape])
        return chosen, short

    @staticmethod
    def take(shape: Shape, found: Iterable[tuple[Bin, int]]) -> None:
        for bin_, pieces in found:
            bin_.take(shape, pieces)

    def _find_in_zone(self, shape: Shape, zone: str | None) -> tuple[list[tuple[Bin, int]], int]:
        short = pieces_of(shape)
        chosen: list[tuple[Bin, int]] = []
        for queue in self._queues(shape, zone):
            if short > 0:
                short = self._choose_from(queue, shape, short, chosen)
        return chosen, short

    def _choose_from(
        self, queue: list[tuple[BinOrder, int]], shape: Shape, short: int, chosen: list[tuple[Bin, int]]
    ) -> int:
        least = 1 if shape.exclusive else cores_of_piece(shape)
        seen: list[tuple[BinOrder, int]] = []
        while queue and short > 0:
            order, number = queue[0]
            bin_ = self.bins[number]
            if bin_.cores == 0 or (shape.exclusive and not bin_.is_empty):
                heappop(queue)  # useless for this kind of job from now on
            elif bin_.sort_key != order:
                heapreplace(queue, (bin_.sort_key, number))
            elif bin_.cores < least and bin_.order is NodeOrder.MOST_FREE:
                break  # the others have even fewer
            else:
                seen.append(heappop(queue))
                pieces = min(bin_.pieces_that_fit(shape), short)
                if pieces > 0:
                    chosen.append((bin_, pieces))
                    short -= pieces
        for entry in seen:
            heappush(queue, entry)
        return short

    def _queues(self, shape: Shape, zone: str | None) -> list[list[tuple[BinOrder, int]]]:
        # Most jobs have no constraint, and an identity check is the fastest test.
        suited = -1 if shape.constraint is ANYWHERE else self._ranks_that_suit(shape.constraint)
        kind = (suited, shape.gpus_per_slot > 0, shape.exclusive, zone)
        if kind not in self.queues:
            queues: list[list[tuple[BinOrder, int]]] = [[] for _ in SEATED_IN_ORDER]
            for number, bin_ in enumerate(self.bins):
                wanted = bin_.cores > 0 and (bin_.gpus > 0 or not kind[1]) and (bin_.is_empty or not kind[2])
                if (
                    wanted
                    and zone in (None, bin_.zone)
                    and (suited < 0 or suited >> self.matches.index(bin_.rank) & 1)
                ):
                    queues[bin_.availability].append((bin_.sort_key, number))
            for queue in queues:
                heapify(queue)
            self.queues[kind] = queues
        return self.queues[kind]

    def _ranks_that_suit(self, constraint: Constraint) -> int:
        if self.here is None:
            self.here = self.matches.mask(bin_.rank for bin_ in self.bins)
        return self.matches.of(constraint) & self.here


# --- sched simple -----------------------------------------------------------------------------------------
#
# The rule of Flux's sched-simple: what fits on a rank, which ranks it prefers, and what a job then holds.
#
# The planner (``seating``), the replay of what-if and the simulated Flux all choose ranks by these functions.
# Each keeps its own index of the ranks, so that a choice is fast. ``tests/sched_simple_oracle.py`` reads the rule
# again.
#
# A job consists of *pieces*: the nodes that it asks for, or its slots if it asks for slots on any nodes. All of a
# piece is on one rank. The source is flux-core 0.88, ``flux.resource.Rv1Pool``; the rule ignores memory.


def pieces_of(shape: Shape) -> int:
    """How many pieces a job has: its nodes, or its slots if it does not ask for nodes."""
    return shape.slots if shape.nodes is None else shape.nodes


def slots_per_piece(shape: Shape) -> int:
    """How many slots a piece of a job has."""
    return 1 if shape.nodes is None else shape.slots


def cores_of_piece(shape: Shape) -> int:
    """How many cores a node must have for a piece; for an exclusive piece the cores of one slot."""
    return max(1, shape.cores_per_slot) * (1 if shape.exclusive else slots_per_piece(shape))


def on_different_nodes(shape: Shape) -> bool:
    """Whether the pieces of a job need different nodes. Exclusive slots do too."""
    return shape.nodes is not None or shape.exclusive


def preference(cores: int, gpus: int, rank: int) -> tuple[int, int, int]:
    """The sort key of ranks by their free cores and GPUs: the scheduler takes the least first (worst fit)."""
    return -cores, -gpus, rank


def pieces_that_fit(shape: Shape, cores: int, gpus: int, *, is_empty: bool) -> int:
    """How many pieces of a job fit on one rank with these free cores and GPUs. ``is_empty``: no job runs there.

    An exclusive job starts on any empty rank that has the GPUs of one slot, however few cores the rank has.
    """
    if shape.exclusive:
        return int(is_empty and cores > 0 and gpus >= shape.gpus_per_slot)
    slots = cores // max(1, shape.cores_per_slot)
    if shape.gpus_per_slot:
        slots = min(slots, gpus // shape.gpus_per_slot)
    return slots if shape.nodes is None else int(slots >= shape.slots)


def pieces_in_theory(shape: Shape, cores: int, gpus: int) -> int:
    """How many pieces a rank with these resources counts for when Flux checks whether a job can ever run.

    Unlike when it starts a job, it counts a rank for an exclusive piece only if it has the cores of one slot.
    """
    if shape.exclusive and cores < shape.cores_per_slot:
        return 0
    return pieces_that_fit(shape, cores, gpus, is_empty=True)


def resources_held(shape: Shape, pieces: int, cores: int, gpus: int) -> tuple[int, int]:
    """The cores and GPUs that so many pieces take of a rank with these free ones."""
    if shape.exclusive:
        return cores, gpus
    slots = pieces * slots_per_piece(shape)
    return slots * shape.cores_per_slot, slots * shape.gpus_per_slot


# --- the order in which a scheduler tries nodes, as sort keys: it takes the least first -------------------
#
# sched-simple's is in its source. Fluxion's follow its match policies (flux-sched's ``resource/policies``):
# ``low`` and ``high`` compare the ids of free cores, the ``node`` policies the numbers in host names, and
# ``first`` takes what its traversal finds first. ``tests/live/test_match_policy.py`` compares them with Fluxion
# itself.


SortKey = tuple[int, int, int]
_NUMBER = re.compile(r"[0-9]+$")


def sort_key(
    order: NodeOrder, host: SlotName, rank: Rank, *, cores: int, gpus: int, used: int, is_empty: bool
) -> SortKey:
    """The key of a node. ``cores`` and ``gpus`` are free, ``used`` are cores. Less room never lowers the key."""
    match order:
        case NodeOrder.MOST_FREE:
            return preference(cores, gpus, rank)
        case NodeOrder.EMPTY_FIRST:
            return (0, 0, -rank) if is_empty else (1, -cores, -rank)
        case NodeOrder.LEAST_USED:
            return used, 0, rank
        case NodeOrder.LOWEST:
            return host_number(host), 0, rank
        case NodeOrder.HIGHEST:
            return -host_number(host), 0, -rank


def host_number(host: SlotName) -> int:
    """The number at the end of a host name; -1 if there is none."""
    found = _NUMBER.search(host)
    return int(found[0]) if found is not None else -1
