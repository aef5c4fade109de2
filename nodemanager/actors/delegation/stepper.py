"""Take the steps that ``next_step`` decides, one request of a job at a time, and take the answers."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.actors.delegation.choosing import PeerChooser
from nodemanager.actors.delegation.effects import caused_at_home, caused_at_peer
from nodemanager.actors.delegation.output import OutputRelays
from nodemanager.actors.delegation.requests import to_home, to_peer
from nodemanager.actors.delegation.state import DelegationState
from nodemanager.actors.delegation.targets import Targets
from nodemanager.actors.delegation.tracked import PeerState, TrackedJob
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import because
from nodemanager.delegation import steps
from nodemanager.delegation.home_port import AppendOutput, HomeRequest, PostEvent, ShowMemo, ShowRunning
from nodemanager.delegation.jobs import SUBMITTED
from nodemanager.delegation.next_step import next_step
from nodemanager.delegation.peer_port import ChangeDuration, ChangeUrgency, EndCopy, FindCopies, Peer, PeerRequest
from nodemanager.delegation.steps import Sides


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
        self.relays = OutputRelays(state, self.step)
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
        relay, no_peer = tracked.relay, (tracked.no_peer, tracked.never)
        step = next_step(Sides(tracked.proxy, views, tracked.chosen, self.home_started_at, relay, *no_peer))
        self._carry_out(tracked, step)

    def _carry_out(self, tracked: TrackedJob, step: steps.Step) -> None:  # noqa: C901 - one arm a step
        job, peers = tracked.proxy.id, self._state.peers
        match step:
            case steps.Wait(reason=reason):
                tracked.reason = reason
                return
            case steps.Choose():
                self.chooser.choose(tracked)
                return
            case steps.SearchCopies(peer=peer):
                self._search(tracked, peers[peer])
                return
            case steps.SubmitCopy(peer=peer):
                self.chooser.submit(tracked, peers[peer])
                return
            case steps.RelayOutput():
                self.relays.follow(tracked, step)
                return
            case steps.Done():
                self._state.forget(job)
                return
            case steps.GiveBack(why=why):
                self._state.log.info("given_back", job=format_job_id(job), why=why)
                self._state.note(str(int(job)), "given_back", why)
                tracked.chosen, tracked.choice, tracked.no_peer = None, None, ""
                self._state.ordered.pop(job, None)
            case steps.RecordRefusal(peer=peer, why=why):
                self._state.log.info("delegation_refused", job=format_job_id(job), peer=peer, why=why)
                self._state.note(str(int(job)), "delegation_refused", f"{peer}: {why}")
                tracked.chosen = tracked.choice = None
        if (asked := to_peer(step)) is not None:
            self._state.ask_peer(tracked, *asked)
            return
        uri = peers[step.peer].peer.uri if isinstance(step, steps.RecordCopy) else ""
        now_at = self._state.clock.wall_at()
        request = to_home(step, job, now_at, uri)
        assert request is not None, step  # noqa: S101 - every step is one of the above
        if isinstance(step, steps.RecordStart):  # for people only, so the next step does not wait for it
            tracked.proxy = tracked.proxy.after(caused_at_home(request, now_at))
            self._state.home.send(request)
            self.step(job)
            return
        self._state.ask_home(tracked, request)

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
            self.relays.appended(request)
            return
        tracked = self._state.jobs.get(request.job)
        if tracked is None or tracked.in_flight != request:
            return
        tracked.proxy = tracked.proxy.after(caused_at_home(request, self._state.clock.wall_at()))
        if isinstance(request, PostEvent) and request.event.name == SUBMITTED:
            self._show_where(tracked)
        tracked.shown_by_us |= isinstance(request, ShowRunning)
        self.answered(request.job)

    def home_refused(self, request: HomeRequest, why: str) -> None:
        """Our instance refused a request: it is tried again."""
        name = type(request).__name__
        if isinstance(request, AppendOutput):
            self._state.log.warning("output_not_copied", job=format_job_id(request.job), why=why)
            self.relays.appended(request)
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
            copies[remote] = copies[remote].after(caused_at_peer(request, self._state.clock.wall_at()))
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
