"""What the delegator remembers: its jobs and its peers. A restart reads all of it again from both instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.delegation.choose import Candidate, Choice, Needs, PeerLoad
from nodemanager.delegation.home_port import HomeRequest
from nodemanager.delegation.jobs import Copy, PeerName, Proxy
from nodemanager.delegation.peer_port import Peer, PeerPort, PeerRequest
from nodemanager.delegation.relay import OutputRelay
from nodemanager.delegation.steps import PeerView, Relay

RETRY_MIN_S = 0.5
RETRY_MAX_S = 30.0
FIT_GOOD_S = 60.0  # a peer's resources may change, so its answers age


@dataclass
class TrackedJob:
    """One delegated job. ``known``: our instance has reported its whole eventlog on this connection."""

    proxy: Proxy
    known: bool = True
    jobspec: Mapping[str, Any] | None = None  # as its user submitted it
    needs: Needs | None = None
    fit_key: str = ""
    chosen: PeerName | None = None
    no_peer: str = ""  # why no peer takes a job that we took
    never: bool = False  # nor ever will
    choice: Choice | None = None
    # The request that must be answered before the next step, and the peer it was sent to (None: our instance).
    in_flight: HomeRequest | PeerRequest | None = None
    asked: PeerName | None = None
    retry_s: float = 0.0
    pause_s: float = 0.0
    reason: Reason = field(default_factory=lambda: because(Code.DELEGATED_NEW))
    # Output.
    relay: Relay = Relay.IDLE
    passing: OutputRelay | None = None
    stream: int = 0
    appends: int = 0  # not answered yet
    stream_ended: bool = False
    # Lines of the exec eventlog, until there is output: ``flux job attach`` looks for output once it reads them.
    held_back: str = ""
    has_output: bool = False
    # This manager has shown it as running, on this connection: no other one has copied output before.
    shown_by_us: bool = False

    def answered(self) -> None:
        """The request in flight was carried out."""
        self.in_flight = self.asked = None
        self.pause_s = 0.0

    def put_off(self, now_s: float) -> None:
        """The request in flight was refused: try again later, each time later."""
        self.in_flight = self.asked = None
        self.pause_s = min(max(2 * self.pause_s, RETRY_MIN_S), RETRY_MAX_S)
        self.retry_s = now_s + self.pause_s

    def drop_output(self) -> None:
        """Forget the relay: one side was lost."""
        self.relay = Relay.IDLE
        self.appends = 0
        self.stream_ended = False
        self.stream += 1


@dataclass
class PeerState:
    """One peer, with the copies that it has reported."""

    peer: Peer
    port: PeerPort
    synced: bool = False
    why: str = "not connected yet"
    load: PeerLoad | None = None
    copies: dict[JobId, dict[JobId, Copy]] = field(default_factory=dict)  # by our job, then by its own id
    job_of: dict[JobId, JobId] = field(default_factory=dict)
    missing: set[JobId] = field(default_factory=set)
    # The jobs of which the copies that had ended are known too, and those for which the peer is asked now.
    searched: set[JobId] = field(default_factory=set)
    searching: set[JobId] | None = None
    refused: dict[JobId, str] = field(default_factory=dict)
    fits: dict[str, tuple[str | None, float]] = field(default_factory=dict)  # the answer, None: asked; and when
    sent: list[tuple[float, int]] = field(default_factory=list)  # when, and the cores, of what its load may lack

    def view(self, job: JobId) -> PeerView:
        """Return the facts about one job."""
        return PeerView(
            self.peer.name,
            self.synced,
            tuple(self.copies.get(job, {}).values()),
            frozenset(self.missing),
            self.why,
            self.refused.get(job, ""),
            job in self.searched,
        )

    def add_copy(self, job: JobId, copy: Copy) -> None:
        """Remember a copy of one of our jobs."""
        self.copies.setdefault(job, {})[copy.remote] = copy
        self.job_of[copy.remote] = job

    def forget_copy(self, job: JobId, remote: JobId) -> None:
        """Forget one copy."""
        self.copies[job].pop(remote)
        self.job_of.pop(remote, None)

    def forget_job(self, job: JobId) -> None:
        """Forget a job and its copies."""
        for remote in self.copies.pop(job, {}):
            self.job_of.pop(remote, None)
        self.refused.pop(job, None)

    def search_again(self) -> None:
        """Our instance is lost, and may come back without its latest events: search again."""
        self.searched.clear()
        if self.searching is not None:
            self.searching = set()

    def lose(self, why: str) -> None:
        """The connection is lost: what it reported must be reported again."""
        self.synced = False
        self.why = why
        self.copies.clear()
        self.job_of.clear()
        self.missing.clear()
        self.searched.clear()
        self.searching = None
        self.fits.clear()

    def fit(self, key: str, now_s: float) -> str | None:
        """Return the peer's answer to whether a job fits; None if there is no answer that still counts."""
        answer, asked_s = self.fits.get(key, (None, 0.0))
        return answer if now_s - asked_s < FIT_GOOD_S else None

    def must_ask(self, key: str, now_s: float) -> bool:
        """Whether to ask the peer if a job fits."""
        return key not in self.fits or now_s - self.fits[key][1] >= FIT_GOOD_S

    def candidate(self, tracked: TrackedJob, jobs: int, now_s: float) -> Candidate:
        """Describe the peer to ``choose``."""
        seen_at = self.load.seen_at if self.load else 0.0
        self.sent = [(at, cores) for at, cores in self.sent if at >= seen_at]
        return Candidate(
            self.peer.name,
            self.load,
            "" if self.synced else self.why,
            self.fit(tracked.fit_key, now_s),
            tracked.proxy.refusals.get(self.peer.name, ""),
            jobs,
            self.peer.jobs_max,
            len(self.sent),
            sum(cores for _, cores in self.sent),
            self.peer.price_per_core_hour,
        )
