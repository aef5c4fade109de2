"""The subjects of the contract of ``HomePort``: an adapter, its instance, and what users do there."""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id, parse_job_id
from nodemanager.delegation.jobs import EventlogEntry, Proxy
from nodemanager.delegation.ports import (
    HomeDone,
    HomeEvents,
    HomeFact,
    HomePort,
    HomeRefused,
    HomeRequest,
    HomeSynced,
    JobFound,
    JobspecRead,
    OutputCounted,
)
from nodemanager.flux.claim import Claim
from nodemanager.flux.delegate.home import RealHome
from nodemanager.flux.delegate.setup import flux_delegate_path
from nodemanager.simulation.delegation.instance import SimulatedInstance
from nodemanager.simulation.delegation.ports import SimulatedHome
from nodemanager.simulation.time.world import World
from tests.live.instance import carries_wait_status, eventually, why_no_flux
from tests.live.pair import SETUP, SoloInstance

WITHIN_S = 30.0
CORES = 2
LONG_S = 1000.0
F = TypeVar("F")


class Subject(ABC):
    """A port to an instance that runs one job at a time, the facts that it tells, and what users do there."""

    port: HomePort
    userid: int

    def __init__(self) -> None:
        self.facts: list[HomeFact] = []
        self.began_at = self.now_at()
        self._blocker = JobId(0)

    @abstractmethod
    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Let time pass until something holds. Fails loudly."""

    @abstractmethod
    def now_at(self) -> float: ...

    @abstractmethod
    def submit(self, seconds: float, target: str = "") -> JobId:
        """Submit a job that needs the whole instance, with a time limit."""

    @abstractmethod
    def restart(self) -> None:
        """Restart the instance. It keeps its jobs."""

    @abstractmethod
    def let_another_act(self) -> Callable[[], None]:
        """Give the name to another manager. The result gives it back."""

    @abstractmethod
    def memo(self, job: JobId) -> str: ...

    @abstractmethod
    def output(self, job: JobId) -> str:
        """What a job has written so far."""

    @abstractmethod
    def active(self) -> set[JobId]:
        """Every active job of the instance."""

    @abstractmethod
    def make_port(self) -> HomePort: ...

    def carries_wait_status(self) -> bool:
        """Whether an exception can carry the wait status with which it ends a job."""
        return True

    def connect(self) -> None:
        """Start a new port. Only what it tells counts from now on."""
        self.facts = []
        self.port = self.make_port()
        self.port.start(self.facts.append)
        self.until(HomeSynced)

    def keep_busy(self) -> JobId:
        """Return the job that keeps others from running. Nobody has taken it."""
        if self._blocker not in self.active():
            self._blocker = self.submit(LONG_S)
        return self._blocker

    # --- facts ---

    def until(self, kind: type[F], holds: Callable[[F], bool] = lambda _: True) -> F:
        """Wait for a fact, among all that were ever told."""
        self.wait(kind.__name__, lambda: self._found(kind, holds) is not None)
        found = self._found(kind, holds)
        assert found is not None
        return found

    def _found(self, kind: type[F], holds: Callable[[F], bool]) -> F | None:
        return next((it for it in list(self.facts) if isinstance(it, kind) and holds(it)), None)

    def answer(self, request: HomeRequest) -> HomeFact:
        """Send a request, and wait for its answer."""
        before = len(self.facts)

        def answers() -> list[HomeFact]:
            told = self.facts[before:]
            return [it for it in told if _answers(it, request)]

        self.port.send(request)
        self.wait(f"an answer to {request}", lambda: bool(answers()))
        (answer,) = answers()
        return answer

    def events(self, job: JobId) -> list[EventlogEntry]:
        """The events of a job since it was last reported whole."""
        events: list[EventlogEntry] = []
        for fact in list(self.facts):
            if isinstance(fact, HomeEvents) and fact.job == job:
                events = [*([] if fact.events[0].name == "submit" else events), *fact.events]
        return events

    def names(self, job: JobId) -> list[str]:
        return [event.name for event in self.events(job)]

    def proxy(self, job: JobId) -> Proxy:
        return Proxy(job, duration_s=100.0).after(self.events(job))

    def until_event(self, job: JobId, name: str) -> Mapping[str, Any]:
        """Wait for an event of a job; the context of the latest one."""
        self.wait(f"{name} of {job}", lambda: name in self.names(job))
        return next(event.context for event in reversed(self.events(job)) if event.name == name)


def _answers(fact: HomeFact, request: HomeRequest) -> bool:
    if isinstance(fact, HomeDone | HomeRefused):
        return fact.request == request
    return isinstance(fact, JobspecRead | OutputCounted | JobFound) and fact.job == request.job


class RealSubject(Subject):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.userid = os.getuid()
        # Else the broker would cancel running jobs when it ends in good order.
        self.instance = SoloInstance(folder, "home", CORES, SETUP, FLUX_DISABLE_JOB_CLEANUP="1")
        self._claim = self._make_claim()

    def carries_wait_status(self) -> bool:
        return carries_wait_status()

    def begin(self) -> None:
        self.instance.start()
        self._claim.take()
        self.connect()

    def make_port(self) -> HomePort:
        return RealHome(self.instance.uri, self._claim, flux_delegate_path())

    def _make_claim(self) -> Claim:
        return Claim(self.instance.uri, timeout_s=10.0)

    def end(self) -> None:
        self.port.stop()
        self._claim.release()
        self.instance.reap()

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        eventually(what, holds, WITHIN_S)

    def now_at(self) -> float:
        return time.time()

    def submit(self, seconds: float, target: str = "") -> JobId:
        delegate = [f"--dependency=delegate:{target}"] if target else []
        options = [*delegate, f"-c{CORES}", f"-t{seconds:g}s"]
        return JobId(parse_job_id(self.instance.submit(*options, "sleep", f"{seconds:g}")))

    def restart(self) -> None:
        self.instance.stop()
        self.instance.start()
        self._claim.take()

    def let_another_act(self) -> Callable[[], None]:
        other = self._make_claim()
        self._claim.release()
        other.take()

        def back() -> None:
            other.release()
            self._claim.take()

        return back

    def memo(self, job: JobId) -> str:
        return self.instance.field(format_job_id(job), "user.delegated")

    def output(self, job: JobId) -> str:
        return self.instance.flux("job", "attach", format_job_id(job))

    def active(self) -> set[JobId]:
        return {JobId(int(line)) for line in self.instance.flux("jobs", "-no", "{id.dec}").splitlines()}


class SimulatedSubject(Subject):
    def __init__(self) -> None:
        self.world = World(1)
        super().__init__()
        self.userid = 0
        self.instance = SimulatedInstance(self.world, "home", takes=1)
        self.home: SimulatedHome

    def make_port(self) -> HomePort:
        self.home = SimulatedHome(self.instance)
        return self.home

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        until_s = self.world.now_s + WITHIN_S
        while not holds():
            assert self.world.now_s < until_s, f"not within {WITHIN_S:g} s: {what}"
            self.world.advance_by(0.1)

    def now_at(self) -> float:
        return self.world.wall_at()

    def submit(self, seconds: float, target: str = "") -> JobId:
        dependencies = [{"scheme": "delegate", "value": target}] if target else []
        system = {"duration": seconds} | ({"dependencies": dependencies} if dependencies else {})
        core = {"type": "core", "count": CORES}
        return self.instance.submit({"resources": [core], "attributes": {"system": system}})

    def restart(self) -> None:
        self.instance.restart()

    def let_another_act(self) -> Callable[[], None]:
        self.instance.actor = "another manager"

        def back() -> None:
            self.instance.actor = self.home

        return back

    def memo(self, job: JobId) -> str:
        return self.home.memos[job]

    def output(self, job: JobId) -> str:
        return "".join(event["context"].get("data", "") for event in self.instance.jobs[job].output)

    def active(self) -> set[JobId]:
        return {job.id for job in self.instance.jobs.values() if not job.ended}


@contextmanager
def a_real_home() -> Iterator[Subject]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        subject = RealSubject(Path(folder))
        try:
            subject.begin()
            yield subject
        finally:
            subject.end()


@contextmanager
def a_simulated_home() -> Iterator[Subject]:
    subject = SimulatedSubject()
    subject.connect()
    yield subject


SUBJECTS: dict[str, Callable[[], AbstractContextManager[Subject]]] = {
    "real": a_real_home,
    "simulated": a_simulated_home,
}
