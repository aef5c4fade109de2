"""What must never be, checked against the truth of a world: after every step, and just before every call."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeVar

from nodemanager.core.drains import is_our_drain
from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import CloudNode, CloudState, FluxRank, Launch, LaunchId, Leftover, ProviderId
from nodemanager.core.ports import CloudPort
from nodemanager.core.slots import NodeType, Rank
from nodemanager.planner.cost import billing
from nodemanager.planner.observe.node_health import KILLS_MAX
from nodemanager.planner.state.policy import Policy
from nodemanager.simulation.cloud.provider import BillLine, SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.time.world import World

T = TypeVar("T")


class Violation(AssertionError):
    """A rule was broken."""


@dataclass
class SubmittedJobs:
    """The jobs of a run and what they ask for: the truth, beside what the manager makes of it."""

    shapes: dict[JobId, Shape] = field(default_factory=dict)
    held: dict[JobId, float] = field(default_factory=dict)  # since when
    successors: dict[JobId, JobId] = field(default_factory=dict)  # of jobs that were submitted once more


@dataclass
class Invariants:
    """The rules of one run, beside the world that they are checked against."""

    flux: SimulatedFlux
    provider: SimulatedProvider
    policy: Policy
    creates: int = 0
    destroys: int = 0
    nodes_peak: int = 0
    jobs: SubmittedJobs = field(default_factory=SubmittedJobs)
    planted: set[ProviderId] = field(default_factory=set)  # not by the manager: beyond its limits
    # Those that ended, and were listed no more by the time that a process which had never seen them looked.
    unseen_launches: set[LaunchId] = field(default_factory=set)
    destroyed: set[ProviderId] = field(default_factory=set)
    _checked: int = -1

    def check(self) -> None:
        """After every step of the world."""
        if self.provider.changes == self._checked:
            return
        self._checked = self.provider.changes
        standing = [node for node in self.our_nodes() if node.provider_id not in self.planted]
        self.nodes_peak = max(self.nodes_peak, len(standing))
        self.require(len(standing) <= self.policy.nodes_max, f"{len(standing)} nodes, above nodes_max")
        types = [node.identity.type_name for node in standing if node.identity is not None]
        price = sum((self.policy.types[name].price_per_hour for name in types), Decimal(0))
        self.require(price <= self.policy.price_per_hour_max, f"{price} an hour, above price_per_hour_max")
        slots = Counter(node.identity.slot for node in standing if node.identity is not None)
        twice = [slot for slot, count in slots.items() if count > 1]
        self.require(not twice, f"two nodes on a slot: {twice}")

    def check_create(self, launch: Launch) -> None:
        """Just before a create: its lease is on record."""
        self.creates += 1
        recorded = self.flux.leases.get(launch.slot)
        held = recorded is not None and recorded.id == launch.id
        of_type = self.flux.slot_types[launch.slot]
        self.require(of_type == launch.type_name, f"create of a {launch.type_name} for {launch.slot}, a {of_type}")
        self.require(held, f"create of {launch.id} without its lease on record")

    def check_destroy(self, provider_id: ProviderId) -> None:
        """Just before a destroy: it is ours, and nothing runs on it."""
        self.destroys += 1
        self.destroyed.add(provider_id)
        node = next((node for node in self.provider.nodes() if node.provider_id == provider_id), None)
        if node is None:
            return
        self.require(self.is_ours(node), f"{provider_id} is not ours, and was to be destroyed")
        if node.identity is not None and self.flux.machine_of(node.identity.slot) == provider_id:
            self.check_stop(self.flux.rank_of[node.identity.slot])

    def check_stop(self, rank: Rank) -> None:
        """Just before a broker or its machine is stopped: its rank is idle, or away."""
        busy = {grant.rank for _, grant in self.flux.held_grants()}
        self.require(not (self.flux.online(rank) and rank in busy), f"rank {rank} is busy, and was to be stopped")

    def check_requeue(self, job: JobId) -> None:
        """Just before a job is submitted once more: it has not been."""
        again = self.jobs.successors.get(job)
        self.require(again is None, f"job {job} was to be submitted once more, and was: as {again}")

    def note_requeue(self, job: JobId, again: JobId) -> None:
        self.jobs.successors[job] = again
        self.jobs.shapes[again] = self.jobs.shapes[job]

    def check_kill(self, rank: Rank, told: int) -> None:
        """Just before what runs after a job is told to end: it was not so often that it is vain."""
        self.require(told < KILLS_MAX, f"what runs on rank {rank} was to be killed for the {told + 1}th time")

    def check_undrain(self, rank: Rank, before: str | None) -> None:
        """Right after an undrain: a drain that was not ours stands as it did."""
        foreign = before is not None and not is_our_drain(before)
        self.require(
            not foreign or self.flux.drain_reason(rank) == before, f"rank {rank}: a foreign drain was undone"
        )

    def check_forget(
        self, launch: Launch, lists: Sequence[frozenset[ProviderId]], seen: Collection[LaunchId]
    ) -> None:
        """Just before a lease is ended: its node is gone, or enough lists in a row have lacked it."""
        recorded = self.flux.leases.get(launch.slot)
        if recorded is None or recorded.id != launch.id:
            return
        if launch.id not in seen and launch.id not in self.flux.spend.counted:
            self.unseen_launches.add(launch.id)
        for node in self.our_nodes():
            if node.identity is not None and node.identity.launch == launch.id:
                lacking = len(lists) >= self.policy.absences and not any(node.provider_id in it for it in lists)
                self.require(lacking, f"the lease of {launch.id} was to be ended, and {node.provider_id} stands")

    def our_nodes(self) -> list[CloudNode]:
        return [node for node in self.provider.nodes() if self.is_ours(node)]

    def is_ours(self, node: CloudNode) -> bool:
        return node.identity is not None and node.identity.cluster_uuid == self.policy.cluster_uuid

    def true_cost(
        self,
        now_s: float,
        counts: Callable[[BillLine], bool] = lambda _: True,
        *,
        come_s: float = 0.0,
        gone_s: float = 0.0,
    ) -> Decimal:
        """What our nodes that count have cost so far, in truth; or as if each had come and gone so much later."""
        cost = Decimal(0)
        for line in self.provider.bill():
            if line.cluster_uuid == self.policy.cluster_uuid and line.type_name is not None and counts(line):
                until_s = now_s if line.to_s is None else min(now_s, line.to_s + gone_s)
                cost += billing.cost(self.policy.types[line.type_name], until_s - line.from_s - come_s)
        return cost

    @staticmethod
    def require(truth: bool, broken: str) -> None:
        if not truth:
            raise Violation(broken)


class Witness:
    """What one process of the service was answered, and when. ``step`` is called around each of its calls."""

    def __init__(self, world: World, absences: int, step: Callable[[], None]) -> None:
        self.step = step
        self.answered_s: dict[str, float] = {}
        self.lists: deque[frozenset[ProviderId]] = deque(maxlen=absences)
        self.listed: tuple[CloudNode, ...] = ()
        self.knows_leases = False  # it has once held the instance
        self.seen_launches: set[LaunchId] = set()  # whose nodes it was shown since it knows the leases
        self.listed_s = 0.0
        self.kill_counts: dict[tuple[float, ...], int] = {}  # how often which housekeeping was told to end
        self._world = world

    def note_answer(self, source: str) -> None:
        self.answered_s[source] = self._world.now_s

    def note_list(self, nodes: tuple[CloudNode, ...]) -> None:
        self.note_answer("cloud")
        self.listed, self.listed_s = nodes, self._world.now_s
        standing = (node.provider_id for node in nodes if node.state is not CloudState.TERMINATED)
        self.lists.append(frozenset(standing))
        self.note_nodes(nodes)

    def note_nodes(self, nodes: Iterable[CloudNode]) -> None:
        if self.knows_leases:
            self.seen_launches |= {node.identity.launch for node in nodes if node.identity is not None}


@dataclass
class WatchedCloud:
    """A cloud port that holds every call of the manager to the rules."""

    port: CloudPort
    invariants: Invariants
    witness: Witness

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        self.witness.step()
        self.invariants.check_create(launch)
        node = self.port.create(launch, node_type)
        self.witness.note_nodes([node])
        self.witness.step()
        return node

    def list_nodes(self) -> tuple[CloudNode, ...]:
        nodes = self.port.list_nodes()
        self.witness.note_list(nodes)
        return nodes

    def destroy(self, provider_id: ProviderId) -> None:
        self.witness.step()
        self.invariants.check_destroy(provider_id)
        self.port.destroy(provider_id)
        self.witness.step()

    def sweep(self) -> tuple[Leftover, ...]:
        return self.port.sweep()


class WatchedFlux(SimulatedFluxPort):
    """A Flux port that holds its dangerous calls to the rules."""

    def __init__(self, flux: SimulatedFlux, token: str, rules: Invariants, witness: Witness) -> None:
        super().__init__(flux, token, rules.policy.cluster_uuid)
        self._rules = rules
        self._witness = witness

    def stop_broker(self, rank: Rank) -> None:
        def check_and_stop() -> None:
            self._rules.check_stop(rank)
            self._flux.stop_broker(rank)

        self._change(check_and_stop)

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        which = (rank, *self._flux.housekeeping_since(rank))
        told = self._witness.kill_counts.get(which, 0)

        def check_and_kill() -> None:
            self._rules.check_kill(rank, told)
            self._flux.kill_housekeeping(rank, signal)

        self._change(check_and_kill)
        self._witness.kill_counts[which] = told + 1  # one whose reply is lost does not count, for us neither

    def requeue(self, job: JobId) -> JobId:
        def check_and_requeue() -> JobId:
            self._rules.check_requeue(job)
            again = self._flux.requeue(job)
            self._rules.note_requeue(job, again)
            return again

        return self._change(check_and_requeue)

    def undrain(self, rank: Rank) -> None:
        def undrain_and_check() -> None:
            before = self._flux.drain_reason(rank)
            self._undrain(rank)
            self._rules.check_undrain(rank, before)

        self._change(undrain_and_check)

    def forget(self, launch: Launch) -> None:
        def check_and_forget() -> None:
            self._rules.check_forget(launch, self._witness.lists, self._witness.seen_launches)
            self._forget(launch)

        self._change(check_and_forget)

    def _read_ranks(self) -> tuple[FluxRank, ...]:
        self._witness.note_answer("flux")
        return super()._read_ranks()

    def _call(self, action: Callable[[], T]) -> T:
        self._witness.step()
        result = super()._call(action)
        self._witness.step()
        return result
