"""Keep the copies that the peers report, and settle those whose job our instance does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nodemanager.actors.delegation.state import DelegationState
from nodemanager.actors.delegation.tracked import PeerState
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.delegation.home_port import FindJob
from nodemanager.delegation.jobs import Copy, Phase, Proxy
from nodemanager.delegation.jobspec import Marker
from nodemanager.delegation.peer_port import CopyEvents, EndCopy, Submitted

SAME_MOMENT_S = 0.001
NOT_KNOWN = "its job at home is not known any more"


class PeerCopies:
    """The copies of all peers. ``step`` takes the next step of a job."""

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
