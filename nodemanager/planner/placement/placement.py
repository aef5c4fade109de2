"""The waiting jobs laid out on the fleet: who would run where, and which nodes are needed for it.

First jobs are seated on what is there, as the scheduler will (``seating``). What is short is laid on the nodes that
come and on new ones, at the least cost (``shelf``). Where that cannot be done for all, the limits decide who gets
nodes, and they do it in the order of the queue: the longest front part of it that can be served is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from heapq import merge
from itertools import islice
from math import inf
from typing import Any

from nodemanager.core.jobs import ANYWHERE, Constraint, JobId, PackingPolicy, QueuePolicy, Shape
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import TypeName
from nodemanager.planner.cost import budget as spending
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.billing import SECONDS_PER_HOUR, paid_s
from nodemanager.planner.placement import infeasibility, supply
from nodemanager.planner.placement import one_zone as gathering
from nodemanager.planner.placement.allocation import Allocation, Assignment, Work, unplaced_work
from nodemanager.planner.placement.demand import Demand, read_demand
from nodemanager.planner.placement.flux_scheduler import Bin, Seater, Seating, cores_of_piece, pieces_of
from nodemanager.planner.placement.infeasibility import INFEASIBLE
from nodemanager.planner.placement.one_zone import ZoneChoice
from nodemanager.planner.placement.supply import Offer, Supply
from nodemanager.planner.state.frozen import worked_out
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, count_up_to, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot

JobKind = tuple[Shape, float]  # what jobs ask for, and for how long
QueuePosition = tuple[int, int]  # in the queue: (-priority, id)
QUEUE_END: QueuePosition = (2**63, 2**63)
FRONT_JOBS = 512  # how many are looked at first, where not all can be served
RESEATS_MAX = 8  # how often jobs are seated anew because one that failed gave its seat back


SHAPES_CACHED = 4096  # of which it is remembered whether they could ever be served


@dataclass(frozen=True)
class Placement:
    """Who sits where. ``stuck`` is the first job that cannot be given its nodes; None under one that fills gaps.

    In queue order nothing starts behind it. So no node is needed, neither kept nor bought, for the sake of jobs
    behind it alone: such a node would stand idle, and at a cap it would keep the first one out for ever.
    """

    demand: Demand
    seating: Seating
    assignment: Assignment
    allocation: Allocation
    supply: Supply
    batches: Mapping[BatchKey, Sequence[JobId]]  # those that could be served, some day
    infeasible: Mapping[JobKind, Reason]  # the others, and why
    served_until: QueuePosition  # up to where all are served, but for those that failed
    failed_from: Mapping[JobKind, QueuePosition]  # from where on jobs of a kind get nothing
    reasons: Mapping[JobKind, Reason]  # what stands in the way of the first of a kind that is not served
    out_of_reach: Mapping[
        JobKind, int
    ]  # how many pieces the first of others lacks: more than there are ``on_offer``
    on_offer: infeasibility.LeftToBuy | None  # before any of it is given to anybody; None where nobody lacks more
    stuck: tuple[JobId, Shape, Reason] | None
    zones: Mapping[Shape, str]  # of the jobs that want all their nodes in one
    price_left: Decimal  # an hour, once all that is needed is bought
    overspent: Reason | None  # the budget is spent: what is idle goes, and what is at work takes no more
    cuts: spending.Cuts  # how many of a batch its user's and its queue's budgets allow

    def count_served(self, key: BatchKey) -> int:
        """How many of a batch, from its first job on, get all that they ask for."""
        ids = self.batches.get(key)
        return _served_before(self.served_until, key, ids, self.failed_from) if ids is not None else 0

    @worked_out
    def served(self) -> Mapping[BatchKey, int]:
        """The same of all batches that could be served."""
        return {key: self.count_served(key) for key in self.demand.batches if key in self.batches}

    @worked_out
    def unserved(self) -> Mapping[BatchKey, Reason]:
        """What stands in the way of the first of the others."""
        unserved: dict[BatchKey, Reason] = {}
        for key, ids in self.demand.batches.items():
            want = _want(key)
            if want in self.infeasible:
                unserved[key] = self.infeasible[want]
            elif key in self.cuts and key in self.batches and self.served[key] == self.cuts[key][0]:
                unserved[key] = self.cuts[key][1]
            elif key in self.batches and self.served[key] < len(ids):
                if want in self.reasons:
                    unserved[key] = self.reasons[want]
                elif want in self.out_of_reach and self.on_offer is not None:
                    unserved[key] = infeasibility.why_not_now(
                        key.shape, self.out_of_reach[want], self.supply, self.on_offer
                    )
        return unserved


def place_jobs(
    snapshot: Snapshot, policy: Policy, price_per_hour: Decimal, budget: spending.BudgetLimits
) -> Placement:
    """Lay the queue out on what there is, then on what may be bought."""
    # In queue order such a job holds up those behind it, as any does that gets no nodes; else it is passed over.
    fifo = policy.queue_policy is QueuePolicy.FIFO
    wanted = read_demand(snapshot, {} if fifo else {key: why for key, (own, why) in budget.cuts.items() if not own})
    market = supply.current_supply(snapshot, policy, price_per_hour, budget)
    if not wanted.batches:
        return _nobody_waits(wanted, market, budget)
    return _Maker(snapshot, policy, wanted, market, budget).made()


def _nobody_waits(wanted: Demand, market: Supply, budget: spending.BudgetLimits) -> Placement:
    shelf = Allocation((), _no_offer, _no_offer, market.nodes_left, 0, _no_memory, {})
    step = budget.obstacle if budget.drain_all else None
    nobody: Mapping[Any, Any] = {}
    return Placement(
        wanted,
        Seating(),
        Assignment(shelf),
        shelf,
        market,
        batches=nobody,
        infeasible=nobody,
        served_until=QUEUE_END,
        failed_from=nobody,
        reasons=nobody,
        out_of_reach=nobody,
        on_offer=None,
        stuck=None,
        zones=nobody,
        price_left=market.price_left,
        overspent=step,
        cuts=nobody,
    )


def _no_offer(*_: object) -> int:
    raise AssertionError("nothing is offered where nobody waits")


def _no_memory(_: Shape) -> int:
    raise AssertionError("nothing is laid anywhere where nobody waits")


@dataclass(slots=True)
class _Maker:
    """A layout while it is made."""

    snapshot: Snapshot
    policy: Policy
    wanted: Demand
    market: Supply
    budget: spending.BudgetLimits
    batches: Mapping[BatchKey, Sequence[JobId]] = field(init=False)  # those that could be served, some day
    never: dict[JobKind, Reason] = field(default_factory=dict)
    told_apart: list[Constraint] = field(init=False)
    known_offers: list[Offer] | None = None
    known_cores: int | None = None
    known_rest: list[tuple[BatchKey, Sequence[JobId], int]] | None = None
    gathered: Mapping[Shape, ZoneChoice] = field(init=False)  # those that want all their nodes in one zone
    zones: Mapping[Shape, str] = field(init=False)
    memory: dict[Shape, int] = field(default_factory=dict)
    seating: Seating = field(init=False)
    failed: dict[JobKind, QueuePosition] = field(default_factory=dict)  # from where on jobs of a kind get nothing
    reasons: dict[JobKind, Reason] = field(default_factory=dict)
    can_come: dict[Shape, int] = field(default_factory=dict)  # no more pieces of a job than these are on offer
    places: int = field(init=False)  # of decimals, in which prices are whole numbers

    def __post_init__(self) -> None:
        self.batches = self.wanted.batches
        if self.wanted.put_off:
            self.batches = {key: ids for key, ids in self.batches.items() if key not in self.wanted.put_off}
        for key in self.batches:
            if (why := self._never(key.shape)) is not None:
                self.never[_want(key)] = why
        if self.budget.cuts and self.policy.queue_policy is not QueuePolicy.FIFO:
            cuts = self.budget.cuts
            self.batches = {key: ids[: cuts[key][0]] if key in cuts else ids for key, ids in self.batches.items()}
        if self.never:
            self.batches = {key: ids for key, ids in self.batches.items() if _want(key) not in self.never}
        constraints = dict.fromkeys(
            key.shape.constraint for key in self.batches if key.shape.constraint is not ANYWHERE
        )
        self.told_apart = [it for it in constraints if supply.is_slot_specific(it, self.policy)]
        self.places = max(self.policy.price_decimals, -int(self.market.price_left.as_tuple().exponent))
        one_zone = [key.shape for key in self.batches if key.shape.one_zone]
        self.gathered = gathering.choose_zones(one_zone, self._room(), self.offers, self.market) if one_zone else {}
        self.zones = {shape: found.zone for shape, found in self.gathered.items()}

    def _never(self, shape: Shape) -> Reason | None:
        known = self.market.feasibility.obstacle_of
        try:
            return known[shape]
        except KeyError:
            if len(known) >= SHAPES_CACHED:
                known.clear()
            why = known[shape] = infeasibility.why_never(shape, self.market)
            return why

    @property
    def offers(self) -> list[Offer]:
        """The nodes that come, and those on sale: listed once somebody is short of nodes."""
        if self.known_offers is None:
            on_sale = sorted(
                self.market.offers(self.told_apart), key=lambda it: infeasibility.by_price(it.node_type)
            )
            coming = (
                [] if self.budget.drain_all else supply.coming_offers(self.snapshot, self.policy, self.told_apart)
            )
            self.known_offers = [*coming, *on_sale]
        return self.known_offers

    @property
    def rest(self) -> list[tuple[BatchKey, Sequence[JobId], int]]:
        """The batches of which some may be laid elsewhere than on what is there, and how many of each sit there."""
        if self.known_rest is None:
            seated, failed = self.seating.seated, self.failed
            self.known_rest = [
                (key, ids, begin)
                for key, ids in self.batches.items()
                if (begin := seated.get(key, 0)) < len(ids)
                and (-key.priority, ids[begin]) < (failed.get(_want(key), QUEUE_END) if failed else QUEUE_END)
            ]
        return self.known_rest

    @property
    def cores_on_offer(self) -> int:
        """No more cores than these can be had of the nodes that come and of new ones, however they are filled."""
        if self.known_cores is None:
            self.known_cores = self._empty_shelf(self.offers).cores_left(share=False)
        return self.known_cores

    def made(self) -> Placement:
        fifo = self.policy.queue_policy is QueuePolicy.FIFO
        if not self.batches:
            self.seating = Seating()
        elif not fifo:
            self._seat({}, give_back=RESEATS_MAX)
        elif (held_up := self._held_up_at_once()) is not None:
            return held_up
        refused = self._first_refused() if fifo else None
        end = refused[0] if refused is not None else QUEUE_END
        shelf, stuck_at = self._served(end, fifo=fifo)
        stuck: tuple[JobId, Shape, Reason] | None = None
        if stuck_at is not None and fifo:
            key, place = stuck_at
            stuck = JobId(place[1]), key.shape, self.reasons[_want(key)]
            end = place
        elif refused is not None:
            stuck = JobId(refused[0][1]), refused[1], refused[2]
        return self._layout(shelf, end, stuck)

    def _held_up_at_once(self) -> Placement | None:
        """Where the first job that lacks nodes is plainly out of reach: then nobody behind it needs a look.

        What comes out is what would if all were laid out. None, and all are seated, where it is not so plain.
        """
        usher = Seater(self.batches, self._room(), {}, self.zones)
        self.seating = usher.seat_to_first_short()
        first = self.seating.first_short
        if first is None:
            return None  # there is room for all
        key, job, short = first
        place = (-key.priority, int(job))
        refused = self._first_refused()
        shelf = self._empty_shelf(self.offers)
        if (refused is not None and refused[0] <= place) or shelf.takes_at_most(self._work_of(key, job)) >= short:
            usher.seat_all()
            return None
        why = self.reasons[_want(key)] = self._why((key, place), shelf)
        return self._layout(shelf, place, (job, key.shape, why))

    # -- who is served

    def _served(
        self, end: QueuePosition, *, fifo: bool
    ) -> tuple[Allocation, tuple[BatchKey, QueuePosition] | None]:
        """The shelf with all that can be served, and where the first stands that cannot."""
        for anew in range(RESEATS_MAX, -1, -1):
            whole = self._shelf_to(end)
            if whole is not None:
                return whole, None
            shelf, stuck = self._longest_front(end)
            if stuck is None or fifo:
                if stuck is not None:
                    self.reasons[_want(stuck[0])] = self._why(stuck, shelf)
                return shelf, stuck
            filled = self._with_gaps_filled(shelf, stuck, may_reseat=anew > 0)
            if isinstance(filled, Allocation):
                return filled, stuck
            # Whoever failed behind it did so while it had what it gives back.
            self._seat({want: at for want, at in self.failed.items() if at <= filled}, give_back=anew - 1)
        raise AssertionError("the last time nobody is seated anew")

    def _seat(self, failed: Mapping[JobKind, QueuePosition], give_back: int) -> None:
        """Seat all, under a policy that fills gaps. ``failed``: from where on jobs of a kind are to get nothing.

        Whoever lacks more than can come is told at once: it would fail in the end, and all be seated anew for it.
        """
        usher = Seater(self.batches, self._room(), failed, self.zones, self._can_come, give_back)
        self.seating, self.known_rest = usher.seat_all(), None
        beyond = self.seating.out_of_reach.items()
        self.failed = {**failed, **{want: (-key.priority, int(job)) for want, (key, job, _) in beyond}}

    def _can_come(self, key: BatchKey, job: JobId) -> int:
        if not self.cores_on_offer:
            return 0
        if key.shape not in self.can_come:
            alone = self._alone(key, job, pieces_of(key.shape))
            self.can_come[key.shape] = self._empty_shelf(self.offers).takes_at_most(alone)
        return self.can_come[key.shape]

    def _room(self) -> list[Bin]:
        line = queue_index_of(self.snapshot.jobs, self.snapshot.queue_index)
        if self.budget.drain_all:
            return supply.free_bins(self.snapshot, self.policy, all_go=True)
        return supply.free_bins(self.snapshot, self.policy) + supply.bins_free_soon(
            self.snapshot, self.policy, line
        )

    def _shelf_to(self, end: QueuePosition) -> Allocation | None:
        """The shelf that serves all jobs before a place; None if there is none."""
        short = self._cores_short(end)
        if short and short > self.cores_on_offer:
            return None  # as would come out, after all that is short has been sorted and laid
        works = self._works(end) if short else []
        shelf: Allocation | None = self._empty_shelf(self.offers if works else [])
        for stage in self._stages(works):
            if shelf is not None:
                shelf = shelf.with_work(stage, share=self.policy.packing is PackingPolicy.SPREAD)
        return shelf

    def _stages(self, works: Sequence[Work]) -> list[list[Work]]:
        """First those that want one zone, zone by zone, so that none lies on a node with others; then the rest."""
        if not self.zones:
            return self._stages_by_cost(works)
        zones = dict.fromkeys(self.zones[work.shape] for work in works if work.shape.one_zone)
        return [
            stage
            for zone in (*zones, None)
            for stage in self._stages_by_cost([work for work in works if self.zones.get(work.shape) == zone])
        ]

    def _stages_by_cost(self, works: Sequence[Work]) -> list[list[Work]]:
        """Together what costs by the same rule; else the longest first, and the others on what that leaves free."""
        if not works:
            return []
        rules = {offer.node_type.billing for offer in self.offers}
        if len(rules) <= 1 and self.policy.packing is PackingPolicy.SPREAD:
            return [list(works)]
        spans = sorted({work.span_s for work in works}, reverse=True)
        return [[work for work in works if work.span_s == span_s] for span_s in spans]

    def _longest_front(self, end: QueuePosition) -> tuple[Allocation, tuple[BatchKey, QueuePosition] | None]:
        """The longest front part of the queue that can be served, and the first job behind it, if any is left."""
        shelf = self._empty_shelf(self.offers)
        for priority in sorted({key.priority for key in self.batches}, reverse=True):
            served = 0
            for most in (FRONT_JOBS, len(self.snapshot.jobs)):
                ids = self._waiting_at(priority, end, most)
                served, shelf = self._front_served(priority, ids, served, shelf)
                if served < len(ids):
                    key = self._key_at(priority, ids[served])
                    return shelf, (key, (-priority, ids[served]))
                if len(ids) < most:
                    break
        return shelf, None

    def _front_served(
        self, priority: int, ids: Sequence[JobId], low: int, shelf: Allocation
    ) -> tuple[int, Allocation]:
        """How many of these, from the first on, can be served, beside all of a higher priority.

        ``low``: so many of them the shelf serves already.
        """
        high = len(ids)  # so many perhaps
        step = 1  # in growing steps first: at a limit the answer is often 0
        while low < high:
            middle = min(low + step, (low + high + 1) // 2)
            step *= 4
            tried = self._shelf_to((-priority, ids[middle - 1] + 1))
            low, high, shelf = (middle, high, tried) if tried is not None else (low, middle - 1, shelf)
        while low < len(ids):
            # What is left may serve the next one alone, though all together found no packing.
            key = self._key_at(priority, ids[low])
            more = shelf.with_work([self._work_of(key, ids[low])], share=True)
            if more is None:
                break
            shelf, low = more, low + 1
        return low, shelf

    def _waiting_at(self, priority: int, end: QueuePosition, most: int) -> list[JobId]:
        """The first jobs of a priority that do not sit wholly on what is there, in order."""
        ids: list[JobId] = [
            id_
            for id_, (key, _) in self.seating.short.items()
            if key.priority == priority and (-priority, id_) < end
        ]
        for key, those, begin in self.rest:
            if key.priority == priority:
                ids += those[begin : min(self._end(key, those, end), begin + most)]
        return sorted(ids)[:most]

    def _end(self, key: BatchKey, ids: Sequence[JobId], end: QueuePosition) -> int:
        """How many of a batch come before a place, and before the first of their kind that failed."""
        return _served_before(end, key, ids, self.failed)

    def _key_at(self, priority: int, job: JobId) -> BatchKey:
        for key, ids in self.batches.items():
            if key.priority == priority:
                at = bisect_left(ids, job)
                if at < len(ids) and ids[at] == job:
                    return key
        raise AssertionError(f"job {job} is in no batch of priority {priority}")

    def _with_gaps_filled(
        self, shelf: Allocation, stuck: tuple[BatchKey, QueuePosition], *, may_reseat: bool
    ) -> Allocation | QueuePosition:
        """Behind a stuck job, kind by kind, as many as what is left serves.

        Or the place of one that failed, and has part of its nodes: it gives those back, and all are seated anew.
        """
        self._fail(stuck, shelf)
        if may_reseat and self._sits(stuck):
            return stuck[1]
        for works in self._behind(stuck[1]):
            place, shelf = self._most_of(works, shelf)
            if place is None:
                continue
            failed = _key_among(works, place), place
            self._fail(failed, shelf)
            if may_reseat and self._sits(failed):
                return place
        return shelf

    def _fail(self, stuck: tuple[BatchKey, QueuePosition], shelf: Allocation) -> None:
        self.reasons[_want(stuck[0])] = self._why(stuck, shelf)
        self.failed[_want(stuck[0])] = stuck[1]

    def _sits(self, stuck: tuple[BatchKey, QueuePosition]) -> bool:
        return JobId(stuck[1][1]) in self.seating.short

    def _has_failed(self, key: BatchKey, job: JobId) -> bool:
        return (-key.priority, job) >= self.failed.get(_want(key), QUEUE_END)

    def _behind(self, after: QueuePosition) -> list[list[Work]]:
        """What is not served yet behind a place, kind by kind, in the order of the first job of each."""
        done = {
            (work.shape, work.span_s, work.pieces_each, key, begin): stop
            for work in self._works(after)
            for key, _, begin, stop in work.runs
        }
        behind: dict[JobKind, list[Work]] = {}
        for work in self._works(QUEUE_END):
            kind = (work.shape, work.span_s, work.pieces_each)
            runs = [(key, ids, done.get((*kind, key, begin), begin), stop) for key, ids, begin, stop in work.runs]
            rest = Work(*kind, tuple(run for run in runs if run[2] < run[3]))
            if rest.jobs:
                behind.setdefault((work.shape, work.span_s), []).append(rest)
        return sorted(behind.values(), key=lambda works: next(_places(works)))

    @staticmethod
    def _most_of(works: Sequence[Work], shelf: Allocation) -> tuple[QueuePosition | None, Allocation]:
        """As many of a kind, in the order of the queue, as what is left serves; and where the next of them stands.

        They may be of several batches and users. None: it serves them all.
        """
        least = min(work.pieces_each * cores_of_piece(work.shape) for work in works)
        jobs = sum(work.jobs for work in works)
        high = min(jobs, shelf.cores_left(share=True) // least)
        places = list(islice(_places(works), high + 1))
        low, best = 0, shelf
        while low < high:
            middle = high if low == 0 and high == jobs else (low + high + 1) // 2
            front = _up_to(works, places[middle]) if middle < jobs else works
            tried = shelf.with_work(front, share=True)
            low, high, best = (middle, high, tried) if tried is not None else (low, middle - 1, best)
        return (places[low] if low < jobs else None), best

    # -- work

    def _cores_short(self, end: QueuePosition) -> int:
        """How many cores all that is short before a place in the queue takes at the least."""
        cores = 0
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                cores += short * cores_of_piece(key.shape)
        for key, ids, begin in self.rest:
            jobs = self._end(key, ids, end) - begin
            if jobs > 0:
                cores += jobs * pieces_of(key.shape) * cores_of_piece(key.shape)
        return cores

    def _works(self, end: QueuePosition) -> list[Work]:
        """What is short before a place in the queue, in the order of the batches."""
        runs: dict[JobKind, list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        parts: dict[tuple[JobKind, int], list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                ids = self.batches[key]
                at = bisect_left(ids, id_)
                parts.setdefault((_want(key), short), []).append((key, ids, at, at + 1))
        for key, ids, begin in self.rest:
            stop = self._end(key, ids, end)
            if begin < stop:
                runs.setdefault(_want(key), []).append((key, ids, begin, stop))
        return [
            *(Work(want[0], want[1], short, tuple(those)) for (want, short), those in parts.items()),
            *(unplaced_work(shape, span_s, those) for (shape, span_s), those in runs.items()),
        ]

    def _work_of(self, key: BatchKey, job: JobId) -> Work:
        """The work of a single job."""
        _, short = self.seating.short.get(job, (key, pieces_of(key.shape)))
        return self._alone(key, job, short)

    def _alone(self, key: BatchKey, job: JobId, short: int) -> Work:
        ids = self.batches[key]
        at = bisect_left(ids, job)
        return Work(key.shape, key.span_s, short, ((key, ids, at, at + 1),))

    def _why(self, stuck: tuple[BatchKey, QueuePosition], shelf: Allocation) -> Reason:
        key, place = stuck
        gathered = self.gathered.get(key.shape)
        if gathered is not None and gathered.obstacle is not None:
            return gathered.obstacle
        _, short = self.seating.short.get(JobId(place[1]), (key, pieces_of(key.shape)))
        return infeasibility.why_not_now(key.shape, short, self.market, self._left(shelf))

    def _left(self, shelf: Allocation) -> infeasibility.LeftToBuy:
        free: dict[TypeName, int] = {}
        for offer, left in zip(shelf.offers, shelf.left, strict=True):
            if not offer.is_ordered:
                free[offer.node_type.name] = free.get(offer.node_type.name, 0) + left
        return infeasibility.LeftToBuy(free, shelf.nodes_left, self._price_left(shelf))

    # -- the shelf, and what is made of it

    def _empty_shelf(self, offers: Sequence[Offer]) -> Allocation:
        price_left = int(self.market.price_left.scaleb(self.places))
        return Allocation(
            offers,
            self._cost(),
            self._price,
            self.market.nodes_left,
            price_left,
            self._memory_bytes,
            self.zones,
        )

    def _memory_bytes(self, shape: Shape) -> int:
        if not shape.memory_bytes_per_slot:
            return 0
        if shape not in self.memory:
            self.memory[shape] = infeasibility.memory_per_piece(shape, self.market)
        return self.memory[shape]

    def _price_left(self, shelf: Allocation) -> Decimal:
        return Decimal(shelf.price_left).scaleb(-self.places)

    def _price(self, offer: Offer) -> int:
        return int(offer.node_type.price_per_hour.scaleb(self.places))

    def _cost(self) -> Callable[[Offer, float], int]:
        """What a node costs for as long as a job may run. Among equals the fewest nodes: each costs a hair more."""

        def cost(offer: Offer, span_s: float) -> int:
            boot_s = timings.boot_s(self.snapshot, offer.node_type.name) or 0.0
            billed_s = SECONDS_PER_HOUR if span_s == inf else paid_s(offer.node_type.billing, boot_s + span_s)
            return self._price(offer) * int(billed_s) + 1

        return cost

    def _first_refused(self) -> tuple[QueuePosition, Shape, Reason] | None:
        """The first job that is to get no node, and that Flux does not refuse.

        Even a fleet of its own could not serve it; or its user's budget is used up, and nothing that is up is free.
        """
        refused: list[tuple[QueuePosition, Shape, Reason]] = []
        if not self.never and not self.budget.cuts:
            return None
        for key, ids in self.wanted.batches.items():
            if key in self.wanted.put_off:
                continue
            why = self.never.get(_want(key))
            if why is not None and why.code not in INFEASIBLE:
                refused.append(((-key.priority, ids[0]), key.shape, why))
            own, spent = self.budget.cuts.get(key, (0, None)) if why is None else (0, None)
            if spent is not None and (first := self._first_unseated(key, ids, own)) is not None:
                refused.append(((-key.priority, first), key.shape, spent))
        return min(refused, key=lambda it: it[0], default=None)

    def _first_unseated(self, key: BatchKey, ids: Sequence[JobId], begin: int) -> JobId | None:
        seated = self.seating.seated.get(key, 0)
        behind = enumerate(islice(ids, begin, None), begin)
        return next((id_ for index, id_ in behind if index >= seated or id_ in self.seating.short), None)

    def _layout(
        self, shelf: Allocation, end: QueuePosition, stuck: tuple[JobId, Shape, Reason] | None
    ) -> Placement:
        beyond = self.seating.out_of_reach
        for want in beyond:
            gathered = self.gathered.get(want[0])
            if gathered is not None and gathered.obstacle is not None:
                self.reasons[want] = gathered.obstacle
            else:
                self.reasons.pop(want, None)  # of another seating
        return Placement(
            self.wanted,
            self.seating,
            Assignment(shelf),
            shelf,
            self.market,
            batches=self.batches,
            infeasible=self.never,
            served_until=end,
            failed_from=self.failed,
            reasons=self.reasons,
            out_of_reach={want: short for want, (_, _, short) in beyond.items()},
            on_offer=self._left(self._empty_shelf(self.offers)) if beyond else None,
            stuck=stuck,
            zones=self.zones,
            price_left=self._price_left(shelf),
            overspent=self.budget.obstacle if self.budget.drain_all else None,
            cuts=self.budget.cuts,
        )


def _want(key: BatchKey) -> JobKind:
    return key.shape, key.span_s


def _served_before(
    end: QueuePosition, key: BatchKey, ids: Sequence[JobId], failed: Mapping[JobKind, QueuePosition]
) -> int:
    """How many of a batch come before a place, and before the first of their kind that failed."""
    if not failed:
        return _before(key, ids, end)
    return min(_before(key, ids, end), _before(key, ids, failed.get(_want(key), QUEUE_END)))


def _before(key: BatchKey, ids: Sequence[JobId], place: QueuePosition) -> int:
    return count_up_to(key, ids, (place[0], place[1] - 1))


def _places(works: Sequence[Work]) -> Iterator[QueuePosition]:
    """Where their jobs stand in the queue, one after the other."""
    return merge(*(_places_in(*run) for work in works for run in work.runs))


def _places_in(key: BatchKey, ids: Sequence[JobId], begin: int, stop: int) -> Iterator[QueuePosition]:
    return ((-key.priority, int(ids[index])) for index in range(begin, stop))


def _key_among(works: Sequence[Work], place: QueuePosition) -> BatchKey:
    """The batch of the job at a place."""
    for key, ids, begin, stop in (run for work in works for run in work.runs):
        at = bisect_left(ids, place[1], begin, stop)
        if at < stop and ids[at] == place[1]:
            return key
    raise AssertionError(f"job {place[1]} is in none of these batches")


def _up_to(works: Sequence[Work], place: QueuePosition) -> list[Work]:
    """What of them stands before a place."""
    front = []
    for work in works:
        runs = ((key, ids, begin, min(stop, _before(key, ids, place))) for key, ids, begin, stop in work.runs)
        there = tuple(run for run in runs if run[2] < run[3])
        if there:
            front.append(Work(work.shape, work.span_s, work.pieces_each, there))
    return front
