"""Safe mode: what is seen is more likely wrong than true, so nothing is done until it is seen otherwise.

One state, with its reason and what ends it. It begins where a large part of the fleet is away at once (a network
that is cut, a rank 0 that has just come back) or where a list lacks a large part of the nodes. It ends by itself:
what is seen again for long enough is believed.
"""

from __future__ import annotations

from nodemanager.core.nodes import NodeState
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

WERE_UP = (NodeState.IDLE, NodeState.BUSY, NodeState.LOST, NodeState.DRAINING)


def why_safe_mode(snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why nothing is done now, and until when; None where what is seen may be true."""
    if 0 < snapshot.doubted_lists <= policy.absences:
        return because(
            "safe_mode",
            why="the provider's list lacks a large part of the fleet at once",
            ends="it shows the nodes again, or as many lists in a row as lists_max lack them",
            lists=snapshot.doubted_lists,
            lists_max=policy.absences + 1,
        )
    if snapshot.unready_since_s is None:
        return None
    until_s = snapshot.unready_since_s + policy.safe_mode_max_s
    if snapshot.now_s >= until_s:
        return None  # they do not come back: it is true
    unready, up = _unready(snapshot)
    return because(
        "safe_mode",
        why="too large a part of the fleet is unready",
        ends="no more than unready_max are, or until then",
        unready=unready,
        nodes=up,
        unready_max=_most(up, policy),
        until_s=until_s,
    )


def unready_since_s(snapshot: Snapshot, policy: Policy) -> float | None:
    """Since when too large a part of the nodes that were up has been unready, after a look at the ranks."""
    unready, up = _unready(snapshot)
    if unready <= _most(up, policy):
        return None
    return snapshot.unready_since_s if snapshot.unready_since_s is not None else snapshot.now_s


def _unready(snapshot: Snapshot) -> tuple[int, int]:
    """How many nodes are lost or hang, of how many that were up."""
    roll = node_index_of(snapshot)
    hung = [
        node
        for node in roll.to_check.values()
        if not node.is_sound
        and node.state is not NodeState.LOST
        and node.state in WERE_UP
        and node.rank is not None
        and node.rank.torpid
    ]
    return roll.count_by_state.get(NodeState.LOST, 0) + len(hung), sum(
        roll.count_by_state.get(state, 0) for state in WERE_UP
    )


def _most(up: int, policy: Policy) -> int:
    return max(policy.unready_nodes, int(up * policy.unready_max))
