"""Nodes as the provider, Flux and the manager itself see them: frozen values, with units in their names.

Two clocks are kept apart. A field that ends in ``_s`` and names a moment (``since_s``, ``started_s``) is a
reading of the monotonic clock; one that ends in ``_at`` is wall-clock time, in seconds since the epoch, and
comes from outside (the provider, Flux, a launch record). Durations end in ``_s`` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from nodemanager.core.slots import Market, Rank, SlotName, Tariff, TypeName

LaunchId = NewType("LaunchId", str)
ProviderId = NewType("ProviderId", str)


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


class QuotaScope(StrEnum):
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


@dataclass(frozen=True)  # without slots: made anew the fastest (``planner/state/frozen.py``)
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
    """Where a node stands between its lease and the end of it. The moves are in ``planner/state/lifecycle.py``."""

    REQUESTED = "requested"  # leased; the provider has not shown it yet
    BOOTING = "booting"  # the provider shows it; its rank has not come online
    IDLE = "idle"
    BUSY = "busy"
    LOST = "lost"  # its rank was online and is no more; the provider still shows it
    DRAINING = "draining"  # takes no more jobs; looked at once more before anything is stopped
    STOPPING = "stopping"  # destroyed, again and again until the provider shows it gone
    GONE = "gone"  # the provider shows it gone, or never made it; the lease is being ended


COMING = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST)
USABLE = (NodeState.IDLE, NodeState.BUSY)
LEAVING = (NodeState.DRAINING, NodeState.STOPPING)


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
