"""Leases whose create was not sent yet: each is weighed again until it is, as ending one costs nothing.

Creates go out one by one, at the pace that the site sets, or wait for a provider that refuses: meanwhile jobs are
cancelled or start elsewhere, and limits are lowered.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from decimal import Decimal
from typing import NamedTuple

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import CallKind, LaunchId, NodeState
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import TypeName
from nodemanager.planner.cost import billing
from nodemanager.planner.observe.backoff import unavailable_types
from nodemanager.planner.observe.zones import blocked_types
from nodemanager.planner.outcome import FleetNeeds
from nodemanager.planner.placement import supply
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.spares import count_beyond_nodes_min, count_ready
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot


class LeaseReview(NamedTuple):
    """Why a lease's create is not sent; ``ends``: whether the slot is given back, or it only waits for a moment."""

    reason: Reason
    ends: bool = True


def review(
    snapshot: Snapshot,
    policy: Policy,
    price_per_hour: Decimal,
    layout: Placement,
    found: FleetNeeds,
    settling: Reason | None,
) -> Mapping[LaunchId, LeaseReview]:
    """The leases that no create is to be sent for now.

    ``settling``: why no node is bought yet. What nobody wants is given back only when one could be: what is bought
    for the same jobs by the next plan would else be leased and given back in turns.
    """
    unsent = [node for node in node_index_of(snapshot).to_check.values() if may_end(node)]
    if not unsent:
        return {}
    weighed = {node.id: _only_observed(node) for node in unsent if node.launch.type_name in policy.observed}
    rest = [node for node in unsent if node.id not in weighed]
    weighed |= _above_limits(rest, snapshot, policy, price_per_hour, found, weighed)
    kept = _not_to_be_had(snapshot, policy, layout)
    idle = [
        node
        for node in rest
        if node.id not in weighed
        and node.launch.slot not in found.needed
        and node.launch.type_name not in kept
        and not snapshot.steered(node)
    ]
    if settling is not None:
        return weighed | {node.id: LeaseReview(settling, ends=False) for node in idle}
    return weighed | _unwanted(idle, snapshot, policy, found, weighed)


def may_end(node: Node) -> bool:
    """Whether it is surely nothing but a lease, and that on record, and something may be done about it now."""
    return is_unsent(node) and node.recorded and node.call is None


def is_unsent(node: Node) -> bool:
    return node.state is NodeState.REQUESTED and node.create_sent_s is None


def ending_leases(snapshot: Snapshot) -> list[Node]:
    """Those that are being ended: still on record, and nothing will come of them."""
    return [
        node
        for node in node_index_of(snapshot).with_call.values()
        if node.call is not None and node.call.kind is CallKind.END_LEASE and node.may_be_billed
    ]


def _only_observed(node: Node) -> LeaseReview:
    return LeaseReview(because("only_observed", node_type=node.launch.type_name))


def _not_to_be_had(snapshot: Snapshot, policy: Policy, layout: Placement) -> Container[TypeName]:
    """The types of which no more may be had now, while more is wanted: what is leased of them is not given back.

    One that is bought to learn whether there is more (``refusals``) serves no job where several are short; were it
    given back, there would be one to be had again. And what all types are blocked for is waited out.
    """
    if all(layout.count_served(key) == len(ids) for key, ids in layout.batches.items()):
        return ()
    return {**blocked_types(snapshot, policy), **unavailable_types(snapshot, policy)}


# --- limits -----------------------------------------------------------------------------------------------


def _above_limits(
    leases: list[Node],
    snapshot: Snapshot,
    policy: Policy,
    price_per_hour: Decimal,
    found: FleetNeeds,
    ended: Mapping[LaunchId, LeaseReview],
) -> dict[LaunchId, LeaseReview]:
    """As many as the fleet is above a limit by, which was lowered, or which strays have come to be under too."""
    roll = node_index_of(snapshot)
    going = [*ending_leases(snapshot), *(snapshot.nodes[id_] for id_ in ended)]
    nodes = sum(roll.count_by_type.values()) + len(supply.ownerless_strays(snapshot)) - len(going)
    price = price_per_hour - sum((billing.price_per_hour(node.launch, policy) for node in going), Decimal(0))
    weighed: dict[LaunchId, LeaseReview] = {}
    if nodes <= policy.nodes_max and price <= policy.price_per_hour_max:
        return weighed
    reason = because(
        "lease_above_limits",
        nodes=nodes,
        nodes_max=policy.nodes_max,
        price_per_hour=price,
        price_per_hour_max=policy.price_per_hour_max,
    )
    for node in sorted(leases, key=lambda node: _worth(node, snapshot, found)):
        its_price = billing.price_per_hour(node.launch, policy)
        if nodes > policy.nodes_max or (price > policy.price_per_hour_max and its_price > 0):
            weighed[node.id] = LeaseReview(reason)
            nodes, price = nodes - 1, price - its_price
    return weighed


def _worth(node: Node, snapshot: Snapshot, found: FleetNeeds) -> tuple[bool, int, int, float, LaunchId]:
    """The least first: what nobody wants, then what is for the last in the queue; of equals the latest."""
    jobs = found.needed.get(node.launch.slot, ())
    first = min((_place(job, snapshot) for job in jobs), default=(0, 0))
    return bool(jobs), -first[0], -first[1], -node.requested_s, node.id


def _place(job: JobId, snapshot: Snapshot) -> tuple[int, int]:
    return -snapshot.jobs[job].priority, job


# --- demand that is gone ----------------------------------------------------------------------------------


def _unwanted(
    leases: list[Node],
    snapshot: Snapshot,
    policy: Policy,
    found: FleetNeeds,
    ended: Mapping[LaunchId, LeaseReview],
) -> dict[LaunchId, LeaseReview]:
    """Of those that no job wants, what neither ``nodes_min`` nor the spares of a type take; the dearest first."""
    weighed: dict[LaunchId, LeaseReview] = {}
    if not leases:
        return weighed
    beyond = count_beyond_nodes_min(snapshot, policy, ended) if policy.nodes_min > 0 else len(leases)
    ready = count_ready(snapshot, policy, found.needed, ended)
    for node in sorted(
        leases, key=lambda node: (-billing.price_per_hour(node.launch, policy), -node.requested_s, node.id)
    ):
        name = node.launch.type_name
        node_type = policy.types.get(name)
        spare = node_type is not None and node_type.spares > 0 and ready.get(name, 0) <= node_type.spares
        if spare or beyond <= 0:
            continue
        weighed[node.id] = LeaseReview(because("lease_not_wanted"))
        beyond -= 1
        ready[name] = ready.get(name, 0) - 1
    return weighed
