"""Review leases whose create was not sent yet: until it is, ending a lease costs nothing.

Creates are sent one by one at the site's pace, or wait for a provider that refuses them. Meanwhile jobs may be
cancelled or start elsewhere, and limits may be lowered.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from decimal import Decimal
from math import inf

from nodemanager.core.drains import drain_text, is_drain_by_flux
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import (
    COMING,
    USABLE,
    CallKind,
    CloudState,
    FluxRank,
    Identity,
    Launch,
    LaunchId,
    NodeState,
)
from nodemanager.core.orders import CordonNode, DestroyNode, RecordLaunches
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, ForeignDrain, NodeType, SlotName, Tariff, TypeName
from nodemanager.planner import billing
from nodemanager.planner.backoff import group_of, unavailable_types
from nodemanager.planner.basis import Basis
from nodemanager.planner.breakers import may_record
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_health import count_beyond_nodes_min, count_of_types, count_ready
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.slot_types import type_counts
from nodemanager.planner.snapshot import Node, Snapshot, Stray
from nodemanager.planner.step_context import LeaseReview


def review(
    basis: Basis, settling: Reason | None, no_purchases: Reason | None = None
) -> Mapping[LaunchId, LeaseReview]:
    """Which leases get no create now, and why.

    ``settling``: why no node is bought yet; None if nodes may be bought. Unwanted leases end only then: if they
    ended earlier, the next plan could lease slots again for the same jobs. ``no_purchases``: why no node is bought
    whatever the jobs need. A lease on record may still become a node then, unless nobody can steer the manager.
    """
    snapshot, policy, node_index = basis.snapshot, basis.policy, node_index_of(basis.snapshot)
    if not any(map(node_index.count_by_state.get, (NodeState.REQUESTED, NodeState.BOOTING))):
        return {}
    unsent = [node for node in node_index.to_check.values() if may_end(node)]
    queued = [node for node in node_index.to_check.values() if _may_leave_queue(node, snapshot, policy)]
    if not unsent and not queued:
        return {}
    reviewed = {node.id: _only_observed(node) for node in unsent if node.launch.type_name in policy.observed}
    closed = snapshot.closed_clouds
    if closed:
        clouds = {node.id: policy.cloud_of(node.launch) for node in unsent}
        reviewed |= {id_: LeaseReview(closed[cloud]) for id_, cloud in clouds.items() if cloud in closed}
    rest = [node for node in (*unsent, *queued) if node.id not in reviewed]
    reviewed |= _above_limits(rest, basis, reviewed)
    idle = [node for node in _unneeded(rest, basis) if node.id not in reviewed]
    if settling is not None:
        reviewed |= {node.id: LeaseReview(settling, ends=False) for node in idle}
    else:
        reviewed |= _unwanted(_not_awaited(idle, basis), basis, reviewed)
    if no_purchases is not None and snapshot.operator.steering_lost:
        reviewed |= {node.id: LeaseReview(no_purchases, ends=False) for node in rest if node.id not in reviewed}
    return reviewed


def _may_leave_queue(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it waits in its provider's own queue, and the manager may take it out."""
    if not node.is_queued or node.call is not None or node.launch.type_name in policy.observed:
        return False
    return policy.cloud_of(node.launch) not in snapshot.closed_clouds


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
    nodes = sum(node_index.count_by_type.values()) + len(billing.ownerless_strays(snapshot)) - len(ending)
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


# --- our nodes that no launch owns: they get their lease again, or are destroyed --------------------------


def stray_orders(snapshot: Snapshot, policy: Policy) -> list[RecordLaunches | CordonNode | DestroyNode]:
    """Handle our nodes that no launch owns: give them a lease again if their slot is free, else destroy them.

    If a job could start on such a node, it is drained first and looked at once more.

    Only a list begun after the claim counts: a node on an earlier one may have ended since, with its lease. A node
    that is stopping needs no lease.
    """
    ownerless = [
        (cloud, stray)
        for cloud in policy.cloud_names
        if cloud not in snapshot.closed_clouds and _is_listed_since_claim(cloud, snapshot)
        for stray in sorted(billing.strays_of(cloud, snapshot), key=lambda stray: stray.node.provider_id)
    ]
    leased = {node.launch.slot for node in snapshot.nodes.values()} if ownerless else set()
    actions: list[RecordLaunches | CordonNode | DestroyNode] = []
    for cloud, stray in ownerless:
        launch = _launch_of_stray(stray, snapshot, policy, cloud)
        waited_s = snapshot.now_s - stray.since_s
        stops = stray.node.state is CloudState.STOPPING
        if launch is not None and launch.slot not in leased and not stops:
            leased.add(launch.slot)
            if may_record(snapshot):
                actions.append(RecordLaunches((launch,)))
        elif _may_destroy(stray, leased, snapshot, policy):
            reason = because(Code.ORPHAN, waited_s=waited_s, orphan_grace_s=policy.timing.orphan_grace_s)
            identity, rank = _online_rank(stray, snapshot) or (None, None)
            if identity is not None and rank is not None and rank.schedulable and identity.slot not in leased:
                actions.append(CordonNode(identity.launch, rank.rank, drain_text(identity.launch), reason))
            else:
                actions.append(DestroyNode(None, stray.node.provider_id, reason, cloud))
    return actions


