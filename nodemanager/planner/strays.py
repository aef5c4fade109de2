"""Our nodes that no launch owns: they get their lease again, or are destroyed."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from nodemanager.core.drains import drain_text, is_drain_by_flux
from nodemanager.core.nodes import FluxRank, Identity, Launch, LaunchId
from nodemanager.core.orders import CordonNode, DestroyNode, RecordLaunches
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import CloudName, ForeignDrain, NodeType, SlotName, Tariff
from nodemanager.planner.backoff.zones import group_of
from nodemanager.planner.cost import fleet
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Stray


def stray_orders(snapshot: Snapshot, policy: Policy) -> list[RecordLaunches | CordonNode | DestroyNode]:
    """Handle our nodes that no launch owns: give them a lease again if their slot is free, else destroy them.

    If a job could start on such a node, it is drained first and looked at once more.
    """
    ownerless = [
        (cloud, stray)
        for cloud in policy.cloud_names
        if cloud not in snapshot.closed_clouds
        for stray in sorted(fleet.strays_of(cloud, snapshot), key=lambda stray: stray.node.provider_id)
    ]
    leased = {node.launch.slot for node in snapshot.nodes.values()} if ownerless else set()
    actions: list[RecordLaunches | CordonNode | DestroyNode] = []
    for cloud, stray in ownerless:
        launch = _launch_of_stray(stray, snapshot, policy, cloud)
        waited_s = snapshot.now_s - stray.since_s
        if launch is not None and launch.slot not in leased:
            leased.add(launch.slot)
            actions.append(RecordLaunches((launch,)))
        elif _may_destroy(stray, leased, snapshot, policy):
            reason = because(Code.ORPHAN, waited_s=waited_s, orphan_grace_s=policy.timing.orphan_grace_s)
            identity, rank = _online_rank(stray, snapshot) or (None, None)
            if identity is not None and rank is not None and rank.schedulable and identity.slot not in leased:
                actions.append(CordonNode(identity.launch, rank.rank, drain_text(identity.launch), reason))
            else:
                actions.append(DestroyNode(None, stray.node.provider_id, reason, cloud))
    return actions


def strays_change_s(snapshot: Snapshot, policy: Policy) -> float:
    """When time alone may change the next step of a node that no launch owns."""
    waits_s = (
        max(stray.since_s + policy.timing.orphan_grace_s, stray.destroy_after_s)
        for stray in fleet.ownerless_strays(snapshot)
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
