"""The replay's simulated cloud: boot times, failures, reclaims and capacity, and how each node's time is billed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Literal

from nodemanager.core.nodes import CloudState, FailureKind, LaunchId, ProviderId
from nodemanager.core.slots import Market, NodeType, SlotName, TypeName
from nodemanager.planner import billing
from nodemanager.whatif.cloud.distributions import TypeBehaviour

SPREAD = 0.2  # boot and stop times vary by a fifth, as in the embedded world
ATTEMPT_S = 60.0  # creates of one type within this time count as one attempt


@dataclass(frozen=True, slots=True)
class CloudConditions:
    """The cloud of a run: how nodes of each type behave, and the total capacity."""

    behaviours: Mapping[TypeName, TypeBehaviour]
    capacity: int = 0  # nodes of all types at once; 0: unlimited


@dataclass(slots=True, eq=False)
class ReplayMachine:
    """One node from creation to end, in the run's time."""

    provider_id: ProviderId
    launch: LaunchId
    slot: SlotName
    rank: int
    node_type: NodeType
    created_s: float
    fails_to_boot: bool = False
    state: CloudState = CloudState.PENDING
    joined_s: float | None = None
    left_s: float | None = None
    ended_s: float | None = None
    died_because: str = ""
    busy_s: float = 0.0
    busy_from_s: float | None = None
    core_s: float = 0.0
    job_s: float = 0.0  # of all runs, each counted by its share of the node
    lost_job_s: float = 0.0  # of these, the runs that were lost
    prepaid: bool = False  # its time costs nothing
    used_gpus: bool = False  # a job that asked for GPUs ran on it

    @property
    def online(self) -> bool:
        return self.joined_s is not None and self.left_s is None


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """How a node's paid time was used. All parts except ``lost_s`` add up to ``paid_s``."""

    paid_s: float
    boot_s: float  # from creation to join
    busy_s: float  # with at least one job
    lost_s: float  # the part of the busy time that lost runs paid for, by their shares of the node
    idle_s: float  # online without a job
    stop_s: float  # from the broker's leave to the node's end
    unused_s: float  # the rest of the last billing window, or of the minimum charge
    cost: Decimal


def time_breakdown(machine: ReplayMachine, until_s: float) -> TimeBreakdown:
    """Break down a node's time and cost. A node that still runs counts up to ``until_s``."""
    ended_s = machine.ended_s if machine.ended_s is not None else until_s
    joined_s = min(machine.joined_s, ended_s) if machine.joined_s is not None else ended_s
    left_s = min(machine.left_s, ended_s) if machine.left_s is not None else ended_s
    busy_s = machine.busy_s + (ended_s - machine.busy_from_s if machine.busy_from_s is not None else 0.0)
    lived_s = ended_s - machine.created_s
    return TimeBreakdown(
        paid_s=billing.paid_s(machine.node_type.billing, lived_s),
        boot_s=joined_s - machine.created_s,
        busy_s=busy_s,
        lost_s=busy_s * machine.lost_job_s / machine.job_s if machine.job_s else 0.0,
        idle_s=max(0.0, left_s - joined_s - busy_s),
        stop_s=ended_s - max(left_s, joined_s),
        unused_s=billing.paid_s(machine.node_type.billing, lived_s) - lived_s,
        cost=billing.cost(machine.node_type, lived_s),
    )


class CloudDraws:
    """All random draws of the cloud, from separate streams: the same seed gives the same cloud."""

    def __init__(self, conditions: CloudConditions, seed: int) -> None:
        self._conditions = conditions
        self._boots = Random(f"{seed}/boots")
        self._failures = Random(f"{seed}/failures")
        self._losses = Random(f"{seed}/reclaims")
        self._shortages = Random(f"{seed}/shortages")
        self._last_attempt_s: dict[TypeName, float] = {}  # by type: when the latest attempt began
        self._short_until_s: dict[TypeName, float] = {}

    def refusal_kind(
        self, node_type: NodeType, existing: Collection[ReplayMachine], now_s: float
    ) -> Literal[FailureKind.CAPACITY, FailureKind.QUOTA] | None:
        """The kind of refusal for one more node of a type now; None if it can be created."""
        behaviour, capacity = self._conditions.behaviours[node_type.name], self._conditions.capacity
        if behaviour.nodes_max is not None:
            of_type = sum(machine.node_type.name == node_type.name for machine in existing)
            if of_type >= behaviour.nodes_max:
                return FailureKind.QUOTA
        if (capacity and len(existing) >= capacity) or self._is_in_shortage(node_type.name, behaviour, now_s):
            return FailureKind.CAPACITY
        return None

    def _is_in_shortage(self, name: TypeName, behaviour: TypeBehaviour, now_s: float) -> bool:
        if behaviour.p_shortage <= 0:
            return False
        if now_s < self._short_until_s.get(name, 0.0):
            return True
        if now_s - self._last_attempt_s.get(name, -math.inf) < ATTEMPT_S:
            return False
        self._last_attempt_s[name] = now_s
        if self._shortages.random() >= behaviour.p_shortage:
            return False
        self._short_until_s[name] = now_s + behaviour.shortage_s.draw(self._shortages)
        return True

    def boot(self, node_type: NodeType) -> tuple[float, bool]:
        """Draw the boot of a node created now: the time until it joins or ends, and whether the boot fails."""
        behaviour = self._conditions.behaviours[node_type.name]
        if behaviour.p_boot_failure > 0 and self._failures.random() < behaviour.p_boot_failure:
            return behaviour.failing_s.draw(self._failures), True
        return behaviour.boot_s.draw(self._boots), False

    def stop_s(self, node_type: NodeType) -> float:
        return self._conditions.behaviours[node_type.name].stop_s.draw(self._boots)

    def reclaimed_after_s(self, node_type: NodeType) -> float:
        """Draw how long a node stays after its join until it is reclaimed; infinite if it is not."""
        if node_type.market is Market.ON_DEMAND and any(it.market is Market.SPOT for it in node_type.sizes):
            return math.inf  # the rate of the type is that of its spot nodes
        rate = self._conditions.behaviours[node_type.name].lost_per_hour
        return self._losses.expovariate(rate / 3600.0) if rate > 0 else math.inf
