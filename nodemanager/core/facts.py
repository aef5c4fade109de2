"""Facts: everything that the brain takes in, named in the past tense.

A fact that answers a query carries ``started_s``, the monotonic moment at which the query began. The answer may
lack whatever happened after that moment, so newer local knowledge wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodemanager.core.elsewhere.peers import PeerOffer
from nodemanager.core.jobs import Job, JobId, JobResult, NodeOrder, UnreadableJob
from nodemanager.core.nodes import (
    CloudNode,
    FailureKind,
    FluxRank,
    JoinPhase,
    Launch,
    LaunchId,
    Leftover,
    ProviderId,
    QuotaScope,
)
from nodemanager.core.records import NOTHING_SPENT, UNSTEERED, HeldJob, Mark, Spend, Steering
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, Hardware, Rank, SlotsWish


@dataclass(frozen=True, slots=True)
class Tick:
    """The current time, as data."""

    now_s: float
    wall_at: float


# --- from Flux --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """New, changed and ended jobs. If ``complete``, ``jobs`` and ``unreadable`` are all the active jobs."""

    started_s: float
    jobs: tuple[Job, ...] = ()
    unreadable: tuple[UnreadableJob, ...] = ()
    ended: tuple[JobId, ...] = ()
    complete: bool = False
    # None if not asked, or unknown because no scheduler is loaded. Pending jobs of a stopped queue are not demand.
    queues_stopped: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class QueueProbed:
    """The source answered a probe, and nothing is new."""

    started_s: float


@dataclass(frozen=True, slots=True)
class RanksChanged:
    """Something happened to a rank (online, offline, drain, a job started or ended): look at the ranks again."""


@dataclass(frozen=True, slots=True)
class RanksSeen:
    """All ranks but the leader, from one look, and an unanswered wish to change the slots' types, if there is one.

    ``jobs_ended``: how many ended jobs the instance remembers. ``took_s``: how long the look took.
    ``node_order``: which node the scheduler gives to a job; None if that is not known.
    ``previous``: if given, ``ranks`` holds only the ranks that differ from this mapping.
    """

    started_s: float
    ranks: tuple[FluxRank, ...]
    wish: SlotsWish | None = None
    jobs_ended: int = 0
    took_s: float = 0.0
    node_order: NodeOrder | None = None
    previous: Mapping[Rank, FluxRank] | None = None


@dataclass(frozen=True, slots=True)
class RanksMeasured:
    """The hardware that Flux found on the machines whose ranks came online."""

    hardware: Mapping[Rank, Hardware]


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """The slots got the types that the wish asked for; ``ranks`` is a look begun after the change."""

    wish_id: str
    started_s: float
    ranks: tuple[FluxRank, ...]


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """A wish to change the slots was refused, with the reason."""

    wish_id: str


@dataclass(frozen=True, slots=True)
class FluxUnreachable:
    """The instance does not answer. The worker tries again; until it answers, nothing is decided."""

    started_s: float
    why: str


@dataclass(frozen=True, slots=True)
class ClaimHeld:
    """This manager holds the name and may act. The rest is the record.

    That is: the launches, the operators' settings, the spending, and the jobs that we hold.
    """

    started_s: float
    launches: tuple[Launch, ...]
    steering: Steering = UNSTEERED
    spend: Spend = NOTHING_SPENT
    held_jobs: Mapping[JobId, HeldJob] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record of the acting manager, as an observing manager reads it before each look at the ranks."""

    launches: tuple[Launch, ...]
    steering: Steering = UNSTEERED
    spend: Spend = NOTHING_SPENT


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Another manager holds the name ``node-manager`` on this instance, or this one lost it."""

    started_s: float
    why: str


@dataclass(frozen=True, slots=True)
class LaunchesRecorded:
    """The leases are on record."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Flux answered the drain; ``rank`` is a second look, taken after the answer."""

    launch: LaunchId
    started_s: float
    rank: FluxRank


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    """Our drain of the node's rank was undone."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class BrokerStopped:
    """The broker was told to stop, or was already offline."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class JobsHeld:
    """The record has these jobs now, and their urgency is 0."""

    jobs: Mapping[JobId, HeldJob]


@dataclass(frozen=True, slots=True)
class JobsReleased:
    """The record no longer has these jobs."""

    jobs: frozenset[JobId]


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """The job was submitted again, as ``again``. None: it cannot be submitted again, because of ``why``."""

    job: JobId
    again: JobId | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ResultRead:
    """How the job ended that the copy ``job`` replaces; None: it has not ended."""

    job: JobId
    result: JobResult | None


@dataclass(frozen=True, slots=True)
class CopySettled:
    """The copy was started or cancelled, or had ended already."""

    job: JobId


@dataclass(frozen=True, slots=True)
class HousekeepingKilled:
    """A signal was sent to the housekeeping that runs on the node's rank after a job."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The launch is off the record, and its slot is free."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """The rank takes no new job; ``rank`` is a look at it, taken after Flux answered."""

    launch: LaunchId
    started_s: float
    rank: FluxRank


@dataclass(frozen=True, slots=True)
class SteeringKept:
    """The operators' settings are on record."""

    steering: Steering


