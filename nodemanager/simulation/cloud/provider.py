"""A cloud in memory: nodes boot, run their user-data, stop and die in virtual time.

A :class:`SimulatedProvider` is one account. Each :class:`SimulatedCloud` is one cluster's port to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    Identity,
    Launch,
    LaunchId,
    Leftover,
    LeftoverKind,
    ProviderId,
    QuotaScope,
    batch_of,
)
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.simulation.cloud.faults import CloudFaults, Range
from nodemanager.simulation.time.world import World

NodeListener = Callable[[CloudNode], None]


IDS_EACH = 500_000  # the ids of each account's nodes


@dataclass(frozen=True, slots=True)
class BillLine:
    """The time one node is charged for, from creation to end, in virtual time. ``to_s`` None: it still runs."""

    provider_id: ProviderId
    type_name: TypeName | None  # None for an instance without our tags
    from_s: float
    to_s: float | None
    cluster_uuid: str = ""  # the cluster that owns it; "" without our tags
    launch: LaunchId | None = None
    size: str = ""
    market: Market | None = None


@dataclass(slots=True)
class Machine:
    """A node with the provider's internal record of it."""

    node: CloudNode
    client_token: str
    created_s: float
    listed_from_s: float
    ended_s: float | None = None
    listed_until_s: float = math.inf


