"""Why each job waits, why a node is as it is, and why a type is not bought."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from heapq import merge
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Protocol, Self

from nodemanager.core.jobs import Job, JobId, Shape
from nodemanager.core.nodes import FluxRank, LaunchId, NodeState
from nodemanager.core.notation import format_bytes
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reason_text import format_money
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, Rank, SlotName, TypeName
from nodemanager.core.upkeep.rules import Drift
from nodemanager.planner.backoff import block_on, gangs_put_off, unavailable_sizes, zones_of
from nodemanager.planner.billing import nodes_max_of_type
from nodemanager.planner.breakers import open_breakers, users_put_off
from nodemanager.planner.frozen import lazy_property
from nodemanager.planner.node_health import alarms, data_alarms, drained_nodes, drift_of, drifted_nodes, price_of
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.placement import NAMES_MAX, FleetNeeds, Placement
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, Hindrance, Obstacle, key_of
from nodemanager.planner.seating import Availability, pieces_of, slots_per_piece
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.stack import idle_below_a_busy_node
from nodemanager.planner.supply import is_slot_specific
from nodemanager.planner.trust import source_name
from nodemanager.planner.why_not import may_buy, pieces_per_node
from nodemanager.planner.work import cost_of_node

REASON_BY_AVAILABILITY: Mapping[Availability, Code] = {
    Availability.UP: Code.FITS_ON_A_NODE_THAT_IS_UP,
    Availability.KEPT: Code.NODE_KEPT_FOR_IT,
    Availability.SOON: Code.NODE_FREE_SOON,
    Availability.COMING: Code.NODE_COMING,
    Availability.NEW: Code.NODE_ORDERED,
}


class JobReasons(Mapping[JobId, Reason]):
    """Why each waiting job waits. A reason is computed on access, because there may be very many jobs.

    ``place`` places the jobs; it is called when the first reason is asked for, unless the plan needed it before.
    """

    def __init__(
        self,
        jobs: Mapping[JobId, Job],
        place: Callable[[], Placement],
        not_bought: Reason | None,
        delays: Mapping[SlotName, Reason] = MappingProxyType({}),
        *,
        is_fault: bool = False,
    ) -> None:
        """``not_bought``: why no node is bought now; ``is_fault``: for a reason that will not pass soon.

        ``delays``: of nodes to come, from :func:`boot_delays`.
        """
        self._jobs = jobs
        self._place = place
        self._not_bought = not_bought
        self._is_fault = is_fault
        self._waits_for: dict[tuple[TypeName, ...], tuple[str, ...]] = {}
        self._delays = delays

    @property
    def _placement(self) -> Placement:
        return self._place()

    def __getitem__(self, id_: JobId) -> Reason:
        demand = self._placement.demand
        if id_ in demand.withheld:
            return demand.withheld[id_]
        key = key_of(self._jobs[id_])
        ids = demand.batches.get(key, ())
        index = bisect_left(ids, id_)
        if index == len(ids) or ids[index] != id_:
            raise KeyError(id_)
        return self._reason(key, ids, index)

    def __iter__(self) -> Iterator[JobId]:
        """The jobs in the order of their ids."""
        return merge(sorted(self._placement.demand.withheld), *self._placement.demand.batches.values())

    def __len__(self) -> int:
        demand = self._placement.demand
        return len(demand.withheld) + sum(map(len, demand.batches.values()))

    def items(self) -> ItemsView[JobId, Reason]:
        """All jobs with their reasons, in the order of their ids."""
        return _JobReasonsItems(self)

    def in_id_order(self) -> Iterator[tuple[JobId, Reason]]:
        """All jobs with their reasons, by id. Fast: all unserved jobs of a batch share one reason."""
        placement, demand = self._placement, self._placement.demand
        stuck = placement.stuck.job if placement.stuck is not None else None
        alike: dict[BatchKey, Reason] = {}
        withheld: Iterable[_JobInBatch] = ((id_, None, (), 0) for id_ in sorted(demand.withheld))
        batches = (_jobs_in_batch(key, ids) for key, ids in demand.batches.items())
        for id_, key, ids, index in merge(withheld, *batches):
            if key is None:
                yield id_, demand.withheld[id_]
            elif id_ == stuck or index < placement.served.get(key, 0):
                yield id_, self._reason(key, ids, index)
            else:
                if key not in alike:
                    alike[key] = self._reason(key, ids, index)
                yield id_, alike[key]

    def in_groups(self) -> Iterator[tuple[JobId, int, Reason]]:
        """The jobs in groups of equals: the first of each group, their number, and the first one's reason.

        The batches by priority, then the withheld jobs, each of these alone. Far fewer groups than jobs, so it is
        quick if there are very many.
        """
        demand = self._placement.demand
        for key, ids in sorted(demand.batches.items(), key=lambda batch: (-batch[0].priority, batch[1][0])):
            served = self._placement.served.get(key, 0)
            # The first unserved job may be the stuck one, which has its own reason.
            bounds = (0, served, min(served + 1, len(ids)), len(ids))
            for first, end in pairwise(bounds):
                if first < end:
                    yield ids[first], end - first, self._reason(key, ids, first)
        for id_, reason in demand.withheld.items():
            yield id_, 1, reason

    def count_by_reason(self) -> Mapping[str, int]:
        """Count the jobs by the code of their reason.

        Served jobs all count as "node_ordered", unless no node is bought for them.
        """
        return self._counts

    @lazy_property
    def _counts(self) -> Mapping[str, int]:
        """Every plan is counted by its brain, the log and the web."""
        counts: Counter[str] = Counter(reason.code for reason in self._placement.demand.withheld.values())
        for key, ids in self._placement.demand.batches.items():
            served = self._placement.served.get(key, 0)
            not_bought = self._count_not_bought(key, ids, served) if self._is_fault else 0
            counts[Code.NODE_ORDERED] += served - not_bought
            if not_bought and self._not_bought is not None:
                counts[self._not_bought.code] += not_bought
            if served < len(ids):
                # The first unserved job may be the stuck one, which has its own reason.
                counts[self._reason(key, ids, served).code] += 1
            if served + 1 < len(ids):
                counts[self._reason(key, ids, served + 1).code] += len(ids) - served - 1
        return +counts

    def _count_not_bought(self, key: BatchKey, ids: Sequence[JobId], served: int) -> int:
        """How many of the jobs to be served, the last of a batch, wait for nodes that are not bought."""

        def waits(index: int) -> bool:
            return self._reason(key, ids, index) is self._not_bought

        return served - bisect_left(range(served), 1, key=waits)

    def _with_jobs_in_the_way(self, obstacle: Obstacle, shape: Shape) -> Reason:
        """The obstacle's reason, with the first few jobs that hold a type's slots, or the nodes of a limit."""
        policy, reason = self._placement.supply.policy, obstacle.reason
        types: tuple[TypeName, ...]
        if reason.code == Code.CLOUD_FULL:
            types = tuple(it.name for it in policy.node_types if it.cloud == reason.figures["cloud"])
        elif obstacle.kind is Hindrance.LIMIT_REACHED and obstacle.node_type is None:
            types = tuple(policy.types)
        elif obstacle.node_type is not None and obstacle.kind is not Hindrance.PROVIDER_FULL:
            types = () if is_slot_specific(shape.constraint, policy) else (obstacle.node_type,)
        else:
            types = ()
        if not types:
            return reason
        if types not in self._waits_for:
            self._waits_for[types] = tuple(map(str, self._jobs_on_slots_of(types)))
        jobs = self._waits_for[types]
        return reason.with_figures(jobs=jobs) if jobs else reason

    def _jobs_on_slots_of(self, types: Iterable[TypeName]) -> list[JobId]:
        """The first few jobs that hold slots of some types: they run there, or nodes boot for them."""
        supply = self._placement.supply
        slots = frozenset(slot for name in types for slot in supply.policy.types[name].slots)
        ranks = {rank for slot, rank in supply.snapshot.slots.rank_of_slot.items() if slot in slots}
        running = (
            job
            for job in self._jobs.values()
            if job.allocations and any(it.rank in ranks for it in job.allocations)
        )
        found = {job.id: None for job in islice(running, NAMES_MAX)}
        for node in self._placement.assignment.nodes() if len(found) < NAMES_MAX else ():
            if node.place[0] in slots:
                found |= dict.fromkeys(self._placement.assignment.jobs_on(node, NAMES_MAX)[0])
            if len(found) >= NAMES_MAX:
                break
        return sorted(found)[:NAMES_MAX]

    def _reason(self, key: BatchKey, ids: Sequence[JobId], index: int) -> Reason:
        placement = self._placement
        if key in placement.demand.put_off:
            return placement.demand.put_off[key]
        if index < placement.count_served(key):
            return self._why_served(key, ids, index)
        stuck = placement.stuck
        if stuck is not None and ids[index] == stuck.job:
            return self._with_jobs_in_the_way(stuck.obstacle, key.shape)
        own = placement.unserved.get(key)
        if stuck is not None and (own is None or key in placement.served):
            return because(Code.BEHIND_A_STUCK_JOB, job=str(stuck.job))
        if own is None:
            return because(Code.BEHIND_A_STUCK_JOB, job="")
        return self._with_jobs_in_the_way(own, key.shape)

    def _why_served(self, key: BatchKey, ids: Sequence[JobId], index: int) -> Reason:
        placement, id_ = self._placement, ids[index]
        availability: dict[SlotName, Availability] = {}
        free_in_s = 0.0
        for bin_, _ in placement.seating.seats.get(id_, ()):
            availability[bin_.slot] = bin_.availability
            free_in_s = max(free_in_s, bin_.free_in_s)
        types: dict[SlotName, NodeType] = {}
        for place, offer in placement.assignment.nodes_of(key, index):
            availability[place[0]] = offer.availability
            types[place[0]] = offer.node_type
        latest = max(availability.values())
        if latest is Availability.NEW and self._not_bought is not None:
            return self._not_bought
        nodes = tuple(slot for slot, when in availability.items() if when is latest)
        if latest is Availability.COMING and (delayed := next(filter(None, map(self._delays.get, nodes)), None)):
            return delayed
        figures: Figures = {"nodes": nodes}
        if latest is Availability.SOON:
            figures["free_in_s"] = free_in_s
        if latest is not Availability.UP and key.shape in placement.zones:
            figures["zone"] = placement.zones[key.shape]
        if id_ in placement.demand.unheeded:
            figures["unheeded"] = placement.demand.unheeded[id_]
        if key.shape.near is not None:
            known = placement.supply.policy.type_of_slot
            found = [types.get(slot) or known.get(slot) for slot in nodes]
            figures |= _near_figures(key, latest, [it for it in found if it is not None], placement)
        return because(REASON_BY_AVAILABILITY[latest], **figures)


def _near_figures(key: BatchKey, latest: Availability, types: Sequence[NodeType], placement: Placement) -> Figures:
    """Whether a job's nodes are near its data. If some are not, the first of these counts."""
    home = placement.supply.policy.home_of(key.shape)
    node_type = next((it for it in types if it.cloud != home), next(iter(types), None))
    if node_type is None:
        return {}
    if latest is Availability.NEW:
        return figures_of_new(key.shape, key.span_s, node_type, placement)
    if latest is Availability.COMING:
        return where_figures(key.shape, node_type, placement)
    return figures_of_existing(key.shape, node_type, placement)


