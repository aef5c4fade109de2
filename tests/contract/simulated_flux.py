"""The simulated Flux as a subject of the Flux port's contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from nodemanager.core.jobs import JobId, JobResult, OnRanks, Shape
from nodemanager.core.slots import Rank, Slot, SlotName, SlotsWish, TypeName
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.time.world import World
from tests.contract.flux_subjects import CLUSTER_UUID, LARGE, RANKS, SMALL, FluxSubject, OneManager

_SLOTS = tuple(Slot(SlotName(f"slot{rank}"), rank, TypeName("small")) for rank in RANKS)


class SimulatedFluxSubject:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.world = World(seed=1)
        self.flux = SimulatedFlux(self.world, [SMALL, LARGE], _SLOTS)
        self._managers = 0

    def manager(self, cluster_uuid: str = CLUSTER_UUID) -> OneManager:
        self._managers += 1
        token = f"manager-{self._managers}"
        return OneManager(
            SimulatedFluxPort(self.flux, token, cluster_uuid, [SMALL.name]),
            lambda: self._drop(token),
            lambda: self._drop(token),
        )

    def _drop(self, token: str) -> None:
        self.flux.drop_claim(token)

    def bring_online(self, rank: Rank) -> None:
        self.flux.broker_up(_slot(rank))

    def hang(self, rank: Rank) -> None:
        self.flux.hang(_slot(rank))

    def occupy(self, rank: Rank) -> Callable[[], None]:
        return self.job_on(rank)[1]

    def shown_on(self, job: JobId) -> str:
        return self.flux.shown_on_jobs.get(job, "")

    def job_that_ends(self, rank: Rank, result: JobResult) -> JobId:
        on_rank = OnRanks((str(rank),))
        limit_s, run_s = (
            (1.0 if result is JobResult.TIMEOUT else 0.0),
            (1.0 if result is JobResult.COMPLETED else 30.0),
        )
        job = self.flux.submit(
            Shape(1, 1, nodes=1, constraint=on_rank), duration_s=limit_s, run_s=run_s, requeue=True
        )
        self.world.advance_by(0.1)
        if result is JobResult.CANCELED:
            self.flux.cancel(job)
        return job

    def job_on(self, rank: Rank) -> tuple[JobId, Callable[[], None]]:
        on_rank = OnRanks((str(rank),))
        job_id = self.flux.submit(Shape(1, 1, nodes=1, constraint=on_rank), run_s=3600)
        self.world.advance_by(1)
        return job_id, lambda: self._end(job_id)

    def _end(self, job_id: JobId) -> None:
        self.flux.cancel(job_id)
        self.world.advance_by(1)

    def drain(self, rank: Rank, reason: str | None) -> None:
        self.flux.drain(rank, reason)

    def instance_on(self, ranks: Sequence[Rank], *, whole: bool = True) -> tuple[JobId, Callable[[], None]]:
        on_ranks = OnRanks(tuple(map(str, ranks)))
        shape = Shape(1, 1, nodes=len(ranks), constraint=on_ranks, exclusive=whole)
        job_id = self.flux.submit(shape, run_s=3600)
        self.world.advance_by(1)
        return job_id, lambda: self._end(job_id)

    def give_back(self, job: JobId, ranks: Sequence[Rank]) -> None:
        self.flux.give_back(job, ranks)

    def say_data_safe(self, job: JobId, rank: Rank) -> None:
        self.flux.say_data_safe(job, rank)

    def wish(self, wish: SlotsWish) -> None:
        self.flux.wish_slots(wish)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline_s = self.world.now_s + 60
        while not holds():
            if self.world.now_s > deadline_s:
                pytest.fail(f"waited a minute of the world's in vain: {what}")
            self.world.advance_by(0.05)


def _slot(rank: Rank) -> SlotName:
    return SlotName(f"slot{rank}")


@contextmanager
def a_simulated_instance() -> Iterator[FluxSubject]:
    yield SimulatedFluxSubject()
