"""A simulated instance as runs of ensembles use it, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.ensemble.journal import CAUGHT_UP
from nodemanager.ensemble.ports import Then
from nodemanager.simulation.flux.instance import JournalFollower, SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent

# How long a message takes. Two that are sent together may arrive in either order.
DELAY_MIN_S, DELAY_MAX_S = 0.0005, 0.02

Record = Mapping[str, Any]
RunTime = Callable[[Mapping[str, Any]], float]  # seconds for which the job of a jobspec runs


class EnsembleHost:
    """What outlives a process: the instance, its journal with the ended jobs, and the runs' logs."""

    def __init__(self, flux: SimulatedFlux, run_s: RunTime) -> None:
        self.flux = flux
        self.run_s = run_s
        self.logs: dict[str, str] = {}
        self.owners: dict[str, SimulatedEnsemblePort] = {}  # of each log
        self.finished: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self.memos: dict[int, str] = {}
        self.records: dict[int, dict[str, Any]] = {}
        self.readers: list[Callable[[Record], None]] = []
        flux.follow(JournalFollower(self._on_event, lambda _: None, lambda _: None))

    def _on_event(self, event: JobEvent) -> None:
        shown = {"name": event.name, "timestamp": event.timestamp, "context": dict(event.context)}
        record = self.records.setdefault(event.job_id, {"id": int(event.job_id), "events": []})
        if event.jobspec is not None:
            record["jobspec"] = event.jobspec
        if event.name != "annotations":  # flux-core does not store these
            record["events"].append(shown)
        live: dict[str, Any] = {"id": int(event.job_id), "events": [shown]}
        if event.name == "submit":
            live["jobspec"] = event.jobspec
        for reader in tuple(self.readers):
            reader(live)


class SimulatedEnsemblePort:
    """:class:`nodemanager.ensemble.ports.EnsemblePort`. ``kill`` ends its process: nothing is called any more."""

    def __init__(self, host: EnsembleHost, run: str, delays: Random) -> None:
        self._host = host
        self._world = host.flux.world
        self._run = run
        self._delays = delays
        self._alive = True
        self._stored_at_s = 0.0  # when the last append is stored: they stay in order

    def kill(self) -> None:
        self._alive = False

    def wall_at(self) -> float:
        return self._world.wall_at()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._world.after(delay_s, lambda: self._if_alive(action))

    def read_log(self) -> str:
        self._host.owners[self._run] = self
        return self._host.logs.get(self._run, "")

    @property
    def owns_log(self) -> bool:
        """Whether no later process has taken over the log."""
        return self._host.owners.get(self._run) is self

    def append(self, lines: str, then: Callable[[], None]) -> None:
        def store() -> None:
            if self.owns_log:
                self._host.logs[self._run] = self._host.logs.get(self._run, "") + lines
                self._reply(then)

        self._stored_at_s = max(self._stored_at_s, self._world.now_s + self._delay_s())
        self._world.after(self._stored_at_s - self._world.now_s, store)

    def follow(self, on_record: Callable[[Record], None]) -> None:
        def begin() -> None:
            for record in [{**record, "events": list(record["events"])} for record in self._host.records.values()]:
                on_record(record)
            on_record({"id": CAUGHT_UP, "events": []})
            self._host.readers.append(lambda record: self._if_alive(lambda: on_record(record)))

        self._reply(begin)

    def submit(self, jobspec: Mapping[str, Any], urgency: int, then: Then) -> None:
        def arrive() -> None:
            try:
                self._host.flux.submit(jobspec, run_s=self._host.run_s(jobspec), urgency=urgency)
            except ValueError as error:
                self._answer(then, str(error))
            else:
                self._answer(then, "")

        self._world.after(self._delay_s(), arrive)

    def cancel(self, job: int, why: str, then: Then) -> None:
        del why

        def arrive() -> None:
            self._host.flux.cancel(JobId(job))
            self._answer(then, "")

        self._world.after(self._delay_s(), arrive)

    def show_on_job(self, job: int, text: str, then: Then) -> None:
        def arrive() -> None:
            if self._host.flux.job_state(JobId(job)) is not None:
                self._host.memos[job] = text
            self._answer(then, "")

        self._world.after(self._delay_s(), arrive)

    def finish(self, outcome: str, summary: Mapping[str, Any]) -> None:
        self._host.finished[self._run] = outcome, summary
        self._host.logs.pop(self._run, None)

    def _answer(self, then: Then, why: str) -> None:
        self._reply(lambda: then(why))

    def _reply(self, action: Callable[[], None]) -> None:
        self._world.after(self._delay_s(), lambda: self._if_alive(action))

    def _if_alive(self, action: Callable[[], None]) -> None:
        if self._alive:
            action()

    def _delay_s(self) -> float:
        return self._delays.uniform(DELAY_MIN_S, DELAY_MAX_S)
