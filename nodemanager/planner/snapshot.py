"""The snapshot: all that is known at one moment. Decisions are made from this value alone.

``observe`` makes the next snapshot from the last one and a fact; ``plan`` reads it. Nothing else holds state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from heapq import merge
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

from nodemanager.core.facts import PeersSeen
from nodemanager.core.jobs import Job, JobId, JobResult, NodeLoad, NodeOrder, Shape, UnreadableJob
from nodemanager.core.nodes import (
    Call,
    CloudNode,
    CloudState,
    FailureKind,
    FluxRank,
    JoinPhase,
    Launch,
    LaunchId,
    NodeState,
    ProviderId,
    Roster,
    RosterEntry,
)
from nodemanager.core.reasons import Reason
from nodemanager.core.records import UNSTEERED, HeldJob, Spend, Steering
from nodemanager.core.slots import (
    DEFAULT_CLOUD,
    Billing,
    CloudName,
    Hardware,
    Market,
    Promise,
    Rank,
    SlotName,
    SlotsWish,
    TypeName,
)
from nodemanager.planner.frozen import lazy_property, replace
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import QueueIndex, RankIndex, with_changes


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


Bought = tuple[TypeName, str, Market | None]  # a node's type, and the size and market of its launch
Make = tuple[TypeName, str, str, bool]  # a node's type, fingerprint, zone, and whether it is prepaid


@dataclass(frozen=True)
class NodeIndex:
    """The nodes by use, with counts. Maintained by ``planner.node_index``; ``nodes`` is what it was built from."""

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


@dataclass(frozen=True, slots=True)
class RefusedGang:
    """Jobs of several nodes for which the provider had too few. No node is bought for them until ``until_s``."""

    until_s: float
    pause_s: float  # from the refusal to ``until_s``
    type_name: TypeName  # of the node that was refused
    granted: int  # how many nodes of ``types`` existed then, in ``zone`` if there is one
    detail: str
    types: frozenset[TypeName]  # of the nodes that were bought for them
    needed: int | None  # how many of such nodes such a job takes; None: the pause does not end early
    zone: str | None = None  # where nodes were bought for jobs that want one zone; None for all others
    others: int = 0  # how many nodes of other types its cloud had then


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
    gangs: Mapping[Shape, RefusedGang] = field(default_factory=_empty)
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

    ``planner.budget`` adds to it, but only if there is a budget and the record has been read.
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


@dataclass(frozen=True, slots=True)
class RecordFault:
    """Writes of leases to the record that failed in a row. ``retry_s``: no node is bought before."""

    failures: int
    retry_s: float
    why: str


@dataclass(frozen=True)
class Sources:
    """How fresh our knowledge is, and what keeps us from trusting it."""

    claim: Source = Source()
    claimed: bool = False
    claimed_s: float = 0.0  # when the last claim was answered
    queue: Source = Source()
    flux: Source = Source()  # looks at the ranks
    unreachable_s: float | None = None  # when the latest call began that the instance did not answer
    record_fault: RecordFault | None = None  # None if the latest write worked
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
    steering_lost: str = ""  # why nobody can steer this manager now; "" if operators can


class Misread(NamedTuple):
    """Answers to one kind of call that the adapter did not understand."""

    times: int
    last_s: float
    detail: str


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
    failed_lists: int = 0  # in a row
    misread: Mapping[str, Misread] = field(default_factory=_empty)  # by operation


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


# --- A node as the manager knows it: its launch, its state, and what was ordered and seen, in groups ------


# All classes here are without slots, so that ``frozen.replace`` is fast.


@dataclass(frozen=True)
class Create:
    """How the node was ordered. ``adopted``: by an earlier process, or a stray: its boot time is unknown."""

    requested_s: float
    adopted: bool = False
    recorded: bool = False  # the lease is known to be on record
    sent_s: float | None = None  # None: this process has certainly sent no create
    failure: str = ""  # the provider's words; the node may exist all the same
    load: NodeLoad = ()  # what it was bought for; empty after a restart
    image: str | None = None  # of its create; None if this process sent none
    queued_s: float = 0.0  # when a list last showed it in the provider's own queue

    @property
    def boots_from_s(self) -> float:
        """Since when it boots: since its order, or since it left the provider's own queue."""
        return max(self.requested_s, self.queued_s)


