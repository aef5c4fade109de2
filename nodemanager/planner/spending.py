"""Count what was spent on this day and in this month (UTC).

A node costs what its billing rule says, from its creation; each payment counts in the period in which it falls due.
A job costs its share of a node (``billing.node_share``) at the node's price. Every figure is an estimate in the
site's currency. The cost of gone nodes and ended jobs is added up in ``Snapshot.spending``. The cost of existing
nodes is computed on demand.

The sum outlives the manager: the instance stores it next to the leases. A gone node keeps its lease until a sum
that includes it is on record, and the record names the node until then. So each node is counted exactly once, even
if the manager is killed at any moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import floor, inf

from nodemanager.core.facts import Fact, QueueSeen, SpendKept, SpendNotKept
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import NodeState
from nodemanager.core.records import NOTHING_SPENT, Spend
from nodemanager.core.slots import CloudName
from nodemanager.planner import billing
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot, Source

WHOLE_SITE = ""  # the owner of the site's own budget
CLOUD = "cloud "  # followed by the name: the owner of a cloud's budget
PERIODS = ("day", "month")  # for which there are budgets
KEEP_AGAIN_S = 1.0  # after a failed write of the record
PERIODS_KEPT = 4  # so many days and months, before and after now by the clock


@dataclass(frozen=True, slots=True)
class Period:
    """A day or a month. The moments are seconds since the epoch."""

    name: str
    begins_at: int
    ends_at: int


def periods(wall_at: float) -> tuple[Period, Period]:
    """The day and the month (UTC) that contain a moment. ``wall_at``: seconds since the epoch."""
    day = datetime.fromtimestamp(floor(wall_at), UTC).replace(hour=0, minute=0, second=0)
    month = day.replace(day=1)
    next_month = (month + timedelta(days=31)).replace(day=1)
    return _period("day", day, day + timedelta(days=1)), _period("month", month, next_month)


def _period(name: str, begins: datetime, ends: datetime) -> Period:
    return Period(name, int(begins.timestamp()), int(ends.timestamp()))


def accrue(before: Snapshot, after: Snapshot, fact: Fact, policy: Policy) -> Snapshot:
    """Add the cost of nodes that are gone and jobs that ended with this fact. Without a budget nothing is added."""
    if not policy.budgets or after.spending.on_record is None:
        return after
    added: dict[tuple[str, int, str], Decimal] = {}
    ended: list[Node] = []
    if after.nodes is not before.nodes:
        ended = list(_nodes_just_gone(before, after))
        counted = {*(id_ for id_ in after.spending.counted if id_ in after.nodes), *(node.id for node in ended)}
        after = replace(after, spending=replace(after.spending, counted=frozenset(counted)))
    for period in periods(after.wall_at):
        for node in ended:
            cost = node_cost_within(node, period, after, policy)
            _add(added, period, WHOLE_SITE, cost)
            if (cloud := cloud_account(policy.cloud_of(node.launch))) in policy.budget_owners:
                _add(added, period, cloud, cost)
        if isinstance(fact, QueueSeen) and after.jobs is not before.jobs:
            for job in _jobs_just_ended(before.jobs, after.jobs, fact):
                for account in accounts_of(job.userid, job.queue):
                    _add(added, period, account, job_cost_within(job, period, before, policy))
    return (
        replace(
            after,
            spending=replace(after.spending, amounts=_with_amounts(after.spending.amounts, added, after.wall_at)),
        )
        if added
        else after
    )


def _with_amounts(
    spend: Mapping[tuple[str, int, str], Decimal], more: Mapping[tuple[str, int, str], Decimal], wall_at: float
) -> Mapping[tuple[str, int, str], Decimal]:
    made = dict(spend)
    for key, amount in more.items():
        made[key] = made.get(key, Decimal(0)) + amount
    return _without_old_periods(made, wall_at) if len(made) > len(spend) else made


def _without_old_periods(
    spend: Mapping[tuple[str, int, str], Decimal], wall_at: float
) -> dict[tuple[str, int, str], Decimal]:
    """Drop old periods: keep only the few latest in which something was spent.

    Periods are kept by their number, not by age. So a clock that is far off for a moment loses nothing of the
    period to which it returns.
    """
    kept: set[tuple[str, int]] = set()
    for name in PERIODS:
        begins = sorted({begins_at for of, begins_at, _ in spend if of == name})
        here = bisect_right(begins, wall_at)
        kept.update((name, begins_at) for begins_at in begins[max(0, here - PERIODS_KEPT) : here + PERIODS_KEPT])
    return {key: amount for key, amount in spend.items() if key[:2] in kept}


def _add(amounts: dict[tuple[str, int, str], Decimal], period: Period, account: str, amount: Decimal) -> None:
    key = period.name, period.begins_at, account
    amounts[key] = amounts.get(key, Decimal(0)) + amount


def _nodes_just_gone(before: Snapshot, after: Snapshot) -> Iterator[Node]:
    for id_, node in node_index_of(after).to_check.items():
        was = before.nodes.get(id_)
        has_gone = node.state is NodeState.GONE and was is not None and was.may_be_billed
        if was is not None and has_gone and node.cloud is not None and id_ not in after.spending.counted:
            yield node


def _jobs_just_ended(before: Mapping[JobId, Job], after: Mapping[JobId, Job], fact: QueueSeen) -> Iterator[Job]:
    named = before if fact.complete else dict.fromkeys([*(job.id for job in fact.jobs), *fact.ended])
    for id_ in named:
        was, is_ = before.get(id_), after.get(id_)
        if was is not None and was.state is JobState.RUN and (is_ is None or is_.state is not JobState.RUN):
            yield was


def cloud_account(cloud: CloudName) -> str:
    """The owner of a cloud's budget."""
    return CLOUD + cloud


