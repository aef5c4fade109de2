"""The demand: which waiting jobs want nodes, by batch, and why the others do not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, merge
from itertools import islice

from nodemanager.core.jobs import (
    ANYWHERE,
    All,
    AnyOf,
    Constraint,
    HasProperty,
    JobId,
    Not,
    OnHosts,
    OnRanks,
    Shape,
    UnreadableJob,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.backoff import gangs_put_off
from nodemanager.planner.breakers import users_put_off
from nodemanager.planner.ranks_and_queue import BatchKey, count_up_to, queue_index_of
from nodemanager.planner.seating import Seating, cores_of_piece, pieces_of
from nodemanager.planner.snapshot import Snapshot
from nodemanager.planner.supply import Supply
from nodemanager.planner.work import Work, unplaced_work


@dataclass(frozen=True, slots=True)
class Demand:
    """The waiting jobs. No node would help the batches in ``put_off`` and the single jobs in ``withheld``.

    ``gangs``: those of ``put_off`` that the provider could not fill.
    """

    batches: Mapping[BatchKey, Sequence[JobId]]
    put_off: Mapping[BatchKey, Reason]
    withheld: Mapping[JobId, Reason]
    unheeded: Mapping[JobId, tuple[str, ...]]  # what jobs ask for but no scheduler we know honours: memory
    gangs: Collection[BatchKey] = ()


def read_demand(snapshot: Snapshot, spent: Mapping[BatchKey, Reason] | None = None) -> Demand:
    """Read the demand from the queue: only jobs that the scheduler would start if there were room.

    ``spent``: the batches of users and queues whose budget is used up. No node is kept or bought for their jobs.
    """
    queue_index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    put_off: dict[BatchKey, Reason] = {}
    refused: set[BatchKey] = set()
    off, gangs = users_put_off(snapshot), gangs_put_off(snapshot)
    for key in queue_index.batches if snapshot.queues.stopped or off or gangs or spent else ():
        if key.queue in snapshot.queues.stopped:
            put_off[key] = because(Code.QUEUE_STOPPED, queue=key.queue)
        elif key.userid in off:
            put_off[key] = off[key.userid]
        elif key.shape in gangs:
            put_off[key] = gangs[key.shape]
            refused.add(key)
        elif spent and key in spent:
            put_off[key] = spent[key]
    bad_jobs = [bad for bad in snapshot.queues.unreadable.values() if not bad.has_started]
    unreadable = {bad.id: unreadable_reason(bad) for bad in bad_jobs}
    return Demand(
        batches=queue_index.in_order,
        put_off=put_off,
        withheld={**queue_index.withheld, **unreadable} if unreadable else queue_index.withheld,
        unheeded=queue_index.unheeded,
        gangs=refused,
    )


def unreadable_reason(bad: UnreadableJob) -> Reason:
    """Why a job gets no nodes that is not in the snapshot's jobs."""
    return because(Code.SET_ASIDE, why=bad.why) if bad.set_aside else because(Code.UNREADABLE, why=bad.why)


# --- waiting ----------------------------------------------------------------------------------------------
#
# The jobs of one placement that existing nodes do not serve: which, at which positions, and how much they need.


JobKind = tuple[Shape, float]  # jobs of a kind share their shape, and the step of their time limit (``span_s``)
QueuePosition = tuple[int, int]  # (-priority, id)
QUEUE_END: QueuePosition = (2**63, 2**63)


def kind_of(key: BatchKey) -> JobKind:
    return key.shape, key.span_s


def count_served_before(
    end: QueuePosition, key: BatchKey, ids: Sequence[JobId], failed: Mapping[JobKind, QueuePosition]
) -> int:
    """How many jobs of a batch are before a position and before the first failed job of their kind."""
    if not failed:
        return count_before(key, ids, end)
    return min(count_before(key, ids, end), count_before(key, ids, failed.get(kind_of(key), QUEUE_END)))


def count_before(key: BatchKey, ids: Sequence[JobId], position: QueuePosition) -> int:
    return count_up_to(key, ids, (position[0], position[1] - 1))


def positions_of(works: Sequence[Work]) -> Iterator[QueuePosition]:
    """The queue positions of their jobs, in order."""
    return merge(*(_positions_in(*run) for work in works for run in work.runs))


def _positions_in(key: BatchKey, ids: Sequence[JobId], begin: int, stop: int) -> Iterator[QueuePosition]:
    return ((-key.priority, int(ids[index])) for index in range(begin, stop))


