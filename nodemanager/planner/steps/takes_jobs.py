"""Whether a node takes jobs."""

from __future__ import annotations

from nodemanager.core.drains import drained_by_others
from nodemanager.core.nodes import USABLE, CallKind
from nodemanager.planner.health.node_health import gets_no_work
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.upkeep.due import is_on_its_way_out


def takes_jobs(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a node gets jobs once it is up. If not, keeping it ready is useless.

    A scheduler that was reloaded, or has not noticed the node yet, gets a moment to do so.
    """
    rank = node.rank
    if snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s) or _is_lease_ending(node):
        return False
    if is_on_its_way_out(node, snapshot, policy):
        return False
    if rank is None:
        return True
    if rank.excluded or rank.given_back is not None or drained_by_others(rank):
        return False
    unschedulable = node.state in USABLE and not (rank.schedulable or rank.drain_reason)
    return not unschedulable or snapshot.now_s - node.seen.rank_seen_s < policy.timing.rejoin_timeout_s


def _is_lease_ending(node: Node) -> bool:
    return node.call is not None and node.call.kind is CallKind.END_LEASE
