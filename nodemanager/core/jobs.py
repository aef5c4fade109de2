"""Jobs and their requests, as frozen values.

A field that ends in ``_at`` is wall-clock time from Flux, in seconds since the epoch. Durations end in ``_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from nodemanager.core.slots import CloudName, Rank

JobId = NewType("JobId", int)


@dataclass(frozen=True, slots=True)
class HasProperty:
    """Holds on ranks with this property."""

    name: str


@dataclass(frozen=True, slots=True)
class OnHosts:
    """Holds on the hosts of these host lists (RFC 29). They stay text, because a short text can name many hosts."""

    hostlists: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnRanks:
    """Holds on the ranks of these id sets (RFC 22). They stay text, because a short text can name many ranks."""

    idsets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class All:
    """Holds where every part holds. Without parts it holds everywhere."""

    parts: tuple[Constraint, ...]
    _hash: int = field(init=False, repr=False, compare=False)  # computed once: there may be 256 parts

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("all", self.parts)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds where at least one part holds. Without parts it holds everywhere, as in Flux (RFC 31)."""

    parts: tuple[Constraint, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("any", self.parts)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Not:
    """Holds where the part does not hold."""

    part: Constraint


Constraint = HasProperty | OnHosts | OnRanks | All | AnyOf | Not
ANYWHERE = All(())


@dataclass(frozen=True, slots=True)
class Near:
    """Where a job's data is, as its user says: it may name no cloud of the site. ``data_bytes``: 0 if unknown."""

    cloud: CloudName
    data_bytes: int = 0  # how much of it the job reads


@dataclass(frozen=True, slots=True)
class Shape:
    """A job's resource request (RFC 14, RFC 25), reduced to the parts that decide where the job fits.

    ``nodes`` is None if the job asks for slots on any nodes; then ``slots`` is their total. If ``nodes`` is given,
    ``slots`` is the number on each node. A range counts as its lowest value. Equal shapes are interchangeable.
    """

    slots: int
    cores_per_slot: int
    gpus_per_slot: int = 0
    nodes: int | None = None
    exclusive: bool = False
    constraint: Constraint = ANYWHERE
    # The next three count only when a node is bought. No scheduler we know respects them on nodes that are up.
    memory_bytes_per_slot: int = 0
    one_zone: bool = False  # all its nodes are to be created in one zone of the provider
    near: Near | None = None  # its nodes are to be created in the cloud of its data
    # Computed once, because the planner counts jobs by shape again and again.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        counts = self.slots, self.cores_per_slot, self.gpus_per_slot, self.nodes, self.memory_bytes_per_slot
        near = (self.near,) if self.near is not None else ()
        object.__setattr__(self, "_hash", hash((*counts, self.exclusive, self.one_zone, self.constraint, *near)))

    def __hash__(self) -> int:
        return self._hash


# What lies on a node: the shape of the jobs, the step of their time limits in seconds, how many pieces each of them
# lacks on all nodes together, and the pieces of them on this node.
NodeLoad = tuple[tuple[Shape, float, int, int], ...]


class JobState(StrEnum):
    """The states of an active job (RFC 21). A job that becomes inactive leaves the snapshot."""

    NEW = "new"
    DEPEND = "depend"
    PRIORITY = "priority"
    SCHED = "sched"
    RUN = "run"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True)
