"""The same steps on a real Flux and on the simulated one: after each, both must look the same to the manager."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.ports import FluxPort
from nodemanager.core.slots import Rank, SlotName
from nodemanager.flux.instance import RealFlux
from tests.contract.flux_subjects import CLUSTER_UUID, RANKS, MonotonicClock
from tests.contract.simulated_flux import SimulatedFluxSubject
from tests.live.instance import LiveInstance, eventually, why_no_flux

# Jobs that run on until they are cancelled, as options of `flux submit` and as shapes.
JOBS: tuple[tuple[tuple[str, ...], Shape], ...] = (
    (("-n1",), Shape(slots=1, cores_per_slot=1)),
    (("-n1", "-c2"), Shape(slots=1, cores_per_slot=2)),
    (("-n3",), Shape(slots=3, cores_per_slot=1)),
    (("-N1", "-n1", "-x"), Shape(nodes=1, slots=1, cores_per_slot=1, exclusive=True)),
    (("-N2", "-n2"), Shape(nodes=2, slots=1, cores_per_slot=1)),
)

View = tuple[tuple[object, ...], ...]


@dataclass
class Twins:
    """Both instances, and the jobs that were submitted to both, in order."""

    real: LiveInstance
    real_port: FluxPort
    simulated: SimulatedFluxSubject = field(default_factory=SimulatedFluxSubject)
    jobs: list[tuple[int, JobId]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.simulated_port = self.simulated.manager().port
        self.simulated_port.claim()

    def submit(self, kind: int) -> None:
        options, shape = JOBS[kind]
        twin = self.simulated.flux.submit(shape, run_s=1e6)
        self.jobs.append((self.real.submit(*options), twin))

    def cancel(self, which: int) -> None:
        if self.jobs:
            real, twin = self.jobs.pop(which % len(self.jobs))
            if self.simulated.flux.job_state(twin) is not None:  # else it died with its node, in both
                self.real.run("cancel", str(real))
                self.simulated.flux.cancel(twin)

    def join_or_die(self, rank: Rank) -> None:
        slot = SlotName(f"slot{rank}")
        if rank in self.real.online():
            self.real.kill_slot(rank)
            self.simulated.flux.broker_down(slot)
        else:
            self.real.start_slot(rank)
            self.simulated.flux.broker_up(slot)

    def drain_or_undrain(self, rank: Rank) -> None:
        drained = {seen.rank for seen in self.real_port.ranks() if seen.drain_reason is not None}
        for port in (self.real_port, self.simulated_port):
            if rank in drained:
                port.undrain(rank)
            else:
                port.drain(rank, "twins")

    def compare(self, step: str) -> None:
        self.simulated.world.advance_by(2.0)
        expected = _view(self.simulated_port)
        eventually(f"after {step} the real one shows {expected}", lambda: _view(self.real_port) == expected)


def _view(port: FluxPort) -> View:
    return tuple(
        (rank.rank, rank.online, rank.cores_free, rank.allocated, rank.schedulable, rank.drain_reason)
        for rank in port.ranks()
    )


Step = tuple[str, Callable[[Twins], None]]
RANK = st.sampled_from(RANKS)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.integers(0, len(JOBS) - 1).map(lambda kind: (f"submit {JOBS[kind][0]}", lambda twins: twins.submit(kind))),
    st.integers(0, 9).map(lambda which: (f"cancel {which}", lambda twins: twins.cancel(which))),
    RANK.map(lambda rank: (f"join or die {rank}", lambda twins: twins.join_or_die(rank))),
    RANK.map(lambda rank: (f"drain or undrain {rank}", lambda twins: twins.drain_or_undrain(rank))),
)


@pytest.fixture(scope="module")
def real() -> Iterator[LiveInstance]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        instance = LiveInstance(Path(directory), slots=len(RANKS))
        try:
            instance.start_head()
            if instance.has_fluxion:
                pytest.skip("the simulated Flux gives out ranks as sched-simple does, and this is Fluxion")
            yield instance
        finally:
            instance.reap()


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a real instance is too slow to shrink on
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=4, max_size=8))
def test_both_look_the_same_after_every_step(real: LiveInstance, steps: list[Step]) -> None:
    flux = RealFlux(real.uri, CLUSTER_UUID, MonotonicClock(), timeout_s=10.0)
    port = flux.port()
    port.claim()
    try:
        twins = Twins(real, port)
        for name, do in steps:
            do(twins)
            twins.compare(name)
    finally:
        port.close()
        flux.close()
        real.clear()
