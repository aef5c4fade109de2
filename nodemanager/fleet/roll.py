"""The nodes as the planner asks for them: those where something may be to decide, and how many there are.

Most nodes of a fleet at work are busy, and nothing is to be decided about a busy node. So a tick goes through the
others only. Whoever changes nodes does it here (:func:`with_nodes`), which keeps the roll beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodemanager.fleet.ground import DRAIN_MARK
from nodemanager.fleet.remade import replace
from nodemanager.fleet.snapshot import Node, Roll, Snapshot
from nodemanager.model import CallKind, Launch, LaunchId, NodeState, Rank, SlotName, TypeName


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
        and not (node.rank is not None and (node.rank.drain_reason or "").startswith(DRAIN_MARK))
        and (node.sound or not _is_the_matter(node))
    )


def _is_the_matter(node: Node) -> bool:
    return (
        (node.rank is not None and (node.rank.torpid or node.rank.housekeeping_since_at is not None))
        or node.reclaimed is not None
        or node.housekeeping_kills > 0
        or bool(node.left_s)
        or (node.cloud is not None and bool(node.cloud.impaired))
        or node.misfit is not None
    )


def _called(roll: Roll, nodes: Mapping[LaunchId, Node], before: Iterable[Node], after: Iterable[Node]) -> Roll:
    restless: dict[LaunchId, Node] = dict(roll.restless)
    calling: dict[LaunchId, Node] = dict(roll.calling)
    states: dict[NodeState, int] = dict(roll.states)
    types: dict[TypeName, int] = dict(roll.types)
    left: dict[LaunchId, Launch] = {}
    for node in before:
        launch, state = node.launch, node.state
        restless.pop(launch.id, None)
        calling.pop(launch.id, None)
        states[state] -= 1
        if state is not NodeState.GONE:
            types[launch.type_name] -= 1
        left[launch.id] = launch
    came: list[Launch] = []
    moved: list[Launch] = []
    for node in after:
        launch, state = node.launch, node.state
        if not at_rest(node):
            restless[launch.id] = node
        if node.call is not None:
            calling[launch.id] = node
        states[state] = states.get(state, 0) + 1
        if state is not NodeState.GONE:
            types[launch.type_name] = types.get(launch.type_name, 0) + 1
        was = left.pop(launch.id, None)
        if was is not launch:
            came.append(launch)
            moved += [was] if was is not None else []
    of_slot, of_rank = roll.of_slot, roll.of_rank
    if left or came:
        of_slot, of_rank = _where([*left.values(), *moved], came, of_slot, of_rank)
    return Roll(nodes, restless, calling, states, types, of_slot, of_rank)


def _where(
    left: Iterable[Launch],
    came: Iterable[Launch],
    of_slot: Mapping[SlotName, LaunchId],
    of_rank: Mapping[Rank, LaunchId],
) -> tuple[Mapping[SlotName, LaunchId], Mapping[Rank, LaunchId]]:
    """Which launch each slot and each rank has, after some left theirs and others came to theirs."""
    slots, ranks = dict(of_slot), dict(of_rank)
    for launch in left:
        if slots.get(launch.slot) == launch.id:
            del slots[launch.slot]
        if ranks.get(launch.rank) == launch.id:
            del ranks[launch.rank]
    for launch in came:
        slots[launch.slot] = launch.id
        ranks[launch.rank] = launch.id
    return slots, ranks
