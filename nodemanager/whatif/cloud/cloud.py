"""What the simulated cloud does to nodes: boot times, failures, reclaims, capacity; each node's life and bill."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Literal

from nodemanager.core.nodes import CloudState, FailureKind, LaunchId, ProviderId
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.planner.cost import billing
from nodemanager.whatif.cloud.distributions import TypeBehaviour

SPREAD = 0.2  # boot and stop times vary by a fifth, as on the embedded site
ATTEMPT_S = 60.0  # creates of a type that follow one another so soon ask once


@dataclass(frozen=True, slots=True)
class CloudConditions:
    """How the cloud is: each of the site's types' habits, by name."""

    behaviours: Mapping[TypeName, TypeBehaviour]
    capacity: int = 0  # nodes of all types to be had at once; 0: as many as are asked for


@dataclass(slots=True, eq=False)
class ReplayMachine:
    """One node, from its creation to its end, in the run's time."""

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
    lost_core_s: float = 0.0  # of them, of runs that had to begin anew

    @property
    def online(self) -> bool:
        return self.joined_s is not None and self.left_s is None


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """What became of a node's time: but for ``lost_s``, all add up to what was paid."""

    paid_s: float
    boot_s: float  # from its creation to its joining
    busy_s: float  # with at least one job
    lost_s: float  # of that, by cores: with runs that had to begin anew
    idle_s: float  # up, without a job
    stop_s: float  # from its leaving to its end
    unused_s: float  # what was left of the last window, or of the minimum, at its end
    cost: Decimal


def time_breakdown(machine: ReplayMachine, until_s: float) -> TimeBreakdown:
    """A node's time and cost; one that still stands counts up to ``until_s``."""
    ended_s = machine.ended_s if machine.ended_s is not None else until_s
    joined_s = min(machine.joined_s, ended_s) if machine.joined_s is not None else ended_s
    left_s = min(machine.left_s, ended_s) if machine.left_s is not None else ended_s
    busy_s = machine.busy_s + (ended_s - machine.busy_from_s if machine.busy_from_s is not None else 0.0)
    lived_s = ended_s - machine.created_s
    return TimeBreakdown(
        paid_s=billing.paid_s(machine.node_type.billing, lived_s),
        boot_s=joined_s - machine.created_s,
        busy_s=busy_s,
        lost_s=busy_s * machine.lost_core_s / machine.core_s if machine.core_s else 0.0,
        idle_s=max(0.0, left_s - joined_s - busy_s),
        stop_s=ended_s - max(left_s, joined_s),
        unused_s=billing.paid_s(machine.node_type.billing, lived_s) - lived_s,
        cost=billing.cost(machine.node_type, lived_s),
    )


class CloudDraws:
    """Every draw of the cloud, from streams of its own: the same seed gives the same cloud."""

    def __init__(self, conditions: CloudConditions, seed: int) -> None:
        self._conditions = conditions
        self._boots = Random(f"{seed}/boots")
        self._failures = Random(f"{seed}/failures")
        self._losses = Random(f"{seed}/reclaims")
        self._shortages = Random(f"{seed}/shortages")
        self._last_attempt_s: dict[TypeName, float] = {}  # when a type was last asked for anew
        self._short_until_s: dict[TypeName, float] = {}

    def refusal_kind(
        self, node_type: NodeType, standing: Collection[ReplayMachine], now_s: float
    ) -> Literal[FailureKind.CAPACITY, FailureKind.QUOTA] | None:
        """Why one more node of a type is not to be had now; None where it is."""
        habit, capacity = self._conditions.behaviours[node_type.name], self._conditions.capacity
        if habit.nodes_max is not None:
            of_type = sum(machine.node_type.name == node_type.name for machine in standing)
            if of_type >= habit.nodes_max:
                return FailureKind.QUOTA
        if (capacity and len(standing) >= capacity) or self._is_in_shortage(node_type.name, habit, now_s):
            return FailureKind.CAPACITY
        return None

    def _is_in_shortage(self, name: TypeName, habit: TypeBehaviour, now_s: float) -> bool:
        if habit.p_shortage <= 0:
            return False
        if now_s < self._short_until_s.get(name, 0.0):
            return True
        if now_s - self._last_attempt_s.get(name, -math.inf) < ATTEMPT_S:
            return False
        self._last_attempt_s[name] = now_s
        if self._shortages.random() >= habit.p_shortage:
            return False
        self._short_until_s[name] = now_s + habit.shortage_s.draw(self._shortages)
        return True

    def boot(self, node_type: NodeType) -> tuple[float, bool]:
        """How long a node that is made now takes till it joins, or till it ends; and whether it ends."""
        habit = self._conditions.behaviours[node_type.name]
        if habit.p_boot_failure > 0 and self._failures.random() < habit.p_boot_failure:
            return habit.failing_s.draw(self._failures), True
        return habit.boot_s.draw(self._boots), False

    def stop_s(self, node_type: NodeType) -> float:
        return self._conditions.behaviours[node_type.name].stop_s.draw(self._boots)

    def reclaimed_after_s(self, node_type: NodeType) -> float:
        """How long a node that joined may stay; infinite where nobody takes it back."""
        rate = self._conditions.behaviours[node_type.name].lost_per_hour
        return self._losses.expovariate(rate / 3600.0) if rate > 0 else math.inf
