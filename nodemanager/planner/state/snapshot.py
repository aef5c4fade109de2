"""All that is known at one moment: the one value that decisions are made from.

``observe`` makes the next snapshot from this one and a fact; ``plan`` reads it. Nothing else holds state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from nodemanager.planner.state.rank_index import RankIndex
from nodemanager.planner.state.queue_index import QueueIndex
from nodemanager.planner.state.frozen import worked_out
from nodemanager.core.records import UNSTEERED, Spend, Steering
from nodemanager.core.nodes import Call, CloudNode, CloudState, FluxRank, JoinPhase, Launch, LaunchId, NodeState, ProviderId
from nodemanager.core.slots import Hardware, Market, Promise, Rank, SlotName, SlotsWish, TypeName
from nodemanager.core.jobs import Job, JobId, UnreadableJob
from nodemanager.core.reasons import Reason


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)  # without slots: made anew the fastest (``remade``)
class Node:
    """A launch, and what has become of it: the pair of a cloud node and the rank of its slot."""

    launch: Launch
    state: NodeState
    since_s: float  # when it came into this state
    requested_s: float
    moves: tuple[str, ...] = ()  # its latest moves, newest last
    adopted: bool = False  # of an earlier life of the manager, or a stray: how long it took to boot is not known
    recorded: bool = False  # the lease is known to be on record
    create_sent_s: float | None = None  # None: surely no create call has been made by this process
    image: str | None = None  # of its create call; None: none was made by this process
    cloud: CloudNode | None = None
    billed_from_s: float | None = None
    absences: int = 0  # lists in a row, begun after it was last known of, that lack it
    absent_s: float | None = None  # when the first of them was begun
    known_s: float = 0.0  # the newest moment at which the provider surely had it, or may have got it
    rank: FluxRank | None = None
    rank_seen_s: float = (
        0.0  # when the look began that showed ``rank`` first: as long as it stays so, none is noted
    )
    idle_looks: int = 0  # looks in a row that found it idle, counted as far as the policy asks for
    idle_since_s: float | None = None
    drained_s: float | None = None  # when the second look after our drain began
    broker_told_s: float | None = None  # when its broker was told to stop
    retiring: Reason | None = None
    retired_s: float | None = None  # when it was decided to let it go
    stop_delayed: bool = False  # since then a call for it failed, something ran there, or nothing was decided
    phase: JoinPhase | None = None  # the latest that it reported of its joining
    phase_detail: str = ""
    reclaimed: str | None = None  # the provider is about to take it back; its words
    torpid_s: float | None = None  # since when its broker was seen connected and not answering
    housekeeping_s: float | None = None  # since when the housekeeping runs there that runs, or that we killed
    housekeeping_kills: int = 0  # how often that was told to end
    departures_s: tuple[float, ...] = ()  # when its broker went away, the latest few times
    replayed: bool = False  # its ticket was shown again, by another
    hardware: Hardware | None = None  # as it was measured when it joined
    misfit: Reason | None = None  # it has less than its slot declares, and the site does not accept that
    call: Call | None = None
    tries: int = 0  # of the call that failed last
    retry_s: float = 0.0  # nothing more is ordered for it before

    @property
    def id(self) -> LaunchId:
        return self.launch.id

    @property
    def may_be_billed(self) -> bool:
        """Whether it is, or may be, on the bill."""
        return self.state is not NodeState.GONE

    @property
    def exists_at_provider(self) -> bool:
        return self.cloud is not None and self.cloud.state is not CloudState.TERMINATED

    @worked_out
    def is_sound(self) -> bool:
        """Whether nothing at all is the matter with it: then ``fitness`` has nothing to say of it, at any time."""
        return (
            self.reclaimed is None
            and self.misfit is None
            and self.torpid_s is None
            and self.housekeeping_s is None
            and not (self.departures_s or self.housekeeping_kills or self.replayed)
            and not (self.cloud is not None and self.cloud.impaired)
            and not (self.rank is not None and (self.rank.torpid or self.rank.housekeeping_since_at is not None))
        )


@dataclass(frozen=True, slots=True)
class NodeIndex:
    """The nodes counted: kept by ``roll``, beside the nodes that it was read off."""

    nodes: Mapping[LaunchId, Node] = field(default_factory=_empty)
    to_check: Mapping[LaunchId, Node] = field(default_factory=_empty)  # all but those that are simply at work
    with_call: Mapping[LaunchId, Node] = field(default_factory=_empty)  # of them, those with a call in flight
    count_by_state: Mapping[NodeState, int] = field(default_factory=_empty)
    count_by_type: Mapping[TypeName, int] = field(default_factory=_empty)  # of those that cost
    launch_of_slot: Mapping[SlotName, LaunchId] = field(default_factory=_empty)
    launch_of_rank: Mapping[Rank, LaunchId] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class Stray:
    """A cloud node of ours that no launch owns, and since when we have seen it so."""

    node: CloudNode
    since_s: float
    destroy_after_s: float = 0.0  # a destroy was ordered; again not before


@dataclass(frozen=True, slots=True)
class Block:
    """Something is not bought for a while. ``rounds``: how often it was tried and refused in a row."""

    until_s: float
    reason: Reason
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Quota:
    """How many nodes we may have of a scope, as a refusal taught. From ``probe_s`` on one more is tried."""

    cap: int
    probe_s: float
    pause_s: float  # between the refusal and that
    detail: str


@dataclass(frozen=True, slots=True)
class FailureStreak:
    """Boots of one node type from one image that failed in a row; from ``retry_s`` on one more is tried."""

    failures: int
    retry_s: float
    pause_s: float
    why: str  # the code of the latest failure's reason


ALL_TYPES = TypeName("*")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a block concerns: one type everywhere, or on one market in one zone; or all types of a market."""

    type_name: TypeName
    market: Market | None = None
    zone: str | None = None


