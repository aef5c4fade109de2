"""The order in which nodes leave at a provider that has only a number of nodes.

A new node gets the lowest free slot, and only the highest node can leave. So one busy node keeps all idle nodes
below it. Three rules follow:

- A node is retired only if all nodes above it leave too. The others stay, and the reason names what keeps them.
- While idle nodes below are due, the highest node that stays is drained although it is busy. Its jobs end in their
  own time, and new ones start on the idle nodes. It is undrained as soon as jobs wait for more nodes.
- Nodes whose drains were ordered together are terminated together, by one call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.jobs import Job, JobId
from nodemanager.core.nodes import LEAVING, CallKind, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, SlotName
from nodemanager.planner.billing import ownerless_strays
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.supply import SlotAndRank, Supply

JOBS_MAX = 10  # that a reason names


@dataclass(slots=True)
class Stack:
    """The nodes that exist or are ordered, the highest first. It changes as nodes take their steps.

    ``ready``: whether a leaving node may be terminated now, apart from its place.
    """

    snapshot: Snapshot
    ready: Callable[[Node], bool]
    nodes: Sequence[Node] = field(init=False)
    leaving: set[LaunchId] = field(init=False)
    _terminable: frozenset[LaunchId] | None = field(init=False, default=None)
    _above: int = field(init=False, default=0)  # how many of the first nodes leave

    def __post_init__(self) -> None:
        there = (node for node in self.snapshot.nodes.values() if node.state is not NodeState.GONE)
        self.nodes = sorted(there, key=lambda node: -node.launch.rank)
        self.leaving = {node.id for node in self.nodes if node.state in LEAVING}

    def copy(self) -> Stack:
        """A stack that can be changed apart from this one."""
        other = copy(self)
        other.leaving = set(self.leaving)
        return other

    @property
    def top(self) -> Node | None:
        """The highest node that stays; None if all leave."""
        while self._above < len(self.nodes) and self.nodes[self._above].id in self.leaving:
            self._above += 1
        return self.nodes[self._above] if self._above < len(self.nodes) else None

    def note_leaving(self, node: Node) -> None:
        """Note that the node leaves from now on."""
        self.leaving.add(node.id)

    def note_staying(self, node: Node) -> None:
        """Note that the node is kept after all."""
        self.leaving.discard(node.id)
        self._above = 0

    def why_kept(self, node: Node) -> Reason | None:
        """Why a node cannot leave now; None if it is the highest one that stays, or only leaving ones are above."""
        if node.cloud is not None and node.cloud.tenure.fixed:
            return because(Code.FIXED_BY_PROVIDER, detail=node.cloud.tenure.fixed)
        top = self.top
        if top is None or node.launch.rank >= top.launch.rank:
            return None
        return because(Code.KEPT_BY_HIGHER_NODE, node=top.launch.slot, jobs=_jobs_on(top, self.snapshot.jobs))

    def why_not_terminated(self, node: Node) -> Reason | None:
        """Why a drained node is not terminated now; None if it is."""
        if (kept := self.why_kept(node)) is not None:
            return kept
        if self._terminable is None:
            self._terminable = frozenset(self._find_terminable())
        return None if node.id in self._terminable else because(Code.LEAVES_WITH_OTHERS)

    def _find_terminable(self) -> Sequence[LaunchId]:
        """The nodes at the top that may be terminated; none while the drain of the next one is unanswered."""
        found: list[LaunchId] = []
        for node in self.nodes:
            if node.state not in LEAVING:
                break
            if not self.ready(node):
                drains = node.call is not None and node.call.kind is CallKind.DRAIN
                return () if drains else found
            found.append(node.id)
        return found

    def candidates(self) -> Iterator[Node]:
        """The nodes at the top that leave or are idle, the highest first."""
        for node in self.nodes:
            if node.id not in self.leaving and node.state is not NodeState.IDLE:
                return
            yield node


def _jobs_on(node: Node, jobs: Mapping[JobId, Job]) -> tuple[str, ...]:
    """The first few jobs that run on a node."""
    rank = node.launch.rank
    found = (str(job.id) for job in jobs.values() if any(held.rank == rank for held in job.allocations))
    return tuple(sorted(found)[:JOBS_MAX])


def idle_below_a_busy_node(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """Warn if idle nodes cost money only because a busy one is above them."""
    if not policy.stacked:
        return
    top = Stack(snapshot, lambda _: False).top
    if top is None or top.state is not NodeState.BUSY:
        return
    due_s = snapshot.now_s - policy.rules.idle_timeout_s
    below = [
        node
        for node in node_index_of(snapshot).at_rest.values()
        if node.launch.rank < top.launch.rank and (node.seen.idle_since_s or 0.0) <= due_s
    ]
    if below:
        jobs = _jobs_on(top, snapshot.jobs)
        yield because(Code.IDLE_BELOW_BUSY_NODE, node_count=len(below), node=top.launch.slot, jobs=jobs)


# --- growth -----------------------------------------------------------------------------------------------
#
# The order in which nodes come at a provider that has only a number of nodes: the lowest free slot first.


def lowest_gap(snapshot: Snapshot, policy: Policy, ended: Container[LaunchId] = ()) -> Rank | None:
    """The rank of the lowest slot that has no node, ours or others'; None if every slot has one.

    ``ended``: leases that end now.
    """
    nodes = (node for node in snapshot.nodes.values() if node.state is not NodeState.GONE and node.id not in ended)
    held = {node.launch.rank for node in nodes}
    rank_of_slot = snapshot.slots.rank_of_slot
    for stray in ownerless_strays(snapshot):
        if stray.node.identity is not None and stray.node.identity.slot in rank_of_slot:
            held.add(rank_of_slot[stray.node.identity.slot])
    for slot in policy.type_of_slot:
        rank = rank_of_slot.get(slot)
        if rank is not None and rank not in held and not snapshot.ranks[rank].online:
            return rank
    return None


def places_between(
    wanted: Collection[SlotName], supply: Supply, nodes_left: int, price_left: Decimal
) -> tuple[list[tuple[SlotAndRank, NodeType]], frozenset[SlotName]]:
    """The free slots below the highest wanted one, which are filled too, and the wanted slots that are reached.

    Jobs may ask for a host, and all slots below it come first. ``nodes_left``, ``price_left``: what the limits
    allow besides the wanted ones. If that is too little, the higher slots are not reached.
    """
    fills: list[tuple[SlotAndRank, NodeType]] = []
    reached: set[SlotName] = set()
    skipped: list[tuple[SlotAndRank, NodeType]] = []
    for place, node_type in _free_places(supply):
        if place[0] not in wanted:
            skipped.append((place, node_type))
            continue
        nodes_left -= len(skipped)
        price_left -= sum((it.price_per_hour for _, it in skipped), Decimal(0))
        if skipped and (nodes_left < 0 or price_left < 0):
            break
        fills += skipped
        skipped.clear()
        reached.add(place[0])
    return fills, frozenset(reached)


def _free_places(supply: Supply) -> Iterator[tuple[SlotAndRank, NodeType]]:
    for node_type in supply.policy.node_types:
        for place in supply.slots_free_now(node_type):
            yield place, node_type
