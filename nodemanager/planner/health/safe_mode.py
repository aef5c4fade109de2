"""Safe mode: do nothing in a cloud while a report about it is more likely wrong than true.

If a large part of a cloud's nodes disappears at once, the manager suspects the report before it acts on it. Safe
mode begins when many nodes are unready at once (a broken network, a rank 0 that has just returned) or when a list
lacks many nodes. It ends by itself: the manager believes a report that persists long enough.
"""

from __future__ import annotations

from math import inf

from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

WERE_UP = (NodeState.IDLE, NodeState.BUSY, NodeState.LOST, NodeState.DRAINING)


def why_safe_mode(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Reason | None:
    """Why nothing is done in a cloud now, and until when; None if the reports may be true."""
    account = snapshot.account_of(cloud)
    if 0 < account.doubted_lists <= policy.timing.absences:
        return because(
            Code.SAFE_MODE,
            why="the provider's list lacks a large part of the fleet at once",
            ends="it shows the nodes again, or as many lists in a row as lists_max lack them",
            lists=account.doubted_lists,
            lists_max=policy.timing.absences + 1,
        )
    if account.unready_since_s is None:
        return None
    until_s = account.unready_since_s + policy.timing.safe_mode_max_s
    if snapshot.now_s >= until_s:
        return None  # they did not return: the report is true
    unready, up = _count_unready(snapshot, policy, cloud)
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
    known = (it.unready_since_s for it in snapshot.accounts.values())
    ends_s = (since_s + policy.timing.safe_mode_max_s for since_s in known if since_s is not None)
    return min((until_s for until_s in ends_s if until_s > snapshot.now_s), default=inf)


def with_unready(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The snapshot with since when too large a part of each cloud's nodes is unready, after a look at the ranks."""
    for cloud in policy.cloud_names:
        account = snapshot.account_of(cloud)
        unready, up = _count_unready(snapshot, policy, cloud)
        since_s = account.unready_since_s
        if unready <= _unready_allowed(up, policy):
            since_s = None
        elif since_s is None:
            since_s = snapshot.now_s
        if since_s != account.unready_since_s:
            snapshot = snapshot.with_account(cloud, replace(account, unready_since_s=since_s))
    return snapshot


def _count_unready(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> tuple[int, int]:
    """How many nodes of a cloud are lost or hang, and how many were up."""
    node_index = node_index_of(snapshot)
    if len(node_index.count_by_cloud) > 1:
        up = [it for it in snapshot.nodes.values() if it.state in WERE_UP and policy.cloud_of(it.launch) == cloud]
        return sum(1 for node in up if node.state is NodeState.LOST or _hangs(node)), len(up)
    if not any(policy.cloud_of_name(name) == cloud for name in node_index.count_by_cloud):
        return 0, 0
    hung = [node for node in node_index.to_check.values() if node.state in WERE_UP and _hangs(node)]
    return node_index.count_by_state.get(NodeState.LOST, 0) + len(hung), sum(
        node_index.count_by_state.get(state, 0) for state in WERE_UP
    )


def _hangs(node: Node) -> bool:
    lost = node.state is NodeState.LOST
    return not node.is_sound and not lost and node.rank is not None and node.rank.torpid


def _unready_allowed(up: int, policy: Policy) -> int:
    return max(policy.fixed.unready_nodes, int(up * policy.rules.unready_max))