EVERYTHING = Scope(ALL_TYPES)  # what concerns the account


@dataclass(frozen=True)
class Source:
    """How fresh our knowledge of one side is. ``seen_s``: when the query began that last brought an answer."""

    seen_s: float | None = None
    answer_due_s: float | None = None  # until when an answer is waited for
    retry_s: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Snapshot:
    """See the module. Mappings are never changed in place."""

    now_s: float = 0.0
    wall_at: float = 0.0

    claim: Source = Source()
    claimed: bool = False
    queue: Source = Source()
    flux: Source = Source()  # the looks at ranks
    cloud: Source = Source()

    jobs: Mapping[JobId, Job] = field(default_factory=_empty)
    requeued: frozenset[JobId] = frozenset()  # jobs that were submitted once more, or never will be
    requeue_failed_s: float | None = None  # when that last failed, or was done and not answered
    unreadable: Mapping[JobId, UnreadableJob] = field(default_factory=_empty)
    queues_stopped: frozenset[str] = frozenset()
    queues_asked_s: float | None = None  # when the query began that last said it
    unreachable_s: float | None = None  # when the call began by which the instance was last found not to answer
    newest_job_s: float | None = None  # when a job last became known
    unsettled_s: float | None = None  # since when news has been coming without a settled plan
    changed_s: float = 0.0  # when the queue or the ranks last showed something new
    stirred_s: float | None = None  # a look at the ranks is due since

    jobs_ended: int = 0  # of all users, as far as the instance remembers

    steering: Steering = UNSTEERED  # what operators have set
    steering_on_record: Steering = UNSTEERED
    steering_write: Source = Source()  # of the call that puts it there

    ranks: Mapping[Rank, FluxRank] = field(default_factory=_empty)
    slot_types: Mapping[SlotName, TypeName] = field(default_factory=_empty)  # what the instance says of its slots
    site_mismatch: Reason | None = None  # how the instance is not the one that the site describes
    wish: SlotsWish | None = None  # that they be divided otherwise; not answered yet
    # What types are to promise as soon as that can be, their nodes having less than they do; and what some have
    # come to promise since this process began.
    to_promise: Mapping[TypeName, Promise] = field(default_factory=_empty)
    promised: Mapping[TypeName, Promise] = field(default_factory=_empty)
    wish_due_s: float | None = None  # until when the answer to it is waited for: nothing is decided meanwhile
    rank_of_slot: Mapping[SlotName, Rank] = field(default_factory=_empty)
    nodes: Mapping[LaunchId, Node] = field(default_factory=_empty)
    strays: Mapping[ProviderId, Stray] = field(default_factory=_empty)
    intruders: tuple[CloudNode, ...] = ()  # our cluster's name, another cluster's UUID: never touched
    strangers: int = 0  # not ours, never touched
    swept_s: float | None = None  # when a sweep for leftovers was last asked for
    unready_since_s: float | None = None  # since when too large a part of the nodes that were up is not
    doubted_lists: int = 0  # lists in a row that lacked a large part of the fleet at once

    blocks: Mapping[Scope, Block] = field(default_factory=_empty)
    quotas: Mapping[Scope, Quota] = field(default_factory=_empty)
    streaks: Mapping[tuple[TypeName, str], FailureStreak] = field(default_factory=_empty)  # by node type and image
    create_credit: float = 0.0  # of the rate bucket, as it stood at ``create_credit_s``
    create_credit_s: float | None = None

    # What nodes that are gone and jobs that have ended have cost, as ``Spend`` has it. Kept by ``spending``, and
    # only where there is a budget; nothing is added to it before the record was read.
    spend: Mapping[tuple[str, int, str], Decimal] = field(default_factory=_empty)
    spend_counted: frozenset[LaunchId] = frozenset()  # nodes that are in it and still hold their slot
    spend_on_record: Spend | None = None  # None: the record was not read yet
    spend_kept_s: float = 0.0  # when it was last kept
    spend_write: Source = Source()  # of the call that puts it there

    # What was measured, the latest last: from a node's order to its joining, and from the decision to let one go to
    # the list that shows it gone. A restart begins anew.
    boots_s: Mapping[TypeName, tuple[float, ...]] = field(default_factory=_empty)
    stops_s: Mapping[TypeName, tuple[float, ...]] = field(default_factory=_empty)

    # The same knowledge, arranged for the planner. Each knows what it was read off, and is read anew where that is
    # not what stands here: so these can make a plan slow, never wrong.
    queue_index: QueueIndex = field(default_factory=QueueIndex, compare=False, repr=False)
    rank_index: RankIndex = field(default_factory=RankIndex, compare=False, repr=False)
    node_index: NodeIndex = field(default_factory=NodeIndex, compare=False, repr=False)

    def steered(self, node: Node) -> bool:
        """Whether an operator keeps work from it."""
        return self.steering.blocks_work_on(node.id)
