"""The truth about upkeep in a run: where data of ended jobs still is, and which ranks running jobs gave back.

It follows the simulated jobs' own events, and asks no code of the planner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.nodes import Launch, LaunchId, ProviderId
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.time.world import World

# When the site says that the data of a job is safe: at the end of its tasks, late, or never by itself.
SAID_AT_ONCE, SAID_LATE = 0.5, 0.35
LATE_S = (1.0, 60.0)


@dataclass
class UpkeepTruth:
    """``with_data``: the node types whose data is awaited. ``require`` raises if an invariant is broken."""

    world: World
    flux: SimulatedFlux
    with_data: frozenset[TypeName]
    prepaid_max: int
    require: Callable[[bool, str], None]
    gave_back: set[tuple[JobId, Rank]] = field(default_factory=set)
    prepaid: set[LaunchId] = field(default_factory=set)
    used_again: int = 0  # how many jobs gave a slot back on which a node was made later
    not_refilled: int = 0  # how often a dear node was kept for no further job because of a cheaper type
    said_late: int = 0  # how often the data of an ended job was reported as safe
    _used_again: set[JobId] = field(default_factory=set)
    _unsafe: dict[tuple[JobId, Rank], tuple[ProviderId, float]] = field(default_factory=dict)
    _runs_on: dict[JobId, dict[Rank, ProviderId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slot_of: dict[Rank, SlotName] = {rank: slot for slot, rank in self.flux.rank_of.items()}
        if self.with_data:
            self.flux.observe_jobs(self._follow)

    # --- data ---

    def _follow(self, event: JobEvent) -> None:
        if event.name == "start":
            self._runs_on[event.job_id] = dict(self._machines_with_data(event.job_id))
        elif event.name in ("finish", "clean"):
            on = self._runs_on.pop(event.job_id, None)
            if on:
                self._end(event.job_id, on)

    def _machines_with_data(self, job: JobId) -> Iterator[tuple[Rank, ProviderId]]:
        for rank in self._ranks_of(job):
            slot = self._slot_of.get(rank)
            machine = self.flux.machine_of(slot) if slot is not None else None
            if slot is not None and machine is not None and self.flux.slot_types[slot] in self.with_data:
                yield rank, ProviderId(machine)

    def _end(self, job: JobId, on: dict[Rank, ProviderId]) -> None:
        draws = Random(f"{self.world.seed}/data of {job}")
        way = draws.random()
        for rank, machine in on.items():
            if way < SAID_AT_ONCE:
                self.flux.say_data_safe(job, rank)
                continue
            self._unsafe[job, rank] = machine, self.world.wall_at()
            if way < SAID_AT_ONCE + SAID_LATE:
                self.world.after(draws.uniform(*LATE_S), lambda rank=rank: self._say(job, rank))  # type: ignore[misc]

    def _say(self, job: JobId, rank: Rank) -> None:
        if self._unsafe.pop((job, rank), None) is not None:
            self.said_late += 1
        self.flux.say_data_safe(job, rank)

    def say_all(self) -> None:
        """An operator copies all data that is left, and says so."""
        for rank, jobs in self.flux.unsafe_data().items():
            for job in jobs:
                self._say(job, rank)

    def check_data(self, provider_id: ProviderId, launch: Launch | None) -> None:
        """Before a node is destroyed: the data of its jobs must be safe, or an operator must have given it up."""
        if launch is None or launch.id in self.flux.steering.retirements:
            return
        # Not known: what ran on a machine that joined as another node's rank, and, if the clock was set back since
        # the launch, which of the jobs that ended before it ran on this node.
        there = [
            it
            for it, (on, ended_at) in self._unsafe.items()
            if on == provider_id and it[1] == launch.rank and ended_at >= launch.requested_at
        ]
        unsafe = [job for job, rank in there if (job, rank) not in self.gave_back]
        self.require(not unsafe, f"{provider_id} was to be destroyed, with data of {unsafe}")

    # --- ranks given back ---

    def give_back(self, job: JobId, share: float) -> None:
        """A job gives back some of its ranks, but not the first, which the others are connected through."""
        leaves = sorted(self._ranks_of(job))[1:]
        given = leaves[: 1 + int(share * len(leaves))]
        self.flux.give_back(job, given)
        self.gave_back |= {(job, rank) for rank in given}

    def holds(self, rank: Rank) -> list[JobId]:
        """The jobs that need a rank: all that hold it and have not given it back."""
        holders = (job for job, grant in self.flux.held_grants() if grant.rank == rank)
        return [job for job in holders if (job, rank) not in self.gave_back]

    def check_slot(self, rank: Rank) -> None:
        """Before a node is made: no running job may hold its slot, also if the job has given it back."""
        gave = {job for job, given in self.gave_back if given == rank}
        holder = [job for job, grant in self.flux.held_grants() if grant.rank == rank and job in gave]
        running = [job for job in holder if self.flux.job_state(job) is JobState.RUN]
        self.require(not running, f"a node was to be made for rank {rank}, which {running} hold and gave back")
        self.used_again += len(gave - self._used_again)
        self._used_again |= gave

    def _ranks_of(self, job: JobId) -> list[Rank]:
        return [Rank(grant.rank) for holder, grant in self.flux.held_grants() if holder == job]

    # --- prepaid nodes ---

    def note_create(self, launch: Launch, standing: list[LaunchId]) -> None:
        """Before a node is made as a prepaid one: at most so many may exist."""
        if launch.prepaid:
            self.prepaid.add(launch.id)
            count = len({launch.id, *standing} & self.prepaid)
            self.require(count <= self.prepaid_max, f"{count} prepaid nodes, of {self.prepaid_max}")
