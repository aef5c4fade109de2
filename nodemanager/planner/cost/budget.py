"""What the budgets still allow to buy: their limits, less what was spent and what running jobs will cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, Rank, TypeName
from nodemanager.planner.cost import billing, timings
from nodemanager.planner.cost.spending import WHOLE_SITE, Period, node_cost_within, periods
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, QueueIndex
from nodemanager.planner.state.snapshot import Snapshot

CHEAPEST_ONLY_FROM = Decimal(
    "0.9"
)  # of the budget: if the forecast reaches this part, only the cheapest types are bought
WAITING_EVERY_S = 60.0  # how often waiting jobs are compared with the rest of a budget
SPENT_EVERY_S = 1.0  # the cost of nodes is compared with a limit no more often


@dataclass(frozen=True, slots=True)
class Cut:
    """How many of a batch's first jobs are within the budgets of their accounts, and why the next one is not."""

    count: int
    why: Reason
    of_user: bool  # the budget is a user's, not a queue's


Cuts = Mapping[BatchKey, Cut]


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """What the budget allows now. ``left_per_hour``: the most that nodes bought now may cost per hour, and why."""

    obstacle: Reason | None = None  # why types may not be bought; None if all may
    cheapest_only: bool = False
    drain_all: bool = False
    left_per_hour: tuple[Decimal, Reason] | None = None
    cuts: Cuts = field(default_factory=dict)  # from the budgets of users and queues (``account_budgets``)


def current_limits(
    snapshot: Snapshot, policy: Policy, queue_index: QueueIndex, promised: Mapping[Rank, float]
) -> BudgetLimits:
    """What the site's budget allows now, by the stricter of its periods.

    Two amounts count: what has been billed so far, and a forecast. The forecast is the cost of every node until the
    time limits of its jobs expire. ``promised``: until when ranks may be busy with jobs that have not started.
    """
    limits = BudgetLimits()
    if not policy.budgets:
        return limits
    ends = _last_job_ends(snapshot, queue_index)
    for rank, ends_at in promised.items():
        ends[rank] = max(ends_at, ends.get(rank, 0.0))
    for period in periods(snapshot.wall_at):
        limit = policy.budgets.get((WHOLE_SITE, period.name))
        if limit is not None:
            limits = _stricter(limits, _period_limits(snapshot, policy, period, limit, ends, queue_index))
    return limits


def _period_limits(
    snapshot: Snapshot,
    policy: Policy,
    period: Period,
    limit: Decimal,
    ends: Mapping[Rank, float],
    queue_index: QueueIndex,
) -> BudgetLimits:
    spent = forecast = snapshot.spending.amounts.get((period.name, period.begins_at, WHOLE_SITE), Decimal(0))
    for node in snapshot.nodes.values():
        if node.may_be_billed:
            until_at = max(snapshot.wall_at, min(float(period.ends_at), ends.get(node.launch.rank, 0.0)))
            spent += node_cost_within(node, period, snapshot, policy)
            forecast += node_cost_within(node, period, snapshot, policy, until_at)
    figures: Figures = {"period": period.name, "spent": spent, "forecast": forecast, "budget": limit}
    if spent >= limit:
        return BudgetLimits(because(Code.BUDGET_SPENT, **figures), drain_all=True)
    if forecast >= limit:
        return BudgetLimits(because(Code.BUDGET_NO_NEW_NODES, **figures))
    longest_s = max((key.span_s for key in queue_index.batches), default=0.0)
    hours = _hours_billed(snapshot, policy, longest_s, period.ends_at - snapshot.wall_at)
    left = (limit - forecast) / hours, because(Code.BUDGET_LEFT, **figures).with_figures(hours=float(hours))
    if forecast >= CHEAPEST_ONLY_FROM * limit:
        return BudgetLimits(because(Code.BUDGET_CHEAPEST_ONLY, **figures), cheapest_only=True, left_per_hour=left)
    return BudgetLimits(left_per_hour=left)


def left_by_period(snapshot: Snapshot, policy: Policy) -> dict[str, Decimal]:
    """The rest of the site's budgets, by the name of the period; only for budgets that are set."""
    found: dict[str, Decimal] = {}
    for period in periods(snapshot.wall_at):
        limit = policy.budgets.get((WHOLE_SITE, period.name))
        if limit is not None:
            gone = snapshot.spending.amounts.get((period.name, period.begins_at, WHOLE_SITE), Decimal(0))
            due = (
                node_cost_within(node, period, snapshot, policy)
                for node in snapshot.nodes.values()
                if node.may_be_billed
            )
            found[period.name] = limit - gone - sum(due, Decimal(0))
    return found


