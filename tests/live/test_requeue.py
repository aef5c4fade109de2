"""Copies of jobs on a real Flux: each starts or is cancelled by how its original ended, whoever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.flux.instance import RealFlux
from tests.contract.flux_subjects import MonotonicClock
from tests.live.elastic import Elastic
from tests.live.test_operate import UNTIL

ENDS_BADLY = f"{UNTIL}; exit 3"


def submit(elastic: Elastic, script: str, end: Path) -> int:
    job = elastic.flux("submit", "-n1", "--setattr=node-manager.requeue", "sh", "-c", script, "sh", str(end))
    return int(elastic.flux("job", "id", "--to=dec", job))


def requeue(elastic: Elastic, *jobs: int) -> list[int]:
    """Submit the jobs again, as a manager does that is killed right after that."""
    flux = RealFlux(elastic.site.flux.uri, elastic.site.cluster_uuid, MonotonicClock())
    port = flux.port()
    try:
        port.claim()
        return [int(port.requeue(JobId(job))) for job in jobs]
    finally:
        port.close()
        flux.close()


@pytest.mark.parametrize("manager_runs", [True, False], ids=["while a manager runs", "while none runs"])
def test_57_a_copy_is_cancelled_if_its_original_ends_well_and_starts_if_it_fails(
    elastic: Elastic, tmp_path: Path, *, manager_runs: bool
) -> None:
    ends = [tmp_path / name for name in ("well", "badly", "cancelled")]
    first = elastic.start_manager()
    jobs: list[int] = []
    for script, end in zip((UNTIL, ENDS_BADLY, UNTIL), ends, strict=True):
        # One after another: before 0.84 a node that joins makes sched-simple start only one waiting job.
        jobs.append(submit(elastic, script, end))
        elastic.eventually("it runs", lambda: elastic.jobs()[jobs[-1]].began_at is not None, 60.0)
    first.kill()
    copies = requeue(elastic, *jobs)
    manager = elastic.start_manager() if manager_runs else None
    if manager is not None:
        manager.until_said("claimed")

    for end in ends[:2]:
        end.touch()
    elastic.flux("cancel", str(jobs[2]))
    results = ["COMPLETED", "FAILED", "CANCELED"]
    elastic.eventually("the originals have ended", lambda: [elastic.result(job) for job in jobs] == results)
    if manager is None:
        assert [elastic.result(copy) for copy in copies] == ["", "", ""], "nobody has said what becomes of them"
        manager = elastic.start_manager()

    ended = ["CANCELED", "FAILED", "CANCELED"]
    elastic.eventually("the copies are settled", lambda: [elastic.result(copy) for copy in copies] == ended, 60.0)
    began = [elastic.jobs()[copy].began_at is not None for copy in copies]
    assert began == [False, True, False], "only the one whose original failed has run, and failed too"
    note = elastic.flux("jobs", "-ano", "{exception.note}", str(copies[0]))
    original = elastic.flux("job", "id", "--to=f58plain", str(jobs[0])).strip()
    assert note.strip() == f"not needed: job {original}, which it would have replaced, ended as COMPLETED"
    orders = [order.split()[0] for order in manager.orders()]
    assert (orders.count("StartCopy"), orders.count("CancelCopy")) == (1, 2)
