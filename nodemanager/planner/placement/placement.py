"""Place the waiting jobs on the fleet: which job would run where, and which nodes that takes.

First, jobs are seated on existing nodes, as Flux's scheduler will do it (``scheduler.seating``). The rest is
allocated to booting and new nodes at the least cost (``allocation``). If the limits do not allow nodes for all
jobs, the order of the queue decides: the longest front part of the queue that can be served is served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from nodemanager.core.jobs import ANYWHERE, JobId, QueuePolicy, Shape
from nodemanager.core.nodes import LaunchId
from nodemanager.core.reason_codes import Figures
from nodemanager.core.slots import TypeName
from nodemanager.planner.allocation.allocation import Allocation
from nodemanager.planner.allocation.assignment import Assignment
from nodemanager.planner.allocation.near import homes_of
from nodemanager.planner.cost.budget import BudgetLimits, Cuts
from nodemanager.planner.placement import infeasibility, never
from nodemanager.planner.placement.demand import Demand, read_demand
from nodemanager.planner.placement.on_offer import OnOffer
from nodemanager.planner.placement.one_zone import choose_zones
from nodemanager.planner.placement.serving import RESEATS_MAX, Serving
from nodemanager.planner.placement.waiting import (
    QUEUE_END,
    JobKind,
    QueuePosition,
    WaitingJobs,
    count_served_before,
    kind_of,
)
from nodemanager.planner.placement.work_budget import batches_beyond
from nodemanager.planner.scheduler.seating import Bin, Seater, Seating
from nodemanager.planner.state.frozen import lazy_property, replace
from nodemanager.planner.state.obstacle import Hindrance, Obstacle
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.supply.free_room import bins_free_soon, free_bins
from nodemanager.planner.supply.refill import dear_nodes, nodes_withheld
from nodemanager.planner.supply.supply import Supply, current_supply
from nodemanager.planner.upkeep.consolidation import DearNode


class StuckJob(NamedTuple):
    """The first job in the queue that cannot get its nodes."""

    job: JobId
    shape: Shape
    obstacle: Obstacle


@dataclass(frozen=True)
class Refusals:
    """Jobs that get nothing, whatever the queue's order."""

    infeasible: Mapping[JobKind, Obstacle]  # jobs that could never be served, and why
    out_of_reach: Mapping[JobKind, int]  # kinds that lack more pieces than are ``on_offer``, and how many
    on_offer: infeasibility.LeftToBuy | None  # before any job gets some; None if nothing is ``out_of_reach``
    cuts: Cuts  # how many of a batch the budgets of its user and queue allow


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
    served_until: QueuePosition  # all jobs before this position are served, except failed ones
    failed_from: Mapping[JobKind, QueuePosition]  # from where on jobs of a kind get nothing
    obstacles: Mapping[JobKind, Obstacle]  # why the first unserved job of a kind is not served
    stuck: StuckJob | None
    zones: Mapping[Shape, str]  # for jobs that want all their nodes in one zone
    price_left: Decimal  # per hour, after all purchases
    limits: BudgetLimits
    refusals: Refusals
    dear: Mapping[LaunchId, DearNode]  # those whose jobs could run on cheaper nodes

    def count_served(self, key: BatchKey) -> int:
        """How many jobs of a batch, from the first on, get all their nodes."""
        ids = self.batches.get(key)
        return count_served_before(self.served_until, key, ids, self.failed_from) if ids is not None else 0

    @lazy_property
    def served(self) -> Mapping[BatchKey, int]:
        """How many jobs of each batch get all their nodes, for batches that could ever be served."""
        return {key: self.count_served(key) for key in self.demand.batches if key in self.batches}

    @lazy_property
    def near_figures(self) -> dict[tuple[Shape, float, TypeName, Decimal], Figures]:
        """What ``explain.near`` has found for bought nodes, because many jobs and nodes share it."""
        return {}

    @lazy_property
    def unserved(self) -> Mapping[BatchKey, Obstacle]:
        """Why the first unserved job of each batch is not served."""
        refusals = self.refusals
        unserved: dict[BatchKey, Obstacle] = {}
        for key, ids in self.demand.batches.items():
            kind = kind_of(key)
            if kind in refusals.infeasible:
                unserved[key] = refusals.infeasible[kind]
            elif key in refusals.cuts and key in self.batches and self.served[key] == refusals.cuts[key].count:
                unserved[key] = Obstacle(Hindrance.UNAVAILABLE, refusals.cuts[key].why)
            elif key in self.batches and self.served[key] < len(ids):
                if kind in self.obstacles:
                    unserved[key] = self.obstacles[kind]
                elif kind in refusals.out_of_reach and refusals.on_offer is not None:
                    unserved[key] = never.why_unserved(
                        key.shape, refusals.out_of_reach[kind], self.supply, refusals.on_offer
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
    dear = dear_nodes(supply)
    if not demand.batches:
        return _empty_placement(demand, supply, limits, dear)
    open_batches = {key: ids for key, ids in demand.batches.items() if key not in demand.put_off}
    if beyond := batches_beyond(open_batches, supply):
        demand = replace(demand, put_off={**demand.put_off, **beyond})
    withheld = nodes_withheld(dear, snapshot, policy)
    placement = _PlacementBuilder(snapshot, policy, demand, supply, limits, dear, withheld).build()
    if withheld and (placement.stuck is not None or placement.unserved):  # then no job waits for a cheaper node
        return _PlacementBuilder(snapshot, policy, demand, supply, limits, dear).build()
    return placement


def _empty_placement(
    demand: Demand, supply: Supply, limits: BudgetLimits, dear: Mapping[LaunchId, DearNode]
) -> Placement:
    allocation = Allocation((), _fail, _fail, supply.nodes_left, 0, _fail)
    nobody: Mapping[Any, Any] = {}
    return Placement(
        demand,
        Seating(),
        Assignment(allocation),
        allocation,
        supply,
        batches=nobody,
        served_until=QUEUE_END,
        failed_from=nobody,
        obstacles=nobody,
        stuck=None,
        zones=nobody,
        price_left=supply.price_left,
        limits=limits,
        refusals=Refusals(nobody, nobody, None, nobody),
        dear=dear,
    )


def _fail(*_: object) -> int:
    raise AssertionError("no job is placed if none waits")


@dataclass(slots=True)
class _PlacementBuilder:
    """Builds a placement."""

    snapshot: Snapshot
    policy: Policy
    demand: Demand
    supply: Supply
    limits: BudgetLimits
    dear: Mapping[LaunchId, DearNode]
    withheld: Collection[LaunchId] = ()
    batches: Mapping[BatchKey, Sequence[JobId]] = field(init=False)  # those that could ever be served
    infeasible: dict[JobKind, Obstacle] = field(default_factory=dict)
    on_offer: OnOffer = field(init=False)
    serving: Serving = field(init=False)

    def __post_init__(self) -> None:
        self.batches = self._batches_to_serve()
        wanted = (key.shape.constraint for key in self.batches if key.shape.constraint is not ANYWHERE)
        constraints = list(dict.fromkeys(wanted))
        with_booting = not self.limits.drain_all
        self.on_offer = OnOffer(self.snapshot, self.policy, self.supply, constraints, with_booting)
        near = dict.fromkeys(key.shape for key in self.batches if key.shape.near is not None)
        self.on_offer.homes = homes_of(near, self.policy, self.on_offer.price_decimals)
        one_zone = dict[Shape, float]()
        for key in self.batches:
            if key.shape.one_zone:
                one_zone[key.shape] = max(key.span_s, one_zone.get(key.shape, 0.0))
        choices = choose_zones(one_zone, self._bins(), self.on_offer.offers, self.supply) if one_zone else {}
        self.on_offer.zones = {shape: found.zone for shape, found in choices.items()}
        self.serving = Serving(self.batches, self.on_offer, choices, self._bins)

    def _batches_to_serve(self) -> Mapping[BatchKey, Sequence[JobId]]:
        """The batches without jobs that are put off, over the budget of an account, or never served."""
        batches = self.demand.batches
        if self.demand.put_off:
            batches = {key: ids for key, ids in batches.items() if key not in self.demand.put_off}
        for key in batches:
            if (why := never.why_never_known(key.shape, self.supply)) is not None:
                self.infeasible[kind_of(key)] = why
        passed = {key: it for key, it in self.limits.cuts.items() if self.policy.passes_over(of_user=it.of_user)}
        if passed:
            batches = {key: ids[: passed[key].count] if key in passed else ids for key, ids in batches.items()}
        if self.infeasible:
            batches = {key: ids for key, ids in batches.items() if kind_of(key) not in self.infeasible}
        return batches

    def build(self) -> Placement:
        """Seat the jobs, allocate the rest, and put the placement together."""
        fifo = self.policy.rules.queue_policy is QueuePolicy.FIFO
        if self.batches and not fifo:
            self.serving.seat({}, give_back=RESEATS_MAX)
        elif self.batches and (held_up := self._placement_if_stuck_at_once()) is not None:
            return held_up
        refused = self._first_refused() if fifo else None
        end = refused[0] if refused is not None else QUEUE_END
        allocation, stuck_at = self.serving.serve(end, fifo=fifo)
        stuck: StuckJob | None = None
        if stuck_at is not None and fifo:
            key, position = stuck_at
            stuck = StuckJob(JobId(position[1]), key.shape, self.serving.obstacles[kind_of(key)])
            end = position
        elif refused is not None:
            stuck = StuckJob(JobId(refused[0][1]), refused[1], refused[2])
        return self._placement(allocation, end, stuck)

    def _placement_if_stuck_at_once(self) -> Placement | None:
        """The placement if the first job that lacks nodes is clearly out of reach: no job behind it matters then.

        The result equals that of a full placement. If the case is not clear, all jobs are seated and it is None.
        """
        serving, on_offer = self.serving, self.on_offer
        seater = Seater(self.batches, self._bins(), {}, on_offer.zones, matches=self.supply.matches)
        serving.waiting = WaitingJobs(self.batches, seater.seat_to_first_short())
        first = serving.waiting.seating.first_short
        if first is None:
            return None  # all jobs are seated
        key, job, short = first
        position = (-key.priority, int(job))
        refused = self._first_refused()
        allocation = on_offer.empty_allocation(on_offer.offers)
        may_fit = allocation.takes_at_most(serving.waiting.work_of_job(key, job)) >= short
        if may_fit or (refused is not None and refused[0] <= position):
            seater.seat_all()
            return None
        why = serving.obstacles[kind_of(key)] = serving.why_stuck((key, position), allocation)
        return self._placement(allocation, position, StuckJob(job, key.shape, why))

    def _bins(self) -> list[Bin]:
        """The bins of existing nodes, as they are before any job is seated."""
        queue_index = queue_index_of(self.snapshot.jobs, self.snapshot.indexes.queue)
        if self.limits.drain_all:
            return free_bins(self.snapshot, self.policy, all_go=True)
        withheld = {*self.withheld, *self._leaving_overspent_clouds()}
        free = free_bins(self.snapshot, self.policy, batches=self.batches, withheld=withheld)
        return free + bins_free_soon(self.snapshot, self.policy, queue_index, withheld)

    def _leaving_overspent_clouds(self) -> Iterator[LaunchId]:
        """The nodes of clouds that have spent their budget: none of them is kept for a job."""
        if not (overspent := self.limits.overspent_clouds):
            return
        for node in self.snapshot.nodes.values():
            if self.policy.cloud_of(node.launch) in overspent:
                yield node.id

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
            why = self.infeasible.get(kind_of(key))
            blocks = why is not None and why.kind is not Hindrance.NO_SLOT_FITS
            if why is not None and blocks and not self.policy.passes_over(of_user=False):
                refused.append(((-key.priority, ids[0]), key.shape, why))
            cut = self.limits.cuts.get(key) if why is None else None
            if cut is None or self.policy.passes_over(of_user=cut.of_user):
                continue
            if (first := self.serving.waiting.first_unseated(key, ids, cut.count)) is not None:
                refused.append(((-key.priority, first), key.shape, Obstacle(Hindrance.UNAVAILABLE, cut.why)))
        return min(refused, key=lambda it: it[0], default=None)

    def _placement(self, allocation: Allocation, end: QueuePosition, stuck: StuckJob | None) -> Placement:
        serving, on_offer = self.serving, self.on_offer
        seating, obstacles = serving.waiting.seating, serving.obstacles
        beyond = seating.out_of_reach
        for kind in beyond:
            choice = serving.zone_choices.get(kind[0])
            if choice is not None and choice.obstacle is not None:
                obstacles[kind] = choice.obstacle
            else:
                obstacles.pop(kind, None)  # from an earlier seating
        return Placement(
            self.demand,
            seating,
            Assignment(allocation),
            allocation,
            self.supply,
            batches=self.batches,
            served_until=end,
            failed_from=serving.waiting.failed_from,
            obstacles=obstacles,
            stuck=stuck,
            zones=on_offer.zones,
            price_left=on_offer.price_left(allocation),
            limits=self.limits,
            refusals=Refusals(
                self.infeasible,
                {kind: short for kind, (_, _, short) in beyond.items()},
                on_offer.left_to_buy(on_offer.empty_allocation(on_offer.offers)) if beyond else None,
                self.limits.cuts,
            ),
            dear=self.dear,
        )
