"""Jobs are seated as flux-core's sched-simple seats them: compared with the simulated one, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.jobs import HasProperty, Job, JobId, Shape
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.ranks_and_queue import QueueIndex, key_of, queue_index_of
from nodemanager.planner.seating import Availability, Bin, Seater, Seating
from nodemanager.simulation.flux.jobspec import read_request, write_jobspec
from nodemanager.simulation.flux.resource_set import Grant, RankResources, lowest_bits
from nodemanager.simulation.flux.sched_simple import Infeasible, Pool, ResourcesBusy
from tests.builders import a_job, nodes, tasks, whole_nodes

GPU = frozenset({"gpu"})


def a_bin(
    number: int, *, cores: int = 4, gpus: int = 0, standing: Availability = Availability.UP, whole: bool = True
) -> Bin:
    properties = GPU if gpus else frozenset[str]()
    return Bin(SlotName(f"n{number}"), Rank(number), properties, cores, gpus, standing, whole)


def seated(jobs: Sequence[Job], *bins: Bin) -> Seating:
    return Seater(queue_index_of({job.id: job for job in jobs}, QueueIndex()).batches, bins, {}, {}).seat_all()


def where(seating: Seating, job: int) -> list[str]:
    return [bin_.slot for bin_, _ in seating.seats.get(JobId(job), ())]


def test_the_node_with_the_most_free_cores_comes_first_then_the_most_gpus_then_the_lowest_rank() -> None:
    bins = [a_bin(1, cores=2), a_bin(2), a_bin(3, gpus=2), a_bin(4)]
    seating = seated([a_job(number, tasks(1, cores=4)) for number in (1, 2, 3)], *bins)
    assert [where(seating, job) for job in (1, 2, 3)] == [["n3"], ["n2"], ["n4"]]


def test_small_jobs_spread_and_leave_no_node_free_for_a_large_one() -> None:
    """If packed tightly, the third would fit; but the scheduler does not pack."""
    jobs = [a_job(1, tasks(1)), a_job(2, tasks(1)), a_job(3, tasks(1, cores=4))]
    seating = seated(jobs, a_bin(1), a_bin(2))
    assert [where(seating, job) for job in (1, 2, 3)] == [["n1"], ["n2"], []]


def test_what_is_up_is_filled_before_what_is_kept_and_that_before_what_is_free_soon() -> None:
    bins = [a_bin(1, standing=Availability.SOON), a_bin(2, standing=Availability.KEPT), a_bin(3, cores=2)]
    seating = seated([a_job(number, tasks(1, cores=2)) for number in (1, 2, 3, 4, 5)], *bins)
    assert [where(seating, job) for job in (1, 2, 3, 4, 5)] == [["n3"], ["n2"], ["n2"], ["n1"], ["n1"]]


def test_a_gang_sits_on_different_nodes_and_is_told_what_it_lacks() -> None:
    seating = seated([a_job(1, nodes(3, cores=1)), a_job(2, nodes(3, cores=1))], a_bin(1), a_bin(2))
    assert where(seating, 1) == where(seating, 2) == ["n1", "n2"]
    assert {job: short for job, (_, short) in seating.short.items()} == {1: 1, 2: 1}


def test_a_job_of_a_kind_that_failed_gets_no_seat_from_there_on() -> None:
    jobs = {job.id: job for job in (a_job(number, whole_nodes(1)) for number in (1, 2, 3))}
    key = key_of(jobs[JobId(1)])
    failed = {(key.shape, key.span_s): (-16, 2)}
    seating = Seater(
        queue_index_of(jobs, QueueIndex()).batches, [a_bin(1), a_bin(2), a_bin(3)], failed, {}
    ).seat_all()
    assert list(seating.seats) == [1]


SHAPES = st.builds(
    Shape,
    slots=st.integers(1, 4),
    cores_per_slot=st.integers(1, 5),
    gpus_per_slot=st.sampled_from([0, 0, 0, 1, 2]),
    nodes=st.one_of(st.none(), st.integers(1, 3)),
    exclusive=st.booleans(),
    constraint=st.sampled_from([Shape(1, 1).constraint, HasProperty("gpu")]),
).filter(lambda shape: shape.nodes is not None or not shape.exclusive)


@st.composite
def rooms(draw: st.DrawFn) -> list[RankResources]:
    """Ranks, some of them partly in use."""
    made = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        gpus = draw(st.sampled_from([0, 0, 2, 4]))
        room = RankResources(
            number, f"n{number}", draw(st.integers(1, 9)), gpus, GPU if gpus else frozenset(), up=True
        )
        used = draw(st.integers(0, room.cores))
        room.take(Grant(number, lowest_bits(room.cores_free, used), lowest_bits(room.gpus_free, min(gpus, used))))
        made.append(room)
    return made


@given(rooms(), st.lists(st.tuples(SHAPES, st.sampled_from([16, 16, 20])), max_size=8), st.randoms())
def test_seats_are_those_that_the_scheduler_gives(
    given_rooms: list[RankResources], wanted: list[tuple[Shape, int]], draw: Random
) -> None:
    """Compared up to the first job that must wait: the scheduler starts none behind it."""
    jobs = [a_job(number, shape, priority=priority) for number, (shape, priority) in enumerate(wanted, 1)]
    bins = [
        Bin(
            SlotName(room.host),
            Rank(room.rank),
            room.properties,
            room.cores_left,
            room.gpus_left,
            Availability.UP,
            is_empty=room.cores_left == room.cores,
        )
        for room in given_rooms
    ]
    draw.shuffle(bins)
    seating = seated(jobs, *bins)
    pool = Pool(given_rooms)
    for job in sorted(jobs, key=lambda job: (-job.priority, job.id)):
        try:
            grants = _granted(pool, job)
        except ResourcesBusy:
            assert job.id not in seating.seats or job.id in seating.short
            return
        assert job.id not in seating.short
        assert sorted(where(seating, job.id)) == sorted(f"n{grant.rank}" for grant in grants)


def _granted(pool: Pool, job: Job) -> tuple[Grant, ...]:
    request = read_request(write_jobspec(job.shape))
    try:
        return pool.allocate(request)
    except Infeasible as never:
        raise ResourcesBusy from never
