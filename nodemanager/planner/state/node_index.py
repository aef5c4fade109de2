"""An index of the nodes: those that may need a decision, and counts of all.

In a working fleet most nodes are busy and need no decision, so a plan checks only the others. Change nodes only
through :func:`with_nodes`, which updates the index with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodemanager.core.drains import is_our_drain
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.snapshot import Node, NodeIndex, Snapshot
from nodemanager.core.nodes import CallKind, Launch, LaunchId, NodeState
from nodemanager.core.slots import Rank, SlotName, TypeName


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
    return replace(snapshot, nodes=nodes, node_index=_updated(node_index_of(snapshot), nodes, before, changed.values()))


def calls_in_flight(snapshot: Snapshot, *kinds: CallKind) -> int:
    """How many calls of these kinds are in flight."""
    return sum(
        1 for node in node_index_of(snapshot).with_call.values() if node.call is not None and node.call.kind in kinds
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


def _updated(index: NodeIndex, nodes: Mapping[LaunchId, Node], before: Iterable[Node], after: Iterable[Node]) -> NodeIndex:
    restless: dict[LaunchId, Node] = dict(index.to_check)
    calling: dict[LaunchId, Node] = dict(index.with_call)
    left: dict[LaunchId, Node] = {}
    for node in before:
        id_ = node.launch.id
        restless.pop(id_, None)
        calling.pop(id_, None)
        left[id_] = node
    came: list[Node] = []
    moved: list[Node] = []
    for node in after:
        id_ = node.launch.id
        if not is_simply_busy(node):
            restless[id_] = node
        if node.call is not None:
            calling[id_] = node
        was = left.pop(id_, None)
        if was is None or was.state is not node.state or was.launch is not node.launch:
            came.append(node)
            moved += [was] if was is not None else []
    moved += left.values()
    if not moved and not came:
        return NodeIndex(nodes, restless, calling, index.count_by_state, index.count_by_type, index.launch_of_slot, index.launch_of_rank)
    states: dict[NodeState, int] = dict(index.count_by_state)
    types: dict[TypeName, int] = dict(index.count_by_type)
    for those, more in ((moved, -1), (came, 1)):
        for node in those:
            states[node.state] = states.get(node.state, 0) + more
            if node.may_be_billed:
                types[node.launch.type_name] = types.get(node.launch.type_name, 0) + more
    of_slot, of_rank = _update_places(moved, came, index)
    return NodeIndex(nodes, restless, calling, states, types, of_slot, of_rank)


def _update_places(
    moved: Iterable[Node], came: Iterable[Node], index: NodeIndex
) -> tuple[Mapping[SlotName, LaunchId], Mapping[Rank, LaunchId]]:
    """The launch of each slot and of each rank, after some nodes were removed, replaced or added."""
    left = {node.launch.id: node.launch for node in moved}
    taken: list[Launch] = []
    for node in came:
        if left.get(node.launch.id) is node.launch:
            del left[node.launch.id]  # its slot and rank are unchanged
        else:
            taken.append(node.launch)
    if not left and not taken:
        return index.launch_of_slot, index.launch_of_rank
    slots, ranks = dict(index.launch_of_slot), dict(index.launch_of_rank)
    for launch in left.values():
        if slots.get(launch.slot) == launch.id:
            del slots[launch.slot]
        if ranks.get(launch.rank) == launch.id:
            del ranks[launch.rank]
    for launch in taken:
        slots[launch.slot] = launch.id
        ranks[launch.rank] = launch.id
    return slots, ranks
