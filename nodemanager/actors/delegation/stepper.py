"""Take the steps that ``next_step`` decides, one request of a job at a time, and take the answers.

To choose a peer for a job, the peers are asked first whether the job fits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodemanager.actors.delegation.output import OutputStreams
from nodemanager.actors.delegation.state import DelegationState, PeerState, TrackedJob
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import because
from nodemanager.delegation import jobs
from nodemanager.delegation.choose import ANY, Peer, Targets, choose
from nodemanager.delegation.jobs import EventlogEntry, Failure
from nodemanager.delegation.jobspec import Marker, copy_jobspec, fit_question, read_needs, without_queue
from nodemanager.delegation.next_step import (
    LOST,
    AskPeer,
    Choose,
    Done,
    NextStep,
    Sides,
    StreamOutput,
    SubmitTo,
    Wait,
    next_step,
)
from nodemanager.delegation.ports import (
    AppendOutput,
    ChangeDuration,
    ChangeUrgency,
    CheckFit,
    EndCopy,
    FindCopies,
    FitChecked,
    HomeRequest,
    PeerRequest,
    PostEvent,
    RaiseOnJob,
    ReadJobspec,
    ShowMemo,
    ShowRunning,
    SubmitCopy,
)

CHOOSE_AGAIN_S = 1.0
FAULT_MAX = 500  # characters


class Stepper:
    """Moves jobs forward. A carried-out request is folded into the job at once, as the event that it causes."""

    def __init__(
        self,
        state: DelegationState,
        targets: Targets,
        cluster_uuid: str,
        open_peer: Callable[[Peer], PeerState],
    ) -> None:
        self.chooser = PeerChooser(state, targets, cluster_uuid, open_peer, self.step)
        self.output = OutputStreams(state, self.step)
        self.home_started_at = 0.0
        self._state = state

    def step_all(self) -> None:
        """Take the next step of every job."""
        for job in list(self._state.jobs):
            self.step(job)

    def answered(self, job: JobId) -> None:
        """The request of a job is answered: take its next step."""
        if (tracked := self._state.jobs.get(job)) is not None:
            tracked.answered()
            self.step(job)

    def step(self, job: JobId) -> None:
        """Take the next step of a job, unless the step before is still under way."""
        tracked = self._state.jobs.get(job)
        if tracked is None or self._state.home_fault or not tracked.known:
            return
        if tracked.in_flight is not None or tracked.retry_s > self._state.clock.monotonic_s():
            return
        peers = self._state.peers
        views = {name: state.view(job) for name, state in peers.items() if job in state.copies}
        for name in (tracked.chosen, tracked.proxy.placed and tracked.proxy.placed.peer):
            if name is not None and name in peers:
                views.setdefault(name, peers[name].view(job))
        if tracked.proxy.placed is None and tracked.proxy.submitted_at < self.home_started_at:
            views = {state.peer.name: state.view(job) for state in self.chooser.may_have_it(tracked)} | views
        sides = Sides(
            tracked.proxy,
            views,
            tracked.chosen,
            self.home_started_at,
            self._state.clock.wall_at(),
            tracked.output,
            tracked.no_peer,
            tracked.never,
        )
        self._carry_out(tracked, next_step(sides))

    def _carry_out(self, tracked: TrackedJob, step: NextStep) -> None:
        job, peers = tracked.proxy.id, self._state.peers
        match step:
            case Wait(reason=reason):
                tracked.reason = reason
            case Choose():
                self.chooser.choose(tracked)
            case SubmitTo(peer=peer):
                self.chooser.submit(tracked, peers[peer])
            case StreamOutput():
                self.output.follow(tracked, step)
            case Done():
                self._state.forget(job)
            case AskPeer(peer=peer, request=FindCopies()):
                self._search(tracked, peers[peer])
            case AskPeer(peer=peer, request=request):
                self._state.ask_peer(tracked, peer, request)
            case PostEvent(event=EventlogEntry(name=jobs.STARTED)):
                # It is for people only, so the next step does not wait for it.
                tracked.proxy = tracked.proxy.after([step.event])
                self._state.home.send(step)
                self.step(job)
            case _:
                if isinstance(step, PostEvent):
                    self._note_post(tracked, step.event)
                self._state.ask_home(tracked, step)

    def _note_post(self, tracked: TrackedJob, event: EventlogEntry) -> None:
        """Log that a job is given back or was refused: its peer is not the chosen one any more."""
        job, why = tracked.proxy.id, str(event.context.get("why", ""))
        if event.name == jobs.RETURNED:
            self._state.log.info("given_back", job=format_job_id(job), why=why)
            self._state.note(str(int(job)), "given_back", why)
            tracked.chosen, tracked.choice, tracked.no_peer = None, None, ""
            self._state.ordered.pop(job, None)
        elif event.name == jobs.REFUSED:
            peer = event.context["peer"]
            self._state.log.info("delegation_refused", job=format_job_id(job), peer=peer, why=why)
            self._state.note(str(int(job)), "delegation_refused", f"{peer}: {why}")
            tracked.chosen = tracked.choice = None

    def _search(self, tracked: TrackedJob, state: PeerState) -> None:
        """Ask a peer for the copies that have ended: one question for all jobs."""
        tracked.in_flight, tracked.asked = FindCopies(), state.peer.name
        if state.searching is None:
            state.searching = {*self._state.jobs}
            state.port.send(FindCopies())

    # --- answers ---

    def home_done(self, request: HomeRequest) -> None:
        """A request to our instance is carried out."""
        if isinstance(request, AppendOutput):
            self.output.appended(request)
            return
        tracked = self._state.jobs.get(request.job)
        if tracked is None or tracked.in_flight != request:
            return
        tracked.proxy = tracked.proxy.after(request.events(self._state.clock.wall_at()))
        if isinstance(request, PostEvent) and request.event.name == jobs.SUBMITTED:
            self._show_where(tracked)
        tracked.shown_by_us |= isinstance(request, ShowRunning)
        self.answered(request.job)

    def home_refused(self, request: HomeRequest, why: str) -> None:
        """Our instance refused a request: it is tried again."""
        name = type(request).__name__
        if isinstance(request, AppendOutput):
            self._state.log.warning("output_not_copied", job=format_job_id(request.job), why=why)
            self.output.appended(request)
            return
        tracked = self._state.jobs.get(request.job)
        if tracked is None or tracked.in_flight != request:
            return
        self._state.log.warning("delegation_call_failed", job=format_job_id(request.job), call=name, why=why)
        tracked.reason = because(Code.DELEGATION_CALL_FAILED, detail=f"{name}: {why}")
        tracked.put_off(self._state.clock.monotonic_s())

    def peer_done(self, state: PeerState, request: PeerRequest) -> None:
        """A request to a peer is carried out."""
        remote = request.remote if isinstance(request, ChangeUrgency | ChangeDuration | EndCopy) else None
        if remote is not None and (job := state.job_of.get(remote)) is not None:
            copies = state.copies[job]
            copies[remote] = copies[remote].after(request.events(self._state.clock.wall_at()))
        if isinstance(request, FindCopies):
            state.searched |= state.searching or set()
            state.searching = None
        self.peer_answered(state, request)

    def peer_answered(self, state: PeerState, request: PeerRequest) -> None:
        """A peer answered a request: the jobs that waited for it go on."""
        for job, tracked in self._state.waiting_for(state, request):
            tracked.answered()
            self.step(job)

    def peer_refused(self, state: PeerState, request: PeerRequest, why: str) -> None:
        """A peer refused a request: it is tried again. If it was about a copy, the peer may not know that copy."""
        if isinstance(request, FindCopies):
            state.searching = None
        for job, tracked in self._state.waiting_for(state, request):
            name = type(request).__name__
            self._state.log.warning(
                "delegation_call_failed", job=format_job_id(job), peer=state.peer.name, call=name, why=why
            )
            tracked.reason = because(Code.DELEGATION_CALL_FAILED, detail=f"{state.peer.name}: {name}: {why}")
            tracked.put_off(self._state.clock.monotonic_s())
            if isinstance(request, ChangeUrgency | ChangeDuration) and request.remote in state.copies.get(job, {}):
                state.forget_copy(job, request.remote)

    def _show_where(self, tracked: TrackedJob) -> None:
        """Tell the job's user where it is, its id there, and why."""
        placed = tracked.proxy.placed
        if placed is None:
            return
        why = self._state.why_chosen(tracked)
        remote = format_job_id(placed.remote)
        text = f"{placed.peer} {remote}" + (f": {to_sentence(why.code, why.figures)}" if why else "")
        self._state.log.info("delegated", job=format_job_id(tracked.proxy.id), peer=placed.peer, remote=remote)
        self._state.note(str(int(tracked.proxy.id)), "delegated", text)
        self._state.home.send(ShowMemo(tracked.proxy.id, text))


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
        copy = SubmitCopy(tracked.proxy.id, self._for_peer(tracked, state))
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
