"""The baselines: policies of other systems, run on the same engine for comparison.

Each is at least as good as its model, and better if that is simple: none of its calls fails, a job gets all its
nodes or none, in queue order, and a node that a waiting job can use is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import CloudState
from nodemanager.core.slots import NodeType
from nodemanager.whatif.cloud.cloud import ReplayMachine
from nodemanager.whatif.replay.engine import News, ReplayEngine
from nodemanager.whatif.replay.sched_simple import QueuedJob, choose_ranks, count_fits, wanted_count

FreeCapacity = dict[int, tuple[int, int, int]]  # by rank: free cores, free GPUs, running jobs

IDLE_TIMEOUT_S = 600.0
SCAN_S = 10.0
POLL_S = 60.0


@dataclass(slots=True)
class Baseline:
    """The common part: after an event, look at the queue at the next interval of ``every_s``."""

    every_s: ClassVar[float] = SCAN_S
    plans: int = 0
    engine: ReplayEngine = field(init=False)
    _due_s: float | None = None

    def begin(self, engine: ReplayEngine) -> None:
        self.engine = engine
        self.look_by(engine.now_s)

    def on_change(self) -> None:
        self.engine.news = News()  # baselines look at the current state, not at events
        self.look_by(math.ceil(self.engine.now_s / self.every_s) * self.every_s)

    def look_by(self, at_s: float) -> None:
        if self._due_s is None or at_s < self._due_s:
            self._due_s = max(at_s, self.engine.now_s)
            self.engine.at(self._due_s, self._look, self._due_s)

    def _look(self, due_s: float) -> None:
        if due_s == self._due_s:
            self._due_s = None
            self.plans += 1
            self.decide()

    def decide(self) -> None:
        raise NotImplementedError

    def why_waiting(self, jobs: Iterable[QueuedJob]) -> Mapping[JobId, str]:
        return {job.id: "never got its nodes within the limits" for job in jobs}

    # --- queries ---

    def idle_machines(self) -> list[tuple[ReplayMachine, float]]:
        """The online nodes without a job, each with the time since when."""
        ranks, ended = self.engine.scheduler.ranks, self.engine.last_ended_s
        return [
            (machine, max(machine.joined_s or 0.0, ended.get(rank, 0.0)))
            for rank, machine in self.engine.machines.items()
            if machine.online and ranks[rank].is_empty
        ]

    def free_capacity(self) -> FreeCapacity:
        """The free capacity of online and booting nodes, by rank."""
        ranks = self.engine.scheduler.ranks
        return {
            rank: (ranks[rank].cores_free, ranks[rank].gpus_free, ranks[rank].jobs)
            for rank, machine in self.engine.machines.items()
            if machine.state in (CloudState.PENDING, CloudState.RUNNING)
        }

    def vacant_ranks(self) -> list[int]:
        """The ranks without a node, those of the cheapest type first."""
        engine = self.engine
        ranks = [rank for rank in engine.type_of_rank if rank not in engine.machines]
        return sorted(ranks, key=lambda rank: (engine.type_of_rank[rank].price_per_hour, rank))

    def create(self, rank: int) -> ReplayMachine | None:
        """Create a node for a rank. If the cloud refuses, return None and look again after ``POLL_S``."""
        machine = self.engine.create(rank)
        if machine is None:
            self.look_by(self.engine.now_s + POLL_S)
        return machine

    def may_create(self, rank: int) -> bool:
        engine = self.engine
        price = engine.price_per_hour + engine.type_of_rank[rank].price_per_hour
        return len(engine.machines) < engine.setup.nodes_max and price <= engine.setup.price_per_hour_max


@dataclass(slots=True)
class FixedCluster(Baseline):
    """Keeps nodes on the same slots from the first job to the last, busy or not."""

    ranks: Sequence[int] = ()

    def decide(self) -> None:
        engine = self.engine
        if not engine.submitting and not engine.scheduler.queue and not engine.scheduler.running:
            for machine in tuple(engine.machines.values()):
                engine.destroy(machine)
            return
        for rank in self.ranks:
            if rank not in engine.machines and (not self.may_create(rank) or self.create(rank) is None):
                break


@dataclass(slots=True)
class IdleTimeout(Baseline):
    """Buys nodes for waiting jobs by first fit. Terminates a node after ten minutes without work, paid for or not.

    cluster-autoscaler (scale-down-unneeded-time), slurm-gcp (SuspendTime) and Ray (idle_timeout) do this.
    """

    timeout_s: float = IDLE_TIMEOUT_S

    def decide(self) -> None:
        needed = self._serve_queue()
        now_s = self.engine.now_s
        for machine, since_s in self.idle_machines():
            if machine.rank in needed:
                continue
            if now_s - since_s >= self.timeout_s:
                self.engine.destroy(machine)
            else:
                self.look_by(since_s + self.timeout_s + 0.001)  # just after it, whatever the rounding

    def _serve_queue(self) -> set[int]:
        """Place jobs in queue order and buy missing nodes, up to the first job that cannot be placed.

        Return the ranks that these jobs need.
        """
        free = self.free_capacity()
        needed: set[int] = set()
        vacant = iter(self.vacant_ranks())
        for job in self.engine.scheduler.queue:
            ranks = self._place(job.shape, free, vacant)
            if ranks is None:
                break
            needed |= ranks
        return needed

    def _place(self, shape: Shape, free: FreeCapacity, vacant: Iterable[int]) -> set[int] | None:
        chosen = choose_ranks(shape, free)
        if chosen is None:
            bought = self._buy(shape, free, vacant)
            chosen = choose_ranks(shape, free) if bought else None
        if chosen is None:
            return None
        want, _ = wanted_count(shape)
        for rank in sorted(chosen, key=lambda rank: (-free[rank][0], -free[rank][1], rank)):
            cores, gpus, jobs = free[rank]
            fits = min(want, count_fits(shape, cores, gpus, whole=jobs == 0))
            want -= fits
            slots = fits if shape.nodes is None else shape.slots
            left = (
                (0, 0)
                if shape.exclusive
                else (cores - slots * shape.cores_per_slot, gpus - slots * shape.gpus_per_slot)
            )
            free[rank] = (*left, jobs + 1)
        return set(chosen)

    def _buy(self, shape: Shape, free: FreeCapacity, vacant: Iterable[int]) -> bool:
        """Buy the nodes that a job is missing. Buy none, and return False, if it cannot have them all."""
        want, _ = wanted_count(shape)
        short = want - sum(count_fits(shape, cores, gpus, whole=jobs == 0) for cores, gpus, jobs in free.values())
        engine, chosen = self.engine, []
        price, nodes = engine.price_per_hour, len(engine.machines)
        for rank in vacant:
            node_type = engine.type_of_rank[rank]
            fits = _count_fits_on(engine, shape, rank, node_type)
            if not fits:
                continue
            price, nodes = price + node_type.price_per_hour, nodes + 1
            if nodes > engine.setup.nodes_max or price > engine.setup.price_per_hour_max:
                return False
            chosen.append(rank)
            short -= fits
            if short <= 0:
                break
        if short > 0:
            return False
        for rank in chosen:
            if self.create(rank) is None:
                return False
            node_type = engine.type_of_rank[rank]
            free[rank] = (node_type.cores, node_type.gpus, 0)
        return True


@dataclass(slots=True)
class ArvadosWishlist(Baseline):
    """The Arvados node manager: each waiting job requests nodes of the cheapest type that fits it.

    If more nodes are requested than are not busy, it buys the difference. A node that is not requested is
    terminated in its shutdown window: minutes 54 to 59 of each hour since its creation (``shutdown_windows = 54, 5,
    1``).
    """

    every_s: ClassVar[float] = POLL_S
    opens_s: float = 54 * 60.0
    open_s: float = 5 * 60.0
    shut_s: float = 60.0

    def decide(self) -> None:
        wished = self._wishes()
        engine = self.engine
        available: dict[str, int] = {}
        for rank, machine in engine.machines.items():
            if machine.state in (CloudState.PENDING, CloudState.RUNNING) and engine.scheduler.ranks[rank].is_empty:
                available[machine.node_type.name] = available.get(machine.node_type.name, 0) + 1
        for rank in self.vacant_ranks() if wished else ():
            name = engine.type_of_rank[rank].name
            if wished.get(name, 0) > available.get(name, 0):
                if not self.may_create(rank) or self.create(rank) is None:
                    break
                available[name] = available.get(name, 0) + 1
        self._shut_down(wished, available)

    def _wishes(self) -> dict[str, int]:
        """The number of nodes requested by type, in queue order, at most ``nodes_max`` in all."""
        wished: dict[str, int] = {}
        left = self.engine.setup.nodes_max
        for job in self.engine.scheduler.queue:
            node_type = self._size_for(job.shape)
            if node_type is None or left <= 0:
                break
            nodes = _nodes_for(job.shape, node_type)
            if nodes <= left:
                wished[node_type.name] = wished.get(node_type.name, 0) + nodes
                left -= nodes
        return wished

    def _size_for(self, shape: Shape) -> NodeType | None:
        engine = self.engine
        for node_type in sorted(engine.setup.node_types, key=lambda it: it.price_per_hour):
            rank = next(rank for rank, of_type in engine.type_of_rank.items() if of_type is node_type)
            if _count_fits_on(engine, shape, rank, node_type):
                return node_type
        return None

    def _shut_down(self, wished: Mapping[str, int], available: dict[str, int]) -> None:
        cycle_s = self.opens_s + self.open_s + self.shut_s
        for machine, _ in self.idle_machines():
            name = machine.node_type.name
            into_s = (self.engine.now_s - machine.created_s) % cycle_s
            if not self.opens_s <= into_s < self.opens_s + self.open_s:
                self.look_by(self.engine.now_s + (self.opens_s - into_s) % cycle_s + 0.001)
            elif available.get(name, 0) > wished.get(name, 0):
                available[name] -= 1
                self.engine.destroy(machine)


def _count_fits_on(engine: ReplayEngine, shape: Shape, rank: int, node_type: NodeType) -> int:
    """How many of the shape's nodes or slots would fit on a new node at the rank."""
    if not engine.scheduler.matches_constraint(shape, rank):
        return 0
    return count_fits(shape, node_type.cores, node_type.gpus, whole=True)


def _nodes_for(shape: Shape, node_type: NodeType) -> int:
    want, _ = wanted_count(shape)
    return math.ceil(want / count_fits(shape, node_type.cores, node_type.gpus, whole=True))


BASELINES: Mapping[str, Callable[[Sequence[int]], Baseline]] = {
    "fixed": lambda ranks: FixedCluster(ranks=ranks),
    "idle-timeout": lambda _: IdleTimeout(),
    "arvados": lambda _: ArvadosWishlist(),
}
