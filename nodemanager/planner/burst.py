"""Send waiting jobs to peers if that is better than own nodes: ``[Policy] burst = peers``.

The placement has decided where each job would run here. A job that starts on nodes that are up stays. Any other is
weighed against the peers by cost and wait: the cheapest way wins that starts the job within its patience; if there
is none, the one that waits least. Of equal ways, own nodes come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.elsewhere.peers import (
    UNKNOWN_WAIT_S,
    PeerOffer,
    cheapest_in_time,
    expected_wait_s,
    format_wait,
)
from nodemanager.core.facts import PeersSeen
from nodemanager.core.jobs import Job, JobId, Shape
from nodemanager.core.orders import DelegateJob
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner import timings
from nodemanager.planner.frozen import replace
from nodemanager.planner.placement import Placement
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, queue_index_of, updated_queue_index
from nodemanager.planner.seating import Availability
from nodemanager.planner.snapshot import Snapshot

JOBS_PER_PLAN_MAX = 100


@dataclass(frozen=True, slots=True)
class WayToRun:
    """One way to run a job: own nodes, or a peer."""

    name: str
    wait_s: float
    price_per_hour: Decimal
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.name}: {self.why_not}"
        return f"{self.name}: wait {format_wait(self.wait_s)}, {self.price_per_hour.normalize():f} an hour"


@dataclass(frozen=True, slots=True)
class Bursts:
    """The jobs to send to peers now, and the ways not taken for each job that was weighed and stays."""

    orders: tuple[DelegateJob, ...] = ()
    not_taken: Mapping[JobId, Sequence[WayToRun]] = field(default_factory=dict)

    def describe_not_taken(self, job: JobId) -> str:
        """The ways not taken for a job that stays, with their figures; "" if it was not weighed."""
        return _describe(self.not_taken.get(job, ()))


def jobs_away(snapshot: Snapshot) -> Mapping[JobId, Reason]:
    """The jobs that are at a peer, or on their way to one, although their users did not ask for it."""
    seen = snapshot.peers.seen
    taken = seen.taken if seen is not None else frozenset()
    away = {*taken, *(id_ for id_, until_s in snapshot.peers.ordered.items() if until_s > snapshot.now_s)}
    return {id_: because(Code.SENT_TO_A_PEER) for id_ in sorted(away) if id_ in snapshot.jobs}


def without_jobs(snapshot: Snapshot, away: Mapping[JobId, Reason]) -> Snapshot:
    """The snapshot in which these jobs ask for no nodes here."""
    index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    gone = [snapshot.jobs[id_] for id_ in away]
    fewer = updated_queue_index(index, snapshot.jobs, gone, ())
    waiting = {id_: why for id_, why in away.items() if id_ not in index.withheld}
    fewer = replace(fewer, withheld={**index.withheld, **waiting})
    return replace(snapshot, indexes=replace(snapshot.indexes, queue=fewer))


def bursts(snapshot: Snapshot, policy: Policy, placement: Placement) -> Bursts:
    """Weigh the jobs against the peers, in the order of the queue. What one gets, the next does not find free."""
    seen = snapshot.peers.seen
    if not policy.bursts or seen is None or not seen.peers:
        return Bursts()
    offers = list(seen.peers)
    orders: list[DelegateJob] = []
    not_taken: dict[JobId, Sequence[WayToRun]] = {}
    for key, ids, index in _jobs_in_order(placement):
        job = snapshot.jobs[ids[index]]
        if job.userid != seen.userid or job.held_by_us:
            continue
        own = own_way(snapshot, policy, placement, key, ids, index)
        peers = [_way_to(offer, job, seen, snapshot.wall_at) for offer in offers]
        best = cheapest_in_time([own, *(way for way in peers if not way.why_not)], job.request.patience_s)
        if best is own or best.wait_s == UNKNOWN_WAIT_S:
            not_taken[job.id] = peers
            continue
        reason = because(
            Code.PEER_CHOSEN,
            peer=best.name,
            wait=format_wait(best.wait_s),
            price_per_hour=best.price_per_hour,
            others=_describe([own, *(way for way in peers if way is not best)]),
        )
        orders.append(DelegateJob(job.id, best.name, job.urgency, reason))
        offers = [_less(offer, job.shape) if offer.name == best.name else offer for offer in offers]
        if len(orders) == JOBS_PER_PLAN_MAX:
            break
    return Bursts(tuple(orders), not_taken)


def _describe(ways: Iterable[WayToRun]) -> str:
    return "; ".join(map(str, ways))


def _jobs_in_order(placement: Placement) -> Iterator[tuple[BatchKey, Sequence[JobId], int]]:
    for key, ids in placement.demand.batches.items():
        if key not in placement.demand.put_off:
            yield from ((key, ids, index) for index in range(len(ids)))


def own_way(
    snapshot: Snapshot, policy: Policy, placement: Placement, key: BatchKey, ids: Sequence[JobId], index: int
) -> WayToRun:
    """How a job would run on own nodes. A boot time that was never measured counts as ``boot_timeout``."""
    if index >= placement.count_served(key):
        return WayToRun("own nodes", UNKNOWN_WAIT_S, Decimal(0))
    latest, wait_s, price = Availability.UP, 0.0, Decimal(0)
    for bin_, _ in placement.seating.seats.get(ids[index], ()):
        latest, wait_s = max(latest, bin_.availability), max(wait_s, bin_.free_in_s)
    for _, offer in placement.assignment.nodes_of(key, index):
        latest = max(latest, offer.availability)
        boot_s = timings.boot_s(snapshot, offer.node_type.name)
        wait_s = max(wait_s, policy.timing.boot_timeout_s if boot_s is None else boot_s)
        if offer.availability is Availability.NEW:
            price += _share(offer.node_type, key.shape)
    name = {Availability.NEW: "new nodes", Availability.COMING: "booting nodes"}.get(latest, "own nodes")
    return WayToRun(name, wait_s, price)


def _share(node_type: NodeType, shape: Shape) -> Decimal:
    """What a job pays of a new node: the part of its cores that it uses, or all of it."""
    if shape.exclusive or shape.nodes is not None:
        return node_type.price_per_hour
    cores = min(cores_of(shape), node_type.cores)
    return node_type.price_per_hour * cores / node_type.cores


def cores_of(shape: Shape) -> int:
    """Count the cores of a job."""
    return shape.slots * shape.cores_per_slot * (shape.nodes or 1)


def _way_to(offer: PeerOffer, job: Job, seen: PeersSeen, now_at: float) -> WayToRun:
    cores, nodes = cores_of(job.shape), job.shape.nodes or 1
    price = offer.price_per_core_hour * cores
    fits_now = cores <= offer.cores_free and nodes <= offer.nodes_free
    wait_s = expected_wait_s(fits_now=fits_now, waiting=offer.waiting, starts_at=offer.starts_at, now_at=now_at)
    return WayToRun(offer.name, wait_s, price, _why_not(offer, job, seen))


def _why_not(offer: PeerOffer, job: Job, seen: PeersSeen) -> str:
    if offer.why_not:
        return offer.why_not
    if offer.name in seen.refused.get(job.id, ()):
        return "it refused the job"
    if job.queue and offer.queues is not None and job.queue not in offer.queues:
        return f"queue {job.queue} takes no jobs there"
    if cores_of(job.shape) > offer.cores or (job.shape.nodes or 1) > offer.nodes:
        return "the job is larger than it"
    if not offer.jobs_left:
        return "it has jobs_max of our jobs"
    return ""


def _less(offer: PeerOffer, shape: Shape) -> PeerOffer:
    """The rest of an offer after a job: the next one waits behind it, for a time that nobody knows."""
    cores, nodes = cores_of(shape), shape.nodes or 0
    if cores > offer.cores_free or nodes > offer.nodes_free or offer.waiting:
        return replace(offer, waiting=offer.waiting + 1, starts_at=None, jobs_left=offer.jobs_left - 1)
    return replace(
        offer,
        cores_free=offer.cores_free - cores,
        nodes_free=offer.nodes_free - nodes,
        jobs_left=offer.jobs_left - 1,
    )
