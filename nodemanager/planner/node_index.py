"""An index of the nodes: those that may need a decision, those at rest by time, and counts of all.

Most nodes are busy and need no decision, or idle and need none until their time comes. A plan checks only the
others. Change nodes only through :func:`with_nodes`, which updates the index with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from nodemanager.core.drains import is_our_drain
from nodemanager.core.nodes import CallKind, Launch, LaunchId, NodeState
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.planner.frozen import replace
from nodemanager.planner.ranks_and_queue import with_changes
from nodemanager.planner.snapshot import Bought, Make, Node, NodeIndex, Resting, Snapshot

Key = TypeVar("Key")


def node_index_of(snapshot: Snapshot) -> NodeIndex:
    """The index of the snapshot's nodes: the stored one if it was built from them, else a new one."""
    if snapshot.indexes.nodes.nodes is snapshot.nodes:
        return snapshot.indexes.nodes
    return _new_index(snapshot, snapshot.indexes.nodes.confirmations)


def with_node_index(snapshot: Snapshot) -> Snapshot:
    """The snapshot with an index of its nodes, so that no reader has to build one."""
    index = node_index_of(snapshot)
    if snapshot.indexes.nodes is index:
        return snapshot
    return replace(snapshot, indexes=replace(snapshot.indexes, nodes=index))


def with_confirmations(snapshot: Snapshot, confirmations: int) -> Snapshot:
    """The snapshot with an index in which a node is at rest after so many looks that found it idle."""
    if snapshot.indexes.nodes.confirmations == confirmations:
        return snapshot
    return replace(snapshot, indexes=replace(snapshot.indexes, nodes=_new_index(snapshot, confirmations)))


def _new_index(snapshot: Snapshot, confirmations: int) -> NodeIndex:
    return _updated(NodeIndex(confirmations=confirmations), snapshot.nodes, (), snapshot.nodes.values())


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
        snapshot,
        nodes=nodes,
        indexes=replace(snapshot.indexes, nodes=_updated(node_index_of(snapshot), nodes, before, changed.values())),
    )


def calls_in_flight(snapshot: Snapshot, *kinds: CallKind) -> Sequence[Node]:
    """The nodes with a call of one of these kinds in flight."""
    return [
        node
        for node in node_index_of(snapshot).with_call.values()
        if node.call is not None and node.call.kind in kinds
    ]


def is_simply_busy(node: Node) -> bool:
    """Whether the node is busy and needs no decision."""
    return (
        node.state is NodeState.BUSY
        and node.call is None
        and node.retry_s == 0.0
        and node.listing.absences == 0
        and not (node.rank is not None and is_our_drain(node.rank.drain_reason))
        and (node.is_sound or not _has_trouble_now(node))
    )


def is_at_rest(node: Node, confirmations: int) -> bool:
    """Whether the node is confirmed idle and has no trouble: only time or demand changes its next step."""
    rank = node.rank
    return (
        node.state is NodeState.IDLE
        and node.seen.idle_looks >= confirmations
        and node.seen.idle_since_s is not None
        and node.call is None
        and node.retry_s == 0.0
        and node.listing.absences == 0
        and node.stop.retiring is None
        and node.is_sound
        and rank is not None
        and rank.idle
        and rank.schedulable
        and rank.drain_reason is None
        and not rank.excluded
        and not rank.unsafe
        and rank.given_back is None
    )


def _has_trouble_now(node: Node) -> bool:
    return (
        (node.rank is not None and (node.rank.torpid or node.rank.housekeeping_since_at is not None))
        or node.health.reclaimed is not None
        or node.health.housekeeping_kills > 0
        or bool(node.health.departures_s)
        or (node.cloud is not None and bool(node.cloud.impaired))
        or node.health.misfit is not None
    )


def _updated(
    index: NodeIndex, nodes: Mapping[LaunchId, Node], before: Iterable[Node], after: Iterable[Node]
) -> NodeIndex:
    """The index of ``nodes``. ``before`` and ``after``: the changed nodes as they were and as they are."""
    to_check: dict[LaunchId, Node] = dict(index.to_check)
    with_call: dict[LaunchId, Node] = dict(index.with_call)
    woken: list[Node] = []
    rested: list[Node] = []
    counts = _CountChanges({node.launch.id: node for node in before})
    for id_, node in counts.before.items():
        if id_ in index.at_rest:
            woken.append(node)
        else:
            to_check.pop(id_, None)
            with_call.pop(id_, None)
    for node in after:
        if is_at_rest(node, index.confirmations):
            rested.append(node)
        elif not is_simply_busy(node):
            to_check[node.launch.id] = node
        if node.call is not None:
            with_call[node.launch.id] = node
        counts.note(node)
    counts.close()
    at_rest, resting = _rest(index, woken, rested)
    updated = replace(index, nodes=nodes, to_check=to_check, with_call=with_call, at_rest=at_rest, resting=resting)
    return counts.applied_to(updated) if counts.states else updated


