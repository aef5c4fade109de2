"""A node as the manager knows it: its launch, its state, and what was ordered and seen, in groups."""

from __future__ import annotations

from dataclasses import dataclass

from nodemanager.core.jobs import NodeLoad
from nodemanager.core.nodes import (
    Call,
    CloudNode,
    CloudState,
    FluxRank,
    JoinPhase,
    Launch,
    LaunchId,
    NodeState,
)
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import Hardware
from nodemanager.planner.state.frozen import lazy_property

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


@dataclass(frozen=True)
class Listing:
    """What the provider's lists have shown of the node over time."""

    billed_from_s: float | None = None
    absences: int = 0  # lists in a row that lack it, begun after ``known_s``
    absent_s: float | None = None  # when the first of these lists was begun
    known_s: float = 0.0  # when the provider last certainly had it, or may have received its create


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