def batch_at(works: Sequence[Work], position: QueuePosition) -> BatchKey:
    """The batch of the job at a position."""
    for key, ids, begin, stop in (run for work in works for run in work.runs):
        at = bisect_left(ids, position[1], begin, stop)
        if at < stop and ids[at] == position[1]:
            return key
    raise AssertionError(f"job {position[1]} is in none of these batches")


def works_before(works: Sequence[Work], position: QueuePosition) -> list[Work]:
    """The part of the work before a position."""
    front = []
    for work in works:
        runs = (
            (key, ids, begin, min(stop, count_before(key, ids, position))) for key, ids, begin, stop in work.runs
        )
        there = tuple(run for run in runs if run[2] < run[3])
        if there:
            front.append(Work(work.shape, work.span_s, work.pieces_each, there))
    return front


@dataclass(slots=True)
class WaitingJobs:
    """The jobs that are not fully seated. ``failed_from``: from which position on jobs of a kind get nothing."""

    batches: Mapping[BatchKey, Sequence[JobId]]
    seating: Seating
    failed_from: dict[JobKind, QueuePosition] = field(default_factory=dict)
    known_unseated: list[tuple[BatchKey, Sequence[JobId], int]] | None = None

    @property
    def unseated(self) -> list[tuple[BatchKey, Sequence[JobId], int]]:
        """The batches with jobs that may need booting or new nodes, and how many jobs of each are seated."""
        if self.known_unseated is None:
            seated, failed = self.seating.seated, self.failed_from
            self.known_unseated = [
                (key, ids, begin)
                for key, ids in self.batches.items()
                if (begin := seated.get(key, 0)) < len(ids)
                and (-key.priority, ids[begin]) < (failed.get(kind_of(key), QUEUE_END) if failed else QUEUE_END)
            ]
        return self.known_unseated

    def _count_before_failure(self, key: BatchKey, ids: Sequence[JobId], end: QueuePosition) -> int:
        """How many jobs of a batch are before a position and before the first failed job of their kind."""
        return count_served_before(end, key, ids, self.failed_from)

    def first_of(self, priorities: Sequence[int], end: QueuePosition, most: int) -> list[QueuePosition]:
        """The first jobs of these priorities that are not fully seated on existing nodes, in order."""
        chosen = frozenset(priorities)
        positions: list[QueuePosition] = [
            (-key.priority, id_)
            for id_, (key, _) in self.seating.short.items()
            if key.priority in chosen and (-key.priority, id_) < end
        ]
        for key, batch, begin in self.unseated:
            if key.priority in chosen:
                stop = min(self._count_before_failure(key, batch, end), begin + most)
                positions += [(-key.priority, id_) for id_ in batch[begin:stop]]
        return sorted(positions)[:most]

    def key_at(self, position: QueuePosition) -> BatchKey:
        priority, job = -position[0], position[1]
        for key, ids in self.batches.items():
            if key.priority == priority:
                at = bisect_left(ids, job)
                if at < len(ids) and ids[at] == job:
                    return key
        raise AssertionError(f"job {job} is in no batch of priority {priority}")

    def _has_failed(self, key: BatchKey, job: JobId) -> bool:
        return (-key.priority, job) >= self.failed_from.get(kind_of(key), QUEUE_END)

    def is_partly_seated(self, stuck: tuple[BatchKey, QueuePosition]) -> bool:
        return JobId(stuck[1][1]) in self.seating.short

    def cores_short(self, end: QueuePosition) -> int:
        """A lower bound for the cores that the unseated jobs before a position need."""
        cores = 0
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                cores += short * cores_of_piece(key.shape)
        for key, ids, begin in self.unseated:
            jobs = self._count_before_failure(key, ids, end) - begin
            if jobs > 0:
                cores += jobs * pieces_of(key.shape) * cores_of_piece(key.shape)
        return cores

    def unplaced_works(self, end: QueuePosition) -> list[Work]:
        """The work before a position that is not seated, in the order of the batches."""
        runs: dict[JobKind, list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        parts: dict[tuple[JobKind, int], list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                ids = self.batches[key]
                at = bisect_left(ids, id_)
                parts.setdefault((kind_of(key), short), []).append((key, ids, at, at + 1))
        for key, ids, begin in self.unseated:
            stop = self._count_before_failure(key, ids, end)
            if begin < stop:
                runs.setdefault(kind_of(key), []).append((key, ids, begin, stop))
        return [
            *(Work(kind[0], kind[1], short, tuple(those)) for (kind, short), those in parts.items()),
            *(unplaced_work(shape, span_s, those) for (shape, span_s), those in runs.items()),
        ]

    def work_behind(self, after: QueuePosition) -> list[list[Work]]:
        """The unserved work behind a position, kind by kind, in the order of each kind's first job."""
        done = {
            (work.shape, work.span_s, work.pieces_each, key, begin): stop
            for work in self.unplaced_works(after)
            for key, _, begin, stop in work.runs
        }
        behind: dict[JobKind, list[Work]] = {}
        for work in self.unplaced_works(QUEUE_END):
            kind = (work.shape, work.span_s, work.pieces_each)
            runs = [(key, ids, done.get((*kind, key, begin), begin), stop) for key, ids, begin, stop in work.runs]
            rest = Work(*kind, tuple(run for run in runs if run[2] < run[3]))
            if rest.jobs:
                behind.setdefault((work.shape, work.span_s), []).append(rest)
        return sorted(behind.values(), key=lambda works: next(positions_of(works)))

    def work_of_job(self, key: BatchKey, job: JobId) -> Work:
        """The work of a single job."""
        _, short = self.seating.short.get(job, (key, pieces_of(key.shape)))
        return self.work_of_pieces(key, job, short)

    def work_of_pieces(self, key: BatchKey, job: JobId, short: int) -> Work:
        ids = self.batches[key]
        at = bisect_left(ids, job)
        return Work(key.shape, key.span_s, short, ((key, ids, at, at + 1),))

    def first_unseated(self, key: BatchKey, ids: Sequence[JobId], begin: int) -> JobId | None:
        seated = self.seating.seated.get(key, 0)
        behind = enumerate(islice(ids, begin, None), begin)
        return next((id_ for index, id_ in behind if index >= seated or id_ in self.seating.short), None)


# --- limit the work of one plan, so that no user's queue can hold up everybody else's ---------------------
#
# The work is estimated in steps before any job is placed, so it depends on the queue and the ranks alone. Each
# batch costs something, and more for every group of nodes that it is compared with. A constraint that holds on
# some nodes only divides them into more groups. A batch whose data is in one cloud is packed several times, so it
# counts as several (``planner.work``). With budgets jobs are placed several times, so the batches share fewer
# steps. ``STEPS_MAX`` is about half a second.
#
# The steps are shared fairly: the next batch is always one of the user who has used the fewest. A user whose next
# batch is too much gets no more. So only the later shapes of the users with the most of them wait.


STEPS_MAX = 800_000
PLACEMENTS_IF_BUDGETS = 4  # or fewer; there may be one more
STEPS_PER_BATCH = 350
STEPS_PER_GROUP = 200
STEPS_PER_COMPARISON = 8  # of a batch with a group; jobs that cannot all be served are compared more than once
STEPS_PER_TYPE = 250
STEPS_PER_TYPE_AND_ZONE = 8  # the same, more, of a batch that wants all its nodes in one zone
STEPS_PER_TYPE_COMPARISON = 2  # of a batch with a node type: most types of a price list are left out by the packing
PACKINGS_IF_NEAR = 3
PAIRS_PER_STEP = 4  # of two batches that want different amounts of cores, GPUs or memory

Size = tuple[int, int, int, int, int | None, bool]


def batches_beyond(batches: Mapping[BatchKey, Sequence[JobId]], supply: Supply) -> Mapping[BatchKey, Reason]:
    """The batches for which one plan has no time, and why. ``batches``: in the order of the queue."""
    work = WorkEstimate(supply)
    types = len(supply.policy.node_types)
    plain = all(key.shape.constraint is ANYWHERE for key in batches)
    weights, in_zones = sum(map(work.weight_of, batches)), sum(map(work.weight_in_zone, batches))
    if plain and work.steps_of(weights, types, len(batches), in_zones) <= work.steps_max:
        return {}
    of_user: dict[int, list[BatchKey]] = {}
    for key in batches:
        of_user.setdefault(key.userid, []).append(key)
    # A heap of the users: their steps so far, and the index of their next batch.
    turns = [(0, userid, 0) for userid in of_user]
    heapify(turns)
    beyond: dict[BatchKey, Reason] = {}
    while turns:
        used, userid, index = heappop(turns)
        keys = of_user[userid]
        steps = work.add(keys[index])
        if steps is None:
            why = because(Code.TOO_MANY_SHAPES, shapes=len(keys), considered=index)
            beyond.update(dict.fromkeys(keys[index:], why))
        elif index + 1 < len(keys):
            heappush(turns, (used + steps, userid, index + 1))
    return beyond


@dataclass(slots=True)
class WorkEstimate:
    """The work for the batches so far."""

    supply: Supply
    reading: int = 0  # steps for reading constraints
    batches: int = 0  # one whose data is in one cloud counts as several
    in_zones: int = 0  # of them, those that want all their nodes in one zone
    sizes: dict[Size, None] = field(default_factory=dict)
    groups: list[int] = field(init=False)  # of ranks that the constraints so far do not tell apart
    masks: dict[int, None] = field(default_factory=dict)

    divided: bool = False  # whether ``groups`` hold ranks: only from the first constraint on

    def __post_init__(self) -> None:
        self.groups = [0] * len(self.supply.policy.node_types)

    @property
    def steps_max(self) -> int:
        """The most steps of a plan."""
        return STEPS_MAX // PLACEMENTS_IF_BUDGETS if self.supply.policy.budgets else STEPS_MAX

    @property
    def steps(self) -> int:
        """The steps for all batches so far."""
        return self.reading + self.steps_of(self.batches, len(self.groups), len(self.sizes), self.in_zones)

    def weight_of(self, key: BatchKey) -> int:
        """As how many batches this one counts."""
        policy = self.supply.policy
        is_near = len(policy.cloud_names) > 1 and policy.home_of(key.shape) is not None
        return PACKINGS_IF_NEAR if is_near else 1

    def weight_in_zone(self, key: BatchKey) -> int:
        """The same, if it wants all its nodes in one zone; else 0."""
        return self.weight_of(key) if key.shape.one_zone else 0

    def steps_of(self, batches: int, groups: int, sizes: int, in_zones: int = 0) -> int:
        """The steps for so many batches, groups of nodes and different sizes, without reading."""
        types = min(groups, len(self.supply.policy.node_types))
        more = groups - types
        each = STEPS_PER_BATCH + STEPS_PER_TYPE_COMPARISON * types + STEPS_PER_COMPARISON * more
        zoned = in_zones * STEPS_PER_TYPE_AND_ZONE * types
        return (
            batches * each
            + zoned
            + STEPS_PER_TYPE * types
            + STEPS_PER_GROUP * more
            + sizes * sizes // PAIRS_PER_STEP
        )

    def add(self, key: BatchKey) -> int | None:
        """Add a batch, and return its steps; None if it is too much, and then nothing is added."""
        before = self.steps
        shape = key.shape
        reading = self.reading + (0 if shape.constraint is ANYWHERE else self._reading_steps(shape.constraint))
        size = _size_of(key)
        sizes = len(self.sizes) + (size not in self.sizes)
        batches, in_zones = self.batches + self.weight_of(key), self.in_zones + self.weight_in_zone(key)
        if reading + self.steps_of(batches, len(self.groups), sizes, in_zones) > self.steps_max:
            return None
        groups, mask = self.groups, None
        if shape.constraint is not ANYWHERE:
            mask = self.supply.matches.of(shape.constraint)
            groups = self._groups_with(mask)
        after = reading + self.steps_of(batches, len(groups), sizes, in_zones)
        if after > self.steps_max:
            return None
        self.reading, self.groups = reading, groups
        self.batches, self.in_zones = batches, in_zones
        if mask is not None:
            self.masks[mask] = None
        self.sizes[size] = None
        return after - before

    def _reading_steps(self, constraint: Constraint) -> int:
        match constraint:
            case HasProperty():
                return 1
            case OnRanks(texts):
                return 1 + sum(map(len, texts))
            case OnHosts(texts):
                # An entry with brackets may be compared with every host.
                brackets = sum(text.count("[") for text in texts)
                return 1 + sum(map(len, texts)) + brackets * self.supply.matches.count
            case All(parts) | AnyOf(parts):
                return 1 + sum(map(self._reading_steps, parts))
            case Not(part):
                return 1 + self._reading_steps(part)

    def _groups_with(self, mask: int) -> list[int]:
        """The groups, divided into ranks that are in the mask and others."""
        if not self.divided:
            self.divided = True
            self.groups = [mask for mask in self.supply.slots_mask.values() if mask]
        if mask in self.masks:
            return self.groups
        return [part for group in self.groups for part in (group & mask, group & ~mask) if part]


def _size_of(key: BatchKey) -> Size:
    shape = key.shape
    cores, gpus, memory = shape.cores_per_slot, shape.gpus_per_slot, shape.memory_bytes_per_slot
    return shape.slots, cores, gpus, memory, shape.nodes, shape.exclusive
