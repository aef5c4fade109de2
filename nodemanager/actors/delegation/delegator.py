"""The delegator: it keeps both sides of each delegated job, and carries out the steps that ``steps`` decides.

One request a job is under way at a time, so that each step sees the outcome of the one before. A carried-out
request is folded into the job at once, as the event that it causes; the journal brings the same event a moment
later.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import structlog

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.delegation.targets import Targets
from nodemanager.actors.delegation.tracked import PeerState, TrackedJob
from nodemanager.actors.messages import Mailbox
from nodemanager.core.facts import Tick
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.ports import Clock
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import because
from nodemanager.delegation import steps
from nodemanager.delegation.choose import choose
from nodemanager.delegation.jobs import (
    DURATION,
    HOLD,
    HOLD_UNTIL_AT,
    PROXY_R,
    REFUSED,
    STARTED,
    SUBMITTED,
    Copy,
    Failure,
    JobEvent,
    PeerName,
    Phase,
    Proxy,
)
from nodemanager.delegation.jobspec import Marker, copy_jobspec, fit_question, read_needs, without_queue
from nodemanager.delegation.ports import (
    AppendOutput,
    Cancel,
    ChangeDuration,
    ChangeUrgency,
    CheckFit,
    CopyEvents,
    CopyMissing,
    CopyOutput,
    CopyOutputEnded,
    CountOutput,
    FindJob,
    FitChecked,
    FollowOutput,
    HomeDone,
    HomeEvents,
    HomeFact,
    HomeLost,
    HomePort,
    HomeRefused,
    HomeRequest,
    HomeSynced,
    JobFound,
    JobspecRead,
    OutputCounted,
    Peer,
    PeerDone,
    PeerFact,
    PeerLoadSeen,
    PeerLost,
    PeerPort,
    PeerRefused,
    PeerRequest,
    PeerSynced,
    PostEvent,
    RaiseOnJob,
    ReadCopy,
    ReadJobspec,
    RemoveDependency,
    ShowFinished,
    ShowMemo,
    ShowRunning,
    StopOutput,
    Submit,
    SubmitRefused,
    Submitted,
    Validate,
)
from nodemanager.delegation.relay import EXEC, OUTPUT, OutputRelay
from nodemanager.delegation.steps import Relay, Sides, next_step
from nodemanager.delegation.view import DelegatedJob, DelegationEvent, DelegationView, PeerStatus

CHOOSE_AGAIN_S = 1.0
PUBLISH_EVERY_S = 0.5
SAME_MOMENT_S = 0.001


@dataclass(frozen=True, slots=True)
class StartDelegation:
    """The first message: where facts are to be sent."""

    mailbox: Mailbox[DelegatorMessage]


DelegatorMessage = StartDelegation | HomeFact | PeerFact | Tick


class Delegator(CrashOnlyActor):
    """Moves every delegated job forward. ``publish`` gets a new view when something has changed."""

    def __init__(
        self,
        home: HomePort,
        make_peer: Callable[[Peer], PeerPort],
        targets: Targets,
        cluster_uuid: str,
        clock: Clock,
        publish: Callable[[DelegationView], None],
        fate: Fate,
    ) -> None:
        super().__init__(fate)
        self._home = home
        self._make_peer = make_peer
        self._targets = targets
        self._cluster_uuid = cluster_uuid
        self._clock = clock
        self._publish = publish
        self._log: Any = structlog.get_logger()
        self._listener: Callable[[Any], None]
        self._jobs: dict[JobId, TrackedJob] = {}
        self._peers: dict[PeerName, PeerState] = {}
        self._home_started_at = 0.0
        self._home_fault = "not connected yet"
        self._ended = 0
        self._events: list[DelegationEvent] = []
        self._changed = True
        self._publish_by_s = 0.0

    def on_receive(self, message: DelegatorMessage) -> None:  # noqa: C901 - one arm a message
        match message:
            case StartDelegation(mailbox=mailbox):
                self._start(mailbox)
            case Tick():
                self._tick(message.now_s)
                return
            case HomeEvents():
                self._take_home_events(message)
            case HomeSynced(started_at=started_at):
                self._home_synced(started_at)
            case HomeLost():
                self._home_lost(message)
            case JobspecRead(job=job, jobspec=jobspec):
                self._take_jobspec(job, jobspec)
            case OutputCounted(job=job, counts=counts):
                self._begin_relay(job, counts)
            case JobFound(job=job, known=known):
                self._take_job_found(job, known)
            case HomeDone(request=request):
                self._home_done(request)
            case HomeRefused(request=request, why=why):
                self._home_refused(request, why)
            case _:
                self._take_peer_fact(message)
        self._changed = True

    def _take_peer_fact(self, fact: PeerFact) -> None:  # noqa: C901, PLR0912 - one arm a fact
        state = self._peers[fact.peer]
        match fact:
            case PeerSynced():
                self._peer_synced(state)
            case PeerLost(why=why):
                self._peer_lost(state, why)
            case PeerLoadSeen(load=load):
                state.load = load
            case CopyEvents():
                self._take_copy_events(state, fact)
            case CopyMissing(remote=remote):
                state.missing.add(remote)
                self._peer_answered(state, ReadCopy(remote))
            case Submitted(job=job, remote=remote):
                self._take_submitted(state, job, remote)
            case SubmitRefused(job=job, why=why):
                state.refused[job] = why
                self._answered_and_step(job)
            case FitChecked(key=key, misfit=misfit):
                state.fits[key] = (misfit, self._clock.monotonic_s())
                for job, tracked in list(self._jobs.items()):
                    if tracked.fit_key == key and tracked.proxy.placed is None:
                        self._step(job)
            case CopyOutput():
                self._relay(state, fact)
            case CopyOutputEnded():
                self._end_relay(state, fact)
            case PeerDone(request=request):
                self._peer_done(state, request)
            case PeerRefused(request=request, why=why):
                self._peer_refused(state, request, why)
            case _:
                assert_never(fact)

    def _start(self, mailbox: Mailbox[DelegatorMessage]) -> None:
        self._listener = mailbox.tell
        self._home.start(self._listener)
        for peer in self._targets.peers:
            self._open_peer(peer)

    def on_stop(self) -> None:
        self._home.stop()
        for state in self._peers.values():
            state.port.stop()

    def _open_peer(self, peer: Peer) -> PeerState:
        if (state := self._peers.get(peer.name)) is None:
            self._peers[peer.name] = state = PeerState(peer, self._make_peer(peer))
            state.port.start(self._listener)
        return state

    def _tick(self, now_s: float) -> None:
        for job, tracked in list(self._jobs.items()):
            if tracked.retry_s and now_s >= tracked.retry_s:
                tracked.retry_s = 0.0
                self._step(job)
        if self._changed and now_s >= self._publish_by_s:
            self._changed = False
            self._publish_by_s = now_s + PUBLISH_EVERY_S
            self._publish(self._view())

    # --- our instance ---

    def _take_home_events(self, fact: HomeEvents) -> None:
        tracked = self._jobs.get(fact.job)
        if fact.events and fact.events[0].name == "submit":
            proxy = Proxy(fact.job, fact.target, duration_s=fact.duration_s, nodelist=fact.nodelist)
            if tracked is None:
                self._jobs[fact.job] = tracked = TrackedJob(proxy)
            tracked.proxy, tracked.known = proxy.after(fact.events), True
            self._reopen_peer(tracked.proxy)
        elif tracked is None:
            return
        else:
            tracked.proxy = tracked.proxy.after(fact.events)
        self._step(fact.job)

    def _reopen_peer(self, proxy: Proxy) -> None:
        """After a restart, open the peer of a job that its user delegated to a URI."""
        if proxy.placed is not None and proxy.placed.peer not in self._peers:
            for peer in self._targets.candidates(proxy.target)[0]:
                if peer.name == proxy.placed.peer:
                    self._open_peer(peer)

    def _home_synced(self, started_at: float) -> None:
        self._home_started_at = started_at
        self._home_fault = ""
        self._log.info("delegation_ready", jobs=len(self._jobs))
        for job, tracked in list(self._jobs.items()):
            if tracked.known:
                self._step(job)
            else:
                self._home.send(FindJob(job))
        for state in self._peers.values():
            if state.synced:
                self._find_orphans(state)

    def _home_lost(self, fact: HomeLost) -> None:
        if fact.why != self._home_fault:
            self._log.warning("delegation_stopped", why=fact.why)
        self._home_fault = fact.why
        for tracked in self._jobs.values():
            tracked.known = False
            if tracked.asked is None:
                tracked.answered()
            self._stop_relay(tracked)
            tracked.passing, tracked.held_back = None, ""

    def _take_job_found(self, job: JobId, known: bool) -> None:
        """A copy's job is not active at home: it has ended, or our instance has lost it."""
        if (tracked := self._jobs.get(job)) is not None and not tracked.known:
            if known:
                tracked.proxy, tracked.known = replace(tracked.proxy, phase=Phase.ENDED), True
                self._step(job)
                return
            del self._jobs[job]
            for state in self._peers.values():
                state.orphans.update(dict.fromkeys(state.copies.get(job, ()), job))
        for state in self._peers.values():
            for remote, of in list(state.orphans.items()):
                if of == job:
                    self._settle_orphan(state, remote, known)

    def _settle_orphan(self, state: PeerState, remote: JobId, known: bool) -> None:
        """Cancel a copy whose job has ended, or that never could start. A lost job's work is left to its user."""
        copy = state.copies.get(state.orphans[remote], {}).get(remote)
        if copy is None or copy.ended or copy.failure is not None:
            del state.orphans[remote]
        elif known or copy.urgency == steps.HELD_URGENCY:
            note = "its job at home has ended" if known else "its job at home is not known any more"
            state.port.send(Cancel(remote, note))
            del state.orphans[remote]
        else:
            self._log.warning("copy_without_a_job", peer=state.peer.name, remote=format_job_id(remote))

    # --- peers ---

    def _peer_synced(self, state: PeerState) -> None:
        self._log.info("peer_connected", peer=state.peer.name, uri=state.peer.uri)
        self._note(f"peer {state.peer.name}", "peer_connected", state.peer.uri)
        state.synced, state.why = True, ""
        self._find_orphans(state)
        self._step_all()

    def _peer_lost(self, state: PeerState, why: str) -> None:
        if state.synced or why != state.why:
            self._log.warning("peer_lost", peer=state.peer.name, why=why)
            self._note(f"peer {state.peer.name}", "peer_lost", why)
        state.lose(why)
        for tracked in self._jobs.values():
            if tracked.asked == state.peer.name:
                tracked.answered()
            if tracked.proxy.placed is not None and tracked.proxy.placed.peer == state.peer.name:
                if tracked.passing is not None:
                    tracked.passing.restart()
                tracked.drop_output()
        self._step_all()

    def _find_orphans(self, state: PeerState) -> None:
        if self._home_fault:
            return
        for job, copies in state.copies.items():
            if job not in self._jobs:
                state.orphans.update(dict.fromkeys(copies, job))
                self._home.send(FindJob(job))

    def _take_copy_events(self, state: PeerState, fact: CopyEvents) -> None:
        job = state.job_of.get(fact.remote)
        if fact.marker is not None:
            job = fact.marker.job
            tracked = self._jobs.get(job)
            if tracked is not None and abs(tracked.proxy.submitted_at - fact.marker.submitted_at) > SAME_MOMENT_S:
                return  # of an instance that is gone, whose jobs had the same ids
            former = state.copies.get(job, {}).get(fact.remote)
            fresh = Copy(fact.remote, duration_s=fact.duration_s)
            copy = (former or fresh) if not _is_whole(fact) else fresh
            state.add_copy(job, copy.after(fact.events))
            if tracked is None and state.synced and not self._home_fault:
                state.orphans[fact.remote] = job
                self._home.send(FindJob(job))
            self._peer_answered(state, ReadCopy(fact.remote))
        elif job is None:
            return
        else:
            copies = state.copies[job]
            copies[fact.remote] = copies[fact.remote].after(fact.events)
            if copies[fact.remote].ended and job not in self._jobs:
                state.orphans.pop(fact.remote, None)
                state.forget_job(job)
        if state.synced:
            self._step(job)

    def _take_submitted(self, state: PeerState, job: JobId, remote: JobId) -> None:
        if remote not in state.job_of:  # else its events came first
            tracked = self._jobs.get(job)
            state.add_copy(job, Copy(remote, duration_s=tracked.proxy.duration_s if tracked else 0.0))
        self._answered_and_step(job)

    # --- steps ---

    def _step_all(self) -> None:
        for job in list(self._jobs):
            self._step(job)

    def _answered_and_step(self, job: JobId) -> None:
        if (tracked := self._jobs.get(job)) is not None:
            tracked.answered()
            self._step(job)

    def _step(self, job: JobId) -> None:
        """Take the next step of a job, unless the step before is still under way."""
        tracked = self._jobs.get(job)
        if tracked is None or self._home_fault or not tracked.known:
            return
        if tracked.in_flight is not None or tracked.retry_s > self._clock.monotonic_s():
            return
        views = {name: state.view(job) for name, state in self._peers.items() if job in state.copies}
        for name in (tracked.chosen, tracked.proxy.placed and tracked.proxy.placed.peer):
            if name is not None and name in self._peers:
                views.setdefault(name, self._peers[name].view(job))
        step = next_step(Sides(tracked.proxy, views, tracked.chosen, self._home_started_at, tracked.relay))
        self._carry_out(tracked, step)

    def _carry_out(self, tracked: TrackedJob, step: steps.Step) -> None:  # noqa: C901, PLR0912 - one arm a step
        job, now_at = tracked.proxy.id, self._clock.wall_at()
        match step:
            case steps.Wait(reason=reason):
                tracked.reason = reason
            case steps.Choose():
                self._choose(tracked)
            case steps.SubmitCopy(peer=peer):
                self._submit(tracked, self._peers[peer])
            case steps.RecordCopy(peer=peer, remote=remote):
                context = {"peer": peer, "jobid": remote, "uri": self._peers[peer].peer.uri}
                self._ask_home(tracked, PostEvent(job, JobEvent(SUBMITTED, now_at, context)))
            case steps.LookUpCopy(peer=peer, remote=remote):
                self._ask_peer(tracked, peer, ReadCopy(remote))
            case steps.SetUrgency(peer=peer, remote=remote, urgency=urgency):
                self._ask_peer(tracked, peer, ChangeUrgency(remote, urgency))
            case steps.SetDuration(peer=peer, remote=remote, duration_s=duration_s):
                self._ask_peer(tracked, peer, ChangeDuration(remote, duration_s))
            case steps.CancelCopy(peer=peer, remote=remote, note=note):
                self._ask_peer(tracked, peer, Cancel(remote, note))
            case steps.RecordRefusal(peer=peer, why=why):
                self._log.info("delegation_refused", job=format_job_id(job), peer=peer, why=why)
                self._note(str(int(job)), "delegation_refused", f"{peer}: {why}")
                tracked.chosen = tracked.choice = None
                self._ask_home(tracked, PostEvent(job, JobEvent(REFUSED, now_at, {"peer": peer, "why": why})))
            case steps.RecordStart(at=at):
                self._ask_home(tracked, PostEvent(job, JobEvent(STARTED, now_at, {"timestamp": at})))
            case steps.NameNodes(nodelist=nodelist):
                context = {PROXY_R: pretended_resources(nodelist)}
                self._ask_home(tracked, PostEvent(job, JobEvent("jobspec-update", now_at, context)))
            case steps.Revalidate(duration_s=duration_s):
                self._ask_home(tracked, Validate(job, duration_s))
            case steps.RemoveHold():
                self._ask_home(tracked, RemoveDependency(job, HOLD))
            case steps.StartProxy():
                self._ask_home(tracked, ShowRunning(job))
            case steps.RelayOutput():
                self._follow_output(tracked, step)
            case steps.FinishProxy(status=status):
                self._ask_home(tracked, ShowFinished(job, status))
            case steps.RaiseFailure(type=type_, note=note, status=status):
                self._ask_home(tracked, RaiseOnJob(job, Failure(type_, note), status))
            case steps.Done():
                self._forget(job)
            case _:
                assert_never(step)

    def _ask_home(self, tracked: TrackedJob, request: HomeRequest) -> None:
        tracked.in_flight, tracked.asked = request, None
        self._home.send(request)

    def _ask_peer(self, tracked: TrackedJob, peer: PeerName, request: PeerRequest) -> None:
        tracked.in_flight, tracked.asked = request, peer
        self._peers[peer].port.send(request)

    def _forget(self, job: JobId) -> None:
        del self._jobs[job]
        self._ended += 1
        for state in self._peers.values():
            state.forget_job(job)

    # --- choosing ---

    def _choose(self, tracked: TrackedJob) -> None:
        job = tracked.proxy.id
        peers, fault = self._targets.candidates(tracked.proxy.target)
        if fault:
            self._ask_home(tracked, RaiseOnJob(job, Failure(steps.LOST, fault)))
            return
        if tracked.jobspec is None or tracked.needs is None:
            self._ask_home(tracked, ReadJobspec(job))
            return
        now_s = self._clock.monotonic_s()
        states = [self._open_peer(peer) for peer in peers]
        self._ask_fits(tracked, states, now_s)
        if any(state.synced and state.fit(tracked.fit_key, now_s) is None for state in states):
            tracked.reason = because(Code.DELEGATION_CHOOSING)
            return
        counts = Counter(it.proxy.placed.peer if it.proxy.placed else it.chosen for it in self._jobs.values())
        candidates = [state.candidate(tracked, counts[state.peer.name], now_s) for state in states]
        choice = choose(tracked.needs, candidates, self._clock.wall_at())
        tracked.reason = choice.reason
        if choice.peer is not None:
            tracked.chosen, tracked.choice = choice.peer, choice
            self._submit(tracked, self._peers[choice.peer])
        elif choice.final:
            detail = str(choice.reason.figures["detail"])
            self._ask_home(tracked, RaiseOnJob(job, Failure(steps.LOST, detail)))
        else:
            tracked.retry_s = now_s + CHOOSE_AGAIN_S

    def _take_jobspec(self, job: JobId, jobspec: Mapping[str, Any]) -> None:
        if (tracked := self._jobs.get(job)) is None:
            return
        try:
            tracked.needs = read_needs(jobspec)
        except ValueError as fault:
            self._ask_home(tracked, RaiseOnJob(job, Failure(steps.LOST, f"its jobspec cannot be read: {fault}")))
            return
        tracked.jobspec = jobspec
        tracked.fit_key = json.dumps(fit_question(self._copy_jobspec(tracked)), sort_keys=True)
        self._answered_and_step(job)

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

    def _submit(self, tracked: TrackedJob, state: PeerState) -> None:
        if tracked.jobspec is None:  # a job that was chosen for before our instance was lost
            tracked.chosen = None
            self._choose(tracked)
            return
        state.sent.append((self._clock.wall_at(), tracked.needs.cores if tracked.needs else 0))
        self._ask_peer(tracked, state.peer.name, Submit(tracked.proxy.id, self._for_peer(tracked, state)))

    # --- answers ---

    def _home_done(self, request: HomeRequest) -> None:
        if isinstance(request, AppendOutput):
            self._appended(request)
            return
        tracked = self._jobs.get(request.job)
        if tracked is None or tracked.in_flight != request:
            return
        tracked.proxy = tracked.proxy.after(_caused_by(request, self._clock.wall_at()))
        if isinstance(request, PostEvent) and request.event.name == SUBMITTED:
            self._show_where(tracked)
        self._answered_and_step(request.job)

    def _home_refused(self, request: HomeRequest, why: str) -> None:
        name = type(request).__name__
        if isinstance(request, AppendOutput):
            self._log.warning("output_not_copied", job=format_job_id(request.job), why=why)
            self._appended(request)
            return
        tracked = self._jobs.get(request.job)
        if tracked is None or tracked.in_flight != request:
            return
        self._log.warning("delegation_call_failed", job=format_job_id(request.job), call=name, why=why)
        tracked.reason = because(Code.DELEGATION_CALL_FAILED, detail=f"{name}: {why}")
        tracked.put_off(self._clock.monotonic_s())

    def _peer_done(self, state: PeerState, request: PeerRequest) -> None:
        remote = request.remote if isinstance(request, ChangeUrgency | ChangeDuration | Cancel) else None
        if remote is not None and (job := state.job_of.get(remote)) is not None:
            copies = state.copies[job]
            copies[remote] = copies[remote].after(_caused_at_peer(request, self._clock.wall_at()))
        self._peer_answered(state, request)

    def _peer_answered(self, state: PeerState, request: PeerRequest) -> None:
        for job, tracked in self._waiting_for(state, request):
            tracked.answered()
            self._step(job)

    def _peer_refused(self, state: PeerState, request: PeerRequest, why: str) -> None:
        for job, tracked in self._waiting_for(state, request):
            name = type(request).__name__
            self._log.warning(
                "delegation_call_failed", job=format_job_id(job), peer=state.peer.name, call=name, why=why
            )
            tracked.reason = because(Code.DELEGATION_CALL_FAILED, detail=f"{state.peer.name}: {name}: {why}")
            tracked.put_off(self._clock.monotonic_s())

    def _waiting_for(self, state: PeerState, request: PeerRequest) -> list[tuple[JobId, TrackedJob]]:
        remote = getattr(request, "remote", None)
        job = state.job_of.get(remote) if remote is not None else None
        jobs = self._jobs.items() if job is None else [(job, self._jobs.get(job))]
        return [
            (id_, tracked)
            for id_, tracked in jobs
            if tracked is not None and tracked.asked == state.peer.name and tracked.in_flight == request
        ]

    def _show_where(self, tracked: TrackedJob) -> None:
        """Tell the job's user where it is, its id there, and why."""
        placed = tracked.proxy.placed
        if placed is None:
            return
        why = tracked.choice.reason if tracked.choice else None
        remote = format_job_id(placed.remote)
        text = f"{placed.peer} {remote}" + (f": {to_sentence(why.code, why.figures)}" if why else "")
        self._log.info("delegated", job=format_job_id(tracked.proxy.id), peer=placed.peer, remote=remote)
        self._note(str(int(tracked.proxy.id)), "delegated", text)
        self._home.send(ShowMemo(tracked.proxy.id, text))

    # --- output ---

    def _follow_output(self, tracked: TrackedJob, step: steps.RelayOutput) -> None:
        if tracked.passing is None:
            self._ask_home(tracked, CountOutput(tracked.proxy.id))
            return
        tracked.stream += 1
        tracked.relay = Relay.FLOWING
        self._peers[step.peer].port.send(FollowOutput(step.remote, tracked.stream))
        self._step(tracked.proxy.id)

    def _begin_relay(self, job: JobId, counts: Mapping[str, int]) -> None:
        tracked = self._jobs.get(job)
        if tracked is None or tracked.proxy.placed is None:
            return
        placed = tracked.proxy.placed
        peer = self._peers[placed.peer].peer
        where = f"flux proxy {peer.uri} flux job attach {format_job_id(placed.remote)}"
        tracked.passing = OutputRelay(counts, peer.output_max_bytes, where)
        tracked.has_output = counts.get(OUTPUT, 0) > 0
        self._answered_and_step(job)

    def _relay(self, state: PeerState, fact: CopyOutput) -> None:
        tracked = self._relayed(state, fact)
        if tracked is None or tracked.passing is None:
            return
        if lines := tracked.passing.take(fact.key, fact.events):
            if fact.key == EXEC and not tracked.has_output:
                tracked.held_back += lines
            else:
                self._append(tracked, fact.key, lines)
        if tracked.passing.cut and not tracked.stream_ended:
            state.port.send(StopOutput(fact.remote))
            tracked.stream_ended = True
            self._append_held_back(tracked)

    def _end_relay(self, state: PeerState, fact: CopyOutputEnded) -> None:
        if (tracked := self._relayed(state, fact)) is not None:
            tracked.stream_ended = True
            self._append_held_back(tracked)
            self._relay_done_if(tracked)

    def _append(self, tracked: TrackedJob, key: str, lines: str) -> None:
        tracked.appends += 1
        self._home.send(AppendOutput(tracked.proxy.id, key, lines))

    def _append_held_back(self, tracked: TrackedJob) -> None:
        if lines := tracked.held_back:
            tracked.held_back = ""
            self._append(tracked, EXEC, lines)

    def _appended(self, request: AppendOutput) -> None:
        if (tracked := self._jobs.get(request.job)) is not None and tracked.appends:
            tracked.appends -= 1
            if request.key == OUTPUT:
                tracked.has_output = True
                self._append_held_back(tracked)
            self._relay_done_if(tracked)

    def _relay_done_if(self, tracked: TrackedJob) -> None:
        if tracked.relay is Relay.FLOWING and tracked.stream_ended and not tracked.appends:
            tracked.relay = Relay.DONE
            self._step(tracked.proxy.id)

    def _stop_relay(self, tracked: TrackedJob) -> None:
        placed = tracked.proxy.placed
        if tracked.relay is Relay.FLOWING and placed is not None and placed.peer in self._peers:
            self._peers[placed.peer].port.send(StopOutput(placed.remote))
        tracked.drop_output()

    def _relayed(self, state: PeerState, fact: CopyOutput | CopyOutputEnded) -> TrackedJob | None:
        job = state.job_of.get(fact.remote)
        tracked = self._jobs.get(job) if job is not None else None
        return tracked if tracked is not None and tracked.stream == fact.stream else None

    # --- showing ---

    def _view(self) -> DelegationView:
        counts = Counter(it.proxy.placed.peer if it.proxy.placed else it.chosen for it in self._jobs.values())
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
                tuple(state.orphans),
            )
            for name, state in self._peers.items()
        )
        return DelegationView(
            {job: self._shown(tracked) for job, tracked in self._jobs.items()},
            peers,
            self._home_fault,
            self._ended,
            self._take_events(),
        )

    def _note(self, subject: str, what: str, detail: str = "") -> None:
        self._events.append(DelegationEvent(self._clock.wall_at(), subject, what, detail))

    def _take_events(self) -> tuple[DelegationEvent, ...]:
        events, self._events = tuple(self._events), []
        return events

    def _shown(self, tracked: TrackedJob) -> DelegatedJob:
        proxy, placed = tracked.proxy, tracked.proxy.placed
        state = self._peers.get(placed.peer) if placed else None
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
            tracked.choice.reason if tracked.choice else None,
        )


