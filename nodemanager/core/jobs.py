"""Jobs and what they ask for: frozen values.

A field that ends in ``_at`` is wall-clock time, in seconds since the epoch, and comes from Flux. Durations end in
``_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from nodemanager.core.slots import Rank

JobId = NewType("JobId", int)


@dataclass(frozen=True, slots=True)
class HasProperty:
    name: str


@dataclass(frozen=True, slots=True)
class OnHosts:
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class OnRanks:
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds; the empty one holds everywhere."""

    parts: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One part holds; the empty one holds everywhere, as in Flux (RFC 31)."""

    parts: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Constraint


Constraint = HasProperty | OnHosts | OnRanks | All | AnyOf | Not
ANYWHERE = All(())


@dataclass(frozen=True, slots=True)
class Shape:
    """What one job asks of nodes (RFC 14, RFC 25), reduced to what decides where it fits.

    ``nodes`` is None where the job asks for slots wherever they are; then ``slots`` is their whole number, else
    the number on each node. A range counts by its least value. Equal shapes are interchangeable.
    """

    slots: int
    cores_per_slot: int
    gpus_per_slot: int = 0
    nodes: int | None = None
    exclusive: bool = False
    constraint: Constraint = ANYWHERE
    # Heeded when a node is chosen to be bought. No scheduler we know heeds them on nodes that are up.
    memory_bytes_per_slot: int = 0
    one_zone: bool = False  # all its nodes are to be made in one zone of the provider
    # Jobs are counted by it again and again, so it is worked out once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        counts = self.slots, self.cores_per_slot, self.gpus_per_slot, self.nodes, self.memory_bytes_per_slot
        object.__setattr__(self, "_hash", hash((*counts, self.exclusive, self.one_zone, self.constraint)))

    def __hash__(self) -> int:
        return self._hash


class JobState(StrEnum):
    """The states of an active job (RFC 21). A job that became inactive leaves the snapshot."""

    NEW = "new"
    DEPEND = "depend"
    PRIORITY = "priority"
    SCHED = "sched"
    RUN = "run"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True)
class RankAllocation:
    """What a running job has of one rank."""

    rank: Rank
    cores: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Job:
    """An active job."""

    id: JobId
    state: JobState
    shape: Shape
    submitted_at: float
    urgency: int = 16  # 0 is held
    priority: int = 16
    duration_s: float = 0.0  # 0 is unlimited
    queue: str = ""  # "" is the anonymous queue
    userid: int = 0
    # What the jobspec asks for and no scheduler we know honours ("memory"), so that it can be said.
    unheeded: tuple[str, ...] = ()
    # Of a running job: what it was given, and when that expires (RFC 20); None where it never does.
    allocations: tuple[RankAllocation, ...] = ()
    ends_at: float | None = None
    began_at: float | None = None
    requeue: bool = False  # it asks to be submitted once more should its node be taken back
    requeued_from: JobId | None = None  # whose successor it is


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job whose jobspec could not be read: said, never bought for, and harmless to the others."""

    id: JobId
    why: str


class QueuePolicy(StrEnum):
    """In which order the scheduler starts jobs."""

    FIFO = "fifo"  # one that cannot start holds up all behind it: sched-simple
    BACKFILL = "backfill"  # those behind it may go first: Fluxion, by its own queue policies


class PackingPolicy(StrEnum):
    """Which jobs share a node that is bought for them."""

    SPREAD = "spread"  # any that fit: the fewest nodes
    WALLTIME = "walltime"  # those that end at about the same time, so that nodes empty