@dataclass(frozen=True)
class Listing:
    """What the provider's lists have shown of the node over time."""

    billed_from_s: float | None = None
    listed: bool = False  # whether any list has shown it
    absences: int = 0  # lists in a row that lack it, begun after ``known_s``
    absent_s: float | None = None  # when the first of these lists was begun
    known_s: float = 0.0  # when the provider last certainly had it, or may have received its create
    vanished: bool = False  # lists lacked it too long while it booted: it is destroyed before it is forgotten


@dataclass(frozen=True)
class Seen:
    """What the looks at the node's rank have shown over time."""

    # When the look began that first showed the node's ``rank``. Later looks that show the same are not noted.
    rank_seen_s: float = 0.0
    idle_looks: int = 0  # looks in a row that found it idle, counted up to the policy's confirmations
    idle_since_s: float | None = None


@dataclass(frozen=True)
class Stop:
    """The node's retirement: why and when it was decided, and how far it is."""

    retiring: Reason | None = None  # None: it stays
    by_operator: bool = False  # or held, while it was leaving: a release undrains it
    retired_s: float | None = None  # when it was decided to retire it
    drained_s: float | None = None  # when the second look after our drain began
    broker_told_s: float | None = None  # when the manager told its broker to stop
    destroyed_s: float | None = None  # when the provider last accepted its destroy
    delayed: bool = False  # since then a call for it failed, a job ran there, or nothing was decided


@dataclass(frozen=True)
class JoinReport:
    """What the node itself has reported while it joined."""

    phase: JoinPhase | None = None
    detail: str = ""
    hardware: Hardware | None = None


@dataclass(frozen=True)
class Health:
    """The node's troubles."""

    reclaimed: str | None = None  # the provider's notice that it will take the node back
    torpid_s: float | None = None  # since when its broker is connected but does not answer
    drained_by_flux_s: float | None = None  # since when the rank has a drain of Flux's own
    housekeeping_s: float | None = None  # since when a housekeeping runs there, or the one we killed ran
    housekeeping_kills: int = 0  # how often we tried to kill that
    departures_s: tuple[float, ...] = ()  # the latest few times its broker went away
    replayed: bool = False  # its ticket was used again, by another machine
    misfit: Reason | None = None  # it has less than its slot declares, and the site does not accept that


@dataclass(frozen=True)
class Node:
    """A launch and its current state: the cloud node, paired with the rank of its slot."""

    launch: Launch
    state: NodeState
    since_s: float  # when it entered this state
    create: Create
    moves: tuple[str, ...] = ()  # its latest moves, newest last
    cloud: CloudNode | None = None
    listing: Listing = Listing()
    rank: FluxRank | None = None
    seen: Seen = Seen()
    stop: Stop = Stop()
    join_report: JoinReport = JoinReport()
    health: Health = Health()
    call: Call | None = None
    tries: int = 0  # failures in a row of the latest call
    retry_s: float = 0.0  # no further order for it before
    failure: str = ""  # of the latest call; "" if it did not fail

    @property
    def id(self) -> LaunchId:
        return self.launch.id

    @property
    def may_be_billed(self) -> bool:
        """Whether the provider bills for it, or may do so."""
        return self.state is not NodeState.GONE

    @property
    def exists_at_provider(self) -> bool:
        """Whether the provider lists it and does not show it terminated."""
        return self.cloud is not None and self.cloud.state is not CloudState.TERMINATED

    @property
    def is_queued(self) -> bool:
        """Whether it waits in the provider's own queue: it does not boot yet, and costs nothing."""
        return self.state is NodeState.BOOTING and self.cloud is not None and self.cloud.queued

    @lazy_property
    def is_sound(self) -> bool:
        """Whether the node has no trouble at all: then ``node_health`` finds nothing, now or later."""
        health = self.health
        return (
            health.reclaimed is None
            and health.misfit is None
            and health.torpid_s is None
            and health.housekeeping_s is None
            and not (health.departures_s or health.housekeeping_kills or health.replayed)
            and not (self.cloud is not None and self.cloud.impaired)
            and not (self.rank is not None and (self.rank.torpid or self.rank.housekeeping_since_at is not None))
        )


