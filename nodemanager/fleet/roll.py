"""The nodes as the planner asks for them: those where something may be to decide, and how many there are.

Most nodes of a fleet at work are busy, and nothing is to be decided about a busy node. So a tick goes through the
others only. Whoever changes nodes does it here (:func:`with_nodes`), which keeps the roll beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodemanager.fleet.ground import DRAIN_MARK
from nodemanager.fleet.remade import replace
from nodemanager.fleet.snapshot import Node, Roll, Snapshot
from nodemanager.model import CallKind, Launch, LaunchId, NodeState, TypeName


def roll_of(snapshot: Snapshot) -> Roll:
    """The roll of the snapshot's nodes: the one that is kept, if it is theirs."""
    if snapshot.roll.nodes is snapshot.nodes:
        return snapshot.roll
    return _called(Roll(), snapshot.nodes, (), snapshot.nodes.values())


def with_nodes(snapshot: Snapshot, changed: Mapping[LaunchId, Node], gone: Sequence[LaunchId] = ()) -> Snapshot:
    """The snapshot with some nodes new or otherwise, and some no more."""
    if not changed and not gone:
        return snapshot
    nodes = dict(snapshot.nodes)
    before = [nodes[id_] for id_ in {**dict.fromkeys(changed), **dict.fromkeys(gone)} if id_ in nodes]
    nodes.update(changed)
    for id_ in gone:
        nodes.pop(id_, None)
    return replace(snapshot, nodes=nodes, roll=_called(roll_of(snapshot), nodes, before, changed.values()))


def calls_in_flight(snapshot: Snapshot, *kinds: CallKind) -> int:
    """How many calls of these kinds are under way."""
    return sum(
        1 for node in roll_of(snapshot).calling.values() if node.call is not None and node.call.kind in kinds
    )


def at_rest(node: Node) -> bool:
    """Whether it is at work, and nothing is to be decided about it."""
    return (
        node.state is NodeState.BUSY
        and node.call is None
        and node.retry_s == 0.0
        and node.absences == 0
        and not (node.rank is not None and (node.rank.torpid or node.rank.housekeeping_since_at is not None))
        and node.reclaimed is None
        and not node.housekeeping_kills
        and not node.left_s
        and not (node.cloud is not None and node.cloud.impaired)
        and node.misfit is None
        and not (node.rank is not None and (node.rank.drain_reason or "").startswith(DRAIN_MARK))
    )


def _called(roll: Roll, nodes: Mapping[LaunchId, Node], before: Iterable[Node], after: Iterable[Node]) -> Roll:
    restless: dict[LaunchId, Node] = dict(roll.restless)
    calling: dict[LaunchId, Node] = dict(roll.calling)
    states: dict[NodeState, int] = dict(roll.states)
    types: dict[TypeName, int] = dict(roll.types)
    left: dict[LaunchId, Launch] = {}
    for node in before:
        restless.pop(node.id, None)
        calling.pop(node.id, None)
        states[node.state] -= 1
        if node.costs:
            types[node.launch.type_name] -= 1
        left[node.id] = node.launch
    came: list[Launch] = []
    for node in after:
        if not at_rest(node):
            restless[node.id] = node
        if node.call is not None:
            calling[node.id] = node
        states[node.state] = states.get(node.state, 0) + 1
        if node.costs:
            types[node.launch.type_name] = types.get(node.launch.type_name, 0) + 1
        if left.pop(node.id, None) is not node.launch:
            came.append(node.launch)
    of_slot, of_rank = roll.of_slot, roll.of_rank
    if left or came:
        gone = set(left)
        of_slot = {slot: id_ for slot, id_ in of_slot.items() if id_ not in gone} if gone else dict(of_slot)
        of_rank = {rank: id_ for rank, id_ in of_rank.items() if id_ not in gone} if gone else dict(of_rank)
        of_slot.update((launch.slot, launch.id) for launch in came)
        of_rank.update((launch.rank, launch.id) for launch in came)
    return Roll(nodes, restless, calling, states, types, of_slot, of_rank)
