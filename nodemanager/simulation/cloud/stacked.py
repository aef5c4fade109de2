"""A simulated provider that has only a number of nodes, as a MiniCluster has.

A node can be added only at the next slot, and only the last one can be destroyed. A node that dies by itself is
started again, as the Job controller does. Whatever runs on a node that is destroyed ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Identity, Launch, ProviderId
from nodemanager.core.orders import CloudEffect, CreateNode
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType, SlotName
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import Machine, SimulatedCloud, SimulatedProvider
from nodemanager.simulation.time.world import World

_LEAVING = (CloudState.STOPPING, CloudState.TERMINATED)


class StackedProvider(SimulatedProvider):
    """One account with one stack of nodes. ``slots``: their names, in the order in which they come."""

    def __init__(self, world: World, faults: CloudFaults, slots: Sequence[SlotName]) -> None:
        super().__init__(world, faults)
        self._index = {slot: index for index, slot in enumerate(slots)}

    def port(self, cluster: str, cluster_uuid: str) -> SimulatedCloud:
        return StackedCloud(self, cluster, cluster_uuid)

    def resize(
        self, orders: Sequence[CloudEffect], cluster: str, cluster_uuid: str
    ) -> list[CloudNode | CloudError | None]:
        """Carry out all orders, or none if the call fails."""
        with self._world.lock:
            self._maybe_refuse("resize")
            self._maybe_throttle("resize")
            self._maybe_fail_transiently("resize")
            self._maybe_refuse_ambiguously("resize")
            answers: dict[int, CloudNode | CloudError | None] = {}
            for at, order in sorted(enumerate(orders), key=lambda it: self._turn(it[1])):
                if isinstance(order, CreateNode):
                    name = order.node_type.name
                    identity = Identity(cluster, cluster_uuid, order.launch.id, order.launch.slot, name)
                    answers[at] = self._add(order.launch, order.node_type, identity)
                else:
                    answers[at] = self._remove(order.provider_id, cluster_uuid)
            self._maybe_lose_reply("resize")
            return [answers[at] for at in range(len(orders))]

    def _turn(self, order: CloudEffect) -> int:
        """Creates from the lowest slot up, destroys from the highest down."""
        if isinstance(order, CreateNode):
            return self._index[order.launch.slot]
        machine = self._machines.get(order.provider_id)
        identity = machine.node.identity if machine is not None else None
        return -self._index[identity.slot] if identity is not None else 0

    def _standing(self, cluster_uuid: str) -> dict[int, Machine]:
        return {
            self._index[it.node.identity.slot]: it
            for it in self._machines.values()
            if it.node.identity is not None
            and it.node.identity.cluster_uuid == cluster_uuid
            and it.node.state not in _LEAVING
        }

    def _add(self, launch: Launch, node_type: NodeType, identity: Identity) -> CloudNode | CloudError:
        for machine in self._machines.values():
            if machine.node.identity == identity:
                return machine.node
        index, size = self._index[launch.slot], len(self._standing(identity.cluster_uuid))
        if index != size:
            return CloudError(FailureKind.TRANSIENT, f"{launch.slot} is index {index}, and the size is {size}")
        try:
            self._check_capacity(node_type)
        except CloudError as error:
            return error
        machine = self._add_machine(identity, launch.client_token)
        self._world.after(self._draw(self.faults.boot_delay_s), lambda: self._run(machine))
        return machine.node

    def _remove(self, provider_id: ProviderId, cluster_uuid: str) -> CloudError | None:
        standing = self._standing(cluster_uuid)
        index = next((at for at, it in standing.items() if it.node.provider_id == provider_id), None)
        if index is None:
            return None
        if index != max(standing):
            return CloudError(FailureKind.TRANSIENT, f"index {index} stays: {max(standing)} is above it")
        if not self._happens(self.faults.p_destroy_ignored):
            self._stop(standing[index])
        return None

    def _end(self, machine: Machine, state: CloudState, why: str) -> None:
        """Start a node of ours again that ended by itself."""
        identity = machine.node.identity
        if identity is None or identity.slot not in self._index or machine.node.state in _LEAVING:
            super()._end(machine, state, why)
            return
        was_running = machine.node.state is CloudState.RUNNING
        self._set_state(machine, CloudState.PENDING)
        self._notify_end(machine, was_running=was_running)
        self._world.after(self._draw(self.faults.boot_delay_s), lambda: self._run(machine))


class StackedCloud(SimulatedCloud):
    """A cluster's port to a stack of nodes (:class:`nodemanager.core.ports.SizedCloudPort`)."""

    def __init__(self, provider: StackedProvider, cluster: str, cluster_uuid: str) -> None:
        super().__init__(provider, cluster, cluster_uuid)
        self._stack = provider

    def resize(self, orders: Sequence[CloudEffect]) -> Sequence[CloudNode | CloudError | None]:
        return self._stack.resize(orders, self._cluster, self._cluster_uuid)