# --- the lifecycle of a node: one table of every legal move -----------------------------------------------
#
# ``doc/lifecycle.md`` is generated from it.
#
# A move that is not in the table is a bug in the calling code: it raises an error that lists the node's latest
# moves. Facts may arrive in any order, so ``observe`` asks :func:`allows` first if a fact may be old news. Code
# that acts on a decision never asks.


MOVES_KEPT = 16


class Event(StrEnum):
    """What can happen to a node. Events are observed, unless marked as decided."""

    APPEARED = "appeared"  # the provider answered the create, or lists it
    DISPROVED = "disproved"  # the create was refused, or enough lists lack it
    JOINED = "joined"  # its rank is online
    JOB_BEGAN = "job began"
    JOBS_ENDED = "jobs ended"
    LEFT = "left"  # its rank is offline
    RETIRED = "retired"  # decided: drain it, then look again
    REPRIEVED = "reprieved"  # decided: undrained and kept; or somebody else undrained it
    CONDEMNED = "condemned"  # decided on the second look: nothing runs there, stop it
    ENDED = "ended"  # the provider shows it terminated, or enough lists lack it


NEXT_STATE: Mapping[tuple[NodeState, Event], NodeState] = {
    (NodeState.REQUESTED, Event.APPEARED): NodeState.BOOTING,
    (NodeState.REQUESTED, Event.DISPROVED): NodeState.GONE,
    (NodeState.REQUESTED, Event.ENDED): NodeState.GONE,  # dead before it was first listed
    (NodeState.BOOTING, Event.JOINED): NodeState.IDLE,
    (NodeState.BOOTING, Event.RETIRED): NodeState.DRAINING,  # never joined in time, or failed at the provider
    (NodeState.BOOTING, Event.ENDED): NodeState.GONE,
    (NodeState.IDLE, Event.JOB_BEGAN): NodeState.BUSY,
    (NodeState.IDLE, Event.LEFT): NodeState.LOST,
    (NodeState.IDLE, Event.RETIRED): NodeState.DRAINING,
    (NodeState.IDLE, Event.ENDED): NodeState.GONE,
    (NodeState.BUSY, Event.JOBS_ENDED): NodeState.IDLE,
    (NodeState.BUSY, Event.LEFT): NodeState.LOST,
    (NodeState.BUSY, Event.ENDED): NodeState.GONE,
    (NodeState.LOST, Event.JOINED): NodeState.IDLE,
    (NodeState.LOST, Event.RETIRED): NodeState.DRAINING,
    (NodeState.LOST, Event.ENDED): NodeState.GONE,
    (NodeState.DRAINING, Event.REPRIEVED): NodeState.IDLE,
    (NodeState.DRAINING, Event.CONDEMNED): NodeState.STOPPING,
    (NodeState.DRAINING, Event.ENDED): NodeState.GONE,
    (NodeState.STOPPING, Event.ENDED): NodeState.GONE,
}


# The text of each move in ``Node.moves``, without its time.
_MOVE_TEXT: Mapping[tuple[NodeState, Event], str] = {
    (before, event): f"{event} -> {after} at " for (before, event), after in NEXT_STATE.items()
}


class IllegalMoveError(Exception):
    """A move that is not in the table: a bug. The message lists the node's latest moves."""

    def __init__(self, node: Node, event: Event) -> None:
        moves = ", ".join(node.moves) or "none"
        super().__init__(f"{node.id} is {node.state} and cannot be {event}; its moves so far: {moves}")


def allows(node: Node, event: Event) -> bool:
    """Whether the event is legal in the node's state."""
    return (node.state, event) in NEXT_STATE


def move(node: Node, event: Event, now_s: float, **changes: Any) -> Node:
    """The node after the event, with other fields changed too. Raises ``IllegalMoveError`` for an illegal move."""
    state = NEXT_STATE.get((node.state, event))
    if state is None:
        raise IllegalMoveError(node, event)
    moves = (*node.moves, f"{_MOVE_TEXT[node.state, event]}{now_s:.3f}")[-MOVES_KEPT:]
    return replace(node, state=state, since_s=now_s, moves=moves, **changes)


