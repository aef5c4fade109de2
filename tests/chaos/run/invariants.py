"""The invariants of a run, checked against the true state of the world after every event and before every call."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeVar, cast

from nodemanager.core.drains import is_our_drain
from nodemanager.core.jobs import JobId, JobResult, Shape
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    FluxRank,
    Launch,
    LaunchId,
    Leftover,
    ProviderId,
)
from nodemanager.core.orders import CloudEffect, CreateNode
from nodemanager.core.ports import BatchCloudPort, CloudError, CloudPort, SizedCloudPort
from nodemanager.core.slots import CloudName, Market, NodePlacement, NodeType, Rank, TypeName
from nodemanager.planner import billing, spending
from nodemanager.planner.node_health import KILLS_MAX
from nodemanager.planner.policy import Policy
from nodemanager.simulation.cloud.provider import BillLine, SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.time.world import World
from tests.chaos.run.upkeep import UpkeepTruth
from tests.chaos.run.waste import NodeUse

T = TypeVar("T")


class Violation(BaseException):
    """An invariant is broken. No ``Exception``: it is raised inside calls whose exceptions count as failures."""


@dataclass
class SubmittedJobs:
    """The jobs of a run and their shapes: the truth, whatever the manager knows of them."""

    shapes: dict[JobId, Shape] = field(default_factory=dict)
    held: dict[JobId, float] = field(default_factory=dict)  # the time at which each was held
    successors: dict[JobId, JobId] = field(default_factory=dict)  # by job: the job it was submitted again as


@dataclass
class Invariants:
    """The invariants of one run, with the world that they are checked against."""

    flux: SimulatedFlux
    provider: SimulatedProvider
    policy: Policy
    upkeep: UpkeepTruth
    twin: SimulatedProvider | None = None  # of the second cloud, if there is one
    creates: int = 0
    destroys: int = 0
    nodes_peak: int = 0
    jobs: SubmittedJobs = field(default_factory=SubmittedJobs)
    planted: set[ProviderId] = field(default_factory=set)  # created by a fault: they do not count for limits
    # Launches whose node ended and left the list before the manager process that ended the lease ever saw it.
    unseen_launches: set[LaunchId] = field(default_factory=set)
    destroyed: set[ProviderId] = field(default_factory=set)
    groups: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # of each placement group, the type and the zone
    _checked: int = -1

    def __post_init__(self) -> None:
        self.use = NodeUse(self.flux, self.upkeep, self.jobs.held, self.require)

    def check(self) -> None:
        """Check the limits and the slots. Call it after every event of the world."""
        changes = sum(provider.changes for provider in self.providers)
        if changes == self._checked:
            return
        self._checked = changes
        standing = [node for node in self.our_nodes() if node.provider_id not in self.planted]
        self.nodes_peak = max(self.nodes_peak, len(standing))
        nodes_max, price_max = self._highest_limits()
        self.require(len(standing) <= nodes_max, f"{len(standing)} nodes, above nodes_max")
        tagged = [(node, node.identity) for node in standing if node.identity is not None]
        paid = [node for node, identity in tagged if identity.launch not in self.upkeep.prepaid]
        price = sum((self._bought_as(node).price_per_hour for node in paid), Decimal(0))
        self.require(price <= price_max, f"{price} an hour, above price_per_hour_max")
        for cloud, rules in self.policy.clouds.items():
            here = sum(1 for it in paid if self._bought_as(it).cloud == cloud)
            most = rules.nodes_max
            self.require(most is None or here <= most, f"{here} nodes in {cloud}, above its nodes_max")
        slots = Counter(node.identity.slot for node in standing if node.identity is not None)
        twice = [slot for slot, count in slots.items() if count > 1]
        self.require(not twice, f"two nodes on a slot: {twice}")

    @property
    def providers(self) -> list[SimulatedProvider]:
        """The providers of all clouds."""
        return [self.provider] if self.twin is None else [self.provider, self.twin]

    def _providers_of(self, owner: str) -> list[SimulatedProvider]:
        """The providers whose bills the owner of a budget pays: all of them, or that of a cloud."""
        if owner == spending.WHOLE_SITE:
            return self.providers
        names = map(spending.cloud_account, self.policy.cloud_names)
        return [provider for name, provider in zip(names, self.providers, strict=True) if name == owner]

    def _nodes(self) -> list[CloudNode]:
        return [node for provider in self.providers for node in provider.nodes()]

    def check_cloud(self, type_name: TypeName, cloud: CloudName, listed_s: float | None, now_s: float) -> None:
        """Before a create or a destroy: it must be the type's own cloud, which was listed lately."""
        home = self.policy.only_cloud(self.policy.types[type_name].cloud)
        self.require(home == cloud, f"a {type_name} was to be made or ended in {cloud}")
        limit_s = self.policy.timing.stale_after_s + self.policy.fixed.order_good_s
        age_s = now_s - listed_s if listed_s is not None else float("inf")
        self.require(age_s <= limit_s, f"a call to {cloud}, which was last listed {age_s:.0f} s ago")

    def _highest_limits(self) -> tuple[int, Decimal]:
        """The most nodes and the highest price an hour that the site and its schedules ever allow."""
        schedules = self.policy.upkeep.schedules
        nodes = [it.nodes_max for it in schedules if it.nodes_max is not None]
        prices = [it.price_per_hour_max for it in schedules if it.price_per_hour_max is not None]
        limits = self.policy.limits
        return max(limits.nodes_max, *nodes, 0), max([limits.price_per_hour_max, *prices])

    def check_create(self, launch: Launch, bought: NodeType | None = None) -> None:
        """Before a create: the lease must be recorded, and the slot must have the launch's type.

        A node's size must be one of its type, and the one on record.
        """
        if bought is not None and self.policy.types[launch.type_name].sizes:
            sizes = {(it.name, it.market, it.price_per_hour) for it in self.policy.types[launch.type_name].sizes}
            asked = (bought.size, bought.market, bought.price_per_hour)
            self.require(
                asked in sizes, f"create of {launch.id} as {asked}, which is no size of {launch.type_name}"
            )
            self.require(
                asked[:2] == (launch.size, launch.market), f"create of {launch.id}, a {launch.size}, as {asked}"
            )
        self.creates += 1
        recorded = self.flux.leases.get(launch.slot)
        held = recorded is not None and recorded.id == launch.id
        of_type = self.flux.slot_types[launch.slot]
        self.require(of_type == launch.type_name, f"create of a {launch.type_name} for {launch.slot}, a {of_type}")
        self.require(held, f"create of {launch.id} without its lease on record")
        self._check_group(launch)
        self.upkeep.check_slot(launch.rank)
        standing = [node.identity.launch for node in self.our_nodes() if node.identity is not None]
        self.upkeep.note_create(launch, standing)

    def _check_group(self, launch: Launch) -> None:
        """A node is in a placement group if its type is to be, and a group has one type and one zone."""
        close = self.policy.types[launch.type_name].placement is not NodePlacement.ANYWHERE
        self.require(close == bool(launch.group), f'{launch.id} was to be created in the group "{launch.group}"')
        if close:
            place = launch.type_name, launch.zone
            known = self.groups.setdefault(launch.group, place)
            self.require(known == place, f"{launch.group} is of {known}, and was to get {launch.id} of {place}")
            self.require(list(self.groups.values()).count(place) == 1, f"{place} has two groups")

    def check_destroy(self, provider_id: ProviderId) -> None:
        """Before a destroy: the node must be ours, and no job may run on it."""
        self.destroys += 1
        self.destroyed.add(provider_id)
        node = next((node for node in self._nodes() if node.provider_id == provider_id), None)
        if node is None:
            return
        self.require(self.is_ours(node), f"{provider_id} is not ours, and was to be destroyed")
        self.use.note_destroy(node)
        leased = self.flux.leases.get(node.identity.slot) if node.identity is not None else None
        is_leased = leased is not None and node.identity is not None and leased.id == node.identity.launch
        self.upkeep.check_data(provider_id, leased if is_leased else None)
        if node.identity is not None and self.flux.machine_of(node.identity.slot) == provider_id:
            self.check_stop(self.flux.rank_of[node.identity.slot])

    def check_stop(self, rank: Rank) -> None:
        """Before a broker or its machine is stopped: the rank must be idle, given back, or offline."""
        busy = self.upkeep.holds(rank)
        self.require(not (self.flux.online(rank) and busy), f"rank {rank} is busy, and was to be stopped")

    def check_requeue(self, job: JobId) -> None:
        """Before a job is submitted again: it must not have been submitted again already."""
        again = self.jobs.successors.get(job)
        self.require(again is None, f"job {job} was to be submitted once more, and was: as {again}")

    def note_requeue(self, job: JobId, again: JobId) -> None:
        self.jobs.successors[job] = again
        self.jobs.shapes[again] = self.jobs.shapes[job]

    def check_settled(self, copy: JobId, *, starts: bool) -> None:
        """Before a copy starts, its original must have failed; before it is cancelled, it must not have."""
        original = next((job for job, again in self.jobs.successors.items() if again == copy), None)
        result = self.flux.result(original) if original is not None else JobResult.UNKNOWN
        failed = result in (JobResult.FAILED, JobResult.TIMEOUT)
        self.require(
            result is not None and failed == starts,
            f"copy {copy} was to be {'started' if starts else 'cancelled'}, and job {original} is {result}",
        )

    def check_kill(self, rank: Rank, kills: int) -> None:
        """Before a housekeeping is killed: it must have been killed less than ``KILLS_MAX`` times."""
        self.require(kills < KILLS_MAX, f"what runs on rank {rank} was to be killed for the {kills + 1}th time")

    def check_undrain(self, rank: Rank, before: str | None) -> None:
        """After an undrain: a drain that is not ours must be unchanged."""
        foreign = before is not None and not is_our_drain(before)
        self.require(
            not foreign or self.flux.drain_reason(rank) == before, f"rank {rank}: a foreign drain was undone"
        )

    def check_forget(
        self, launch: Launch, lists: Sequence[frozenset[ProviderId]], seen: Collection[LaunchId]
    ) -> None:
        """Before a lease is ended: its node must be gone, or absent from enough lists in a row."""
        recorded = self.flux.leases.get(launch.slot)
        if recorded is None or recorded.id != launch.id:
            return
        if launch.id not in seen and launch.id not in self.flux.spend.counted:
            self.unseen_launches.add(launch.id)
        for node in self.our_nodes():
            if node.identity is not None and node.identity.launch == launch.id:
                lacking = len(lists) >= self.policy.timing.absences and not any(
                    node.provider_id in it for it in lists
                )
                self.require(lacking, f"the lease of {launch.id} was to be ended, and {node.provider_id} stands")

    def _bought_as(self, node: CloudNode) -> NodeType:
        """The type of one of our nodes, as the size that the provider made."""
        return self._size_of(node.identity.type_name if node.identity else TypeName(""), node.size, node.market)

    def _size_of(self, name: TypeName, size: str, market: Market | None) -> NodeType:
        """A type as a size on a market. A node that a fault planted has none: it counts as the type itself."""
        of = self.policy.types[name]
        return next((it for it in of.by_size() if (it.size, it.market) == (size, market)), of)

    def our_nodes(self) -> list[CloudNode]:
        return [node for node in self._nodes() if self.is_ours(node)]

    def is_ours(self, node: CloudNode) -> bool:
        return node.identity is not None and node.identity.cluster_uuid == self.policy.cluster_uuid

    def true_cost(
        self,
        now_s: float,
        counts: Callable[[BillLine], bool] = lambda _: True,
        *,
        owner: str = spending.WHOLE_SITE,
        start_shift_s: float = 0.0,
        end_shift_s: float = 0.0,
    ) -> Decimal:
        """Sum the true cost until ``now_s`` of our nodes for which ``counts`` is true, from the providers' bills.

        ``owner``: of a budget, whose clouds count.
        ``start_shift_s`` and ``end_shift_s`` bill each node as if it had started or ended that much later.
        """
        cost = Decimal(0)
        for line in (line for provider in self._providers_of(owner) for line in provider.bill()):
            if line.cluster_uuid == self.policy.cluster_uuid and line.type_name is not None and counts(line):
                if line.launch in self.upkeep.prepaid:
                    continue
                until_s = now_s if line.to_s is None else min(now_s, line.to_s + end_shift_s)
                of = self._size_of(line.type_name, line.size, line.market)
                cost += billing.cost(of, until_s - line.from_s - start_shift_s)
        return cost

    @staticmethod
    def require(truth: bool, broken: str) -> None:
        if not truth:
            raise Violation(broken)


