"""The fast scheduler, compared with the simulated Flux's, which is compared with the real one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import JobId, QueuePolicy, Shape
from nodemanager.core.slots import SlotName
from nodemanager.simulation.flux.jobspec import read_request, write_jobspec
from nodemanager.simulation.flux.resource_set import Grant as FullGrant
from nodemanager.simulation.flux.resource_set import RankResources as FullRoom
from nodemanager.simulation.flux.sched_simple import Infeasible, Pool, ResourcesBusy
from nodemanager.whatif.replay.sched_simple import QueuedJob, RankCapacity, Scheduler

SIZES = ((2, 0), (4, 1), (4, 2), (1, 0))
WHOLE = st.sampled_from([True])
SHAPES = st.one_of(
    st.builds(Shape, slots=st.integers(1, 6), cores_per_slot=st.integers(1, 3), gpus_per_slot=st.integers(0, 1)),
    st.builds(Shape, nodes=st.integers(1, 4), slots=st.integers(1, 2), cores_per_slot=st.integers(1, 2)),
    st.builds(Shape, nodes=st.integers(1, 4), slots=st.just(1), cores_per_slot=st.just(1), exclusive=WHOLE),
    st.builds(Shape, slots=st.integers(1, 3), cores_per_slot=st.just(1), exclusive=WHOLE),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), SHAPES),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("up"), st.integers(1, len(SIZES) * 2)),
        st.tuples(st.just("down"), st.integers(1, len(SIZES) * 2)),
    ),
    max_size=40,
)


def _scheduler(policy: QueuePolicy = QueuePolicy.FIFO) -> Scheduler:
    sizes = SIZES * 2
    rooms = {
        rank: RankCapacity(rank, SlotName(f"n{rank}"), cores, gpus, frozenset())
        for rank, (cores, gpus) in enumerate(sizes, start=1)
    }
    return Scheduler(rooms, policy)


def _job(number: int, shape: Shape, *, limit_s: float = 0.0) -> QueuedJob:
    return QueuedJob(JobId(number), str(number), 0.0, 10.0, limit_s, shape, 0)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_it_gives_the_same_ranks_as_the_simulated_flux(steps: list[tuple[str, int | Shape]]) -> None:
    short = _scheduler()
    full = Pool(
        [FullRoom(room.rank, room.host, room.cores, room.gpus, frozenset()) for room in short.ranks.values()]
    )
    line: list[QueuedJob] = []
    held: dict[JobId, tuple[FullGrant, ...]] = {}
    for number, (what, value) in enumerate(steps, start=1):
        if isinstance(value, Shape):
            job = _job(number, value)
            if not short.why_infeasible(value):
                short.submit(job)
                line.append(job)
        elif what == "end" and short.running:
            job = list(short.running.values())[value % len(short.running)]
            short.finish(job)
            for grant in held.pop(job.id):
                full.free(grant)
        elif what in ("up", "down"):
            short.set_up(value, up=what == "up")
            full.set_up(value, up=what == "up")
        started = [(job.id, [grant.rank for grant in job.grants]) for job in short.start_ready(0.0)]
        expected = []
        while line:
            try:
                grants = full.allocate(read_request(write_jobspec(line[0].shape)))
            except ResourcesBusy:
                break
            held[line[0].id] = grants
            expected.append((line.pop(0).id, [grant.rank for grant in grants]))
        assert started == expected


@settings(max_examples=100, deadline=None)
@given(SHAPES)
def test_what_it_says_can_never_be_flux_says_too(shape: Shape) -> None:
    short = _scheduler()
    full = Pool(
        [FullRoom(room.rank, room.host, room.cores, room.gpus, frozenset()) for room in short.ranks.values()]
    )
    try:
        full.allocate(read_request(write_jobspec(shape)))
    except Infeasible:
        assert short.why_infeasible(shape)
    except ResourcesBusy:
        assert not short.why_infeasible(shape)


def test_those_behind_go_first_only_where_they_do_not_delay_the_first() -> None:
    short = _scheduler(QueuePolicy.BACKFILL)
    for rank in short.ranks:
        short.set_up(rank, up=True)
    whole = Shape(nodes=8, slots=1, cores_per_slot=1, exclusive=True)
    first = _job(1, Shape(slots=2, cores_per_slot=4), limit_s=100.0)
    short.submit(first)
    short.submit(_job(2, whole, limit_s=50.0))
    short.submit(_job(3, Shape(slots=1, cores_per_slot=1), limit_s=200.0))
    short.submit(_job(4, Shape(slots=1, cores_per_slot=1), limit_s=90.0))
    assert [job.id for job in short.start_ready(0.0)] == [1, 4]
