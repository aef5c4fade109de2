"""Free room on existing nodes: what takes jobs now, and what will soon."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from math import inf

from nodemanager.core.drains import drain_text, is_our_drain
from nodemanager.core.jobs import ANYWHERE, JobId, NodeOrder
from nodemanager.core.nodes import USABLE, FluxRank, Launch, LaunchId, NodeState
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.planner.cost import timings
from nodemanager.planner.health.node_health import gets_no_work
from nodemanager.planner.scheduler.sched_simple import cores_of_piece, pieces_of
from nodemanager.planner.scheduler.seating import Availability, Bin
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, QueueIndex
from nodemanager.planner.state.rank_index import RankIndex, rank_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.upkeep.consolidation import free_while_emptying, is_emptying
from nodemanager.planner.upkeep.due import is_on_its_way_out

# If jobs need more than this part of the nodes with room, each gets a bin, whether a job could get it or not.
REACHABLE_PART = 0.25


def free_bins(
    snapshot: Snapshot,
    policy: Policy,
    *,
    all_go: bool = False,
    batches: Mapping[BatchKey, Sequence[JobId]] | None = None,
    withheld: Container[LaunchId] = (),
) -> list[Bin]:
    """A bin for every node that takes jobs now, and for every draining node that could be kept.

    ``all_go``: the budget is spent, so no node is kept and none takes another job. ``batches``: the jobs to seat;
    nodes that are up and that none of these can get are left out. ``withheld``: nodes that get no jobs.
    """
    node_index = node_index_of(snapshot)
    bins: list[Bin] = []

    def bin_of(rank: FluxRank) -> Bin | None:
        owner = node_index.launch_of_rank.get(rank.rank)
        node = snapshot.nodes[owner] if owner is not None else None
        takes_jobs = node is None or _takes_jobs(node, snapshot, policy, all_go)
        return _bin_of_rank(rank, policy, node, snapshot.queues.node_order) if takes_jobs else None

    rank_index = rank_index_of(snapshot.ranks, snapshot.indexes.ranks, policy)
    by_worst_fit = snapshot.queues.node_order is NodeOrder.MOST_FREE
    bins += _reachable_bins(rank_index, batches if by_worst_fit else None, bin_of)
    for node in node_index.to_check.values() if not all_go else ():
        if node.id in withheld:
            continue
        if is_emptying(node) and node.state is NodeState.BUSY and (kept := _emptying_bin(node, snapshot, policy)):
            bins.append(kept)
        if not (_may_be_kept(node) or _will_be_undrained(node)):
            continue
        node_type = policy.types.get(node.launch.type_name)
        if node_type is None or snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s):
            continue
        if is_on_its_way_out(node, snapshot, policy):
            continue
        bins.append(_empty_bin(node_type, node.launch, Availability.KEPT, snapshot.queues.node_order))
    return bins


def _reachable_bins(
    index: RankIndex,
    batches: Mapping[BatchKey, Sequence[JobId]] | None,
    bin_of: Callable[[FluxRank], Bin | None],
) -> list[Bin]:
    """The bins of nodes that are up and that these jobs may get; None stands for any jobs.

    By worst fit, each piece of a job gets the bin with the most room of those that suit it. Before the n-th piece
    is seated, at most n - 1 bins have changed, and these only moved back in the order. So one of the first n bins
    that suit a shape is chosen for it, and for n pieces in all, no shape gets any other.
    """
    pieces, shapes = 0, dict.fromkeys(key.shape for key in batches or ())
    for key, ids in (batches or {}).items():
        pieces += pieces_of(key.shape) * len(ids)
    few = pieces * len(shapes) <= len(index.by_room) * REACHABLE_PART
    if batches is None or not few or any(shape.one_zone for shape in shapes):
        return [it for it in map(bin_of, index.with_room.values()) if it is not None]
    made: dict[Rank, Bin | None] = {}
    found: dict[Rank, Bin] = {}
    for shape in shapes:
        suited = -1 if shape.constraint is ANYWHERE else index.matches.of(shape.constraint)
        least, left = 1 if shape.exclusive else cores_of_piece(shape), pieces
        for _, _, rank in index.by_room:
            if rank not in made:
                made[rank] = bin_of(index.with_room[rank])
            bin_ = made[rank]
            if bin_ is None or (suited >= 0 and not suited >> index.matches.index(rank) & 1):
                continue
            if bin_.cores < least:
                break  # the others have even fewer
            if bin_.pieces_that_fit(shape):
                found[rank] = bin_
                left -= 1
                if left == 0:
                    break
    return list(found.values())


def _takes_jobs(node: Node, snapshot: Snapshot, policy: Policy, all_go: bool) -> bool:
    if all_go or node.state not in USABLE:
        return False
    return not (snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s))


def _emptying_bin(node: Node, snapshot: Snapshot, policy: Policy) -> Bin | None:
    """The room on a busy node that takes no jobs now because it empties, but would if it were undrained."""
    node_type = policy.types.get(node.launch.type_name)
    if node_type is None or not _takes_jobs(node, snapshot, policy, all_go=False):
        return None
    cores, gpus = free_while_emptying(node, snapshot)
    at, zone = node.launch, node.launch.zone
    return Bin(
        at.slot,
        at.rank,
        node_type.properties,
        cores,
        gpus,
        Availability.KEPT,
        is_empty=False,
        zone=zone,
        order=snapshot.queues.node_order,
        used=node_type.cores - cores,
    )


def bins_free_soon(
    snapshot: Snapshot, policy: Policy, queue_index: QueueIndex, withheld: Container[LaunchId] = ()
) -> list[Bin]:
    """A bin for every full node that will have room sooner than a new node would boot, but not if it is withheld.

    Only ends of jobs with a time limit count. An overdue job is left out: it may run on for long.
    """
    horizon_s = {name: patience_s(snapshot, policy, name) for name in policy.types}
    latest_s = max(horizon_s.values(), default=0.0)
    freed: dict[Rank, tuple[int, int, float]] = {}
    for ends_at, job in queue_index.job_ends:
        in_s = ends_at - snapshot.wall_at
        if in_s > latest_s:
            break
        if in_s >= 0.0:
            for held in snapshot.jobs[job].allocations:
                cores, gpus, _ = freed.get(held.rank, (0, 0, 0.0))
                freed[held.rank] = cores + held.cores, gpus + held.gpus, in_s
    bins = []
    for number, (cores, gpus, in_s) in freed.items():
        rank = snapshot.ranks.get(number)
        type_and_index = policy.index_of_slot.get(rank.host) if rank is not None else None
        if rank is None or type_and_index is None or not (rank.online and rank.schedulable) or rank.cores_free > 0:
            continue
        node = _node_of_rank(number, snapshot)
        if node is not None and node.id in withheld:
            continue
        if in_s <= horizon_s[type_and_index[0]]:
            properties = policy.types[type_and_index[0]].properties
            whole = cores >= rank.cores
            zone = _zone_of(node)
            order, used = snapshot.queues.node_order, rank.cores - cores
            soon = Availability.SOON
            bins.append(Bin(rank.host, number, properties, cores, gpus, soon, whole, in_s, zone, order, used))
    return bins


def room_changes_s(snapshot: Snapshot, policy: Policy, queue_index: QueueIndex) -> float:
    """When time alone changes what :func:`bins_free_soon` offers; infinity if it never does.

    Either a running job's time limit comes within the patience of a node type, or it passes.
    """
    horizons_s = sorted({patience_s(snapshot, policy, name) for name in policy.types})
    least_s = inf
    for ends_at, _ in queue_index.job_ends if horizons_s else ():
        in_s = ends_at - snapshot.wall_at
        if in_s >= 0.0:
            waits_s = [in_s - horizon_s for horizon_s in horizons_s if in_s > horizon_s] or [in_s]
            least_s = min(least_s, *waits_s, in_s)
            if in_s > horizons_s[-1] + least_s:
                break
    return snapshot.now_s + least_s


def patience_s(snapshot: Snapshot, policy: Policy, type_name: TypeName) -> float:
    """How many seconds to wait for room on a busy node before a node of the type is bought."""
    return (timings.boot_s(snapshot, type_name) or 0.0) + policy.rules.patience_s


def _node_of_rank(rank: Rank, snapshot: Snapshot) -> Node | None:
    id_ = node_index_of(snapshot).launch_of_rank.get(rank)
    return snapshot.nodes[id_] if id_ is not None else None


def _zone_of(node: Node | None) -> str:
    """The zone of a node; "" if the rank has no node of ours."""
    return node.launch.zone if node is not None else ""


def _bin_of_rank(rank: FluxRank, policy: Policy, node: Node | None, order: NodeOrder) -> Bin:
    type_and_index = policy.index_of_slot.get(rank.host)
    properties = policy.types[type_and_index[0]].properties if type_and_index is not None else frozenset()
    return Bin(
        rank.host,
        rank.rank,
        properties,
        rank.cores_free,
        rank.gpus_free,
        Availability.UP,
        is_empty=not rank.allocated and rank.given_back is None,
        zone=_zone_of(node),
        order=order,
        used=rank.cores - rank.cores_free,
    )


def _empty_bin(node_type: NodeType, launch: Launch, standing: Availability, order: NodeOrder) -> Bin:
    cores, gpus = node_type.cores, node_type.gpus
    return Bin(launch.slot, launch.rank, node_type.properties, cores, gpus, standing, zone=launch.zone, order=order)


def _may_be_kept(node: Node) -> bool:
    rank = node.rank
    if node.state is not NodeState.DRAINING or rank is None or not rank.online:
        return False
    return rank.drain_reason in (None, drain_text(node.id))


def _will_be_undrained(node: Node) -> bool:
    """Whether it is idle under a stale drain of ours: it is undrained now."""
    rank = node.rank
    if node.state is not NodeState.IDLE or rank is None or not rank.online:
        return False
    return is_our_drain(rank.drain_reason)