@dataclass(slots=True)
class _CountChanges:
    """What some changed nodes change in the counts, and in the indexes by what their launches say."""

    before: dict[LaunchId, Node]  # the changed nodes as they were, without those noted
    states: list[tuple[NodeState, int]] = field(default_factory=list)  # the state, and how many more nodes
    billed: list[tuple[Launch, int]] = field(default_factory=list)
    left: list[Launch] = field(default_factory=list)
    joined: list[Launch] = field(default_factory=list)

    def note(self, node: Node) -> None:
        """Note a node as it is now."""
        was = self.before.pop(node.launch.id, None)
        if was is None or was.launch is not node.launch:
            if was is not None:
                self._forget(was)
            self.states.append((node.state, 1))
            self.joined.append(node.launch)
            self.billed += [(node.launch, 1)] if node.may_be_billed else []
        elif was.state is not node.state:
            self.states += [(was.state, -1), (node.state, 1)]
            if was.may_be_billed is not node.may_be_billed:
                self.billed.append((node.launch, 1 if node.may_be_billed else -1))

    def close(self) -> None:
        """Forget the nodes that no longer exist."""
        for was in self.before.values():
            self._forget(was)

    def _forget(self, was: Node) -> None:
        self.states.append((was.state, -1))
        self.left.append(was.launch)
        self.billed += [(was.launch, -1)] if was.may_be_billed else []

    def applied_to(self, index: NodeIndex) -> NodeIndex:
        """The index with the changes."""
        by_state = _counted(index.count_by_state, self.states)
        if not (self.billed or self.left or self.joined):
            return replace(index, count_by_state=by_state)
        of_slot, of_rank = _slots_and_ranks(self.left, self.joined, index)
        by_make, by_age = _makes_and_ages(self.left, self.joined, index)
        clouds = [(it.cloud, -1) for it in self.left] + [(it.cloud, 1) for it in self.joined]
        by_cloud = _counted(index.count_by_cloud, clouds)
        by_size = _counted(index.count_by_size, [(bought_as(launch), more) for launch, more in self.billed])
        return replace(
            index,
            count_by_state=by_state,
            count_by_type=_counted(index.count_by_type, [(launch.type_name, more) for launch, more in self.billed]),
            count_by_size={bought: count for bought, count in by_size.items() if count},
            launch_of_slot=of_slot,
            launch_of_rank=of_rank,
            count_by_make=by_make,
            by_age=by_age,
            count_by_cloud={cloud: count for cloud, count in by_cloud.items() if count},
        )


def _counted(counts: Mapping[Key, int], changes: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    made = dict(counts)
    for key, more in changes:
        made[key] = made.get(key, 0) + more
    return made


def bought_as(launch: Launch) -> Bought:
    """The type, size and market of a launch."""
    return launch.type_name, launch.size, launch.market


def _makes_and_ages(
    left: Iterable[Launch], joined: Iterable[Launch], index: NodeIndex
) -> tuple[Mapping[Make, int], Sequence[tuple[float, LaunchId]]]:
    """What the nodes were made from, and their ages, after launches left or joined."""
    removed, added = {it.id: it for it in left}, {it.id: it for it in joined}
    for id_, launch in list(removed.items()):
        if id_ in added and _make_of(launch) == _make_of(added[id_]):
            del removed[id_], added[id_]
    if not removed and not added:
        return index.count_by_make, index.by_age
    makes = [(_make_of(it), -1) for it in removed.values()] + [(_make_of(it), 1) for it in added.values()]
    counts = _counted(index.count_by_make, makes)
    gone = [(launch.requested_at, id_) for id_, launch in removed.items()]
    come = [(launch.requested_at, id_) for id_, launch in added.items()]
    return {make: count for make, count in counts.items() if count}, with_changes(index.by_age, gone, come)


def _make_of(launch: Launch) -> Make:
    return launch.type_name, launch.made_from, launch.zone, launch.prepaid


def _rest(
    index: NodeIndex, woken: Sequence[Node], rested: Sequence[Node]
) -> tuple[Mapping[LaunchId, Node], Mapping[TypeName, Resting]]:
    """The nodes at rest, after ``woken`` ones were removed and ``rested`` ones added."""
    if not woken and not rested:
        return index.at_rest, index.resting
    at_rest = dict(index.at_rest)
    changes: dict[TypeName, tuple[list[_Times], list[_Times]]] = {}
    for node in woken:
        del at_rest[node.launch.id]
        changes.setdefault(node.launch.type_name, ([], []))[0].append(_times_of(node))
    for node in rested:
        at_rest[node.launch.id] = node
        changes.setdefault(node.launch.type_name, ([], []))[1].append(_times_of(node))
    resting = dict(index.resting)
    for name, (left, joined) in changes.items():
        resting[name] = resting.get(name, Resting()).changed(left, joined)
        if not resting[name].idle_since:
            del resting[name]
    return at_rest, resting


_Times = tuple[float, float, LaunchId]


def _times_of(node: Node) -> _Times:
    idle_since_s = node.seen.idle_since_s if node.seen.idle_since_s is not None else 0.0  # is never None at rest
    return (
        idle_since_s,
        node.listing.billed_from_s if node.listing.billed_from_s is not None else node.create.requested_s,
        node.launch.id,
    )


def _slots_and_ranks(
    left: Iterable[Launch], joined: Iterable[Launch], index: NodeIndex
) -> tuple[Mapping[SlotName, LaunchId], Mapping[Rank, LaunchId]]:
    """The launch of each slot and of each rank, after launches left or joined."""
    if not left and not joined:
        return index.launch_of_slot, index.launch_of_rank
    slots, ranks = dict(index.launch_of_slot), dict(index.launch_of_rank)
    for launch in left:
        if slots.get(launch.slot) == launch.id:
            del slots[launch.slot]
        if ranks.get(launch.rank) == launch.id:
            del ranks[launch.rank]
    for launch in joined:
        slots[launch.slot] = launch.id
        ranks[launch.rank] = launch.id
    return slots, ranks
