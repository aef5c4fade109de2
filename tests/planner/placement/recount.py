"""Random fleets and queues, and an independent recount of what a plan does with them.

    python -m tests.planner.placement.recount --cases 20000 --seed 1

The recount knows nothing of the packing: it adds up, node by node, what the jobs on it want. It fails for cores,
GPUs or memory beyond the node's, for two pieces of one gang on a node, for company on a node that a job wants for
itself, for a slot that does not meet the job's constraint, for nodes of a one-zone job in several zones, for a slot
used twice, for pieces left out of a job that counts as served, and for nodes or prices beyond the limits.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from random import Random

from nodemanager.core.facts import ClaimHeld, CloudListed, QueueSeen, RanksSeen, Tick
from nodemanager.core.jobs import (
    ANYWHERE,
    HasProperty,
    Job,
    JobId,
    JobRequest,
    JobState,
    OnHosts,
    QueuePolicy,
    Shape,
)
from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Billing, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.billing import fleet_price_per_hour
from nodemanager.planner.brain import commit_actions, commit_asks
from nodemanager.planner.budgets import place_within_budget
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.placement import Placement
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Limits, Policy, Rules
from nodemanager.planner.snapshot import Snapshot

GIB = 2**30
NOW_S, WALL_AT = 10_000.0, 1.8e9


def random_fleet(draw: Random) -> tuple[Snapshot, Policy]:
    """A site, its ranks and its queue: few types, now and then with properties, zones, GPUs and tight limits."""
    types = tuple(_random_type(draw, number) for number in range(draw.randint(1, 5)))
    policy = Policy(
        "site",
        "uuid",
        types,
        Limits(draw.choice((3, 10, 1000)), Decimal(draw.choice(("2", "20", "100000")))),
        rules=Rules(queue_policy=draw.choice((QueuePolicy.FIFO, QueuePolicy.BACKFILL))),
    )
    known = advance_to(Snapshot(), Tick(NOW_S, WALL_AT))
    seen = (
        ClaimHeld(NOW_S - 1, ()),
        RanksSeen(NOW_S - 1, tuple(_ranks(draw, types))),
        CloudListed(NOW_S - 1, ()),
        QueueSeen(NOW_S - 1, tuple(_queue(draw, types)), complete=True),
    )
    for fact in seen:
        known = observe(known, fact, policy)
    return advance_to(known, Tick(NOW_S + 60, WALL_AT + 60)), policy


def _random_type(draw: Random, number: int) -> NodeType:
    name = f"t{number}"
    cores = draw.choice((4, 8, 16, 32))
    slots = tuple(SlotName(f"{name}-{place}") for place in range(draw.choice((1, 3, 20, 60))))
    gpus = draw.choice((0, 0, 1, 4))
    price = Decimal(draw.randint(1, 300)) / 100
    properties = frozenset({name, *(("big",) if cores > 8 else ())})
    zones = draw.choice(((), ("a",), ("a", "b")))
    memory = cores * draw.choice((2, 4, 8)) * GIB
    billing = Billing(1.0, 60.0)
    return NodeType(
        TypeName(name), name, cores, gpus, memory, price, billing, slots, properties=properties, zones=zones
    )


def _ranks(draw: Random, types: tuple[NodeType, ...]) -> Iterator[FluxRank]:
    number = 0
    for of in types:
        for slot in of.slots:
            number += 1
            up = draw.random() < 0.1
            free = draw.randint(0, of.cores) if up else 0
            gpus = of.gpus if up and free == of.cores else 0
            yield FluxRank(Rank(number), slot, up, of.cores, of.gpus, free, gpus, up and free < of.cores, up)


def _queue(draw: Random, types: tuple[NodeType, ...]) -> Iterator[Job]:
    number = 0
    for _ in range(draw.randint(1, 8)):
        shape = _random_shape(draw, types)
        priority = draw.choice((16, 16, 16, 20))
        duration_s = draw.choice((0.0, 600.0))
        for _ in range(draw.choice((1, 1, 3, 12, 60))):
            number += 1
            yield Job(JobId(number), JobState.SCHED, JobRequest(shape, duration_s), WALL_AT, priority=priority)


def _random_shape(draw: Random, types: tuple[NodeType, ...]) -> Shape:
    of = draw.choice(types)
    constraint = draw.choice(
        (ANYWHERE, ANYWHERE, ANYWHERE, HasProperty("big"), HasProperty(str(of.name)), OnHosts((str(of.slots[-1]),)))
    )
    return Shape(
        draw.choice((1, 1, 1, 2, 3)),
        draw.randint(1, max(1, of.cores // draw.choice((1, 2, 4)))),
        draw.choice((0, 0, of.gpus)),
        draw.choice((None, None, 1, 2, 4)),
        exclusive=draw.random() < 0.1,
        constraint=constraint,
        memory_bytes_per_slot=draw.choice((0, draw.randint(1, 40) * GIB)),
        one_zone=draw.random() < 0.1,
    )


# --- the recount ------------------------------------------------------------------------------------------


def faults(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    """What is wrong with the placement of the queue, in words."""
    spent = fleet_price_per_hour(snapshot, policy)
    placement = place_within_budget(snapshot, policy, spent)
    placed: dict[JobId, list[str]] = {}  # the node of each piece
    zones: dict[JobId, set[str]] = {}
    for node in placement.assignment.nodes():
        slot, rank = node.place
        of = node.offer.node_type
        if slot not in of.slots or snapshot.ranks[rank].host != slot:
            yield f"{slot} is no slot of {of.name}"
        if snapshot.ranks[rank].online:
            yield f"{slot} is up already"
        jobs = [snapshot.jobs[id_] for id_, _ in placement.assignment.pieces_on(node)]
        yield from _faults_of_node(str(slot), of, jobs, policy)
        for job in jobs:
            placed.setdefault(job.id, []).append(str(slot))
            zones.setdefault(job.id, set()).add(node.zone)
    for id_, seats in placement.seating.seats.items():
        for bin_, pieces in seats:
            placed.setdefault(id_, []).extend([str(bin_.slot)] * pieces)
    yield from _faults_of_jobs(snapshot, placement, placed, zones)
    yield from _faults_of_limits(policy, placement, spent)


def _faults_of_node(slot: str, of: NodeType, jobs: list[Job], policy: Policy) -> Iterator[str]:
    cores = gpus = memory = 0
    for job in jobs:
        shape = job.shape
        slots = shape.slots if shape.nodes is not None and not shape.exclusive else 1
        cores += slots * max(1, shape.cores_per_slot)
        gpus += slots * shape.gpus_per_slot
        memory += slots * shape.memory_bytes_per_slot if _memory_exists(shape, policy) else 0
        if shape.exclusive and len(jobs) > 1:
            yield f"{slot}: job {job.id} wants the node for itself"
        match shape.constraint:
            case HasProperty(name) if name not in of.properties:
                yield f"{slot}: job {job.id} wants {name}"
            case OnHosts(hosts) if slot not in hosts:
                yield f"{slot}: job {job.id} wants {hosts}"
    for name, wanted, has in (
        ("cores", cores, of.cores),
        ("GPUs", gpus, of.gpus),
        ("bytes", memory, of.memory_bytes),
    ):
        if wanted > has:
            yield f"{slot}: {wanted} of {has} {name}"
    for id_, pieces in Counter(job.id for job in jobs if job.shape.nodes is not None).items():
        if pieces > 1:
            yield f"{slot}: {pieces} pieces of the gang {id_}"


def _memory_exists(shape: Shape, policy: Policy) -> bool:
    """Whether the site's slots could ever hold all pieces with their memory: if not, memory does not count."""
    slots = shape.slots if shape.nodes is not None else 1
    wanted = slots * shape.memory_bytes_per_slot
    could = 0
    for of in policy.node_types:
        match shape.constraint:
            case HasProperty(name):
                count = len(of.slots) if name in of.properties else 0
            case OnHosts(hosts):
                count = sum(str(slot) in hosts for slot in of.slots)
            case _:
                count = len(of.slots)
        each = 10**6
        for size, has in (
            (1 if shape.exclusive else slots, None),
            (max(1, shape.cores_per_slot) * (1 if shape.exclusive else slots), of.cores),
            (shape.gpus_per_slot * (1 if shape.exclusive else slots), of.gpus),
            (wanted, of.memory_bytes),
        ):
            each = min(each, has // size) if has is not None and size else each
        could += count * (min(1, each) if shape.nodes is not None or shape.exclusive else each)
    return could >= (shape.nodes if shape.nodes is not None else shape.slots)


def _faults_of_jobs(
    snapshot: Snapshot, placement: Placement, placed: dict[JobId, list[str]], zones: dict[JobId, set[str]]
) -> Iterator[str]:
    for key, ids in placement.demand.batches.items():
        for id_ in ids[: placement.count_served(key)]:
            shape = snapshot.jobs[id_].shape
            wanted = shape.slots if shape.nodes is None else shape.nodes
            nodes = placed.get(id_, [])
            if len(nodes) != wanted:
                yield f"job {id_} has {len(nodes)} of {wanted} pieces"
            if (shape.nodes is not None or shape.exclusive) and len(set(nodes)) != len(nodes):
                yield f"job {id_} has two pieces on one node"
            if shape.one_zone and len(zones.get(id_, set())) > 1:
                yield f"job {id_} lies in {sorted(zones[id_])}"


def _faults_of_limits(policy: Policy, placement: Placement, spent: Decimal) -> Iterator[str]:
    bought = [node for node in placement.assignment.nodes() if not node.offer.is_ordered]
    slots = Counter(node.place[0] for node in placement.assignment.nodes())
    yield from (f"{slot} is used {count} times" for slot, count in slots.items() if count > 1)
    price = sum((node.offer.node_type.price_per_hour for node in bought), Decimal(0))
    if len(bought) > policy.limits.nodes_max:
        yield f"{len(bought)} nodes of {policy.limits.nodes_max}"
    if bought and spent + price > policy.limits.price_per_hour_max:
        yield f"{spent + price} an hour of {policy.limits.price_per_hour_max}"


def bought_again(snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes the next plan would buy once those of this one are ordered. No job came or went."""
    made = plan(snapshot, policy)
    ordered = commit_actions(commit_asks(snapshot, made, policy), made, policy)
    later = advance_to(ordered, Tick(snapshot.now_s + 1, snapshot.wall_at + 1))
    before = place_within_budget(snapshot, policy, fleet_price_per_hour(snapshot, policy))
    if before.stuck is not None or before.failed_from:
        return 0  # at a limit another search may serve more jobs
    planned = sum(not node.offer.is_ordered for node in before.assignment.nodes())
    if len(later.nodes) - len(snapshot.nodes) < planned:
        return 0  # the first plan could not order them all
    after = place_within_budget(later, policy, fleet_price_per_hour(later, policy))
    return sum(not node.offer.is_ordered for node in after.assignment.nodes())


def main() -> int:
    """Check so many random fleets, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    bad = again = 0
    for seed in range(asked.seed, asked.seed + asked.cases):
        snapshot, policy = random_fleet(Random(seed))
        found = list(faults(snapshot, policy))
        bad += bool(found)
        more = bought_again(snapshot, policy)
        again += bool(more)
        if found or more:
            print(f"seed {seed}: {'; '.join(found[:3])}{f'; buys {more} more' if more else ''}", flush=True)
    print(f"{asked.cases} fleets: {bad} break a rule, {again} buy more nodes for the same jobs")
    return 1 if bad or again else 0


if __name__ == "__main__":
    sys.exit(main())
