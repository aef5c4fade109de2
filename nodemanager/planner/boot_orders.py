"""The orders to create nodes: for jobs, to replace others, and as spares."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from nodemanager.core.nodes import launch_id
from nodemanager.core.orders import BootNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import TypeName
from nodemanager.planner.backoff.allowance import retry_at_s
from nodemanager.planner.backoff.zones import group_of, zones_passed_over
from nodemanager.planner.basis import Basis
from nodemanager.planner.cost.budget import budget_changes_s
from nodemanager.planner.cost.fleet import prepaid_left
from nodemanager.planner.explain.near import figures_of_new
from nodemanager.planner.peers.burst import Bursts
from nodemanager.planner.placement.fleet_needs import Purchase
from nodemanager.planner.spares import spare_purchases
from nodemanager.planner.stacked.growth import places_between
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.strays import new_launch
from nodemanager.planner.supply import free_room


def boot_orders(basis: Basis, weighed: Bursts) -> tuple[BootNode, ...]:
    """The orders for nodes that are bought now, in their order. ``weighed``: the jobs weighed against the peers."""
    snapshot, policy, needs = basis.snapshot, basis.policy, basis.needs
    extra = policy.has_spares or policy.limits.nodes_min > 0 or bool(policy.limited_types)
    spares = spare_purchases(snapshot, policy, basis.purchaser, needs) if extra else []
    wanted = [
        *((purchase, _demand(purchase, weighed, basis)) for purchase in needs.purchases),
        *basis.upkeep_purchases,
        *spares,
    ]
    if not wanted:
        return ()
    if policy.stacked:
        wanted = _in_order(wanted, basis)
    # Quotas and breakers may allow fewer nodes than the placement asks for. The rest is not bought now.
    allowance = basis.placement.supply.allowance()
    prepaid = prepaid_left(snapshot, policy)
    return tuple(
        _boot_order(purchase, reason, snapshot, policy, prepaid)
        for purchase, reason in wanted
        if allowance.take(purchase.node_type)
    )


def _in_order(wanted: Sequence[tuple[Purchase, Reason]], basis: Basis) -> list[tuple[Purchase, Reason]]:
    """The purchases from the lowest slot up, and those of the slots between them."""
    placement = basis.placement
    by_slot = {purchase.place[0]: (purchase, reason) for purchase, reason in wanted}
    fills, reached = places_between(
        by_slot.keys(), placement.supply, placement.allocation.nodes_left, placement.price_left
    )
    highest = max(reached, key=lambda slot: by_slot[slot][0].place[1], default=None)
    found = [by_slot[slot] for slot in reached]
    if highest is not None:
        reason = because(Code.FILLS_A_GAP, node=highest)
        found += [(Purchase(place, node_type, "", (), 0), reason) for place, node_type in fills]
    return sorted(found, key=lambda it: it[0].place[1])


def _demand(purchase: Purchase, weighed: Bursts, basis: Basis) -> Reason:
    node_type, zone = purchase.node_type, purchase.zone
    reason = because(Code.DEMAND, node_type=node_type.name, job_count=purchase.job_count)
    if group := group_of(node_type, zone, basis.policy.cluster_uuid):
        reason = reason.with_figures(group=group)
        if passed_over := zones_passed_over(node_type, zone, basis.snapshot):
            reason = reason.with_figures(passed_over=passed_over)
    for shape, span_s, _, _ in purchase.load:
        if shape.near is not None and (near := figures_of_new(shape, span_s, node_type, basis.placement)):
            reason = reason.with_figures(**near)
            break
    if not weighed.not_taken:
        return reason
    not_taken = next(filter(None, map(weighed.describe_not_taken, purchase.serves)), "")
    return reason.with_figures(not_taken=not_taken) if not_taken else reason


def _boot_order(
    purchase: Purchase, reason: Reason, snapshot: Snapshot, policy: Policy, prepaid: dict[TypeName, int]
) -> BootNode:
    """``prepaid``: how many further nodes of each type cost nothing; updated."""
    slot = purchase.place[0]
    id_ = launch_id(slot, f"{int(snapshot.wall_at * 1000):x}")
    launch = new_launch(id_, slot, snapshot, purchase.node_type, snapshot.wall_at, policy, purchase.zone)
    if prepaid.get(launch.type_name, 0) > 0:
        prepaid[launch.type_name] -= 1
        launch = replace(launch, prepaid=True)
    return BootNode(launch, purchase.serves, reason, purchase.load)


def purchases_change_s(basis: Basis) -> float:
    """When time alone may change the purchases, or the drains because the budget is spent."""
    snapshot, policy = basis.snapshot, basis.policy
    jobs_wait = bool(basis.queue.batches)
    room_s = free_room.room_changes_s(snapshot, policy, basis.queue) if jobs_wait else inf
    return min(retry_at_s(snapshot), room_s, budget_changes_s(snapshot, policy, jobs_wait))
