"""The roster for the join service: which launch holds each slot, and whether its node may still join."""

from __future__ import annotations

from nodemanager.core.nodes import NodeState, Roster, RosterEntry
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

# Nodes in these states have yet to join. A node that was online before keeps its key material.
JOINING = (NodeState.REQUESTED, NodeState.BOOTING)


def roster(snapshot: Snapshot, policy: Policy) -> Roster:
    """Every launch that is on record and not proven gone, ordered by slot."""
    nodes = sorted(snapshot.nodes.values(), key=lambda node: (node.launch.slot, node.id))
    return tuple(
        _entry(node, policy) for node in nodes if node.create.recorded and node.state is not NodeState.GONE
    )


def _entry(node: Node, policy: Policy) -> RosterEntry:
    until_at = node.launch.requested_at + policy.timing.boot_timeout_s
    return RosterEntry(
        launch=node.id,
        slot=node.launch.slot,
        redeemable_until_at=until_at if node.state in JOINING else 0.0,
        may_start=node.state is not NodeState.STOPPING,
        online=node.rank is not None and node.rank.online,
        addresses=node.cloud.addresses if node.cloud is not None else (),
        provider_id=node.cloud.provider_id if node.cloud is not None and node.state in JOINING else None,
        cloud=policy.only_cloud(policy.cloud_of(node.launch)),
    )
