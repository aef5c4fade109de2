"""Why each node type is bought or not; and where the scheduler may do otherwise than a job, or the site, wants.

Where a node with GPUs stands open to jobs that want none, or is taken by such; where a job that wants one zone may
start across several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.nodes import FluxRank
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.planner.observe.node_health import alarms
from nodemanager.planner.outcome import NAMES_MAX, FleetNeeds
from nodemanager.planner.placement.flux_scheduler import slots_per_piece
from nodemanager.planner.placement.infeasibility import pieces_per_node
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


def type_reasons(policy: Policy, layout: Placement, found: FleetNeeds) -> Mapping[TypeName, Reason]:
    """For each type: that it is bought, or the first thing that speaks against it."""
    bought = Counter(purchase.node_type.name for purchase in found.purchases)
    prices = [purchase.node_type.price_per_hour for purchase in found.purchases]
    price = sum(prices, Decimal(0))
    instead = because("another_mix_is_cheaper", node_types=tuple(sorted(bought)), price_per_hour=price)
    return {
        node_type.name: because("bought", nodes=bought[node_type.name])
        if bought[node_type.name]
        else _why_not(node_type, layout, instead if bought else None)
        for node_type in policy.node_types
    }


def _why_not(node_type: NodeType, layout: Placement, instead: Reason | None) -> Reason:
    market, name = layout.supply, node_type.name
    if name in market.blocked:
        return market.blocked[name]
    if instead is None:
        return _nothing_bought(layout)
    short = [work.shape for work in layout.allocation.works]
    if not any(
        pieces_per_node(node_type, shape, layout.allocation.memory_bytes(shape))
        and market.count_slots_for(node_type, shape.constraint)
        for shape in short
    ):
        return because("fits_no_job_that_is_short")
    if market.count_free(name) <= 0:
        return because("no_free_slot", node_type=name, slots=market.rank_index.slots.get(name, 0), short=0)
    return instead


def _nothing_bought(layout: Placement) -> Reason:
    if layout.stuck is not None:
        return because("job_held_up", job=str(layout.stuck[0]), why=layout.stuck[2].code)
    held_up = [(key, why) for key, why in layout.unserved.items() if key in layout.served]
    if not held_up:
        return because("nothing_is_short")
    key, why = held_up[0]
    return because("job_held_up", job=str(layout.demand.batches[key][layout.served[key]]), why=why.code)


def warnings(snapshot: Snapshot, policy: Policy, layout: Placement, found: FleetNeeds) -> tuple[Reason, ...]:
    """What the site should mend: see the module."""
    return (
        *_unguarded(snapshot, policy, layout, found),
        *_taken(snapshot, policy, layout),
        *_across_zones(layout),
    )


def _unguarded(snapshot: Snapshot, policy: Policy, layout: Placement, found: FleetNeeds) -> tuple[Reason, ...]:
    """Where the scheduler may give a node with GPUs to a job that wants none, though cheaper ones would do.

    It gives a job the node with the most free cores; only a property or a queue keeps small jobs off.
    """
    there = node_index_of(snapshot).count_by_type
    bought = {purchase.node_type.name for purchase in found.purchases}
    told = list(alarms(snapshot, policy))
    told += [why for why in layout.supply.blocked.values() if why.code == "breaker_open"]
    for node_type in policy.node_types:
        if node_type.gpus == 0 or not (there.get(node_type.name) or node_type.name in bought):
            continue
        for key, ids in layout.demand.batches.items():
            if key.shape.gpus_per_slot == 0 and key in layout.served and _open_to(node_type, key.shape, layout):
                told.append(because("gpu_node_unguarded", node_type=node_type.name, job=str(ids[0])))
                break
    return tuple(told)


def _open_to(node_type: NodeType, shape: Shape, layout: Placement) -> bool:
    """Whether the job may start there, and on a type without GPUs as well."""

    def may_start(on: NodeType) -> bool:
        return pieces_per_node(on, shape) > 0 and layout.supply.count_slots_for(on, shape.constraint) > 0

    others = (it for it in layout.supply.policy.node_types if it.gpus == 0)
    return may_start(node_type) and any(may_start(other) for other in others)


def _taken(snapshot: Snapshot, policy: Policy, layout: Placement) -> Iterator[Reason]:
    """Where jobs that use no GPU fill the nodes that the first job waits for which needs one.

    For that one another node is bought, as far as the limits go. In queue order only jobs ahead of it can take that
    one too, so it has its own in the end.
    """
    waits = min(_wait_for_gpus(layout), key=lambda it: it[:2], default=None)
    if waits is None:
        return
    _, job, shape = waits
    for node_type in policy.node_types:
        if (
            node_type.gpus
            and pieces_per_node(node_type, shape)
            and layout.supply.count_slots_for(node_type, shape.constraint)
        ):
            ranks = (snapshot.ranks.get(snapshot.rank_of_slot.get(slot, Rank(-1))) for slot in node_type.slots)
            taken = [rank.host for rank in ranks if rank is not None and _filled_without_gpus(rank, shape)]
            if taken:
                nodes = tuple(taken[:NAMES_MAX])
                yield because("gpu_node_taken", node_type=node_type.name, job=str(job), nodes=nodes)


def _wait_for_gpus(layout: Placement) -> Iterator[tuple[int, JobId, Shape]]:
    """Of each kind of job that wants GPUs the first that does not sit on what is up."""
    for key, ids in layout.demand.batches.items():
        if key.shape.gpus_per_slot and key not in layout.demand.put_off:
            seated = ids[: layout.seating.seated.get(key, 0)]
            first = next((id_ for id_ in seated if id_ in layout.seating.short), None)
            if first is not None or len(seated) < len(ids):
                yield -key.priority, first if first is not None else ids[len(seated)], key.shape


def _filled_without_gpus(rank: FluxRank, shape: Shape) -> bool:
    """Whether all its GPUs are free, and a piece of the job finds no place for want of cores."""
    unused = rank.online and rank.allocated and rank.gpus_free == rank.gpus > 0
    wanted = rank.cores if shape.exclusive else slots_per_piece(shape) * shape.cores_per_slot
    return unused and rank.cores_free < wanted


def _across_zones(layout: Placement) -> tuple[Reason, ...]:
    """Where a job that wants one zone will start on nodes of several: they are up and free, and it fits on them."""
    told = []
    for key, ids in layout.demand.batches.items():
        if key.shape.one_zone:
            served = ids[: min(layout.served.get(key, 0), layout.seating.seated.get(key, 0))]
            for id_ in served:
                zones = {bin_.zone for bin_, _ in layout.seating.seats[id_]}
                if len(zones) > 1:
                    told.append(because("job_across_zones", job=str(id_), zones=tuple(sorted(zones))))
                    break
    return tuple(told)