class Witness:
    """The answers that one manager process got, and when. ``step`` is called before and after each call."""

    def __init__(self, world: World, absences: int, step: Callable[[], None]) -> None:
        self.step = step
        self.answered_s: dict[str, float] = {}
        # Of each cloud: its latest lists, the nodes in the last one, and when that was answered.
        self.lists: dict[CloudName, deque[frozenset[ProviderId]]] = {}
        self.listed: dict[CloudName, tuple[tuple[CloudNode, ...], float]] = {}
        self._absences = absences
        self.knows_leases = False  # whether it has ever held the claim
        self.seen_launches: set[LaunchId] = set()  # launches whose nodes it saw since it knows the leases
        self.kill_counts: dict[tuple[float, ...], int] = {}  # by housekeeping: how often it was killed
        self.refused_s: dict[tuple[TypeName, str, Market], tuple[float, FailureKind]] = {}
        self._world = world

    @property
    def now_s(self) -> float:
        return self._world.now_s

    def note_refusal(self, bought: NodeType, kind: FailureKind) -> None:
        """Note that the provider refused a size of a type."""
        if kind in (FailureKind.CAPACITY, FailureKind.QUOTA):
            self.refused_s[bought.name, bought.size, bought.market] = self._world.now_s, kind

    def refused_since_s(self, of: TypeName, size: str, market: Market, kind: FailureKind | None = None) -> float:
        """How long ago this process was last refused a size; infinity if never, or not for this ``kind``."""
        refused_s, why = self.refused_s.get((of, size, market), (float("-inf"), kind))
        return self._world.now_s - refused_s if kind in (None, why) else float("inf")

    def note_answer(self, source: str) -> None:
        self.answered_s[source] = self._world.now_s

    def note_list(self, nodes: tuple[CloudNode, ...], cloud: CloudName) -> None:
        self.listed[cloud] = nodes, self._world.now_s
        standing = (node.provider_id for node in nodes if node.state is not CloudState.TERMINATED)
        self.lists.setdefault(cloud, deque(maxlen=self._absences)).append(frozenset(standing))
        self.note_nodes(nodes)

    def note_nodes(self, nodes: Iterable[CloudNode]) -> None:
        if self.knows_leases:
            self.seen_launches |= {node.identity.launch for node in nodes if node.identity is not None}


