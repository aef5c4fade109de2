"""Why each waiting job waits."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from types import MappingProxyType

from nodemanager.core.jobs import Job, JobId, Shape
from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.planner.explain.near import figures_of_existing, figures_of_new, where_figures
from nodemanager.planner.placement.fleet_needs import NAMES_MAX
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.scheduler.seating import Availability
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.obstacle import Obstacle
from nodemanager.planner.state.queue_index import BatchKey, key_of
from nodemanager.planner.supply.offers import is_slot_specific

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
        settling: Reason | None,
        delays: Mapping[SlotName, Reason] = MappingProxyType({}),
    ) -> None:
        """``delays``: of nodes to come, from :func:`boot_delays`."""
        self._jobs = jobs
        self._place = place
        self._settling = settling
        self._waits_for: dict[TypeName, tuple[str, ...]] = {}
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

    def count_by_reason(self) -> Mapping[str, int]:
        """Count the jobs by the code of their reason. Served jobs all count as "node_ordered"."""
        counts: Counter[str] = Counter(reason.code for reason in self._placement.demand.withheld.values())
        for key, ids in self._placement.demand.batches.items():
            served = self._placement.served.get(key, 0)
            counts[Code.NODE_ORDERED] += served
            if served < len(ids):
                # The first unserved job may be the stuck one, which has its own reason.
                counts[self._reason(key, ids, served).code] += 1
            if served + 1 < len(ids):
                counts[self._reason(key, ids, served + 1).code] += len(ids) - served - 1
        return +counts

    def _with_jobs_in_the_way(self, obstacle: Obstacle, shape: Shape) -> Reason:
        """The obstacle's reason. If slots of a type are not free, it names the first few jobs that hold them."""
        name, policy = obstacle.node_type, self._placement.supply.policy
        if name is None or is_slot_specific(shape.constraint, policy):
            return obstacle.reason
        if name not in self._waits_for:
            self._waits_for[name] = tuple(map(str, self._jobs_on_slots_of(name)))
        jobs = self._waits_for[name]
        return obstacle.reason.with_figures(jobs=jobs) if jobs else obstacle.reason

    def _jobs_on_slots_of(self, name: TypeName) -> list[JobId]:
        """The first few jobs that hold slots of a type: they run there, or its nodes boot for them."""
        supply = self._placement.supply
        slots = frozenset(supply.policy.types[name].slots)
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
        if latest is Availability.NEW and self._settling is not None:
            return self._settling
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