class SimulatedProvider:
    """One account at the simulated provider. ``number``: of several accounts, whose nodes then have other ids.

    ``on_boot`` is called when a node's user-data starts. ``on_end`` is called when a running machine stops, for any
    reason; a machine that never ran has no ``on_end``.
    """

    def __init__(
        self,
        world: World,
        faults: CloudFaults | None = None,
        *,
        on_boot: NodeListener | None = None,
        on_end: NodeListener | None = None,
        number: int = 0,
    ) -> None:
        self.faults = faults or CloudFaults()
        self.on_boot = on_boot
        self.on_end = on_end
        self._world = world
        self._draws = world.draws_for(f"cloud {number}" if number else "cloud")
        self._machines: dict[ProviderId, Machine] = {}
        self._by_token: dict[str, ProviderId] = {}
        self._by_batch_token: dict[str, tuple[CloudNode | CloudError, ...]] = {}
        self._bill_lines: list[BillLine] = []
        self._created = 0
        self._ids_from = number * IDS_EACH
        self._groups: dict[str, str] = {}  # each placement group, with its cluster's UUID
        # Kept apart from the records of ended nodes, so a call stays as fast after ten years as on the first day.
        self._type_of_standing: dict[ProviderId, TypeName | None] = {}
        self._last_list: list[CloudNode] = []  # the nodes of the latest list call
        self.changes = 0  # grows with every change of any node's state

    def port(self, cluster: str, cluster_uuid: str) -> SimulatedCloud:
        return SimulatedCloud(self, cluster, cluster_uuid)

    def port_for(self, types: Collection[TypeName], cluster: str, cluster_uuid: str) -> SimulatedCloud:
        """A cluster's port to one of several clouds: it lists only nodes of these types."""
        return SimulatedCloud(self, cluster, cluster_uuid, types)

    # --- for tests: these calls bypass every fault ---

    def nodes(self) -> tuple[CloudNode, ...]:
        """Return the true list of all nodes that are not terminated, in order of creation."""
        with self._world.lock:
            return tuple(
                machine.node for machine in self._machines.values() if machine.node.state != CloudState.TERMINATED
            )

    def unlisted(self) -> frozenset[ProviderId]:
        """Return the nodes that no list can show yet."""
        with self._world.lock:
            now_s = self._world.now_s
            return frozenset(id_ for id_, machine in self._machines.items() if now_s < machine.listed_from_s)

    def bill(self) -> tuple[BillLine, ...]:
        """Return a bill line for every node ever created, in order of creation."""
        with self._world.lock:
            return tuple(self._bill_line(index) for index in range(self._created))

    def groups(self) -> tuple[str, ...]:
        """Return the names of all placement groups, in order of creation."""
        with self._world.lock:
            return tuple(self._groups)

    def kill(self, provider_id: ProviderId, why: str = "died suddenly") -> None:
        """End a node at once, as a preemption or a hardware failure does. No effect if it has already ended."""
        with self._world.lock:
            machine = self._machines.get(provider_id)
            if machine is not None:
                self._end(machine, CloudState.TERMINATED, why)

    def add_foreign_node(self, identity: Identity | None = None) -> ProviderId:
        """Add another party's running instance to the account: untagged, or tagged with ``identity``."""
        with self._world.lock:
            machine = self._add_machine(identity, token="")
            self._set_state(machine, CloudState.RUNNING)
            return machine.node.provider_id

    # --- what the ports call ---

    def make_group(self, group: str, cluster_uuid: str) -> None:
        """Make a placement group, unless it exists. The caller may die, or lose the reply, right after it."""
        with self._world.lock:
            if group in self._groups:
                return
            self._maybe_refuse("create group")
            self._maybe_throttle("create group")
            self._groups[group] = cluster_uuid
            if self._happens(self.faults.p_group_only):
                raise CloudError(FailureKind.TRANSIENT, f"create group {group}: the connection was lost")

    def empty_groups(self, cluster_uuid: str) -> frozenset[str]:
        """Return the cluster's placement groups without nodes."""
        with self._world.lock:
            if not self._groups:
                return frozenset()
            self._maybe_refuse("sweep")
            self._maybe_throttle("sweep")
            used = {node.group for node in self.nodes()}
            return frozenset(name for name, uuid in self._groups.items() if uuid == cluster_uuid) - used

    def delete_group(self, group: str) -> None:
        """Delete a placement group. Refused while a node is in it, as real providers do."""
        with self._world.lock:
            self._maybe_fail_transiently("delete group")
            if any(node.group == group for node in self.nodes()):
                raise CloudError(FailureKind.TRANSIENT, f"delete group {group}: in use")
            self._groups.pop(group, None)

    def create(self, launch: Launch, node_type: NodeType, identity: Identity) -> CloudNode:
        with self._world.lock:
            self._maybe_refuse("create")
            self._maybe_throttle("create")
            if self.faults.refuse_creates is not None:
                raise CloudError(self.faults.refuse_creates, f"create {launch.id}: refused until somebody acts")
            self._maybe_refuse_ambiguously("create")
            if self.faults.idempotent and launch.client_token in self._by_token:
                return self._machines[self._by_token[launch.client_token]].node
            self._check_capacity(node_type)
            self._check_group(launch)
            machine = self._add_machine(identity, launch.client_token, node_type)
            machine.node = replace(machine.node, group=launch.group)
            self._world.after(self._draw(self.faults.boot_delay_s), lambda: self._run(machine))
            self._maybe_lose_reply("create")
            return machine.node

    def create_many(
        self, launches: Sequence[Launch], node_type: NodeType, identities: Sequence[Identity]
    ) -> list[CloudNode | CloudError]:
        """Create as many of the nodes as capacity and quota allow, by one call. One fault concerns all of them."""
        with self._world.lock:
            self._maybe_refuse("create")
            self._maybe_throttle("create")
            if self.faults.refuse_creates is not None:
                raise CloudError(
                    self.faults.refuse_creates, f"create {launches[0].id}: refused until somebody acts"
                )
            self._maybe_refuse_ambiguously("create")
            token = " ".join(launch.client_token for launch in launches)
            if self.faults.idempotent and token in self._by_batch_token:
                return [self._as_it_is_now(answer) for answer in self._by_batch_token[token]]
            answers: list[CloudNode | CloudError] = []
            refusal: CloudError | None = None
            for launch, identity in zip(launches, identities, strict=True):
                try:
                    if refusal is None:
                        self._check_capacity(node_type)
                        self._check_group(launch)
                except CloudError as error:
                    refusal = error
                if refusal is not None:
                    answers.append(refusal)
                    continue
                machine = self._add_machine(identity, "", node_type)
                machine.node = replace(machine.node, group=launch.group)
                self._world.after(self._draw(self.faults.boot_delay_s), partial(self._run, machine))
                answers.append(machine.node)
            if isinstance(answers[0], CloudError):
                raise answers[0]  # nothing was created
            self._by_batch_token[token] = tuple(answers)
            self._maybe_lose_reply("create")
            return answers

    def list_nodes(self) -> tuple[CloudNode, ...]:
        with self._world.lock:
            self._maybe_refuse("list")
            self._maybe_throttle("list")
            self._maybe_fail_transiently("list")
            now_s = self._world.now_s
            nodes = [
                machine.node
                for machine in self._machines.values()
                if machine.listed_from_s <= now_s < machine.listed_until_s
            ]
            return tuple(self._with_list_faults(nodes))

    def destroy(self, provider_id: ProviderId) -> None:
        with self._world.lock:
            self._maybe_refuse("destroy")
            self._maybe_throttle("destroy")
            self._maybe_fail_transiently("destroy")
            self._maybe_refuse_ambiguously("destroy")
            machine = self._machines.get(provider_id)
            if machine is not None and not self._happens(self.faults.p_destroy_ignored):
                self._stop(machine)
            self._maybe_lose_reply("destroy")

    def _as_it_is_now(self, answer: CloudNode | CloudError) -> CloudNode | CloudError:
        machine = self._machines.get(answer.provider_id) if isinstance(answer, CloudNode) else None
        return answer if machine is None else machine.node

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> None:
        with self._world.lock:
            self._maybe_refuse("destroy")
            self._maybe_throttle("destroy")
            self._maybe_fail_transiently("destroy")
            self._maybe_refuse_ambiguously("destroy")
            for provider_id in provider_ids:
                machine = self._machines.get(provider_id)
                if machine is not None and not self._happens(self.faults.p_destroy_ignored):
                    self._stop(machine)
            self._maybe_lose_reply("destroy")

    # --- a node's life ---

    def _add_machine(self, identity: Identity | None, token: str, bought: NodeType | None = None) -> Machine:
        self._created += 1
        now_s = self._world.now_s
        high, low = divmod(self._created, 256)
        node = CloudNode(
            provider_id=ProviderId(f"sim-{self._ids_from + self._created:06d}"),
            state=CloudState.PENDING,
            identity=identity,
            created_at=self._world.wall_at() + self.faults.clock_skew_s,
            addresses=(f"10.0.{high % 256}.{low}",),
            size=bought.size if bought is not None else "",
            market=bought.market if bought is not None else None,
        )
        machine = Machine(node, token, now_s, now_s + self._draw(self.faults.list_lag_s))
        self._machines[node.provider_id] = machine
        self._type_of_standing[node.provider_id] = identity.type_name if identity else None
        self.changes += 1
        billed = BillLine(node.provider_id, None, now_s, None, size=node.size, market=node.market)
        if identity is not None:
            whose, launch = identity.cluster_uuid, identity.launch
            billed = replace(billed, type_name=identity.type_name, cluster_uuid=whose, launch=launch)
        self._bill_lines.append(billed)
        if token:
            self._by_token[token] = node.provider_id
        return machine

    def _run(self, machine: Machine) -> None:
        if machine.node.state != CloudState.PENDING:
            return
        if self._happens(self.faults.p_boot_fail):
            self._end(machine, self.faults.boot_fail_state, "failed to boot")
            return
        self._set_state(machine, CloudState.RUNNING)
        self._schedule_death(machine)
        if not self._happens(self.faults.p_boot_hang):
            slow = self._happens(self.faults.p_boot_slow)
            boot_s = self._draw(self.faults.slow_user_data_s if slow else self.faults.user_data_s)
            self._world.after(boot_s, lambda: self._boot(machine))

    def _set_state(self, machine: Machine, state: CloudState, why: str = "") -> None:
        self.changes += 1
        machine.node = replace(machine.node, state=state, died_because=why)

    def _boot(self, machine: Machine) -> None:
        if machine.node.state == CloudState.RUNNING and self.on_boot is not None:
            self.on_boot(machine.node)

    def _schedule_death(self, machine: Machine) -> None:
        p_death = self.faults.p_death_per_hour
        if p_death > 0:
            rate_per_s = -math.log(1 - min(p_death, 0.999)) / 3600
            self._world.after(
                self._draws.expovariate(rate_per_s), lambda: self.kill(machine.node.provider_id, "died suddenly")
            )

    def _stop(self, machine: Machine) -> None:
        match machine.node.state:
            case CloudState.PENDING | CloudState.RUNNING:
                was_running = machine.node.state == CloudState.RUNNING
                self._set_state(machine, CloudState.STOPPING)
                self._world.after(
                    self._draw(self.faults.stop_delay_s),
                    lambda: self._end(machine, CloudState.TERMINATED, "destroyed"),
                )
                self._notify_end(machine, was_running=was_running)
            case CloudState.FAILED:
                self._end(machine, CloudState.TERMINATED, machine.node.died_because)
            case CloudState.STOPPING | CloudState.TERMINATED:
                pass

    def _end(self, machine: Machine, state: CloudState, why: str) -> None:
        """End a node. If the new state is TERMINATED, billing stops and the node soon leaves the list."""
        if machine.node.state == CloudState.TERMINATED:
            return
        was_running = machine.node.state == CloudState.RUNNING
        self._set_state(machine, state, why)
        if state == CloudState.TERMINATED:
            machine.ended_s = self._world.now_s
            machine.listed_until_s = machine.ended_s + self.faults.terminated_listed_s
            del self._type_of_standing[machine.node.provider_id]
            self._world.after(self.faults.terminated_listed_s, lambda: self._drop(machine))
        self._notify_end(machine, was_running=was_running)

    def _notify_end(self, machine: Machine, *, was_running: bool) -> None:
        if was_running and self.on_end is not None:
            self.on_end(machine.node)

    def _drop(self, machine: Machine) -> None:
        """Remove a terminated node from the list, and its client token with it, as real providers do."""
        provider_id = machine.node.provider_id
        index = int(provider_id.removeprefix("sim-")) - self._ids_from - 1
        self._bill_lines[index] = self._bill_line(index)
        del self._machines[provider_id]
        if self._by_token.get(machine.client_token) == provider_id:
            del self._by_token[machine.client_token]

    def _bill_line(self, index: int) -> BillLine:
        line = self._bill_lines[index]
        machine = self._machines.get(line.provider_id)
        return line if machine is None else replace(line, to_s=machine.ended_s)

    # --- faults ---

    def _happens(self, probability: float) -> bool:
        # A fault that is off draws nothing, so turning one knob does not change the other draws.
        return probability > 0 and self._draws.random() < probability

    def _draw(self, between: Range) -> float:
        low, high = between
        return low if low == high else self._draws.uniform(low, high)

    def _maybe_refuse(self, operation: str) -> None:
        if self.faults.refuse_all is not None:
            raise CloudError(self.faults.refuse_all, f"{operation}: refused until somebody acts")

    def _maybe_throttle(self, operation: str) -> None:
        if self._happens(self.faults.p_throttle):
            raise CloudError(
                FailureKind.THROTTLED, f"{operation}: too many requests", self.faults.throttle_retry_after_s
            )

    def _maybe_fail_transiently(self, operation: str) -> None:
        if self._happens(self.faults.p_transient):
            raise CloudError(FailureKind.TRANSIENT, f"{operation}: service unavailable")

    def _maybe_refuse_ambiguously(self, operation: str) -> None:
        if self._happens(self.faults.p_refused_ambiguous):
            self._raise_no_reply(operation)

    def _maybe_lose_reply(self, operation: str) -> None:
        if self._happens(self.faults.p_lost_reply):
            self._raise_no_reply(operation)

    def _raise_no_reply(self, operation: str) -> NoReturn:
        # Carried out or not, the text is the same: the caller cannot tell the two apart.
        raise CloudError(FailureKind.AMBIGUOUS, f"{operation}: the connection was lost before the reply")

    def _check_capacity(self, node_type: NodeType) -> None:
        faults, standing = self.faults, self._type_of_standing
        if faults.quota is not None and len(standing) >= faults.quota:
            raise CloudError(FailureKind.QUOTA, f"the account may have {faults.quota} nodes")
        allowed = faults.quota_of_size.get(node_type.size)
        if allowed is not None and self._count_of_size(node_type.size) >= allowed:
            detail = f"the account may have {allowed} {node_type.size}"
            raise CloudError(FailureKind.QUOTA, detail, reach=QuotaScope.TYPE)
        of_type = faults.capacity_of.get(node_type.name)
        of_size = faults.capacity_of_size.get(node_type.size)
        full = faults.capacity is not None and len(standing) >= faults.capacity
        full = full or (faults.no_spot and node_type.market is Market.SPOT)
        if of_type is not None:
            full = full or sum(name == node_type.name for name in standing.values()) >= of_type
        if of_size is not None:
            full = full or self._count_of_size(node_type.size) >= of_size
        if full or self._happens(faults.p_capacity):
            raise CloudError(FailureKind.CAPACITY, f"no {node_type.size} to be had")

    def _check_group(self, launch: Launch) -> None:
        if not launch.group:
            return
        if launch.group not in self._groups:
            raise CloudError(FailureKind.TRANSIENT, f"there is no placement group {launch.group}")
        if launch.zone in self.faults.zones_full or self._happens(self.faults.p_group_full):
            raise CloudError(FailureKind.CAPACITY, f"no room near the others in {launch.group}")

    def _count_of_size(self, size: str) -> int:
        return sum(self._machines[it].node.size == size for it in self._type_of_standing)

    def _with_list_faults(self, nodes: list[CloudNode]) -> list[CloudNode]:
        before, self._last_list = self._last_list, nodes
        if self._happens(self.faults.p_stale_list):
            return before
        if self._happens(self.faults.p_empty_list):
            return []
        if self._happens(self.faults.p_truncated_list):
            return nodes[: len(nodes) // 2]
        if nodes and self._happens(self.faults.p_shuffled_list):
            nodes = [*nodes, self._draws.choice(nodes)]
            self._draws.shuffle(nodes)
        return nodes


class SimulatedCloud:
    """A cluster's port to the simulated provider (:class:`nodemanager.core.ports.BatchCloudPort`)."""

    def __init__(
        self,
        provider: SimulatedProvider,
        cluster: str,
        cluster_uuid: str,
        types: Collection[TypeName] | None = None,
    ) -> None:
        self._provider = provider
        self._cluster = cluster
        self._cluster_uuid = cluster_uuid
        self._empty_before: frozenset[str] = frozenset()
        self._types = types

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        self._make_group(launch)
        return self._provider.create(launch, node_type, self._identity(launch, node_type))

    def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode | CloudError]:
        batch_of(launches)  # raises ValueError if a real provider could not tell their nodes apart
        self._make_group(launches[0])
        identities = [self._identity(launch, node_type) for launch in launches]
        return self._provider.create_many(launches, node_type, identities)

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[CloudError | None]:
        self._provider.destroy_many(provider_ids)
        return [None] * len(provider_ids)

    def _make_group(self, launch: Launch) -> None:
        if launch.group:
            self._provider.make_group(launch.group, self._cluster_uuid)

    def _identity(self, launch: Launch, node_type: NodeType) -> Identity:
        return Identity(self._cluster, self._cluster_uuid, launch.id, launch.slot, node_type.name, launch.made_from)

    def list_nodes(self) -> tuple[CloudNode, ...]:
        nodes, types = self._provider.list_nodes(), self._types
        if types is None:
            return nodes
        return tuple(it for it in nodes if it.identity is None or it.identity.type_name in types)

    def destroy(self, provider_id: ProviderId) -> None:
        self._provider.destroy(provider_id)

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete the placement groups that two sweeps in a row found empty. Nodes leave nothing behind."""
        empty = self._provider.empty_groups(self._cluster_uuid)
        removed = sorted(empty & self._empty_before)
        for group in removed:
            self._provider.delete_group(group)
        self._empty_before = empty - frozenset(removed)
        return tuple(Leftover(LeftoverKind.GROUP, ProviderId(group)) for group in removed)
