"""The snapshot: all that is known at one moment. Decisions are made from this value alone.

``observe`` makes the next snapshot from the last one and a fact; ``plan`` reads it. Nothing else holds state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from nodemanager.core.facts import PeersSeen
from nodemanager.core.jobs import Job, JobId, JobResult, NodeOrder, Shape, UnreadableJob
from nodemanager.core.nodes import CloudNode, FailureKind, FluxRank, LaunchId, NodeState, ProviderId
from nodemanager.core.reasons import Reason
from nodemanager.core.records import UNSTEERED, HeldJob, Spend, Steering
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, Market, Promise, Rank, SlotName, SlotsWish, TypeName
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import QueueIndex
from nodemanager.planner.state.rank_index import RankIndex
from nodemanager.planner.state.resting import Resting


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


Bought = tuple[TypeName, str, Market | None]  # a node's type, and the size and market of its launch
Make = tuple[TypeName, str, str, bool]  # a node's type, fingerprint, zone, and whether it is prepaid


@dataclass(frozen=True)
class NodeIndex:
    """The nodes by use, with counts. Maintained by ``state.node_index``; ``nodes`` is what it was built from."""

    nodes: Mapping[LaunchId, Node] = field(default_factory=_empty)
    # All except those that are simply busy or at rest: whose next step may change at any time.
    to_check: Mapping[LaunchId, Node] = field(default_factory=_empty)
    at_rest: Mapping[LaunchId, Node] = field(default_factory=_empty)  # idle, confirmed, and with no trouble
    resting: Mapping[TypeName, Resting] = field(default_factory=_empty)  # the same, by type and time
    confirmations: int = 2  # the looks that must find a node idle before it counts as at rest
    with_call: Mapping[LaunchId, Node] = field(default_factory=_empty)  # those with a call in flight
    count_by_state: Mapping[NodeState, int] = field(default_factory=_empty)
    count_by_type: Mapping[TypeName, int] = field(default_factory=_empty)  # only nodes that may be billed
    count_by_size: Mapping[Bought, int] = field(default_factory=_empty)  # the same
    launch_of_slot: Mapping[SlotName, LaunchId] = field(default_factory=_empty)
    launch_of_rank: Mapping[Rank, LaunchId] = field(default_factory=_empty)
    count_by_make: Mapping[Make, int] = field(default_factory=_empty)
    by_age: Sequence[tuple[float, LaunchId]] = ()  # all nodes by ``requested_at``, the oldest first
    count_by_cloud: Mapping[CloudName, int] = field(default_factory=_empty)  # as the leases record it


@dataclass(frozen=True, slots=True)
class Stray:
    """A cloud node of ours that no launch owns, and since when."""

    node: CloudNode
    since_s: float
    destroy_after_s: float = 0.0  # a destroy was ordered: not again before


@dataclass(frozen=True, slots=True)
class Block:
    """A type or zone is not bought for a while. ``rounds``: how often it was tried and refused in a row."""

    until_s: float
    kind: FailureKind  # of the refused create
    detail: str = ""  # in the provider's words
    rounds: int = 1
    since_s: float | None = None  # the first refusal in a row


@dataclass(frozen=True, slots=True)
class Quota:
    """How many nodes of a scope the provider allows, learned from a refusal. From ``probe_s`` one more is tried."""

    cap: int
    probe_s: float
    pause_s: float  # from the refusal to ``probe_s``
    detail: str


@dataclass(frozen=True, slots=True)
class FailureStreak:
    """Boots of one node type and image that failed in a row. From ``retry_s`` one more is tried."""

    failures: int
    retry_s: float
    pause_s: float
    why: str  # the code of the latest failure's reason
    since_s: float | None = None  # when so many had failed that no more are bought


@dataclass(frozen=True, slots=True)
class DrainStreak:
    """The jobs of one user that made Flux drain a node. No node is bought for the user until ``until_s``."""

    jobs: frozenset[JobId]
    until_s: float
    pause_s: float  # how long the user was put off the last time; 0 if never
    latest_s: float
    latest: JobId


ALL_TYPES = TypeName("*")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a block concerns: one type everywhere, or on one market and in one zone; or all types of a market.

    ``size``: of a type with several sizes, only this one. ``cloud``: of all types, those of this cloud.
    """

    type_name: TypeName
    market: Market | None = None
    zone: str | None = None
    size: str = ""
    cloud: CloudName = field(default=DEFAULT_CLOUD, repr=False)  # the history has it as a figure


EVERYTHING = Scope(ALL_TYPES)  # concerns the whole account of the default cloud