def boot_delays(nodes: Iterable[Node]) -> Mapping[SlotName, Reason]:
    """Why nodes to come are not booting yet, as their jobs' users should see it."""
    delays: dict[SlotName, Reason] = {}
    for node in nodes:
        slot = node.launch.slot
        if node.state is NodeState.REQUESTED and node.create.failure:
            delays[slot] = because(Code.NODE_CREATE_FAILED, nodes=(slot,), detail=node.create.failure)
        elif node.state is NodeState.BOOTING and node.cloud is not None and node.cloud.queued:
            delays[slot] = because(Code.NODE_QUEUED_OUTSIDE, nodes=(slot,))
        elif node.state is NodeState.BOOTING and node.cloud is not None and node.cloud.note:
            delays[slot] = because(Code.NODE_PENDING_AT_PROVIDER, nodes=(slot,), detail=node.cloud.note)
    return delays


class _JobReasonsItems(ItemsView[JobId, Reason]):
    def __init__(self, reasons: JobReasons) -> None:
        super().__init__(reasons)
        self._reasons = reasons

    def __iter__(self) -> Iterator[tuple[JobId, Reason]]:
        return self._reasons.in_id_order()


# A job, its batch (None: it is withheld), the batch's ids, and the job's index among them.
_JobInBatch = tuple[JobId, BatchKey | None, Sequence[JobId], int]


