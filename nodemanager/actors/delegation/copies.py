"""Keep the copies that the peers report, and settle those whose job our instance does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nodemanager.actors.delegation.state import DelegationState
from nodemanager.actors.delegation.tracked import PeerState
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.delegation.home_port import FindJob
from nodemanager.delegation.jobs import Copy, Phase
from nodemanager.delegation.peer_port import CopyEvents, EndCopy, Submitted
from nodemanager.delegation.steps import HELD_URGENCY

SAME_MOMENT_S = 0.001


class PeerCopies:
    """The copies of all peers. ``step`` takes the next step of a job."""

    def __init__(self, state: DelegationState, step: Callable[[JobId], None]) -> None:
        self._state = state
        self._step = step

    def take_events(self, state: PeerState, fact: CopyEvents) -> bool:
        """Take events of a copy. Returns whether they also answer a ``ReadCopy``."""
        job = state.job_of.get(fact.remote)
        if fact.marker is not None:
            job = fact.marker.job
            tracked = self._state.jobs.get(job)
            if tracked is not None and abs(tracked.proxy.submitted_at - fact.marker.submitted_at) > SAME_MOMENT_S:
                return False  # of an instance that is gone, whose jobs had the same ids
            former = state.copies.get(job, {}).get(fact.remote)
            fresh = Copy(fact.remote, duration_s=fact.duration_s, cores=fact.cores)
            whole = bool(fact.events) and fact.events[0].name == "submit"
            copy = fresh if whole else (former or fresh)
            state.add_copy(job, copy.after(fact.events))
            if tracked is None and state.synced and not self._state.home_fault:
                state.orphans[fact.remote] = job
                self._state.home.send(FindJob(job))
            return True
        if job is not None:
            copies = state.copies[job]
            copies[fact.remote] = copies[fact.remote].after(fact.events)
            if copies[fact.remote].ended and job not in self._state.jobs:
                state.orphans.pop(fact.remote, None)
                self._state.note_run(state, job, copies[fact.remote])
                state.forget_job(job)
        return False

    def take_submitted(self, state: PeerState, fact: Submitted) -> None:
        """Take the id of a copy, unless its events came first."""
        if fact.remote not in state.job_of:
            tracked = self._state.jobs.get(fact.job)
            cores = tracked.needs.cores if tracked and tracked.needs else 0
            duration_s = tracked.proxy.duration_s if tracked else 0.0
            state.add_copy(fact.job, Copy(fact.remote, duration_s=duration_s, cores=cores))

    def find_orphans(self, state: PeerState) -> None:
        """Ask our instance for the jobs of the copies that belong to none of its active jobs."""
        if self._state.home_fault:
            return
        for job, copies in state.copies.items():
            if job not in self._state.jobs:
                state.orphans.update(dict.fromkeys(copies, job))
                self._state.home.send(FindJob(job))

    def take_job_found(self, job: JobId, known: bool) -> None:
        """A copy's job is not active at home: it has ended, or our instance has lost it."""
        if (tracked := self._state.jobs.get(job)) is not None and not tracked.known:
            if known:
                tracked.proxy, tracked.known = replace(tracked.proxy, phase=Phase.ENDED), True
                self._step(job)
                return
            del self._state.jobs[job]
            for state in self._state.peers.values():
                state.orphans.update(dict.fromkeys(state.copies.get(job, ()), job))
        for state in self._state.peers.values():
            for remote, of in list(state.orphans.items()):
                if of == job:
                    self._settle(state, remote, known)

    def _settle(self, state: PeerState, remote: JobId, known: bool) -> None:
        """Cancel a copy whose job has ended, or that never could start. A lost job's work is left to its user."""
        copy = state.copies.get(state.orphans[remote], {}).get(remote)
        if copy is None or copy.ended or copy.failure is not None:
            del state.orphans[remote]
        elif known or copy.urgency == HELD_URGENCY:
            note = "its job at home has ended" if known else "its job at home is not known any more"
            state.port.send(EndCopy(remote, note))
            del state.orphans[remote]
        else:
            self._state.log.warning("copy_without_a_job", peer=state.peer.name, remote=format_job_id(remote))