def budget_changes_s(snapshot: Snapshot, policy: Policy, jobs_wait: bool) -> float:
    """When time alone may change what the budgets allow; infinity if it never does.

    That is at the end of a day or month, and before the cost of the nodes can reach a limit. While jobs wait, less
    of the period is left for each of them, so they are looked at again every ``WAITING_EVERY_S``.
    """
    if not policy.budgets:
        return inf
    now_s, wall_at = snapshot.now_s, snapshot.wall_at
    moments = [now_s + WAITING_EVERY_S] if jobs_wait else []
    for period in periods(wall_at):
        if any(name == period.name for _, name in policy.budgets):
            moments.append(now_s + period.ends_at - wall_at)
        limit = policy.budgets.get((WHOLE_SITE, period.name))
        if limit is not None:
            moments.append(_limit_reached_s(snapshot, policy, period, limit))
    return min(moments, default=inf)


def _limit_reached_s(snapshot: Snapshot, policy: Policy, period: Period, limit: Decimal) -> float:
    """The earliest time at which the nodes' cost may reach the limit; infinity if it has reached it.

    Nothing falls due before some node's next payment. Until a time t from now, each node costs at most its price
    for t and for one more window.
    """
    spent = snapshot.spending.amounts.get((period.name, period.begins_at, WHOLE_SITE), Decimal(0))
    price = ahead = Decimal(0)
    next_payment_s = inf
    for node in snapshot.nodes.values():
        tariff = billing.tariff_of(node.launch, policy)
        if tariff is not None and node.may_be_billed:
            spent += node_cost_within(node, period, snapshot, policy)
            price += tariff.price_per_hour
            ahead += billing.cost_of_time(tariff.price_per_hour, tariff.billing.window_s)
            left_s = billing.window_left_s(tariff.billing, billing.age_s(node, snapshot.now_s))
            next_payment_s = min(next_payment_s, left_s)
    if spent >= limit or price <= 0:
        return inf
    reached_s = float((limit - spent - ahead) / price) * billing.SECONDS_PER_HOUR
    return snapshot.now_s + max(next_payment_s, reached_s, SPENT_EVERY_S)


def _hours_billed(snapshot: Snapshot, policy: Policy, longest_s: float, left_s: float) -> Decimal:
    """The hours billed within the period for a node that is ordered now and runs the longest waiting job.

    Of all types the longest time counts, and at least an hour.
    """
    lived_s = (
        (it.billing, min(left_s, (timings.boot_s(snapshot, it.name) or 0.0) + longest_s))
        for it in policy.node_types
    )
    return Decimal(max((3600.0, *(billing.paid_s(rule, age_s) for rule, age_s in lived_s)))) / 3600


def _stricter(one: BudgetLimits, other: BudgetLimits) -> BudgetLimits:
    def badness(limits: BudgetLimits) -> int:
        return 0 if limits.obstacle is None else 3 if limits.drain_all else 1 if limits.cheapest_only else 2

    worst = max(one, other, key=badness)
    lefts = [limits.left_per_hour for limits in (one, other) if limits.left_per_hour is not None]
    least = min(lefts, key=lambda left: left[0], default=None)
    return replace(worst, left_per_hour=least)


def _last_job_ends(snapshot: Snapshot, queue_index: QueueIndex) -> dict[Rank, float]:
    """When the time limit of each rank's last running job expires."""
    ends: dict[Rank, float] = {}
    for ends_at, id_ in queue_index.job_ends:
        for held in snapshot.jobs[id_].allocations:
            ends[held.rank] = ends_at
    return ends


def closed_sizes(limits: BudgetLimits, policy: Policy) -> Mapping[TypeName, Mapping[tuple[str, Market], Reason]]:
    """The sizes of each type that the budget forbids to buy: all, or all except those with the cheapest cores."""
    if limits.obstacle is None:
        return {}
    least = min((it.price_per_hour / it.cores for it in policy.node_types), default=Decimal(0))
    return {
        name: {
            (it.size, it.market): limits.obstacle
            for it in sizes
            if not (limits.cheapest_only and it.price_per_hour / it.cores == least)
        }
        for name, sizes in policy.by_size.items()
    }
