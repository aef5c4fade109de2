"""What the fleet is made of: frozen values, with units in their names.

Two clocks are kept apart. A field that ends in ``_s`` and names a moment (``since_s``, ``started_s``) is a
reading of the monotonic clock; one that ends in ``_at`` is wall-clock time, in seconds since the epoch, and
comes from outside (the provider, Flux, a launch record). Durations end in ``_s`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import NewType

JobId = NewType("JobId", int)
Rank = NewType("Rank", int)
SlotName = NewType("SlotName", str)
LaunchId = NewType("LaunchId", str)
ProviderId = NewType("ProviderId", str)
TypeName = NewType("TypeName", str)


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


# --- what is on offer -------------------------------------------------------------------------------------


class Market(StrEnum):
    """How a node is bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Billing:
    """How a provider charges for a node that is up.

    ``window_s``: what is begun is paid, in steps of this length; 0 for a node that costs nothing more by
    staying (one's own hardware). ``minimum_s``: what is paid at the least, however short the node's life.
    """

    window_s: float
    minimum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a node costs, in the site's currency, and how that is charged."""

    price_per_hour: Decimal
    billing: Billing


@dataclass(frozen=True, slots=True)
class NodeType:
    """One thing on offer, and the slots it may fill."""

    name: TypeName
    size: str  # the provider's own name for it
    cores: int
    gpus: int
    memory_bytes: int
    price_per_hour: Decimal  # in the site's currency; an estimate: no disks, no addresses, no egress
    billing: Billing
    slots: tuple[SlotName, ...]
    properties: frozenset[str] = frozenset()
    market: Market = Market.ON_DEMAND
    image: str = ""
    zones: tuple[str, ...] = ()  # in the order in which they are tried; () leaves it to the provider
    spares: int = 0  # nodes kept up beyond what jobs need, so that the next one starts at once

    def promising(self, promise: Promise) -> NodeType:
        """The type as the instance declares it, where that is not what the site says."""
        return replace(self, cores=promise.cores, gpus=promise.gpus, memory_bytes=promise.memory_bytes)


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder rank of the instance, as R (RFC 20) declares it."""

    name: SlotName
    rank: Rank
    type_name: TypeName


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine really has. ``threads``: the processors that it shows, of which a core has one or more.

    None: nobody looked.
    """

    cores: int
    threads: int
    gpus: int | None = None
    memory_bytes: int | None = None


class Misfit(StrEnum):
    """What becomes of a node that has less than its slot declares."""

    DRAIN = "drain"  # it gets no work, goes once no job runs there, and its type is not bought for a while
    ACCEPT = "accept"
    RETYPE = "retype"  # as drain; and its type is declared as it really is, once none of its slots is in use


@dataclass(frozen=True, slots=True)
class Promise:
    """What the slots of a type declare, in place of what the site says of it."""

    cores: int
    gpus: int
    memory_bytes: int


def _no_promises() -> Mapping[TypeName, Promise]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SlotsWish:
    """How many slots the named types are to have, as somebody asked for it. It lies in the KVS until answered.

    ``promises``: what the instance is to declare of some types from now on. Such a wish is the manager's own, and
    lies nowhere.
    """

    id: str
    counts: Mapping[TypeName, int]
    promises: Mapping[TypeName, Promise] = field(default_factory=_no_promises)


