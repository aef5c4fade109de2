"""A small Flux instance in virtual time: job events as RFC 21 has them, some cores, and restarts.

It runs copies, as a peer does, and shows proxies, as home does. Like the real plugin, its alloc-bypass forgets a
proxy when the instance restarts, and only a validation reminds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import DURATION, EXEC, HOLD, PROXY_R, EventlogEntry
from nodemanager.delegation.jobspec import DELEGATE, read_duration_s, read_target
from nodemanager.simulation.time.world import World

RUNS_S = 20.0
SIGTERM = 15

Watcher = Callable[[JobId, Sequence[EventlogEntry]], None]


@dataclass
class SimulatedJob:
    """One job. ``runs`` counts how often it has started, which must not exceed 1."""

    id: JobId
    submitted: Mapping[str, Any]  # the jobspec as its user submitted it
    jobspec: Mapping[str, Any]
    urgency: int
    events: list[EventlogEntry] = field(default_factory=list)
    output: list[dict[str, Any]] = field(default_factory=list)
    exec_events: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0
    inert: bool = False  # a job that was taken: nothing of it is started here
    pretends: bool = False  # it has resources for alloc-bypass

    @property
    def is_proxy(self) -> bool:
        return self.inert or bool(read_target(self.jobspec))

    def has(self, name: str) -> bool:
        return any(event.name == name for event in self.events)

    @property
    def ended(self) -> bool:
        return self.has("clean")

    @property
    def failed(self) -> bool:
        return any(event.name == "exception" and event.context["severity"] == 0 for event in self.events)


@dataclass
class InstanceFaults:
    """The faults of an instance that answers badly.

    ``travel_s``: the longest that a message travels. ``answers_from_s``: it hangs until then. ``p_repeats``: of
    each message, that it comes twice. ``p_loses_submit``: that the connection breaks before a submission is
    answered. ``p_rejects``: of a job about to start, that the scheduler says it never can.
    """

    travel_s: float = 0.3
    answers_from_s: float = 0.0
    p_repeats: float = 0.0
    p_loses_submit: float = 0.0
    p_rejects: float = 0.0


class InstanceRefused(Exception):
    """The instance refuses a request."""


class SimulatedInstance:
    """One instance. ``takes``: how many jobs run at once; ``status``: the status with which each ends."""

    def __init__(self, world: World, name: str, takes: int = 4, cores_max: int = 8) -> None:
        self.world = world
        self.name = name
        self.jobs: dict[JobId, SimulatedJob] = {}
        self.up = True
        self.incarnation = 0  # a new one after each restart: connections end
        self.started_at = world.steady_at()
        self.status = 768
        self.actor: object = None  # who holds the name node-manager
        self.queue_disabled = False
        self.runs_s: Callable[[SimulatedJob], float] = _time_limit
        self.status_of: Callable[[SimulatedJob], int] = lambda _: self.status
        self.faults = InstanceFaults()
        self.cores_max = cores_max
        self._takes = takes
        self._watchers: list[Watcher] = []
        self._noted: set[JobId] = set()  # alloc-bypass's memory
        self._draws = world.draws_for(f"{name}/instance")
        self._next = 1000 + world.draws_for(f"{name}/ids").randrange(1000)

    # --- watching ---

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def post(self, job: SimulatedJob, name: str, **context: object) -> None:
        """Post an event to a job's eventlog."""
        event = EventlogEntry(name, self.world.steady_at(), context)
        job.events.append(event)
        if name == "jobspec-update":
            if isinstance(changed := context.get(EXEC), Mapping):
                job.inert = "test" in changed
            job.pretends |= PROXY_R in context
        for watcher in list(self._watchers):
            watcher(job.id, [event])

    # --- the job manager ---

    def submit(self, jobspec: Mapping[str, Any], urgency: int = 16) -> JobId:
        """Submit a job: a proxy if it has the dependency ``delegate``, else one that runs. Raises ``Refused``."""
        if self.queue_disabled:
            raise InstanceRefused("job submission is disabled: maintenance")
        self._next += 1
        submitted, jobspec = jobspec, frobnicate(jobspec)
        job = SimulatedJob(JobId(self._next), submitted, jobspec, urgency)
        self.jobs[job.id] = job
        self.post(job, "submit", urgency=urgency, userid=0, flags=0)
        if read_target(jobspec):
            self._noted.add(job.id)
            self.post(job, "set-flags", flags=["alloc-bypass"])
            self.post(job, "dependency-add", description=HOLD)
        self.post(job, "validate")
        if not read_target(jobspec):
            self.post(job, "depend")
        self._schedule()
        return job.id

    def active(self, job: JobId) -> SimulatedJob:
        """Return an active job. Raises ``Refused``."""
        found = self.known(job)
        if found.ended:
            raise InstanceRefused("job is inactive")
        return found

    def running(self, job: JobId) -> SimulatedJob:
        """Return a running job, which has a place for output. Raises ``Refused``."""
        found = self.active(job)
        if not found.has("start"):
            raise InstanceRefused("Job not running")
        return found

    def known(self, job: JobId) -> SimulatedJob:
        """Return a job, active or not. Raises ``Refused``."""
        if (found := self.jobs.get(job)) is None:
            raise InstanceRefused("unknown job id")
        return found

    def set_urgency(self, job: JobId, urgency: int) -> None:
        found = self.active(job)
        if found.has("alloc"):
            raise InstanceRefused("urgency cannot be changed once resources are allocated")
        found.urgency = urgency
        self.post(found, "urgency", urgency=urgency)
        self._schedule()

    def set_duration(self, job: JobId, duration_s: float) -> None:
        self.post(self.active(job), "jobspec-update", **{DURATION: duration_s})

    def raise_on(self, job: JobId, type_: str, note: str, status: int | None = None) -> None:
        found = self.active(job)
        if found.failed:
            return
        self.post(found, "exception", type=type_, severity=0, note=note)
        if found.has("start") and not found.has("finish"):
            self.post(found, "finish", status=SIGTERM if status is None else status_of_shell(status))
        self.post(found, "clean")
        self._schedule()

    def finish(self, job: JobId, status: int) -> None:
        """End a running job. Raises ``Refused``."""
        found = self.running(job)
        if not found.has("finish"):
            self.post(found, "finish", status=status)
            self.post(found, "clean")
        self._schedule()

    # --- proxies ---

    def remove_dependency(self, job: JobId, description: str) -> None:
        """Remove a dependency. The event is posted even if it is gone already. A job that has ended ignores it."""
        found = self.jobs.get(job)
        if found is None or found.ended:
            return
        removed = found.has("dependency-remove")
        self.post(found, "dependency-remove", description=description)
        if description == HOLD and not removed:
            self.post(found, "depend")
            self._allocate(found)

    def validate(self, job: JobId, duration_s: float) -> None:
        found = self.active(job)
        if read_target(found.jobspec) or found.pretends:
            self._noted.add(job)
            self.post(found, "set-flags", flags=["alloc-bypass"])
        self.post(found, "jobspec-update", **{DURATION: duration_s})
        if found.has("depend"):
            self._allocate(found)

    def _allocate(self, job: SimulatedJob) -> None:
        if job.id in self._noted and not job.has("alloc") and not job.failed:
            self.post(job, "alloc", bypass=True)

    def show_running(self, job: JobId) -> None:
        found = self.active(job)
        if not found.has("alloc"):
            raise InstanceRefused("Job not found")
        if not found.has("start"):
            self.post(found, "start")

    # --- running copies ---

    def _schedule(self) -> None:
        waiting = [
            it for it in self.jobs.values() if not it.ended and not it.has("alloc") and not read_target(it.jobspec)
        ]
        running = sum(1 for it in self.jobs.values() if it.has("alloc") and not it.ended and not it.is_proxy)
        for job in waiting[:]:
            if job.urgency and running < self._takes and self.up:
                if self._draws.random() < self.faults.p_rejects:
                    self.post(job, "exception", type="alloc", severity=0, note="unsatisfiable request")
                    self.post(job, "clean")
                    continue
                running += 1
                self._start(job)

    def _start(self, job: SimulatedJob) -> None:
        self.post(job, "alloc")
        if job.inert:
            return
        job.runs += 1
        self.post(job, "start")
        job.output.append(
            {"timestamp": self.world.steady_at(), "name": "data", "context": {"data": "said\u2028\u2029\u0085\n"}}
        )
        incarnation = self.incarnation

        def end() -> None:
            if self.incarnation == incarnation and not job.ended:
                self.finish(job.id, self.status_of(job))

        self.world.after(self.runs_s(job), end)

    # --- restarts ---

    def kill(self, lost_s: float) -> None:
        """Be killed, and come back without the latest events. A running proxy fails, as Flux cannot take it up."""
        until_at = self.world.wall_at() - lost_s
        for job in list(self.jobs.values()):
            job.events = [event for event in job.events if event.at <= until_at]
            if not job.events:
                del self.jobs[job.id]
                continue
            job.urgency = [event.context["urgency"] for event in job.events if "urgency" in event.context][-1]
            if not job.has("start"):
                job.output, job.exec_events = [], []
            elif not job.ended:
                self.post(job, "exception", type="exec", severity=0, note="failed to create guest ns")
                self.post(job, "finish", status=256)
                self.post(job, "clean")
        self.restart()

    def restart(self, *, keeps_state: bool = True) -> None:
        """Restart. Running copies fail, as Flux cannot take them up again; running proxies survive."""
        self.incarnation += 1
        self.up = True
        self._noted.clear()
        self.started_at = self.world.steady_at()
        if not keeps_state:
            self.jobs.clear()
        for job in list(self.jobs.values()):
            if job.runs and not job.ended:
                self.post(job, "exception", type="exec", severity=0, note="lost at a restart")
                self.post(job, "finish", status=256)
                self.post(job, "clean")
        self._schedule()


def frobnicate(jobspec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make of the dependency ``delegate`` an attribute, as our frobnicator plugin does."""
    attributes = jobspec["attributes"]
    system = attributes["system"]
    targets = [it["value"] for it in system.get("dependencies", []) if it["scheme"] == DELEGATE]
    if not targets:
        return jobspec
    return {**jobspec, "attributes": {**attributes, "system": {**system, DELEGATE: targets[0]}}}


def _time_limit(job: SimulatedJob) -> float:
    return read_duration_s(job.jobspec) or RUNS_S


def status_of_shell(status: int) -> int:
    """The status that job-exec gives a job with an exception: a signal becomes an exit code, as a shell has it."""
    return (128 + os.WTERMSIG(status)) << 8 if os.WIFSIGNALED(status) else status
