"""The world of ``bench_load``, in a process of its own: what it costs and remembers is not the manager's.

It is asked by a pipe: for the journal's events up to a moment, and for what a port's call does. Replies of Flux go
as the JSON that Flux itself would send, to be parsed by the manager's process.
"""

from __future__ import annotations

import copyreg
import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from nodemanager.core.jobs import JobId, JobState, Shape
from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.slots import NodeType, Rank, Slot, SlotName, TypeName
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.brokers import ResourceEvent
from nodemanager.simulation.flux.instance import JournalFollower, SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.sched_simple import Pool
from nodemanager.simulation.time.world import World


def _proxy(of: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(of)


copyreg.pickle(MappingProxyType, lambda it: (_proxy, (dict(it),)))  # values have them, and the pipe is to take them

# The slots stay as they are here, and to write them down for every look took most of this process's time.
Pool.all_R = functools.cache(Pool.all_R)  # type: ignore[method-assign]

TOKEN = "bench"
UP_S, WORKS_S, BEGINS_S = 60.0, 5.0, 8.0  # until the nodes are up; with jobs; until the first of these may end
# Each fills a node of eight cores, in five ways.
SHAPES = (Shape(1, 8), Shape(2, 4), Shape(4, 2), Shape(8, 1), Shape(1, 8, nodes=1))
TOLD = frozenset({"submit", "alloc", "clean"})  # the manager's queue changes by these


@dataclass(frozen=True, slots=True)
class Load:
    """What is to happen: ``pending`` jobs wait all the time, each runs for ``run_s`` (from, to)."""

    node_types: tuple[NodeType, ...]
    cluster: str
    cluster_uuid: str
    nodes: int
    pending: int
    running: int
    run_s: tuple[float, float]


class LoadedWorld:
    """A Flux with jobs and a provider, asked by name."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._world = World(1)
        ranks = enumerate((slot, of.name) for of in load.node_types for slot in of.slots)
        slots = [Slot(slot, Rank(rank + 1), name) for rank, (slot, name) in ranks]
        self._flux = SimulatedFlux(self._world, load.node_types, slots)
        self._provider = SimulatedProvider(
            self._world,
            CloudFaults(boot_delay_s=(20.0, 40.0), user_data_s=(0.0, 5.0)),
            on_boot=self._flux.on_node_booted,
            on_end=self._flux.on_node_ended,
        )
        self._port = SimulatedFluxPort(self._flux, TOKEN, load.cluster_uuid)
        self._cloud = self._provider.port(load.cluster, load.cluster_uuid)
        self._draws = self._world.draws_for("load")
        self._lines: list[str] = []
        self._stirred = 0
        self._resources: Mapping[str, object] | None = None  # as they are since the ranks' journal last spoke
        self._told_ends: Mapping[Rank, float] = {}
        self._submitted = 0
        self.counts: Counter[str] = Counter()
        self._stand_up()
        least_s, most_s = load.run_s
        for _ in range(load.running):  # at work for a while already, so that they end one after the other
            self._submit((BEGINS_S, BEGINS_S + (least_s + most_s) / 2))
        for _ in range(load.pending):
            self._submit(load.run_s)
        self._world.advance_by(WORKS_S)

    def answer(self, name: str, arguments: Sequence[Any]) -> Any:
        """What a call gives; raises what it raises."""
        room, _, method = name.partition(".")
        match room:
            case "world":
                return getattr(self, method)(*arguments)
            case "flux":
                return getattr(self._port, method)(*arguments)
            case "cloud":
                return getattr(self._cloud, method)(*arguments)
            case _:
                raise LookupError(name)

    def _stand_up(self) -> None:
        """All nodes as an earlier manager left them, and the slots' leases."""
        of = self._load.node_types[0]
        wall_at = self._world.wall_at()
        launches = [
            Launch(LaunchId(f"{slot}-1"), slot, Rank(rank), of.name, f"{rank:032x}", wall_at)
            for rank, slot in enumerate(of.slots[: self._load.nodes], 1)
        ]
        self._port.claim()
        self._port.record(launches)
        for launch in launches:
            self._cloud.create(launch, of)
        self._world.advance_by(UP_S)

    # --- asked for ---

    def now_s(self) -> float:
        return self._world.now_s

    def follow(self) -> list[str]:
        """Begin to keep the journal: every active job's events so far."""
        self._flux.follow(JournalFollower(self._job_said, self._resource_said, lambda _why: None))
        return [_line(event) for event in self._flux.active_events()]

    def advance(self, moments_s: Sequence[float]) -> list[tuple[float, list[str], int]]:
        """Go on; for each moment the journal's lines until then, and how often the ranks' journal spoke."""
        said = []
        for to_s in moments_s:
            self._world.advance_to(to_s)
            said.append((to_s, self._lines, self._stirred))
            self._lines, self._stirred = [], 0
        return said

    def look(self) -> str:
        """The replies that a look at the ranks is read off."""
        flux = self._flux
        flux.check_reachable()
        if self._resources is None:
            self._resources = flux.resource_status()
        return json.dumps(
            {
                "resources": self._resources,
                "scheduler": flux.sched_resource_status(),
                "ended": self._newly_ended(),
                "stats": flux.job_manager_stats(),
                "jobs_ended": flux.jobs_ended,
            }
        )

    def division(self) -> Mapping[SlotName, TypeName]:
        return self._flux.slot_types

    def _newly_ended(self) -> Mapping[Rank, float]:
        """As the port asks for it: what ended since it asked last."""
        told, self._told_ends = self._told_ends, dict(self._flux.last_job_ended_at())
        return {rank: at for rank, at in self._told_ends.items() if told.get(rank) != at}

    def standing(self) -> dict[str, int]:
        """The truth: jobs by state, nodes, and what happened so far."""
        jobs = Counter(str(self._flux.job_state(job)) for job in self._flux.active_jobs())
        waits = jobs[str(JobState.SCHED)]
        return {**self.counts, "pending": waits, "nodes": len(self._provider.nodes())}

    # --- what happens ---

    def _submit(self, run_s: tuple[float, float]) -> None:
        shape = SHAPES[self._submitted % len(SHAPES)]
        self._submitted += 1
        self._flux.submit(shape, 3600.0, run_s=self._draws.uniform(*run_s))

    def _job_said(self, event: JobEvent) -> None:
        self.counts["journal"] += 1
        self.counts["changes"] += event.name in TOLD
        self._lines.append(_line(event))
        if event.name == "clean":
            self._submit(self._load.run_s)

    def _resource_said(self, _event: ResourceEvent) -> None:
        self._stirred += 1
        self._resources = None


def _line(event: JobEvent) -> str:
    return json.dumps(asdict(event))


def event_of(line: str) -> JobEvent:
    """As the manager's process reads it."""
    said: Mapping[str, Any] = json.loads(line)
    return JobEvent(**{**said, "job_id": JobId(said["job_id"])})


def serve(pipe: Connection, load: Load) -> None:
    """Answer until told to end."""
    world = LoadedWorld(load)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        try:
            pipe.send((True, world.answer(*asked)))
        except Exception as error:  # noqa: BLE001 - whatever a port raises, its caller is to have
            pipe.send((False, f"{type(error).__name__}: {error}"))
