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
from nodemanager.planner.cost.budget import Verdict
from nodemanager.planner.placement import supply
from nodemanager.planner.placement.account_budgets import rate_on, till_of
from nodemanager.planner.placement.flux_scheduler import Bin
from nodemanager.planner.placement.placement import END, Layout
from nodemanager.planner.placement.placement import lay_out as lay_out_within
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node_index import roll_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import line_of
from nodemanager.planner.state.snapshot import Snapshot

LAID_MAX = 4  # how often all is laid out, before nothing is bought at all


def lay_out(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal) -> Layout:
    """Lay the queue out on what there is, then on what may be bought within the limits and the budget."""
    if not policy.budgets:
        return lay_out_within(snapshot, policy, price_per_hour, Verdict())
    line = line_of(snapshot.jobs, snapshot.line)
    till = till_of(snapshot, policy, line)
    of_site = any(whose == spending.ALL for whose, _ in policy.budgets)
    ends: dict[Rank, float] = {}
    rates: dict[JobId, Decimal] = {}
    budget = replace(spending.weigh(snapshot, policy, line, ends), cuts=till.cuts(rates))
    for rounds_left in reversed(range(LAID_MAX)):
        made = lay_out_within(snapshot, policy, price_per_hour, budget)
        if till.watched:
            rates.update(_rates(made, policy))
        cuts = till.cuts(rates, dearest=rounds_left <= 1)
        promised = _promised(made, snapshot) if of_site else {}
        more = {rank: at for rank, at in promised.items() if at > ends.get(rank, 0.0)}
        if cuts == budget.cuts and not more:
            return made
        ends.update(more)
        now = replace(spending.weigh(snapshot, policy, line, ends), cuts=cuts)
        if cuts == budget.cuts and _stands(made, now, policy):
            market = supply.market(snapshot, policy, price_per_hour, now)
            bought = made.market.price_left - made.price_left
            return replace(made, market=market, price_left=market.price_left - bought)
        budget = now
    return lay_out_within(snapshot, policy, price_per_hour, _nothing_left(budget))


def _nothing_left(budget: Verdict) -> Verdict:
    if budget.left_per_hour is None:
        return budget
    return replace(budget, left_per_hour=(Decimal(0), budget.left_per_hour[1]))


def _stands(made: Layout, budget: Verdict, policy: Policy) -> bool:
    """Whether it would come out the same with less left: it serves all, and what it buys is within that."""
    if made.end != END or made.failed or made.reasons or budget.drains:
        return False
    bought = made.market.price_left - made.price_left
    offers = [made.shelf.offers[stack.offer] for stack in made.shelf.stacks]
    closed = spending.closed_types(budget, policy)
    if closed and any(offer.node_type.name in closed for offer in offers if not offer.paid):
        return False
    return budget.left_per_hour is None or bought <= budget.left_per_hour[0]


# --- what is promised -------------------------------------------------------------------------------------


def _promised(made: Layout, snapshot: Snapshot) -> dict[Rank, float]:
    """Until when each rank that is up, or comes, may be at work for jobs that are laid there and have not begun."""
    ends: dict[Rank, float] = {}
    for id_, _, bin_, _ in _seats(made):
        _until(ends, bin_.rank, snapshot.wall_at + bin_.free_in_s, snapshot.jobs[id_].duration_s)
    nodes, of_rank = snapshot.nodes, roll_of(snapshot).of_rank
    for laid in made.dealt.nodes():
        rank = laid.place[1]
        if not laid.offer.paid or rank not in of_rank:
            continue
        up_s = nodes[of_rank[rank]].requested_s + (timings.boot_s(snapshot, laid.offer.node_type.name) or 0.0)
        up_at = snapshot.wall_at + max(0.0, up_s - snapshot.now_s)
        for id_, _ in made.dealt.pieces_on(laid):
            _until(ends, rank, up_at, snapshot.jobs[id_].duration_s)
    return ends


def _until(ends: dict[Rank, float], rank: Rank, begins_at: float, duration_s: float) -> None:
    """A job without a limit promises nothing."""
    if duration_s > 0:
        ends[rank] = max(ends.get(rank, 0.0), begins_at + duration_s)


def _seats(made: Layout) -> Iterator[tuple[JobId, Shape, Bin, int]]:
    """Where served jobs lie on what is there, and how many of their pieces."""
    for key, seated in made.seating.seated.items():
        for id_ in made.demand.batches[key][: min(seated, made.served_of(key))]:
            for bin_, pieces in made.seating.seats[id_]:
                yield id_, key.shape, bin_, pieces


# --- users and queues -------------------------------------------------------------------------------------


def _rates(made: Layout, policy: Policy) -> dict[JobId, Decimal]:
    """What each job that is served costs an hour, on the nodes that it is laid on."""
    rates: dict[JobId, Decimal] = {}
    for id_, shape, bin_, pieces in _seats(made):
        of = policy.type_of_slot.get(bin_.slot)
        if of is not None:
            rates[id_] = rates.get(id_, Decimal(0)) + pieces * rate_on(of, shape)
    for laid in made.dealt.nodes():
        for id_, shape in made.dealt.pieces_on(laid):
            rates[id_] = rates.get(id_, Decimal(0)) + rate_on(laid.offer.node_type, shape)
    return rates
