"""Faults of a node's own start: the broker joins as another slot, or it starts and ends in a loop."""

from __future__ import annotations

from nodemanager.core.nodes import CloudNode
from nodemanager.core.slots import Rank, SlotName
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World

LOOP_S = (2.0, 10.0)


class BootFaults:
    """Starts and ends brokers as the provider's nodes boot and end. ``p_`` is a probability for each node."""

    def __init__(self, world: World, flux: SimulatedFlux, provider: SimulatedProvider) -> None:
        self.p_loop = 0.0
        self.p_wrong_slot = 0.0
        self.slot_joined_by: dict[str, SlotName] = {}  # by machine, if its broker joined as another slot
        self._world = world
        self._draws = world.draws_for("boots")
        self._flux = flux
        self._provider = provider

    def on_node_booted(self, node: CloudNode) -> None:
        """For ``SimulatedProvider.on_boot``."""
        if node.identity is None:
            return
        if self._happens(self.p_wrong_slot) and (slot := self._pick_vacant_slot(node.identity.slot)) is not None:
            self.slot_joined_by[node.provider_id] = slot
            self._flux.broker_up(slot, node.provider_id)
        elif self._happens(self.p_loop):
            self._boot_loop(node)
        else:
            self._flux.on_node_booted(node)

    def on_node_ended(self, node: CloudNode) -> None:
        """For ``SimulatedProvider.on_end``."""
        slot = self.slot_joined_by.pop(node.provider_id, None)
        if slot is not None:
            self._flux.broker_down(slot, lost=True, machine=node.provider_id)
        self._flux.on_node_ended(node)

    def _boot_loop(self, node: CloudNode) -> None:
        """Start and end the broker in a loop, while the machine runs and ``p_loop`` is above 0."""
        if node.identity is None or node not in self._provider.nodes():
            return
        slot = node.identity.slot
        if self._flux.machine_of(slot) not in (None, node.provider_id):
            return
        self._flux.broker_up(slot, node.provider_id)
        if self.p_loop > 0:
            up_s, down_s = self._draws.uniform(*LOOP_S), self._draws.uniform(*LOOP_S)
            self._world.after(up_s, lambda: self._flux.broker_down(slot, machine=node.provider_id))
            self._world.after(up_s + down_s, lambda: self._boot_loop(node))

    def _pick_vacant_slot(self, slot: SlotName) -> SlotName | None:
        """Pick a slot that has neither a broker nor a lease; None if there is none."""
        vacant = [
            other for other, rank in self._flux.rank_of.items() if other != slot and not self._is_taken(other, rank)
        ]
        return self._draws.choice(vacant) if vacant else None

    def _is_taken(self, slot: SlotName, rank: Rank) -> bool:
        return self._flux.online(rank) or slot in self._flux.leases or self._flux.machine_of(slot) is not None

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._draws.random() < probability
