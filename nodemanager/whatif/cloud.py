"""What the simulated cloud does to nodes: boot times, failures, reclaims, capacity; each node's life and bill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from types import MappingProxyType

from nodemanager.fleet import billing
from nodemanager.model import CloudState, LaunchId, Market, NodeType, ProviderId, SlotName, TypeName

SPREAD = 0.2  # boot and stop times vary by a fifth, as on the embedded site


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the cloud is, by ``[Simulation]``. ``boot_s_of``: types whose boot time is known better."""

    boot_s: float = 90.0
    stop_s: float = 20.0
    p_boot_failure: float = 0.0
    spot_reclaims_per_hour: float = 0.0  # of a spot node that is up
    capacity: int = 0  # nodes to be had at once; 0: as many as are asked for
    boot_s_of: Mapping[TypeName, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(slots=True, eq=False)
class Machine:
    """One node, from its creation to its end, in the run's time."""

    provider_id: ProviderId
    launch: LaunchId
    slot: SlotName
    rank: int
    node_type: NodeType
    created_s: float
    state: CloudState = CloudState.PENDING
    joined_s: float | None = None
    left_s: float | None = None
    ended_s: float | None = None
    died_because: str = ""
    busy_s: float = 0.0
    busy_from_s: float | None = None
    core_s: float = 0.0

    @property
    def online(self) -> bool:
        return self.joined_s is not None and self.left_s is None


@dataclass(frozen=True, slots=True)
class Life:
    """What became of a node's time: the five add up to what was paid."""

    paid_s: float
    boot_s: float  # from its creation to its joining
    busy_s: float  # with at least one job
    idle_s: float  # up, without a job
    stop_s: float  # from its leaving to its end
    unused_s: float  # what was left of the last window, or of the minimum, at its end
    cost: Decimal


def life_of(machine: Machine, until_s: float) -> Life:
    """A node's time and cost; one that still stands counts up to ``until_s``."""
    ended_s = machine.ended_s if machine.ended_s is not None else until_s
    joined_s = machine.joined_s if machine.joined_s is not None else ended_s
    left_s = machine.left_s if machine.left_s is not None else ended_s
    busy_s = machine.busy_s + (ended_s - machine.busy_from_s if machine.busy_from_s is not None else 0.0)
    lived_s = ended_s - machine.created_s
    return Life(
        paid_s=billing.paid_s(machine.node_type.billing, lived_s),
        boot_s=joined_s - machine.created_s,
        busy_s=busy_s,
        idle_s=max(0.0, left_s - joined_s - busy_s),
        stop_s=ended_s - max(left_s, joined_s),
        unused_s=billing.paid_s(machine.node_type.billing, lived_s) - lived_s,
        cost=billing.cost(machine.node_type, lived_s),
    )


class Chance:
    """Every draw of the cloud, from streams of its own: the same seed gives the same cloud."""

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self._conditions = conditions
        self._boots = Random(f"{seed}/boots")
        self._failures = Random(f"{seed}/failures")
        self._reclaims = Random(f"{seed}/reclaims")

    def boot_s(self, node_type: NodeType) -> float:
        mean_s = self._conditions.boot_s_of.get(node_type.name, self._conditions.boot_s)
        return mean_s * self._boots.uniform(1 - SPREAD, 1 + SPREAD)

    def stop_s(self) -> float:
        return self._conditions.stop_s * self._boots.uniform(1 - SPREAD, 1 + SPREAD)

    def fails_to_boot(self) -> bool:
        return self._conditions.p_boot_failure > 0 and self._failures.random() < self._conditions.p_boot_failure

    def reclaimed_after_s(self, node_type: NodeType) -> float:
        """How long a node that joined may stay; infinite where nobody takes it back."""
        rate = self._conditions.spot_reclaims_per_hour
        if node_type.market is not Market.SPOT or rate <= 0:
            return math.inf
        return self._reclaims.expovariate(rate / 3600.0)
