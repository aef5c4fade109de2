"""Choose a peer for a job, after asking the peers whether the job fits, and submit the copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodemanager.actors.delegation.state import DelegationState
from nodemanager.actors.delegation.targets import Targets
from nodemanager.actors.delegation.tracked import PeerState, TrackedJob
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.delegation.choose import choose
from nodemanager.delegation.home_port import RaiseOnJob, ReadJobspec
from nodemanager.delegation.jobs import Failure
from nodemanager.delegation.jobspec import ANY, Marker, copy_jobspec, fit_question, read_needs, without_queue
from nodemanager.delegation.peer_port import CheckFit, FitChecked, Peer, PlaceCopy
from nodemanager.delegation.steps import LOST

CHOOSE_AGAIN_S = 1.0
FAULT_MAX = 500  # characters


class PeerChooser:
    """The choice for every job. ``open_peer`` connects a peer; ``step`` takes the next step of a job."""

    def __init__(
        self,
        state: DelegationState,
        targets: Targets,
        cluster_uuid: str,
        open_peer: Callable[[Peer], PeerState],
        step: Callable[[JobId], None],
    ) -> None:
        self._state = state
        self._targets = targets
        self._cluster_uuid = cluster_uuid
        self._open_peer = open_peer
        self._step = step

    def choose(self, tracked: TrackedJob) -> None:
        """Choose a peer and submit to it, or ask for missing facts first, or try again later."""
        may_stay = tracked.proxy.taken and not tracked.proxy.stranded
        peers, fault = self._candidates(tracked)
        if fault:
            self._give_up(tracked, fault, never=True)
            return
        if may_stay and not all(state.synced for state in map(self._open_peer, peers)):
            self._give_up(tracked, "it cannot be reached now")
            return
        if tracked.jobspec is None or tracked.needs is None:
            self._state.ask_home(tracked, ReadJobspec(tracked.proxy.id))
            return
        now_s = self._state.clock.monotonic_s()
        states = [self._open_peer(peer) for peer in peers]
        self._ask_fits(tracked, states, now_s)
        if any(state.synced and state.fit(tracked.fit_key, now_s) is None for state in states):
            tracked.reason = because(Code.DELEGATION_CHOOSING)
            return
        counts = self._state.jobs_by_peer()
        candidates = [state.candidate(tracked, counts[state.peer.name], now_s) for state in states]
        choice = choose(tracked.needs, candidates, self._state.clock.wall_at())
        tracked.reason = choice.reason
        if choice.peer is not None:
            tracked.chosen, tracked.choice = choice.peer, choice
            self.submit(tracked, self._state.peers[choice.peer])
        elif choice.final or may_stay:
            self._give_up(tracked, str(choice.reason.figures["detail"]), never=choice.final)
        else:
            tracked.retry_s = now_s + CHOOSE_AGAIN_S

    def _candidates(self, tracked: TrackedJob) -> tuple[Sequence[Peer], str]:
        # A stranded job can run nowhere but at a peer, whichever that is.
        return self._targets.candidates(ANY if tracked.proxy.stranded else tracked.proxy.target)

    def may_have_it(self, tracked: TrackedJob) -> Sequence[PeerState]:
        """Return the peers that may have a copy of the job without a record of it at home."""
        return [self._open_peer(peer) for peer in self._candidates(tracked)[0]]

    def submit(self, tracked: TrackedJob, state: PeerState) -> None:
        """Submit the copy, which waits with urgency 0."""
        if tracked.jobspec is None:  # a job that was chosen for before our instance was lost
            tracked.chosen = None
            self.choose(tracked)
            return
        state.sent.append((self._state.clock.wall_at(), tracked.needs.cores if tracked.needs else 0))
        copy = PlaceCopy(tracked.proxy.id, self._for_peer(tracked, state))
        self._state.ask_peer(tracked, state.peer.name, copy)

    def take_jobspec(self, job: JobId, jobspec: Mapping[str, Any]) -> None:
        """Take the jobspec as the job's user submitted it."""
        if (tracked := self._state.jobs.get(job)) is None:
            return
        try:
            tracked.needs, tracked.jobspec = read_needs(jobspec), jobspec
            tracked.fit_key = json.dumps(fit_question(self._copy_jobspec(tracked)), sort_keys=True)
        except Exception as fault:  # noqa: BLE001 - doc/decisions/0038: a user's jobspec must not end the service
            tracked.needs = tracked.jobspec = None
            self._state.log.warning("unreadable_job", job=format_job_id(job), why=repr(fault)[:FAULT_MAX])
            self._give_up(tracked, f"its jobspec cannot be read: {fault}"[:FAULT_MAX], never=True)
            return
        tracked.answered()
        self._step(job)

    def take_fit(self, state: PeerState, fact: FitChecked) -> None:
        """Take a peer's answer to whether a job fits, for all equal jobs."""
        state.fits[fact.key] = (fact.misfit, self._state.clock.monotonic_s())
        for job, tracked in list(self._state.jobs.items()):
            if tracked.fit_key == fact.key and tracked.proxy.placed is None:
                self._step(job)

    def _give_up(self, tracked: TrackedJob, why: str, *, never: bool = False) -> None:
        """No peer takes the job: it fails, or it runs here if its user did not ask for a peer."""
        if tracked.proxy.taken and not tracked.proxy.stranded:
            tracked.no_peer, tracked.never = why, never
            self._step(tracked.proxy.id)
            return
        self._state.ask_home(tracked, RaiseOnJob(tracked.proxy.id, Failure(LOST, why)))

    def _ask_fits(self, tracked: TrackedJob, states: Sequence[PeerState], now_s: float) -> None:
        for state in states:
            if state.synced and state.must_ask(tracked.fit_key, now_s):
                state.fits[tracked.fit_key] = (None, now_s)
                question = fit_question(self._for_peer(tracked, state))
                state.port.send(CheckFit(tracked.fit_key, question))

    def _copy_jobspec(self, tracked: TrackedJob) -> dict[str, Any]:
        marker = Marker(self._cluster_uuid, tracked.proxy.id, tracked.proxy.submitted_at)
        return copy_jobspec(tracked.jobspec or {}, marker)

    def _for_peer(self, tracked: TrackedJob, state: PeerState) -> dict[str, Any]:
        jobspec = self._copy_jobspec(tracked)
        return jobspec if state.load and state.load.queues is not None else without_queue(jobspec)
