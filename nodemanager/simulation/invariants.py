"""What must never be, checked against the truth of a world after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.fleet.policy import Policy
from nodemanager.model import CloudNode, Launch, Leftover, NodeType, ProviderId, Rank
from nodemanager.ports import CloudPort
from nodemanager.simulation.cloud import SimulatedProvider
from nodemanager.simulation.flux import SimulatedFlux
from nodemanager.simulation.flux_port import SimulatedFluxPort
from nodemanager.simulation.world import World


class Violation(AssertionError):
    """A rule was broken."""


@dataclass
class Rules:
    """The rules of one run, beside the world that they are checked against."""

    flux: SimulatedFlux
    provider: SimulatedProvider
    policy: Policy
    creates: int = 0
    destroys: int = 0
    nodes_peak: int = 0
    _checked: tuple[CloudNode, ...] = ()

    def check(self) -> None:
        """After every step of the world."""
        nodes = self.provider.nodes()
        if nodes == self._checked:
            return
        self._checked = nodes
        standing = [node for node in nodes if self._is_ours(node)]
        self.nodes_peak = max(self.nodes_peak, len(standing))
        self._require(len(standing) <= self.policy.nodes_max, f"{len(standing)} nodes, above nodes_max")
        types = [node.identity.type_name for node in standing if node.identity is not None]
        price = sum((self.policy.types[name].price_per_hour for name in types), Decimal(0))
        self._require(price <= self.policy.price_per_hour_max, f"{price} an hour, above price_per_hour_max")
        slots = Counter(node.identity.slot for node in standing if node.identity is not None)
        twice = [slot for slot, count in slots.items() if count > 1]
        self._require(not twice, f"two nodes on a slot: {twice}")

    def at_create(self, launch: Launch) -> None:
        """Just before a create: its lease is on record."""
        self.creates += 1
        recorded = self.flux.records.get(launch.slot)
        held = recorded is not None and recorded.id == launch.id
        of_type = self.flux.division[launch.slot]
        self._require(of_type == launch.type_name, f"create of a {launch.type_name} for {launch.slot}, a {of_type}")
        self._require(held, f"create of {launch.id} without its lease on record")

    def at_destroy(self, provider_id: ProviderId) -> None:
        """Just before a destroy: it is ours, and nothing runs on it."""
        self.destroys += 1
        node = next((node for node in self.provider.nodes() if node.provider_id == provider_id), None)
        if node is None:
            return
        self._require(self._is_ours(node), f"{provider_id} is not ours, and was to be destroyed")
        if node.identity is not None:
            self.at_stop(self.flux.rank_of[node.identity.slot])

    def at_stop(self, rank: Rank) -> None:
        """Just before a broker or its machine is stopped: its rank is idle, or away."""
        busy = {grant.rank for _, grant in self.flux.holders()}
        self._require(not (self.flux.online(rank) and rank in busy), f"rank {rank} is busy, and was to be stopped")

    def at_undrain(self, rank: Rank) -> None:
        """Just before an undrain of a live node: the drain is ours."""
        reason = self.flux.drain_reason(rank)
        foreign = reason is not None and not reason.startswith("flux-node-manager:")
        self._require(not (foreign and self.flux.online(rank)), f"rank {rank}: a foreign drain was to be undone")

    def _is_ours(self, node: CloudNode) -> bool:
        return node.identity is not None and node.identity.cluster_uuid == self.policy.cluster_uuid

    @staticmethod
    def _require(truth: bool, broken: str) -> None:
        if not truth:
            raise Violation(broken)


@dataclass
class WatchedCloud:
    """A cloud port that holds every call of the manager to the rules."""

    port: CloudPort
    rules: Rules

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        self.rules.at_create(launch)
        return self.port.create(launch, node_type)

    def list_nodes(self) -> tuple[CloudNode, ...]:
        return self.port.list_nodes()

    def destroy(self, provider_id: ProviderId) -> None:
        self.rules.at_destroy(provider_id)
        self.port.destroy(provider_id)

    def sweep(self) -> tuple[Leftover, ...]:
        return self.port.sweep()


class WatchedFlux(SimulatedFluxPort):
    """A Flux port that holds its two dangerous calls to the rules."""

    def __init__(self, flux: SimulatedFlux, world: World, token: str, rules: Rules) -> None:
        super().__init__(flux, world, token, rules.policy.cluster_uuid)
        self._rules = rules

    def stop_broker(self, rank: Rank) -> None:
        self._rules.at_stop(rank)
        super().stop_broker(rank)

    def undrain(self, rank: Rank) -> None:
        self._rules.at_undrain(rank)
        super().undrain(rank)
