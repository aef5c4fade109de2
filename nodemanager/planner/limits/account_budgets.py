"""The budgets of users and queues: from which waiting job on an account gets no more nodes.

An account is a user or a queue. Its cost counts in this order: jobs that have ended, running jobs up to their time
limits, then waiting jobs in queue order, each for its full time limit. The first job that would exceed the budget
is cut off, with all later jobs of the account. Nodes that are up may still run these jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from heapq import merge
from itertools import chain

from nodemanager.core.jobs import JobId, JobState, Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner.cost.billing import SECONDS_PER_HOUR, node_share
from nodemanager.planner.cost.budget import Cut, Cuts
from nodemanager.planner.cost.spending import Period, accounts_of, job_cost_within, periods
from nodemanager.planner.placement.infeasibility import pieces_per_node
from nodemanager.planner.scheduler.sched_simple import cores_of_piece, pieces_of, slots_per_piece
from nodemanager.planner.state.constraints import holds
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, QueueIndex
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.supply.offers import is_slot_specific

Batches = Mapping[BatchKey, Sequence[JobId]]
KINDS = ("user", "queue")


@dataclass
class AccountBudget:
    """The amount that an account may spend in a period, and the amount reserved."""

    account: str
    period: Period
    limit: Decimal
    committed: Decimal  # spent, plus what running jobs may still cost
    hours_left: Decimal
    reserved: Decimal = Decimal(0)  # ``committed``, plus the waiting jobs considered so far

    def cost(self, rate: Decimal, duration_s: float) -> Decimal:
        """What a job costs in the period if it starts now. A job without a time limit counts nothing in advance."""
        return rate * min(Decimal(duration_s) / SECONDS_PER_HOUR, self.hours_left)

    def max_cost(self, rate: Decimal, span_s: float) -> Decimal:
        """The most that a job with this time limit can cost in the period."""
        within = span_s < float(self.hours_left) * SECONDS_PER_HOUR
        return rate * (Decimal(span_s) / SECONDS_PER_HOUR if within else self.hours_left)

    def refuses(self, cost: Decimal) -> bool:
        """Whether the budget is used up, or the job would exceed it."""
        return self.reserved >= self.limit or self.reserved + cost > self.limit

    def refusal(self, cost: Decimal) -> Reason:
        """Why a job with this cost gets no node."""
        return because(
            Code.BUDGET_OF_ACCOUNT,
            account=self.account,
            period=self.period.name,
            forecast=self.reserved + cost,
            budget=self.limit,
        )


@dataclass
class AccountBudgets:
    """The budgets of all accounts with waiting jobs. ``watched``: the batches of accounts that could run out."""

    snapshot: Snapshot
    policy: Policy
    budgets: Mapping[str, Sequence[AccountBudget]]
    watched: Batches = field(default_factory=dict)
    rates: dict[tuple[Shape, bool], Decimal] = field(default_factory=dict)

    def watch(self, batches: Batches) -> None:
        """Watch the batches of accounts that would run out if all their jobs cost the most they may."""
        for budget in self._all_budgets():
            budget.reserved = budget.committed
        for key, ids in batches.items():
            for budget in self._budgets_of(key):
                budget.reserved += len(ids) * budget.max_cost(self._rate(key.shape, dearest=True), key.span_s)
        short = {budget.account for budget in self._all_budgets() if budget.reserved >= budget.limit}
        self.watched = {key: ids for key, ids in batches.items() if not short.isdisjoint(_accounts(key))}

    def find_cuts(self, known: Mapping[JobId, Decimal], *, dearest: bool = False) -> Cuts:
        """How many jobs of each watched batch the budgets allow. ``known``: prices per hour of jobs already placed.

        Other jobs count with the cheapest type that fits them or, to be safe, with the ``dearest``.
        """
        for budget in self._all_budgets():
            budget.reserved = budget.committed
        cuts: dict[BatchKey, Cut] = {}
        passed = dict.fromkeys(self.watched, 0)
        for key, id_ in _in_order(self.watched):
            if key in cuts:
                continue
            rate = self._rate(key.shape, dearest=dearest)
            rate = max(rate, known[id_]) if dearest and id_ in known else known.get(id_, rate)
            refused = self._reserve(key, rate, self.snapshot.jobs[id_].duration_s)
            if refused is None:
                passed[key] += 1
                continue
            account, why = refused
            of_user = account == _accounts(key)[0]
            beyond = [it for it in passed if it not in cuts and account in _accounts(it)]
            cuts.update((it, Cut(passed[it], why, of_user)) for it in beyond)
            if len(cuts) == len(passed):
                break
        return cuts

    def _reserve(self, key: BatchKey, rate: Decimal, duration_s: float) -> tuple[str, Reason] | None:
        """Reserve a job's cost in the budgets of its accounts; or return the account that refuses it, and why."""
        costs = [(budget, budget.cost(rate, duration_s)) for budget in self._budgets_of(key)]
        for budget, cost in costs:
            if budget.refuses(cost):
                return budget.account, budget.refusal(cost)
        for budget, cost in costs:
            budget.reserved += cost
        return None

    def _all_budgets(self) -> Iterator[AccountBudget]:
        return chain.from_iterable(self.budgets.values())

    def _budgets_of(self, key: BatchKey) -> Iterator[AccountBudget]:
        return chain.from_iterable(self.budgets.get(account, ()) for account in _accounts(key))

    def _rate(self, shape: Shape, *, dearest: bool) -> Decimal:
        rate = self.rates.get((shape, dearest))
        if rate is None:
            choose: Callable[..., Decimal] = partial(max if dearest else min, default=Decimal(0))
            of = [piece_price_per_hour(it, shape) for it in self.policy.node_types if _fits(it, shape, self.policy)]
            rate = self.rates[shape, dearest] = choose(of) * pieces_of(shape)
        return rate