def _is_listed_since_claim(cloud: CloudName, snapshot: Snapshot) -> bool:
    """Whether the last list of the cloud was begun after the claim was answered."""
    listed_s = snapshot.account_of(cloud).source.seen_s
    return listed_s is None or listed_s >= snapshot.sources.claimed_s


def strays_change_s(snapshot: Snapshot, policy: Policy) -> float:
    """When time alone may change the next step of a node that no launch owns."""
    waits_s = (
        max(stray.since_s + policy.timing.orphan_grace_s, stray.destroy_after_s)
        for stray in billing.ownerless_strays(snapshot)
    )
    return min((at_s for at_s in waits_s if at_s > snapshot.now_s), default=inf)


def _online_rank(stray: Stray, snapshot: Snapshot) -> tuple[Identity, FluxRank] | None:
    """The identity of a stray and the rank it may serve; None unless that rank is online."""
    identity = stray.node.identity
    rank_id = snapshot.slots.rank_of_slot.get(identity.slot) if identity is not None else None
    rank = snapshot.ranks.get(rank_id) if rank_id is not None else None
    return (identity, rank) if identity is not None and rank is not None and rank.online else None


def _may_destroy(stray: Stray, leased: Collection[SlotName], snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a stray may be destroyed.

    It must have been ownerless long enough, and no job may run on its rank. An operator's drain protects it too,
    and a drain of Flux's own if the site holds such nodes.
    """
    identity = stray.node.identity
    if identity is not None and identity.type_name in policy.observed:
        return False
    if (online := _online_rank(stray, snapshot)) is not None:
        known, rank = online
        ours = known.slot in leased or rank.drain_reason in (None, drain_text(known.launch))
        retired = policy.rules.foreign_drain is ForeignDrain.RETIRE and is_drain_by_flux(rank.drain_reason)
        if rank.allocated or not (ours or retired):
            return False
    waited_s = snapshot.now_s - stray.since_s
    return waited_s >= policy.timing.orphan_grace_s and snapshot.now_s >= stray.destroy_after_s


def _launch_of_stray(stray: Stray, snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Launch | None:
    """The launch that a stray's tags name; None if the site has no such slot in this cloud."""
    identity = stray.node.identity
    if (
        identity is None
        or identity.slot not in snapshot.slots.rank_of_slot
        or identity.slot not in policy.type_of_slot
    ):
        return None
    node_type = policy.type_of_slot[identity.slot]
    if node_type.name != identity.type_name or policy.only_cloud(node_type.cloud) != cloud:
        return None  # the slot has changed its type since: the node is not what R declares for it
    created_at = stray.node.created_at if stray.node.created_at is not None else snapshot.wall_at
    bought = (identity.type_name, stray.node.size, stray.node.market)
    size = policy.of_size.get(bought) or policy.by_size[identity.type_name][-1]
    adopted = new_launch(identity.launch, identity.slot, snapshot, size, created_at, policy)
    return replace(adopted, made_from=identity.made_from, group=stray.node.group)


def new_launch(
    id_: LaunchId,
    slot: SlotName,
    snapshot: Snapshot,
    node_type: NodeType,
    requested_at: float,
    policy: Policy,
    zone: str = "",
) -> Launch:
    return Launch(
        id=id_,
        slot=slot,
        rank=snapshot.slots.rank_of_slot[slot],
        type_name=node_type.name,
        # Makes the create idempotent: equal for equal launches, at most 64 ASCII characters.
        client_token=f"{policy.cluster_uuid[:8]}-{id_[-55:]}",
        requested_at=requested_at,
        zone=zone,
        tariff=Tariff(node_type.price_per_hour, node_type.billing),
        size=node_type.size,
        market=node_type.market,
        made_from=node_type.made_from,
        group=group_of(node_type, zone, policy.cluster_uuid),
        cloud=node_type.cloud,
    )
