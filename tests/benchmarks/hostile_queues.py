"""Queues that are hard to place, against sites with several clouds and many node types: for ``bench_limits``.

Each case is a snapshot with its policy. ``test_work_budget`` counts the work of some of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from nodemanager.core.facts import ClaimHeld, CloudListed, Fact, QueueSeen, RanksSeen, Tick
from nodemanager.core.jobs import (
    AnyOf,
    HasProperty,
    Job,
    JobId,
    JobRequest,
    JobState,
    Near,
    OnRanks,
    QueuePolicy,
    Shape,
)
from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Billing, CloudName, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.policy import CloudRules, Limits, Policy, Rules
from nodemanager.planner.snapshot import Snapshot

GIB = 2**30
NOW_S, WALL_AT = 10_000.0, 1.8e9
CORES = (4, 8, 16, 32, 48, 64, 96, 128)
CLOUDS = "east", "west", "north"
BACKFILL = QueuePolicy.BACKFILL

World = tuple[Snapshot, Policy]


def site(
    each: int = 8, slots: int = 1000, *, clouds: Sequence[str] = CLOUDS, zones: bool = False
) -> list[NodeType]:
    """So many types of each cloud, with so many slots each."""
    return [_node_type(cloud, place, index, slots, zones=zones)
            for place, cloud in enumerate(clouds) for index in range(each)]  # fmt: skip


def _node_type(cloud: str, place: int, index: int, slots: int, *, zones: bool) -> NodeType:
    cores, name = CORES[index % len(CORES)], f"{cloud}-{index}"
    price = Decimal("0.01") + Decimal("0.0048") * cores * (10 + place)
    return NodeType(
        TypeName(name), name, cores, 0, cores * (2, 4, 8)[index // len(CORES) % 3] * GIB,
        price + Decimal("0.001") * index * ((place * 7 + index) % 5), Billing(1.0, 60.0),
        tuple(SlotName(f"{name}-{number}") for number in range(slots)), frozenset({f"t{index}", cloud}),
        cloud=CloudName(cloud), zones=tuple(f"{cloud}-{zone}" for zone in "abc") if zones else (),
    )  # fmt: skip


def near(number: int, shape: Shape, clouds: Sequence[str] = CLOUDS) -> Shape:
    """The shape, with data in one of the clouds if the number is odd."""
    draw = random.Random(number)
    home = Near(CloudName(draw.choice(clouds)), draw.randint(1, 500) * GIB)
    return replace(shape, near=home) if number % 2 else shape


def plain(count: int, **changes: Any) -> list[Shape]:
    """So many shapes, each with another amount of memory."""
    draw = random.Random(1)
    sizes = draw.sample(range(1, 16 * 1024), count)
    return [Shape(1, draw.choice((1, 1, 2, 3, 5, 8)), memory_bytes_per_slot=it * 2**20, **changes) for it in sizes]


def with_data(count: int, clouds: Sequence[str] = CLOUDS, **changes: Any) -> list[Shape]:
    """The same, every other one with data in one of the clouds."""
    return [near(number, shape, clouds) for number, shape in enumerate(plain(count, **changes))]


def gangs(count: int, **changes: Any) -> list[Shape]:
    draw = random.Random(2)
    return [replace(shape, nodes=draw.choice((2, 3, 5, 8, 50)), **changes) for shape in plain(count)]


def of_types(count: int) -> list[Shape]:
    """Each with a constraint of three properties."""
    draw = random.Random(3)

    def where() -> AnyOf:
        return AnyOf(tuple(HasProperty(f"t{draw.randrange(8)}") for _ in range(3)))

    return [near(number, replace(shape, constraint=where())) for number, shape in enumerate(plain(count))]


def of_ranks(count: int) -> list[Shape]:
    """Each with a constraint of 84 ranks."""
    draw = random.Random(4)

    def where() -> OnRanks:
        return OnRanks((",".join(map(str, sorted(draw.sample(range(1, 2400), 84)))),))

    return [near(number, replace(shape, constraint=where())) for number, shape in enumerate(plain(count))]


def queue(
    shapes: Sequence[Shape], jobs: int, *, users: int = 1, queues: int = 0, priorities: int = 1, held: bool = False
) -> list[Job]:
    """So many jobs of these shapes in turn."""
    of_queue = [f"q{number}" for number in range(queues)] or [""]
    return [
        Job(
            JobId(number), JobState.SCHED,
            JobRequest(shapes[number % len(shapes)], 3600.0, queue=of_queue[number % len(of_queue)]), WALL_AT,
            urgency=0 if held else 16, priority=16 + number % priorities, userid=1000 + number % users,
        )
        for number in range(1, jobs + 1)
    ]  # fmt: skip


def world(
    types: Sequence[NodeType],
    jobs: Sequence[Job],
    order: QueuePolicy = QueuePolicy.FIFO,
    *,
    nodes_max: int = 10**6,
    **policy: Any,
) -> World:
    """What a manager knows that has just begun."""
    names = list(dict.fromkeys(it.cloud for it in types))
    rules = dict.fromkeys(names, CloudRules(egress_price_per_gib=Decimal("0.09")))
    limits = Limits(nodes_max, Decimal(10**8))
    of = Policy("bench", "uuid", tuple(types), limits, rules=Rules(queue_policy=order), clouds=rules, **policy)
    slots = [(slot, it.cores) for it in types for slot in it.slots]
    ranks = (
        FluxRank(Rank(number), slot, online=False, cores=cores) for number, (slot, cores) in enumerate(slots, 1)
    )
    known = advance_to(Snapshot(), Tick(NOW_S, WALL_AT))
    facts: tuple[Fact, ...] = (
        ClaimHeld(NOW_S - 1, ()),
        RanksSeen(NOW_S - 1, tuple(ranks)),
        *(CloudListed(NOW_S - 1, (), cloud=name) for name in names),
        QueueSeen(NOW_S - 1, tuple(jobs), complete=True),
    )
    for fact in facts:
        known = observe(known, fact, of)
    return advance_to(known, Tick(NOW_S + 60, WALL_AT + 60)), of


def of_all(shapes: Sequence[Shape], jobs: int = 9_000, **changes: Any) -> World:
    """A queue of these shapes, against three clouds with eight types each."""
    of_queue = {name: changes.pop(name) for name in ("users", "queues", "priorities", "held") if name in changes}
    return world(site(), queue(shapes, jobs, **of_queue), **changes)


DOZEN = [f"c{number}" for number in range(12)]
BUDGETS = {("user", "day"): Decimal("0.5")}

CASES: Mapping[str, Callable[[], World]] = {
    "near": lambda: of_all(with_data(900)),
    "near, 3,000 shapes": lambda: of_all(with_data(3_000)),
    "near, limit": lambda: of_all(with_data(900), nodes_max=100),
    "near, limit, backfill": lambda: of_all(with_data(900), nodes_max=100, order=BACKFILL),
    "near, limit, 20 priorities": lambda: of_all(with_data(300), nodes_max=200, priorities=20),
    "near, few slots": lambda: world(site(slots=20), queue(with_data(900), 9_000)),
    "near, 300 types": lambda: world(site(100, 100), queue(with_data(300), 9_000)),
    "near, 12 clouds": lambda: world(site(4, clouds=DOZEN), queue(with_data(900, DOZEN), 9_000)),
    "near, unknown clouds": lambda: of_all(with_data(3_000, ("mars", "venus"))),
    "near, exclusive": lambda: of_all(with_data(600, exclusive=True)),
    "near, properties": lambda: of_all(of_types(3_000)),
    "near, ranks": lambda: world(site(slots=100), queue(of_ranks(600), 3_000)),
    "near, one zone": lambda: world(
        site(zones=True), queue([near(n, it) for n, it in enumerate(gangs(600, one_zone=True))], 2_000)
    ),
    "one zone": lambda: world(site(zones=True), queue(gangs(2_000, one_zone=True), 2_000)),
    "one zone, 300 types": lambda: world(site(100, 20, zones=True), queue(gangs(2_000, one_zone=True), 2_000)),
    "one zone, backfill": lambda: world(
        site(zones=True), queue(gangs(600, one_zone=True), 2_000), BACKFILL, nodes_max=200
    ),
    "memory, limit": lambda: of_all(plain(900), nodes_max=100),
    "memory, limit, backfill": lambda: of_all(plain(3_000), nodes_max=100, order=BACKFILL),
    "exclusive": lambda: of_all(plain(3_000, exclusive=True)),
    "wide": lambda: of_all([Shape(1, 1, nodes=500 + number) for number in range(300)], 300),
    "more nodes than can be": lambda: of_all([Shape(1, 1, nodes=2**31 - 1 - n) for n in range(3_000)], 3_000),
    "2,000 queues, backfill": lambda: of_all(plain(20), 10_000, queues=2_000, nodes_max=50, order=BACKFILL),
    "2,000 users with budgets": lambda: of_all(plain(20), 10_000, users=2_000, budgets=BUDGETS),
    "5,000 priorities, limit": lambda: of_all(plain(20), 5_000, priorities=5_000, nodes_max=50),
    "5,000 priorities, backfill": lambda: of_all(plain(20), 5_000, priorities=5_000, nodes_max=50, order=BACKFILL),
    "any peer": lambda: of_all(with_data(900), bursts=True),
    "50,000 held": lambda: of_all(plain(20), 50_000, users=2_000, held=True),
}
