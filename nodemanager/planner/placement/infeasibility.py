"""Explain why a job gets no nodes now, with what may still be bought. ``never`` explains why it never does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.jobs import Constraint, Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.planner.cost.fleet import nodes_max_of_type
from nodemanager.planner.scheduler.sched_simple import pieces_of, slots_per_piece
from nodemanager.planner.state.obstacle import Hindrance, Obstacle
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.supply.supply import Supply


def by_preference(policy: Policy, shape: Shape) -> Iterator[NodeType]:
    """The node types, the cheapest first; types that are too small for what the job asks for come last.

    They are found one by one: of a long price list most jobs need only the first.
    """
    cores, gpus = (slots_per_piece(shape) * it for it in (shape.cores_per_slot, shape.gpus_per_slot))
    too_small = []
    for node_type in policy.types_by_price:
        if node_type.cores < cores or node_type.gpus < gpus:
            too_small.append(node_type)
        else:
            yield node_type
    yield from too_small


def memory_per_piece(shape: Shape, supply: Supply) -> int:
    """The memory that a node bought for the job must have for each piece; 0 if the site's slots never have so much.

    Flux ignores memory and starts the job wherever its cores fit, so it must not wait for memory that does not
    exist.
    """
    wanted = shape.memory_bytes_per_slot * slots_per_piece(shape)
    if not wanted:
        return 0
    short = pieces_of(shape)
    for node_type in supply.policy.node_types:
        if node_type.memory_bytes >= wanted:
            each = pieces_per_node(node_type, shape, wanted)
            short -= each * supply.count_slots_for(node_type, shape.constraint) if each else 0
            if short <= 0:
                return wanted
    return 0


@dataclass(frozen=True, slots=True)
class LeftToBuy:
    """What may still be bought after the purchases for the jobs ahead."""

    free: Mapping[TypeName, int]  # slots, by type
    nodes: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class _Exhausted:
    """The first type that has too few nodes left for a job, and the limits that are left after them."""

    node_type: NodeType
    each: int  # how many pieces of the job a node takes
    slots: int
    has_free: bool
    nodes_left: int
    price_left: Decimal


def why_not_now(shape: Shape, want: int, supply: Supply, left: LeftToBuy) -> Obstacle:
    """The first obstacle to ``want`` pieces of a job that a fleet without other jobs could serve.

    The figure ``short`` of its reason counts nodes of the type it names: those that are still missing if the job
    got everything that is free or may be bought.
    """
    policy = supply.policy
    nodes_left, price_left = left.nodes, left.price
    first: Reason | _Exhausted | None = None
    memory = memory_per_piece(shape, supply)
    for node_type in by_preference(policy, shape):
        name, each = node_type.name, pieces_per_node(node_type, shape, memory)
        slots = supply.count_slots_for(node_type, shape.constraint) if each else 0
        if not slots or want <= 0:
            continue
        if name in supply.blocked:
            first = first or supply.blocked[name]
            continue
        node_type = supply.cheapest(node_type)  # noqa: PLW2901 - as the size that is bought first
        price = node_type.price_per_hour
        payable = nodes_left if price <= 0 else min(nodes_left, int(price_left // price))
        free = min(left.free.get(name, 0), supply.count_free_for(node_type, shape.constraint))
        spot_left = supply.spot_left(node_type)
        if spot_left is not None and spot_left < min(free, payable, -(-want // each)):
            share = policy.rules.spot_share_max
            first = first or because(Code.SPOT_SHARE_MAX, node_type=name, spot_share_max=share)
            continue
        taken = max(0, min(free, payable, -(-want // each)))
        want -= taken * each
        nodes_left -= taken
        price_left -= taken * price
        if want > 0 and first is None:
            first = _Exhausted(node_type, each, slots, taken < free, nodes_left, price_left)
    if isinstance(first, Reason):
        return Obstacle(Hindrance.UNAVAILABLE, first)
    if first is not None:
        return _limit_reached(first, max(1, -(-want // first.each)), shape.constraint, supply)
    # The parts fit but the whole does not: report a missing slot of the cheapest type.
    cheapest = next(by_preference(policy, shape))
    return _no_free_slot(cheapest, supply.count_slots_for(cheapest, shape.constraint), max(1, want))


def pieces_per_node(node_type: NodeType, shape: Shape, memory_bytes: int = 0) -> int:
    """How many pieces of a job an empty node of the type takes, as the scheduler counts them.

    At most 1 if the pieces need different nodes. ``memory_bytes``: the memory of each piece, which only matters for
    nodes to buy; the scheduler ignores it.
    """
    if memory_bytes:
        return min(pieces_per_node(node_type, shape), node_type.memory_bytes // memory_bytes)
    return pieces_in(node_type.cores, node_type.gpus, shape)


def pieces_in(cores: int, gpus: int, shape: Shape) -> int:
    """How many pieces of a job an empty node with these cores and GPUs takes."""
    slots = 1 if shape.exclusive else slots_per_piece(shape)
    if cores < slots * shape.cores_per_slot or gpus < slots * shape.gpus_per_slot:
        return 0
    if shape.nodes is not None or shape.exclusive:
        return 1
    by_cores = cores // max(1, shape.cores_per_slot)
    return min(by_cores, gpus // shape.gpus_per_slot) if shape.gpus_per_slot else by_cores


def _limit_reached(first: _Exhausted, short: int, constraint: Constraint, supply: Supply) -> Obstacle:
    node_type, policy = first.node_type, supply.policy
    if not first.has_free and supply.is_held_back(node_type.name):
        reason = type_limit(policy.types[node_type.name], short)
        return Obstacle(Hindrance.NO_FREE_SLOT, reason, node_type.name)
    if not first.has_free:
        held_back = supply.why_no_more(node_type, constraint)
        if held_back is not None:
            return Obstacle(Hindrance.UNAVAILABLE, held_back)
        return _no_free_slot(node_type, first.slots, short)
    if first.nodes_left <= 0:
        reason = because(Code.NODES_MAX, node_type=node_type.name, nodes_max=policy.limits.nodes_max, short=short)
        return Obstacle(Hindrance.LIMIT_REACHED, reason)
    if supply.budget_left is not None:
        return Obstacle(Hindrance.UNAVAILABLE, supply.budget_left)
    reason = because(
        Code.PRICE_PER_HOUR_MAX,
        node_type=node_type.name,
        price_per_hour=node_type.price_per_hour,
        left=first.price_left,
        price_per_hour_max=policy.limits.price_per_hour_max,
    )
    return Obstacle(Hindrance.LIMIT_REACHED, reason)


def type_limit(node_type: NodeType, short: int) -> Reason:
    """A type's own limits allow too few nodes."""
    return because(
        Code.TYPE_LIMIT, node_type=node_type.name, nodes_max=nodes_max_of_type(node_type) or 0, short=short
    )


