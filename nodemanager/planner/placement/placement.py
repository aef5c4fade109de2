"""Place the waiting jobs on the fleet: which job would run where, and which nodes that takes.

First, jobs are seated on existing nodes, as Flux's scheduler will do it (``scheduler.seating``). The rest is
allocated to booting and new nodes at the least cost (``allocation``). If the limits do not allow nodes for all
jobs, the order of the queue decides: the longest front part of the queue that can be served is served.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from heapq import merge
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from nodemanager.core.jobs import ANYWHERE, Constraint, JobId, PackingPolicy, QueuePolicy, Shape
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import TypeName
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.billing import SECONDS_PER_HOUR, paid_s
from nodemanager.planner.cost.budget import BudgetLimits, Cuts
from nodemanager.planner.packing.types import Effort
from nodemanager.planner.placement import infeasibility
from nodemanager.planner.placement.allocation import Allocation, Assignment, Work, unplaced_work
from nodemanager.planner.placement.demand import Demand, read_demand
from nodemanager.planner.placement.one_zone import ZoneChoice, choose_zones
from nodemanager.planner.placement.supply import (
    Offer,
    Supply,
    bins_free_soon,
    coming_offers,
    current_supply,
    free_bins,
)
from nodemanager.planner.placement.work_budget import batches_beyond
from nodemanager.planner.scheduler.sched_simple import cores_of_piece, pieces_of
from nodemanager.planner.scheduler.seating import Bin, Seater, Seating
from nodemanager.planner.state.frozen import lazy_property, replace
from nodemanager.planner.state.obstacle import Hindrance, Obstacle
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, count_up_to, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot

JobKind = tuple[Shape, float]  # jobs of a kind share their shape, and the step of their time limit (``span_s``)
QueuePosition = tuple[int, int]  # (-priority, id)
QUEUE_END: QueuePosition = (2**63, 2**63)
FRONT_JOBS = 512  # how many jobs are tried first if not all can be served
RESEATS_MAX = 8  # how often all jobs are reseated because a job that cannot be served gave its seats back
PACKING_STEPS_MAX = 250_000  # for all packings of a plan that are better than greedy
NARROW_TRIES = 3  # how often a front part of the queue is tried that only a better packing may serve
SHAPES_CACHED = 2**15  # how many shapes the feasibility cache keeps


class StuckJob(NamedTuple):
    """The first job in the queue that cannot get its nodes."""

    job: JobId
    shape: Shape
    obstacle: Obstacle


@dataclass(frozen=True)
class Placement:
    """Where each job runs. ``stuck``: the first job that cannot get its nodes; None if the scheduler fills gaps.

    In queue order no job starts behind the stuck one. So no node is kept or bought only for jobs behind it: it
    would be idle, and under a limit it could block the stuck job forever.
    """

    demand: Demand
    seating: Seating
    assignment: Assignment
    allocation: Allocation
    supply: Supply
    batches: Mapping[BatchKey, Sequence[JobId]]  # those that could ever be served
    infeasible: Mapping[JobKind, Obstacle]  # jobs that could never be served, and why
    served_until: QueuePosition  # all jobs before this position are served, except failed ones
    failed_from: Mapping[JobKind, QueuePosition]  # from where on jobs of a kind get nothing
    obstacles: Mapping[JobKind, Obstacle]  # why the first unserved job of a kind is not served
    out_of_reach: Mapping[JobKind, int]  # kinds that lack more pieces than are ``on_offer``, and how many
    on_offer: infeasibility.LeftToBuy | None  # before any job gets some; None if nothing is ``out_of_reach``
    stuck: StuckJob | None
    zones: Mapping[Shape, str]  # for jobs that want all their nodes in one zone
    price_left: Decimal  # per hour, after all purchases
    overspent: Reason | None  # the budget is spent: idle nodes are retired, busy ones drained
    cuts: Cuts  # how many of a batch the budgets of its user and queue allow

    def count_served(self, key: BatchKey) -> int:
        """How many jobs of a batch, from the first on, get all their nodes."""
        ids = self.batches.get(key)
        return _count_served_before(self.served_until, key, ids, self.failed_from) if ids is not None else 0

    @lazy_property
    def served(self) -> Mapping[BatchKey, int]:
        """How many jobs of each batch get all their nodes, for batches that could ever be served."""
        return {key: self.count_served(key) for key in self.demand.batches if key in self.batches}

    @lazy_property
    def unserved(self) -> Mapping[BatchKey, Obstacle]:
        """Why the first unserved job of each batch is not served."""
        unserved: dict[BatchKey, Obstacle] = {}
        for key, ids in self.demand.batches.items():
            kind = _kind_of(key)
            if kind in self.infeasible:
                unserved[key] = self.infeasible[kind]
            elif key in self.cuts and key in self.batches and self.served[key] == self.cuts[key].count:
                unserved[key] = Obstacle(Hindrance.UNAVAILABLE, self.cuts[key].why)
            elif key in self.batches and self.served[key] < len(ids):
                if kind in self.obstacles:
                    unserved[key] = self.obstacles[kind]
                elif kind in self.out_of_reach and self.on_offer is not None:
                    unserved[key] = infeasibility.why_not_now(
                        key.shape, self.out_of_reach[kind], self.supply, self.on_offer
                    )
        return unserved


def place_jobs(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal, limits: BudgetLimits) -> Placement:
    """Place the waiting jobs on existing nodes, then on nodes that may be bought."""
    passed = {
        key: cut.why
        for key, cut in limits.cuts.items()
        if not cut.count and policy.passes_over(of_user=cut.of_user)
    }
    demand = read_demand(snapshot, passed)
    supply = current_supply(snapshot, policy, price_per_hour, limits)
    if not demand.batches:
        return _empty_placement(demand, supply, limits)
    open_batches = {key: ids for key, ids in demand.batches.items() if key not in demand.put_off}
    if beyond := batches_beyond(open_batches, supply):
        demand = replace(demand, put_off={**demand.put_off, **beyond})
    return _PlacementBuilder(snapshot, policy, demand, supply, limits).build()


def _empty_placement(demand: Demand, supply: Supply, limits: BudgetLimits) -> Placement:
    allocation = Allocation((), _fail_on_offer, _fail_on_offer, supply.nodes_left, 0, _fail_on_memory, {})
    step = limits.obstacle if limits.drain_all else None
    nobody: Mapping[Any, Any] = {}
    return Placement(
        demand,
        Seating(),
        Assignment(allocation),
        allocation,
        supply,
        batches=nobody,
        infeasible=nobody,
        served_until=QUEUE_END,
        failed_from=nobody,
        obstacles=nobody,
        out_of_reach=nobody,
        on_offer=None,
        stuck=None,
        zones=nobody,
        price_left=supply.price_left,
        overspent=step,
        cuts=nobody,
    )


def _fail_on_offer(*_: object) -> int:
    raise AssertionError("no offer exists if no job waits")


def _fail_on_memory(_: Shape) -> int:
    raise AssertionError("no job is placed if none waits")


@dataclass(slots=True)
class _PlacementBuilder:
    """Builds a placement."""

    snapshot: Snapshot
    policy: Policy
    demand: Demand
    supply: Supply
    limits: BudgetLimits
    batches: Mapping[BatchKey, Sequence[JobId]] = field(init=False)  # those that could ever be served
    infeasible: dict[JobKind, Obstacle] = field(default_factory=dict)
    constraints: list[Constraint] = field(init=False)  # of all batches
    known_offers: list[Offer] | None = None
    known_cores: int | None = None
    known_unseated: list[tuple[BatchKey, Sequence[JobId], int]] | None = None
    zone_choices: Mapping[Shape, ZoneChoice] = field(init=False)  # for jobs that want all their nodes in one zone
    zones: Mapping[Shape, str] = field(init=False)
    memory: dict[Shape, int] = field(default_factory=dict)
    seating: Seating = field(init=False)
    failed_from: dict[JobKind, QueuePosition] = field(default_factory=dict)  # from where on a kind gets nothing
    obstacles: dict[JobKind, Obstacle] = field(default_factory=dict)
    known_obtainable: dict[Shape, int] = field(default_factory=dict)  # cache of ``_obtainable_pieces``
    effort: Effort = field(default_factory=lambda: Effort(PACKING_STEPS_MAX))
    price_decimals: int = field(init=False)  # with which prices are whole numbers

    def __post_init__(self) -> None:
        self.batches = self.demand.batches
        if self.demand.put_off:
            self.batches = {key: ids for key, ids in self.batches.items() if key not in self.demand.put_off}
        for key in self.batches:
            if (why := self._why_infeasible(key.shape)) is not None:
                self.infeasible[_kind_of(key)] = why
        passed = {key: it for key, it in self.limits.cuts.items() if self.policy.passes_over(of_user=it.of_user)}
        if passed:
            self.batches = {
                key: ids[: passed[key].count] if key in passed else ids for key, ids in self.batches.items()
            }
        if self.infeasible:
            self.batches = {key: ids for key, ids in self.batches.items() if _kind_of(key) not in self.infeasible}
        wanted = (key.shape.constraint for key in self.batches if key.shape.constraint is not ANYWHERE)
        self.constraints = list(dict.fromkeys(wanted))
        self.price_decimals = max(self.policy.price_decimals, -int(self.supply.price_left.as_tuple().exponent))
        one_zone = [key.shape for key in self.batches if key.shape.one_zone]
        self.zone_choices = choose_zones(one_zone, self._bins(), self.offers, self.supply) if one_zone else {}
        self.zones = {shape: found.zone for shape, found in self.zone_choices.items()}

    def _why_infeasible(self, shape: Shape) -> Obstacle | None:
        known = self.supply.feasibility.obstacle_of
        try:
            return known[shape]
        except KeyError:
            if len(known) >= SHAPES_CACHED:
                known.clear()
            why = known[shape] = infeasibility.why_never(shape, self.supply)
            return why

    @property
    def offers(self) -> list[Offer]:
        """The booting nodes and those on sale; computed once a job is short of nodes."""
        if self.known_offers is None:
            on_sale = sorted(
                self.supply.offers(self.constraints), key=lambda it: infeasibility.by_price(it.node_type)
            )
            coming = []
            if not self.limits.drain_all:
                coming = coming_offers(self.snapshot, self.policy, self.constraints, self.supply.matches)
            self.known_offers = [*coming, *on_sale]
        return self.known_offers

    @property
    def unseated(self) -> list[tuple[BatchKey, Sequence[JobId], int]]:
        """The batches with jobs that may need booting or new nodes, and how many jobs of each are seated."""
        if self.known_unseated is None:
            seated, failed = self.seating.seated, self.failed_from
            self.known_unseated = [
                (key, ids, begin)
                for key, ids in self.batches.items()
                if (begin := seated.get(key, 0)) < len(ids)
                and (-key.priority, ids[begin]) < (failed.get(_kind_of(key), QUEUE_END) if failed else QUEUE_END)
            ]
        return self.known_unseated

    @property
    def cores_on_offer(self) -> int:
        """An upper bound for the cores that booting and new nodes can give."""
        if self.known_cores is None:
            self.known_cores = self._empty_allocation(self.offers).cores_left(share=False)
        return self.known_cores

    def build(self) -> Placement:
        """Seat the jobs, allocate the rest, and put the placement together."""
        fifo = self.policy.rules.queue_policy is QueuePolicy.FIFO
        if not self.batches:
            self.seating = Seating()
        elif not fifo:
            self._seat({}, give_back=RESEATS_MAX)
        elif (held_up := self._placement_if_stuck_at_once()) is not None:
            return held_up
        refused = self._first_refused() if fifo else None
        end = refused[0] if refused is not None else QUEUE_END
        allocation, stuck_at = self._serve(end, fifo=fifo)
        stuck: StuckJob | None = None
        if stuck_at is not None and fifo:
            key, position = stuck_at
            stuck = StuckJob(JobId(position[1]), key.shape, self.obstacles[_kind_of(key)])
            end = position
        elif refused is not None:
            stuck = StuckJob(JobId(refused[0][1]), refused[1], refused[2])
        return self._placement(allocation, end, stuck)

    def _placement_if_stuck_at_once(self) -> Placement | None:
        """The placement if the first job that lacks nodes is clearly out of reach: no job behind it matters then.

        The result equals that of a full placement. If the case is not clear, all jobs are seated and it is None.
        """
        seater = Seater(self.batches, self._bins(), {}, self.zones, matches=self.supply.matches)
        self.seating = seater.seat_to_first_short()
        first = self.seating.first_short
        if first is None:
            return None  # all jobs are seated
        key, job, short = first
        position = (-key.priority, int(job))
        refused = self._first_refused()
        allocation = self._empty_allocation(self.offers)
        may_fit = allocation.takes_at_most(self._work_of_job(key, job)) >= short
        if may_fit or (refused is not None and refused[0] <= position):
            seater.seat_all()
            return None
        why = self.obstacles[_kind_of(key)] = self._why_stuck((key, position), allocation)
        return self._placement(allocation, position, StuckJob(job, key.shape, why))

    # -- which jobs are served

    def _serve(self, end: QueuePosition, *, fifo: bool) -> tuple[Allocation, tuple[BatchKey, QueuePosition] | None]:
        """The allocation of all jobs that can be served, and the position of the first that cannot."""
        for reseats_left in range(RESEATS_MAX, -1, -1):
            full = self._allocate_until(end)
            if full is not None:
                return full, None
            allocation, stuck = self._longest_front(end)
            if stuck is None or fifo:
                if stuck is not None:
                    self.obstacles[_kind_of(stuck[0])] = self._why_stuck(stuck, allocation)
                return allocation, stuck
            filled = self._fill_gaps(allocation, stuck, may_reseat=reseats_left > 0)
            if isinstance(filled, Allocation):
                return filled, stuck
            # Jobs that failed behind it did so while it held the seats that it gives back: forget these failures.
            self._seat(
                {kind: at for kind, at in self.failed_from.items() if at <= filled}, give_back=reseats_left - 1
            )
        raise AssertionError("no job may be reseated in the last round")

    def _seat(self, failed: Mapping[JobKind, QueuePosition], give_back: int) -> None:
        """Seat all jobs, under a policy that fills gaps. ``failed``: from which position a kind gets nothing.

        A job that lacks more pieces than can be obtained fails at once: else it would fail later, and all jobs
        would have to be reseated.
        """
        seater = Seater(
            self.batches,
            self._bins(),
            failed,
            self.zones,
            self._obtainable_pieces,
            give_back,
            self.supply.matches,
        )
        self.seating, self.known_unseated = seater.seat_all(), None
        beyond = self.seating.out_of_reach.items()
        self.failed_from = {**failed, **{kind: (-key.priority, int(job)) for kind, (key, job, _) in beyond}}

    def _obtainable_pieces(self, key: BatchKey, job: JobId) -> int:
        """An upper bound for the pieces of a job that booting and new nodes can take."""
        if not self.cores_on_offer:
            return 0
        if key.shape not in self.known_obtainable:
            alone = self._work_of_one_job(key, job, pieces_of(key.shape))
            self.known_obtainable[key.shape] = self._empty_allocation(self.offers).takes_at_most(alone)
        return self.known_obtainable[key.shape]

    def _bins(self) -> list[Bin]:
        """The bins of existing nodes, as they are before any job is seated."""
        queue_index = queue_index_of(self.snapshot.jobs, self.snapshot.indexes.queue)
        if self.limits.drain_all:
            return free_bins(self.snapshot, self.policy, all_go=True)
        free = free_bins(self.snapshot, self.policy, batches=self.batches)
        return free + bins_free_soon(self.snapshot, self.policy, queue_index)

    def _allocate_until(self, end: QueuePosition, *, greedily: bool = False) -> Allocation | None:
        """An allocation that serves all jobs before a queue position; None if there is none.

        ``greedily``: it is only a question whether they can be served.
        """
        short = self._cores_short(end)
        if short and short > self.cores_on_offer:
            return None  # a shortcut: packing would find the same
        works = self._unplaced_works(end) if short else []
        allocation: Allocation | None = self._empty_allocation(self.offers if works else [])
        for stage in self._stages(works):
            if allocation is not None:
                spread = self.policy.rules.packing is PackingPolicy.SPREAD
                allocation = allocation.with_work(stage, share=spread, greedily=greedily)
        return allocation

    def _stages(self, works: Sequence[Work]) -> list[list[Work]]:
        """Group the work: first jobs that want one zone, zone by zone, so that they share no node with others."""
        if not self.zones:
            return self._stages_by_cost(works)
        zones = dict.fromkeys(self.zones[work.shape] for work in works if work.shape.one_zone)
        return [
            stage
            for zone in (*zones, None)
            for stage in self._stages_by_cost([work for work in works if self.zones.get(work.shape) == zone])
        ]

    def _stages_by_cost(self, works: Sequence[Work]) -> list[list[Work]]:
        """Group the work for packing: together if all types share a billing rule, else the longest jobs first."""
        if not works:
            return []
        rules = {offer.node_type.billing for offer in self.offers}
        if len(rules) <= 1 and self.policy.rules.packing is PackingPolicy.SPREAD:
            return [list(works)]
        spans = sorted({work.span_s for work in works}, reverse=True)
        return [[work for work in works if work.span_s == span_s] for span_s in spans]

    def _longest_front(self, end: QueuePosition) -> tuple[Allocation, tuple[BatchKey, QueuePosition] | None]:
        """Serve the longest front part of the queue, and return the first job behind it, or None."""
        allocation = self._empty_allocation(self.offers)
        for priority in sorted({key.priority for key in self.batches}, reverse=True):
            served = 0
            for most in (FRONT_JOBS, len(self.snapshot.jobs)):
                ids = self._waiting_at(priority, end, most)
                served, allocation = self._serve_front(priority, ids, served, allocation)
                if served < len(ids):
                    key = self._key_at(priority, ids[served])
                    return allocation, (key, (-priority, ids[served]))
                if len(ids) < most:
                    break
        return allocation, None

    def _serve_front(
        self, priority: int, ids: Sequence[JobId], low: int, allocation: Allocation
    ) -> tuple[int, Allocation]:
        """How many of these jobs, from the first on, can be served along with all of a higher priority.

        ``low``: how many of them the allocation serves already.
        """
        high = len(ids)  # the upper bound of the search
        step = 1  # gallop first: at a limit the answer is often 0
        while low < high:
            middle = min(low + step, (low + high + 1) // 2)
            step *= 4
            tried = self._allocate_until((-priority, ids[middle - 1] + 1), greedily=True)
            low, high, allocation = (middle, high, tried) if tried is not None else (low, middle - 1, allocation)
        low, allocation = self._pack_front_again(priority, ids, low, allocation)
        while low < len(ids):
            # The rest may serve the next job alone, although packing all together failed.
            key = self._key_at(priority, ids[low])
            more = allocation.with_work([self._work_of_job(key, ids[low])], share=True, greedily=True)
            if more is None:
                break
            allocation, low = more, low + 1
        return low, allocation

    def _pack_front_again(
        self, priority: int, ids: Sequence[JobId], served: int, allocation: Allocation
    ) -> tuple[int, Allocation]:
        """Pack the jobs that a greedy packing serves at less cost, and see how many more that leaves room for."""
        tried = served
        for _ in range(NARROW_TRIES):
            can_improve = tried and self.effort.left > 0
            packed = self._allocate_until((-priority, ids[tried - 1] + 1)) if can_improve else None
            if packed is None:
                break
            served, allocation = tried, packed
            tried = min(len(ids), served + int(served * self._share_left(allocation)))
            if tried == served:
                break
        return served, allocation

    def _share_left(self, allocation: Allocation) -> float:
        """How much of the limits is left: of nodes or of the price, whichever is less."""
        price, limit = self._price_left(allocation), self.supply.price_left
        of_price = float(price / limit) if limit > 0 else 0.0
        return min(of_price, allocation.nodes_left / max(1, self.supply.nodes_left))

    def _waiting_at(self, priority: int, end: QueuePosition, most: int) -> list[JobId]:
        """The first jobs of a priority that are not fully seated on existing nodes, in order."""
        ids: list[JobId] = [
            id_
            for id_, (key, _) in self.seating.short.items()
            if key.priority == priority and (-priority, id_) < end
        ]
        for key, batch, begin in self.unseated:
            if key.priority == priority:
                ids += batch[begin : min(self._count_before_failure(key, batch, end), begin + most)]
        return sorted(ids)[:most]

    def _count_before_failure(self, key: BatchKey, ids: Sequence[JobId], end: QueuePosition) -> int:
        """How many jobs of a batch are before a position and before the first failed job of their kind."""
        return _count_served_before(end, key, ids, self.failed_from)

    def _key_at(self, priority: int, job: JobId) -> BatchKey:
        for key, ids in self.batches.items():
            if key.priority == priority:
                at = bisect_left(ids, job)
                if at < len(ids) and ids[at] == job:
                    return key
        raise AssertionError(f"job {job} is in no batch of priority {priority}")

    def _fill_gaps(
        self, allocation: Allocation, stuck: tuple[BatchKey, QueuePosition], *, may_reseat: bool
    ) -> Allocation | QueuePosition:
        """Serve jobs behind a stuck one, kind by kind, as many as possible.

        Returns a queue position instead if the job there failed while it has some seats: it gives them back, and
        all jobs must be reseated.
        """
        self._fail(stuck, allocation)
        if may_reseat and self._is_partly_seated(stuck):
            return stuck[1]
        for works in self._work_behind(stuck[1]):
            position, allocation = self._serve_most(works, allocation)
            if position is None:
                continue
            failed = _batch_at(works, position), position
            self._fail(failed, allocation)
            if may_reseat and self._is_partly_seated(failed):
                return position
        return allocation

    def _fail(self, stuck: tuple[BatchKey, QueuePosition], allocation: Allocation) -> None:
        """Note that this job and all later ones of its kind get nothing, and why."""
        self.obstacles[_kind_of(stuck[0])] = self._why_stuck(stuck, allocation)
        self.failed_from[_kind_of(stuck[0])] = stuck[1]

    def _is_partly_seated(self, stuck: tuple[BatchKey, QueuePosition]) -> bool:
        return JobId(stuck[1][1]) in self.seating.short

    def _has_failed(self, key: BatchKey, job: JobId) -> bool:
        return (-key.priority, job) >= self.failed_from.get(_kind_of(key), QUEUE_END)

    def _work_behind(self, after: QueuePosition) -> list[list[Work]]:
        """The unserved work behind a position, kind by kind, in the order of each kind's first job."""
        done = {
            (work.shape, work.span_s, work.pieces_each, key, begin): stop
            for work in self._unplaced_works(after)
            for key, _, begin, stop in work.runs
        }
        behind: dict[JobKind, list[Work]] = {}
        for work in self._unplaced_works(QUEUE_END):
            kind = (work.shape, work.span_s, work.pieces_each)
            runs = [(key, ids, done.get((*kind, key, begin), begin), stop) for key, ids, begin, stop in work.runs]
            rest = Work(*kind, tuple(run for run in runs if run[2] < run[3]))
            if rest.jobs:
                behind.setdefault((work.shape, work.span_s), []).append(rest)
        return sorted(behind.values(), key=lambda works: next(_positions(works)))

    @staticmethod
    def _serve_most(works: Sequence[Work], allocation: Allocation) -> tuple[QueuePosition | None, Allocation]:
        """Serve as many jobs of a kind as possible, in queue order, and return the position of the next one.

        They may belong to several batches and users. The position is None if all are served.
        """
        least = min(work.pieces_each * cores_of_piece(work.shape) for work in works)
        jobs = sum(work.jobs for work in works)
        high = min(jobs, allocation.cores_left(share=True) // least)
        positions = list(islice(_positions(works), high + 1))
        low, best = 0, allocation
        while low < high:
            middle = high if low == 0 and high == jobs else (low + high + 1) // 2
            front = _works_before(works, positions[middle]) if middle < jobs else works
            tried = allocation.with_work(front, share=True, greedily=True)
            low, high, best = (middle, high, tried) if tried is not None else (low, middle - 1, best)
        return (positions[low] if low < jobs else None), best

    # -- work

    def _cores_short(self, end: QueuePosition) -> int:
        """A lower bound for the cores that the unseated jobs before a position need."""
        cores = 0
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                cores += short * cores_of_piece(key.shape)
        for key, ids, begin in self.unseated:
            jobs = self._count_before_failure(key, ids, end) - begin
            if jobs > 0:
                cores += jobs * pieces_of(key.shape) * cores_of_piece(key.shape)
        return cores

    def _unplaced_works(self, end: QueuePosition) -> list[Work]:
        """The work before a position that is not seated, in the order of the batches."""
        runs: dict[JobKind, list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        parts: dict[tuple[JobKind, int], list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                ids = self.batches[key]
                at = bisect_left(ids, id_)
                parts.setdefault((_kind_of(key), short), []).append((key, ids, at, at + 1))
        for key, ids, begin in self.unseated:
            stop = self._count_before_failure(key, ids, end)
            if begin < stop:
                runs.setdefault(_kind_of(key), []).append((key, ids, begin, stop))
        return [
            *(Work(kind[0], kind[1], short, tuple(those)) for (kind, short), those in parts.items()),
            *(unplaced_work(shape, span_s, those) for (shape, span_s), those in runs.items()),
        ]

    def _work_of_job(self, key: BatchKey, job: JobId) -> Work:
        """The work of a single job."""
        _, short = self.seating.short.get(job, (key, pieces_of(key.shape)))
        return self._work_of_one_job(key, job, short)

    def _work_of_one_job(self, key: BatchKey, job: JobId, short: int) -> Work:
        ids = self.batches[key]
        at = bisect_left(ids, job)
        return Work(key.shape, key.span_s, short, ((key, ids, at, at + 1),))

    def _why_stuck(self, stuck: tuple[BatchKey, QueuePosition], allocation: Allocation) -> Obstacle:
        key, position = stuck
        choice = self.zone_choices.get(key.shape)
        if choice is not None and choice.obstacle is not None:
            return choice.obstacle
        _, short = self.seating.short.get(JobId(position[1]), (key, pieces_of(key.shape)))
        return infeasibility.why_not_now(key.shape, short, self.supply, self._left_to_buy(allocation))

    def _left_to_buy(self, allocation: Allocation) -> infeasibility.LeftToBuy:
        free: dict[TypeName, int] = {}
        for offer, left in zip(allocation.offers, allocation.left, strict=True):
            if not offer.is_ordered:
                free[offer.node_type.name] = free.get(offer.node_type.name, 0) + left
        return infeasibility.LeftToBuy(free, allocation.nodes_left, self._price_left(allocation))

    # -- the allocation, and the result

    def _empty_allocation(self, offers: Sequence[Offer]) -> Allocation:
        price_left = int(self.supply.price_left.scaleb(self.price_decimals))
        return Allocation(
            offers,
            self._cost(),
            self._price,
            self.supply.nodes_left,
            price_left,
            self._memory_bytes,
            self.zones,
            self.effort,
        )

    def _memory_bytes(self, shape: Shape) -> int:
        if not shape.memory_bytes_per_slot:
            return 0
        if shape not in self.memory:
            self.memory[shape] = infeasibility.memory_per_piece(shape, self.supply)
        return self.memory[shape]

    def _price_left(self, allocation: Allocation) -> Decimal:
        return Decimal(allocation.price_left).scaleb(-self.price_decimals)

    def _price(self, offer: Offer) -> int:
        return int(offer.node_type.price_per_hour.scaleb(self.price_decimals))

    def _cost(self) -> Callable[[Offer, float], int]:
        """The cost of a node for as long as a job may run, plus 1: among equal costs, fewer nodes win."""

        def cost(offer: Offer, span_s: float) -> int:
            boot_s = timings.boot_s(self.snapshot, offer.node_type.name) or 0.0
            billed_s = SECONDS_PER_HOUR if span_s == inf else paid_s(offer.node_type.billing, boot_s + span_s)
            return self._price(offer) * int(billed_s) + 1

        return cost

    def _first_refused(self) -> tuple[QueuePosition, Shape, Obstacle] | None:
        """The first job that must get no node but that Flux does not reject.

        Even an otherwise empty fleet could not serve it, or the budget of its user or queue is used up and it is
        not seated.
        """
        refused: list[tuple[QueuePosition, Shape, Obstacle]] = []
        if not self.infeasible and not self.limits.cuts:
            return None
        for key, ids in self.demand.batches.items():
            if key in self.demand.put_off:
                continue
            why = self.infeasible.get(_kind_of(key))
            blocks = why is not None and why.kind is not Hindrance.NO_SLOT_FITS
            if why is not None and blocks and not self.policy.passes_over(of_user=False):
                refused.append(((-key.priority, ids[0]), key.shape, why))
            cut = self.limits.cuts.get(key) if why is None else None
            if cut is None or self.policy.passes_over(of_user=cut.of_user):
                continue
            if (first := self._first_unseated(key, ids, cut.count)) is not None:
                refused.append(((-key.priority, first), key.shape, Obstacle(Hindrance.UNAVAILABLE, cut.why)))
        return min(refused, key=lambda it: it[0], default=None)

    def _first_unseated(self, key: BatchKey, ids: Sequence[JobId], begin: int) -> JobId | None:
        seated = self.seating.seated.get(key, 0)
        behind = enumerate(islice(ids, begin, None), begin)
        return next((id_ for index, id_ in behind if index >= seated or id_ in self.seating.short), None)

    def _placement(self, allocation: Allocation, end: QueuePosition, stuck: StuckJob | None) -> Placement:
        beyond = self.seating.out_of_reach
        for kind in beyond:
            choice = self.zone_choices.get(kind[0])
            if choice is not None and choice.obstacle is not None:
                self.obstacles[kind] = choice.obstacle
            else:
                self.obstacles.pop(kind, None)  # from an earlier seating
        return Placement(
            self.demand,
            self.seating,
            Assignment(allocation),
            allocation,
            self.supply,
            batches=self.batches,
            infeasible=self.infeasible,
            served_until=end,
            failed_from=self.failed_from,
            obstacles=self.obstacles,
            out_of_reach={kind: short for kind, (_, _, short) in beyond.items()},
            on_offer=self._left_to_buy(self._empty_allocation(self.offers)) if beyond else None,
            stuck=stuck,
            zones=self.zones,
            price_left=self._price_left(allocation),
            overspent=self.limits.obstacle if self.limits.drain_all else None,
            cuts=self.limits.cuts,
        )


def _kind_of(key: BatchKey) -> JobKind:
    return key.shape, key.span_s


def _count_served_before(
    end: QueuePosition, key: BatchKey, ids: Sequence[JobId], failed: Mapping[JobKind, QueuePosition]
) -> int:
    """How many jobs of a batch are before a position and before the first failed job of their kind."""
    if not failed:
        return _count_before(key, ids, end)
    return min(_count_before(key, ids, end), _count_before(key, ids, failed.get(_kind_of(key), QUEUE_END)))


def _count_before(key: BatchKey, ids: Sequence[JobId], position: QueuePosition) -> int:
    return count_up_to(key, ids, (position[0], position[1] - 1))


def _positions(works: Sequence[Work]) -> Iterator[QueuePosition]:
    """The queue positions of their jobs, in order."""
    return merge(*(_positions_in(*run) for work in works for run in work.runs))


def _positions_in(key: BatchKey, ids: Sequence[JobId], begin: int, stop: int) -> Iterator[QueuePosition]:
    return ((-key.priority, int(ids[index])) for index in range(begin, stop))


def _batch_at(works: Sequence[Work], position: QueuePosition) -> BatchKey:
    """The batch of the job at a position."""
    for key, ids, begin, stop in (run for work in works for run in work.runs):
        at = bisect_left(ids, position[1], begin, stop)
        if at < stop and ids[at] == position[1]:
            return key
    raise AssertionError(f"job {position[1]} is in none of these batches")


def _works_before(works: Sequence[Work], position: QueuePosition) -> list[Work]:
    """The part of the work before a position."""
    front = []
    for work in works:
        runs = (
            (key, ids, begin, min(stop, _count_before(key, ids, position))) for key, ids, begin, stop in work.runs
        )
        there = tuple(run for run in runs if run[2] < run[3])
        if there:
            front.append(Work(work.shape, work.span_s, work.pieces_each, there))
    return front