# --- what jobs ask for ------------------------------------------------------------------------------------


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
class Holding:
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
    holds: tuple[Holding, ...] = ()
    ends_at: float | None = None
    began_at: float | None = None
    requeue: bool = False  # it asks to be submitted once more should its node be taken back
    requeued_from: JobId | None = None  # whose successor it is


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job whose jobspec could not be read: said, never bought for, and harmless to the others."""

    id: JobId
    why: str


# --- what stands at the provider and in Flux --------------------------------------------------------------


class FailureKind(StrEnum):
    """Why a cloud call failed, or a node died, by what there is to do about it."""

    CAPACITY = "capacity"  # none of this type here now: another type, zone or market, this one again later
    QUOTA = "quota"  # our account may not have more
    THROTTLED = "throttled"  # slower
    CREDENTIALS = "credentials"  # refused until somebody acts
    CONFIG = "config"  # this request can never work: image, network, type
    GONE = "gone"  # what was named is not there
    TRANSIENT = "transient"  # nothing happened; again later
    AMBIGUOUS = "ambiguous"  # it may have happened: look before it is done again


class Reach(StrEnum):
    """How far a refusal for want of quota reaches."""

    TYPE = "type"  # this node type: another one may be counted otherwise
    MARKET = "market"  # every type on its market
    ACCOUNT = "account"


class CloudState(StrEnum):
    """How the provider sees a node. It costs until ``TERMINATED`` (or ``FAILED``, once destroyed)."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"  # never ran, and must be destroyed to leave the list


@dataclass(frozen=True, slots=True)
class Identity:
    """The tags that every node of ours carries from its creation on."""

    cluster: str
    cluster_uuid: str
    launch: LaunchId
    slot: SlotName
    type_name: TypeName


@dataclass(frozen=True, slots=True)
class CloudNode:
    """One instance at the provider. ``identity`` is None for one that carries no tags of a node manager."""

    provider_id: ProviderId
    state: CloudState
    identity: Identity | None
    created_at: float | None = None
    addresses: tuple[str, ...] = ()
    died_because: str = ""  # the provider's words, "" while it lives
    market: Market | None = None  # how it is paid for; None where the provider does not say
    impaired: str = ""  # the provider's words for what is wrong with one that runs; "" where nothing is
    died_of: FailureKind | None = None  # what the end says of the next one; None: nothing, or not known


class LeftoverKind(StrEnum):
    """What may outlive the node that it was made for, and costs all the same."""

    VOLUME = "volume"
    INTERFACE = "interface"
    ADDRESS = "address"


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something of this cluster's at the provider that belongs to no node any more."""

    kind: LeftoverKind
    provider_id: ProviderId
    launch: LaunchId


@dataclass(frozen=True)  # without slots: made anew the fastest (``fleet/remade.py``)
class FluxRank:
    """A rank of the instance, as one look at it showed.

    ``allocated`` covers jobs and housekeeping: a rank is idle only when no allocated R names it.
    ``drain_reason`` is None when the rank is not drained.
    """

    rank: Rank
    host: SlotName
    online: bool
    cores: int
    gpus: int = 0
    cores_free: int = 0  # of an online rank that takes jobs; 0 otherwise
    gpus_free: int = 0
    allocated: bool = False
    schedulable: bool = False  # not in the ``down`` set of the scheduler itself, which may lag behind a drain
    drain_reason: str | None = None
    torpid: bool = False
    excluded: bool = False
    type_name: TypeName | None = None  # as the instance's configuration divides the slots; None: it does not say
    # When its last job ended, of those Flux still remembers: idleness survives a restart of the manager.
    last_job_ended_at: float | None = None
    housekeeping_since_at: float | None = None  # since when a job's housekeeping has been running there

    @property
    def idle(self) -> bool:
        return self.online and not self.allocated


@dataclass(frozen=True, slots=True)
class Launch:
    """One create call, recorded before it is made: the lease of its slot."""

    id: LaunchId
    slot: SlotName
    rank: Rank
    type_name: TypeName
    client_token: str
    requested_at: float
    zone: str = ""  # where in the provider it is made; "" leaves it to the provider
    # As it was bought: what counts once the site names its type no more. None on a record of before it was kept.
    tariff: Tariff | None = None


