"""The baselines: policies of other systems, run on the same engine for comparison.

Each is at least as good as its model, and better if that is simple: none of its calls fails, a job gets all its
nodes or none, in queue order, and a node that a waiting job can use is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import CloudState
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.planner.seating import pieces_in_theory, pieces_of, pieces_that_fit
from nodemanager.whatif.cloud.cloud import ReplayMachine
from nodemanager.whatif.replay.engine import News, ReplayEngine
from nodemanager.whatif.replay.sched_simple import (
    FreeRanks,
    QueuedJob,
    RankCapacity,
    add_rank,
    find_fit,
    remove_rank,
)

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
    _by_price: Sequence[int] = ()  # all ranks, those of the cheapest type first
    _booting: list[ReplayMachine] = field(default_factory=list)

    def begin(self, engine: ReplayEngine) -> None:
        self.engine = engine
        prices = {rank: node_type.price_per_hour for rank, node_type in engine.type_of_rank.items()}
        self._by_price = sorted(prices, key=lambda rank: (prices[rank], rank))
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

    def idle_machines(self) -> list[ReplayMachine]:
        """The online nodes without a job, in the order in which they were created."""
        machines, scheduler = self.engine.machines, self.engine.scheduler
        whole = dict.fromkeys((node_type.cores, node_type.gpus) for node_type in self.engine.setup.node_types)
        idle = [rank for of in whole for rank in scheduler.free.get(of, ()) if scheduler.ranks[rank].is_empty]
        return sorted((machines[rank] for rank in idle), key=lambda machine: machine.provider_id)

    def booting_machines(self) -> list[ReplayMachine]:
        self._booting = [machine for machine in self._booting if machine.state is CloudState.PENDING]
        return self._booting

    def idle_since_s(self, machine: ReplayMachine) -> float:
        return max(machine.joined_s or 0.0, self.engine.last_ended_s.get(machine.rank, 0.0))

    def vacant_ranks(self) -> Iterator[int]:
        """The ranks without a node, those of the cheapest type first."""
        machines = self.engine.machines
        return (rank for rank in self._by_price if rank not in machines)

    def create(self, rank: int) -> ReplayMachine | None:
        """Create a node for a rank. If the cloud refuses, return None and look again after ``POLL_S``."""
        machine = self.engine.create(rank)
        if machine is None:
            self.look_by(self.engine.now_s + POLL_S)
        else:
            self._booting.append(machine)
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
        needed = self._serve_queue() if self.engine.scheduler.queue else {}
        now_s, next_s = self.engine.now_s, math.inf
        for machine in self.idle_machines():
            if machine.rank in needed:
                continue
            since_s = self.idle_since_s(machine)
            if now_s - since_s >= self.timeout_s:
                self.engine.destroy(machine)
            else:
                next_s = min(next_s, since_s + self.timeout_s + 0.001)  # just after it, whatever the rounding
        if next_s < math.inf:
            self.look_by(next_s)

    def _serve_queue(self) -> Container[int]:
        """Place jobs in queue order and buy missing nodes, up to the first job that cannot be placed.

        Return the ranks that these jobs need.
        """
        room = _Room(self.engine.scheduler.ranks, {})
        for of, ranks in self.engine.scheduler.free.items():
            room.free[of] = ranks.copy()
        for machine in self.booting_machines():
            room.add(machine.rank)
        vacant = self.vacant_ranks()
        for job in self.engine.scheduler.queue:
            if not room.place(job.shape) and not (self._buy(job.shape, room, vacant) and room.place(job.shape)):
                break
        return room.left

    def _buy(self, shape: Shape, room: _Room, vacant: Iterable[int]) -> bool:
        """Buy the nodes that a job is missing. Buy none, and return False, if it cannot have them all."""
        want = pieces_of(shape)
        short = want - room.count_fits(shape)
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
            room.add(rank)
        return True


@dataclass(slots=True)
class _Room:
    """The free capacity of online and booting nodes, less what the jobs placed so far take."""

    ranks: Mapping[int, RankCapacity]
    free: FreeRanks
    left: dict[int, tuple[int, int]] = field(default_factory=dict)  # the free capacity of ranks with such jobs

    def add(self, rank: int) -> None:
        """Add a booting node."""
        add_rank(self.free, self._capacity(rank), rank)

    def place(self, shape: Shape) -> bool:
        """Place a job by worst fit, whatever its constraint; False if it does not fit."""
        grants = find_fit(shape, self.free, self._is_whole if shape.exclusive else None)
        for grant in grants or ():
            cores, gpus = self._capacity(grant.rank)
            remove_rank(self.free, (cores, gpus), grant.rank)
            self.left[grant.rank] = left = cores - grant.cores, gpus - grant.gpus
            add_rank(self.free, left, grant.rank)
        return grants is not None

    def count_fits(self, shape: Shape) -> int:
        """How many of the shape's nodes or slots fit."""
        found = 0
        for of, ranks in self.free.items():
            count = sum(map(self._is_whole, ranks)) if shape.exclusive else len(ranks)
            found += count * pieces_that_fit(shape, *of, is_empty=True)
        return found

    def _capacity(self, rank: int) -> tuple[int, int]:
        return self.left.get(rank) or (self.ranks[rank].cores_free, self.ranks[rank].gpus_free)

    def _is_whole(self, rank: int) -> bool:
        return rank not in self.left and self.ranks[rank].is_empty


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
    _sizes: dict[Shape, NodeType | None] = field(default_factory=dict)

    def decide(self) -> None:
        wished = self._wishes()
        engine, idle = self.engine, self.idle_machines()
        available = Counter(machine.node_type.name for machine in (*self.booting_machines(), *idle))
        for rank in self.vacant_ranks() if wished else ():
            name = engine.type_of_rank[rank].name
            if wished.get(name, 0) > available[name]:
                if not self.may_create(rank) or self.create(rank) is None:
                    break
                available[name] += 1
        self._shut_down(idle, wished, available)

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
        if shape not in self._sizes:
            engine = self.engine
            first_ranks = {node_type.name: rank for rank, node_type in reversed(engine.type_of_rank.items())}
            types = sorted(engine.setup.node_types, key=lambda it: it.price_per_hour)
            fitting = (it for it in types if _count_fits_on(engine, shape, first_ranks[it.name], it))
            self._sizes[shape] = next(fitting, None)
        return self._sizes[shape]

    def _shut_down(
        self, idle: Iterable[ReplayMachine], wished: Mapping[str, int], available: Counter[TypeName]
    ) -> None:
        cycle_s = self.opens_s + self.open_s + self.shut_s
        now_s, next_s = self.engine.now_s, math.inf
        for machine in idle:
            name = machine.node_type.name
            into_s = (now_s - machine.created_s) % cycle_s
            if not self.opens_s <= into_s < self.opens_s + self.open_s:
                next_s = min(next_s, now_s + (self.opens_s - into_s) % cycle_s + 0.001)
            elif available[name] > wished.get(name, 0):
                available[name] -= 1
                self.engine.destroy(machine)
        if next_s < math.inf:
            self.look_by(next_s)


def _count_fits_on(engine: ReplayEngine, shape: Shape, rank: int, node_type: NodeType) -> int:
    """How many of the shape's nodes or slots would fit on a new node at the rank."""
    if not engine.scheduler.matches_constraint(shape, rank):
        return 0
    return pieces_in_theory(shape, node_type.cores, node_type.gpus)


def _nodes_for(shape: Shape, node_type: NodeType) -> int:
    want = pieces_of(shape)
    return math.ceil(want / pieces_in_theory(shape, node_type.cores, node_type.gpus))


BASELINES: Mapping[str, Callable[[Sequence[int]], Baseline]] = {
    "fixed": lambda ranks: FixedCluster(ranks=ranks),
    "idle-timeout": lambda _: IdleTimeout(),
    "arvados": lambda _: ArvadosWishlist(),
}