# --- the roster for the join service: which launch holds each slot, and whether its node may still join ---


# Nodes in these states have yet to join. A node that was online before keeps its key material.
JOINING = (NodeState.REQUESTED, NodeState.BOOTING)


def roster(snapshot: Snapshot, policy: Policy) -> Roster:
    """Every launch that is on record and not proven gone, ordered by slot."""
    nodes = sorted(snapshot.nodes.values(), key=lambda node: (node.launch.slot, node.id))
    return tuple(
        _entry(node, policy) for node in nodes if node.create.recorded and node.state is not NodeState.GONE
    )


def _entry(node: Node, policy: Policy) -> RosterEntry:
    until_at = node.launch.requested_at + policy.timing.boot_timeout_s
    return RosterEntry(
        launch=node.id,
        slot=node.launch.slot,
        redeemable_until_at=until_at if node.state in JOINING else 0.0,
        may_start=node.state is not NodeState.STOPPING,
        online=node.rank is not None and node.rank.online,
        addresses=node.cloud.addresses if node.cloud is not None else (),
        provider_id=node.cloud.provider_id if node.cloud is not None and node.state in JOINING else None,
        cloud=policy.only_cloud(policy.cloud_of(node.launch)),
    )


# --- resting ----------------------------------------------------------------------------------------------
#
# Idle nodes in the order in which their time comes: a plan looks at the first few, not at all of them.


EARLY_S = 1.0  # a time computed here may differ from the exact one by a rounding error

TimedNode = tuple[float, LaunchId]


@dataclass(frozen=True, slots=True)
class Resting:
    """The idle nodes of one type, by two times, the earliest first."""

    idle_since: Sequence[TimedNode] = ()
    billed_from: Sequence[TimedNode] = ()

    def changed(
        self, left: Iterable[tuple[float, float, LaunchId]], joined: Iterable[tuple[float, float, LaunchId]]
    ) -> Resting:
        """Without the nodes in ``left`` and with those in ``joined``: ``idle_since``, ``billed_from`` and id."""
        gone, come = list(left), list(joined)
        return Resting(
            with_changes(self.idle_since, [(at, id_) for at, _, id_ in gone], [(at, id_) for at, _, id_ in come]),
            with_changes(self.billed_from, [(at, id_) for _, at, id_ in gone], [(at, id_) for _, at, id_ in come]),
        )

    def by_time(self, billing: Billing, idle_timeout_s: float, lead_s: float, now_s: float) -> Iterator[TimedNode]:
        """The nodes, each with a time before which it is certainly not retired for its idleness, earliest first.

        That time is ``EARLY_S`` too early, because of rounding.

        If billing windows are no longer than ``idle_timeout_s``, that time ends the node's idle time. If they are
        longer, it is ``lead_s`` before the end of the node's paid window (``retirement``).
        """
        if billing.window_s <= idle_timeout_s:
            return ((since_s + idle_timeout_s - EARLY_S, id_) for since_s, id_ in self.idle_since)
        if billing.window_s <= lead_s:
            return ((now_s, id_) for _, id_ in self.idle_since)
        return merge(*self._by_window(billing, lead_s + EARLY_S, now_s))

    def _by_window(self, billing: Billing, lead_s: float, now_s: float) -> Iterator[Iterator[TimedNode]]:
        """For each number of paid windows, the nodes that are in the last one of these."""
        window_s, nodes = billing.window_s, self.billed_from
        ends_s = max(1, ceil(billing.minimum_s / window_s)) * window_s  # what the youngest have paid for
        stop = len(nodes)
        while stop:
            start = bisect_left(nodes, (now_s - ends_s - EARLY_S,), 0, stop)
            yield _before_end(nodes[start:stop], ends_s - lead_s)
            if start:
                # Windows in which no node is are left out.
                age_s = now_s - nodes[start - 1][0]
                ends_s = max(ends_s + window_s, ceil((age_s - EARLY_S) / window_s) * window_s)
            stop = start


def _before_end(nodes: Sequence[TimedNode], after_s: float) -> Iterator[TimedNode]:
    return ((from_s + after_s, id_) for from_s, id_ in nodes)
