"""No run on any site costs less than the lower bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.slots import NodeType
from nodemanager.planner import billing
from nodemanager.planner.seating import pieces_of, pieces_that_fit
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.replay.lower_bounds import UnitDemand, WindowCover
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.workload import Processors, TraceJob, shape_for
from tests.builders import a_type
from tests.whatif.sites import SITE, a_workload, unseen

PENCE = 1e-6  # the error of sums of thousands of rounded terms
CORES = (1, 2, 4, 16)
SHARES = ("0.5", "1", "1.5")  # of a core's price
NODE = """
[Node t{number}]
cores = {cores}
memory = 1GiB
price_per_hour = {price}
billing = {billing}
slots = t{number}-[1-{slots}]
"""
TYPES = st.lists(
    st.tuples(
        st.sampled_from(CORES),
        st.sampled_from(SHARES),
        st.sampled_from(["per-second", "per-minute", "hourly"]),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=3,
)
SHAPES = st.one_of(
    st.builds(shape_for, st.integers(1, 4), st.sampled_from(Processors)),
    st.builds(shape_for, st.integers(1, 4), st.just(Processors.NODES)),
    st.builds(Shape, st.integers(1, 3), st.sampled_from([2, 4])),
    st.builds(lambda nodes, slots: Shape(slots, 1, nodes=nodes), st.integers(1, 2), st.integers(1, 3)),
    st.builds(lambda cores: Shape(1, cores, nodes=1, exclusive=True), st.sampled_from([2, 4])),
)
JOBS = st.lists(
    st.builds(
        lambda after_s, run_s, shape, limit: TraceJob("", after_s, run_s, limit * run_s, shape),
        st.sampled_from([0.0, 0.0, 60.0, 600.0, 1800.0, 3000.0]),
        st.sampled_from([0.0, 60.0, 1800.0, 3599.0, 4000.0, 36_000.0]),
        SHAPES,
        st.sampled_from([0.0, 1.0, 2.0]),
    ),
    min_size=1,
    max_size=9,
)


def _submitted(jobs: Sequence[TraceJob]) -> Iterator[TraceJob]:
    at_s = 0.0
    for number, job in enumerate(jobs):
        at_s += job.submit_s
        yield TraceJob(str(number), at_s, job.run_s, job.limit_s, job.shape)


def _site(folder: Path, types: Sequence[tuple[int, str, str, int]], queue_policy: str, boot_delay: str) -> Site:
    nodes = "".join(
        NODE.format(number=number, cores=cores, price=cores * Decimal(share), billing=rule, slots=slots)
        for number, (cores, share, rule, slots) in enumerate(types)
    )
    head = SITE.partition("[Node thin]")[0].format(
        nodes_max=12, queue_policy=queue_policy, simulation=f"boot_delay = {boot_delay}"
    )
    path = folder / "small.ini"
    path.write_text(
        head.replace("price_per_hour_max = 20", "price_per_hour_max = 1000").replace("= 5m", "= 1s") + nodes
    )
    return load_site(path, {})


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(TYPES, JOBS, st.sampled_from(["fifo", "backfill"]), st.sampled_from(["0s", "90s"]))
def test_no_run_that_serves_every_job_costs_less_than_the_bounds(
    types: list[tuple[int, str, str, int]], jobs: list[TraceJob], queue_policy: str, boot_delay: str
) -> None:
    with TemporaryDirectory() as folder:
        site = _site(Path(folder), types, queue_policy, boot_delay)
        runner = Runner(a_workload(list(_submitted(jobs))), unseen)
        fixed, bounds = runner.run_baseline("fixed", site)
        others = [runner.run_baseline(name, site)[0] for name in BASELINES if name != "fixed"]
        for outcome in (runner.run_production("small", site), *others):
            if outcome.jobs_served >= fixed.jobs_served:
                assert outcome.cost >= bounds.work - PENCE
    assert fixed.cost >= bounds.same_starts - PENCE
    assert bounds.same_starts >= bounds.work - PENCE


# --- any fleet that starts each job when it is told to -----------------------------------------------------


@dataclass
class _Box:
    """A node of some fleet, and the jobs on it."""

    node_type: NodeType
    spans: list[tuple[float, float, int]] = field(default_factory=list)  # from, to, cores

    def takes(self, from_s: float, to_s: float, cores: int) -> bool:
        """Whether so many cores are free for the whole span, checked at each start of a job."""
        moments = [from_s, *(begin_s for begin_s, _, _ in self.spans if from_s <= begin_s < to_s)]
        return all(
            sum(held for begin_s, end_s, held in self.spans if begin_s <= at_s < end_s) + cores
            <= self.node_type.cores
            for at_s in moments
        )

    def cost(self) -> Decimal:
        """The node is up while jobs run, and is terminated in between at the end of a billing window."""
        cost, until_s, since_s = Decimal(0), -1.0, 0.0
        for begin_s, end_s, _ in sorted(self.spans):
            if until_s >= 0 and begin_s > since_s + billing.paid_s(self.node_type.billing, until_s - since_s):
                cost += billing.cost(self.node_type, until_s - since_s)
                since_s, until_s = begin_s, end_s
            elif until_s < 0:
                since_s, until_s = begin_s, end_s
            until_s = max(until_s, end_s)
        return cost + billing.cost(self.node_type, until_s - since_s)


def _fleet(node_types: Sequence[NodeType], jobs: Sequence[TraceJob], draw: Random) -> list[_Box] | None:
    """Place each job on random nodes, or on new ones if they are full; None if a job fits nowhere."""
    boxes: list[_Box] = []
    for job in jobs:
        begin_s, end_s, shape = job.submit_s, job.submit_s + job.run_s, job.shape
        want = pieces_of(shape)
        draw.shuffle(boxes)
        taken: set[int] = set()
        while want > 0:
            per_slot = shape.cores_per_slot * (1 if shape.nodes is None else shape.slots)
            there = [
                box
                for box in boxes
                if pieces_that_fit(shape, box.node_type.cores, 0, is_empty=True)
                and (id(box) not in taken or (shape.nodes is None and not shape.exclusive))
                and box.takes(begin_s, end_s, box.node_type.cores if shape.exclusive else per_slot)
            ]
            if not there:
                fitting = [it for it in node_types if pieces_that_fit(shape, it.cores, 0, is_empty=True)]
                if not fitting:
                    return None
                there = [_Box(draw.choice(fitting))]
                boxes += there
            box = there[0]
            taken.add(id(box))
            box.spans.append((begin_s, end_s, box.node_type.cores if shape.exclusive else per_slot))
            want -= 1
    return boxes


@settings(max_examples=150)
@given(
    st.lists(
        st.builds(
            lambda cores, share, window_s: a_type(
                cores=cores, price=str(cores * Decimal(share)), window_s=window_s
            ),
            st.sampled_from(CORES),
            st.sampled_from(SHARES),
            st.sampled_from([1.0, 60.0, 3600.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    JOBS,
    st.integers(0, 1000),
)
def test_no_fleet_that_starts_each_job_at_the_same_moment_costs_less_than_the_bounds(
    node_types: list[NodeType], jobs: list[TraceJob], seed: int
) -> None:
    jobs = [job for job in _submitted(jobs) if job.run_s > 0]
    boxes = _fleet(node_types, jobs, Random(seed))
    if boxes is None:
        return
    demand = UnitDemand(WindowCover(node_types))
    happens = [(job.submit_s, 1, job) for job in jobs] + [(job.submit_s + job.run_s, 0, job) for job in jobs]
    for at_s, begins, job in sorted(happens, key=lambda it: it[:2]):
        demand.settle(at_s)
        if begins:
            demand.begin_job(JobId(int(job.name)), job.shape, at_s)
        else:
            demand.end_job(JobId(int(job.name)), job.shape, job.run_s, at_s)
    demand.settle(float("inf"))
    cost = sum((box.cost() for box in boxes), Decimal(0))
    assert demand.cover.cost() <= cost + Decimal(PENCE)
    assert demand.work_cost() <= demand.cover.cost() + Decimal(PENCE)


# --- what they are ----------------------------------------------------------------------------------------

SMALL, LARGE = (
    a_type("small", cores=2, price="0.20", window_s=1.0),
    a_type("large", cores=32, price="3.20", window_s=1.0),
)


@pytest.mark.parametrize(
    ("shape", "cost"),
    [
        (shape_for(2, Processors.NODES), "0.4"),
        (Shape(slots=1, cores_per_slot=3, nodes=1, exclusive=True), "0.2"),  # Flux starts it on any empty node
        (shape_for(3, Processors.CORES), "0.3"),
    ],
)
def test_a_job_that_takes_nodes_whole_counts_with_the_cheapest_that_it_may_start_on(
    shape: Shape, cost: str
) -> None:
    demand = UnitDemand(WindowCover((SMALL, LARGE)))
    demand.begin_job(JobId(1), shape, 0.0)
    demand.end_job(JobId(1), shape, 3600.0, 3600.0)
    demand.settle(float("inf"))
    assert demand.cover.cost() == demand.work_cost() == Decimal(cost)


def test_a_life_that_a_reclaim_ended_is_none_of_what_is_needed() -> None:
    shape = shape_for(1, Processors.CORES)
    demand = UnitDemand(WindowCover((SMALL, LARGE)))
    demand.begin_job(JobId(1), shape, 0.0)
    demand.begin_job(JobId(2), shape, 10.0)
    demand.settle(1800.0)
    demand.lose_job(JobId(1), shape)
    demand.begin_job(JobId(1), shape, 1800.0)
    demand.end_job(JobId(2), shape, 1790.0, 1800.0)
    demand.end_job(JobId(1), shape, 3600.0, 5400.0)
    demand.settle(float("inf"))
    assert demand.cover.cost() == demand.work_cost()
