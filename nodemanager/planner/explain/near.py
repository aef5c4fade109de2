"""Where the nodes of a job are, seen from its data: what that costs, and what the other way would cost."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from nodemanager.core.jobs import Job, Shape
from nodemanager.core.notation import format_bytes
from nodemanager.core.reason_codes import Figures
from nodemanager.core.reason_text import format_money
from nodemanager.core.slots import NodeType
from nodemanager.planner.allocation.near import cost_of_node
from nodemanager.planner.placement.infeasibility import pieces_per_node
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.scheduler.sched_simple import pieces_of
from nodemanager.planner.state.policy import Policy

NONE_THERE = "no node there can be bought now"
LIMITS_THERE = "with nodes there not all jobs could be served within the limits"
NO_MORE_THERE = "no further node there can be bought now"
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
    known, kind = placement.near_figures, (shape, span_s, bought.name, bought.price_per_hour)
    if kind not in known:
        known[kind] = _weigh(shape, span_s, bought, placement)
    return known[kind]


def _weigh(shape: Shape, span_s: float, bought: NodeType, placement: Placement) -> Figures:
    figures = where_figures(shape, bought, placement)
    home = placement.supply.policy.home_of(shape)
    if home is None:
        return figures
    away = bought.cloud != home
    ways = [(it, left) for it, left in _ways(shape, placement) if (it.cloud == home) == away]
    egress = placement.supply.policy.egress_of(shape)
    if away and not any(left for _, left in ways):
        figures = {**figures, "not_near": NO_MORE_THERE if ways else NONE_THERE}
    elif away and egress is None:
        figures = {**figures, "not_near": LIMITS_THERE}
    if egress is None or not ways:
        return figures
    cost = share_of_nodes(shape, span_s, bought, placement)
    other, name = min((share_of_nodes(shape, span_s, it, placement), it.name) for it, _ in ways)
    known: Figures = {**figures, "cost": cost, "other_cost": other, "egress": _rounded(egress)}
    return {**known, "at_home": name} if away else {**known, "elsewhere": name}


def _ways(shape: Shape, placement: Placement) -> Iterator[tuple[NodeType, int]]:
    """The types on sale that suit a job, and how many nodes of each are left."""
    made = placement.allocation
    for offer, left in zip(made.offers, made.left, strict=True):
        suits = not offer.is_ordered and offer.suits(shape.constraint)
        if suits and pieces_per_node(offer.node_type, shape, made.memory_bytes(shape)):
            yield offer.node_type, left


def share_of_nodes(shape: Shape, span_s: float, node_type: NodeType, placement: Placement) -> Decimal:
    """What a job pays of nodes of a type if they are full of such jobs, for as long as its time limit."""
    each = max(1, pieces_per_node(node_type, shape, placement.allocation.memory_bytes(shape)))
    return _rounded(cost_of_node(node_type, span_s) * pieces_of(shape) / each)


def _rounded(amount: Decimal) -> Decimal:
    """An amount to six digits: it is an estimate, and may have any number of them."""
    return Decimal(f"{amount:.6g}")


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
    parts.append("its egress is not known" if egress is None else f"{format_money(egress)} of egress elsewhere")
    return "; ".join([", ".join(parts), *faults])
