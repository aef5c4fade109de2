"""Nodes as the provider, Flux and the manager see them, as frozen values.

Names keep two clocks apart. A field that ends in ``_s`` and names a moment (``since_s``, ``started_s``) is a
reading of the monotonic clock. A field that ends in ``_at`` is wall-clock time from outside (the provider, Flux, a
launch record), in seconds since the epoch. Durations end in ``_s`` too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from nodemanager.core.jobs import JobId
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, Market, Rank, SlotName, Tariff, TypeName

LaunchId = NewType("LaunchId", str)
ProviderId = NewType("ProviderId", str)


class FailureKind(StrEnum):
    """Why a cloud call failed or a node died. Each kind needs a different response."""

    CAPACITY = "capacity"  # no node of this type here now: try another type, zone or market, and this one later
    QUOTA = "quota"  # the account may not have more
    THROTTLED = "throttled"  # too many calls: slow down
    CREDENTIALS = "credentials"  # refused until somebody acts
    CONFIG = "config"  # this request can never work: image, network, type
    GONE = "gone"  # the request named something that does not exist
    TRANSIENT = "transient"  # nothing happened: try again later
    AMBIGUOUS = "ambiguous"  # it may have happened: list before trying again


class QuotaScope(StrEnum):
    """How far a refusal for lack of quota reaches."""

    TYPE = "type"  # this node type; other types may have a quota of their own
    MARKET = "market"  # every type on the node's market
    ACCOUNT = "account"


class CloudState(StrEnum):
    """The provider's state of a node. The node costs money until ``TERMINATED`` (or ``FAILED``, once destroyed)."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"  # never ran; it leaves the list only when it is destroyed


@dataclass(frozen=True, slots=True)
class Identity:
    """The tags that every node of ours carries from its creation."""

    cluster: str
    cluster_uuid: str
    launch: LaunchId
    slot: SlotName
    type_name: TypeName
    made_from: str = ""  # the launch's fingerprint; "" if the node carries none


@dataclass(frozen=True, slots=True)
class Tenure:
    """How long the provider lets us keep a node, in its words. "" says nothing."""

    fixed: str = ""  # why it can never be destroyed
    owed: str = ""  # why it is to be given back as soon as no job runs there


@dataclass(frozen=True, slots=True)
class CloudNode:
    """One instance at the provider. ``identity`` is None if it carries no tags of a node manager."""

    provider_id: ProviderId
    state: CloudState
    identity: Identity | None
    created_at: float | None = None
    addresses: tuple[str, ...] = ()
    died_because: str = ""  # the provider's words; "" while it lives
    market: Market | None = None  # how it is paid for; None if the provider does not say
    impaired: str = ""  # the provider's words for a fault of a running node; "" if it is healthy
    survivors: str = ""  # the processes that keep it from ending, in words; "" if there are none
    queued: bool = False  # it has not been created yet: it waits in the provider's own queue
    died_of: FailureKind | None = None  # what its end means for further creates; None: nothing, or unknown
    size: str = ""  # the provider's name of its size; "" if the provider does not say
    note: str = ""  # the provider's words on why it does not run yet; "" if it gives none
    tenure: Tenure = Tenure()
    group: str = ""  # its placement group; "" if it is in none, or the provider does not say


