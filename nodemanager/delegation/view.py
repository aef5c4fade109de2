"""What delegation shows, as frozen values: each delegated job, each peer, and what the peers offer the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.elsewhere.peers import PeerOffer
from nodemanager.core.facts import PeersSeen
from nodemanager.core.jobs import JobId
from nodemanager.core.reasons import Reason
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import PeerName


@dataclass(frozen=True, slots=True)
class DelegatedJob:
    """One delegated job. ``peer`` and ``remote`` are None until a peer has it; ``chosen``: why that peer."""

    id: JobId
    target: str
    reason: Reason
    submitted_at: float
    peer: PeerName | None = None
    uri: str = ""
    remote: JobId | None = None
    started_at: float | None = None
    chosen: Reason | None = None


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer. ``jobs``: our jobs there."""

    name: PeerName
    uri: str
    reachable: bool
    why: str
    load: PeerLoad | None
    jobs: int
    jobs_max: int
    price_per_core_hour: Decimal
    configured: bool = True  # False: a URI that a user gave


@dataclass(frozen=True, slots=True)
class DelegationEvent:
    """Something that happened, for the history. ``subject``: a job's id in decimal, or "peer NAME"."""

    at: float
    subject: str
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PeerRun:
    """A job that ran at a peer, once it has ended. Times are by the peer's clock.

    ``started_at`` is None if the peer lost its state meanwhile, so that nobody knows how long the job ran.
    """

    job: JobId
    peer: PeerName
    remote: JobId
    cores: int
    started_at: float | None
    ended_at: float
    price_per_core_hour: Decimal


@dataclass(frozen=True, slots=True)
class DelegationView:
    """All of delegation at one moment. ``fault``: why no job is delegated now, "" if jobs are."""

    jobs: Mapping[JobId, DelegatedJob] = field(default_factory=dict)
    peers: tuple[PeerStatus, ...] = ()
    fault: str = ""
    ended: int = 0  # delegated jobs that ended since the service started
    events: tuple[DelegationEvent, ...] = ()  # since the view before
    runs: tuple[PeerRun, ...] = ()  # that ended since the view before; a run may come twice
    # With ``burst = peers``: the jobs sent to a peer without being asked for, and the peers that refused a job.
    taken: frozenset[JobId] = frozenset()
    refused: Mapping[JobId, frozenset[str]] = field(default_factory=dict)


def peers_seen(view: DelegationView, userid: int) -> PeersSeen:
    """Tell the planner what the peers offer; nothing while no job can be delegated."""
    offers = () if view.fault else tuple(_offer(peer) for peer in view.peers if peer.configured)
    return PeersSeen(offers, userid, view.taken, view.refused)


def _offer(peer: PeerStatus) -> PeerOffer:
    load = peer.load
    if not peer.reachable or load is None:
        return PeerOffer(peer.name, peer.why or "not asked yet")
    taking = None if load.queues is None else frozenset(name for name, takes in load.queues.items() if takes)
    return PeerOffer(
        peer.name,
        nodes=load.nodes,
        nodes_free=load.nodes_free,
        cores=load.cores,
        cores_free=load.cores_free,
        waiting=load.waiting,
        starts_at=load.last_start_at,
        queues=taking,
        jobs_left=max(0, peer.jobs_max - peer.jobs),
        price_per_core_hour=peer.price_per_core_hour,
    )
