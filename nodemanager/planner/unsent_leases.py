"""Review leases whose create was not sent yet: until it is, ending a lease costs nothing.

Creates are sent one by one at the site's pace, or wait for a provider that refuses them. Meanwhile jobs may be
cancelled or start elsewhere, and limits may be lowered.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from decimal import Decimal

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import COMING, USABLE, CallKind, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import TypeName
from nodemanager.planner.backoff.allowance import unavailable_types
from nodemanager.planner.basis import Basis
from nodemanager.planner.cost import billing, fleet
from nodemanager.planner.limits.type_limits import type_counts
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.steps.context import LeaseReview
from nodemanager.planner.steps.taking_jobs import count_beyond_nodes_min, count_of_types, count_ready


def leases_without_create(snapshot: Snapshot) -> list[Node]:
    """The nodes that are nothing but a lease on record: their create was not sent."""
    index = node_index_of(snapshot)
    if not index.count_by_state.get(NodeState.REQUESTED):
        return []
    return [node for node in index.to_check.values() if may_end(node)]


def review(basis: Basis, settling: Reason | None) -> Mapping[LaunchId, LeaseReview]:
    """Which leases get no create now, and why.

    ``settling``: why no node is bought yet; None if nodes may be bought. Unwanted leases end only then: if they
    ended earlier, the next plan could lease slots again for the same jobs.
    """
    unsent, snapshot, policy = leases_without_create(basis.snapshot), basis.snapshot, basis.policy
    if not unsent:
        return {}
    reviewed = {node.id: _only_observed(node) for node in unsent if node.launch.type_name in policy.observed}
    closed = snapshot.closed_clouds
    if closed:
        clouds = {node.id: policy.cloud_of(node.launch) for node in unsent}
        reviewed |= {id_: LeaseReview(closed[cloud]) for id_, cloud in clouds.items() if cloud in closed}
    rest = [node for node in unsent if node.id not in reviewed]
    reviewed |= _above_limits(rest, basis, reviewed)
    idle = [node for node in _unneeded(rest, basis) if node.id not in reviewed]
    if settling is not None:
        return reviewed | {node.id: LeaseReview(settling, ends=False) for node in idle}
    return reviewed | _unwanted(_not_awaited(idle, basis), basis, reviewed)


def may_end(node: Node) -> bool:
    """Whether it is certainly nothing but a lease on record, without a call in flight."""
    return is_unsent(node) and node.create.recorded and node.call is None


def is_unsent(node: Node) -> bool:
    """Whether the node's create was not sent yet."""
    return node.state is NodeState.REQUESTED and node.create.sent_s is None


def ending_leases(snapshot: Snapshot) -> list[Node]:
    """The nodes whose lease is being ended: still on record, but they will not be made."""
    return [
        node
        for node in node_index_of(snapshot).with_call.values()
        if node.call is not None and node.call.kind is CallKind.END_LEASE and node.may_be_billed
    ]


def _only_observed(node: Node) -> LeaseReview:
    return LeaseReview(because(Code.ONLY_OBSERVED, node_type=node.launch.type_name))


def _unneeded(leases: Sequence[Node], basis: Basis) -> list[Node]:
    """The leases that no waiting job needs and nothing else keeps."""
    snapshot, policy, needed = basis.snapshot, basis.policy, basis.needs.needed
    kept = _unavailable_types(basis)
    # If nodes come in the order of their slots, a wanted one needs all below it.
    wanted = [node.launch.rank for node in leases if policy.stacked and node.launch.slot in needed]
    return [
        node
        for node in leases
        if node.launch.slot not in needed
        and not (wanted and node.launch.rank < max(wanted))
        and node.launch.type_name not in kept
        and not snapshot.steered(node)
    ]


def _unavailable_types(basis: Basis) -> Container[TypeName]:
    """The types that cannot be bought now although jobs want more nodes: their leases are kept.

    A single node that probes a quota (``backoff``) may serve no job if a job needs several. If its lease ended, the
    next plan would buy it again. Leases also outlast a block of all types.
    """
    placement = basis.placement
    if all(placement.count_served(key) == len(ids) for key, ids in placement.batches.items()):
        return ()
    return unavailable_types(basis.snapshot, basis.policy)


# --- limits -----------------------------------------------------------------------------------------------


