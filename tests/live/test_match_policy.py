"""Where Fluxion runs jobs, by its match policy, against where the planner foresees them.

``pytest -s`` shows both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from nodemanager.core.jobs import JobId, JobState, NodeOrder, Shape
from nodemanager.core.slots import Rank, SlotName
from nodemanager.flux.fluxion import node_order_of
from nodemanager.flux.instance import RealFlux
from nodemanager.planner.ranks_and_queue import key_of
from nodemanager.planner.seating import Availability, Bin, Seater
from tests.builders import a_job
from tests.contract.flux_subjects import CLUSTER_UUID, MonotonicClock
from tests.live.instance import LiveInstance, eventually, why_no_flux

CORES = (2, 2, 4, 8)  # of the slots 1 to 4
JOBS = sum(CORES) - 2


def foreseen(order: NodeOrder) -> list[int]:
    bins = [
        Bin(SlotName(f"slot{n}"), Rank(n), frozenset(), cores, 0, Availability.UP, order=order)
        for n, cores in enumerate(CORES, 1)
    ]
    jobs = [a_job(n, Shape(1, 1), state=JobState.SCHED) for n in range(1, JOBS + 1)]
    seating = Seater({key_of(jobs[0]): [job.id for job in jobs]}, bins, {}, {}).seat_all()
    return [seating.seats[JobId(n)][0][0].rank for n in range(1, JOBS + 1)]


def real(instance: LiveInstance) -> list[int]:
    jobs = []
    for _ in range(JOBS):
        job = instance.submit("-n1", "-c1")
        instance.run("job", "wait-event", "-t20", str(job), "alloc")
        jobs.append(job)
    return [int(instance.run("jobs", "-no", "{nodelist}", str(job)).strip().removeprefix("slot")) for job in jobs]


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonode", "hinode"])
def test_the_planner_foresees_the_nodes_that_fluxion_gives_to_jobs(policy: str) -> None:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        instance = LiveInstance(Path(folder), slots=len(CORES))
        declare(instance, policy)
        flux = RealFlux(instance.uri, CLUSTER_UUID, MonotonicClock())
        port = flux.port()
        try:
            instance.start_head()
            if not instance.has_fluxion:
                pytest.skip("the flux on PATH has no Fluxion")
            for number in range(1, len(CORES) + 1):
                instance.start_slot(number)
            free = sum(CORES)
            eventually("all nodes take jobs", lambda: sum(rank.cores_free for rank in port.ranks()) == free)
            order = port.node_order()
            assert order is not None
            assert order is node_order_of(policy)
            ran, planned = real(instance), foreseen(order)
            print(f"\n{policy:8} ran     {ran}\n{'':8} planned {planned}")
            assert planned == ran
        finally:
            port.close()
            flux.close()
            instance.reap()


def declare(instance: LiveInstance, policy: str) -> None:
    """Give each slot its cores, and Fluxion its match policy."""
    file = instance.directory / "conf.d" / "flux.toml"
    before, rest = file.read_text().split("[[resource.config]]")
    after = rest[rest.index("[kvs]") :]
    hosts = [("head", 2), *((f"slot{n}", cores) for n, cores in enumerate(CORES, 1))]
    tables = "".join(f'[[resource.config]]\nhosts = "{host}"\ncores = "0-{cores - 1}"\n' for host, cores in hosts)
    file.write_text(f'{before}{tables}{after}\n[sched-fluxion-resource]\nmatch-policy = "{policy}"\n')
