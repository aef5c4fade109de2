"""Place the jobs within the budget: a placed job costs money until its time limit expires.

Which nodes may be bought depends on the amounts reserved already, and these depend on the placement: which jobs
start on existing nodes and which on booting ones. So the placement is repeated. Each round counts what the last one
promised, until a round promises nothing more than was counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.slots import Rank
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.budget import BudgetLimits, closed_sizes, current_limits
from nodemanager.planner.limits.account_budgets import KINDS, account_budgets_of, piece_price_per_hour
from nodemanager.planner.placement.placement import Placement, place_jobs
from nodemanager.planner.placement.waiting import QUEUE_END
from nodemanager.planner.scheduler.seating import Bin
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.supply.refill import dear_nodes
from nodemanager.planner.supply.supply import current_supply

ROUNDS_MAX = 4  # if so many rounds find no fixed point, nothing is bought


def place_within_budget(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal) -> Placement:
    """Place the waiting jobs on existing nodes, then on nodes that the limits and the budgets allow to buy."""
    if not policy.budgets:
        return place_jobs(snapshot, policy, price_per_hour, BudgetLimits())
    queue_index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    accounts = account_budgets_of(snapshot, policy, queue_index)
    of_nodes = bool(policy.budget_owners.difference(KINDS))  # the site's, or a cloud's
    busy_until: dict[Rank, float] = {}
    prices: dict[JobId, Decimal] = {}
    limits = replace(current_limits(snapshot, policy, queue_index, busy_until), cuts=accounts.find_cuts(prices))
    for rounds_left in reversed(range(ROUNDS_MAX)):
        placement = place_jobs(snapshot, policy, price_per_hour, limits)
        if accounts.watched:
            prices.update(_job_prices(placement, policy))
        cuts = accounts.find_cuts(prices, dearest=rounds_left <= 1)
        promised = _promised_until(placement, snapshot) if of_nodes else {}
        more = {rank: at for rank, at in promised.items() if at > busy_until.get(rank, 0.0)}
        if cuts == limits.cuts and not more:
            return placement
        busy_until.update(more)
        tighter = replace(current_limits(snapshot, policy, queue_index, busy_until), cuts=cuts)
        if cuts == limits.cuts and _would_stay_the_same(placement, tighter, policy):
            supply = current_supply(snapshot, policy, price_per_hour, tighter)
            bought = placement.supply.price_left - placement.price_left
            price_left = supply.price_left - bought
            return replace(placement, supply=supply, price_left=price_left, dear=dear_nodes(supply))
        limits = tighter
    return place_jobs(snapshot, policy, price_per_hour, _nothing_left(limits))


def _nothing_left(limits: BudgetLimits) -> BudgetLimits:
    clouds = {name: _nothing_left(it) for name, it in limits.clouds.items()}
    limits = replace(limits, clouds=clouds) if clouds else limits
    if limits.left_per_hour is None:
        return limits
    return replace(limits, left_per_hour=(Decimal(0), limits.left_per_hour[1]))


def _would_stay_the_same(placement: Placement, limits: BudgetLimits, policy: Policy) -> bool:
    """Whether the tighter budget would give the same placement: it serves all jobs, and its purchases fit."""
    if placement.served_until != QUEUE_END or placement.failed_from or placement.obstacles or limits.drain_all:
        return False
    bought = placement.supply.price_left - placement.price_left
    of_groups = [(placement.allocation.offers[it.offer], it.nodes) for it in placement.allocation.groups]
    closed = closed_sizes(limits, policy)
    types = [(offer.node_type, nodes) for offer, nodes in of_groups if not offer.is_ordered]
    if any((it.size, it.market) in closed.get(it.name, ()) for it, _ in types):
        return False
    for cloud, (left, _) in limits.left_in_clouds.items():
        if sum((it.price_per_hour * nodes for it, nodes in types if it.cloud == cloud), Decimal(0)) > left:
            return False
    return limits.left_per_hour is None or bought <= limits.left_per_hour[0]


# --- what a placement promises ----------------------------------------------------------------------------


def _promised_until(placement: Placement, snapshot: Snapshot) -> dict[Rank, float]:
    """Until when existing and booting ranks may be busy with placed jobs that have not started."""
    ends: dict[Rank, float] = {}
    for id_, _, bin_, _ in _seats_of_served(placement):
        _extend(ends, bin_.rank, snapshot.wall_at + bin_.free_in_s, snapshot.jobs[id_].duration_s)
    nodes, of_rank = snapshot.nodes, node_index_of(snapshot).launch_of_rank
    for node in placement.assignment.nodes():
        rank = node.place[1]
        if not node.offer.is_ordered or rank not in of_rank:
            continue
        up_s = nodes[of_rank[rank]].create.requested_s + (
            timings.boot_s(snapshot, node.offer.node_type.name) or 0.0
        )
        up_at = snapshot.wall_at + max(0.0, up_s - snapshot.now_s)
        for id_, _ in placement.assignment.pieces_on(node):
            _extend(ends, rank, up_at, snapshot.jobs[id_].duration_s)
    return ends


def _extend(ends: dict[Rank, float], rank: Rank, begins_at: float, duration_s: float) -> None:
    """Extend a rank's end by a job. A job without a time limit promises nothing."""
    if duration_s > 0:
        ends[rank] = max(ends.get(rank, 0.0), begins_at + duration_s)


def _seats_of_served(placement: Placement) -> Iterator[tuple[JobId, Shape, Bin, int]]:
    """The seats of served jobs on existing nodes: job, shape, bin, and the number of pieces."""
    for key, seated in placement.seating.seated.items():
        for id_ in placement.demand.batches[key][: min(seated, placement.count_served(key))]:
            for bin_, pieces in placement.seating.seats[id_]:
                yield id_, key.shape, bin_, pieces


# --- users and queues -------------------------------------------------------------------------------------


def _job_prices(placement: Placement, policy: Policy) -> dict[JobId, Decimal]:
    """What each served job costs per hour on its nodes."""
    prices: dict[JobId, Decimal] = {}
    for id_, shape, bin_, pieces in _seats_of_served(placement):
        node_type = policy.type_of_slot.get(bin_.slot)
        if node_type is not None:
            prices[id_] = prices.get(id_, Decimal(0)) + pieces * piece_price_per_hour(node_type, shape)
    for node in placement.assignment.nodes():
        for id_, shape in placement.assignment.pieces_on(node):
            prices[id_] = prices.get(id_, Decimal(0)) + piece_price_per_hour(node.offer.node_type, shape)
    return prices
