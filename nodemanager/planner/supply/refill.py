"""Do not refill dear nodes: those whose jobs, running and waiting, could run on nodes of a cheaper type.

The simple scheduler gives a job the node with the most free cores, however dear it is. So a stream of small jobs
keeps a GPU node busy long after the last job that needed its GPUs. ``[Policy] consolidate`` keeps new jobs off it
if other nodes that are up have room, or if ``patience`` covers the boot of a cheaper node that can be bought.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from math import ceil

from nodemanager.core.jobs import Job, JobState, Shape
from nodemanager.core.nodes import COMING, LaunchId
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.planner.cost import billing, timings
from nodemanager.planner.cost.run_times import ends_in_s
from nodemanager.planner.scheduler.sched_simple import pieces_in_theory, slots_per_piece
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.supply.supply import Supply
from nodemanager.planner.upkeep.consolidation import (
    DearNode,
    count_up,
    empties_in_time,
    is_emptying,
    may_empty,
    takes_no_more,
)


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
