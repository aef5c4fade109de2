"""Which idle nodes go so that a job gets in that a limit keeps out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from decimal import Decimal

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import LEAVING, LaunchId, NodeState
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner.cost.billing import price_per_hour
from nodemanager.planner.placement import infeasibility
from nodemanager.planner.placement.flux_scheduler import pieces_of
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot


def make_room(
    snapshot: Snapshot,
    policy: Policy,
    layout: Placement,
    needed: Collection[SlotName],
    ended: Collection[LaunchId] = (),
) -> tuple[JobId, frozenset[LaunchId]] | None:
    """The first job in the queue that a limit keeps out, and the idle nodes that go for it; None if none do.

    No node that it would run on itself is among them, and no more than it takes, the dearest first. Where they
    would not be enough, or those that are on their way out already are, none goes: it would be for nothing.
    ``ended``: leases that are ended now, and make room at no cost.
    """
    if layout.stuck is None or layout.stuck[2].code not in infeasibility.CAPS:
        return None
    job, shape, _ = layout.stuck
    stays = {*needed, *(bin_.slot for bin_, _ in layout.seating.seats.get(job, ()))}
    idle = [node for node in node_index_of(snapshot).to_check.values() if _may_go(node, snapshot, policy, stays)]
    lacks = _lacks(job, shape, policy, layout) if idle else None
    if lacks is None:
        return None
    nodes, price = lacks
    for node in node_index_of(snapshot).to_check.values():
        leaves = node.state in LEAVING and node.launch.id not in snapshot.steering.holds
        if leaves or node.id in ended:
            nodes, price = nodes - 1, price - price_per_hour(node.launch, policy)
    going = []
    for node in sorted(idle, key=lambda node: (-price_per_hour(node.launch, policy), node.launch.id)):
        if nodes <= 0 and price <= 0:
            break
        going.append(node.launch.id)
        nodes, price = nodes - 1, price - price_per_hour(node.launch, policy)
    return (job, frozenset(going)) if going and nodes <= 0 and price <= 0 else None


def _may_go(node: Node, snapshot: Snapshot, policy: Policy, stays: Collection[SlotName]) -> bool:
    if node.state is not NodeState.IDLE or node.launch.slot in stays or snapshot.steered(node):
        return False
    held = node.rank is not None and node.rank.drain_reason is not None
    return not held and node.launch.type_name not in policy.observed


def _lacks(job: JobId, shape: Shape, policy: Policy, layout: Placement) -> tuple[int, Decimal] | None:
    """By how many nodes, and by what price an hour, the limits are too narrow for it beside what is there.

    As it would be bought: of the cheapest types first. None where there would not be slots enough.
    """
    market, memory = layout.supply, infeasibility.memory_per_piece(shape, layout.supply)
    _, short = layout.seating.short.get(job, (None, pieces_of(shape)))
    free: Counter[TypeName] = Counter()
    for offer, left in zip(layout.allocation.offers, layout.allocation.left, strict=True):
        if not offer.is_ordered:
            free[offer.node_type.name] += left
        elif offer.suits(shape.constraint):  # on its way, and nobody ahead needs it
            short -= left * infeasibility.pieces_per_node(offer.node_type, shape)
    nodes, price = 0, Decimal(0)
    for node_type in infeasibility.by_preference(policy, shape):
        each = infeasibility.pieces_per_node(node_type, shape, memory)
        if not each or short <= 0 or node_type.name in market.blocked:
            continue
        suit = market.count_free_for(node_type, shape.constraint)
        taken = min(free[node_type.name], suit, -(-short // each))
        short -= taken * each
        nodes += taken
        price += taken * node_type.price_per_hour
    return (nodes - layout.allocation.nodes_left, price - layout.price_left) if short <= 0 else None