def _no_free_slot(node_type: NodeType, slots: int, short: int) -> Obstacle:
    reason = because(Code.NO_FREE_SLOT, node_type=node_type.name, slots=slots, short=short)
    return Obstacle(Hindrance.NO_FREE_SLOT, reason, node_type.name)


def why_no_type_fits(shape: Shape, policy: Policy) -> Reason:
    """No type could ever serve it: name the nearest one, and what it lacks."""
    nearest = max(policy.node_types, key=lambda it: (-len(_lacks(it, shape)), it.cores), default=None)
    if nearest is None:
        return because(Code.NO_NODE_TYPE)
    return because(Code.NO_TYPE_FITS, nearest=nearest.name, lacks=_lacks(nearest, shape))


def _lacks(node_type: NodeType, shape: Shape) -> tuple[str, ...]:
    return _lacks_size(node_type, shape) or ("constraint: not met by any of its slots",)


def _lacks_size(node_type: NodeType, shape: Shape) -> tuple[str, ...]:
    slots = slots_per_piece(shape)
    lacks = []
    if node_type.cores < slots * shape.cores_per_slot:
        lacks.append(f"cores: has {node_type.cores}, needs {slots * shape.cores_per_slot}")
    if node_type.gpus < slots * shape.gpus_per_slot:
        lacks.append(f"gpus: has {node_type.gpus}, needs {slots * shape.gpus_per_slot}")
    return tuple(lacks)
