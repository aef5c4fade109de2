"""What the parts of the delegator share: its jobs, its peers, and how requests are sent."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import structlog

from nodemanager.actors.delegation.tracked import PeerState, TrackedJob
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_fsd, format_job_id
from nodemanager.core.ports import Clock
from nodemanager.core.reasons import Reason
from nodemanager.delegation.home_port import HomePort, HomeRequest
from nodemanager.delegation.jobs import Copy, PeerName
from nodemanager.delegation.peer_port import PeerRequest
from nodemanager.delegation.view import DelegatedJob, DelegationEvent, DelegationView, PeerRun, PeerStatus


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