def _above_limits(
    leases: Sequence[Node], basis: Basis, ended: Mapping[LaunchId, LeaseReview]
) -> dict[LaunchId, LeaseReview]:
    """End as many leases as the fleet is above a limit, because it was lowered or because strays count too."""
    snapshot, policy = basis.snapshot, basis.policy
    node_index = node_index_of(snapshot)
    ending = [*ending_leases(snapshot), *(snapshot.nodes[id_] for id_ in ended)]
    nodes = sum(node_index.count_by_type.values()) + len(fleet.ownerless_strays(snapshot)) - len(ending)
    price = basis.price_per_hour - sum((billing.price_per_hour(node.launch, policy) for node in ending), Decimal(0))
    reviewed: dict[LaunchId, LeaseReview] = {}
    if nodes <= policy.limits.nodes_max and price <= policy.limits.price_per_hour_max:
        return reviewed
    reason = because(
        Code.LEASE_ABOVE_LIMITS,
        node_count=nodes,
        nodes_max=policy.limits.nodes_max,
        price_per_hour=price,
        price_per_hour_max=policy.limits.price_per_hour_max,
    )
    for node in sorted(leases, key=lambda node: _order_of_worth(node, basis)):
        its_price = billing.price_per_hour(node.launch, policy)
        if nodes > policy.limits.nodes_max or (price > policy.limits.price_per_hour_max and its_price > 0):
            reviewed[node.id] = LeaseReview(reason)
            nodes, price = nodes - 1, price - its_price
    return reviewed


def _order_of_worth(node: Node, basis: Basis) -> tuple[bool, int, int, float, LaunchId]:
    """The sort key of leases, the least useful first: unwanted ones, then those for the last jobs in the queue."""
    jobs = basis.needs.needed.get(node.launch.slot, ())
    first = min((_queue_position(job, basis.snapshot) for job in jobs), default=(0, 0))
    return bool(jobs), -first[0], -first[1], -node.create.requested_s, node.id


def _queue_position(job: JobId, snapshot: Snapshot) -> tuple[int, int]:
    return -snapshot.jobs[job].priority, job


# --- unwanted leases --------------------------------------------------------------------------------------


def _not_awaited(leases: list[Node], basis: Basis) -> list[Node]:
    """The leases without those that upkeep waits for. Nodes that boot for no job count towards these first."""
    awaited = basis.upkeep.awaited
    if not awaited:
        return leases
    left, ids = dict(awaited), {node.id for node in leases}
    for node in node_index_of(basis.snapshot).to_check.values():
        if node.state in COMING and node.launch.slot not in basis.needs.needed and node.id not in ids:
            left[node.launch.type_name] = left.get(node.launch.type_name, 0) - 1
    kept: set[LaunchId] = set()
    for node in leases:
        if left.get(node.launch.type_name, 0) > 0:
            left[node.launch.type_name] -= 1
            kept.add(node.id)
    return [node for node in leases if node.id not in kept]


def _unwanted(
    leases: list[Node], basis: Basis, ended: Mapping[LaunchId, LeaseReview]
) -> dict[LaunchId, LeaseReview]:
    """End the leases that no job wants and that neither ``nodes_min`` nor spares need, the dearest first."""
    snapshot, policy = basis.snapshot, basis.policy
    reviewed: dict[LaunchId, LeaseReview] = {}
    if not leases:
        return reviewed
    beyond = count_beyond_nodes_min(snapshot, policy, ended) if policy.limits.nodes_min > 0 else len(leases)
    ready = count_ready(snapshot, policy, basis.needs.needed, ended)
    taking = count_of_types(snapshot, policy, (*USABLE, *COMING), ended) if policy.limited_types else {}
    of_types = type_counts(policy.limited_types, taking, {})
    for node in sorted(
        leases, key=lambda node: (-billing.price_per_hour(node.launch, policy), -node.create.requested_s, node.id)
    ):
        name = node.launch.type_name
        node_type = policy.types.get(name)
        spare = node_type is not None and node_type.spares > 0 and ready.get(name, 0) <= node_type.spares
        if spare or beyond <= 0 or of_types.is_at_min(name):
            continue
        of_types.note(name, -1, takes_jobs=True)
        reviewed[node.id] = LeaseReview(because(Code.LEASE_NOT_WANTED))
        beyond -= 1
        ready[name] = ready.get(name, 0) - 1
    return reviewed
