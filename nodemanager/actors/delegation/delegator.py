"""The delegator: the actor that keeps both sides of each delegated job, and moves it forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, assert_never

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.delegation.state import DelegationState, PeerState, TrackedJob
from nodemanager.actors.delegation.stepper import Stepper
from nodemanager.actors.messages import Mailbox
from nodemanager.core.facts import Tick
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.orders import DelegateJob
from nodemanager.core.ports import Clock
from nodemanager.core.reason_text import to_sentence
from nodemanager.delegation.choose import Peer, Targets
from nodemanager.delegation.jobs import TAKEN, Copy, EventlogEntry, Phase, Proxy
from nodemanager.delegation.jobspec import Marker
from nodemanager.delegation.ports import (
    CopyEvents,
    CopyMissing,
    CopyOutput,
    CopyOutputEnded,
    EndCopy,
    FindJob,
    FitChecked,
    HomeDone,
    HomeEvents,
    HomeFact,
    HomeLost,
    HomePort,
    HomeRefused,
    HomeSynced,
    JobFound,
    JobspecRead,
    OutputCounted,
    PeerDone,
    PeerFact,
    PeerLoadSeen,
    PeerLost,
    PeerPort,
    PeerRefused,
    PeerSynced,
    PostEvent,
    ReadCopy,
    SubmitRefused,
    Submitted,
)
from nodemanager.delegation.view import DelegationView

PUBLISH_EVERY_S = 0.5
SAME_MOMENT_S = 0.001
NOT_KNOWN = "its job at home is not known any more"
# Requests are sent only to a peer whose copies are all known, so these answers belong to the connection of then.
ANSWERS = (CopyMissing, Submitted, SubmitRefused, FitChecked, CopyOutput, CopyOutputEnded, PeerDone, PeerRefused)


@dataclass(frozen=True, slots=True)
class StartDelegation:
    """The first message: where facts are to be sent."""

    mailbox: Mailbox[DelegatorMessage]


DelegatorMessage = StartDelegation | DelegateJob | HomeFact | PeerFact | Tick


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
        self._clock = clock
        self._publish = publish
        self._listener: Callable[[Any], None]
        self._state = DelegationState(home, clock)
        self._log = self._state.log
        self._jobs, self._peers = self._state.jobs, self._state.peers
        self._stepper = Stepper(self._state, targets, cluster_uuid, self._open_peer)
        self._copies = PeerCopies(self._state, self._stepper.step)
        self._changed = True
        self._publish_by_s = 0.0

    def on_receive(self, message: DelegatorMessage) -> None:  # noqa: C901 - one arm a message
        match message:
            case StartDelegation(mailbox=mailbox):
                self._start(mailbox)
            case Tick():
                self._tick(message.now_s)
                return
            case DelegateJob():
                self._take_job(message)
            case HomeEvents():
                self._take_home_events(message)
            case HomeSynced(started_at=started_at):
                self._home_synced(started_at)
            case HomeLost():
                self._home_lost(message)
            case JobspecRead(job=job, jobspec=jobspec):
                self._stepper.chooser.take_jobspec(job, jobspec)
            case OutputCounted(job=job, counts=counts):
                self._stepper.output.begin(job, counts)
            case JobFound(job=job, known=known):
                self._copies.take_job_found(job, known)
            case HomeDone(request=request):
                self._stepper.home_done(request)
            case HomeRefused(request=request, why=why):
                self._stepper.home_refused(request, why)
            case _:
                self._take_peer_fact(message)
        self._changed = True

    def _take_peer_fact(self, fact: PeerFact) -> None:  # noqa: C901, PLR0912 - one arm a fact
        state = self._peers[fact.peer]
        if isinstance(fact, ANSWERS) and not state.synced:
            return  # of a connection that is gone: what the request did shows in what the next one reports
        match fact:
            case PeerSynced():
                self._peer_synced(state)
            case PeerLost(why=why):
                self._peer_lost(state, why)
            case PeerLoadSeen(load=load):
                state.load = load
            case CopyEvents():
                if self._copies.take_events(state, fact):
                    self._stepper.peer_answered(state, ReadCopy(fact.remote))
                if state.synced and (job := state.job_of.get(fact.remote)) is not None:
                    self._stepper.step(job)
            case CopyMissing(remote=remote):
                state.missing.add(remote)
                self._stepper.peer_answered(state, ReadCopy(remote))
            case Submitted(job=job):
                self._copies.take_submitted(state, fact)
                self._stepper.answered(job)
            case SubmitRefused(job=job, why=why):
                state.refused[job] = why
                self._stepper.answered(job)
            case FitChecked():
                self._stepper.chooser.take_fit(state, fact)
            case CopyOutput():
                self._stepper.output.take(state, fact)
            case CopyOutputEnded():
                self._stepper.output.end(state, fact)
            case PeerDone(request=request):
                self._stepper.peer_done(state, request)
            case PeerRefused(request=request, why=why):
                self._stepper.peer_refused(state, request, why)
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
                self._stepper.step(job)
        if self._changed and now_s >= self._publish_by_s:
            self._changed = False
            self._publish_by_s = now_s + PUBLISH_EVERY_S
            self._publish(self._state.view())

    def _take_job(self, order: DelegateJob) -> None:
        """Take a waiting job to run it at a peer. From its first event on it is a delegated job."""
        tracked = self._jobs.get(order.job)
        if self._state.home_fault or (tracked is not None and not tracked.proxy.returned):
            return
        detail = f"{order.peer}: {to_sentence(order.reason.code, order.reason.figures)}"
        self._log.info("taken", job=format_job_id(order.job), peer=order.peer, why=detail)
        self._state.note(str(int(order.job)), "taken", detail)
        self._state.ordered[order.job] = order.reason
        context = {"target": order.peer, "urgency": order.urgency}
        self._home.send(PostEvent(order.job, EventlogEntry(TAKEN, self._clock.wall_at(), context)))

    # --- our instance ---

    def _take_home_events(self, fact: HomeEvents) -> None:
        tracked = self._jobs.get(fact.job)
        if fact.events and fact.events[0].name == "submit":
            proxy = Proxy(fact.job, fact.target, duration_s=fact.duration_s, nodelist=fact.nodelist)
            proxy = proxy.after(fact.events)
            if tracked is None or tracked.proxy.submitted_at != proxy.submitted_at:
                self._jobs[fact.job] = tracked = TrackedJob(proxy)
            tracked.proxy, tracked.known = proxy, True
            self._copies.drop_others(proxy)
            self._reopen_peer(tracked.proxy)
        elif tracked is None:
            return
        else:
            tracked.proxy = tracked.proxy.after(fact.events)
        self._stepper.step(fact.job)

    def _reopen_peer(self, proxy: Proxy) -> None:
        """After a restart, open the peer of a job that its user delegated to a URI."""
        if proxy.placed is not None and proxy.placed.peer not in self._peers:
            for peer in self._targets.candidates(proxy.target)[0]:
                if peer.name == proxy.placed.peer:
                    self._open_peer(peer)

    def _home_synced(self, started_at: float) -> None:
        self._stepper.home_started_at = started_at
        self._state.home_fault = ""
        self._log.info("delegation_ready", jobs=len(self._jobs))
        for job, tracked in list(self._jobs.items()):
            if tracked.known:
                self._stepper.step(job)
            else:
                self._home.send(FindJob(job))
        for state in self._peers.values():
            if state.synced:
                self._copies.find_orphans(state)

    def _home_lost(self, fact: HomeLost) -> None:
        if fact.why != self._state.home_fault:
            self._log.warning("delegation_stopped", why=fact.why)
        self._state.home_fault = fact.why
        for tracked in self._jobs.values():
            tracked.known = False
            if tracked.asked is None:
                tracked.answered()
            self._stepper.output.stop(tracked)
        for state in self._peers.values():
            state.search_again()

    # --- peers ---

    def _peer_synced(self, state: PeerState) -> None:
        self._log.info("peer_connected", peer=state.peer.name, uri=state.peer.uri)
        self._state.note(f"peer {state.peer.name}", "peer_connected", state.peer.uri)
        state.synced, state.why = True, ""
        self._copies.find_orphans(state)
        self._stepper.step_all()

    def _peer_lost(self, state: PeerState, why: str) -> None:
        if state.synced or why != state.why:
            self._log.warning("peer_lost", peer=state.peer.name, why=why)
            self._state.note(f"peer {state.peer.name}", "peer_lost", why)
        state.lose(why)
        for tracked in self._jobs.values():
            if tracked.asked == state.peer.name:
                tracked.answered()
            if tracked.proxy.placed is not None and tracked.proxy.placed.peer == state.peer.name:
                if tracked.relay is not None:
                    tracked.relay.restart()
                tracked.drop_output()
        self._stepper.step_all()


class PeerCopies:
    """The copies that the peers report, also those whose job our instance does not know: these are cancelled."""

    def __init__(self, state: DelegationState, step: Callable[[JobId], None]) -> None:
        self._state = state
        self._step = step

    def take_events(self, state: PeerState, fact: CopyEvents) -> bool:
        """Take events of a copy. Returns whether they also answer a ``ReadCopy``."""
        if fact.marker is not None:
            return self._take_whole(state, fact, fact.marker)
        job = state.job_of.get(fact.remote)
        if job is not None:
            copies = state.copies[job]
            copies[fact.remote] = copies[fact.remote].after(fact.events)
            if copies[fact.remote].ended and job not in self._state.jobs:
                self._state.note_run(state, job, copies[fact.remote])
                state.forget_job(job)
        return False

    def _take_whole(self, state: PeerState, fact: CopyEvents, marker: Marker) -> bool:
        job, tracked = marker.job, self._state.jobs.get(marker.job)
        former = state.copies.get(job, {}).get(fact.remote)
        fresh = Copy(fact.remote, duration_s=fact.duration_s, cores=fact.cores, made_for_at=marker.submitted_at)
        whole = bool(fact.events) and fact.events[0].name == "submit"
        copy = (fresh if whole else (former or fresh)).after(fact.events)
        if tracked is None and copy.ended:
            return False
        state.add_copy(job, copy)
        if tracked is not None and tracked.known:
            self.drop_others(tracked.proxy)
        if tracked is None and state.synced and not self._state.home_fault:
            self._state.home.send(FindJob(job))
        return True

    def take_submitted(self, state: PeerState, fact: Submitted) -> None:
        """Take the id of a copy, unless its events came first."""
        if fact.remote not in state.job_of:
            tracked = self._state.jobs.get(fact.job)
            cores = tracked.needs.cores if tracked and tracked.needs else 0
            duration_s = tracked.proxy.duration_s if tracked else 0.0
            made_for_at = tracked.proxy.submitted_at if tracked else 0.0
            copy = Copy(fact.remote, duration_s=duration_s, cores=cores, made_for_at=made_for_at)
            state.add_copy(fact.job, copy)

    def find_orphans(self, state: PeerState) -> None:
        """Ask our instance for the jobs of the copies that belong to none of its active jobs."""
        if self._state.home_fault:
            return
        for job in state.copies:
            if job not in self._state.jobs:
                self._state.home.send(FindJob(job))

    def take_job_found(self, job: JobId, known: bool) -> None:
        """A job is not active at home: it has ended, or our instance has lost it. So its copies end."""
        tracked = self._state.jobs.get(job)
        if tracked is not None and tracked.known:
            return
        if tracked is not None and known:
            tracked.proxy, tracked.known = replace(tracked.proxy, phase=Phase.ENDED), True
            self._step(job)
            return
        self._state.jobs.pop(job, None)
        for state in self._state.peers.values():
            for copy in state.copies.get(job, {}).values():
                self._end(state, copy, "its job at home has ended" if known else NOT_KNOWN)

    def drop_others(self, proxy: Proxy) -> None:
        """Drop the copies of another job that had this id, and end those of an instance that is gone."""
        for state in self._state.peers.values():
            for copy in list(state.copies.get(proxy.id, {}).values()):
                older_s = proxy.submitted_at - copy.made_for_at
                if abs(older_s) <= SAME_MOMENT_S:
                    continue
                state.forget_copy(proxy.id, copy.remote)
                if older_s > 0:
                    self._end(state, copy, NOT_KNOWN)

    def _end(self, state: PeerState, copy: Copy, note: str) -> None:
        if copy.failure is None and not copy.ended:
            remote = format_job_id(copy.remote)
            self._state.log.warning("copy_without_a_job", peer=state.peer.name, remote=remote, why=note)
            self._state.note(f"peer {state.peer.name}", "copy_without_a_job", f"{remote} is cancelled: {note}")
            state.port.send(EndCopy(copy.remote, note))
