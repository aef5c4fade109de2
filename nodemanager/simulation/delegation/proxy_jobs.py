"""The job manager with what delegation uses: proxy jobs, alloc-bypass, and job-exec's override.

A *proxy* (attribute ``delegate``) is held until the hold is removed. alloc-bypass then gives it pretended
resources, so it takes no core. Like the real plugin, alloc-bypass forgets its jobs when rank 0 restarts, and only a
validation reminds it. An *inert* job gets its resources from the scheduler and starts nothing by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nodemanager.core.jobs import JobId, JobState
from nodemanager.delegation.jobs import DURATION, EXEC, HOLD, PROXY_R
from nodemanager.delegation.jobspec import read_target
from nodemanager.simulation.flux.job_manager import JobManager, SimulatedJobState
from nodemanager.simulation.flux.resource_set import Grant

BYPASS = "alloc-bypass"


class ProxyJobManager(JobManager):
    """A job manager that also shows jobs that run elsewhere. Methods raise ``ValueError`` where Flux refuses."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._flagged: set[JobId] = set()  # the scheduler is never asked for these
        self._noted: set[JobId] = set()  # alloc-bypass's memory
        self._pretending: set[JobId] = set()  # a job that was taken, with resources for alloc-bypass
        self._inert: set[JobId] = set()

    # --- what the manager asks for ---

    def post(self, job_id: JobId, name: str, context: Mapping[str, Any]) -> None:
        """Post an event to a job's eventlog."""
        job = self._known(job_id)
        if name == "jobspec-update":
            if isinstance(changed := context.get(EXEC), Mapping):
                (self._inert.add if "test" in changed else self._inert.discard)(job_id)
            if PROXY_R in context:
                self._pretending.add(job_id)
        self._post_event(job, name, context)

    def remove_dependency(self, job_id: JobId, description: str) -> None:
        """Remove a dependency. The event is posted even if it is gone already. A job that has ended ignores it."""
        if (job := self._active.get(job_id)) is None:
            return
        if job.hold == description:
            self.remove_hold(job_id, description)
        else:
            self._post_event(job, "dependency-remove", {"description": description})

    def validate(self, job_id: JobId, duration_s: float) -> None:
        """Validate a job again, by an update of its time limit: so alloc-bypass takes note of it again."""
        job = self._known(job_id)
        if read_target(job.jobspec) or job_id in self._pretending:
            self._flag(job)
        self._post_event(job, "jobspec-update", {DURATION: duration_s})
        self._bypass(job)

    def show_running(self, job_id: JobId) -> None:
        """Start a job that job-exec was told to wait for. One that has started is no error."""
        job = self._known(job_id)
        if job.state is not JobState.RUN:
            raise ValueError("Job not found")
        if not job.started:
            job.started = True
            self._post_event(job, "start")

    def show_finished(self, job_id: JobId, status: int) -> None:
        """End a running job."""
        job = self._known(job_id)
        if not job.started:
            raise ValueError("Job not running")
        self._finish(job, status)

    def raise_on(self, job_id: JobId, type_: str, note: str, status: int) -> None:
        """End a job by an exception. ``status`` counts if it runs. One that has ended is no error."""
        if (job := self._active.get(job_id)) is not None:
            exception = {"type": type_, "severity": 0, "note": note, "userid": 0}
            self._fail(job, exception, status_of_shell(status))

    def change_urgency(self, job_id: JobId, urgency: int) -> None:
        """Set the urgency of a job that has no resources yet."""
        self.set_urgency(self._known(job_id).id, urgency)

    def is_inert(self, job_id: JobId) -> bool:
        """Whether the job starts nothing here."""
        return job_id in self._inert

    # --- the plugins ---

    def _note_submitted(self, job: SimulatedJobState) -> None:
        if read_target(job.jobspec):
            self._flag(job)
            self._inert.add(job.id)
            job.hold = HOLD
            self._post_event(job, "dependency-add", {"description": HOLD})

    def _flag(self, job: SimulatedJobState) -> None:
        self._flagged.add(job.id)
        self._noted.add(job.id)
        self._post_event(job, "set-flags", {"flags": [BYPASS]})

    def _prioritize(self, job: SimulatedJobState) -> None:
        super()._prioritize(job)
        self._bypass(job)

    def _bypass(self, job: SimulatedJobState) -> None:
        if job.id in self._noted and job.state is JobState.SCHED:
            job.state = JobState.RUN
            self._post_event(job, "alloc", {"bypass": True})

    def _is_waiting(self, job: SimulatedJobState) -> bool:
        return job.id not in self._flagged and super()._is_waiting(job)

    def _allocate(self, job: SimulatedJobState, grants: tuple[Grant, ...]) -> None:
        super()._allocate(job, grants)
        if job.id in self._inert and job.next_step is not None:
            job.next_step.cancel()

    def restart(self) -> None:
        self._noted.clear()
        super().restart()

    def _known(self, job_id: JobId) -> SimulatedJobState:
        if (job := self._active.get(job_id)) is None:
            raise ValueError("job is inactive")
        return job


def status_of_shell(status: int) -> int:
    """The status that job-exec gives a job with an exception: a signal becomes an exit code, as a shell has it."""
    return (128 + os.WTERMSIG(status)) << 8 if os.WIFSIGNALED(status) else status
