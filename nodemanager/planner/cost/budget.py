"""What was spent in this day and this month (UTC), and what the budget forbids for it.

A node is paid by its billing rule, from its creation on; what is paid counts in the period in which it falls due. A
job is taken to have spent its share of a node's cores at the node's price. Every figure is an estimate, in the
site's currency. What is gone is added up in the snapshot (``Snapshot.spend``); what stands is counted when asked.

The sum outlives the manager: it lies in the instance beside the leases. A node that is gone keeps its lease until
the sum with it is on record, which names it until then: so each is counted once, whenever the manager is killed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.facts import Fact, QueueSeen, SpendKept, SpendNotKept
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import NodeState
from nodemanager.core.reasons import Figure, Reason, because
from nodemanager.core.records import NOTHING_SPENT, Spend
from nodemanager.core.slots import NodeType, Rank, Tariff, TypeName
from nodemanager.planner.cost import billing, timings
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, QueueIndex
from nodemanager.planner.state.snapshot import Node, Snapshot, Source

SECONDS_PER_DAY = 86_400
CHEAPEST_ONLY_FROM = Decimal("0.9")  # of the budget, by the forecast

WHOLE_SITE = ""  # the account of the whole site
KEEP_AGAIN_S = 1.0  # after it could not be put on record
PERIODS_KEPT = 4  # the latest days and months that have begun, and the next that have not, by the clock


@dataclass(frozen=True, slots=True)
class Period:
    name: str
    begins_at: int
    ends_at: int


def periods(wall_at: float) -> tuple[Period, Period]:
    """The day and the month that a moment lies in."""
    day = int(wall_at // SECONDS_PER_DAY)
    first, following = _month_of(day)
    return (
        Period("day", day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY),
        Period("month", first * SECONDS_PER_DAY, following * SECONDS_PER_DAY),
    )


def _month_of(day: int) -> tuple[int, int]:
    """The first day of the month, and of the next one, as days since 1970: in the proleptic Gregorian calendar."""
    year, month = 1970 + day // 366, 1  # not later than it is
    while _first_day(year + 1, 1) <= day:
        year += 1
    while month < 12 and _first_day(year, month + 1) <= day:
        month += 1
    return _first_day(year, month), _first_day(year + month // 12, month % 12 + 1)


def _first_day(year: int, month: int) -> int:
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400 - 477  # since 1970
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if is_leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return (year - 1970) * 365 + leap_days + sum(lengths[: month - 1])


# --- adding up what is gone -------------------------------------------------------------------------------


def accrue(before: Snapshot, after: Snapshot, fact: Fact, policy: Policy) -> Snapshot:
    """Add what has just gone: nodes by their bill, jobs by their share. Nothing to do where there is no budget."""
    if not policy.budgets or after.spend_on_record is None:
        return after
    gone: dict[tuple[str, int, str], Decimal] = {}
    ended: list[Node] = []
    if after.nodes is not before.nodes:
        ended = list(_ended(before, after))
        counted = {*(id_ for id_ in after.spend_counted if id_ in after.nodes), *(node.id for node in ended)}
        after = replace(after, spend_counted=frozenset(counted))
    for period in periods(after.wall_at):
        for node in ended:
            _add(gone, period, WHOLE_SITE, _paid_within(node, period, after, policy))
        if isinstance(fact, QueueSeen) and after.jobs is not before.jobs:
            for job in _finished(before.jobs, after.jobs, fact):
                for account in accounts_of(job.userid, job.queue):
                    _add(gone, period, account, job_cost_within(job, period, before, policy))
    return replace(after, spend=_added(after.spend, gone, after.wall_at)) if gone else after


def _added(
    spend: Mapping[tuple[str, int, str], Decimal], more: Mapping[tuple[str, int, str], Decimal], wall_at: float
) -> Mapping[tuple[str, int, str], Decimal]:
    made = dict(spend)
    for key, amount in more.items():
        made[key] = made.get(key, Decimal(0)) + amount
    return _recent(made, wall_at) if len(made) > len(spend) else made


def _recent(spend: Mapping[tuple[str, int, str], Decimal], wall_at: float) -> dict[tuple[str, int, str], Decimal]:
    """Without what is long over: the few periods are kept in which something was spent last.

    They are counted, not dated: a clock that is far ahead for a moment, or far behind, takes nothing from the
    period that it comes back to.
    """
    kept: set[tuple[str, int]] = set()
    for name in ("day", "month"):
        begins = sorted({begins_at for of, begins_at, _ in spend if of == name})
        here = bisect_right(begins, wall_at)
        kept.update((name, begins_at) for begins_at in begins[max(0, here - PERIODS_KEPT) : here + PERIODS_KEPT])
    return {key: amount for key, amount in spend.items() if key[:2] in kept}


def _add(amounts: dict[tuple[str, int, str], Decimal], period: Period, account: str, amount: Decimal) -> None:
    key = period.name, period.begins_at, account
    amounts[key] = amounts.get(key, Decimal(0)) + amount


def _ended(before: Snapshot, after: Snapshot) -> Iterator[Node]:
    for id_, node in node_index_of(after).to_check.items():
        was = before.nodes.get(id_)
        has_gone = node.state is NodeState.GONE and was is not None and was.may_be_billed
        if was is not None and has_gone and node.cloud is not None and id_ not in after.spend_counted:
            yield node


def _finished(before: Mapping[JobId, Job], after: Mapping[JobId, Job], fact: QueueSeen) -> Iterator[Job]:
    named = before if fact.complete else dict.fromkeys([*(job.id for job in fact.jobs), *fact.ended])
    for id_ in named:
        was, is_ = before.get(id_), after.get(id_)
        if was is not None and was.state is JobState.RUN and (is_ is None or is_.state is not JobState.RUN):
            yield was


def accounts_of(userid: int, queue: str) -> tuple[str, str]:
    return f"user {userid}", f"queue {queue}"


def _paid_within(
    node: Node, period: Period, at: Snapshot, policy: Policy, until_at: float | None = None
) -> Decimal:
    """What falls due for a node from the period's begin until now, or until a moment."""
    tariff = billing.tariff_of(node.launch, policy)
    if tariff is None:
        return Decimal(0)
    age_s = billing.age_s(node, at.now_s)
    end_s = age_s + (until_at - at.wall_at if until_at is not None else 0.0)
    begin_s = age_s - (at.wall_at - period.begins_at)
    return _bill(tariff, end_s) - _bill(tariff, begin_s)