def accounts_of(userid: int, queue: str) -> tuple[str, str]:
    """The accounts of a job: its user and its queue."""
    return f"user {userid}", f"queue {queue}"


def node_cost_within(
    node: Node, period: Period, snapshot: Snapshot, policy: Policy, until_at: float | None = None
) -> Decimal:
    """What falls due for a node from the start of the period until now, or until ``until_at``."""
    tariff = billing.tariff_of(node.launch, policy)
    if tariff is None:
        return Decimal(0)
    age_s = billing.age_s(node, snapshot.now_s)
    end_s = age_s + (until_at - snapshot.wall_at if until_at is not None else 0.0)
    begin_s = age_s - (snapshot.wall_at - period.begins_at)
    return billing.cost_between(tariff, begin_s, end_s)


def job_cost_within(
    job: Job, period: Period, snapshot: Snapshot, policy: Policy, until_at: float | None = None
) -> Decimal:
    """What a running job's share of its nodes has cost in a period until now, or until ``until_at``."""
    if job.began_at is None:
        return Decimal(0)
    seconds = max(0.0, (until_at or snapshot.wall_at) - max(job.began_at, period.begins_at))
    ahead_s = max(0.0, until_at - snapshot.wall_at) if until_at is not None else 0.0
    # A step of the clock moves a job's beginning, but not the age of its nodes.
    return sum(
        (
            billing.cost_of_time(price, min(seconds, age_s + ahead_s))
            for price, age_s in _job_shares(job, snapshot, policy)
        ),
        Decimal(0),
    )


def job_price_per_hour(job: Job, snapshot: Snapshot, policy: Policy) -> Decimal:
    """What a running job's share of its nodes costs per hour."""
    return sum((price for price, _ in _job_shares(job, snapshot, policy)), Decimal(0))


def _job_shares(job: Job, snapshot: Snapshot, policy: Policy) -> Iterator[tuple[Decimal, float]]:
    """For each rank of a running job, its share of the node's price per hour, and the node's age in seconds."""
    for held in job.allocations:
        rank = snapshot.ranks.get(held.rank)
        if rank is None:
            continue
        owner = node_index_of(snapshot).launch_of_rank.get(held.rank)
        node = snapshot.nodes[owner] if owner is not None else None
        age_s = billing.age_s(node, snapshot.now_s) if node is not None else inf
        tariff = billing.tariff_of(node.launch, policy) if node is not None else None
        if (type_and_index := policy.index_of_slot.get(rank.host)) is not None:
            node_type = policy.types[type_and_index[0]]
            part, whole = billing.node_share(held.cores, held.gpus, node_type.cores, node_type.gpus)
            yield (tariff or node_type).price_per_hour * part / whole, age_s
        elif tariff is not None:
            part, whole = billing.node_share(held.cores, held.gpus, rank.cores, rank.gpus)
            yield tariff.price_per_hour * part / whole, age_s


def current_spend(snapshot: Snapshot) -> Spend:
    """The spend as it is written to the record."""
    return Spend(snapshot.spending.amounts, snapshot.spending.counted)


def write_spend_at_s(snapshot: Snapshot, policy: Policy) -> float | None:
    """When to write the spend to the record; None if nothing is to be written. At once if a lease waits for it."""
    on_record = snapshot.spending.on_record
    if on_record is None or not snapshot.sources.claimed or current_spend(snapshot) == on_record:
        return None
    waited_for = not snapshot.spending.counted <= on_record.counted
    return snapshot.now_s if waited_for else snapshot.spending.kept_s + policy.timing.probe_s


def waits_for_record(node: Node, snapshot: Snapshot) -> bool:
    """Whether the node's cost is not on record yet; until it is, the lease must not end."""
    on_record = snapshot.spending.on_record or NOTHING_SPENT
    return node.id in snapshot.spending.counted and node.id not in on_record.counted


def apply_spend_record(snapshot: Snapshot, on_record: Spend) -> Snapshot:
    """After the record was read. Our own amounts are in it unless they were not written yet: the larger counts."""
    amounts = dict(on_record.amounts)
    for key, amount in snapshot.spending.amounts.items():
        amounts[key] = max(amount, amounts.get(key, amount))
    counted = frozenset(id_ for id_ in snapshot.spending.counted | on_record.counted if id_ in snapshot.nodes)
    return replace(
        snapshot,
        spending=replace(snapshot.spending, amounts=amounts, counted=counted, on_record=on_record, write=Source()),
    )


def apply_spend_written(snapshot: Snapshot, fact: SpendKept | SpendNotKept) -> Snapshot:
    """After the record was written, or the write failed: then it is tried again soon."""
    if isinstance(fact, SpendKept):
        return replace(
            snapshot,
            spending=replace(snapshot.spending, on_record=fact.spend, kept_s=snapshot.now_s, write=Source()),
        )
    again_s = snapshot.now_s + KEEP_AGAIN_S
    failed = replace(snapshot.spending.write, answer_due_s=None, failure=fact.why, retry_s=again_s)
    return replace(snapshot, spending=replace(snapshot.spending, write=failed))
