"""Which of the waiting jobs are served, if the limits do not allow nodes for all of them.

In queue order, the longest front part of the queue that can be served is served: galloping and bisection over its
length find it. If the policy fills gaps, jobs behind a stuck one are then served kind by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from math import inf

from nodemanager.core.jobs import Constraint, JobId, PackingPolicy, Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.planner import timings, why_not
from nodemanager.planner.allocation import Allocation, KnownFits
from nodemanager.planner.backoff import zones_of
from nodemanager.planner.billing import SECONDS_PER_HOUR, paid_s
from nodemanager.planner.demand import (
    PACKINGS_IF_NEAR,
    JobKind,
    QueuePosition,
    WaitingJobs,
    batch_at,
    kind_of,
    positions_of,
    works_before,
)
from nodemanager.planner.frozen import replace
from nodemanager.planner.packing.types import Effort
from nodemanager.planner.policy import Policy, by_price
from nodemanager.planner.ranks_and_queue import BatchKey, Hindrance, Obstacle
from nodemanager.planner.seating import Bin, Seater, Seating, cores_of_piece, pieces_of
from nodemanager.planner.snapshot import Snapshot
from nodemanager.planner.supply import Offer, Supply, coming_offers
from nodemanager.planner.why_not import by_preference, may_buy, memory_per_piece, pieces_per_node
from nodemanager.planner.work import Home, Places, Work, cost_of_node

FRONT_JOBS = 512  # how many jobs are tried first if not all can be served
RESEATS_MAX = 8  # how often all jobs are reseated because a job that cannot be served gave its seats back
STEPS_PER_BATCH = 2  # to read how much of it waits
TRY_ALL_FROM = 4  # all jobs of a front are tried once a try has reached this part of them: a quarter
GREEDY_PACKINGS = 3  # in a packing with effort
KEPT_BACK = 4  # if jobs behind a stuck one are served, the search for a front leaves them one part in so many
NARROW_TRIES = 3  # how often a front part of the queue is tried that only a better packing may serve

StuckAt = tuple[BatchKey, QueuePosition]


def _behind(position: QueuePosition) -> QueuePosition:
    """The position right behind a job."""
    return position[0], position[1] + 1


def _users_of(works: Sequence[Work]) -> frozenset[int]:
    return frozenset(key.userid for work in works for key, _, _, _ in work.runs)


@dataclass(slots=True)
class Serving:
    """Seats and serves the jobs of one placement. ``bins``: a fresh bin of each existing node."""

    batches: Mapping[BatchKey, Sequence[JobId]]  # those that could ever be served
    on_offer: OnOffer
    zone_choices: Mapping[Shape, ZoneChoice]  # for jobs that want all their nodes in one zone
    bins: Callable[[], list[Bin]]
    waiting: WaitingJobs = field(init=False)
    obstacles: dict[JobKind, Obstacle] = field(
        default_factory=dict
    )  # why the first unserved job of a kind is stuck
    known_obtainable: dict[Shape, int] = field(default_factory=dict)  # cache of ``_obtainable_pieces``
    known_too_much: Obstacle | None = None  # cache of ``_too_much``
    kept_back: int = 0  # steps that the search for a front leaves for the jobs behind it

    def __post_init__(self) -> None:
        self.waiting = WaitingJobs(self.batches, Seating())

    def serve(self, end: QueuePosition, *, fifo: bool) -> tuple[Allocation, StuckAt | None]:
        """The allocation of all jobs that can be served, and the position of the first that cannot."""
        searches = self.on_offer.searches
        for reseats_left in range(RESEATS_MAX, -1, -1):
            self.kept_back = 0 if fifo else searches.left // KEPT_BACK
            full = self._allocate_until(end)
            if full is not None:
                return full, None
            allocation, stuck = self._longest_front(end)
            if stuck is None or fifo:
                if stuck is not None:
                    tried = self._may_search
                    self.obstacles[kind_of(stuck[0])] = (
                        self.why_stuck(stuck, allocation) if tried else self._too_much()
                    )
                return allocation, stuck
            may_reseat = reseats_left > 0 and searches.left > SEARCH_STEPS_MAX // 4
            filled = self._fill_gaps(allocation, stuck, may_reseat=may_reseat)
            if isinstance(filled, Allocation):
                return filled, stuck
            # Jobs that failed behind it did so while it held the seats that it gives back: forget these failures.
            self.seat(
                {kind: at for kind, at in self.waiting.failed_from.items() if at <= filled},
                give_back=reseats_left - 1,
            )
        raise AssertionError("no job may be reseated in the last round")

    def seat(self, failed: Mapping[JobKind, QueuePosition], give_back: int) -> None:
        """Seat all jobs, under a policy that fills gaps. ``failed``: from which position a kind gets nothing.

        A job that lacks more pieces than can be obtained fails at once: else it would fail later, and all jobs
        would have to be reseated.
        """
        seater = Seater(
            self.batches,
            self.bins(),
            failed,
            self.on_offer.zones,
            self._obtainable_pieces,
            give_back,
            self.on_offer.supply.matches,
        )
        seating = seater.seat_all()
        beyond = {kind: (-key.priority, int(job)) for kind, (key, job, _) in seating.out_of_reach.items()}
        self.waiting = WaitingJobs(self.batches, seating, {**failed, **beyond})

    def _obtainable_pieces(self, key: BatchKey, job: JobId) -> int:
        """An upper bound for the pieces of a job that booting and new nodes can take."""
        if not self.on_offer.cores:
            return 0
        if key.shape not in self.known_obtainable:
            alone = self.waiting.work_of_pieces(key, job, pieces_of(key.shape))
            self.known_obtainable[key.shape] = self.on_offer.empty_allocation(self.on_offer.offers).takes_at_most(
                alone
            )
        return self.known_obtainable[key.shape]

    @property
    def _may_search(self) -> bool:
        """Whether a plan has time to look for a longer front."""
        return self.on_offer.searches.left > self.kept_back

    def _allocate_until(
        self, end: QueuePosition, *, greedily: bool = False, ignoring_egress: bool = False
    ) -> Allocation | None:
        """An allocation that serves all jobs before a queue position; None if there is none.

        ``greedily``, ``ignoring_egress``: it is only a question whether they can be served.
        """
        short = self.waiting.cores_short(end)
        if short and short > self.on_offer.cores:
            return None  # a shortcut: packing would find the same
        works = self.waiting.unplaced_works(end) if short else []
        self.on_offer.searches.left -= STEPS_PER_BATCH * len(self.waiting.unseated)
        allocation = self.on_offer.empty_allocation(self.on_offer.offers if works else [])
        spread = self.on_offer.policy.rules.packing is PackingPolicy.SPREAD
        stages = self.on_offer.stages(works)
        return allocation.with_stages(stages, share=spread, greedily=greedily, ignoring_egress=ignoring_egress)

    def _longest_front(self, end: QueuePosition) -> tuple[Allocation, StuckAt | None]:
        """Serve the longest front part of the queue, and return the first job behind it, or None."""
        allocation = self.on_offer.empty_allocation(self.on_offer.offers)
        priorities = sorted({key.priority for key in self.batches}, reverse=True)
        while priorities:
            # Each priority on its own. That is much work if there are many: after half of it, the rest together.
            alone = self.on_offer.searches.left > (self.kept_back + SEARCH_STEPS_MAX) // 2
            chosen, priorities = (priorities[:1], priorities[1:]) if alone else (priorities, [])
            served = 0
            for most in (FRONT_JOBS, len(self.on_offer.snapshot.jobs)):
                front = self.waiting.first_of(chosen, end, most)
                served, allocation = self._serve_front(front, served, allocation)
                if served < len(front):
                    return allocation, (self.waiting.key_at(front[served]), front[served])
                if len(front) < most:
                    break
        return allocation, None

    def _serve_front(
        self, front: Sequence[QueuePosition], low: int, allocation: Allocation
    ) -> tuple[int, Allocation]:
        """How many of the jobs at these positions, from the first on, can be served along with all ahead of them.

        ``low``: how many of them the allocation serves already. The search ends early if a plan has no more time.
        """
        high = len(front)  # the upper bound of the search
        searches, is_near = self.on_offer.searches, bool(self.on_offer.homes)
        step = max(1, low // 4) if is_near else 1  # gallop first: at a limit the answer is often 0
        known, steps, tried_all = low, 0, not is_near
        while low < high and (
            not allocation.groups or searches.left > self.kept_back + steps * (PACKINGS_IF_NEAR if is_near else 1)
        ):
            middle, left = min(low + step, (low + high + 1) // 2), searches.left
            step *= 4
            if not tried_all and TRY_ALL_FROM * middle >= high:
                middle, tried_all = high, True  # if all can be served, there is nothing to narrow down
            tried = self._allocate_until(_behind(front[middle - 1]), greedily=True, ignoring_egress=True)
            low, high, allocation = (middle, high, tried) if tried is not None else (low, middle - 1, allocation)
            steps = left - searches.left if tried is not None else steps
        if is_near and low == FRONT_JOBS == len(front):
            return low, allocation  # they are packed again together with those behind them
        if is_near and low > known:
            allocation = self._allocate_until(_behind(front[low - 1]), greedily=True) or allocation
        if searches.left > self.kept_back + steps * GREEDY_PACKINGS * (PACKINGS_IF_NEAR if is_near else 1):
            low, allocation = self._pack_front_again(front, low, allocation)
        while low < len(front) and self._may_search:
            # The rest may serve the next job alone, although packing all together failed.
            work = self.waiting.work_of_job(self.waiting.key_at(front[low]), JobId(front[low][1]))
            more = allocation.with_work([work], share=True, greedily=True)
            if more is None:
                break
            allocation, low = more, low + 1
        return low, allocation

    def _pack_front_again(
        self, front: Sequence[QueuePosition], served: int, allocation: Allocation
    ) -> tuple[int, Allocation]:
        """Pack the jobs that a greedy packing serves at less cost, and see how many more that leaves room for."""
        tried = served
        for _ in range(NARROW_TRIES):
            can_improve = tried and self.on_offer.effort.left > 0
            packed = self._allocate_until(_behind(front[tried - 1])) if can_improve else None
            if packed is None:
                break
            served, allocation = tried, packed
            tried = min(len(front), served + int(served * self.on_offer.share_left(allocation)))
            if tried == served or not self._may_search:
                break
        return served, allocation

    def _fill_gaps(self, allocation: Allocation, stuck: StuckAt, *, may_reseat: bool) -> Allocation | QueuePosition:
        """Serve jobs behind a stuck one, kind by kind, as many as possible.

        Returns a queue position instead if the job there failed while it has some seats: it gives them back, and
        all jobs must be reseated.
        """
        self._fail(stuck, allocation, is_tried=self._may_search)
        if may_reseat and self.waiting.is_partly_seated(stuck):
            return stuck[1]
        behind, searches = self.waiting.work_behind(stuck[1]), self.on_offer.searches
        shares = FairShares([_users_of(works) for works in behind], searches)
        for number, works in enumerate(behind):
            left, is_tried = searches.left, shares.may_take(number)
            if is_tried:
                position, allocation = self._serve_most(works, allocation)
            else:
                position = next(positions_of(works))
            shares.take(number, left - searches.left)
            if position is None:
                continue
            failed = batch_at(works, position), position
            self._fail(failed, allocation, is_tried=is_tried)
            if may_reseat and is_tried and self.waiting.is_partly_seated(failed):
                return position
        return allocation

    def _fail(self, stuck: StuckAt, allocation: Allocation, *, is_tried: bool = True) -> None:
        """Note that this job and all later ones of its kind get nothing, and why."""
        self.obstacles[kind_of(stuck[0])] = self.why_stuck(stuck, allocation) if is_tried else self._too_much()
        self.waiting.failed_from[kind_of(stuck[0])] = stuck[1]

    def _too_much(self) -> Obstacle:
        if self.known_too_much is None:
            reason = because(Code.TOO_MUCH_TO_PLAN, shapes=len({it.shape for it in self.batches}))
            self.known_too_much = Obstacle(Hindrance.UNAVAILABLE, reason)
        return self.known_too_much

    def _serve_most(self, works: Sequence[Work], allocation: Allocation) -> tuple[QueuePosition | None, Allocation]:
        """Serve as many jobs of a kind as possible, in queue order, and return the position of the next one.

        They may belong to several batches and users. The position is None if all are served.
        """
        least = min(work.pieces_each * cores_of_piece(work.shape) for work in works)
        jobs = sum(work.jobs for work in works)
        high = min(jobs, allocation.cores_left(share=True) // least)
        positions = list(islice(positions_of(works), high + 1))
        low, best = 0, allocation
        while low < high:
            middle = high if low == 0 and high == jobs else (low + high + 1) // 2
            front = works_before(works, positions[middle]) if middle < jobs else works
            tried = allocation.with_work(front, share=True, greedily=True, ignoring_egress=True)
            low, high, best = (middle, high, tried) if tried is not None else (low, middle - 1, best)
        if low and works[0].shape in self.on_offer.homes:
            front = works_before(works, positions[low]) if low < jobs else works
            best = allocation.with_work(front, share=True, greedily=True) or best
        return (positions[low] if low < jobs else None), best

    def why_stuck(self, stuck: StuckAt, allocation: Allocation) -> Obstacle:
        key, position = stuck
        choice = self.zone_choices.get(key.shape)
        if choice is not None and choice.obstacle is not None:
            return choice.obstacle
        _, short = self.waiting.seating.short.get(JobId(position[1]), (key, pieces_of(key.shape)))
        return why_not.why_unserved(key.shape, short, self.on_offer.supply, self.on_offer.left_to_buy(allocation))


# --- fair shares ------------------------------------------------------------------------------------------
#
# Share the steps of a search fairly between users, so that no user's many shapes leave none for the others.
#
# Kinds of work come in queue order. Each user with work among them has an equal share for as long as any of it is
# still to come. What others leave of theirs may be used by all.


@dataclass(slots=True)
class FairShares:
    """``users_of``: for each kind of work, in order, whose it is. ``effort``: the steps that are shared."""

    users_of: Sequence[Collection[int]]
    effort: Effort
    _last: dict[int, int] = field(init=False)  # of each user, the number of the last kind
    _left: dict[int, int] = field(init=False)  # of the share of each user with a kind still to come

    def __post_init__(self) -> None:
        self._last = {user: number for number, users in enumerate(self.users_of) for user in users}
        self._left = dict.fromkeys(self._last, max(0, self.effort.left) // max(1, len(self._last)))

    def may_take(self, number: int) -> bool:
        """Whether a kind of work gets steps: one of its users has some of a share left, or others leave some."""
        if any(self._left[user] > 0 for user in self.users_of[number]):
            return self.effort.left > 0
        return self.effort.left > sum(self._left.values())

    def take(self, number: int, steps: int) -> None:
        """Count steps for a kind of work, an equal part for each of its users. Each kind is counted once."""
        users = self.users_of[number]
        for user in users:
            self._left[user] = max(0, self._left[user] - -(-steps // len(users)))
            if self._last[user] == number:
                del self._left[user]


# --- the booting nodes and those on sale for one placement, and the allocations to them -------------------


PACKING_STEPS_MAX = 250_000  # for all packings of a plan that are better than greedy
SEARCH_STEPS_MAX = 600_000  # for packings that look for the jobs a limit allows, or for a way with less egress
DEARER = 1000  # how many times the nodes of a cloud count as dearer than those of the next higher priority


@dataclass(slots=True)
class OnOffer:
    """What jobs may get besides the existing nodes. Computed once a job is short of nodes."""

    snapshot: Snapshot
    policy: Policy
    supply: Supply
    constraints: Sequence[Constraint]  # of all batches
    with_booting: bool
    zones: Mapping[Shape, str] = field(default_factory=dict)  # for jobs that want all their nodes in one zone
    homes: Mapping[Shape, Home] = field(default_factory=dict)  # for jobs that want them in the cloud of their data
    effort: Effort = field(default_factory=lambda: Effort(PACKING_STEPS_MAX))
    searches: Effort = field(default_factory=lambda: Effort(SEARCH_STEPS_MAX))
    known_fits: KnownFits = field(default_factory=dict)
    price_decimals: int = field(init=False)  # with which prices are whole numbers
    known_offers: list[Offer] | None = None
    known_cores: int | None = None
    memory: dict[Shape, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.price_decimals = max(self.policy.price_decimals, -int(self.supply.price_left.as_tuple().exponent))

    @property
    def offers(self) -> list[Offer]:
        """The booting nodes and those on sale; computed once a job is short of nodes."""
        if self.known_offers is None:
            on_sale = sorted(
                map(self._with_rule, self.supply.offers(self.constraints)), key=lambda it: by_price(it.node_type)
            )
            coming = []
            if self.with_booting:
                coming = coming_offers(self.snapshot, self.policy, self.constraints, self.supply.matches)
            self.known_offers = [*coming, *on_sale]
        return self.known_offers

    def _with_rule(self, offer: Offer) -> Offer:
        """The offer with the jobs that ``only_for`` keeps off it."""
        if not offer.node_type.is_reserved:
            return offer
        supply = self.supply  # not self, which keeps the offer: a cycle
        return replace(offer, keeps_off=lambda shape: not why_not.may_buy(offer.node_type, shape, supply))

    @property
    def cores(self) -> int:
        """An upper bound for the cores that booting and new nodes can give."""
        if self.known_cores is None:
            self.known_cores = self.empty_allocation(self.offers).cores_left(share=False)
        return self.known_cores

    def empty_allocation(self, offers: Sequence[Offer]) -> Allocation:
        """An allocation of nothing to these offers."""
        price_left = int(self.supply.price_left.scaleb(self.price_decimals))
        return Allocation(
            offers,
            self._cost(),
            self._price,
            self.supply.nodes_left,
            price_left,
            self._memory_bytes,
            Places(self.zones, self.homes),
            self.effort,
            self.searches,
            self.known_fits,
            fleet=self.supply.fleet,
            spot_share_max=self.policy.rules.spot_share_max,
        )

    def _memory_bytes(self, shape: Shape) -> int:
        if not shape.memory_bytes_per_slot:
            return 0
        if shape not in self.memory:
            self.memory[shape] = why_not.memory_per_piece(shape, self.supply)
        return self.memory[shape]

    def _price(self, offer: Offer) -> int:
        return int(offer.node_type.price_per_hour.scaleb(self.price_decimals))

    def _cost(self) -> Callable[[Offer, float], int]:
        """The cost of a node for as long as a job may run, plus 1: among equal costs, fewer nodes win.

        The cost of a spot node includes the work that is likely to be lost. A node on sale in a cloud of a lower
        priority counts as dearer than any node of a higher one.
        """
        levels = sorted({it.priority for it in self.policy.node_types}, reverse=True)
        below = {priority: level for level, priority in enumerate(levels)}
        dearest = max((self._price(it) for it in self.offers), default=0) if len(levels) > 1 else 0

        def cost(offer: Offer, span_s: float) -> int:
            boot_s = timings.boot_s(self.snapshot, offer.node_type.name) or 0.0
            billed_s = SECONDS_PER_HOUR if span_s == inf else paid_s(offer.node_type.billing, boot_s + span_s)
            cost = self._price(offer) * int(billed_s)
            factor = timings.rerun_factor(self.snapshot, offer.node_type, self.policy, span_s)
            cost = (int(cost * factor) if factor > 1.0 else cost) + 1
            level = 0 if offer.is_ordered else below[offer.node_type.priority]
            return (cost + dearest * int(billed_s)) * DEARER**level if level else cost

        return cost

    def price_left(self, allocation: Allocation) -> Decimal:
        """What the allocation leaves of the price per hour."""
        return Decimal(allocation.price_left).scaleb(-self.price_decimals)

    def left_to_buy(self, allocation: Allocation) -> why_not.LeftToBuy:
        """What may still be bought after the allocation."""
        free: dict[TypeName, int] = {}
        for offer, left in zip(allocation.offers, allocation.separate_counts(), strict=True):
            if not offer.is_ordered:
                free[offer.node_type.name] = free.get(offer.node_type.name, 0) + left
        return why_not.LeftToBuy(free, allocation.nodes_left, self.price_left(allocation))

    def share_left(self, allocation: Allocation) -> float:
        """How much of the limits is left: of nodes or of the price, whichever is less; 0 if it is exceeded."""
        price, limit = self.price_left(allocation), self.supply.price_left
        of_price = float(price / limit) if limit > 0 else 0.0
        return max(0.0, min(of_price, allocation.nodes_left / max(1, self.supply.nodes_left)))

    def stages(self, works: Sequence[Work]) -> list[list[Work]]:
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
        """Group the work for packing: together if all types share a billing rule, else the longest jobs first.

        Jobs that differ much in the risk of a spot node are packed apart, if there is a choice between the markets.
        """
        if not works:
            return []
        rules = {offer.node_type.billing for offer in self.offers}
        if len(rules) <= 1 and self.policy.rules.packing is PackingPolicy.SPREAD:
            risks = {span_s: self._risk_class(span_s) for span_s in {work.span_s for work in works}}
            classes = sorted(set(risks.values()), reverse=True)
            return [[work for work in works if risks[work.span_s] == risk] for risk in classes]
        spans = sorted({work.span_s for work in works}, reverse=True)
        return [[work for work in works if work.span_s == span_s] for span_s in spans]

    def _risk_class(self, span_s: float) -> int:
        """How risky a spot node is for jobs of this length: 0 for a loss up to a tenth, 1 up to a fifth, ..."""
        on_sale = [offer.node_type for offer in self.offers if not offer.is_ordered]
        if len({it.market for it in on_sale}) < 2:
            return 0
        spot = {it.name: it for it in on_sale if it.market is Market.SPOT}
        most = max(timings.rerun_factor(self.snapshot, it, self.policy, span_s) for it in spot.values())
        return int(10.0 * (most - 1.0)).bit_length()


# --- choose the zone for jobs that want all their nodes in one zone ---------------------------------------
#
# Every plan chooses one zone for all jobs of a shape. It must have room for a whole job. Among such zones, the
# one wins where nodes boot that were bought for these jobs, so that the next plan does not buy them elsewhere.
# Then counts existing and booting room, then existing room alone, then what the rest costs, with the egress of
# the job's data, then the site's order. A zone that has run out of a type is passed over; nodes that were created
# there serve other jobs.


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    """The chosen zone. ``pieces``: how many pieces of a job fit there, ignoring jobs ahead; ``short``: the rest."""

    zone: str
    pieces: int
    short: int
    blocked: Reason | None = None  # why no type that suits the job is bought now; None if one is

    @property
    def obstacle(self) -> Obstacle | None:
        """Why the zone cannot serve a whole job; None if it can."""
        if not self.short:
            return None
        if self.blocked is not None:
            return Obstacle(Hindrance.UNAVAILABLE, self.blocked)
        reason = because(Code.ONE_ZONE_SHORT, zone=self.zone, have=self.pieces, short=self.short)
        return Obstacle(Hindrance.UNAVAILABLE, reason)


def choose_zones(
    spans: Mapping[Shape, float], bins: Sequence[Bin], offers: Sequence[Offer], supply: Supply
) -> Mapping[Shape, ZoneChoice]:
    """Choose a zone for each shape that wants a single one. ``spans``: each with its longest time limit."""
    site = [zone for node_type in supply.policy.node_types for zone in zones_of(node_type)]
    zones = {zone: _Zone(zone) for zone in site}
    for bin_ in bins:
        zones.setdefault(bin_.zone, _Zone(bin_.zone)).bins.append(bin_)
    for offer in offers:
        for zone in offer.zones:
            there = zones.setdefault(zone, _Zone(zone))
            if offer.is_ordered:
                there.coming.append(offer)
    return {shape: _choose_zone(shape, span_s, zones.values(), supply) for shape, span_s in spans.items()}


@dataclass(frozen=True, slots=True)
class _Zone:
    """A zone, the existing nodes in it, and those that boot there."""

    name: str
    bins: list[Bin] = field(default_factory=list)
    coming: list[Offer] = field(default_factory=list)


def _choose_zone(shape: Shape, span_s: float, zones: Iterable[_Zone], supply: Supply) -> ZoneChoice:
    memory = memory_per_piece(shape, supply)
    all_types = ((it, pieces_per_node(it, shape, memory)) for it in by_preference(supply.policy, shape))
    suiting = [(it, each) for it, each in all_types if each and may_buy(it, shape, supply)]
    types = [(it, each) for it, each in suiting if it.name not in supply.blocked]
    tried = [_try_zone(shape, span_s, zone, types, supply) for zone in zones]
    choice = min(tried, key=lambda found: found[1])[0]
    return choice if types or not suiting else replace(choice, blocked=supply.blocked[suiting[0][0].name])


def _try_zone(
    shape: Shape, span_s: float, place: _Zone, types: Sequence[tuple[NodeType, int]], supply: Supply
) -> tuple[ZoneChoice, tuple[int, int, int, int, int, Decimal]]:
    """What a zone can provide, and its sort key: the least is the best."""
    want, zone, coming = pieces_of(shape), place.name, place.coming
    bought = sum(it.count * pieces for it in coming for planned, _, _, pieces in it.load if planned == shape)
    up = min(want, _pieces_up(shape, place.bins, supply))
    there = min(want, up + _pieces_coming(shape, coming, supply))
    missing, away, price = want - there, 0, Decimal(0)
    home, egress = supply.policy.home_of(shape), supply.policy.egress_of(shape)
    for node_type, each in types:
        if missing <= 0:
            break
        if zone in supply.open_zones[node_type.name]:
            nodes = min(supply.count_free_for(node_type, shape.constraint), -(-missing // each))
            away += min(missing, nodes * each) if home not in (None, node_type.cloud) else 0
            missing -= min(missing, nodes * each)
            cheapest = supply.cheapest(node_type)
            price += nodes * (cheapest.price_per_hour if egress is None else cost_of_node(cheapest, span_s))
    if egress is not None:
        price, away = price + egress * away / want, 0
    return ZoneChoice(zone, want - missing, missing), (missing, -min(want, bought), -there, -up, away, price)


def _pieces_up(shape: Shape, bins: Iterable[Bin], supply: Supply) -> int:
    """How many pieces fit on existing nodes of a zone."""
    return sum(bin_.pieces_that_fit(shape) for bin_ in bins if supply.matches.suits(shape.constraint, bin_.rank))


def _pieces_coming(shape: Shape, coming: Iterable[Offer], supply: Supply) -> int:
    """How many pieces fit on the booting nodes of a zone."""
    memory = memory_per_piece(shape, supply)
    return sum(
        offer.count * pieces_per_node(offer.node_type, shape, memory) for offer in coming if offer.suits(shape)
    )