class RankAllocation:
    """The part of one rank that a running job holds."""

    rank: Rank
    cores: int
    gpus: int


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a jobspec asks for. Jobs with equal jobspecs share one request. There may be a million such jobs."""

    shape: Shape
    duration_s: float = 0.0  # 0 is unlimited
    queue: str = ""  # "" is the anonymous queue
    # Requests that no scheduler we know respects ("memory"). The job's reason shows them.
    unheeded: tuple[str, ...] = ()
    requeue: bool = False  # the job asks to be submitted again if the provider takes back its node
    requeued_from: JobId | None = None  # the job that it replaces
    patience_s: float = 0.0  # how long it may wait for a cheaper way to run
    near_fault: str = ""  # why the job's data is not considered, or only where it is
    delegated_to: str = ""  # it runs in another instance: what its user asked for (``delegate:TARGET``)


@dataclass(frozen=True, slots=True)
class Job:
    """An active job."""

    id: JobId
    state: JobState
    request: JobRequest
    submitted_at: float
    urgency: int = 16  # 0 is held
    priority: int = 16
    userid: int = 0
    # Of a running job: the allocation and when it expires (RFC 20); None if it never does.
    allocations: tuple[RankAllocation, ...] = ()
    ends_at: float | None = None
    began_at: float | None = None  # also of one that ran and is being cleaned up
    # We hold it in Flux by urgency 0. ``urgency`` and ``priority`` are those that it has again once it is released.
    held_by_us: bool = False
    # Of a job that depends on other jobs: the first of these, as Flux names them in its dependencies.
    awaits: tuple[JobId, ...] = ()
    not_before_at: float | None = None  # of a job that waits for the begin time that its user gave it

    # The parts of the request that are read everywhere.

    @property
    def shape(self) -> Shape:
        return self.request.shape

    @property
    def duration_s(self) -> float:
        return self.request.duration_s

    @property
    def queue(self) -> str:
        return self.request.queue


class JobResult(StrEnum):
    """How a job ended, in the words of ``flux jobs``."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"  # Flux no longer knows the job


@dataclass(frozen=True, slots=True)
class JobException:
    """An exception of a job in Flux's words (RFC 21). Severity 0 ends the job."""

    type: str
    severity: int
    note: str


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, by Flux's own record. ``how``: the exit code or signal in words; "" if it never ran."""

    ended_at: float
    result: str  # as ``flux jobs`` shows it, or REFUSED for a job that was refused at submission
    began_at: float | None = None
    how: str = ""
    exceptions: tuple[JobException, ...] = ()  # the fatal ones first


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job whose jobspec could not be read. It is reported and gets no nodes; other jobs are not affected.

    ``has_started``: it has resources, or had them, so it waits for nothing. ``userid``: None if unreadable too.
    ``set_aside``: its jobspec can be read, but this program fails on it.
    """

    id: JobId
    why: str
    has_started: bool = False
    userid: int | None = None
    set_aside: bool = False


class Unserved(StrEnum):
    """What happens to a job that limits or a budget keep from being served for long."""

    HOLD_USERS = "hold-users"  # as ``hold`` if only jobs of the same user are concerned, otherwise as ``block``
    BLOCK = "block"  # it keeps its place: in queue order nothing is bought for the jobs behind it
    HOLD = "hold"  # it gets urgency 0 until it can be served, so that the scheduler passes it over
    SKIP = "skip"  # nodes are bought for the jobs behind it. The scheduler must pass it over by itself


class QueuePolicy(StrEnum):
    """The order in which the scheduler starts jobs."""

    FIFO = "fifo"  # a job that cannot start holds up all jobs behind it: sched-simple
    BACKFILL = "backfill"  # jobs behind it may start first: Fluxion, by its own queue policies


class NodeOrder(StrEnum):
    """Which node the scheduler gives to a job, of those that are free for it."""

    MOST_FREE = "most-free"  # sched-simple, and Fluxion's ``high``
    EMPTY_FIRST = "empty-first"  # Fluxion's ``first``: empty nodes, then the most free; the last rank first
    LEAST_USED = "least-used"  # Fluxion's ``low``
    LOWEST = "lowest"  # Fluxion's ``lonode``: the lowest number in the host name
    HIGHEST = "highest"  # Fluxion's ``hinode``


class PackingPolicy(StrEnum):
    """The rule by which jobs share a node that is bought for them."""

    SPREAD = "spread"  # any jobs that fit: the fewest nodes
    WALLTIME = "walltime"  # jobs that end at about the same time, so that whole nodes become idle