class LeftoverKind(StrEnum):
    """A resource that may outlive the node it was created for. All but groups still cost money."""

    VOLUME = "volume"
    INTERFACE = "interface"
    ADDRESS = "address"
    GROUP = "placement group"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource of this cluster at the provider that no longer belongs to a node. A group has no launch."""

    kind: LeftoverKind
    provider_id: ProviderId
    launch: LaunchId = LaunchId("")


@dataclass(frozen=True, slots=True)
class UnsafeData:
    """A job that ended on a node, and nobody has said that its data was copied off."""

    job: JobId
    ended_at: float  # by Flux's clock


@dataclass(frozen=True)  # without slots, so that copies are fastest (``planner/frozen.py``)
class FluxRank:
    """A rank of the instance, as one look showed it.

    ``allocated`` covers jobs and housekeeping: a rank is idle only if no allocated R names it.
    ``drain_reason`` is None if the rank is not drained. ``drained_at``: when others drained it, by Flux's clock.
    """

    rank: Rank
    host: SlotName
    online: bool
    cores: int
    gpus: int = 0
    cores_free: int = 0  # of an online rank that takes jobs; 0 for any other
    gpus_free: int = 0
    allocated: bool = False
    schedulable: bool = False  # not in the scheduler's own ``down`` set, which may lag behind a drain
    drain_reason: str | None = None
    drained_at: float | None = None
    torpid: bool = False
    excluded: bool = False
    type_name: TypeName | None = None  # from the instance's configuration; None if that does not say
    # Flux remembers when the last job ended, so the idle time survives a restart of the manager.
    last_job_ended_at: float | None = None
    housekeeping_since_at: float | None = None  # when the oldest housekeeping that still runs there began
    # The job that holds all of it has given it back: nothing runs there, and it takes no job until that one ends.
    given_back: JobId | None = None  # then it does not count as allocated
    unsafe: tuple[UnsafeData, ...] = ()  # the oldest first; only of types that wait for data
    below: int = 0  # the ranks below it in the tree of brokers, which are lost with its broker

    @property
    def idle(self) -> bool:
        """Whether the rank is online and nothing is allocated there."""
        return self.online and not self.allocated


@dataclass(frozen=True, slots=True)
class Launch:
    """One create call and the lease of its slot, recorded before the call is made."""

    id: LaunchId
    slot: SlotName
    rank: Rank
    type_name: TypeName
    client_token: str
    requested_at: float
    zone: str = ""  # the provider's zone; "" leaves the choice to the provider
    # The price at which it was bought. It counts if the site no longer names the type. None in old records.
    tariff: Tariff | None = None
    size: str = ""  # the provider's name of the size; "" in old records
    market: Market | None = None  # None in old records
    made_from: str = ""  # the fingerprint of what it was made from; "" in old records
    prepaid: bool = False  # it is one of the prepaid nodes of its type, and costs nothing
    group: str = ""  # the placement group to create it in; "": none
    cloud: CloudName = DEFAULT_CLOUD  # where it is created; in old records the only one


def group_prefix(cluster_uuid: str) -> str:
    """How the names of all placement groups of a cluster begin."""
    return f"fnm-{hashlib.sha256(cluster_uuid.encode()).hexdigest()[:12]}-"


def group_name(cluster_uuid: str, type_name: TypeName, zone: str) -> str:
    """The placement group of a node type in a zone, by a name that every provider accepts.

    At most 61 lower-case letters, digits and "-". The digest keeps names apart that differ in other characters.
    """
    words = re.sub(r"[^a-z0-9]+", "-", f"{type_name}-{zone}".lower()).strip("-")[:31].rstrip("-")
    digest = hashlib.sha256(f"{type_name}\n{zone}".encode()).hexdigest()[:12]
    return f"{group_prefix(cluster_uuid)}{words}-{digest}"


# --- launches of one plan ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """The launches of one plan whose nodes one call creates, in the order of the indexes of their nodes.

    A provider gives all these nodes the same tags and the same user-data. So the tags name the whole batch, and a
    node's index among those of its call tells its launch. ``stamp``: the plan that made them.
    """

    stamp: str
    slots: tuple[SlotName, ...]

    def launch(self, index: int) -> LaunchId:
        """The launch of the node with this index."""
        return launch_id(self.slots[index], self.stamp)


def launch_id(slot: SlotName, stamp: str) -> LaunchId:
    """The id of a slot's launch. ``stamp``: the same for all launches of one plan, and for no other plan's."""
    return LaunchId(f"{slot}-{stamp}")


def stamp_of(launch: LaunchId, slot: SlotName) -> str:
    """The stamp in a launch's id; "" if it has none, as the launch of a foreign stray may."""
    stamp = launch.removeprefix(slot).removeprefix("-")
    return stamp if launch == launch_id(slot, stamp) else ""


def batch_of(launches: Sequence[Launch]) -> Batch:
    """The batch of launches of one plan, in the order of their ranks. Raises ``ValueError`` for any others."""
    stamps = {stamp_of(launch.id, launch.slot) for launch in launches}
    if len(stamps) != 1 or "" in stamps:
        raise ValueError(f"not of one plan: {', '.join(launch.id for launch in launches)}")
    return Batch(stamps.pop(), tuple(launch.slot for launch in sorted(launches, key=lambda it: it.rank)))


# --- joining ----------------------------------------------------------------------------------------------


class JoinPhase(StrEnum):
    """A node's progress in joining the instance, as the node reports it."""

    REDEEMED = "redeemed"  # the service accepted its ticket
    STARTED = "started"  # its broker was started
    ENDED = "ended"  # its broker ended, and is started again
    FAILED = "failed"  # it cannot join, and does not try again
    RECLAIMED = "reclaimed"  # the provider is about to take it back
    REPLAYED = "replayed"  # reported by the service: a second client presented its ticket
    MEASURED = "measured"  # the machine's hardware, passed on as ``NodeMeasured``


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """The join service's view of a launch.

    ``redeemable_until_at``: until when the service accepts its ticket; 0 if the node no longer has to join.
    ``may_start``: whether its broker may be started; false once the node is being stopped.
    """

    launch: LaunchId
    slot: SlotName
    redeemable_until_at: float
    may_start: bool
    online: bool
    addresses: tuple[str, ...] = ()
    provider_id: ProviderId | None = None  # of a node that has yet to join; by it a node of a batch is known
    cloud: CloudName = DEFAULT_CLOUD  # where its node is


Roster = tuple[RosterEntry, ...]  # every launch that holds a slot


class NodeState(StrEnum):
    """A node's state, from its lease to the end of the lease. ``planner/snapshot.py`` lists the moves."""

    REQUESTED = "requested"  # leased; the provider has not shown it yet
    BOOTING = "booting"  # the provider shows it; its rank has not been online
    IDLE = "idle"
    BUSY = "busy"
    LOST = "lost"  # its rank was online and is offline now; the provider still shows it
    DRAINING = "draining"  # takes no more jobs; the manager looks once more before it stops anything
    STOPPING = "stopping"  # being terminated; the call is repeated until the provider shows the node gone
    GONE = "gone"  # the provider shows it gone, or never created it; the lease is being ended


COMING = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST)
USABLE = (NodeState.IDLE, NodeState.BUSY)
LEAVING = (NodeState.DRAINING, NodeState.STOPPING)


class CallKind(StrEnum):
    """The calls that may be in flight for a node, one at a time."""

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
    """A call in flight. After its deadline the manager observes the outcome and assumes nothing."""

    kind: CallKind
    started_s: float
    deadline_s: float
