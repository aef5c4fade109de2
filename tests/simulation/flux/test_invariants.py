"""Random sequences of everything that may happen to the simulated Flux: its invariants hold after each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import ANYWHERE, HasProperty, JobId, Shape
from nodemanager.core.notation import parse_idset
from nodemanager.core.ports import FluxError
from nodemanager.core.slots import Rank, SlotName
from nodemanager.simulation.flux.brokers import ResourceEvent
from nodemanager.simulation.flux.instance import JournalFollower
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.world import World
from tests.simulation.fleets import CLOUD, GPU, small_instance

# The events that may follow each event of one job (RFC 21); None is the start.
FOLLOWS: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"submit"}),
    "submit": frozenset({"dependency-add", "validate"}),
    "dependency-add": frozenset({"dependency-add", "validate"}),
    "validate": frozenset({"depend", "dependency-remove", "urgency", "exception"}),
    "dependency-remove": frozenset({"dependency-remove", "depend", "urgency", "exception"}),
    "depend": frozenset({"priority"}),
    "priority": frozenset({"urgency", "flux-restart", "annotations", "exception"}),
    "urgency": frozenset({"urgency", "priority", "dependency-remove", "depend", "exception"}),
    "flux-restart": frozenset({"priority"}),
    "annotations": frozenset({"alloc"}),
    "alloc": frozenset({"start", "exception"}),
    "start": frozenset({"finish", "exception"}),
    "exception": frozenset({"finish", "release", "clean"}),
    "finish": frozenset({"release"}),
    "release": frozenset({"free"}),
    "free": frozenset({"clean"}),
    "clean": frozenset(),
}

SLOTS = (*CLOUD.slots, *GPU.slots)
CORES = {Rank(rank): (4 if rank <= 4 else 8) for rank in range(1, 7)}

slots = st.sampled_from(SLOTS)
ranks = st.integers(1, len(SLOTS)).map(Rank)
shapes = st.builds(
    Shape,
    # Mostly jobs that fit: a waiting job at the head blocks everything else.
    slots=st.sampled_from([1, 1, 1, 2, 3]),
    cores_per_slot=st.sampled_from([1, 1, 2, 4, 5]),
    gpus_per_slot=st.sampled_from([0, 0, 0, 1]),
    nodes=st.sampled_from([None, None, 1, 2, 7]),
    exclusive=st.sampled_from([False, False, True]),
    constraint=st.sampled_from([ANYWHERE, ANYWHERE, HasProperty("small"), HasProperty("gpu")]),
)


class FluxLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(seed=1)
        self.flux = small_instance(self.world)
        self.last_event: dict[JobId, str] = {}
        self.drained: set[Rank] = set()
        self.queue: dict[JobId, object] = {}
        self.heard_of_it = False
        self._follow()
        SimulatedFluxWatch(self.flux).start(self._hear, self._lose_queue)

    def _follow(self) -> None:
        self.flux.follow(JournalFollower(self._on_job, self._on_resource, lambda _: None))

    def _on_job(self, event: JobEvent) -> None:
        before = self.last_event.get(event.job_id)
        assert event.name in FOLLOWS[before], f"{event.name} after {before}"
        self.last_event[event.job_id] = event.name
        if event.R is not None:
            assert not self.drained & _ranks_in(event.R), "a drained rank got a job"

    def _on_resource(self, event: ResourceEvent) -> None:
        pass

    def _hear(self, seen: object) -> None:
        if isinstance(seen, QueueSeen):
            if seen.complete:
                self.queue.clear()
                self.heard_of_it = True
            assert not seen.unreadable
            self.queue.update((job.id, job) for job in seen.jobs)
            for job_id in seen.ended:
                self.queue.pop(job_id, None)

    def _lose_queue(self, _why: str) -> None:
        self.heard_of_it = False

    # --- what may happen ---

    @initialize(joined=st.sets(slots, min_size=2))
    def begin_with_some_online(self, joined: set[SlotName]) -> None:
        for slot in sorted(joined):
            self.flux.broker_up(slot)
        self.world.advance_by(1.0)

    @rule(
        several=st.lists(shapes, min_size=1, max_size=4),
        run_s=st.sampled_from([0.0, 1.0, 20.0]),
        duration_s=st.sampled_from([0.0, 10.0]),
        urgency=st.sampled_from([16, 16, 20, 31, 0]),
        housekeeping_s=st.sampled_from([0.0, 5.0]),
        waits=st.sampled_from([False, False, False, True]),
    )
    def submit(
        self,
        several: list[Shape],
        run_s: float,
        duration_s: float,
        urgency: int,
        housekeeping_s: float,
        waits: bool,
    ) -> None:
        after = self.flux.active_jobs()[-2:] if waits else ()
        for shape in several:
            self.flux.submit(
                shape, duration_s, run_s=run_s, urgency=urgency, housekeeping_s=housekeeping_s, after=after
            )

    @rule(index=st.integers(0, 10))
    def cancel(self, index: int) -> None:
        if index < len(self.flux.active_jobs()):
            self.flux.cancel(self.flux.active_jobs()[index])

    @rule(index=st.integers(0, 10), urgency=st.sampled_from([0, 16, 31]))
    def change_urgency(self, index: int, urgency: int) -> None:
        if index < len(self.flux.active_jobs()):
            try:
                self.flux.set_urgency(self.flux.active_jobs()[index], urgency)
            except ValueError as refused:
                assert "not pending" in str(refused)  # noqa: PT017 - it may as well be accepted

    @rule(slot=slots)
    def join(self, slot: SlotName) -> None:
        self.flux.broker_up(slot)

    @rule(slot=slots, lost=st.booleans())
    def leave(self, slot: SlotName, lost: bool) -> None:
        self.flux.broker_down(slot, lost=lost)

    @rule(rank=ranks)
    def stop_broker(self, rank: Rank) -> None:
        self.flux.stop_broker(rank)

    @rule(rank=ranks)
    def drain(self, rank: Rank) -> None:
        self.flux.drain(rank, "why")
        self.drained.add(rank)

    @rule(rank=ranks)
    def undrain(self, rank: Rank) -> None:
        self.flux.undrain(rank)
        self.drained.discard(rank)

    @rule(stop=st.sampled_from([False, False, True]))
    def stop_or_start_the_queue(self, stop: bool) -> None:
        (self.flux.stop_queue if stop else self.flux.start_queue)()

    @rule(delay_s=st.sampled_from([0.001, 0.05, 1.0, 15.0]))
    def let_time_pass(self, delay_s: float) -> None:
        self.world.advance_by(delay_s)

    @rule()
    def restart(self) -> None:
        self.flux.restart(down_s=2.0, rejoin_s=3.0)
        with pytest.raises(FluxError):
            self._follow()
        self.world.advance_by(2.0)
        # The journal is read again, so the order of events is checked from each job's current state on.
        self.last_event = {event.job_id: event.name for event in self.flux.active_events()}
        self._follow()

    # --- what must hold ---

    @invariant()
    def no_core_is_held_twice(self) -> None:
        held: dict[int, int] = defaultdict(int)
        for _, grant in self.flux.held_grants():
            assert held[grant.rank] & grant.cores == 0
            held[grant.rank] |= grant.cores
        allocated = self.flux.sched_resource_status()["allocated"]
        assert _ranks_in(allocated) == {rank for rank, cores in held.items() if cores}

    @invariant()
    def what_is_free_and_what_is_held_make_the_whole(self) -> None:
        held: dict[int, int] = defaultdict(int)
        for _, grant in self.flux.held_grants():
            held[grant.rank] += grant.cores.bit_count()
        for seen in SimulatedFluxPort(self.flux, "anybody").ranks():
            assert seen.cores == CORES[seen.rank]
            assert seen.cores_free in (0, seen.cores - held[seen.rank])
            assert seen.allocated == (held[seen.rank] > 0)
            assert (seen.drain_reason is not None) == (seen.rank in self.drained)

    @invariant()
    def jobs_that_started_are_on_ranks_that_are_there(self) -> None:
        children = self.flux.overlay_health()["children"]
        there = {Rank(child["rank"]) for child in children if child["status"] == "full"}
        started = {job_id for job_id in self.flux.active_jobs() if self.last_event.get(job_id) == "start"}
        assert {grant.rank for job_id, grant in self.flux.held_grants() if job_id in started} <= there

    @invariant()
    def the_listener_knows_the_queue(self) -> None:
        before = None
        while before != (before := self.flux.active_jobs()):  # changes are delivered in batches of 10 ms
            self.world.advance_by(0.02)
        if self.heard_of_it:
            assert sorted(self.queue) == sorted(self.flux.active_jobs())


def _ranks_in(resources: Any) -> set[Rank]:
    return {Rank(rank) for entry in resources["execution"]["R_lite"] for rank in parse_idset(entry["rank"])}


TestFluxLife = FluxLife.TestCase
TestFluxLife.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