def _jobs_in_batch(key: BatchKey, ids: Sequence[JobId]) -> Iterator[_JobInBatch]:
    return ((id_, key, ids, index) for index, id_ in enumerate(ids))


# --- why each node stays or goes --------------------------------------------------------------------------


class LazyReasons(Protocol):
    """Reasons of nodes, each computed on access."""

    def get(self, id_: LaunchId) -> Reason | None:
        """The node's reason; None if it has none here."""
        ...

    def changed_since(self, before: Self) -> Iterable[LaunchId]:
        """The nodes whose reason may have another code than before."""
        ...


class NodeReasons(Mapping[LaunchId, Reason]):
    """Why each node stays or goes, by id. Most nodes are simply busy, and share the reason ``rest``."""

    def __init__(
        self,
        nodes: Mapping[LaunchId, Node],
        decided: Mapping[LaunchId, Reason],
        rest: Reason,
        resting: LazyReasons | None = None,
    ) -> None:
        self._nodes = nodes
        self.decided = decided  # of the nodes that took a step, and of those bought now
        self._rest = rest
        self._resting = resting  # of idle nodes that took none

    def __getitem__(self, id_: LaunchId) -> Reason:
        reason = self.decided.get(id_)
        if reason is None and self._resting is not None:
            reason = self._resting.get(id_)
        if reason is None and id_ not in self._nodes:
            raise KeyError(id_)
        return self._rest if reason is None else reason

    def __iter__(self) -> Iterator[LaunchId]:
        return iter(sorted({**dict.fromkeys(self._nodes), **dict.fromkeys(self.decided)}))

    def changed_since(self, before: NodeReasons) -> Sequence[LaunchId]:
        """The nodes whose reason may have another code. Nodes that were and are simply busy are left out."""
        ids = {*self.decided, *before.decided}
        if self._resting is not None and before._resting is not None:
            ids.update(self._resting.changed_since(before._resting))
        if self._nodes is not before._nodes:
            ids |= self._nodes.keys() - before._nodes.keys()
        return sorted(id_ for id_ in ids if id_ in self)

    def __len__(self) -> int:
        return len(self._nodes) + sum(id_ not in self._nodes for id_ in self.decided)