@dataclass
class WatchedCloud:
    """A cloud port that checks the invariants at every call."""

    port: CloudPort
    invariants: Invariants
    witness: Witness
    cloud: CloudName

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        self.witness.step()
        self._check_cloud(node_type.name)
        self.invariants.check_create(launch, node_type)
        try:
            node = self.port.create(launch, node_type)
        except CloudError as error:
            self.witness.note_refusal(node_type, error.kind)
            raise
        self.witness.note_nodes([node])
        self.witness.step()
        return node

    def list_nodes(self) -> tuple[CloudNode, ...]:
        nodes = self.port.list_nodes()
        self.witness.note_list(nodes, self.cloud)
        return nodes

    def _check_cloud(self, type_name: TypeName) -> None:
        _, listed_s = self.witness.listed.get(self.cloud, ((), None))
        self.invariants.check_cloud(type_name, self.cloud, listed_s, self.witness.now_s)

    def destroy(self, provider_id: ProviderId) -> None:
        self.witness.step()
        self.invariants.check_destroy(provider_id)
        self.port.destroy(provider_id)
        self.witness.step()

    def sweep(self) -> tuple[Leftover, ...]:
        return self.port.sweep()


class WatchedStack(WatchedCloud):
    """The watched port of a provider that has only a number of nodes."""

    def resize(self, orders: Sequence[CloudEffect]) -> Sequence[CloudNode | CloudError | None]:
        self.witness.step()
        for order in orders:
            if isinstance(order, CreateNode):
                self.invariants.check_create(order.launch)
            else:
                self.invariants.check_destroy(order.provider_id)
        answers = cast("SizedCloudPort", self.port).resize(orders)
        self.witness.note_nodes([it for it in answers if isinstance(it, CloudNode)])
        self.witness.step()
        return answers


