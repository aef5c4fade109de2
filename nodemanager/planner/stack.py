"""The order in which nodes come and leave at a provider that has only a number of nodes.

A new node gets the lowest free slot, and only the highest node can leave. So one busy node keeps all idle nodes
below it. Three rules follow:

- A node is retired only if all nodes above it leave too. The others stay, and the reason names what keeps them.
- While idle nodes below are due, the highest node that stays is drained although it is busy. Its jobs end in their
  own time, and new ones start on the idle nodes. It is undrained as soon as jobs wait for more nodes.
- Nodes whose drains were ordered together are terminated together, by one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nodemanager.core.jobs import Job, JobId
from nodemanager.core.nodes import LEAVING, CallKind, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, SlotName, TypeName
from nodemanager.planner.outcome import NAMES_MAX, Purchase
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.placement.supply import ownerless_strays
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot

ENDED = NodeState.GONE


@dataclass(slots=True)
class Stack:
    """The nodes that exist or are ordered, the highest first. It changes as nodes take their steps.

    ``ready``: whether a leaving node may be terminated now, apart from its place.
    """

    snapshot: Snapshot
    ready: Callable[[Node], bool]
    nodes: Sequence[Node] = field(init=False)
    leaving: set[LaunchId] = field(init=False)
    _terminable: frozenset[LaunchId] | None = None
    _above: int = 0  # how many of the first nodes leave

    def __post_init__(self) -> None:
        there = (node for node in self.snapshot.nodes.values() if node.state is not ENDED)
        self.nodes = sorted(there, key=lambda node: -node.launch.rank)
        self.leaving = {node.id for node in self.nodes if node.state in LEAVING}

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
        if node.cloud is not None and node.cloud.fixed:
            return because(Code.FIXED_BY_PROVIDER, detail=node.cloud.fixed)
        top = self.top
        if top is None or node.launch.rank >= top.launch.rank:
            return None
        return because(Code.KEPT_BY_A_HIGHER_NODE, node=top.launch.slot, jobs=_jobs_on(top, self.snapshot.jobs))

    def why_not_terminated(self, node: Node) -> Reason | None:
        """Why a drained node is not terminated now; None if it is."""
        if (kept := self.why_kept(node)) is not None:
            return kept
        if self._terminable is None:
            self._terminable = frozenset(self._find_terminable())
        return None if node.id in self._terminable else because(Code.LEAVES_WITH_OTHERS)

    def _find_terminable(self) -> Iterator[LaunchId]:
        """The nodes at the top that may be terminated, unless the drain of the next one is about to be answered."""
        ready: list[LaunchId] = []
        for node in self.nodes:
            if node.id not in self.leaving:
                break
            if not self.ready(node):
                if node.call is not None and node.call.kind is CallKind.DRAIN:
                    return
                break
            ready.append(node.id)
        yield from ready

    def candidates(self) -> Iterator[Node]:
        """The nodes at the top that leave or are idle, the highest first."""
        for node in self.nodes:
            if node.id not in self.leaving and node.state is not NodeState.IDLE:
                return
            yield node


def _jobs_on(node: Node, jobs: Mapping[JobId, Job]) -> tuple[str, ...]:
    """The first few jobs that run on a node."""
    rank = node.launch.rank
    found = (str(job.id) for job in jobs.values() if any(held.rank == rank for held in job.allocations or ()))
    return tuple(sorted(found)[:NAMES_MAX])


def why_nothing_added(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Reason]:
    """Why no type is bought now: nodes leave, and a larger size would bring these back."""
    if not policy.stacked:
        return {}
    node_index = node_index_of(snapshot)
    states = (NodeState.STOPPING, NodeState.GONE)
    if not any(node_index.count_by_state.get(state) for state in states):
        return {}
    leave = sorted(node.launch.slot for node in node_index.to_check.values() if node.state in states)
    reason = because(Code.SIZE_IS_BEING_REDUCED, nodes=tuple(leave[:NAMES_MAX]))
    return {node_type.name: reason for node_type in policy.node_types}


def lowest_gap(snapshot: Snapshot, policy: Policy) -> Rank | None:
    """The rank of the lowest slot that has no node; None if every slot has one. Nodes of others count."""
    held = {node.launch.rank for node in snapshot.nodes.values() if node.state is not ENDED}
    rank_of_slot = snapshot.rank_of_slot
    for stray in ownerless_strays(snapshot):
        if stray.node.identity is not None and stray.node.identity.slot in rank_of_slot:
            held.add(rank_of_slot[stray.node.identity.slot])
    for slot in (slot for node_type in policy.node_types for slot in node_type.slots):
        rank = rank_of_slot.get(slot)
        if rank is not None and rank not in held and not snapshot.ranks[rank].online:
            return rank
    return None


def in_order(
    purchases: Sequence[Purchase], placement: Placement, snapshot: Snapshot, policy: Policy
) -> list[tuple[Purchase, Purchase | None]]:
    """The purchases from the lowest slot up, with those of slots between them.

    Jobs may ask for one host, and the slots below it come first. Each purchase that only fills such a gap has the
    one that it is for. If the limits do not allow all of them, the higher slots are left out.
    """
    wanted = {purchase.place[0]: purchase for purchase in purchases}
    if not wanted:
        return []
    last = max(purchase.place[1] for purchase in purchases)
    nodes_left, price_left = placement.allocation.nodes_left, placement.price_left
    found: list[tuple[Purchase, Purchase | None]] = []
    for slot, rank, node_type in _free_slots(placement, snapshot, policy):
        if rank > last:
            break
        if slot in wanted:
            found.append((wanted[slot], None))
            continue
        nodes_left, price_left = nodes_left - 1, price_left - node_type.price_per_hour
        if nodes_left < 0 or price_left < 0:
            break
        reason_for = next(it for it in sorted(purchases, key=lambda it: it.place[1]) if it.place[1] > rank)
        zone = placement.supply.open_zones[node_type.name][0]
        found.append((Purchase((slot, rank), node_type, zone, (), 0), reason_for))
    return found


def _free_slots(
    placement: Placement, snapshot: Snapshot, policy: Policy
) -> Iterable[tuple[SlotName, Rank, NodeType]]:
    free = (
        (slot, rank, node_type)
        for node_type in policy.node_types
        for slot, rank in placement.supply.slots_free_now(node_type)
    )
    del snapshot
    return sorted(free, key=lambda it: it[1])


def size_warning(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """Warn if idle nodes stay only because a busy one is above them."""
    if not policy.stacked:
        return
    stack = Stack(snapshot, lambda _: False)
    top = stack.top
    if top is None or top.state is not NodeState.BUSY:
        return
    due_s = snapshot.now_s - policy.rules.idle_timeout_s
    below = [
        node
        for node in node_index_of(snapshot).at_rest.values()
        if node.launch.rank < top.launch.rank and (node.idle_since_s or 0.0) <= due_s
    ]
    if below:
        yield because(
            Code.IDLE_BELOW_A_BUSY_NODE,
            node_count=len(below),
            node=top.launch.slot,
            jobs=_jobs_on(top, snapshot.jobs),
        )
