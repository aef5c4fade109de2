"""What was seen: every fact that the brain takes in, in the past tense.

A fact that answers a query carries ``started_s``, the monotonic moment at which the query began: whatever
happened after it may be missing from the answer, so newer local knowledge wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodemanager.core.jobs import Job, JobId, UnreadableJob
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
from nodemanager.core.records import NOTHING_SPENT, UNSTEERED, Mark, Spend, Steering
from nodemanager.core.slots import Hardware, Rank, SlotsWish


@dataclass(frozen=True, slots=True)
class Tick:
    """Time, as data."""

    now_s: float
    wall_at: float


# --- from Flux --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """Jobs that are new or changed, and those no longer active. ``complete``: these are all there are."""

    started_s: float
    jobs: tuple[Job, ...] = ()
    unreadable: tuple[UnreadableJob, ...] = ()
    ended: tuple[JobId, ...] = ()
    complete: bool = False
    # None: not asked, or not to be known, as there is no scheduler. Pending jobs of a stopped queue are not demand.
    queues_stopped: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class QueueProbed:
    """Nothing new, and the source was alive when asked."""

    started_s: float


@dataclass(frozen=True, slots=True)
class RanksChanged:
    """Something happened to a rank (online, offline, drain, a job began or ended): a look is due."""


@dataclass(frozen=True, slots=True)
class RanksSeen:
    """All ranks but the leader, from one look; and a wish for another division of the slots, if there is one.

    ``jobs_ended``: how many jobs the instance remembers as ended. ``took_s``: from asking to having read all.
    ``since``: where it is known what the look would show, but for some ranks: then ``ranks`` are those, and all
    others are as they are there.
    """

    started_s: float
    ranks: tuple[FluxRank, ...]
    wish: SlotsWish | None = None
    jobs_ended: int = 0
    took_s: float = 0.0
    previous: Mapping[Rank, FluxRank] | None = None


@dataclass(frozen=True, slots=True)
class RanksMeasured:
    """What the machines really have whose ranks came online, as Flux found them."""

    hardware: Mapping[Rank, Hardware]


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """The slots were divided anew as it was wished; ``ranks`` is a look begun after that."""

    wish_id: str
    started_s: float
    ranks: tuple[FluxRank, ...]


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """A wish was answered with the reason why nothing was changed."""

    wish_id: str


@dataclass(frozen=True, slots=True)
class FluxUnreachable:
    """The instance does not answer. It is tried again; meanwhile nothing is decided."""

    started_s: float
    why: str


@dataclass(frozen=True, slots=True)
class ClaimHeld:
    """We are the one that acts, and this is on record: launches, what operators have set, and what was spent."""

    started_s: float
    launches: tuple[Launch, ...]
    steering: Steering = UNSTEERED
    spend: Spend = NOTHING_SPENT


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """What the manager that acts has on record, as one that only observes sees it before each look at the ranks."""

    launches: tuple[Launch, ...]
    steering: Steering = UNSTEERED
    spend: Spend = NOTHING_SPENT


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Another manager holds the name ``node-manager`` on this instance, or ours was lost."""

    started_s: float
    why: str


@dataclass(frozen=True, slots=True)
class LaunchesRecorded:
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """The drain was answered; ``rank`` is the second look, asked after the answer."""

    launch: LaunchId
    started_s: float
    rank: FluxRank


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    launch: LaunchId


@dataclass(frozen=True, slots=True)
class BrokerStopped:
    """The broker was told to stop, or was not there."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """The job was submitted once more, as ``again``. None: it was not, and will not be; ``why`` says why."""

    job: JobId
    again: JobId | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class HousekeepingKilled:
    """A signal was sent to what runs on the node's rank after a job."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    launch: LaunchId


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """The rank takes no new job; ``rank`` is a look at it, asked after the answer."""

    launch: LaunchId
    started_s: float
    rank: FluxRank


@dataclass(frozen=True, slots=True)
class SteeringKept:
    """What operators had set is on record."""

    steering: Steering


@dataclass(frozen=True, slots=True)
class SteeringNotKept:
    why: str


@dataclass(frozen=True, slots=True)
class SpendKept:
    """What was spent is on record."""

    spend: Spend


@dataclass(frozen=True, slots=True)
class SpendNotKept:
    why: str


@dataclass(frozen=True, slots=True)
class FluxCallFailed:
    """An order to Flux was not carried out, or not surely so. ``job`` is that of a requeue."""

    launches: tuple[LaunchId, ...]
    order: str
    why: str
    job: JobId | None = None


# --- from operators ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldPlaced:
    launch: LaunchId
    mark: Mark


@dataclass(frozen=True, slots=True)
class RetirementRequested:
    launch: LaunchId
    mark: Mark


@dataclass(frozen=True, slots=True)
class NodeReleased:
    """Neither held nor to be retired any more."""

    launch: LaunchId


@dataclass(frozen=True, slots=True)
class DecisionsPaused:
    mark: Mark


@dataclass(frozen=True, slots=True)
class DecisionsResumed:
    pass


# --- from the cloud ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CloudListed:
    """Every instance that the provider shows us, whole: ours, and those that are not."""

    started_s: float
    nodes: tuple[CloudNode, ...]


@dataclass(frozen=True, slots=True)
class NodeCreated:
    launch: LaunchId
    node: CloudNode


@dataclass(frozen=True, slots=True)
class NodeDestroyed:
    """The destroy was accepted. The node is gone only when the list says so."""

    launch: LaunchId | None
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class LeftoversRemoved:
    """A sweep is over. What nodes of ours had left behind, and was deleted."""

    leftovers: tuple[Leftover, ...]


@dataclass(frozen=True, slots=True)
class CloudCallFailed:
    """``launch`` is None for a list, a sweep, or an instance that no launch owns."""

    operation: str  # "create", "list", "destroy", "sweep"
    launch: LaunchId | None
    kind: FailureKind
    detail: str
    retry_after_s: float = 0.0
    quota_scope: QuotaScope | None = None  # of a refusal for want of quota; None: not said
    provider_id: ProviderId | None = None  # of a destroy


# --- from whoever carries orders out ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderLapsed:
    """An order was surely not carried out: it came too late, or it is not known that we still act.

    ``provider_id`` is that of a destroy, ``job`` that of a requeue.
    """

    order: str
    launches: tuple[LaunchId, ...]
    provider_id: ProviderId | None
    why: str
    job: JobId | None = None


# --- from the join service --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeReported:
    """What a node said of its joining, or the join service of its ticket."""

    launch: LaunchId
    phase: JoinPhase
    detail: str
    reported_at: float


@dataclass(frozen=True, slots=True)
class NodeMeasured:
    """What a node found of its own machine when it joined."""

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
    | LeaseEnded
    | NodeCordoned
    | SteeringKept
    | SteeringNotKept
    | SpendKept
    | SpendNotKept
    | FluxCallFailed
    | OrderLapsed
)
OperatorFact = HoldPlaced | RetirementRequested | NodeReleased | DecisionsPaused | DecisionsResumed
CloudFact = CloudListed | NodeCreated | NodeDestroyed | LeftoversRemoved | CloudCallFailed | OrderLapsed
Fact = FluxFact | CloudFact | OperatorFact | JoinFact