@dataclass(frozen=True)
class Source:
    """How fresh our knowledge from one source is. ``seen_s``: when the last answered query began."""

    seen_s: float | None = None
    answer_due_s: float | None = None  # deadline of the query in flight; None if there is none
    retry_s: float = 0.0
    failure: str = ""
    news_s: float | None = None  # when it told that something changed; None if a query has begun since


class Peak(NamedTuple):
    """The most cores that were in demand in one minute since the clock's start."""

    minute: int
    cores: int


@dataclass(frozen=True)
class Learned:
    """What refusals, failures and measurements have taught. Lost at a restart."""

    blocks: Mapping[Scope, Block] = field(default_factory=_empty)
    quotas: Mapping[Scope, Quota] = field(default_factory=_empty)
    streaks: Mapping[tuple[TypeName, str], FailureStreak] = field(default_factory=_empty)  # by node type and image
    drain_streaks: Mapping[int, DrainStreak] = field(default_factory=_empty)  # by userid
    ended_users: Mapping[JobId, int] = field(default_factory=_empty)  # of jobs that ran and ended lately
    # Measured times in seconds, the latest last: boots from order to join, and stops from the decision to the list
    # that shows the node gone.
    boots_s: Mapping[TypeName, tuple[float, ...]] = field(default_factory=_empty)
    stops_s: Mapping[TypeName, tuple[float, ...]] = field(default_factory=_empty)
    reclaims: Mapping[TypeName, tuple[int, float]] = field(default_factory=_empty)  # of spot nodes; their seconds
    # The latest run times of ended jobs, by user and shape.
    runs_s: Mapping[tuple[int, Shape], tuple[float, ...]] = field(default_factory=_empty)
    peaks: Mapping[TypeName, tuple[Peak, ...]] = field(
        default_factory=_empty
    )  # with ``consolidate``: of the last hour


@dataclass(frozen=True)
class Spending:
    """The cost of gone nodes and ended jobs, as in ``Spend``.

    ``cost.budget`` adds to it, but only if there is a budget and the record has been read.
    """

    amounts: Mapping[tuple[str, int, str], Decimal] = field(default_factory=_empty)
    counted: frozenset[LaunchId] = frozenset()  # gone nodes that it includes and that still have a lease
    on_record: Spend | None = None  # None: not read yet
    kept_s: float = 0.0  # when it was last written
    write: Source = Source()  # the call that writes it to the record


@dataclass(frozen=True)
class SlotSettings:
    """What the instance declares of its slots, and how that is to change.

    If nodes have less than their type declares: ``to_promise`` is what the type must declare as soon as possible,
    ``promised`` what types were made to declare since this process began.
    """

    types: Mapping[SlotName, TypeName] = field(default_factory=_empty)  # as the instance reports them
    rank_of_slot: Mapping[SlotName, Rank] = field(default_factory=_empty)
    mismatch: Reason | None = None  # how the instance differs from the site's description
    wish: SlotsWish | None = None  # an unanswered wish for other slot types
    wish_due_s: float | None = None  # deadline of the answer to the wish; until then nothing is decided
    to_promise: Mapping[TypeName, Promise] = field(default_factory=_empty)
    promised: Mapping[TypeName, Promise] = field(default_factory=_empty)


@dataclass(frozen=True)
class Sources:
    """How fresh our knowledge is, and what keeps us from trusting it."""

    claim: Source = Source()
    claimed: bool = False
    queue: Source = Source()
    flux: Source = Source()  # looks at the ranks
    unreachable_s: float | None = None  # when the latest call began that the instance did not answer
    # The clouds in which nothing is done now, and why. Set by ``plan`` for its own use.
    closed_clouds: Mapping[CloudName, Reason] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class CopyCall:
    """The last call about the copy of a job. ``retry_s``: when it may be repeated."""

    retry_s: float = 0.0
    result: JobResult | None = None  # how the original ended; None until it was read


@dataclass(frozen=True)
class Queues:
    """The facts about the queues, and about jobs that are not in ``Snapshot.jobs`` or need more than a node."""

    stopped: frozenset[str] = frozenset()
    asked_s: float | None = None  # when the query began that last reported the stopped queues
    unreadable: Mapping[JobId, UnreadableJob] = field(default_factory=_empty)
    requeued: frozenset[JobId] = frozenset()  # jobs whose copy was submitted, or that will get none
    requeue_failed_s: float | None = None  # when a resubmission last failed or was not answered
    copy_calls: Mapping[JobId, CopyCall] = field(default_factory=_empty)  # by copy
    held_jobs: Mapping[JobId, HeldJob] = field(default_factory=_empty)  # on record: we hold them by urgency 0
    hold_write: Source = Source()  # the call that holds or releases jobs
    node_order: NodeOrder = NodeOrder.MOST_FREE  # in which the scheduler tries nodes
    jobs_ended: int = 0  # of all users, as far as Flux remembers


