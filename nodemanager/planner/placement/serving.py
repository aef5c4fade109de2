"""Which of the waiting jobs are served, if the limits do not allow nodes for all of them.

In queue order, the longest front part of the queue that can be served is served: galloping and bisection over its
length find it. If the policy fills gaps, jobs behind a stuck one are then served kind by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from nodemanager.core.jobs import JobId, PackingPolicy, Shape
from nodemanager.planner.allocation.allocation import Allocation
from nodemanager.planner.allocation.work import Work
from nodemanager.planner.placement import never
from nodemanager.planner.placement.on_offer import OnOffer
from nodemanager.planner.placement.one_zone import ZoneChoice
from nodemanager.planner.placement.waiting import (
    JobKind,
    QueuePosition,
    WaitingJobs,
    batch_at,
    kind_of,
    positions_of,
    works_before,
)
from nodemanager.planner.scheduler.sched_simple import cores_of_piece, pieces_of
from nodemanager.planner.scheduler.seating import Bin, Seater, Seating
from nodemanager.planner.state.obstacle import Obstacle
from nodemanager.planner.state.queue_index import BatchKey

FRONT_JOBS = 512  # how many jobs are tried first if not all can be served
RESEATS_MAX = 8  # how often all jobs are reseated because a job that cannot be served gave its seats back
NARROW_TRIES = 3  # how often a front part of the queue is tried that only a better packing may serve

StuckAt = tuple[BatchKey, QueuePosition]


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

    def __post_init__(self) -> None:
        self.waiting = WaitingJobs(self.batches, Seating())

    def serve(self, end: QueuePosition, *, fifo: bool) -> tuple[Allocation, StuckAt | None]:
        """The allocation of all jobs that can be served, and the position of the first that cannot."""
        for reseats_left in range(RESEATS_MAX, -1, -1):
            full = self._allocate_until(end)
            if full is not None:
                return full, None
            allocation, stuck = self._longest_front(end)
            if stuck is None or fifo:
                if stuck is not None:
                    self.obstacles[kind_of(stuck[0])] = self.why_stuck(stuck, allocation)
                return allocation, stuck
            filled = self._fill_gaps(allocation, stuck, may_reseat=reseats_left > 0)
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

    def _allocate_until(self, end: QueuePosition, *, greedily: bool = False) -> Allocation | None:
        """An allocation that serves all jobs before a queue position; None if there is none.

        ``greedily``: it is only a question whether they can be served.
        """
        short = self.waiting.cores_short(end)
        if short and short > self.on_offer.cores:
            return None  # a shortcut: packing would find the same
        works = self.waiting.unplaced_works(end) if short else []
        allocation: Allocation | None = self.on_offer.empty_allocation(self.on_offer.offers if works else [])
        for stage in self.on_offer.stages(works):
            if allocation is not None:
                spread = self.on_offer.policy.rules.packing is PackingPolicy.SPREAD
                allocation = allocation.with_work(stage, share=spread, greedily=greedily)
        return allocation

    def _longest_front(self, end: QueuePosition) -> tuple[Allocation, StuckAt | None]:
        """Serve the longest front part of the queue, and return the first job behind it, or None."""
        allocation = self.on_offer.empty_allocation(self.on_offer.offers)
        for priority in sorted({key.priority for key in self.batches}, reverse=True):
            served = 0
            for most in (FRONT_JOBS, len(self.on_offer.snapshot.jobs)):
                ids = self.waiting.first_of(priority, end, most)
                served, allocation = self._serve_front(priority, ids, served, allocation)
                if served < len(ids):
                    key = self.waiting.key_at(priority, ids[served])
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
            key = self.waiting.key_at(priority, ids[low])
            more = allocation.with_work([self.waiting.work_of_job(key, ids[low])], share=True, greedily=True)
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
            can_improve = tried and self.on_offer.effort.left > 0
            packed = self._allocate_until((-priority, ids[tried - 1] + 1)) if can_improve else None
            if packed is None:
                break
            served, allocation = tried, packed
            tried = min(len(ids), served + int(served * self.on_offer.share_left(allocation)))
            if tried == served:
                break
        return served, allocation

    def _fill_gaps(self, allocation: Allocation, stuck: StuckAt, *, may_reseat: bool) -> Allocation | QueuePosition:
        """Serve jobs behind a stuck one, kind by kind, as many as possible.

        Returns a queue position instead if the job there failed while it has some seats: it gives them back, and
        all jobs must be reseated.
        """
        self._fail(stuck, allocation)
        if may_reseat and self.waiting.is_partly_seated(stuck):
            return stuck[1]
        for works in self.waiting.work_behind(stuck[1]):
            position, allocation = self._serve_most(works, allocation)
            if position is None:
                continue
            failed = batch_at(works, position), position
            self._fail(failed, allocation)
            if may_reseat and self.waiting.is_partly_seated(failed):
                return position
        return allocation

    def _fail(self, stuck: StuckAt, allocation: Allocation) -> None:
        """Note that this job and all later ones of its kind get nothing, and why."""
        self.obstacles[kind_of(stuck[0])] = self.why_stuck(stuck, allocation)
        self.waiting.failed_from[kind_of(stuck[0])] = stuck[1]

    @staticmethod
    def _serve_most(works: Sequence[Work], allocation: Allocation) -> tuple[QueuePosition | None, Allocation]:
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
            tried = allocation.with_work(front, share=True, greedily=True)
            low, high, best = (middle, high, tried) if tried is not None else (low, middle - 1, best)
        return (positions[low] if low < jobs else None), best

    def why_stuck(self, stuck: StuckAt, allocation: Allocation) -> Obstacle:
        key, position = stuck
        choice = self.zone_choices.get(key.shape)
        if choice is not None and choice.obstacle is not None:
            return choice.obstacle
        _, short = self.waiting.seating.short.get(JobId(position[1]), (key, pieces_of(key.shape)))
        return never.why_unserved(key.shape, short, self.on_offer.supply, self.on_offer.left_to_buy(allocation))