# --- type reasons -----------------------------------------------------------------------------------------
#
# Explain why each node type is bought or not, and warn if the scheduler may act against the site's intent.
#
# It may give a node with GPUs to jobs that want none, or start a job across zones that wants a single one. Also
# warn of idle nodes that cost money because somebody drained them.


MISREAD_SHOWN_S = 900.0  # longer than between two sweeps, the rarest of the calls


def type_reasons(policy: Policy, placement: Placement, needs: FleetNeeds) -> Mapping[TypeName, Reason]:
    """For each type: that it is bought, or the first reason against it."""
    bought = Counter(purchase.node_type.name for purchase in needs.purchases)
    prices = [purchase.node_type.price_per_hour for purchase in needs.purchases]
    price = sum(prices, Decimal(0))
    instead = because(Code.ANOTHER_MIX_IS_CHEAPER, node_types=tuple(sorted(bought)), price_per_hour=price)
    return {
        node_type.name: because(Code.BOUGHT, node_count=bought[node_type.name])
        if bought[node_type.name]
        else _why_not(node_type, placement, instead if bought else None)
        for node_type in policy.node_types
    }


def _why_not(node_type: NodeType, placement: Placement, instead: Reason | None) -> Reason:
    supply, name = placement.supply, node_type.name
    if name in supply.blocked:
        return supply.blocked[name]
    if instead is None:
        return _why_nothing_bought(placement)
    short = [
        shape
        for shape in (work.shape for work in placement.allocation.works)
        if pieces_per_node(node_type, shape, placement.allocation.memory_bytes(shape))
        and supply.count_slots_for(node_type, shape.constraint)
    ]
    if not short:
        return because(Code.FITS_NO_JOB_THAT_IS_SHORT)
    if not any(may_buy(node_type, shape, supply) for shape in short):
        return because(Code.KEPT_FOR_GPU_JOBS)
    if supply.count_free(name) <= 0 and supply.is_held_back(name):
        most, schedule = nodes_max_of_type(node_type) or 0, node_type.limits.schedule
        return because(Code.TYPE_LIMIT, schedule=schedule, node_type=name, nodes_max=most)
    if supply.count_free(name) <= 0:
        return because(Code.ALL_SLOTS_TAKEN, node_type=name, slots=supply.rank_index.slots.get(name, 0))
    better = placement.allocation.dominated.get(name)
    if better is not None:
        price = supply.policy.types[better].price_per_hour
        return because(Code.ANOTHER_TYPE_IS_CHEAPER, node_type=better, price_per_hour=price)
    return instead


