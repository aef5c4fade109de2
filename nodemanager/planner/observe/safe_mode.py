"""Safe mode: do nothing while a report is more likely wrong than true.

If a large part of the fleet disappears at once, the manager suspects the report before it acts on it. Safe mode
begins when many nodes are unready at once (a broken network, a rank 0 that has just returned) or when a list lacks
many nodes. It ends by itself: the manager believes a report that persists long enough.
"""

from __future__ import annotations

from math import inf

from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

WERE_UP = (NodeState.IDLE, NodeState.BUSY, NodeState.LOST, NodeState.DRAINING)


def why_safe_mode(snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why nothing is done now, and until when; None if the reports may be true."""
    if 0 < snapshot.sources.doubted_lists <= policy.timing.absences:
        return because(
            Code.SAFE_MODE,
            why="the provider's list lacks a large part of the fleet at once",
            ends="it shows the nodes again, or as many lists in a row as lists_max lack them",
            lists=snapshot.sources.doubted_lists,
            lists_max=policy.timing.absences + 1,
        )
    if snapshot.sources.unready_since_s is None:
        return None
    until_s = snapshot.sources.unready_since_s + policy.timing.safe_mode_max_s
    if snapshot.now_s >= until_s:
        return None  # they did not return: the report is true
    unready, up = _count_unready(snapshot)
    return because(
        Code.SAFE_MODE,
        why="too large a part of the fleet is unready",
        ends="no more than unready_max are, or until then",
        unready=unready,
        node_count=up,
        unready_max=_unready_allowed(up, policy),
        until_s=until_s,
    )


def safe_mode_ends_s(snapshot: Snapshot, policy: Policy) -> float:
    """When safe mode ends by itself because many nodes have stayed unready; infinity if it is not that."""
    if snapshot.sources.unready_since_s is None:
        return inf
    until_s = snapshot.sources.unready_since_s + policy.timing.safe_mode_max_s
    return until_s if until_s > snapshot.now_s else inf


def unready_since_s(snapshot: Snapshot, policy: Policy) -> float | None:
    """Since when too large a part of the nodes that were up has been unready, after a look at the ranks."""
    unready, up = _count_unready(snapshot)
    if unready <= _unready_allowed(up, policy):
        return None
    return snapshot.sources.unready_since_s if snapshot.sources.unready_since_s is not None else snapshot.now_s


def _count_unready(snapshot: Snapshot) -> tuple[int, int]:
    """How many nodes are lost or hang, and how many were up."""
    node_index = node_index_of(snapshot)
    hung = [
        node
        for node in node_index.to_check.values()
        if not node.is_sound
        and node.state is not NodeState.LOST
        and node.state in WERE_UP
        and node.rank is not None
        and node.rank.torpid
    ]
    return node_index.count_by_state.get(NodeState.LOST, 0) + len(hung), sum(
        node_index.count_by_state.get(state, 0) for state in WERE_UP
    )


def _unready_allowed(up: int, policy: Policy) -> int:
    return max(policy.fixed.unready_nodes, int(up * policy.rules.unready_max))
