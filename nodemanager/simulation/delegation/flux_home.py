"""The simulated instance with nodes as the home of delegated jobs: its eventlogs, and the home port to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.core.ports import FluxError
from nodemanager.delegation.jobs import EventlogEntry
from nodemanager.delegation.jobspec import DELEGATE
from nodemanager.simulation.delegation.instance import (
    SIGTERM,
    InstanceRefused,
    SimulatedInstance,
    SimulatedJob,
    frobnicate,
)
from nodemanager.simulation.delegation.ports import SimulatedHome
from nodemanager.simulation.delegation.proxy_jobs import ProxyJobManager
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent, JobManager
from nodemanager.simulation.flux.jobspec import Jobspec
from nodemanager.simulation.flux.sched_simple import Pool
from nodemanager.simulation.time.world import World


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
