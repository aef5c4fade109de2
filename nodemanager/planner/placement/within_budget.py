"""The layout that the budget pays for: what it lays somewhere costs for as long as the jobs may run there.

How much may be bought follows from what is promised already, and that from the layout: which jobs begin on what is
up, and which are laid on the nodes that come. So all are laid out, what that promises is counted, and they are laid
out anew with what that leaves, until nothing more is promised than was counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.slots import Rank
from nodemanager.planner.cost import budget as spending
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.budget import BudgetLimits
from nodemanager.planner.placement import supply
from nodemanager.planner.placement.account_budgets import account_budgets_of, piece_price_per_hour
from nodemanager.planner.placement.flux_scheduler import Bin
from nodemanager.planner.placement.placement import QUEUE_END, Placement
from nodemanager.planner.placement.placement import place_jobs as lay_out_within
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of
from nodemanager.planner.state.snapshot import Snapshot

ROUNDS_MAX = 4  # how often all is laid out, before nothing is bought at all


def place_within_budget(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal) -> Placement:
    """Lay the queue out on what there is, then on what may be bought within the limits and the budget."""
    if not policy.budgets:
        return lay_out_within(snapshot, policy, price_per_hour, BudgetLimits())
    line = queue_index_of(snapshot.jobs, snapshot.queue_index)
    till = account_budgets_of(snapshot, policy, line)
    of_site = any(whose == spending.WHOLE_SITE for whose, _ in policy.budgets)
    ends: dict[Rank, float] = {}
    rates: dict[JobId, Decimal] = {}
    budget = replace(spending.current_limits(snapshot, policy, line, ends), cuts=till.find_cuts(rates))
    for rounds_left in reversed(range(ROUNDS_MAX)):
        made = lay_out_within(snapshot, policy, price_per_hour, budget)
        if till.watched:
            rates.update(_rates(made, policy))
        cuts = till.find_cuts(rates, dearest=rounds_left <= 1)
        promised = _promised(made, snapshot) if of_site else {}
        more = {rank: at for rank, at in promised.items() if at > ends.get(rank, 0.0)}
        if cuts == budget.cuts and not more:
            return made
        ends.update(more)
        now = replace(spending.current_limits(snapshot, policy, line, ends), cuts=cuts)
        if cuts == budget.cuts and _stands(made, now, policy):
            market = supply.current_supply(snapshot, policy, price_per_hour, now)
            bought = made.supply.price_left - made.price_left
            return replace(made, supply=market, price_left=market.price_left - bought)
        budget = now
    return lay_out_within(snapshot, policy, price_per_hour, _nothing_left(budget))


def _nothing_left(budget: BudgetLimits) -> BudgetLimits:
    if budget.left_per_hour is None:
        return budget
    return replace(budget, left_per_hour=(Decimal(0), budget.left_per_hour[1]))


def _stands(made: Placement, budget: BudgetLimits, policy: Policy) -> bool:
    """Whether it would come out the same with less left: it serves all, and what it buys is within that."""
    if made.served_until != QUEUE_END or made.failed_from or made.reasons or budget.drain_all:
        return False
    bought = made.supply.price_left - made.price_left
    offers = [made.allocation.offers[stack.offer] for stack in made.allocation.groups]
    closed = spending.closed_types(budget, policy)
    if closed and any(offer.node_type.name in closed for offer in offers if not offer.is_ordered):
        return False
    return budget.left_per_hour is None or bought <= budget.left_per_hour[0]


# --- what is promised -------------------------------------------------------------------------------------


def _promised(made: Placement, snapshot: Snapshot) -> dict[Rank, float]:
    """Until when each rank that is up, or comes, may be at work for jobs that are laid there and have not begun."""
    ends: dict[Rank, float] = {}
    for id_, _, bin_, _ in _seats(made):
        _until(ends, bin_.rank, snapshot.wall_at + bin_.free_in_s, snapshot.jobs[id_].duration_s)
    nodes, of_rank = snapshot.nodes, node_index_of(snapshot).launch_of_rank
    for laid in made.assignment.nodes():
        rank = laid.place[1]
        if not laid.offer.is_ordered or rank not in of_rank:
            continue
        up_s = nodes[of_rank[rank]].requested_s + (timings.boot_s(snapshot, laid.offer.node_type.name) or 0.0)
        up_at = snapshot.wall_at + max(0.0, up_s - snapshot.now_s)
        for id_, _ in made.assignment.pieces_on(laid):
            _until(ends, rank, up_at, snapshot.jobs[id_].duration_s)
    return ends


def _until(ends: dict[Rank, float], rank: Rank, begins_at: float, duration_s: float) -> None:
    """A job without a limit promises nothing."""
    if duration_s > 0:
        ends[rank] = max(ends.get(rank, 0.0), begins_at + duration_s)


def _seats(made: Placement) -> Iterator[tuple[JobId, Shape, Bin, int]]:
    """Where served jobs lie on what is there, and how many of their pieces."""
    for key, seated in made.seating.seated.items():
        for id_ in made.demand.batches[key][: min(seated, made.count_served(key))]:
            for bin_, pieces in made.seating.seats[id_]:
                yield id_, key.shape, bin_, pieces


# --- users and queues -------------------------------------------------------------------------------------


def _rates(made: Placement, policy: Policy) -> dict[JobId, Decimal]:
    """What each job that is served costs an hour, on the nodes that it is laid on."""
    rates: dict[JobId, Decimal] = {}
    for id_, shape, bin_, pieces in _seats(made):
        of = policy.type_of_slot.get(bin_.slot)
        if of is not None:
            rates[id_] = rates.get(id_, Decimal(0)) + pieces * piece_price_per_hour(of, shape)
    for laid in made.assignment.nodes():
        for id_, shape in made.assignment.pieces_on(laid):
            rates[id_] = rates.get(id_, Decimal(0)) + piece_price_per_hour(laid.offer.node_type, shape)
    return rates