def _bill(tariff: NodeType | Tariff, age_s: float) -> Decimal:
    return billing.cost(tariff, age_s) if age_s > 0 else Decimal(0)


def job_cost_within(
    job: Job, period: Period, at: Snapshot, policy: Policy, until_at: float | None = None
) -> Decimal:
    """What a running job's share of its nodes has cost in a period, or will have by a moment."""
    if job.began_at is None:
        return Decimal(0)
    seconds = max(0.0, (until_at or at.wall_at) - max(job.began_at, period.begins_at))
    return job_price_per_hour(job, at, policy) * Decimal(seconds) / billing.SECONDS_PER_HOUR


def job_price_per_hour(job: Job, at: Snapshot, policy: Policy) -> Decimal:
    """What a running job's share of its nodes costs an hour."""
    price = Decimal(0)
    for held in job.allocations:
        rank = at.ranks.get(held.rank)
        place = policy.index_of_slot.get(rank.host) if rank is not None else None
        if place is not None:
            node_type = policy.types[place[0]]
            price += node_type.price_per_hour * held.cores / node_type.cores
        elif rank is not None and (owner := node_index_of(at).launch_of_rank.get(held.rank)) is not None:
            tariff = billing.tariff_of(at.nodes[owner].launch, policy)
            price += tariff.price_per_hour * held.cores / rank.cores if tariff is not None else 0
    return price


# --- the record -------------------------------------------------------------------------------------------


def current_spend(snapshot: Snapshot) -> Spend:
    """What is to be put on record."""
    return Spend(snapshot.spend, snapshot.spend_counted)


def spend_to_write(snapshot: Snapshot, policy: Policy) -> Spend | None:
    """What is to be put on record now, if anything: at once where a lease waits for it, else every little while."""
    on_record = snapshot.spend_on_record
    if not policy.budgets or on_record is None or not snapshot.claimed or current_spend(snapshot) == on_record:
        return None
    waited_for = not snapshot.spend_counted <= on_record.counted
    due = snapshot.now_s - snapshot.spend_kept_s >= policy.probe_s
    return current_spend(snapshot) if waited_for or due else None


def waits_for_record(node: Node, snapshot: Snapshot) -> bool:
    """Whether its cost is not on record yet: until then its lease is not ended."""
    on_record = snapshot.spend_on_record or NOTHING_SPENT
    return node.id in snapshot.spend_counted and node.id not in on_record.counted


def apply_spend_record(snapshot: Snapshot, on_record: Spend) -> Snapshot:
    """After the record was read. What we know ourselves is in it, unless it was not kept yet: the larger counts."""
    amounts = dict(on_record.amounts)
    for key, amount in snapshot.spend.items():
        amounts[key] = max(amount, amounts.get(key, amount))
    counted = frozenset(id_ for id_ in snapshot.spend_counted | on_record.counted if id_ in snapshot.nodes)
    return replace(snapshot, spend=amounts, spend_counted=counted, spend_on_record=on_record, spend_write=Source())


def apply_spend_written(snapshot: Snapshot, fact: SpendKept | SpendNotKept) -> Snapshot:
    if isinstance(fact, SpendKept):
        return replace(snapshot, spend_on_record=fact.spend, spend_kept_s=snapshot.now_s, spend_write=Source())
    again_s = snapshot.now_s + KEEP_AGAIN_S
    failed = replace(snapshot.spend_write, answer_due_s=None, failure=fact.why, retry_s=again_s)
    return replace(snapshot, spend_write=failed)


# --- what it forbids --------------------------------------------------------------------------------------


