"""The rule of sched-simple: the planner, what-if and the simulated Flux give what the independent oracle gives."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import Shape
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.ranks_and_queue import QueueIndex, queue_index_of
from nodemanager.planner.seating import Availability, Bin, Seater, pieces_of
from nodemanager.simulation.flux.jobspec import read_request, write_jobspec
from nodemanager.simulation.flux.resource_set import Grant, RankResources, lowest_bits
from nodemanager.simulation.flux.sched_simple import Infeasible, Pool, ResourcesBusy
from nodemanager.whatif.replay.sched_simple import FreeRanks, add_rank, find_fit
from tests.builders import a_job
from tests.sched_simple_oracle import OracleRank, granted

SHAPES = st.builds(
    Shape,
    slots=st.integers(1, 4),
    cores_per_slot=st.integers(1, 5),
    gpus_per_slot=st.sampled_from([0, 0, 1, 2]),
    nodes=st.one_of(st.none(), st.integers(1, 3)),
    exclusive=st.booleans(),
)


@st.composite
def ranks_in_use(draw: st.DrawFn) -> list[OracleRank]:
    made = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        cores, gpus = draw(st.integers(1, 9)), draw(st.sampled_from([0, 0, 2, 4]))
        used = draw(st.one_of(st.just(0), st.integers(0, cores)))
        made.append(OracleRank(number, cores, gpus, cores - used, gpus - min(gpus, used)))
    return made


def by_the_simulated_flux(shape: Shape, ranks: Sequence[OracleRank]) -> dict[int, tuple[int, int]] | None:
    pool = []
    for it in ranks:
        entry = RankResources(it.rank, f"n{it.rank}", it.cores, it.gpus, frozenset(), up=True)
        used = it.cores - it.free_cores, it.gpus - it.free_gpus
        entry.take(Grant(it.rank, lowest_bits(entry.cores_free, used[0]), lowest_bits(entry.gpus_free, used[1])))
        pool.append(entry)
    try:
        grants = Pool(pool).allocate(read_request(write_jobspec(shape)))
    except (ResourcesBusy, Infeasible):
        return None
    return {it.rank: (it.cores.bit_count(), it.gpus.bit_count()) for it in grants}


def by_what_if(shape: Shape, ranks: Sequence[OracleRank]) -> dict[int, tuple[int, int]] | None:
    free: FreeRanks = {}
    for it in ranks:
        add_rank(free, (it.free_cores, it.free_gpus), it.rank)
    empty = {it.rank for it in ranks if it.free_cores == it.cores}
    grants = find_fit(shape, free, (lambda rank: rank in empty) if shape.exclusive else None)
    return {it.rank: (it.cores, it.gpus) for it in grants} if grants is not None else None


def by_the_planner(shape: Shape, ranks: Sequence[OracleRank]) -> dict[int, int] | None:
    bins = [
        Bin(
            SlotName(f"n{it.rank}"),
            Rank(it.rank),
            frozenset(),
            it.free_cores,
            it.free_gpus,
            Availability.UP,
            is_empty=it.free_cores == it.cores,
        )
        for it in ranks
    ]
    job = a_job(1, shape)
    seating = Seater(queue_index_of({job.id: job}, QueueIndex()).batches, bins, {}, {}).seat_all()
    if job.id in seating.short or job.id not in seating.seats:
        return None
    return {bin_.rank: pieces for bin_, pieces in seating.seats[job.id]}


@settings(max_examples=400, deadline=None)
@given(SHAPES, ranks_in_use())
def test_all_three_choose_the_ranks_of_the_oracle(shape: Shape, ranks: list[OracleRank]) -> None:
    expected = granted(write_jobspec(shape), ranks)
    assert by_the_simulated_flux(shape, ranks) == expected
    assert by_what_if(shape, ranks) == expected
    seats = by_the_planner(shape, ranks)
    assert (seats.keys() if seats is not None else None) == (expected.keys() if expected is not None else None)
    assert seats is None or sum(seats.values()) == pieces_of(shape)
