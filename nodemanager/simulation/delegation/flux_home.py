"""The simulated instance with nodes as the home of delegated jobs: its job manager, eventlogs, and the home port.

A *proxy* (attribute ``delegate``) is held until the hold is removed. alloc-bypass then gives it pretended
resources, so it takes no core. Like the real plugin, alloc-bypass forgets its jobs when rank 0 restarts, and only a
validation reminds it. An *inert* job gets its resources from the scheduler and starts nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.ports import FluxError
from nodemanager.delegation.jobs import DURATION, EXEC, HOLD, PROXY_R, EventlogEntry
from nodemanager.delegation.jobspec import DELEGATE, read_target
from nodemanager.simulation.delegation.instance import (
    SIGTERM,
    InstanceRefused,
    SimulatedInstance,
    SimulatedJob,
    frobnicate,
    status_of_shell,
)
from nodemanager.simulation.delegation.ports import SimulatedHome
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent, JobManager, SimulatedJobState
from nodemanager.simulation.flux.jobspec import Jobspec
from nodemanager.simulation.flux.resource_set import Grant
from nodemanager.simulation.flux.sched_simple import Pool
from nodemanager.simulation.time.world import World

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


class DelegatingFlux(SimulatedFlux):
    """A simulated instance whose jobs can be delegated. Its plugins are loaded."""

    proxies: ProxyJobManager

    def _make_job_manager(self, world: World, pool: Pool, connected: Callable[[int], bool]) -> JobManager:
        self.proxies = ProxyJobManager(world, pool, connected)
        return self.proxies


class FluxHome(SimulatedInstance):
    """The jobs of a simulated instance, with their eventlogs, as the home port needs them.

    ``jobs`` has every job that was ever submitted: the instance never loses its state.
    """

    def __init__(self, flux: DelegatingFlux) -> None:
        super().__init__(flux.world, "home")
        self.flux = flux
        self._submitted: dict[JobId, Mapping[str, Any]] = {}
        self._delegating: Mapping[str, Any] | None = None
        self._starts = flux.starts
        flux.observe_jobs(self._on_event)

    @property
    def up(self) -> bool:
        try:
            self.flux.check_reachable()
        except FluxError:
            return False
        if self._starts != self.flux.starts:
            self._starts, self.started_at = self.flux.starts, self.world.steady_at()
        return True

    @up.setter
    def up(self, up: bool) -> None:
        """It is up if the instance is."""

    @property
    def incarnation(self) -> int:
        return self.flux.starts

    @incarnation.setter
    def incarnation(self, number: int) -> None:
        """It is that of the instance."""

    def submit_to(self, target: str, jobspec: Jobspec) -> JobId:
        """Submit a job with the dependency ``delegate``. Raises FluxError while the instance is down."""
        system = jobspec["attributes"]["system"]
        asked = {**system, "dependencies": [{"scheme": DELEGATE, "value": target}]}
        original = {**jobspec, "attributes": {**jobspec["attributes"], "system": asked}}
        changed = frobnicate(original)
        system = {key: value for key, value in changed["attributes"]["system"].items() if key != "dependencies"}
        self._delegating = original
        try:
            return self.flux.submit({**changed, "attributes": {**changed["attributes"], "system": system}})
        finally:
            self._delegating = None

    def _on_event(self, event: JobEvent) -> None:
        if event.name == "submit":  # a strange jobspec may be null
            submitted = self._delegating or event.jobspec or {}
            urgency = int(event.context["urgency"])
            self.jobs[event.job_id] = SimulatedJob(event.job_id, submitted, event.jobspec or {}, urgency)
        job = self.jobs[event.job_id]
        entry = EventlogEntry(event.name, self.world.steady_at(), event.context)
        job.events.append(entry)
        for watcher in list(self._watchers):
            watcher(job.id, [entry])

    # --- what the home port asks for ---

    def post(self, job: SimulatedJob, name: str, **context: object) -> None:
        self._ask(lambda: self.flux.proxies.post(job.id, name, context))

    def set_urgency(self, job: JobId, urgency: int) -> None:
        self._ask(lambda: self.flux.proxies.change_urgency(job, urgency))

    def remove_dependency(self, job: JobId, description: str) -> None:
        self.flux.proxies.remove_dependency(job, description)

    def validate(self, job: JobId, duration_s: float) -> None:
        self._ask(lambda: self.flux.proxies.validate(job, duration_s))

    def show_running(self, job: JobId) -> None:
        self._ask(lambda: self.flux.proxies.show_running(job))

    def finish(self, job: JobId, status: int) -> None:
        self._ask(lambda: self.flux.proxies.show_finished(job, status))

    def raise_on(self, job: JobId, type_: str, note: str, status: int | None = None) -> None:
        self.flux.proxies.raise_on(job, type_, note, SIGTERM if status is None else status)

    def _ask(self, change: Callable[[], None]) -> None:
        try:
            change()
        except ValueError as refused:
            raise InstanceRefused(str(refused)) from refused

    def _schedule(self) -> None:
        """The instance has a scheduler of its own."""


class ClaimedHome(SimulatedHome):
    """The home port of a manager that acts while it holds the claim of the instance."""

    def __init__(self, home: FluxHome, token: str) -> None:
        super().__init__(home, token)
        self._flux = home.flux
        self._token = token

    def take_name(self) -> None:
        """The manager claims the name."""

    def holds_name(self) -> bool:
        return self._flux.claimed_by == self._token