def size_reasons(name: TypeName, snapshot: Snapshot, policy: Policy) -> Mapping[tuple[str, Market], Reason]:
    """Why sizes of a type are not bought now: none of them can be had, or another that can is cheaper.

    All sizes serve as the same slots. A cheaper spot size is no reason against one on demand: the work on it may be
    lost, which may cost more in the end.
    """
    closed = unavailable_sizes(snapshot, policy).get(name, {})
    reasons = dict(closed)
    cheapest: dict[Market, NodeType] = {}
    for size in policy.by_size[name]:
        key = size.size, size.market
        if key in closed:
            continue
        better = cheapest.get(size.market) or cheapest.get(Market.ON_DEMAND)
        if better is not None:
            reasons[key] = because(
                Code.ANOTHER_SIZE_IS_CHEAPER,
                size=better.size,
                market=better.market,
                price_per_hour=better.price_per_hour,
            )
        elif all(block_on(size, zone, snapshot) is None for zone in zones_of(size)):
            cheapest[size.market] = size
    return reasons


def _why_nothing_bought(placement: Placement) -> Reason:
    if placement.stuck is not None:
        return because(Code.JOB_HELD_UP, job=str(placement.stuck.job), why=placement.stuck.obstacle.reason.code)
    held_up = [(key, why) for key, why in placement.unserved.items() if key in placement.served]
    if not held_up:
        return because(Code.NOTHING_IS_SHORT)
    key, why = held_up[0]
    return because(
        Code.JOB_HELD_UP, job=str(placement.demand.batches[key][placement.served[key]]), why=why.reason.code
    )


def warnings(snapshot: Snapshot, policy: Policy, placement: Placement, needs: FleetNeeds) -> tuple[Reason, ...]:
    """What the site's administrator should fix."""
    return (
        *_jobs_set_aside(snapshot),
        *_endless_blockers(placement),
        *_unguarded_gpu_nodes(snapshot, policy, placement, needs),
        *_gpu_nodes_taken(snapshot, policy, placement),
        *_jobs_across_zones(placement),
        *_drained_nodes(snapshot, policy),
        *idle_below_a_busy_node(snapshot, policy),
        *users_put_off(snapshot).values(),
        *gangs_put_off(snapshot).values(),
        *_drifted_nodes(snapshot, policy),
        *_old_prices(snapshot, policy),
        *_misread_answers(snapshot, policy),
    )