# How many of a batch, from its first job on, are within the budgets of its accounts; and what is said of the next.
Cuts = Mapping[BatchKey, tuple[int, Reason]]


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """``left_per_hour``: what the nodes bought now may cost an hour, to stay within what is left."""

    obstacle: Reason | None = None  # what keeps types from being bought
    cheapest_only: bool = False
    drain_all: bool = False
    left_per_hour: tuple[Decimal, Reason] | None = None
    cuts: Cuts = field(default_factory=dict)  # where there are budgets of users and queues: by ``accounts``


def current_limits(
    snapshot: Snapshot, policy: Policy, line: QueueIndex, promised: Mapping[Rank, float]
) -> BudgetLimits:
    """How far the budget lets the fleet go now, by the period that is worst off.

    ``promised``: until when some ranks may be at work for jobs that have not begun.
    """
    verdict = BudgetLimits()
    if not policy.budgets:
        return verdict
    ends = _ends_of_nodes(snapshot, line)
    for rank, ends_at in promised.items():
        ends[rank] = max(ends_at, ends.get(rank, 0.0))
    for period in periods(snapshot.wall_at):
        limit = policy.budgets.get((WHOLE_SITE, period.name))
        if limit is not None:
            verdict = _worse(verdict, _weigh_period(snapshot, policy, period, limit, ends, line))
    return verdict


def _weigh_period(
    snapshot: Snapshot, policy: Policy, period: Period, limit: Decimal, ends: Mapping[Rank, float], line: QueueIndex
) -> BudgetLimits:
    spent = forecast = snapshot.spend.get((period.name, period.begins_at, WHOLE_SITE), Decimal(0))
    for node in snapshot.nodes.values():
        if node.may_be_billed:
            until_at = max(snapshot.wall_at, min(float(period.ends_at), ends.get(node.launch.rank, 0.0)))
            spent += _paid_within(node, period, snapshot, policy)
            forecast += _paid_within(node, period, snapshot, policy, until_at)
    figures: dict[str, Figure] = {"period": period.name, "spent": spent, "forecast": forecast, "budget": limit}
    if spent >= limit:
        return BudgetLimits(because("budget_spent", **figures), drain_all=True)
    if forecast >= limit:
        return BudgetLimits(because("budget_no_new_nodes", **figures))
    longest_s = max((key.span_s for key in line.batches), default=0.0)
    hours = _paid_h(snapshot, policy, longest_s, period.ends_at - snapshot.wall_at)
    left = (limit - forecast) / hours, because("budget_left", **figures, hours=float(hours))
    if forecast >= CHEAPEST_ONLY_FROM * limit:
        return BudgetLimits(because("budget_cheapest_only", **figures), cheapest_only=True, left_per_hour=left)
    return BudgetLimits(left_per_hour=left)


def left_by_period(snapshot: Snapshot, policy: Policy) -> dict[str, Decimal]:
    """What is left of the site's budgets, by their period; only of those that are given."""
    found: dict[str, Decimal] = {}
    for period in periods(snapshot.wall_at):
        limit = policy.budgets.get((WHOLE_SITE, period.name))
        if limit is not None:
            gone = snapshot.spend.get((period.name, period.begins_at, WHOLE_SITE), Decimal(0))
            due = (
                _paid_within(node, period, snapshot, policy)
                for node in snapshot.nodes.values()
                if node.may_be_billed
            )
            found[period.name] = limit - gone - sum(due, Decimal(0))
    return found


def _paid_h(snapshot: Snapshot, policy: Policy, longest_s: float, left_s: float) -> Decimal:
    """For how long a node is paid in what is left of a period, from its order on, if it runs the longest job.

    Of the type for which that is longest; an hour at the least.
    """
    lived_s = (
        (it.billing, min(left_s, (timings.boot_s(snapshot, it.name) or 0.0) + longest_s))
        for it in policy.node_types
    )
    return Decimal(max((3600.0, *(billing.paid_s(rule, age_s) for rule, age_s in lived_s)))) / 3600


def _worse(one: BudgetLimits, other: BudgetLimits) -> BudgetLimits:
    def badness(verdict: BudgetLimits) -> int:
        return 0 if verdict.obstacle is None else 3 if verdict.drain_all else 1 if verdict.cheapest_only else 2

    worst = max(one, other, key=badness)
    lefts = [verdict.left_per_hour for verdict in (one, other) if verdict.left_per_hour is not None]
    least = min(lefts, key=lambda left: left[0], default=None)
    return replace(worst, left_per_hour=least)


def _ends_of_nodes(snapshot: Snapshot, line: QueueIndex) -> dict[Rank, float]:
    """When the last running job of each rank must have ended."""
    ends: dict[Rank, float] = {}
    for ends_at, id_ in line.job_ends:
        for held in snapshot.jobs[id_].allocations:
            ends[held.rank] = ends_at
    return ends


def closed_types(verdict: BudgetLimits, policy: Policy) -> Mapping[TypeName, Reason]:
    """The types that the budget keeps from being bought: all, or all but those with the cheapest cores."""
    if verdict.obstacle is None:
        return {}
    least = min((it.price_per_hour / it.cores for it in policy.node_types), default=Decimal(0))
    return {
        it.name: verdict.obstacle
        for it in policy.node_types
        if not (verdict.cheapest_only and it.price_per_hour / it.cores == least)
    }
