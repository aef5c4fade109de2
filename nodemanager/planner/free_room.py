"""Free room on existing nodes: what takes jobs now, and what will soon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from decimal import Decimal
from math import ceil, inf

from nodemanager.core.drains import drain_text, is_our_drain
from nodemanager.core.jobs import ANYWHERE, Job, JobId, JobState, NodeOrder, Shape
from nodemanager.core.nodes import COMING, USABLE, FluxRank, Launch, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.planner import billing, timings
from nodemanager.planner.consolidation import (
    DearNode,
    count_up,
    empties_in_time,
    free_while_emptying,
    is_emptying,
    may_empty,
    takes_no_more,
)
from nodemanager.planner.node_health import gets_no_work, is_on_its_way_out
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, QueueIndex, RankIndex, queue_index_of, rank_index_of
from nodemanager.planner.seating import (
    Availability,
    Bin,
    cores_of_piece,
    pieces_in_theory,
    pieces_of,
    slots_per_piece,
)
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.supply import Supply
from nodemanager.planner.timings import ends_in_s

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


# --- refill -----------------------------------------------------------------------------------------------
#
# Do not refill dear nodes: those whose jobs, running and waiting, could run on nodes of a cheaper type.
#
# The simple scheduler gives a job the node with the most free cores, however dear it is. So a stream of small
# jobs keeps a GPU node busy long after the last job that needed its GPUs. ``[Policy] consolidate`` keeps new jobs
# off it if other nodes that are up have room, or if ``patience`` covers the boot of a cheaper node that can be
# bought.


def dear_nodes(supply: Supply) -> Mapping[LaunchId, DearNode]:
    """The dear nodes that may empty. Empty if the site does not consolidate, or has one type only."""
    if not supply.policy.upkeep.consolidate or len(supply.policy.node_types) < 2:
        return {}
    return _Search(supply).find()


def nodes_withheld(known: Mapping[LaunchId, DearNode], snapshot: Snapshot, policy: Policy) -> Collection[LaunchId]:
    """The dear nodes that no waiting job gets: those that empty already, and full ones that begin to empty now.

    ``known``: from :func:`dear_nodes`.
    """
    dear = [snapshot.nodes[id_] for id_, it in known.items() if it.why is not None]
    if not dear:
        return ()
    under_way = sum(map(takes_no_more, snapshot.nodes.values()))
    more = policy.upkeep.disruption.count_of(count_up(snapshot, policy)) - under_way
    next_ones = sorted((node for node in dear if not is_emptying(node)), key=lambda node: node.id)[: max(0, more)]
    return frozenset(node.id for node in dear if is_emptying(node) or (node in next_ones and _is_full(node)))


def _is_full(node: Node) -> bool:
    """Whether no waiting job can start there before one that runs there ends."""
    return node.rank is not None and node.rank.cores_free == 0 and node.rank.allocated


def _memory_on(job: Job, rank: Rank) -> int:
    """The memory that a job asks for on a rank."""
    shape = job.shape
    cores = sum(it.cores for it in job.allocations if it.rank == rank)
    slots = slots_per_piece(shape) if shape.exclusive else cores // max(1, shape.cores_per_slot)
    return slots * shape.memory_bytes_per_slot


class _Search:
    """Finds the dear nodes of one fleet."""

    def __init__(self, supply: Supply) -> None:
        self._supply, self._snapshot, self._policy = supply, supply.snapshot, supply.policy
        self._suits: dict[tuple[TypeName, Shape], bool] = {}
        self._can_replace_type: dict[tuple[TypeName, TypeName], bool] = {}
        queue = queue_index_of(supply.snapshot.jobs, supply.snapshot.indexes.queue)
        self._waiting = {key.shape for key in queue.batches}
        self._fleet_price = sum(
            (billing.price_per_hour(node.launch, supply.policy) for node in supply.snapshot.nodes.values()),
            Decimal(0),
        )
        self._coming = self._count_coming()
        self._allowance = supply.allowance()

    def find(self) -> Mapping[LaunchId, DearNode]:
        jobs: defaultdict[Rank, list[Job]] = defaultdict(list)
        for job in self._snapshot.jobs.values():
            if job.state in (JobState.RUN, JobState.CLEANUP):
                for at in job.allocations:
                    jobs[at.rank].append(job)
        found = {}
        for node in self._snapshot.nodes.values():
            node_type = self._policy.types.get(node.launch.type_name)
            if node_type is None or not may_empty(node, self._snapshot, self._policy):
                continue
            price = billing.price_per_hour(node.launch, self._policy)
            held = jobs.get(node.launch.rank, ())
            instead = [
                it
                for it in self._cheaper_than(price, node_type)
                if all(self._is_suited(it, job.shape) for job in held) and self._can_replace(it, node_type)
            ]
            if instead:
                may_begin = is_emptying(node) or self._empties_in_time(node, node_type, held)
                why = self._why_not_refilled(node, price, instead, held) if may_begin else None
                found[node.id] = DearNode(frozenset(it.name for it in instead), why)
        return found

    def _empties_in_time(self, node: Node, node_type: NodeType, jobs: Collection[Job]) -> bool:
        """Whether it begins to empty now. If not, it stays, and takes jobs at no cost."""
        empties_in_s = max((ends_in_s(job, self._snapshot) for job in jobs), default=0.0)
        return empties_in_time(node, node_type, empties_in_s, self._snapshot, self._policy)

    def _cheaper_than(self, price: Decimal, than: NodeType) -> Iterator[NodeType]:
        for node_type in self._policy.node_types:
            if node_type.name != than.name and self._supply.cheapest(node_type).price_per_hour < price:
                yield node_type

    def _can_replace(self, node_type: NodeType, other: NodeType) -> bool:
        """Whether the type suits all waiting jobs that another type suits. There may be many of both."""
        known = self._can_replace_type.get((node_type.name, other.name))
        if known is None:
            known = all(
                self._is_suited(node_type, shape) for shape in self._waiting if self._is_suited(other, shape)
            )
            self._can_replace_type[node_type.name, other.name] = known
        return known

    def _is_suited(self, node_type: NodeType, shape: Shape) -> bool:
        """Whether the type has slots on which a piece of a job may run."""
        known = self._suits.get((node_type.name, shape))
        if known is None:
            known = (
                pieces_in_theory(shape, node_type.cores, node_type.gpus) > 0
                and shape.memory_bytes_per_slot * slots_per_piece(shape) <= node_type.memory_bytes
                and self._supply.count_slots_for(node_type, shape.constraint) > 0
                and self._policy.home_of(shape) in (None, node_type.cloud)
            )
            self._suits[node_type.name, shape] = known
        return known

    def _why_not_refilled(
        self, node: Node, price: Decimal, instead: Collection[NodeType], jobs: Collection[Job]
    ) -> Reason | None:
        """The cheapest way to run its work on nodes that can be had within ``patience``; None if there is none."""
        held = [it for job in jobs for it in job.allocations if it.rank == node.launch.rank]
        cores, gpus = sum(it.cores for it in held), sum(it.gpus for it in held)
        memory = sum(_memory_on(job, node.launch.rank) for job in jobs)
        ways = []
        for node_type in instead:
            of_each = (cores, node_type.cores), (gpus, node_type.gpus), (memory, node_type.memory_bytes)
            count = max(1, *(ceil(used / one_has) for used, one_has in of_each if one_has))
            cost = count * self._supply.cheapest(node_type).price_per_hour
            if self._is_worth_it(price - cost) and self._can_be_had(node_type, count):
                ways.append((cost, node_type.name))
        if not ways:
            return None
        cost, name = min(ways)
        return because(Code.NOT_REFILLED, price_per_hour=price, node_type=name, cores=cores, instead_per_hour=cost)

    def _is_worth_it(self, saved: Decimal) -> bool:
        return saved > 0 and saved >= Decimal(str(self._policy.upkeep.consolidate_gain)) * self._fleet_price

    def _can_be_had(self, node_type: NodeType, count: int) -> bool:
        """Whether so many nodes boot or can be bought, and a boot takes no longer than ``patience``."""
        supply, name = self._supply, node_type.name
        boot_s = timings.boot_s(self._snapshot, name)
        if boot_s is None or boot_s > self._policy.rules.patience_s:
            return False
        price = supply.cheapest(node_type).price_per_hour
        by_price = int(supply.price_left // price) if price > 0 else count
        can_buy = min(supply.count_free(name), supply.nodes_left, by_price) if supply.on_sale.get(name) else 0
        by_cloud = self._allowance.count_left(supply.cheapest(node_type)) if can_buy > 0 else None
        can_buy = can_buy if by_cloud is None else min(can_buy, by_cloud)
        return self._coming.get(name, 0) + max(0, can_buy) >= count

    def _count_coming(self) -> Mapping[TypeName, int]:
        found: defaultdict[TypeName, int] = defaultdict(int)
        for node in node_index_of(self._snapshot).to_check.values():
            if node.state in COMING:
                found[node.launch.type_name] += 1
        return found
