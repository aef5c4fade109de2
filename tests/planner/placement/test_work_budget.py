"""No user's queue may take all the time of a plan, or end it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.jobs import (
    All,
    AnyOf,
    Constraint,
    HasProperty,
    Job,
    JobId,
    JobRequest,
    Near,
    Not,
    OnHosts,
    OnRanks,
    QueuePolicy,
    Shape,
)
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName
from nodemanager.planner import demand, placement
from nodemanager.planner.demand import PACKINGS_IF_NEAR, STEPS_MAX, STEPS_PER_BATCH, batches_beyond
from nodemanager.planner.packing import greedy, packing
from nodemanager.planner.packing.types import Packed
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import CloudRules, Policy
from nodemanager.planner.ranks_and_queue import BatchKey, QueueIndex, queue_index_of
from nodemanager.planner.serving import SEARCH_STEPS_MAX
from nodemanager.planner.snapshot import Snapshot
from nodemanager.planner.supply import current_supply
from tests.benchmarks import hostile_queues
from tests.builders import a_job, a_policy, a_snapshot, a_type, tasks
from tests.planner.strategies import a_rank_that_is

SLOTS = 300


def _site(slots: int = SLOTS, **changes: object) -> Policy:
    return a_policy(a_type("n", slots=slots), nodes_max=slots, price_per_hour_max=Decimal(10**6), **changes)


def _jobs(constraints: Iterable[Constraint], userid: int, first: int = 1) -> list[Job]:
    shapes = [tasks(1, where=constraint) for constraint in constraints]
    return [a_job(number, shape, userid=userid) for number, shape in enumerate(shapes, first)]


def _some_ranks(number: int) -> Constraint:
    chosen = sorted(random.Random(number).sample(range(1, SLOTS + 1), 84))
    return OnRanks((",".join(map(str, chosen)),))


def _beyond(jobs: list[Job], policy: Policy) -> dict[JobId, Reason]:
    snapshot = a_snapshot(policy, jobs=jobs)
    batches = queue_index_of(snapshot.jobs, QueueIndex()).in_order
    beyond = batches_beyond(batches, current_supply(snapshot, policy, Decimal(0)))
    return {id_: beyond[key] for key, ids in batches.items() if key in beyond for id_ in ids}


def test_an_ordinary_queue_is_considered_whole() -> None:
    plain = [a_job(number, Shape(1, 1 + number % 4), userid=number % 50) for number in range(1, 5000)]
    some = _jobs([HasProperty("gpu"), Not(OnHosts(("n[1-20]",))), OnRanks(("1-40",))], 1, 5000)
    assert _beyond(plain + some, _site()) == {}


def test_jobs_that_each_name_many_ranks_are_considered_whole() -> None:
    assert _beyond(_jobs((_some_ranks(number) for number in range(220)), 1), _site()) == {}


def test_the_first_shapes_of_the_user_with_too_many_are_considered() -> None:
    jobs = _jobs((_some_ranks(number) for number in range(600)), 1)
    beyond = _beyond(jobs, _site())
    first = min(beyond)
    assert sorted(beyond) == list(range(first, 601))
    assert beyond[first].code == "too_many_shapes"
    assert beyond[first].figures == {"shapes": 600, "considered": first - 1}
    assert first > 50


@pytest.mark.parametrize(
    ("count", "constraint"),
    [
        (600, _some_ranks),
        (2_000, lambda number: Not(OnHosts((f"n{1 + number % SLOTS},n{1 + number // SLOTS}",)))),
        (10_000, lambda number: Not(HasProperty(f"nobody-{number}"))),
        (4_000, lambda number: AnyOf(tuple(HasProperty(f"p{number}-{term}") for term in range(250)))),
        (50, lambda number: OnRanks((",".join(map(str, range(number, 20_000, 2))),))),
        (2_000, lambda number: OnHosts((f"r{number}[1-999999],n[1-999999]",))),
    ],
)
def test_no_one_s_shapes_put_off_another_s(count: int, constraint: Callable[[int], Constraint]) -> None:
    jobs = _jobs(map(constraint, range(count)), 1)
    others = [a_job(20_000 + number, tasks(1, cores=number), userid=1 + number) for number in range(1, 5)]
    others.append(a_job(30_000, tasks(1, where=OnRanks(("3-5",))), userid=9))
    beyond = _beyond([*jobs, *others], _site())
    assert beyond
    assert max(beyond) <= count


def test_two_users_with_too_many_get_about_as_much() -> None:
    ahead = _jobs((Not(HasProperty(f"a{number}")) for number in range(10_000)), 1)
    behind = _jobs((Not(HasProperty(f"b{number}")) for number in range(10_000)), 2, 20_000)
    beyond = Counter(id_ < 20_000 for id_ in _beyond(ahead + behind, _site()))
    assert abs(beyond[True] - beyond[False]) <= 1


def test_a_constraint_that_is_too_long_to_read_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "STEPS_MAX", 50_000)
    long = OnRanks((",".join(str(2 * rank) for rank in range(20_000)),))
    assert set(_beyond(_jobs([HasProperty("gpu"), long, HasProperty("x")], 1), _site())) == {2, 3}


def test_jobs_that_wait_for_their_turn_say_so_and_others_get_their_nodes() -> None:
    policy = _site()
    jobs = [*_jobs((_some_ranks(number) for number in range(600)), 1), a_job(1000, tasks(4), userid=2)]
    made = plan(a_snapshot(policy, jobs=jobs), policy)
    assert made.jobs[JobId(1)].code == "node_ordered"
    assert made.jobs[JobId(600)].code == "too_many_shapes"
    assert made.jobs[JobId(1000)].code == "node_ordered"


def test_once_the_first_have_started_the_next_are_considered() -> None:
    jobs = _jobs((_some_ranks(number) for number in range(900)), 1)
    first = min(_beyond(jobs, _site()))
    rest = [job for job in jobs if job.id >= first]
    assert min(_beyond(rest, _site())) > first


# --- fuzzed queues ----------------------------------------------------------------------------------------

FUZZED = 2_000
BATCH = 100


def _a_constraint(draw: random.Random, depth: int = 0) -> Constraint:
    kind = draw.randrange(4 if depth > 3 else 7)
    low = draw.randrange(40)
    high = draw.choice([low, low + 5, 10**9])
    match kind:
        case 0:
            return HasProperty(draw.choice(["gpu", "cloud1", "gpu2", "", "^", "p" * 300, f"p{low}"]))
        case 1:
            return OnRanks(
                tuple(draw.choice(["", f"{low}", f"{low}-{high + 1}", "[0-3,7]"]) for _ in range(low % 4))
            )
        case 2:
            lists = [
                "",
                "gpu1",
                f"cloud[{low}-{high}]",
                f"cloud[0{low}-{high}]x",
                " , ",
                f"gpu{low},cloud[1-2,2-3]",
            ]
            return OnHosts(tuple(draw.choice(lists) for _ in range(low % 4)))
        case 3:
            return All(())
        case 4:
            return Not(_a_constraint(draw, depth + 1))
        case _:
            parts = tuple(_a_constraint(draw, depth + 1) for _ in range(draw.choice([0, 1, 2, 3, 60 >> depth])))
            return All(parts) if draw.random() < 0.5 else AnyOf(parts)


def _a_shape(draw: random.Random) -> Shape:
    return Shape(
        slots=draw.choice([1, 1, 2, 5, 2**31 - 1]),
        cores_per_slot=draw.choice([1, 1, 2, 4, 9, 2**31 - 1]),
        gpus_per_slot=draw.choice([0, 0, 0, 1, 2]),
        nodes=draw.choice([None, None, 1, 2, 2**31 - 1]),
        exclusive=draw.random() < 0.2,
        constraint=_a_constraint(draw),
        memory_bytes_per_slot=draw.choice([0, 0, 1, 2**33, 2**60]),
        one_zone=draw.random() < 0.1,
    )


@pytest.mark.parametrize("begin", range(0, FUZZED, BATCH))
def test_a_fuzzed_queue_gets_a_plan_within_the_budget(begin: int) -> None:
    for seed in range(begin, begin + BATCH):
        draw = random.Random(seed)
        order = draw.choice(list(QueuePolicy))
        policy = a_policy(nodes_max=draw.choice([0, 2, 6]), queue_policy=order)
        shapes = [_a_shape(draw) for _ in range(draw.choice([1, 5, 40]))]
        jobs = [
            a_job(
                number,
                draw.choice(shapes),
                userid=draw.choice([1, 2]),
                duration_s=draw.choice([0.0, 60.0, 1e9]),
                priority=draw.choice([16, 16, 31]),
            )
            for number in range(1, draw.choice([2, 10, 80]))
        ]
        ranks = [
            a_rank_that_is(draw.choice(["away", "idle", "partly busy"]), policy, slot)
            for slot in ("cloud1", "gpu1")
        ]
        snapshot = a_snapshot(policy, jobs=jobs, ranks=ranks)
        made = plan(snapshot, policy)
        assert {id_ for id_, _ in made.jobs.items()} == set(snapshot.jobs), seed
        assert made.basis is not None
        considered = dict.fromkeys(made.basis.placement.batches)
        assert _steps(considered, snapshot, policy) <= STEPS_MAX, seed


def _steps(batches: dict[BatchKey, None], snapshot: Snapshot, policy: Policy) -> int:
    """The steps of a plan for these batches."""
    work = demand.WorkEstimate(current_supply(snapshot, policy, Decimal(0)))
    steps = [work.add(key) for key in batches]
    assert None not in steps
    return work.steps


def test_a_batch_without_a_constraint_takes_no_steps_for_reading() -> None:
    policy = _site()
    snapshot = a_snapshot(policy, jobs=[a_job(1), a_job(2, tasks(1, where=HasProperty("gpu")))])
    plain, constrained = queue_index_of(snapshot.jobs, QueueIndex()).in_order
    work = demand.WorkEstimate(current_supply(snapshot, policy, Decimal(0)))
    work.add(plain)
    assert work.reading == 0
    work.add(constrained)
    assert work.reading > 0


def test_a_batch_whose_data_is_in_one_of_several_clouds_counts_as_several() -> None:
    """It is packed several times. A cloud that the site lacks, or a site with a single cloud, changes nothing."""
    count = STEPS_MAX // (STEPS_PER_BATCH * PACKINGS_IF_NEAR) + 1

    def considered(cloud: str, policy: Policy) -> int:
        shapes = [replace(tasks(1), near=Near(CloudName(cloud), size)) for size in range(1, count + 1)]
        return count - len(_beyond([a_job(number, it) for number, it in enumerate(shapes, 1)], policy))

    of_two = _site(clouds=dict.fromkeys(map(CloudName, ("east", "west")), CloudRules()))
    assert 0 < considered("east", of_two) < count
    assert considered("mars", of_two) == count
    assert considered("default", _site()) == count


@pytest.mark.parametrize("case", ["near, limit", "5,000 priorities, limit"])
def test_a_hostile_queue_is_packed_a_bounded_number_of_times(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in the pairs of work and nodes that all packings compare."""
    steps = [0]
    pack = greedy.pack_by_patterns

    def counting(*given: Any) -> Packed:
        made = pack(*given)
        steps[0] += len(given[0]) * len(given[1])
        return made

    monkeypatch.setattr(packing, "pack_by_patterns", counting)
    snapshot, policy = hostile_queues.CASES[case]()
    made = plan(snapshot, policy)
    assert made.count_by_reason()["node_ordered"] >= 500
    assert steps[0] <= SEARCH_STEPS_MAX


