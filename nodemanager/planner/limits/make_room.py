"""Choose idle nodes to retire so that a limit admits the nodes of a stuck job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from decimal import Decimal
from itertools import chain

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import LEAVING, LaunchId, NodeState
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner.cost.billing import price_per_hour
from nodemanager.planner.placement import infeasibility
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.scheduler.sched_simple import pieces_of
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.obstacle import Hindrance
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


def make_room(
    snapshot: Snapshot,
    policy: Policy,
    placement: Placement,
    needed: Collection[SlotName],
    ended: Collection[LaunchId] = (),
) -> tuple[JobId, frozenset[LaunchId]] | None:
    """The stuck job that a limit stops, and the idle nodes to retire for it; None if none are.

    The dearest nodes go first, no more than needed, and none on which the job itself would run. No node goes if all
    of them together would not be enough, or if the nodes that are already leaving suffice. ``ended``: leases that
    end now and make room at no cost.
    """
    if placement.stuck is None or placement.stuck.obstacle.kind is not Hindrance.LIMIT_REACHED:
        return None
    job, shape, _ = placement.stuck
    kept = {*needed, *(bin_.slot for bin_, _ in placement.seating.seats.get(job, ()))}
    node_index = node_index_of(snapshot)
    known = chain(node_index.to_check.values(), node_index.at_rest.values())
    idle = [node for node in known if _may_retire(node, snapshot, policy, kept)]
    lacks = _shortfall(job, shape, policy, placement) if idle else None
    if lacks is None:
        return None
    nodes, price = lacks
    for node in node_index.to_check.values():
        leaves = node.state in LEAVING and node.launch.id not in snapshot.operator.steering.holds
        if leaves or node.id in ended:
            nodes, price = nodes - 1, price - price_per_hour(node.launch, policy)
    retiring = []
    for node in sorted(idle, key=lambda node: (-price_per_hour(node.launch, policy), node.launch.id)):
        if nodes <= 0 and price <= 0:
            break
        retiring.append(node.launch.id)
        nodes, price = nodes - 1, price - price_per_hour(node.launch, policy)
    return (job, frozenset(retiring)) if retiring and nodes <= 0 and price <= 0 else None


def _may_retire(node: Node, snapshot: Snapshot, policy: Policy, kept: Collection[SlotName]) -> bool:
    if node.state is not NodeState.IDLE or node.launch.slot in kept or snapshot.steered(node):
        return False
    if snapshot.is_out_of_reach(node, policy):
        return False
    held = node.rank is not None and node.rank.drain_reason is not None
    return not held and node.launch.type_name not in policy.observed


def _shortfall(job: JobId, shape: Shape, policy: Policy, placement: Placement) -> tuple[int, Decimal] | None:
    """By how many nodes, and by what price per hour, the limits are too low for the job.

    Counts the nodes that would be bought for it, the cheapest types first. None if there are not enough slots.
    """
    supply, memory = placement.supply, infeasibility.memory_per_piece(shape, placement.supply)
    _, short = placement.seating.short.get(job, (None, pieces_of(shape)))
    free: Counter[TypeName] = Counter()
    counts = placement.allocation.separate_counts()
    for offer, left in zip(placement.allocation.offers, counts, strict=True):
        if not offer.is_ordered:
            free[offer.node_type.name] += left
        elif offer.suits(shape.constraint):  # booting, and no job ahead needs it
            short -= left * infeasibility.pieces_per_node(offer.node_type, shape)
    nodes, price = 0, Decimal(0)
    for node_type in infeasibility.by_preference(policy, shape):
        each = infeasibility.pieces_per_node(node_type, shape, memory)
        if not each or short <= 0 or node_type.name in supply.blocked:
            continue
        suit = supply.count_free_for(node_type, shape.constraint)
        taken = min(free[node_type.name], suit, -(-short // each))
        short -= taken * each
        nodes += taken
        price += taken * supply.cheapest(node_type).price_per_hour
    return (nodes - placement.allocation.nodes_left, price - placement.price_left) if short <= 0 else None