@dataclass(frozen=True, slots=True)
class SteeringNotKept:
    """The operators' settings could not be recorded."""

    why: str


@dataclass(frozen=True, slots=True)
class SpendKept:
    """The money spent is on record."""

    spend: Spend


@dataclass(frozen=True, slots=True)
class SpendNotKept:
    """The money spent could not be recorded."""

    why: str


@dataclass(frozen=True, slots=True)
class FluxCallFailed:
    """An order to Flux failed, or it is unknown whether it was carried out. ``job`` is its job."""

    launches: tuple[LaunchId, ...]
    order: str
    why: str
    job: JobId | None = None


# --- from operators ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldPlaced:
    """An operator holds the node."""

    launch: LaunchId
    mark: Mark


@dataclass(frozen=True, slots=True)
class RetirementRequested:
    """An operator retires the node."""

    launch: LaunchId
    mark: Mark


@dataclass(frozen=True, slots=True)
class ReplacementsRequested:
    """An operator has nodes replaced, as many at once and at such times as the site allows."""

    launches: tuple[LaunchId, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class NodeReleased:
    """An operator withdrew the node's hold, retirement or replacement."""

    launch: LaunchId
    by: str = ""


@dataclass(frozen=True, slots=True)
class DecisionsPaused:
    """An operator paused all decisions."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class DecisionsResumed:
    """An operator resumed the decisions."""

    by: str = ""


# --- from the cloud ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CloudListed:
    """A complete list of the instances that the provider of a cloud shows, ours and others."""

    started_s: float
    nodes: tuple[CloudNode, ...]
    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class CloudChanged:
    """Something happened to the nodes at the provider: list them again."""

    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class NodeCreated:
    """The provider created the node of a launch."""

    launch: LaunchId
    node: CloudNode
    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class NodeDestroyed:
    """The provider accepted the destroy. The node is gone only when a list shows it gone."""

    launch: LaunchId | None
    provider_id: ProviderId
    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class LeftoversRemoved:
    """A sweep ended; these leftovers of our nodes were deleted."""

    leftovers: tuple[Leftover, ...]
    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class CloudCallFailed:
    """``launch`` is None for a list, a sweep, or an instance that no launch owns."""

    operation: str  # "create", "list", "destroy", "sweep"
    launch: LaunchId | None
    kind: FailureKind
    detail: str
    retry_after_s: float = 0.0
    quota_scope: QuotaScope | None = None  # of a refusal for lack of quota; None if the provider does not say
    provider_id: ProviderId | None = None  # of a destroy
    cloud: CloudName = DEFAULT_CLOUD
    foreseen: bool = True  # False: the adapter met an answer that its author did not foresee


# --- from the workers that carry orders out ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderLapsed:
    """An order was certainly not carried out: it was too late, or the manager could not prove that it still acts.

    ``provider_id`` belongs to a destroy, ``job`` to an order about one job.
    """

    order: str
    launches: tuple[LaunchId, ...]
    provider_id: ProviderId | None
    why: str
    job: JobId | None = None


# --- from the join service --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeReported:
    """A node reported its progress in joining, or the join service reported on the node's ticket."""

    launch: LaunchId
    phase: JoinPhase
    detail: str
    reported_at: float


@dataclass(frozen=True, slots=True)
class NodeMeasured:
    """A node measured its own machine when it joined."""

    launch: LaunchId
    hardware: Hardware
    measured_at: float


JoinFact = NodeReported | NodeMeasured
FluxFact = (
    QueueSeen
    | QueueProbed
    | RanksChanged
    | RanksSeen
    | RanksMeasured
    | SlotsChanged
    | SlotsRefused
    | FluxUnreachable
    | ClaimHeld
    | RecordSeen
    | ClaimRefused
    | LaunchesRecorded
    | NodeDrained
    | NodeUndrained
    | BrokerStopped
    | HousekeepingKilled
    | JobRequeued
    | ResultRead
    | CopySettled
    | JobsHeld
    | JobsReleased
    | LeaseEnded
    | NodeCordoned
    | SteeringKept
    | SteeringNotKept
    | SpendKept
    | SpendNotKept
    | FluxCallFailed
    | OrderLapsed
)


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """The peers to which jobs may be sent, and the jobs that were.

    ``userid``: only this user's jobs can go. ``taken``: jobs at a peer, or on their way, whose users did not ask
    for it. ``refused``: the peers that refused a job.
    """

    peers: tuple[PeerOffer, ...]
    userid: int
    taken: frozenset[JobId] = frozenset()
    refused: Mapping[JobId, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SteeringSeen:
    """Whether operators can steer this manager. ``lost``: why not; "" if they can."""

    lost: str


OperatorFact = (
    HoldPlaced | RetirementRequested | ReplacementsRequested | NodeReleased | DecisionsPaused | DecisionsResumed
)
CloudFact = (
    CloudListed | CloudChanged | NodeCreated | NodeDestroyed | LeftoversRemoved | CloudCallFailed | OrderLapsed
)
Fact = FluxFact | CloudFact | OperatorFact | SteeringSeen | JoinFact | PeersSeen