def _misread_answers(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """Warn of clouds whose answers the adapter did not understand lately."""
    for name in policy.cloud_names:
        for operation, it in sorted(snapshot.account_of(name).misread.items()):
            if snapshot.now_s - it.last_s < MISREAD_SHOWN_S:
                source = source_name(name, policy)
                yield because(
                    Code.ANSWER_MISREAD, source=source, operation=operation, times=it.times, detail=it.detail
                )


def _jobs_set_aside(snapshot: Snapshot) -> Iterator[Reason]:
    """Warn of jobs on which this program fails."""
    jobs = [bad.id for bad in snapshot.queues.unreadable.values() if bad.set_aside]
    if jobs:
        yield because(Code.JOBS_SET_ASIDE, job=str(min(jobs)), job_count=len(jobs))


def _old_prices(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """Warn of prices that the site says are out of date."""
    for of in policy.node_types:
        if 0.0 < of.price_until_at <= snapshot.wall_at:
            yield because(Code.PRICE_OUT_OF_DATE, node_type=of.name, ended_at=of.price_until_at)


def _drifted_nodes(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """Warn of nodes that were made differently, if the site wants them to stay."""
    if policy.upkeep.drift is not Drift.WARN:
        return
    found: defaultdict[tuple[TypeName, tuple[str, ...]], list[Node]] = defaultdict(list)
    for node in drifted_nodes(snapshot, policy):
        name = node.launch.type_name
        found[name, drift_of(node.launch, policy.types[name])].append(node)
    for (name, changed), nodes in sorted(found.items()):
        slots = tuple(sorted(node.launch.slot for node in nodes)[:NAMES_MAX])
        yield because(Code.NODES_DRIFTED, node_type=name, changed=changed, nodes=slots, node_count=len(nodes))


def _endless_blockers(placement: Placement) -> Iterator[Reason]:
    """Warn if the job that holds up the queue needs more nodes than a limit or a budget ever allows."""
    if placement.stuck is None or placement.stuck.obstacle.kind is not Hindrance.BEYOND_LIMITS:
        return
    job = placement.stuck.job
    behind = sum(len(ids) - placement.count_served(key) for key, ids in placement.batches.items())
    beyond = sum(len(ids) for key, ids in placement.demand.batches.items() if _is_beyond(key, placement))
    yield because(Code.JOB_NEVER_RUNS, job=str(job), job_count=behind + beyond - 1)


def _is_beyond(key: BatchKey, placement: Placement) -> bool:
    why = placement.refusals.infeasible.get((key.shape, key.span_s))
    return why is not None and why.kind is Hindrance.BEYOND_LIMITS


def _unguarded_gpu_nodes(
    snapshot: Snapshot, policy: Policy, placement: Placement, needs: FleetNeeds
) -> tuple[Reason, ...]:
    """Warn if the scheduler may give a node with GPUs to a job that wants none, although cheaper nodes would do.

    The scheduler picks the node with the most free cores; only a property or a queue keeps small jobs off it.
    """
    count_by_type = node_index_of(snapshot).count_by_type
    bought = {purchase.node_type.name for purchase in needs.purchases}
    reasons = list(alarms(snapshot, policy))
    reasons += open_breakers(snapshot, policy)
    reasons += data_alarms(snapshot, policy)
    for node_type in policy.node_types:
        if node_type.gpus == 0 or not (count_by_type.get(node_type.name) or node_type.name in bought):
            continue
        for key, ids in placement.demand.batches.items():
            if (
                key.shape.gpus_per_slot == 0
                and key in placement.served
                and _may_start_on_both(node_type, key.shape, placement)
            ):
                reasons.append(because(Code.GPU_NODE_UNGUARDED, node_type=node_type.name, job=str(ids[0])))
                break
    return tuple(reasons)


def _may_start_on_both(node_type: NodeType, shape: Shape, placement: Placement) -> bool:
    """Whether the job may start on this type and on a type without GPUs too."""

    def may_start(on: NodeType) -> bool:
        return pieces_per_node(on, shape) > 0 and placement.supply.count_slots_for(on, shape.constraint) > 0

    others = (it for it in placement.supply.policy.node_types if it.gpus == 0)
    return may_start(node_type) and any(may_start(other) for other in others)


def _gpu_nodes_taken(snapshot: Snapshot, policy: Policy, placement: Placement) -> Iterator[Reason]:
    """Warn if jobs without GPUs fill the nodes for which the first job with GPUs waits.

    Within the limits another node is bought for that job. In queue order only jobs ahead of it can take that node
    too, so it gets its own in the end.
    """
    waits = min(_jobs_waiting_for_gpus(placement), key=lambda it: it[:2], default=None)
    if waits is None:
        return
    _, job, shape = waits
    for node_type in policy.node_types:
        if (
            node_type.gpus
            and pieces_per_node(node_type, shape)
            and placement.supply.count_slots_for(node_type, shape.constraint)
        ):
            ranks = (
                snapshot.ranks.get(snapshot.slots.rank_of_slot.get(slot, Rank(-1))) for slot in node_type.slots
            )
            taken = [rank.host for rank in ranks if rank is not None and _filled_without_gpus(rank, shape)]
            if taken:
                nodes = tuple(taken[:NAMES_MAX])
                yield because(Code.GPU_NODE_TAKEN, node_type=node_type.name, job=str(job), nodes=nodes)


def _jobs_waiting_for_gpus(placement: Placement) -> Iterator[tuple[int, JobId, Shape]]:
    """The first job of each batch with GPUs that is not fully seated on existing nodes."""
    for key, ids in placement.demand.batches.items():
        if key.shape.gpus_per_slot and key not in placement.demand.put_off:
            seated = ids[: placement.seating.seated.get(key, 0)]
            first = next((id_ for id_ in seated if id_ in placement.seating.short), None)
            if first is not None or len(seated) < len(ids):
                yield -key.priority, first if first is not None else ids[len(seated)], key.shape


def _filled_without_gpus(rank: FluxRank, shape: Shape) -> bool:
    """Whether all its GPUs are free, but too few cores for a piece of the job."""
    unused = rank.online and rank.allocated and rank.gpus_free == rank.gpus > 0
    wanted = rank.cores if shape.exclusive else slots_per_piece(shape) * shape.cores_per_slot
    return unused and rank.cores_free < wanted


def _jobs_across_zones(placement: Placement) -> tuple[Reason, ...]:
    """Warn if a job that wants one zone will start across several: its seats are on nodes that are up and free."""
    reasons = []
    for key, ids in placement.demand.batches.items():
        if key.shape.one_zone:
            served = ids[: min(placement.served.get(key, 0), placement.seating.seated.get(key, 0))]
            for id_ in served:
                zones = {bin_.zone for bin_, _ in placement.seating.seats[id_]}
                if len(zones) > 1:
                    reasons.append(because(Code.JOB_ACROSS_ZONES, job=str(id_), zones=tuple(sorted(zones))))
                    break
    return tuple(reasons)


def _drained_nodes(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """Warn of idle nodes that somebody else drained: no job starts there, and the manager leaves them alone."""
    drained: defaultdict[TypeName, list[Node]] = defaultdict(list)
    for found in drained_nodes(snapshot, policy).values():
        for node in found.nodes:
            drained[node.launch.type_name].append(node)
    for name, nodes in sorted(drained.items()):
        if (price := price_of(nodes, policy)) > 0:
            slots = tuple(sorted(node.launch.slot for node in nodes)[:NAMES_MAX])
            yield because(
                Code.DRAINED_YET_PAID, node_type=name, nodes=slots, node_count=len(nodes), price_per_hour=price
            )


# --- near -------------------------------------------------------------------------------------------------
#
# Where the nodes of a job are, seen from its data: what that costs, and what the other way would cost.


NONE_THERE = "no node there can be bought now"
LIMITS_THERE = "with nodes there not all jobs could be served within the limits"
NO_MORE_THERE = "no further node there can be bought now"
ANY_FREE_NODE = "Flux starts it on any node that is free"


def why_not_near(shape: Shape, policy: Policy) -> str:
    """What is wrong with a job's wish to run near its data; "" if nothing is."""
    if shape.near is None or policy.home_of(shape) is not None:
        return ""
    return f"near: the site has no cloud {shape.near.cloud}; it has {', '.join(policy.cloud_names)}"


def where_figures(shape: Shape, bought: NodeType, placement: Placement) -> Figures:
    """Whether a node for a job is near its data; {} if the job does not say where that is. For any node."""
    policy = placement.supply.policy
    home = policy.home_of(shape)
    if home is None:
        fault = why_not_near(shape, policy)
        return {"not_near": fault} if fault else {}
    return {"near": home} if bought.cloud == home else {"away_from": home}


def figures_of_existing(shape: Shape, node_type: NodeType, placement: Placement) -> Figures:
    """The same for a node that is up, which Flux uses wherever it is."""
    figures = where_figures(shape, node_type, placement)
    return {**figures, "not_near": ANY_FREE_NODE} if "away_from" in figures else figures


def figures_of_new(shape: Shape, span_s: float, bought: NodeType, placement: Placement) -> Figures:
    """The same for a node that is bought for the job, with what it costs and what the other way would cost."""
    known, kind = placement.near_figures, (shape, span_s, bought.name, bought.price_per_hour)
    if kind not in known:
        known[kind] = _weigh(shape, span_s, bought, placement)
    return known[kind]


def _weigh(shape: Shape, span_s: float, bought: NodeType, placement: Placement) -> Figures:
    figures = where_figures(shape, bought, placement)
    home = placement.supply.policy.home_of(shape)
    if home is None:
        return figures
    away = bought.cloud != home
    ways = [(it, left) for it, left in _ways(shape, placement) if (it.cloud == home) == away]
    egress = placement.supply.policy.egress_of(shape)
    if away and not any(left for _, left in ways):
        figures = {**figures, "not_near": NO_MORE_THERE if ways else NONE_THERE}
    elif away and egress is None:
        figures = {**figures, "not_near": LIMITS_THERE}
    if egress is None or not ways:
        return figures
    cost = share_of_nodes(shape, span_s, bought, placement)
    other, name = min((share_of_nodes(shape, span_s, it, placement), it.name) for it, _ in ways)
    known: Figures = {**figures, "cost": cost, "other_cost": other, "egress": _rounded(egress)}
    return {**known, "at_home": name} if away else {**known, "elsewhere": name}


def _ways(shape: Shape, placement: Placement) -> Iterator[tuple[NodeType, int]]:
    """The types on sale that suit a job, and how many nodes of each are left."""
    made = placement.allocation
    for offer, left in zip(made.offers, made.left, strict=True):
        suits = not offer.is_ordered and offer.suits(shape)
        if suits and pieces_per_node(offer.node_type, shape, made.memory_bytes(shape)):
            yield offer.node_type, left


def share_of_nodes(shape: Shape, span_s: float, node_type: NodeType, placement: Placement) -> Decimal:
    """What a job pays of nodes of a type if they are full of such jobs, for as long as its time limit."""
    each = max(1, pieces_per_node(node_type, shape, placement.allocation.memory_bytes(shape)))
    return _rounded(cost_of_node(node_type, span_s) * pieces_of(shape) / each)


def _rounded(amount: Decimal) -> Decimal:
    """An amount to six digits: it is an estimate, and may have any number of them."""
    return Decimal(f"{amount:.6g}")


def describe_near(job: Job, policy: Policy) -> str:
    """Where a job's data is and what its egress costs, or why that does not count; "" if the job says nothing."""
    near = job.shape.near
    faults = [it for it in (job.request.near_fault, why_not_near(job.shape, policy)) if it]
    if near is None or not policy.home_of(job.shape):
        return "; ".join(faults)
    parts = [str(near.cloud)]
    if near.data_bytes:
        parts.append(format_bytes(near.data_bytes))
    egress = policy.egress_of(job.shape)
    parts.append("its egress is not known" if egress is None else f"{format_money(egress)} of egress elsewhere")
    return "; ".join([", ".join(parts), *faults])
