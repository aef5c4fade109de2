"""The real and the simulated instance as subjects of the ensemble port's contract."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

from nodemanager.core.slots import Rank, Slot, SlotName
from nodemanager.ensemble.ports import EnsemblePort, RunRecord
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.ensembles import records
from nodemanager.flux.ensembles.runner import RealEnsemblePort
from nodemanager.flux.reactor import Reactor
from nodemanager.simulation.flux.ensemble_port import EnsembleHost, SimulatedEnsemblePort
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World
from tests.contract.flux_subjects import SMALL
from tests.live.instance import LiveInstance, why_no_flux

WITHIN_S = 20.0
RUN = RunRecord("run-1", "a.yaml", "", "/", 1.0)


class EnsembleSubject(Protocol):
    """One instance with a node of 2 cores. Every new port is that of a new process for the same run."""

    def port(self) -> EnsemblePort: ...

    def until(self, what: str, holds: Callable[[], bool]) -> None: ...

    def finished(self) -> str:
        """The outcome that is on record."""
        ...


class SimulatedSubject:
    def __init__(self) -> None:
        self.world = World(1)
        self.flux = SimulatedFlux(self.world, [SMALL], [Slot(SlotName("slot1"), Rank(1), SMALL.name)])
        self.flux.broker_up(SlotName("slot1"))
        self.world.advance_by(1)
        self.host = EnsembleHost(self.flux, lambda spec: float(spec["tasks"][0]["command"][-1]))
        self._ports = 0

    def port(self) -> EnsemblePort:
        self._ports += 1
        return SimulatedEnsemblePort(self.host, RUN.run, Random(self._ports))

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline_s = self.world.now_s + WITHIN_S
        while not holds():
            assert self.world.now_s < deadline_s, what
            self.world.advance_by(0.01)

    def finished(self) -> str:
        return self.host.finished[RUN.run][0]


class RealSubject:
    def __init__(self, instance: LiveInstance) -> None:
        self._instance = instance
        self._reactors: list[Reactor] = []
        self._now = RUN
        reactor = self._connect()
        records.begin(reactor.handle, "contract", RUN, timeout_s=WITHIN_S)

    def _connect(self) -> Reactor:
        reactor = Reactor(self._instance.uri)
        reactor.__enter__()
        self._reactors.append(reactor)
        return reactor

    def port(self) -> EnsemblePort:
        reactor = self._connect()
        if len(self._reactors) > 2:
            self._now = records.take_over(reactor.handle, "contract", self._now, timeout_s=WITHIN_S)
        return RealEnsemblePort(reactor, "contract", self._now, self._lost, timeout_s=WITHIN_S)

    def _lost(self, failure: CallFailed) -> None:
        raise AssertionError(str(failure))

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline_s, what
            for reactor in self._reactors:
                reactor.after(0.02, reactor.stop)
                reactor.run()

    def finished(self) -> str:
        record = records.read(self._reactors[0].handle, "contract", timeout_s=WITHIN_S)
        assert record is not None
        return record.outcome

    def close(self) -> None:
        for reactor in self._reactors:
            reactor.__exit__(None, None, None)


@contextmanager
def a_simulated_ensemble_host() -> Iterator[EnsembleSubject]:
    yield SimulatedSubject()


@contextmanager
def a_real_ensemble_host() -> Iterator[EnsembleSubject]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        live = LiveInstance(Path(directory), slots=1)
        try:
            live.start_head()
            live.start_slot(1)
            subject = RealSubject(live)
            yield subject
            subject.close()
        finally:
            live.reap()
