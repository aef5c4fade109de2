"""What keeps a job from its nodes: for ever, whatever the fleet; or now, with what is left to buy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.jobs import Shape
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.planner.placement.flux_scheduler import pieces_of, slots_per_piece
from nodemanager.planner.placement.supply import Supply
from nodemanager.planner.state.policy import Policy

# Obstacles that a node less elsewhere would clear away.
CAPS = ("nodes_max", "price_per_hour_max")
# What no slot could ever serve, Flux refuses at submission: such a job holds up nobody.
INFEASIBLE = ("no_type_fits", "too_few_slots")


def by_preference(policy: Policy, shape: Shape) -> list[NodeType]:
    """The cheapest first; those on which it would start, and yet be cramped, last."""
    return sorted(policy.node_types, key=lambda it: (bool(_lacks_size(it, shape)), *by_price(it)))


def memory_per_piece(shape: Shape, market: Supply) -> int:
    """What one piece of the job needs of a node that is bought for it; 0 where the site's slots never have so much.

    Flux starts such a job wherever its cores fit, so it does not wait for what there is not.
    """
    wanted = shape.memory_bytes_per_slot * slots_per_piece(shape)
    if not wanted:
        return 0
    could_have = sum(
        market.count_slots_for(node_type, shape.constraint) * pieces_per_node(node_type, shape, wanted)
        for node_type in market.policy.node_types
        if node_type.memory_bytes >= wanted
    )
    return wanted if could_have >= pieces_of(shape) else 0


def by_price(node_type: NodeType) -> tuple[Decimal, int, str]:
    return node_type.price_per_hour, node_type.cores, node_type.name


def why_never(shape: Shape, market: Supply) -> Reason | None:
    """Why the job could not be served by a fleet that serves nothing else; None if it could."""
    policy = market.policy
    want, nodes, price = pieces_of(shape), 0, Decimal(0)
    memory = memory_per_piece(shape, market)
    for node_type in by_preference(policy, shape):
        each = pieces_per_node(node_type, shape, memory)
        if each and want > 0:
            taken = min(market.count_slots_for(node_type, shape.constraint), -(-want // each))
            want -= taken * each
            nodes += taken
            price += taken * node_type.price_per_hour
    if nodes == 0:
        return _infeasible(shape, policy)
    if want > 0:
        return because("too_few_slots", slots=nodes, short=want)
    if nodes > policy.nodes_max or price > policy.price_per_hour_max:
        return because(
            "beyond_limits",
            nodes=nodes,
            nodes_max=policy.nodes_max,
            price_per_hour=price,
            price_per_hour_max=policy.price_per_hour_max,
        )
    return None


@dataclass(frozen=True, slots=True)
class LeftToBuy:
    """What may still be bought once the jobs ahead have theirs."""

    free: Mapping[TypeName, int]  # slots
    nodes: int
    price: Decimal


def why_not_now(shape: Shape, want: int, market: Supply, left: LeftToBuy) -> Reason:
    """The first thing in the way of so many pieces of a job that could be served by a fleet of its own."""
    policy = market.policy
    nodes_left, price_left = left.nodes, left.price
    first: Reason | None = None
    memory = memory_per_piece(shape, market)
    for node_type in by_preference(policy, shape):
        name, each = node_type.name, pieces_per_node(node_type, shape, memory)
        slots = market.count_slots_for(node_type, shape.constraint) if each else 0
        if not slots or want <= 0:
            continue
        if name in market.blocked:
            first = first or market.blocked[name]
            continue
        price = node_type.price_per_hour
        payable = nodes_left if price <= 0 else min(nodes_left, int(price_left // price))
        free = min(left.free.get(name, 0), market.count_free_for(node_type, shape.constraint))
        taken = max(0, min(free, payable, -(-want // each)))
        want -= taken * each
        nodes_left -= taken
        price_left -= taken * price
        if want > 0 and first is None:
            first = _limit(node_type, slots, want, taken < free, nodes_left, price_left, market)
    # Where the parts would be had and the whole is not, what is short is a slot of the cheapest kind.
    return first or _no_free_slot(by_preference(policy, shape)[0], market, shape)


def pieces_per_node(node_type: NodeType, shape: Shape, memory_bytes: int = 0) -> int:
    """How many pieces of a job an empty node of the type takes, as the scheduler counts: 1 of a gang.

    ``memory_bytes``: what each of them needs, for a node that is bought; the scheduler does not count it.
    """
    if memory_bytes:
        return min(pieces_per_node(node_type, shape), node_type.memory_bytes // memory_bytes)
    slots = 1 if shape.exclusive else slots_per_piece(shape)
    if node_type.cores < slots * shape.cores_per_slot or node_type.gpus < slots * shape.gpus_per_slot:
        return 0
    if shape.nodes is not None or shape.exclusive:
        return 1
    by_cores = node_type.cores // max(1, shape.cores_per_slot)
    return min(by_cores, node_type.gpus // shape.gpus_per_slot) if shape.gpus_per_slot else by_cores


def _limit(
    node_type: NodeType,
    slots: int,
    short: int,
    has_free: bool,
    nodes_left: int,
    price_left: Decimal,
    market: Supply,
) -> Reason:
    name, policy = node_type.name, market.policy
    if not has_free:
        return because("no_free_slot", node_type=name, slots=slots, short=short)
    if nodes_left <= 0:
        return because("nodes_max", node_type=name, short=short, nodes_max=policy.nodes_max)
    if market.budget_left is not None:
        return market.budget_left
    return because(
        "price_per_hour_max",
        node_type=name,
        price_per_hour=node_type.price_per_hour,
        left=price_left,
        price_per_hour_max=policy.price_per_hour_max,
    )


def _no_free_slot(node_type: NodeType, market: Supply, shape: Shape) -> Reason:
    slots = market.count_slots_for(node_type, shape.constraint)
    return because("no_free_slot", node_type=node_type.name, slots=slots, short=1)


def _infeasible(shape: Shape, policy: Policy) -> Reason:
    """No type could ever serve it: name the one that comes nearest, and what it lacks."""
    nearest = max(policy.node_types, key=lambda it: (-len(_lacks(it, shape)), it.cores), default=None)
    if nearest is None:
        return because("no_type_fits")
    return because("no_type_fits", nearest=nearest.name, lacks=_lacks(nearest, shape))


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
