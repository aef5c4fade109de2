"""Explain why a job can never get its nodes: not even from a fleet without other jobs.

A fleet that serves it is usually found at once, from the cheapest nodes. Only if these do not do, the least number
of nodes and the least price of all fleets are compared with the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from nodemanager.core.jobs import ANYWHERE, Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner.cost.fleet import nodes_max_of_type
from nodemanager.planner.cost.spending import PERIODS, WHOLE_SITE, cloud_account
from nodemanager.planner.placement import infeasibility
from nodemanager.planner.placement.infeasibility import (
    by_preference,
    memory_per_piece,
    pieces_in,
    pieces_per_node,
    type_limit,
    why_no_type_fits,
)
from nodemanager.planner.scheduler.sched_simple import pieces_of
from nodemanager.planner.state.obstacle import Hindrance, Obstacle
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.supply.supply import Supply

SHAPES_CACHED = 2**15  # how many shapes the feasibility cache keeps
Budgets = Mapping[tuple[str, str], Decimal]  # by owner and period


def why_never_known(shape: Shape, supply: Supply) -> Obstacle | None:
    """The same as :func:`why_never`, from a cache."""
    known = supply.feasibility.obstacle_of
    try:
        return known[shape]
    except KeyError:
        if len(known) >= SHAPES_CACHED:
            known.clear()
        why = known[shape] = why_never(shape, supply)
        return why


def why_unserved(shape: Shape, want: int, supply: Supply, left: infeasibility.LeftToBuy) -> Obstacle:
    """Why a job gets no nodes now (``infeasibility.why_not_now``), or that a budget never pays for them.

    Such a job is not given up: nodes that are idle by chance may serve it, and then fewer must be bought.
    """
    found = infeasibility.why_not_now(shape, want, supply, left)
    if found.kind is not Hindrance.UNAVAILABLE or not supply.policy.budgets:
        return found
    if why_never_known(shape, supply) is not None:
        return found
    return why_never(shape, supply, with_budgets=True) or found


def why_never(shape: Shape, supply: Supply, *, with_budgets: bool = False) -> Obstacle | None:
    """Why even a fleet without other jobs could not serve the job; None if it could, as far as the limits tell.

    ``with_budgets``: as if all its nodes were to be bought at once within the budgets.
    """
    want = pieces_of(shape) - _pieces_on_own_nodes(shape, supply)
    if want <= 0:
        return None
    policy, left, nodes, price = supply.policy, want, 0, Decimal(0)
    budgets = policy.budgets if with_budgets else {}
    for it in _candidates(shape, want, supply, budgets):
        if left <= 0:
            break
        taken = min(it.most, -(-left // it.each))
        left, nodes, price = left - taken * it.each, nodes + taken, price + it.price_of(taken)
    if left <= 0 and _why_beyond(nodes, price, nodes, Fraction(price), policy, budgets) is None:
        return None
    return _why_no_fleet(shape, want, list(_candidates(shape, want, supply, budgets)), policy, budgets)


@dataclass(frozen=True, slots=True)
class _Lot:
    """Nodes of one price. ``each``: how many pieces of the job one of them takes."""

    each: int
    count: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A type that suits a job. ``most``: how many nodes its own limits and its cloud's ever allow."""

    node_type: NodeType
    each: int  # how many pieces a node takes
    slots: int
    most: int
    why_no_more: Reason | None  # None: there are no more slots

    def price_of(self, count: int) -> Decimal:
        """What so many nodes cost per hour. Prepaid ones cost nothing."""
        return max(0, count - self.node_type.prepaid) * self.node_type.price_per_hour

    def lots(self) -> Iterator[_Lot]:
        """Its nodes: the prepaid ones, then the others."""
        prepaid = min(self.node_type.prepaid, self.most)
        yield _Lot(self.each, prepaid, Decimal(0))
        yield _Lot(self.each, self.most - prepaid, self.node_type.price_per_hour)


