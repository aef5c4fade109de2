"""An index of the ranks: those with free cores, and the slots without a node.

``observe`` keeps it in the snapshot with the ranks. It knows from which ranks and node types it was built.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from nodemanager.core.drains import drained_by_others, is_drain_by_flux
from nodemanager.core.jobs import Job, JobId, JobState, Shape
from nodemanager.core.nodes import FluxRank
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.planner.constraints import Matches, Place
from nodemanager.planner.frozen import lazy_property
from nodemanager.planner.policy import Policy


@dataclass(frozen=True, slots=True)
class FeasibilityCache:
    """A cache of why shapes could never be served; None for a shape that could. ``placement`` fills it.

    The answer depends on the policy, on the slots and on their ranks. So the cache passes from one index to the
    next as long as these stay the same (:func:`updated_rank_index`). It may be empty at any time, but never wrong.
    """

    policy: Policy
    obstacle_of: dict[Shape, Obstacle | None] = field(default_factory=dict)
    fits_no_other: dict[Shape, bool] = field(default_factory=dict)  # than types that ``only_for`` reserves
    # The policies with the limits that schedules set later, each with its time: one tuple, once it is asked for.
    limits_ahead: list[tuple[tuple[float, Policy], ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankIndex:
    """The ranks by use. ``vacant``: by type, the indexes of vacant slots in the type's list, ascending."""

    ranks: Mapping[Rank, FluxRank] = field(
        default_factory=lambda: MappingProxyType({})
    )  # what the index was built from
    node_types: Sequence[NodeType] = ()
    with_room: Mapping[Rank, FluxRank] = field(default_factory=lambda: MappingProxyType({}))
    by_room: Sequence[tuple[int, int, Rank]] = ()  # those: -cores_free, -gpus_free and rank, ascending
    vacant: Mapping[TypeName, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    slots: Mapping[TypeName, int] = field(default_factory=lambda: MappingProxyType({}))  # how many Flux knows
    feasibility: FeasibilityCache | None = field(default=None, compare=False, repr=False)
    # Which ranks satisfy which constraints. Passes on as long as the ranks' hosts and the types stay the same.
    matches: Matches = field(default_factory=Matches, compare=False, repr=False)


def rank_index_of(ranks: Mapping[Rank, FluxRank], known: RankIndex, policy: Policy) -> RankIndex:
    """The index of these ranks: ``known`` if it was built from them, else a new one."""
    if known.ranks is ranks and known.node_types is policy.node_types:
        return known
    return updated_rank_index(
        RankIndex(node_types=policy.node_types), ranks, [(None, rank) for rank in ranks.values()], policy
    )


def with_policy(index: RankIndex, policy: Policy) -> RankIndex:
    """The index with an empty feasibility cache for another policy."""
    return replace(index, feasibility=FeasibilityCache(policy))


def updated_rank_index(  # noqa: C901 - one branch a use of the ranks
    index: RankIndex,
    ranks: Mapping[Rank, FluxRank],
    changes: Iterable[tuple[FluxRank | None, FluxRank | None]],
    policy: Policy,
) -> RankIndex:
    """An index of ``ranks``. ``changes``: each changed rank as it was and as it is; None if it does not exist."""
    with_room: dict[Rank, FluxRank] = dict(index.with_room)
    filled: list[tuple[int, int, Rank]] = []
    freed: list[tuple[int, int, Rank]] = []
    vacated: dict[TypeName, set[int]] = {}
    taken: dict[TypeName, set[int]] = {}
    slots, feasibility, matches = index.slots, index.feasibility, index.matches
    moved: list[tuple[FluxRank | None, FluxRank | None]] = []
    for before, after in changes:
        if before is not None:
            if with_room.pop(before.rank, None) is not None:
                filled.append((-before.cores_free, -before.gpus_free, before.rank))
            _note_vacancy(before, policy, taken)
        if after is not None:
            if after.online and after.schedulable and after.cores_free > 0:
                with_room[after.rank] = after
                freed.append((-after.cores_free, -after.gpus_free, after.rank))
            _note_vacancy(after, policy, vacated)
        if before is None or after is None or before.host != after.host:
            moved.append((before, after))
    if moved:
        slots, feasibility, matches = (
            _count_slots(slots, moved, policy),
            None,
            Matches(partial(_places, ranks, policy)),
        )
    vacant = dict(index.vacant)
    for name in {**taken, **vacated}:
        came, went = vacated.get(name, set()), taken.get(name, set())
        if came != went:
            vacant[name] = _with_changes(vacant.get(name, ()), went - came, came - went)
    if feasibility is None or feasibility.policy is not policy:
        feasibility = FeasibilityCache(policy)
    by_room = with_changes(index.by_room, filled, freed) if filled or freed else index.by_room
    return RankIndex(ranks, policy.node_types, with_room, by_room, vacant, slots, feasibility, matches)


def _places(ranks: Mapping[Rank, FluxRank], policy: Policy) -> Iterator[Place]:
    types, places = policy.types, policy.index_of_slot
    for rank in ranks.values():
        place = places.get(rank.host)
        yield Place(rank.rank, rank.host, types[place[0]].properties if place is not None else frozenset())


def is_vacant(rank: FluxRank) -> bool:
    """Whether no node is on the rank and it may be used. A person's drain is a hold.

    A drain of Flux's own concerned a node that is gone. It is undone when the slot is leased.
    """
    held = drained_by_others(rank) and not is_drain_by_flux(rank.drain_reason)
    return not (rank.online or rank.allocated or rank.given_back is not None or rank.excluded or held)


def _note_vacancy(rank: FluxRank, policy: Policy, vacant: dict[TypeName, set[int]]) -> None:
    type_and_index = policy.index_of_slot.get(rank.host)
    if type_and_index is not None and is_vacant(rank):
        vacant.setdefault(type_and_index[0], set()).add(type_and_index[1])


def _count_slots(
    slots: Mapping[TypeName, int], changes: Iterable[tuple[FluxRank | None, FluxRank | None]], policy: Policy
) -> Mapping[TypeName, int]:
    """The number of slots of each type after the changes."""
    counted = dict(slots)
    for change in changes:
        for rank, more in zip(change, (-1, 1), strict=True):
            type_and_index = policy.index_of_slot.get(rank.host) if rank is not None else None
            if type_and_index is not None:
                counted[type_and_index[0]] = counted.get(type_and_index[0], 0) + more
    return counted


def _with_changes(indexes: Sequence[int], went: set[int], came: set[int]) -> list[int]:
    if len(went) + len(came) > len(indexes) // 8:
        return sorted((set(indexes) - went) | came)
    made = list(indexes)
    for index in went:
        at = bisect_left(made, index)
        if at < len(made) and made[at] == index:
            del made[at]
    for index in came:
        made.insert(bisect_left(made, index), index)
    return made


# --- queue index ------------------------------------------------------------------------------------------
#
# An index of the queue: equal jobs of one user and queue form a batch, in the order in which Flux starts them.
#
# ``observe`` keeps the index in the snapshot with the jobs, so an update costs only what changed. The index knows
# from which jobs it was built. If the snapshot has others, :func:`queue_index_of` builds a new one, so it is
# never wrong.


# Steps of time limits: jobs within one step count as ending together.
SPANS_S = (300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, inf)

STARTED = (JobState.RUN, JobState.CLEANUP)
INSERTED_SINGLY_MAX = 64  # up to so many changes are inserted one by one; more are sorted


class BatchKey(NamedTuple):
    """What makes waiting jobs interchangeable."""

    priority: int
    shape: Shape
    span_s: float
    userid: int
    queue: str


@dataclass(frozen=True)
class QueueIndex:
    """The queue, by batch. The ids of a batch ascend, which is their order of submission (RFC 19)."""

    jobs: Mapping[JobId, Job] = field(default_factory=lambda: MappingProxyType({}))  # what the index was built from
    batches: Mapping[BatchKey, Sequence[JobId]] = field(default_factory=lambda: MappingProxyType({}))
    withheld: Mapping[JobId, Reason] = field(default_factory=lambda: MappingProxyType({}))
    unheeded: Mapping[JobId, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    copies: Mapping[JobId, JobId] = field(
        default_factory=lambda: MappingProxyType({})
    )  # copies that wait: the originals
    job_ends: Sequence[tuple[float, JobId]] = ()  # running jobs whose end is known, the earliest first

    @lazy_property
    def in_order(self) -> Mapping[BatchKey, Sequence[JobId]]:
        """The batches by priority, then by their first jobs."""
        return dict(sorted(self.batches.items(), key=lambda batch: (-batch[0].priority, batch[1][0])))

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        return len(self.withheld) + sum(map(len, self.batches.values()))


def queue_index_of(jobs: Mapping[JobId, Job], known: QueueIndex) -> QueueIndex:
    """The index of these jobs: ``known`` if it was built from them, else a new one."""
    return known if known.jobs is jobs else updated_queue_index(QueueIndex(), jobs, (), jobs.values())


def updated_queue_index(
    index: QueueIndex, jobs: Mapping[JobId, Job], gone: Iterable[Job], come: Iterable[Job]
) -> QueueIndex:
    """An index of ``jobs``. ``gone``: the changed jobs as they were; ``come``: the changed and new jobs now."""
    changes = _Changes()
    for job in gone:
        changes.note(job, present=False)
    for job in come:
        changes.note(job, present=True)
    batches = dict(index.batches)
    for key in {**changes.left, **changes.joined}:
        ids = with_changes(batches.get(key, ()), changes.left.get(key, []), changes.joined.get(key, []))
        if ids:
            batches[key] = ids
        else:
            batches.pop(key, None)
    ends = (
        with_changes(index.job_ends, changes.ended, changes.begun)
        if changes.ended or changes.begun
        else index.job_ends
    )
    withheld, unheeded = index.withheld, index.unheeded
    if changes.withheld:
        withheld = {id_: why for id_, why in {**withheld, **changes.withheld}.items() if why is not None}
    if changes.unheeded:
        unheeded = {id_: what for id_, what in {**unheeded, **changes.unheeded}.items() if what}
    copies = index.copies
    if changes.copies:
        copies = {id_: it for id_, it in {**copies, **changes.copies}.items() if it is not None}
    return QueueIndex(jobs, batches, withheld, unheeded, copies, ends)


def key_of(job: Job) -> BatchKey:
    """The batch to which a waiting job belongs."""
    return BatchKey(job.priority, job.shape, span_s(job), job.userid, job.queue)


def span_s(job: Job) -> float:
    """The job's time limit in seconds, rounded up to a step. A duration of 0 is unlimited."""
    if job.duration_s <= 0:
        return inf
    return next(step_s for step_s in SPANS_S if job.duration_s <= step_s)


def count_up_to(key: BatchKey, ids: Sequence[JobId], cut: tuple[int, int]) -> int:
    """How many jobs of a batch are at or before a queue position, which is ``(-priority, id)``."""
    priority = -cut[0]
    if key.priority != priority:
        return len(ids) if key.priority > priority else 0
    return bisect_right(ids, cut[1])


def _why_withheld(job: Job) -> Reason | None:
    if job.urgency == 0 or job.priority == 0:
        return because(Code.HELD, urgency=job.urgency, priority=job.priority)
    if job.state is JobState.DEPEND:
        if job.request.requeued_from is not None:
            return because(Code.COPY_WAITS, job=str(job.request.requeued_from))
        reason = because(Code.DEPENDENCY)
        reason = reason.with_figures(jobs=tuple(map(str, job.awaits))) if job.awaits else reason
        return reason if job.not_before_at is None else reason.with_figures(not_before_at=job.not_before_at)
    if job.state is not JobState.SCHED:
        return because(Code.NOT_YET_SCHEDULED, state=str(job.state))
    return None


@dataclass(slots=True)
class _Changes:
    """Changes to the queue, sorted by the part of the index that they concern."""

    left: dict[BatchKey, list[JobId]] = field(default_factory=dict)
    joined: dict[BatchKey, list[JobId]] = field(default_factory=dict)
    ended: list[tuple[float, JobId]] = field(default_factory=list)
    begun: list[tuple[float, JobId]] = field(default_factory=list)
    withheld: dict[JobId, Reason | None] = field(default_factory=dict)
    unheeded: dict[JobId, tuple[str, ...]] = field(default_factory=dict)
    copies: dict[JobId, JobId | None] = field(default_factory=dict)

    def note(self, job: Job, *, present: bool) -> None:
        if job.state in STARTED:
            if job.state is JobState.RUN and job.ends_at is not None:
                (self.begun if present else self.ended).append((job.ends_at, job.id))
            return
        if job.state is JobState.DEPEND and job.request.requeued_from is not None:
            self.copies[job.id] = job.request.requeued_from if present else None
        obstacle = _why_withheld(job)
        if obstacle is not None:
            self.withheld[job.id] = obstacle if present else None
            return
        (self.joined if present else self.left).setdefault(key_of(job), []).append(job.id)
        if job.request.unheeded:
            self.unheeded[job.id] = job.request.unheeded if present else ()


def with_changes(ids: Sequence, left: list, joined: list) -> list:  # type: ignore[type-arg] # of ids, or of ends
    """The sorted list without ``left`` and with ``joined``."""
    made = list(ids)
    if len(left) + len(joined) > INSERTED_SINGLY_MAX:
        leaving = set(left)
        made = [id_ for id_ in made if id_ not in leaving] if leaving else made
        made += joined
        made.sort()
        return made
    for id_ in left:
        index = bisect_left(made, id_)
        if index < len(made) and made[index] == id_:
            del made[index]
    for id_ in joined:
        insort(made, id_)
    return made


# --- what keeps a job from getting nodes ------------------------------------------------------------------
#
# Decisions read the kind; the reason is for people.


class Hindrance(Enum):
    """What follows from an obstacle."""

    NO_SLOT_FITS = auto()  # the slots never suffice. Flux should reject the job; until it does, it keeps its place
    BEYOND_LIMITS = auto()  # a limit or a budget never allows its nodes, although Flux does not reject it
    BEYOND_SCHEDULE = auto()  # only a schedule's limits forbid its nodes, until its window ends
    LIMIT_REACHED = auto()  # it goes away if another node is stopped
    NO_FREE_SLOT = auto()  # other jobs hold the slots
    PROVIDER_FULL = auto()  # a cloud, a quota or the provider's capacity allows no more nodes while others exist
    SPOT_SHARE = auto()  # it goes away if other spot nodes end, or more nodes on demand exist
    UNAVAILABLE = auto()  # it passes: a block, a budget, a zone


@dataclass(frozen=True, slots=True)
class Obstacle:
    """``node_type``: the type of the slots that are not free, or of the nodes for which the provider is full."""

    kind: Hindrance
    reason: Reason
    node_type: TypeName | None = None
