"""Place the waiting jobs on the fleet: which job would run where, and which nodes that takes.

First, jobs are seated on existing nodes, as Flux's scheduler will do it (``planner.seating``). The rest is
allocated to booting and new nodes at the least cost (``allocation``). If the limits do not allow nodes for all
jobs, the order of the queue decides: the longest front part of the queue that can be served is served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from nodemanager.core.jobs import ANYWHERE, Job, JobId, NodeLoad, QueuePolicy, Shape
from nodemanager.core.nodes import LaunchId
from nodemanager.core.reason_codes import Figures
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.planner import why_not
from nodemanager.planner.allocation import Allocation
from nodemanager.planner.backoff import count_lacking
from nodemanager.planner.budget import UNLIMITED, BudgetLimits, Cuts
from nodemanager.planner.consolidation import DearNode
from nodemanager.planner.demand import (
    QUEUE_END,
    Demand,
    JobKind,
    QueuePosition,
    WaitingJobs,
    batches_beyond,
    count_served_before,
    kind_of,
    read_demand,
)
from nodemanager.planner.free_room import bins_free_soon, dear_nodes, free_bins, nodes_withheld
from nodemanager.planner.frozen import lazy_property, replace
from nodemanager.planner.packing.types import Effort
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, Hindrance, Obstacle, queue_index_of
from nodemanager.planner.seating import Availability, Bin, Seater, Seating, on_different_nodes
from nodemanager.planner.serving import (
    PACKING_STEPS_MAX,
    RESEATS_MAX,
    SEARCH_STEPS_MAX,
    OnOffer,
    Serving,
    choose_zones,
)
from nodemanager.planner.snapshot import Snapshot
from nodemanager.planner.supply import Offer, SlotAndRank, Supply, current_supply
from nodemanager.planner.work import homes_of, pieces_of_job

# These go away if other nodes end.
GIVES_WAY = (Hindrance.LIMIT_REACHED, Hindrance.PROVIDER_FULL, Hindrance.SPOT_SHARE)


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
    on_offer: why_not.LeftToBuy | None  # before any job gets some; None if nothing is ``out_of_reach``
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
    def at_limit(self) -> StuckJob | None:
        """The first job in the queue that would get its nodes if other nodes ended; None if there is none.

        In queue order only the stuck job counts, and jobs that are passed over. It is what spares, and idle nodes
        that nobody needs, give way to.
        """
        if self.stuck is not None and self.stuck.obstacle.kind in GIVES_WAY:
            return self.stuck
        waiting: list[tuple[QueuePosition, Shape, Obstacle]] = [
            ((-key.priority, self.demand.batches[key][self.served[key]]), key.shape, obstacle)
            for key, obstacle in (self.unserved.items() if self.stuck is None else ())
            if obstacle.kind in GIVES_WAY and key in self.batches
        ]
        waiting += self._gangs_that_spares_keep_waiting()
        if not waiting:
            return None
        position, shape, obstacle = min(waiting, key=lambda it: it[0])
        return StuckJob(JobId(position[1]), shape, obstacle)

    def _gangs_that_spares_keep_waiting(self) -> Iterator[tuple[QueuePosition, Shape, Obstacle]]:
        """The jobs that were put off and lack no more nodes than are kept without a job."""
        snapshot, policy = self.supply.snapshot, self.supply.policy
        kept = policy.limits.nodes_min + sum(it.spares + it.limits.nodes_min for it in policy.node_types)
        for key in self.demand.gangs if kept else ():
            gang = snapshot.learned.gangs[key.shape]
            if gang.type_name in policy.types and 0 < count_lacking(gang, snapshot) <= kept:
                full = Obstacle(Hindrance.PROVIDER_FULL, self.demand.put_off[key], gang.type_name)
                yield (-key.priority, self.demand.batches[key][0]), key.shape, full

    @lazy_property
    def near_figures(self) -> dict[tuple[Shape, float, TypeName, Decimal], Figures]:
        """What ``planner.reasons`` has found for bought nodes, because many jobs and nodes share it."""
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
            elif (
                key in refusals.cuts
                and key in self.batches
                and self.served[key] == refusals.cuts[key].count < len(ids)
            ):
                unserved[key] = Obstacle(Hindrance.UNAVAILABLE, refusals.cuts[key].why)
            elif key in self.batches and self.served[key] < len(ids):
                if kind in self.obstacles:
                    unserved[key] = self.obstacles[kind]
                elif kind in refusals.out_of_reach and refusals.on_offer is not None:
                    unserved[key] = why_not.why_unserved(
                        key.shape, refusals.out_of_reach[kind], self.supply, refusals.on_offer
                    )
        return unserved


def place_jobs(
    snapshot: Snapshot,
    policy: Policy,
    price_per_hour: Decimal,
    limits: BudgetLimits = UNLIMITED,
    searches: Effort | None = None,
    packings: Effort | None = None,
) -> Placement:
    """Place the waiting jobs on existing nodes, then on nodes that may be bought.

    ``searches``: the steps for packings beyond those that every placement needs. ``packings``: those for packings
    that are better than greedy. Placements of one plan share them.
    """
    searches = searches if searches is not None else Effort(SEARCH_STEPS_MAX)
    packings = packings if packings is not None else Effort(PACKING_STEPS_MAX)
    builder = partial(_PlacementBuilder, snapshot, policy)
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
    kept = searches.left // 4 if withheld else 0  # for a second placement
    searches.left -= kept
    placement = builder(demand, supply, limits, dear, searches, packings, withheld).build()
    searches.left += kept
    if withheld and (placement.stuck is not None or placement.unserved):  # then no job waits for a cheaper node
        return builder(demand, supply, limits, dear, searches, Effort(PACKING_STEPS_MAX)).build()
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


def _bins(
    snapshot: Snapshot,
    policy: Policy,
    limits: BudgetLimits,
    batches: Mapping[BatchKey, Sequence[JobId]],
    withheld: Collection[LaunchId],
) -> list[Bin]:
    """The bins of existing nodes, as they are before any job is seated."""
    if limits.drain_all:
        return free_bins(snapshot, policy, all_go=True)
    if limits.clouds and (overspent := limits.overspent_clouds):  # their nodes leave: none is kept for a job
        withheld = {
            *withheld,
            *(it.id for it in snapshot.nodes.values() if policy.cloud_of(it.launch) in overspent),
        }
    queue_index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    free = free_bins(snapshot, policy, batches=batches, withheld=withheld)
    return free + bins_free_soon(snapshot, policy, queue_index, withheld)


@dataclass(slots=True)
class _PlacementBuilder:
    """Builds a placement."""

    snapshot: Snapshot
    policy: Policy
    demand: Demand
    supply: Supply
    limits: BudgetLimits
    dear: Mapping[LaunchId, DearNode]
    searches: Effort
    packings: Effort
    withheld: Collection[LaunchId] = ()
    batches: Mapping[BatchKey, Sequence[JobId]] = field(init=False)  # those that could ever be served
    infeasible: dict[JobKind, Obstacle] = field(default_factory=dict)
    bins: Callable[[], list[Bin]] = field(init=False)  # those of existing nodes, before any job is seated
    on_offer: OnOffer = field(init=False)
    serving: Serving = field(init=False)

    def __post_init__(self) -> None:
        self.batches = self._batches_to_serve()
        # No bound method: a cycle would keep the snapshot in memory until the collector runs.
        self.bins = partial(_bins, self.snapshot, self.policy, self.limits, self.batches, self.withheld)
        wanted = (key.shape.constraint for key in self.batches if key.shape.constraint is not ANYWHERE)
        constraints = list(dict.fromkeys(wanted))
        with_booting = not self.limits.drain_all
        self.on_offer = OnOffer(
            self.snapshot,
            self.policy,
            self.supply,
            constraints,
            with_booting,
            effort=self.packings,
            searches=self.searches,
        )
        near = dict.fromkeys(key.shape for key in self.batches if key.shape.near is not None)
        self.on_offer.homes = homes_of(near, self.policy, self.on_offer.price_decimals)
        one_zone = dict[Shape, float]()
        for key in self.batches:
            if key.shape.one_zone:
                one_zone[key.shape] = max(key.span_s, one_zone.get(key.shape, 0.0))
        choices = choose_zones(one_zone, self.bins(), self.on_offer.offers, self.supply) if one_zone else {}
        self.on_offer.zones = {shape: found.zone for shape, found in choices.items()}
        self.serving = Serving(self.batches, self.on_offer, choices, self.bins)

    def _batches_to_serve(self) -> Mapping[BatchKey, Sequence[JobId]]:
        """The batches without jobs that are put off, over the budget of an account, or never served."""
        batches = self.demand.batches
        if self.demand.put_off:
            batches = {key: ids for key, ids in batches.items() if key not in self.demand.put_off}
        for key in batches:
            if (why := why_not.why_never_known(key.shape, self.supply)) is not None:
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
        seater = Seater(self.batches, self.bins(), {}, on_offer.zones, matches=self.supply.matches)
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

    def _first_refused(self) -> tuple[QueuePosition, Shape, Obstacle] | None:
        """The first job that must get no node but that Flux keeps in the queue.

        Even an otherwise empty fleet could not serve it, or the budget of its user or queue is used up and it is
        not seated.
        """
        refused: list[tuple[QueuePosition, Shape, Obstacle]] = []
        if not self.infeasible and not self.limits.cuts and not self.demand.gangs:
            return None
        for key, ids in self.demand.batches.items():
            if key in self.demand.put_off:
                # Flux passes over a gang only if it is held or may be passed over.
                if key in self.demand.gangs and not self.policy.passes_over(of_user=True):
                    obstacle = Obstacle(Hindrance.UNAVAILABLE, self.demand.put_off[key])
                    refused.append(((-key.priority, ids[0]), key.shape, obstacle))
                continue
            why = self.infeasible.get(kind_of(key))
            if why is not None and not self.policy.passes_over(of_user=False):
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


# --- which job gets which node of an allocation -----------------------------------------------------------


class AssignedNode(NamedTuple):
    """One node and its load. ``pieces``: (number of the work, first piece, end of the range)."""

    place: SlotAndRank
    offer: Offer
    zone: str
    pieces: tuple[tuple[int, int, int], ...]
    load: NodeLoad


class Assignment:
    """Which job gets which node."""

    def __init__(self, allocation: Allocation) -> None:
        self._works = allocation.works
        self._offers = allocation.offers
        self._groups = allocation.groups
        self._gangs = [on_different_nodes(work.shape) for work in self._works]
        self._counts = [work.jobs for work in self._works]
        free: dict[Hashable, Iterator[SlotAndRank]] = {}
        self._places: list[list[SlotAndRank]] = []
        for group in allocation.groups:
            offer = allocation.offers[group.offer]
            places = free.setdefault(group.offer if offer.pool is None else offer.pool, offer.places())
            self._places.append(list(islice(places, group.nodes)))
        self._begins: list[list[int]] = [[] for _ in allocation.works]  # by work: the first piece on each group
        self._on: list[list[tuple[int, int]]] = [
            [] for _ in allocation.works
        ]  # by work: the group, and how many pieces on each of its nodes
        begins = [0] * len(allocation.works)
        for number, group in enumerate(allocation.groups):
            for work, count in group.pieces:
                self._begins[work].append(begins[work])
                self._on[work].append((number, count))
                begins[work] += group.nodes * count
        self._numbers: dict[BatchKey, list[int]] = {}
        for number, those in enumerate(allocation.works):
            for key in dict.fromkeys(run[0] for run in those.runs):
                self._numbers.setdefault(key, []).append(number)

    def nodes(self) -> Iterator[AssignedNode]:
        """All nodes, group by group."""
        begins = [0] * len(self._works)
        works = self._works
        for group, places in zip(self._groups, self._places, strict=True):
            # One entry for each kind, also if two works are of it.
            planned: dict[tuple[Shape, float, int], int] = {}
            for work, count in group.pieces:
                kind = (works[work].shape, works[work].span_s, works[work].pieces_each)
                planned[kind] = planned.get(kind, 0) + count
            load = tuple((*kind, count) for kind, count in planned.items())
            for index, place in enumerate(places):
                pieces = tuple(
                    (work, begins[work] + index * count, begins[work] + (index + 1) * count)
                    for work, count in group.pieces
                )
                yield AssignedNode(place, self._offers[group.offer], group.zone, pieces, load)
            for work, count in group.pieces:
                begins[work] += group.nodes * count

    def jobs_on(self, node: AssignedNode, most: int) -> tuple[tuple[JobId, ...], int]:
        """The first few jobs on a node, and how many there are in all."""
        names: list[JobId] = []
        count = 0
        for number, begin, end in node.pieces:
            work = self._works[number]
            if self._gangs[number]:
                jobs = self._counts[number]
                found = sorted(piece % jobs for piece in range(begin, end)) if end - begin > 1 else [begin % jobs]
                count += len(found)
                names += [work.job(job) for job in found[:most]]
            else:
                first, last = begin // work.pieces_each, (end - 1) // work.pieces_each
                count += last - first + 1
                names += work.jobs_between(first, min(last + 1, first + most))
        return tuple(sorted(names)[:most]), count

    def pieces_on(self, node: AssignedNode) -> Iterator[tuple[JobId, Shape]]:
        """The job of each piece on a node."""
        for number, begin, end in node.pieces:
            work = self._works[number]
            gang, jobs = on_different_nodes(work.shape), work.jobs
            for piece in range(begin, end):
                yield work.job(piece % jobs if gang else piece // work.pieces_each), work.shape

    def nodes_of(self, key: BatchKey, index: int) -> list[tuple[SlotAndRank, Offer]]:
        """The nodes of the job at an index of its batch; empty if it gets no booting or new node."""
        for number in self._numbers.get(key, ()):
            work = self._works[number]
            job = work.number(key, index)
            if job is not None:
                return list(dict.fromkeys(self._node(number, piece) for piece in pieces_of_job(work, job)))
        return []

    def _node(self, work: int, piece: int) -> tuple[SlotAndRank, Offer]:
        at = bisect_right(self._begins[work], piece) - 1
        group, count = self._on[work][at]
        place = self._places[group][(piece - self._begins[work][at]) // count]
        return place, self._offers[self._groups[group].offer]


# --- what a placement needs of the fleet: the nodes that are there or boot, and those to buy --------------


NAMES_MAX = 10  # jobs named with a slot or a purchase


@dataclass(frozen=True, slots=True)
class Purchase:
    """One node to buy. ``serves``: the first few of the jobs it is bought for; ``job_count``: all of them."""

    place: SlotAndRank
    node_type: NodeType
    zone: str
    serves: tuple[JobId, ...]
    job_count: int
    load: NodeLoad = ()


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What the placement needs of the fleet. ``needed``: the slots it uses, with the first few of their jobs."""

    needed: Mapping[SlotName, tuple[JobId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    purchases: tuple[Purchase, ...] = ()


def fleet_needs(jobs: Mapping[JobId, Job], placement: Placement) -> FleetNeeds:
    """What the placement needs of the fleet. Nodes for the first jobs in the queue are bought first."""
    needed: dict[SlotName, list[JobId]] = {}
    for key, seated in placement.seating.seated.items():
        for id_ in placement.demand.batches[key][: min(seated, placement.count_served(key))]:
            for bin_, _ in placement.seating.seats[id_]:
                needed.setdefault(bin_.slot, []).append(id_)
    purchases: list[Purchase] = []
    for node in placement.assignment.nodes():
        serves, count = placement.assignment.jobs_on(node, NAMES_MAX)
        if node.offer.availability is Availability.NEW:
            purchases.append(Purchase(node.place, node.offer.node_type, node.zone, serves, count, node.load))
        else:
            needed.setdefault(node.place[0], []).extend(serves)
    order = {id_: (-jobs[id_].priority, id_) for it in purchases for id_ in it.serves}
    purchases.sort(key=lambda it: (min(map(order.__getitem__, it.serves)), it.place[1]))
    of_slots = {slot: tuple(sorted(ids)[:NAMES_MAX]) for slot, ids in needed.items()}
    return FleetNeeds(of_slots, tuple(_cheapest_first(purchases)))


def _cheapest_first(purchases: Sequence[Purchase]) -> list[Purchase]:
    """The same purchases, where the first ones of a type, on a market, in a zone, are its cheapest sizes.

    A quota of the whole account may let only the first ones through. All sizes of a type have its declared room.
    """
    sizes: dict[Hashable, list[NodeType]] = {}
    for purchase in purchases:
        if purchase.node_type.sizes:
            sizes.setdefault(_size_pool(purchase), []).append(purchase.node_type)
    for bought in sizes.values():
        bought.sort(key=lambda it: it.price_per_hour, reverse=True)
    return [replace(it, node_type=sizes[_size_pool(it)].pop()) if it.node_type.sizes else it for it in purchases]


def _size_pool(purchase: Purchase) -> Hashable:
    return purchase.node_type.name, purchase.node_type.market, purchase.zone
