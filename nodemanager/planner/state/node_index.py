"""An index of the nodes: those that may need a decision, and counts of all.

In a working fleet most nodes are busy and need no decision, so a plan checks only the others. Change nodes only
through :func:`with_nodes`, which updates the index with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodemanager.core.drains import is_our_drain
from nodemanager.core.nodes import CallKind, Launch, LaunchId, NodeState
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.snapshot import Node, NodeIndex, Snapshot


def node_index_of(snapshot: Snapshot) -> NodeIndex:
    """The index of the snapshot's nodes: the stored one if it was built from them, else a new one."""
    if snapshot.node_index.nodes is snapshot.nodes:
        return snapshot.node_index
    return _updated(NodeIndex(), snapshot.nodes, (), snapshot.nodes.values())


def with_nodes(snapshot: Snapshot, changed: Mapping[LaunchId, Node], gone: Sequence[LaunchId] = ()) -> Snapshot:
    """The snapshot with some nodes added or changed, and the ``gone`` ones removed."""
    if not changed and not gone:
        return snapshot
    nodes = dict(snapshot.nodes)
    named = {**dict.fromkeys(changed), **dict.fromkeys(gone)} if gone else changed
    before = [nodes[id_] for id_ in named if id_ in nodes]
    nodes.update(changed)
    for id_ in gone:
        nodes.pop(id_, None)
    return replace(
        snapshot, nodes=nodes, node_index=_updated(node_index_of(snapshot), nodes, before, changed.values())
    )


def calls_in_flight(snapshot: Snapshot, *kinds: CallKind) -> int:
    """How many calls of these kinds are in flight."""
    return sum(
        1
        for node in node_index_of(snapshot).with_call.values()
        if node.call is not None and node.call.kind in kinds
    )


def is_simply_busy(node: Node) -> bool:
    """Whether the node is busy and needs no decision."""
    return (
        node.state is NodeState.BUSY
        and node.call is None
        and node.retry_s == 0.0
        and node.absences == 0
        and not (node.rank is not None and is_our_drain(node.rank.drain_reason))
        and (node.is_sound or not _has_trouble_now(node))
    )


def _has_trouble_now(node: Node) -> bool:
    return (
        (node.rank is not None and (node.rank.torpid or node.rank.housekeeping_since_at is not None))
        or node.reclaimed is not None
        or node.housekeeping_kills > 0
        or bool(node.departures_s)
        or (node.cloud is not None and bool(node.cloud.impaired))
        or node.misfit is not None
    )


def _updated(
    index: NodeIndex, nodes: Mapping[LaunchId, Node], before: Iterable[Node], after: Iterable[Node]
) -> NodeIndex:
    """The index of ``nodes``. ``before`` and ``after``: the changed nodes as they were and as they are."""
    to_check: dict[LaunchId, Node] = dict(index.to_check)
    with_call: dict[LaunchId, Node] = dict(index.with_call)
    old_nodes: dict[LaunchId, Node] = {}
    for node in before:
        id_ = node.launch.id
        to_check.pop(id_, None)
        with_call.pop(id_, None)
        old_nodes[id_] = node
    # Only nodes that are counted differently than before.
    uncounted: list[Node] = []
    counted: list[Node] = []
    for node in after:
        id_ = node.launch.id
        if not is_simply_busy(node):
            to_check[id_] = node
        if node.call is not None:
            with_call[id_] = node
        was = old_nodes.pop(id_, None)
        if was is None or was.state is not node.state or was.launch is not node.launch:
            counted.append(node)
            uncounted += [was] if was is not None else []
    uncounted += old_nodes.values()
    if not uncounted and not counted:
        counts = index.count_by_state, index.count_by_type
        return NodeIndex(nodes, to_check, with_call, *counts, index.launch_of_slot, index.launch_of_rank)
    by_state: dict[NodeState, int] = dict(index.count_by_state)
    by_type: dict[TypeName, int] = dict(index.count_by_type)
    for changed, more in ((uncounted, -1), (counted, 1)):
        for node in changed:
            by_state[node.state] = by_state.get(node.state, 0) + more
            if node.may_be_billed:
                by_type[node.launch.type_name] = by_type.get(node.launch.type_name, 0) + more
    of_slot, of_rank = _slots_and_ranks(uncounted, counted, index)
    return NodeIndex(nodes, to_check, with_call, by_state, by_type, of_slot, of_rank)


def _slots_and_ranks(
    uncounted: Iterable[Node], counted: Iterable[Node], index: NodeIndex
) -> tuple[Mapping[SlotName, LaunchId], Mapping[Rank, LaunchId]]:
    """The launch of each slot and of each rank, after some nodes were removed, replaced or added."""
    removed = {node.launch.id: node.launch for node in uncounted}
    added: list[Launch] = []
    for node in counted:
        if removed.get(node.launch.id) is node.launch:
            del removed[node.launch.id]  # its slot and rank are unchanged
        else:
            added.append(node.launch)
    if not removed and not added:
        return index.launch_of_slot, index.launch_of_rank
    slots, ranks = dict(index.launch_of_slot), dict(index.launch_of_rank)
    for launch in removed.values():
        if slots.get(launch.slot) == launch.id:
            del slots[launch.slot]
        if ranks.get(launch.rank) == launch.id:
            del ranks[launch.rank]
    for launch in added:
        slots[launch.slot] = launch.id
        ranks[launch.rank] = launch.id
    return slots, ranks