def pretended_resources(nodelist: str) -> dict[str, Any]:
    """The resources that a proxy seems to hold (RFC 20): one core of a node with the peer's name."""
    execution = {
        "R_lite": [{"rank": "0", "children": {"core": "0"}}],
        "nodelist": [nodelist],
        "starttime": HOLD_UNTIL_AT,
        "expiration": 0,
    }
    return {"version": 1, "execution": execution}


def _is_whole(fact: CopyEvents) -> bool:
    return bool(fact.events) and fact.events[0].name == "submit"


def _caused_by(request: HomeRequest, at: float) -> list[JobEvent]:
    """Return the event that a request to our instance causes."""
    match request:
        case PostEvent(event=event):
            return [event]
        case RemoveDependency(description=description):
            return [JobEvent("dependency-remove", at, {"description": description})]
        case Validate():
            return [JobEvent("set-flags", at, {"flags": ["alloc-bypass"]})]
        case ShowRunning():
            return [JobEvent("start", at)]
        case ShowFinished(status=status):
            return [JobEvent("finish", at, {"status": status})]
        case RaiseOnJob(failure=failure):
            return [JobEvent("exception", at, {"type": failure.type, "severity": 0, "note": failure.note})]
        case _:
            return []


def _caused_at_peer(request: PeerRequest, at: float) -> list[JobEvent]:
    match request:
        case ChangeUrgency(urgency=urgency):
            return [JobEvent("urgency", at, {"urgency": urgency})]
        case ChangeDuration(duration_s=duration_s):
            return [JobEvent("jobspec-update", at, {DURATION: duration_s})]
        case Cancel(note=note):
            return [JobEvent("exception", at, {"type": "cancel", "severity": 0, "note": note})]
        case _:
            return []
