"""What a node's step depends on, and what a step is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LaunchId
from nodemanager.core.orders import (
    CordonNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    KillHousekeeping,
    RecordLaunches,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.backoff.allowance import Allowance
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.create_calls import CreateCalls
from nodemanager.planner.limits.type_limits import TypeCounts
from nodemanager.planner.stacked.stack import Stack
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.resting import TimedNode
from nodemanager.planner.state.snapshot import ALL_TYPES, Scope, Snapshot
from nodemanager.planner.steps.retirement import StopTimes
from nodemanager.planner.upkeep.consolidation import Emptying
from nodemanager.planner.upkeep.turns import UpkeepPlan

NodeAction = (
    RecordLaunches
    | CreateNode
    | DrainNode
    | CordonNode
    | UndrainNode
    | StopBroker
    | KillHousekeeping
    | DestroyNode
    | EndLease
)


UNLIMITED = 1_000_000  # calls, if one call does for all nodes


class LeaseReview(NamedTuple):
    """Why a lease's create is not sent now. ``ends``: True if the lease ends, False if it only waits."""

    reason: Reason
    ends: bool = True


class JobClaims(Protocol):
    """What the waiting jobs want of the nodes. The jobs are placed when the first node's step depends on it."""

    @property
    def needed(self) -> Mapping[SlotName, tuple[JobId, ...]]:
        """Where waiting jobs are placed."""
        ...

    @property
    def makes_room(self) -> tuple[JobId, frozenset[LaunchId]] | None:
        """A job stopped by a limit, and the nodes that go for it."""
        ...

    @property
    def want_more(self) -> bool:
        """Whether jobs wait for nodes that do not exist yet."""
        ...


@dataclass(slots=True)
class StepContext:
    """What a node's step depends on besides the node. The counts change as nodes take their steps."""

    snapshot: Snapshot
    policy: Policy
    jobs: JobClaims
    unsent: Mapping[LaunchId, LeaseReview]  # leases for which no create is sent now
    count_live: int  # billed nodes, without those that are leaving
    count_usable: int  # nodes that take jobs, without those about to be retired
    count_ready: dict[TypeName, int]  # by type with spares: nodes that no job needs, spares included
    overspent: Reason | None  # the budget of the whole site is spent
    overspent_clouds: Mapping[CloudName, Reason]  # the clouds whose own budget is spent
    allowance: Allowance  # by quotas and breakers
    create_credit: dict[CloudName, float]  # in each cloud's bucket
    create_calls: Mapping[CloudName, CreateCalls]
    cloud_calls_left: dict[CloudName, int]  # creates and destroys that may still be sent
    upkeep: UpkeepPlan  # which nodes are replaced
    emptying: Emptying  # which nodes take no new job so that they empty
    of_types: TypeCounts = field(default_factory=TypeCounts)  # of the types that have limits of their own
    gap: Rank | None = None  # the lowest slot without a node, if nodes come in the order of the slots
    stack: Stack | None = None  # the order in which nodes leave; None if any may leave
    known_stop_times: dict[TypeName, StopTimes] = field(default_factory=dict)
    now_s: float = field(init=False)  # and above the cache of ``stop_times``

    def __post_init__(self) -> None:
        self.now_s = self.snapshot.now_s

    def why_overspent(self, node: Node) -> Reason | None:
        """Why a node leaves because a budget is spent; None if it need not."""
        if self.overspent is not None or not self.overspent_clouds:
            return self.overspent
        return self.overspent_clouds.get(self.policy.cloud_of(node.launch))

    @property
    def all_blocked(self) -> bool:
        """Whether all types are blocked now."""
        return all(self._is_blocked(cloud) for cloud in self.policy.cloud_names)

    def _is_blocked(self, cloud: CloudName) -> bool:
        block = self.snapshot.learned.blocks.get(Scope(ALL_TYPES, cloud=cloud))
        return block is not None and block.until_s > self.now_s

    def takes_call(self, cloud: CloudName) -> bool:
        """Whether one more create or destroy may be sent to a cloud now; if so, it is counted."""
        if self.cloud_calls_left[cloud] <= 0:
            return False
        self.cloud_calls_left[cloud] -= 1
        return True

    def why_kept(self, node: Node) -> Reason | None:
        """Why the provider keeps the node now, whatever is decided; None if it can leave."""
        return self.stack.why_kept(node) if self.stack is not None else None

    def stop_times(self, name: TypeName) -> StopTimes:
        """How long stops of a node type take."""
        if name not in self.known_stop_times:
            lead_s = timings.stop_lead_s(self.snapshot, name, self.policy)
            self.known_stop_times[name] = StopTimes(lead_s, timings.quickest_stop_s(self.snapshot, name))
        return self.known_stop_times[name]

    def retirement_times(self) -> Iterator[Iterator[TimedNode]]:
        """For each type, its nodes at rest by the time at which they may be retired, the first one first.

        Types whose idle nodes stay are left out.
        """
        for name, resting in node_index_of(self.snapshot).resting.items():
            node_type = self.policy.types.get(name)
            if node_type is None:
                yield ((-inf, id_) for _, id_ in resting.idle_since)
            elif node_type.cloud in self.snapshot.closed_clouds:
                continue
            elif name not in self.policy.observed and not self._are_all_needed(node_type):
                lead_s, timeout_s = self.stop_times(name).lead_s, self.policy.idle_timeout_s(node_type)
                yield resting.by_time(node_type.billing, timeout_s, lead_s, self.now_s)

    def _are_all_needed(self, node_type: NodeType) -> bool:
        """Whether all idle nodes of a type are needed as spares, or for its ``nodes_min``."""
        if self.of_types.is_at_min(node_type.name):
            return True
        return 0 < node_type.spares >= self.count_ready.get(node_type.name, 0)


class Step(NamedTuple):
    """The next step of a node, if any, and its reason.

    ``again_at_s``: when the passing of time alone may change this; infinity if only news can. ``held``: a call for
    the node waits until another node's call has been answered.
    """

    reason: Reason
    action: NodeAction | None = None
    again_at_s: float = inf
    held: bool = False