class WatchedBatches(WatchedCloud):
    """The watched port of a provider that creates and destroys several nodes by one call."""

    def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode | CloudError]:
        self.witness.step()
        self._check_cloud(node_type.name)
        for launch in launches:
            self.invariants.check_create(launch, node_type)
        answers = cast("BatchCloudPort", self.port).create_many(launches, node_type)
        for refused in (it for it in answers if isinstance(it, CloudError)):
            self.witness.note_refusal(node_type, refused.kind)
        self.witness.note_nodes([it for it in answers if isinstance(it, CloudNode)])
        self.witness.step()
        return answers

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[CloudError | None]:
        self.witness.step()
        for provider_id in provider_ids:
            self.invariants.check_destroy(provider_id)
        answers = cast("BatchCloudPort", self.port).destroy_many(provider_ids)
        self.witness.step()
        return answers


class WatchedFlux(SimulatedFluxPort):
    """A Flux port that checks the invariants at every call that could do harm."""

    def __init__(self, flux: SimulatedFlux, token: str, invariants: Invariants, witness: Witness) -> None:
        super().__init__(flux, token, invariants.policy.cluster_uuid, invariants.upkeep.with_data)
        self._invariants = invariants
        self._witness = witness

    def stop_broker(self, rank: Rank) -> None:
        def check_and_stop() -> None:
            self._invariants.check_stop(rank)
            self._flux.stop_broker(rank)

        self._change(check_and_stop)

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        which = (rank, *self._flux.housekeeping_since(rank))
        kills = self._witness.kill_counts.get(which, 0)

        def check_and_kill() -> None:
            self._invariants.check_kill(rank, kills)
            self._flux.kill_housekeeping(rank, signal)

        self._change(check_and_kill)
        self._witness.kill_counts[which] = (
            kills + 1
        )  # not reached if the reply is lost: the manager does not count that kill either

    def requeue(self, job: JobId) -> JobId:
        def check_and_requeue() -> JobId:
            self._invariants.check_requeue(job)
            again = self._flux.requeue(job)
            self._invariants.note_requeue(job, again)
            return again

        return self._change(check_and_requeue)

    def start_copy(self, job: JobId) -> None:
        self._invariants.check_settled(job, starts=True)
        super().start_copy(job)

    def cancel_copy(self, job: JobId, why: str) -> None:
        self._invariants.check_settled(job, starts=False)
        super().cancel_copy(job, why)

    def undrain(self, rank: Rank) -> None:
        def undrain_and_check() -> None:
            before = self._flux.drain_reason(rank)
            self._undrain(rank)
            self._invariants.check_undrain(rank, before)

        self._change(undrain_and_check)

    def forget(self, launch: Launch) -> None:
        def check_and_forget() -> None:
            lists = self._witness.lists.get(self._invariants.policy.cloud_of(launch), ())
            self._invariants.check_forget(launch, lists, self._witness.seen_launches)
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
