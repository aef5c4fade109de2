"""Where the nodes of a job are, seen from its data: what that costs, and what the other way would cost."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from nodemanager.core.jobs import Job, Shape
from nodemanager.core.notation import format_bytes
from nodemanager.core.reason_codes import Figures
from nodemanager.core.reason_text import format_money
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.planner.allocation.near import cost_of_node
from nodemanager.planner.placement.infeasibility import pieces_per_node
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.scheduler.sched_simple import pieces_of
from nodemanager.planner.state.policy import Policy

NONE_THERE = "no node there can be bought now"
ANY_FREE_NODE = "Flux starts it on any node that is free"


def why_not_near(shape: Shape, policy: Policy) -> str:
    """What is wrong with a job's wish to run near its data; "" if nothing is."""
    if shape.near is None or policy.home_of(shape) is not None:
        return ""
    return f"near: the site has no cloud {shape.near.cloud}; it has {', '.join(policy.cloud_names)}"


def where_figures(shape: Shape, bought: NodeType, placement: Placement) -> Figures:
    """Whether a node for a job is near its data; {} if the job does not say where that is. For any node."""
    policy = placement.supply.policy
    home = policy.home_of(shape)
    if home is None:
        fault = why_not_near(shape, policy)
        return {"not_near": fault} if fault else {}
    return {"near": home} if bought.cloud == home else {"away_from": home}


def figures_of_existing(shape: Shape, node_type: NodeType, placement: Placement) -> Figures:
    """The same for a node that is up, which Flux uses wherever it is."""
    figures = where_figures(shape, node_type, placement)
    return {**figures, "not_near": ANY_FREE_NODE} if "away_from" in figures else figures


def figures_of_new(shape: Shape, span_s: float, bought: NodeType, placement: Placement) -> Figures:
    """The same for a node that is bought for the job, with what it costs and what the other way would cost."""
    figures = where_figures(shape, bought, placement)
    home = placement.supply.policy.home_of(shape)
    if home is None:
        return figures
    away = bought.cloud != home
    other = min(_other_ways(shape, span_s, home, placement, at_home=away), default=None)
    if other is None:
        return {**figures, "not_near": NONE_THERE} if away else figures
    egress = placement.supply.policy.egress_of(shape)
    if egress is None:
        return figures
    cost = share_of_nodes(shape, span_s, bought, placement)
    known: Figures = {**figures, "cost": cost, "other_cost": other[0], "egress": egress}
    return {**known, "at_home": other[1]} if away else {**known, "elsewhere": other[1]}


def _other_ways(
    shape: Shape, span_s: float, home: CloudName, placement: Placement, *, at_home: bool
) -> Iterator[tuple[Decimal, str]]:
    """What a job would cost as each type that is on sale at home, or elsewhere."""
    for offer in placement.allocation.offers:
        node_type = offer.node_type
        if offer.is_ordered or (node_type.cloud == home) != at_home or not offer.suits(shape.constraint):
            continue
        if pieces_per_node(node_type, shape, placement.allocation.memory_bytes(shape)):
            yield share_of_nodes(shape, span_s, node_type, placement), node_type.name


def share_of_nodes(shape: Shape, span_s: float, node_type: NodeType, placement: Placement) -> Decimal:
    """What a job pays of nodes of a type if they are full of such jobs, for as long as its time limit."""
    each = max(1, pieces_per_node(node_type, shape, placement.allocation.memory_bytes(shape)))
    return cost_of_node(node_type, span_s) * pieces_of(shape) / each


def describe_near(job: Job, policy: Policy) -> str:
    """Where a job's data is and what its egress costs, or why that does not count; "" if the job says nothing."""
    near = job.shape.near
    faults = [it for it in (job.request.near_fault, why_not_near(job.shape, policy)) if it]
    if near is None or not policy.home_of(job.shape):
        return "; ".join(faults)
    parts = [str(near.cloud)]
    if near.data_bytes:
        parts.append(format_bytes(near.data_bytes))
    egress = policy.egress_of(job.shape)
    parts.append(
        "no price of its egress is known" if egress is None else f"{format_money(egress)} of egress elsewhere"
    )
    return "; ".join([", ".join(parts), *faults])
