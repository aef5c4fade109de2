"""Nodes that are not terminated because data of their jobs may still be there."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from nodemanager.core.nodes import UnsafeData
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

NAMES_MAX = 10
NEVER = "never"


def unsafe_data(node: Node, policy: Policy) -> tuple[UnsafeData, ...]:
    """The jobs that ended on the node and whose data is not safe, the oldest first; none if its type does not wait.

    A type that the site no longer has is taken to wait, because the look at its rank shows such jobs.
    """
    if node.rank is None or not node.rank.unsafe or policy.upkeep.wait_for_data == NEVER:
        return ()
    node_type = policy.types.get(node.launch.type_name)
    if node_type is not None and policy.upkeep.wait_for_data not in node_type.properties:
        return ()
    return tuple(it for it in node.rank.unsafe if it.ended_at >= node.launch.requested_at)


def why_held_for_data(node: Node, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why the node may not be terminated; None if no data is awaited, or an operator retires it all the same."""
    unsafe = unsafe_data(node, policy)
    if not unsafe or node.id in snapshot.operator.steering.retirements:
        return None
    return because(Code.HELD_FOR_DATA, jobs=_names(unsafe), lasts_s=snapshot.wall_at - unsafe[0].ended_at)


def why_data_overdue(node: Node, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why somebody should look after the data on the node; None if it is not overdue."""
    late = [it for it in unsafe_data(node, policy) if snapshot.wall_at - it.ended_at >= policy.upkeep.data_max_s]
    if not late:
        return None
    return because(
        Code.DATA_NOT_SAFE,
        node=node.launch.slot,
        jobs=_names(tuple(late)),
        lasts_s=snapshot.wall_at - late[0].ended_at,
        data_max_s=policy.upkeep.data_max_s,
    )


def data_alarms(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """The nodes whose data somebody should look after."""
    if policy.upkeep.wait_for_data == NEVER:
        return
    for node in snapshot.nodes.values():
        if (why := why_data_overdue(node, snapshot, policy)) is not None:
            yield why


def overdue_at_s(node: Node, snapshot: Snapshot, policy: Policy) -> float:
    """When data on the node becomes overdue, in monotonic time; infinity if none does later."""
    ends = (it.ended_at + policy.upkeep.data_max_s for it in unsafe_data(node, policy))
    later = [at for at in ends if at > snapshot.wall_at]
    return snapshot.now_s + (later[0] - snapshot.wall_at) if later else inf


def _names(unsafe: tuple[UnsafeData, ...]) -> tuple[str, ...]:
    return tuple(str(it.job) for it in unsafe[:NAMES_MAX])
