"""Find the nodes that are to be replaced, and why: they are too old, made differently, or an operator says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import Launch, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.core.upkeep.rules import Drift, changed_parts
from nodemanager.planner.observe.operator import with_words
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Make, Snapshot

UNDER_WAY = (NodeState.DRAINING, NodeState.STOPPING)


def why_due(launch: Launch, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why a node is to be replaced; None if it is not."""
    mark = snapshot.operator.steering.replacements.get(launch.id)
    if mark is not None:
        return with_words(because(Code.REPLACED_BY_OPERATOR, by=mark.by, since_at=mark.at), mark)
    node_type = policy.types.get(launch.type_name)
    if node_type is None:
        return None
    if policy.upkeep.drift is Drift.REPLACE and (changed := drift_of(launch, node_type)):
        return because(Code.DRIFTED, node_type=node_type.name, changed=changed)
    age_s = snapshot.wall_at - launch.requested_at
    if node_type.max_age_s is None or age_s < node_type.max_age_s:
        return None
    return because(Code.TOO_OLD, age_s=age_s, max_age_s=node_type.max_age_s)


def drift_of(launch: Launch, node_type: NodeType) -> tuple[str, ...]:
    """In what a node differs from what the site would make today; empty if in nothing, or that is unknown."""
    return _drift((launch.type_name, launch.made_from, launch.zone, launch.prepaid), node_type)


def is_on_its_way_out(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it was drained to be replaced: it gets no more work, and is not kept for waiting jobs."""
    drained = node.rank is not None and node.rank.drain_reason == drain_text(node.id)
    if not drained and node.state not in UNDER_WAY:
        return False
    due = why_owed(node) is not None or why_due(node.launch, snapshot, policy) is not None
    return due and not snapshot.steered(node)


def why_owed(node: Node) -> Reason | None:
    """Why the provider wants the node back as soon as no job runs there; None if it does not."""
    if node.cloud is None or not node.cloud.tenure.owed:
        return None
    return because(Code.OWED_TO_OTHERS, detail=node.cloud.tenure.owed)


def due_nodes(snapshot: Snapshot, policy: Policy) -> Mapping[LaunchId, Reason]:
    """All nodes that are due, with the reason, by the time of their order. Costs little while none is."""
    found: dict[LaunchId, Reason] = {}
    for id_ in (*_too_old(snapshot, policy), *_drifted(snapshot, policy), *snapshot.operator.steering.replacements):
        node = snapshot.nodes.get(id_)
        if node is not None and id_ not in found:
            why = why_due(node.launch, snapshot, policy)
            if why is not None:
                found[id_] = why
    return dict(sorted(found.items(), key=lambda it: (snapshot.nodes[it[0]].launch.requested_at, it[0])))


def drifted_nodes(snapshot: Snapshot, policy: Policy) -> list[Node]:
    """The nodes that were made from something else than the site says now."""
    counts = node_index_of(snapshot).count_by_make
    drifted = {make for make in counts if (of := policy.types.get(make[0])) is not None and _drift(make, of)}
    if not drifted:
        return []
    launches = ((node, node.launch) for node in snapshot.nodes.values() if node.state is not NodeState.GONE)
    return [node for node, it in launches if (it.type_name, it.made_from, it.zone, it.prepaid) in drifted]


def next_due_at(snapshot: Snapshot, policy: Policy) -> float:
    """When the next node becomes too old; infinity if none does. Seconds since the epoch."""
    ages_s, first_at = _ages(policy), inf
    for at, id_ in node_index_of(snapshot).by_age if ages_s else ():
        if at + min(ages_s) >= first_at:
            break
        node_type = policy.types.get(snapshot.nodes[id_].launch.type_name)
        if (
            node_type is not None
            and node_type.max_age_s is not None
            and at + node_type.max_age_s > snapshot.wall_at
        ):
            first_at = min(first_at, at + node_type.max_age_s)
    return first_at


def _too_old(snapshot: Snapshot, policy: Policy) -> Iterator[LaunchId]:
    """The nodes that may be too old: at least of the least age that a type allows."""
    ages_s = _ages(policy)
    if not ages_s:
        return
    for at, id_ in node_index_of(snapshot).by_age:
        if snapshot.wall_at - at < min(ages_s):
            return
        yield id_


def _ages(policy: Policy) -> list[float]:
    return [it.max_age_s for it in policy.node_types if it.max_age_s is not None]


def _drifted(snapshot: Snapshot, policy: Policy) -> Iterator[LaunchId]:
    if policy.upkeep.drift is Drift.REPLACE:
        yield from (node.id for node in drifted_nodes(snapshot, policy))


def _drift(make: Make, node_type: NodeType) -> tuple[str, ...]:
    _, made_from, zone, _ = make
    changed = changed_parts(made_from, node_type.made_from) if made_from != node_type.made_from else ()
    return (*changed, "zone") if zone and node_type.zones and zone not in node_type.zones else changed
