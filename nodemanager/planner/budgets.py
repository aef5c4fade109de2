"""Place the jobs within the budget: a placed job costs money until its time limit expires.

Which nodes may be bought depends on the amounts reserved already, and these depend on the placement: which jobs
start on existing nodes and which on booting ones. So the placement is repeated. Each round counts what the last one
promised, until a round promises nothing more than was counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from heapq import merge
from itertools import chain

from nodemanager.core.jobs import Constraint, JobId, JobState, Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, SlotName
from nodemanager.planner import timings
from nodemanager.planner.billing import PREPAID, SECONDS_PER_HOUR, node_share
from nodemanager.planner.budget import BudgetLimits, Cut, Cuts, closed_sizes, current_limits
from nodemanager.planner.constraints import holds
from nodemanager.planner.demand import QUEUE_END
from nodemanager.planner.free_room import dear_nodes
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.packing.types import Effort
from nodemanager.planner.placement import Placement, place_jobs
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, QueueIndex, queue_index_of
from nodemanager.planner.seating import Bin, cores_of_piece, pieces_of, slots_per_piece
from nodemanager.planner.serving import PACKING_STEPS_MAX, SEARCH_STEPS_MAX
from nodemanager.planner.snapshot import Snapshot
from nodemanager.planner.spending import Period, accounts_of, job_cost_within, periods
from nodemanager.planner.supply import current_supply, is_slot_specific
from nodemanager.planner.why_not import pieces_per_node

LEFT_TO_ROUND = 20  # the part of all steps that earlier rounds leave for each later one
ROUNDS_MAX = 4  # if so many rounds find no fixed point, nothing is bought


def place_within_budget(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal) -> Placement:
    """Place the waiting jobs on existing nodes, then on nodes that the limits and the budgets allow to buy."""
    queue_index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    accounts = account_budgets_of(snapshot, policy, queue_index)
    of_nodes = bool(policy.budget_owners.difference(KINDS))  # the site's, or a cloud's
    busy_until: dict[Rank, float] = {}
    prices: dict[JobId, Decimal] = {}
    limits = replace(current_limits(snapshot, policy, queue_index, busy_until), cuts=accounts.find_cuts(prices))
    efforts = Effort(SEARCH_STEPS_MAX), Effort(PACKING_STEPS_MAX)
    kept_each = [it.left // LEFT_TO_ROUND for it in efforts]
    for rounds_left in reversed(range(ROUNDS_MAX)):
        for effort, kept in zip(efforts, kept_each, strict=True):
            effort.left -= rounds_left * kept
        placement = place_jobs(snapshot, policy, price_per_hour, limits, *efforts)
        for effort, kept in zip(efforts, kept_each, strict=True):
            effort.left = max(0, effort.left) + rounds_left * kept
        if accounts.watched:
            prices.update(_job_prices(placement, snapshot, policy))
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
    return place_jobs(snapshot, policy, price_per_hour, _nothing_left(limits), *efforts)


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
        up_s = nodes[of_rank[rank]].create.boots_from_s + (
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


def _job_prices(placement: Placement, snapshot: Snapshot, policy: Policy) -> dict[JobId, Decimal]:
    """What each served job costs per hour on its nodes."""
    prices: dict[JobId, Decimal] = {}
    for id_, shape, bin_, pieces in _seats_of_served(placement):
        node_type = _as_bought(bin_.slot, snapshot, policy)
        if node_type is not None:
            prices[id_] = prices.get(id_, Decimal(0)) + pieces * piece_price_per_hour(node_type, shape)
    for node in placement.assignment.nodes():
        known = _as_bought(node.place[0], snapshot, policy) if node.offer.is_ordered else None
        node_type = known or node.offer.node_type
        for id_, shape in placement.assignment.pieces_on(node):
            prices[id_] = prices.get(id_, Decimal(0)) + piece_price_per_hour(node_type, shape)
    return prices


def _as_bought(slot: SlotName, snapshot: Snapshot, policy: Policy) -> NodeType | None:
    """The type of the node on a slot, in its size. A prepaid node costs nothing, as when it was bought."""
    id_ = node_index_of(snapshot).launch_of_slot.get(slot)
    launch = snapshot.nodes[id_].launch if id_ is not None else None
    node_type = (policy.type_as_bought(launch) if launch is not None else None) or policy.type_of_slot.get(slot)
    if node_type is None or launch is None or not launch.prepaid:
        return node_type
    return replace(node_type, price_per_hour=PREPAID.price_per_hour)


# --- the budgets of users and queues: from which waiting job on an account gets no more nodes -------------
#
# An account is a user or a queue. Its cost counts in this order: jobs that have ended, running jobs up to their
# time limits, then waiting jobs in queue order, each for its full time limit. The first job that would exceed the
# budget is cut off, with all later jobs of the account. Nodes that are up may still run these jobs.


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
    rates: dict[Shape, tuple[Decimal, Decimal]] = field(default_factory=dict)  # the least and the most
    suited: dict[Constraint, Sequence[NodeType]] = field(default_factory=dict)  # the types where it may hold

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
        of_account: dict[str, list[BatchKey]] = {}
        for key in self.watched:
            for account in _accounts(key):
                of_account.setdefault(account, []).append(key)
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
            beyond = [it for it in of_account.pop(account) if it not in cuts]
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
        if shape not in self.rates:
            types = [it for it in self._suited(shape.constraint) if pieces_per_node(it, shape)]
            if not shape.gpus_per_slot:  # others are bought for it, if they could ever serve it
                types = [it for it in types if not it.is_reserved] or types
            rates = [piece_price_per_hour(it, shape) * pieces_of(shape) for it in types] or [Decimal(0)]
            self.rates[shape] = min(rates), max(rates)
        return self.rates[shape][dearest]

    def _suited(self, constraint: Constraint) -> Sequence[NodeType]:
        if constraint not in self.suited:
            types, apart = self.policy.node_types, is_slot_specific(constraint, self.policy)
            self.suited[constraint] = [
                it for it in types if apart or holds(constraint, properties=it.properties, host="", rank=-1)
            ]
        return self.suited[constraint]


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