def _candidates(shape: Shape, want: int, supply: Supply, budgets: Budgets) -> Iterator[_Candidate]:
    """The types that suit the job, in the order of preference."""
    memory = memory_per_piece(shape, supply)
    for node_type in by_preference(supply.policy, shape):
        each = pieces_per_node(node_type, shape, memory)
        slots = supply.count_slots_for(node_type, shape.constraint) if each else 0
        if slots:
            ceilings = _ceilings(node_type, -(-want // each), supply.policy, budgets)
            most, why = min(ceilings, key=lambda it: it[0], default=(slots, None))
            yield _Candidate(node_type, each, slots, min(most, slots), why if most < slots else None)


def _ceilings(node_type: NodeType, needed: int, policy: Policy, budgets: Budgets) -> Iterator[tuple[int, Reason]]:
    """How many nodes of a type each of its own limits, and of its cloud's, ever allows. ``needed``: for the job."""
    if (most := nodes_max_of_type(node_type)) is not None:
        yield most, type_limit(node_type, max(1, needed - most))
    cloud, price = node_type.cloud, node_type.price_per_hour

    def paid_by(amount: Decimal) -> int:
        return int(amount // price) + node_type.prepaid

    def beyond(why: str) -> Reason:
        return because(Code.BEYOND_CLOUD, cloud=cloud, node_type=node_type.name, node_count=needed, why=why)

    if (rules := policy.clouds.get(cloud)) is not None and rules.nodes_max is not None:
        yield rules.nodes_max, beyond(f"its nodes_max is {rules.nodes_max}")
    if rules is not None and rules.price_per_hour_max is not None and price:
        most = paid_by(rules.price_per_hour_max)
        yield most, beyond(f"its price_per_hour_max of {rules.price_per_hour_max} pays for {most}")
    for period in PERIODS if price else ():
        if (budget := budgets.get((cloud_account(cloud), period))) is not None:
            cost = max(0, needed - node_type.prepaid) * price
            yield paid_by(budget), _beyond_budget(f"the cloud {cloud}", period, budget, needed, cost)


def _beyond_budget(account: str, period: str, budget: Decimal, nodes: int, price: Decimal) -> Reason:
    """A node that is bought counts for at least an hour (``cost.budget``), so no period pays for these nodes."""
    return because(
        Code.BEYOND_BUDGET, account=account, period=period, budget=budget, node_count=nodes, price_per_hour=price
    )


def _why_no_fleet(
    shape: Shape, want: int, candidates: Sequence[_Candidate], policy: Policy, budgets: Budgets
) -> Obstacle | None:
    """Why no fleet of these types serves the job. None if that is not certain."""
    if not candidates:
        return Obstacle(Hindrance.NO_SLOT_FITS, why_no_type_fits(shape, policy))
    short = want - sum(it.slots * it.each for it in candidates)
    if short > 0:
        slots = sum(it.slots for it in candidates)
        return Obstacle(Hindrance.NO_SLOT_FITS, because(Code.TOO_FEW_SLOTS, slots=slots, short=short))
    if sum(it.most * it.each for it in candidates) < want:
        why = next(it.why_no_more for it in candidates if it.why_no_more is not None)
        return Obstacle(Hindrance.BEYOND_LIMITS, why)
    lots = [lot for it in candidates for lot in it.lots()]
    fewest, price_of_fewest, _ = _fill(sorted(lots, key=lambda it: (-it.each, it.price)), want)
    nodes, price, least = _fill(sorted(lots, key=lambda it: it.price / it.each), want)
    if fewest > policy.limits.nodes_max:
        nodes, price = fewest, price_of_fewest
    beyond = _why_beyond(nodes, price, fewest, least, policy, budgets)
    return Obstacle(Hindrance.BEYOND_LIMITS, beyond) if beyond is not None else None


def _fill(lots: Sequence[_Lot], want: int) -> tuple[int, Decimal, Fraction]:
    """Take nodes in this order: how many, what they cost, and the same if a part of the last one could be had."""
    nodes, price, least = 0, Decimal(0), Fraction(0)
    for lot in lots:
        taken = min(lot.count, -(-want // lot.each))
        nodes, price = nodes + taken, price + taken * lot.price
        least += Fraction(lot.price) * min(Fraction(lot.count), Fraction(want, lot.each))
        want -= taken * lot.each
        if want <= 0:
            break
    return nodes, price, least


def _why_beyond(
    nodes: int, price: Decimal, fewest: int, least: Fraction, policy: Policy, budgets: Budgets
) -> Reason | None:
    """Why the limits and the budget of the site forbid all fleets of at least so many nodes and this price.

    ``nodes``, ``price``: of the best one, for people.
    """
    limits = policy.limits
    if fewest > limits.nodes_max or least > limits.price_per_hour_max:
        return because(
            Code.BEYOND_LIMITS,
            node_count=nodes,
            nodes_max=limits.nodes_max,
            price_per_hour=price,
            price_per_hour_max=limits.price_per_hour_max,
        )
    for period in PERIODS:
        budget = budgets.get((WHOLE_SITE, period))
        if budget is not None and least > budget:
            return _beyond_budget("the site", period, budget, nodes, price)
    return None


def _pieces_on_own_nodes(shape: Shape, supply: Supply) -> int:
    """How many pieces of a job fit on nodes of the instance that are no slots of the site."""
    constrained = shape.constraint is not ANYWHERE
    return sum(
        pieces_in(rank.cores, rank.gpus, shape)
        for rank in supply.own_ranks
        if not constrained or supply.matches.suits(shape.constraint, rank.rank)
    )
