"""What the budgets still allow to buy: their limits, less what was spent and what running jobs will cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, Market, NodeType, Rank, TypeName
from nodemanager.planner import billing, timings
from nodemanager.planner.frozen import replace
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, QueueIndex
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.spending import WHOLE_SITE, Period, cloud_account, node_cost_within, periods

# If the forecast reaches this part of the budget, only the cheapest types are bought.
CHEAPEST_ONLY_FROM = Decimal("0.9")
WAITING_EVERY_S = 60.0  # how often waiting jobs are compared with the rest of a budget
SPENT_EVERY_S = 1.0  # the cost of nodes is compared with a limit no more often
# Why nothing starts, why nothing is bought, and why no more is bought: of the site (False), or of a cloud (True).
_SPENT = {False: Code.BUDGET_SPENT, True: Code.CLOUD_BUDGET_SPENT}
_USED_UP = {False: Code.BUDGET_NO_NEW_NODES, True: Code.CLOUD_BUDGET_USED_UP}
_REST = {False: Code.BUDGET_LEFT, True: Code.CLOUD_BUDGET_LEFT}


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
    clouds: Mapping[CloudName, BudgetLimits] = field(default_factory=dict)  # what the budgets of clouds allow there

    @property
    def overspent(self) -> Reason | None:
        """Why idle nodes are retired and busy ones drained: the budget of the site is spent."""
        return self.obstacle if self.drain_all else None

    @property
    def overspent_clouds(self) -> Mapping[CloudName, Reason]:
        """The clouds whose own budget is spent, each with the reason."""
        return {name: why for name, it in self.clouds.items() if (why := it.overspent) is not None}

    @property
    def left_in_clouds(self) -> Mapping[CloudName, tuple[Decimal, Reason]]:
        """The most that nodes bought now in a cloud may cost per hour by its own budget, and why."""
        return {name: it.left_per_hour for name, it in self.clouds.items() if it.left_per_hour is not None}


UNLIMITED = BudgetLimits()


def current_limits(
    snapshot: Snapshot, policy: Policy, queue_index: QueueIndex, promised: Mapping[Rank, float]
) -> BudgetLimits:
    """What the budgets of the site and of its clouds allow now, each by the stricter of its periods.

    Two amounts count: what has been billed so far, and a forecast. The forecast is the cost of every node until the
    time limits of its jobs expire. ``promised``: until when ranks may be busy with jobs that have not started.
    """
    limits = UNLIMITED
    ends = _last_job_ends(snapshot, queue_index)
    for rank, ends_at in promised.items():
        ends[rank] = max(ends_at, ends.get(rank, 0.0))
    clouds: dict[CloudName, BudgetLimits] = {}
    longest_s = max((key.span_s for key in queue_index.batches), default=0.0)
    for owner, cloud, nodes in _owners(snapshot, policy):
        for period in periods(snapshot.wall_at):
            limit = policy.budgets.get((owner, period.name))
            if limit is None:
                continue
            amounts = _amounts(owner, nodes, snapshot, policy, period, ends)
            hours = _hours_billed(snapshot, policy, longest_s, period.ends_at - snapshot.wall_at)
            found = _period_limits(cloud, period, limit, amounts, hours)
            if cloud is None:
                limits = _stricter(limits, found)
            else:
                clouds[cloud] = _stricter(clouds.get(cloud, BudgetLimits()), found)
    return replace(limits, clouds=clouds) if clouds else limits


def _amounts(
    account: str,
    nodes: Iterable[Node],
    snapshot: Snapshot,
    policy: Policy,
    period: Period,
    ends: Mapping[Rank, float],
) -> tuple[Decimal, Decimal]:
    """What an account has spent in a period, and what it will have spent when the jobs on its nodes end."""
    spent = forecast = snapshot.spending.amounts.get((period.name, period.begins_at, account), Decimal(0))
    for node in nodes:
        if node.may_be_billed:
            until_at = max(snapshot.wall_at, min(float(period.ends_at), ends.get(node.launch.rank, 0.0)))
            spent += node_cost_within(node, period, snapshot, policy)
            forecast += node_cost_within(node, period, snapshot, policy, until_at)
    return spent, forecast


def _period_limits(
    cloud: CloudName | None, period: Period, limit: Decimal, amounts: tuple[Decimal, Decimal], hours: Decimal
) -> BudgetLimits:
    """What the budget of the site (None) or of a cloud allows in a period. ``hours``: that a new node is billed.

    The last tenth of the site's budget buys the cheapest types only. That of a cloud buys any of its types: others
    are bought elsewhere.
    """
    spent, forecast = amounts
    figures: Figures = {"period": period.name, "spent": spent, "forecast": forecast, "budget": limit}
    if of_cloud := cloud is not None:
        figures["cloud"] = cloud
    if spent >= limit:
        return BudgetLimits(because(_SPENT[of_cloud], **figures), drain_all=True)
    if forecast >= limit:
        return BudgetLimits(because(_USED_UP[of_cloud], **figures))
    left = (limit - forecast) / hours, because(_REST[of_cloud], **figures).with_figures(hours=float(hours))
    if not of_cloud and forecast >= CHEAPEST_ONLY_FROM * limit:
        return BudgetLimits(because(Code.BUDGET_CHEAPEST_ONLY, **figures), cheapest_only=True, left_per_hour=left)
    return BudgetLimits(left_per_hour=left)


def left_by_period(snapshot: Snapshot, policy: Policy) -> dict[tuple[str, str], Decimal]:
    """The rest of the budgets of the site and its clouds, by owner and period, if they have any."""
    found: dict[tuple[str, str], Decimal] = {}
    for owner, _, nodes in _owners(snapshot, policy):
        for period in periods(snapshot.wall_at):
            limit = policy.budgets.get((owner, period.name))
            if limit is not None:
                found[owner, period.name] = limit - _amounts(owner, nodes, snapshot, policy, period, {})[0]
    return found


def _owners(snapshot: Snapshot, policy: Policy) -> Iterator[tuple[str, CloudName | None, list[Node]]]:
    """The site (None) and the clouds that have budgets, each with its nodes."""
    nodes = snapshot.nodes.values()
    if WHOLE_SITE in policy.budget_owners:
        yield WHOLE_SITE, None, list(nodes)
    for cloud in policy.cloud_names:
        if (owner := cloud_account(cloud)) in policy.budget_owners:
            yield owner, cloud, [node for node in nodes if policy.cloud_of(node.launch) == cloud]


def budget_changes_s(snapshot: Snapshot, policy: Policy, jobs_wait: bool) -> float:
    """When time alone may change what the budgets allow; infinity if it never does.

    That is at the end of a day or month, and before the cost of the nodes can reach a limit. While jobs wait, less
    of the period is left for each of them, so they are looked at again every ``WAITING_EVERY_S``.
    """
    now_s, wall_at = snapshot.now_s, snapshot.wall_at
    owners = list(_owners(snapshot, policy))
    moments = [now_s + WAITING_EVERY_S] if jobs_wait else []
    for period in periods(wall_at):
        if any(name == period.name for _, name in policy.budgets):
            moments.append(now_s + period.ends_at - wall_at)
        for owner, _, nodes in owners:
            limit = policy.budgets.get((owner, period.name))
            if limit is not None:
                moments.append(_limit_reached_s(snapshot, policy, period, limit, owner, nodes))
    return min(moments, default=inf)


def _limit_reached_s(
    snapshot: Snapshot, policy: Policy, period: Period, limit: Decimal, owner: str, nodes: Iterable[Node]
) -> float:
    """The earliest time at which the nodes' cost may reach the limit; infinity if it has reached it.

    Nothing falls due before some node's next payment. Until a time t from now, each node costs at most its price
    for t and for one more window.
    """
    spent = snapshot.spending.amounts.get((period.name, period.begins_at, owner), Decimal(0))
    price = ahead = Decimal(0)
    next_payment_s = inf
    for node in nodes:
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
    """The sizes of each type that the budgets forbid to buy. The site's may allow those with the cheapest cores."""
    of_clouds = {name: it.obstacle for name, it in limits.clouds.items() if it.obstacle is not None}
    if limits.obstacle is None and not of_clouds:
        return {}
    least = min((it.price_per_hour / it.cores for it in policy.node_types), default=Decimal(0))

    def why_closed(size: NodeType) -> Reason | None:
        is_cheapest = limits.cheapest_only and size.price_per_hour / size.cores == least
        return of_clouds.get(size.cloud) if limits.obstacle is None or is_cheapest else limits.obstacle

    closed = {
        name: {(it.size, it.market): why for it in sizes if (why := why_closed(it)) is not None}
        for name, sizes in policy.by_size.items()
    }
    return {name: sizes for name, sizes in closed.items() if sizes}