@dataclass(frozen=True)
class News:
    """When something new was last seen: purchases wait until it is quiet."""

    newest_job_s: float | None = None  # when a job last started to wait
    unsettled_s: float | None = None  # since when news has arrived without a settled plan
    changed_s: float = 0.0  # when the queue or the ranks last showed something new
    look_due_since_s: float | None = None  # since when a look at the ranks is due


@dataclass(frozen=True)
class Operator:
    """What operators have set."""

    steering: Steering = UNSTEERED
    steering_on_record: Steering = UNSTEERED
    steering_write: Source = Source()  # the call that writes it to the record


@dataclass(frozen=True)
class Account:
    """The facts about one cloud: how fresh they are, what else runs there, how fast we may create."""

    source: Source = Source()
    unready_since_s: float | None = None  # since when too many of its nodes that were up are unready
    doubted_lists: int = 0  # lists in a row that lacked a large part of its nodes at once
    strays: Mapping[ProviderId, Stray] = field(default_factory=_empty)
    intruders: tuple[CloudNode, ...] = ()  # our cluster's name with another UUID: never touched
    strangers: int = 0  # number of nodes that are not ours: never touched
    swept_s: float | None = None  # when a sweep for leftovers was last ordered
    create_credit: float = 0.0  # in the rate limiter's bucket at ``create_credit_s``
    create_calls_credit: float = 0.0  # in the bucket for calls, at the same time
    create_credit_s: float | None = None


@dataclass(frozen=True)
class Peers:
    """Other Flux instances. ``ordered``: jobs sent to one, and until when that counts unless it is reported."""

    seen: PeersSeen | None = None
    ordered: Mapping[JobId, float] = field(default_factory=_empty)


@dataclass(frozen=True)
class Indexes:
    """Indexes of the jobs, ranks and nodes.

    Each knows what it was built from and is rebuilt if that is not what the snapshot holds. So a stale index makes
    a plan slower, never wrong.
    """

    queue: QueueIndex = field(default_factory=QueueIndex)
    ranks: RankIndex = field(default_factory=RankIndex)
    nodes: NodeIndex = field(default_factory=NodeIndex)


NO_ACCOUNT = Account()  # of a cloud that has not been asked yet


@dataclass(frozen=True)
class Snapshot:
    """All that is known at one moment. Mappings are never changed in place."""

    now_s: float = 0.0
    wall_at: float = 0.0
    sources: Sources = Sources()
    jobs: Mapping[JobId, Job] = field(default_factory=_empty)
    queues: Queues = Queues()
    news: News = News()
    operator: Operator = Operator()
    ranks: Mapping[Rank, FluxRank] = field(default_factory=_empty)
    slots: SlotSettings = SlotSettings()
    nodes: Mapping[LaunchId, Node] = field(default_factory=_empty)
    accounts: Mapping[CloudName, Account] = field(default_factory=_empty)
    learned: Learned = Learned()
    spending: Spending = Spending()
    peers: Peers = Peers()
    indexes: Indexes = field(default_factory=Indexes, compare=False, repr=False)

    def account_of(self, cloud: CloudName = DEFAULT_CLOUD) -> Account:
        """The facts about a cloud."""
        return self.accounts.get(cloud, NO_ACCOUNT)

    def with_account(self, cloud: CloudName, account: Account) -> Snapshot:
        """The snapshot with other knowledge of a cloud."""
        return replace(self, accounts={**self.accounts, cloud: account})

    @property
    def closed_clouds(self) -> Mapping[CloudName, Reason]:
        """The clouds in which nothing is done now, and why."""
        return self.sources.closed_clouds

    @property
    def intruders(self) -> list[CloudNode]:
        """The nodes of all clouds that have our cluster's name with another UUID."""
        return [node for account in self.accounts.values() for node in account.intruders]

    @property
    def strangers(self) -> int:
        """How many nodes of all clouds are not ours."""
        return sum(account.strangers for account in self.accounts.values())

    def is_out_of_reach(self, node: Node, policy: Policy) -> bool:
        """Whether nothing is done in the node's cloud now."""
        return bool(self.closed_clouds) and policy.cloud_of(node.launch) in self.closed_clouds

    def steered(self, node: Node) -> bool:
        """Whether an operator keeps jobs off the node."""
        return self.operator.steering.blocks_work_on(node.id)
