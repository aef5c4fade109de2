"""What the delegator remembers: its jobs and its peers, and how requests are sent.

A restart reads all of it again from both instances.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_fsd, format_job_id
from nodemanager.core.ports import Clock
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.delegation.choose import Candidate, Choice, Needs, Peer, PeerLoad
from nodemanager.delegation.jobs import Copy, PeerName, Proxy
from nodemanager.delegation.next_step import OutputState, PeerView
from nodemanager.delegation.ports import HomePort, HomeRequest, PeerPort, PeerRequest
from nodemanager.delegation.relay import OutputRelay
from nodemanager.delegation.view import DelegatedJob, DelegationEvent, DelegationView, PeerRun, PeerStatus

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
    output: OutputState = OutputState.IDLE
    relay: OutputRelay | None = None
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
        """Forget how far the output was copied: one side was lost."""
        self.output = OutputState.IDLE
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
            self.peer.uri,
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


class DelegationState:
    """All delegated jobs and all peers. ``home_fault``: why nothing is done now, "" if jobs move."""

    def __init__(self, home: HomePort, clock: Clock) -> None:
        self.home = home
        self.clock = clock
        self.log: Any = structlog.get_logger()
        self.jobs: dict[JobId, TrackedJob] = {}
        self.peers: dict[PeerName, PeerState] = {}
        self.home_fault = "not connected yet"
        self.ordered: dict[JobId, Reason] = {}  # why the planner sent a job to a peer
        self._ended = 0
        self._events: list[DelegationEvent] = []
        self._runs: list[PeerRun] = []

    # --- requests: one at a time for each job, so that each step sees the outcome of the one before ---

    def ask_home(self, tracked: TrackedJob, request: HomeRequest) -> None:
        """Send a request to our instance; the job waits for its answer."""
        tracked.in_flight, tracked.asked = request, None
        self.home.send(request)

    def ask_peer(self, tracked: TrackedJob, peer: PeerName, request: PeerRequest) -> None:
        """Send a request to a peer; the job waits for its answer."""
        tracked.in_flight, tracked.asked = request, peer
        self.peers[peer].port.send(request)

    def waiting_for(self, state: PeerState, request: PeerRequest) -> list[tuple[JobId, TrackedJob]]:
        """List the jobs that wait for the answer to this request to a peer."""
        remote = getattr(request, "remote", None)
        job = state.job_of.get(remote) if remote is not None else None
        jobs = self.jobs.items() if job is None else [(job, self.jobs.get(job))]
        return [
            (id_, tracked)
            for id_, tracked in jobs
            if tracked is not None and tracked.asked == state.peer.name and tracked.in_flight == request
        ]

    def forget(self, job: JobId) -> None:
        """Forget a job that has ended at both sides."""
        placed = self.jobs.pop(job).proxy.placed
        if placed is not None and (state := self.peers.get(placed.peer)) is not None:
            copy = state.copies.get(job, {}).get(placed.remote)
            if copy is not None:
                self.note_run(state, job, copy)
            elif placed.remote in state.missing:
                self._note_lost_run(state, job, placed.remote)
        self.ordered.pop(job, None)
        self._ended += 1
        for state in self.peers.values():
            state.forget_job(job)

    def note_run(self, state: PeerState, job: JobId, copy: Copy) -> None:
        """Add a copy that has ended to the next view, if it ever ran."""
        if copy.started_at is None:
            return
        now_at, price = self.clock.wall_at(), state.peer.price_per_core_hour
        ended_at = copy.ended_at or max(now_at, copy.started_at)
        name, remote = state.peer.name, copy.remote
        self._runs.append(PeerRun(job, name, remote, copy.cores, copy.started_at, ended_at, price))
        took = format_fsd(max(0.0, ended_at - copy.started_at))
        how = f"{copy.failure.type}: {copy.failure.note}" if copy.failure else _describe_status(copy.status)
        self.note(str(int(job)), "ended_at_peer", f"{name} {format_job_id(remote)}: ran for {took}, {how}")

    def _note_lost_run(self, state: PeerState, job: JobId, remote: JobId) -> None:
        now_at, name = self.clock.wall_at(), state.peer.name
        self._runs.append(PeerRun(job, name, remote, 0, None, now_at, state.peer.price_per_core_hour))
        self.note(str(int(job)), "lost_at_peer", f"{name} {format_job_id(remote)}")

    # --- showing ---

    def jobs_by_peer(self) -> Counter[PeerName | None]:
        """Count the jobs of each peer: those that it has, and those for which it is chosen."""
        return Counter(it.proxy.placed.peer if it.proxy.placed else it.chosen for it in self.jobs.values())

    def why_chosen(self, tracked: TrackedJob) -> Reason | None:
        """Why its peer was chosen: by the planner, which also weighed own nodes, or else among the peers."""
        chosen = tracked.choice.reason if tracked.choice else None
        return self.ordered.get(tracked.proxy.id, chosen) if tracked.proxy.taken else chosen

    def note(self, subject: str, what: str, detail: str = "") -> None:
        """Add an event to the next view."""
        self._events.append(DelegationEvent(self.clock.wall_at(), subject, what, detail))

    def view(self) -> DelegationView:
        """Return everything that is shown, with the events since the view before."""
        counts = self.jobs_by_peer()
        peers = tuple(
            PeerStatus(
                name,
                state.peer.uri,
                state.synced,
                state.why,
                state.load,
                counts[name],
                state.peer.jobs_max,
                state.peer.price_per_core_hour,
                state.peer.configured,
            )
            for name, state in self.peers.items()
        )
        events, self._events = tuple(self._events), []
        runs, self._runs = tuple(self._runs), []
        jobs = {job: self._shown(it) for job, it in self.jobs.items() if not it.proxy.returned}
        taken = frozenset(job for job, it in self.jobs.items() if it.proxy.taken)
        refused = {
            job: frozenset(it.proxy.refusals)
            for job, it in self.jobs.items()
            if it.proxy.returned or it.proxy.taken
        }
        return DelegationView(jobs, peers, self.home_fault, self._ended, events, runs, taken, refused)

    def _shown(self, tracked: TrackedJob) -> DelegatedJob:
        proxy, placed = tracked.proxy, tracked.proxy.placed
        state = self.peers.get(placed.peer) if placed else None
        copy = state.copies.get(proxy.id, {}).get(placed.remote) if state and placed else None
        return DelegatedJob(
            proxy.id,
            proxy.target,
            tracked.reason,
            proxy.submitted_at,
            placed.peer if placed else None,
            state.peer.uri if state else "",
            placed.remote if placed else None,
            copy.started_at if copy else None,
            self.why_chosen(tracked),
        )


def _describe_status(status: int | None) -> str:
    """Write a status, as ``waitpid`` gives it, in words."""
    if status is None:
        return "its status is not known"
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