def test_no_user_s_shapes_use_up_the_search_of_another_behind_them() -> None:
    """At a limit, under a policy that fills gaps: the last user's job is tried, and does not fit."""
    types = hostile_queues.site()
    jobs = hostile_queues.queue(hostile_queues.with_data(900), 9_000)
    last = replace(jobs[-1], id=JobId(9_001), userid=2000, request=JobRequest(tasks(2), 3600.0))
    snapshot, policy = hostile_queues.world(types, [*jobs, last], QueuePolicy.BACKFILL, nodes_max=100)
    made = plan(snapshot, policy)
    assert made.count_by_reason()["too_much_to_plan"] > 0
    assert made.jobs[last.id].code in {"node_ordered", "nodes_max"}


@pytest.mark.parametrize("order", list(QueuePolicy))
def test_plans_in_a_row_serve_the_whole_queue(order: QueuePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one plan has no time for, a later one reaches, as jobs leave the queue."""
    monkeypatch.setattr(placement, "SEARCH_STEPS_MAX", 10_000)
    types, jobs = hostile_queues.site(4), hostile_queues.queue(hostile_queues.with_data(40), 100)
    plans = 0
    while jobs:
        made = plan(*hostile_queues.world(types, jobs, order, nodes_max=4))
        waiting = [job for job in jobs if made.jobs[job.id].code != "node_ordered"]
        assert len(waiting) < len(jobs)
        assert jobs[0] not in waiting
        jobs, plans = waiting, plans + 1
    assert plans > 1