class JoinPhase(StrEnum):
    """How far a node has come on its way into the instance, as it says itself."""

    REDEEMED = "redeemed"  # its ticket was taken
    STARTED = "started"  # its broker was started
    ENDED = "ended"  # its broker ended, and is started again
    FAILED = "failed"  # it cannot join as it is, and does not try again
    RECLAIMED = "reclaimed"  # the provider is about to take it back
    REPLAYED = "replayed"  # said by the service: its ticket was shown once more, by another
    MEASURED = "measured"  # what the machine really has: a fact of its own (``NodeMeasured``)


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A launch, as the join service needs to know it.

    ``redeemable_until_at``: until when its ticket is taken, 0 for a node that does not have to join any more.
    ``may_start``: whether its broker may be started; not once its node is being stopped.
    """

    launch: LaunchId
    slot: SlotName
    redeemable_until_at: float
    may_start: bool
    online: bool
    addresses: tuple[str, ...] = ()


Roster = tuple[RosterEntry, ...]  # every launch that holds a slot


class NodeState(StrEnum):
    """Where a node stands between its lease and the end of it. The moves are in ``fleet/lifecycle.py``."""

    REQUESTED = "requested"  # leased; the provider has not shown it yet
    BOOTING = "booting"  # the provider shows it; its rank has not come online
    IDLE = "idle"
    BUSY = "busy"
    LOST = "lost"  # its rank was online and is no more; the provider still shows it
    DRAINING = "draining"  # takes no more jobs; looked at once more before anything is stopped
    STOPPING = "stopping"  # destroyed, again and again until the provider shows it gone
    GONE = "gone"  # the provider shows it gone, or never made it; the lease is being ended


class CallKind(StrEnum):
    """What may be under way for a node. One at a time."""

    RECORD = "record"
    CREATE = "create"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    STOP_BROKER = "stop-broker"
    KILL_HOUSEKEEPING = "kill-housekeeping"
    DESTROY = "destroy"
    END_LEASE = "end-lease"


@dataclass(frozen=True, slots=True)
class Call:
    """A call under way. Past its deadline it is observed again, never assumed."""

    kind: CallKind
    started_s: float
    deadline_s: float


class QueuePolicy(StrEnum):
    """In which order the scheduler starts jobs."""

    FIFO = "fifo"  # one that cannot start holds up all behind it: sched-simple
    BACKFILL = "backfill"  # those behind it may go first: Fluxion, by its own queue policies


class PackingPolicy(StrEnum):
    """Which jobs share a node that is bought for them."""

    SPREAD = "spread"  # any that fit: the fewest nodes
    WALLTIME = "walltime"  # those that end at about the same time, so that nodes empty


# --- what operators set ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """Who set something, and when."""

    by: str
    at: float


def _no_marks() -> Mapping[LaunchId, Mark]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Steering:
    """What operators have set, until they take it back. It outlives the manager, on record in the instance.

    A node of ``holds`` is never stopped and gets no work; one of ``retirements`` goes once nothing runs there.
    """

    holds: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)
    retirements: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)
    paused: Mark | None = None

    def keeps_work_from(self, launch: LaunchId) -> bool:
        return launch in self.holds or launch in self.retirements


UNSTEERED = Steering()


# --- what was spent ---------------------------------------------------------------------------------------


def _no_amounts() -> Mapping[tuple[str, int, str], Decimal]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spend:
    """What nodes that are gone and jobs that have ended have cost. It outlives the manager, on record.

    ``amounts``: by the period ("day" or "month"), its begin (seconds since the epoch) and the account: "" for the
    whole site, "user 1000", "queue batch". ``counted``: the launches that are in it and still hold their slot, so
    that none is counted twice.
    """

    amounts: Mapping[tuple[str, int, str], Decimal] = field(default_factory=_no_amounts)
    counted: frozenset[LaunchId] = frozenset()


NOTHING_SPENT = Spend()


# --- what was decided and why -----------------------------------------------------------------------------

Figure = str | int | float | Decimal | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and the figures behind it. Sentences are made of it at the edge (``explain``), never stored."""

    code: str
    figures: Mapping[str, Figure] = field(default_factory=_nothing)

    def __str__(self) -> str:
        return " ".join([self.code, *(f"{name}={_shown(value)}" for name, value in self.figures.items())])


def because(code: str, **figures: Figure) -> Reason:
    """Make a reason: ``because("paid_time_left", window_left_s=280)``."""
    return Reason(code, MappingProxyType(figures))


def _shown(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