def account_budgets_of(snapshot: Snapshot, policy: Policy, queue_index: QueueIndex) -> AccountBudgets:
    """The budgets of accounts with jobs in queues that are not stopped. Without such budgets nothing is watched."""
    budgets: dict[str, list[AccountBudget]] = {}
    batches = {key: ids for key, ids in queue_index.in_order.items() if key.queue not in snapshot.queues.stopped}
    for period in periods(snapshot.wall_at):
        limits = {kind: policy.budgets.get((kind, period.name)) for kind in KINDS}
        if not any(limit is not None for limit in limits.values()):
            continue
        begun = _committed(snapshot, policy, period)
        hours_left = Decimal(period.ends_at - snapshot.wall_at) / SECONDS_PER_HOUR
        for account in dict.fromkeys(chain.from_iterable(_accounts(key) for key in batches)):
            limit = limits[account.partition(" ")[0]]
            if limit is not None:
                budget = AccountBudget(account, period, limit, begun.get(account, Decimal(0)), hours_left)
                budgets.setdefault(account, []).append(budget)
    accounts = AccountBudgets(snapshot, policy, budgets)
    if budgets:
        accounts.watch(batches)
    return accounts


def piece_price_per_hour(node_type: NodeType, shape: Shape) -> Decimal:
    """What a piece of a job costs per hour on a node of a type."""
    if shape.exclusive:
        return node_type.price_per_hour
    cores, gpus = cores_of_piece(shape), shape.gpus_per_slot * slots_per_piece(shape)
    part, whole = node_share(cores, gpus, node_type.cores, node_type.gpus)
    return node_type.price_per_hour * min(part, whole) / whole


def _fits(node_type: NodeType, shape: Shape, policy: Policy) -> bool:
    if not pieces_per_node(node_type, shape):
        return False
    apart = is_slot_specific(shape.constraint, policy)
    return apart or holds(shape.constraint, properties=node_type.properties, host="", rank=-1)


def _accounts(key: BatchKey) -> tuple[str, str]:
    return accounts_of(key.userid, key.queue)


def _in_order(batches: Batches) -> Iterator[tuple[BatchKey, JobId]]:
    """The jobs of all batches in the order of the queue."""
    keys = list(batches)
    turns = merge(*(_turns(number, key.priority, batches[key]) for number, key in enumerate(keys)))
    return ((keys[number], id_) for _, id_, number in turns)


def _turns(number: int, priority: int, ids: Sequence[JobId]) -> Iterator[tuple[int, JobId, int]]:
    return ((-priority, id_, number) for id_ in ids)


def _committed(snapshot: Snapshot, policy: Policy, period: Period) -> dict[str, Decimal]:
    """By account: what ended jobs have cost, plus what running jobs will have cost by their time limits."""
    begun = {
        key[2]: paid
        for key, paid in snapshot.spending.amounts.items()
        if key[:2] == (period.name, period.begins_at)
    }
    for job in snapshot.jobs.values():
        if job.state is JobState.RUN and job.allocations:
            until_at = min(float(period.ends_at), job.ends_at or snapshot.wall_at)
            share = job_cost_within(job, period, snapshot, policy, max(until_at, snapshot.wall_at))
            for account in accounts_of(job.userid, job.queue):
                begun[account] = begun.get(account, Decimal(0)) + share
    return begun
