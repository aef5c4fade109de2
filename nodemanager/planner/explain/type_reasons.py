"""Explain why each node type is bought or not, and warn if the scheduler may act against the site's intent.

It may give a node with GPUs to jobs that want none, or start a job across zones that wants a single one. Also warn
of idle nodes that cost money because somebody drained them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import FluxRank
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, Rank, TypeName
from nodemanager.core.upkeep.rules import Drift
from nodemanager.planner.backoff.allowance import unavailable_sizes
from nodemanager.planner.backoff.boot_failures import open_breakers
from nodemanager.planner.backoff.drain_breaker import users_put_off
from nodemanager.planner.backoff.zones import block_on, zones_of
from nodemanager.planner.cost.fleet import nodes_max_of_type
from nodemanager.planner.health.node_health import alarms, drained_nodes, price_of
from nodemanager.planner.placement.fleet_needs import NAMES_MAX, FleetNeeds
from nodemanager.planner.placement.infeasibility import pieces_per_node
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.scheduler.sched_simple import slots_per_piece
from nodemanager.planner.stacked.stack import idle_below_a_busy_node
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.obstacle import Hindrance
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.upkeep.due import drift_of, drifted_nodes
from nodemanager.planner.upkeep.unsafe_data import data_alarms


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
    short = [work.shape for work in placement.allocation.works]
    if not any(
        pieces_per_node(node_type, shape, placement.allocation.memory_bytes(shape))
        and supply.count_slots_for(node_type, shape.constraint)
        for shape in short
    ):
        return because(Code.FITS_NO_JOB_THAT_IS_SHORT)
    if supply.count_free(name) <= 0 and supply.is_held_back(name):
        return because(Code.TYPE_LIMIT, node_type=name, nodes_max=nodes_max_of_type(node_type) or 0)
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
        *_endless_blockers(placement),
        *_unguarded_gpu_nodes(snapshot, policy, placement, needs),
        *_gpu_nodes_taken(snapshot, policy, placement),
        *_jobs_across_zones(placement),
        *_drained_nodes(snapshot, policy),
        *idle_below_a_busy_node(snapshot, policy),
        *users_put_off(snapshot).values(),
        *_drifted_nodes(snapshot, policy),
        *_old_prices(snapshot, policy),
    )


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
