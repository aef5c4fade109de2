import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from nodemanager.core.jobs import Shape
from nodemanager.history.store.shapes import shape_to_json
from nodemanager.whatif.workload.flux_jobs import NEVER_RAN, UNEVEN, UNREADABLE, open_flux_jobs
from nodemanager.whatif.workload.open import open_synthetic, open_workload
from nodemanager.whatif.workload.swf import NO_LIMIT
from nodemanager.whatif.workload.workload import Oddities, Processors, WorkloadError
from tests.whatif.cloud.journals import BEGUN_AT, a_journal
from tests.whatif.sites import a_site

# As flux-core 0.88 prints jobs, the newest first; unused attributes are left out.
FLUX_JOBS = {
    "jobs": [
        {"id": 4, "t_submit": 1300.0, "ntasks": 1, "ncores": 1, "duration": 0.0, "state": "SCHED"},
        {"id": 3, "t_submit": 1200.5, "t_run": 1210.0, "t_cleanup": 1211.0, "ncores": 1, "duration": 0.0},
        {
            "id": 2, "t_submit": 1100.5, "t_run": 1101.0, "t_cleanup": 1131.0, "t_inactive": 1132.0,
            "ntasks": 3, "ncores": 6, "nnodes": 2, "duration": 300.0, "userid": 1000,
        },
        {
            "id": 1, "t_submit": 1000.5, "t_run": 1001.0, "t_cleanup": 1061.0, "ntasks": 1, "ncores": 1,
            "duration": 0.0,
        },
    ]
}  # fmt: skip


def test_a_history_is_read_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(FLUX_JOBS))
    oddities = Oddities()
    workload = open_flux_jobs(path)
    jobs = list(workload.read(oddities))
    assert workload.start_at == 1000.5
    assert [(job.name, job.submit_s, job.run_s, job.limit_s) for job in jobs] == [
        ("1", 0.0, 60.0, 0.0),
        ("2", 100.0, 30.0, 300.0),
    ]
    assert jobs[1].shape == Shape(slots=3, cores_per_slot=2)
    assert oddities.examples[NEVER_RAN] == ["job 4"]
    assert oddities.examples[UNREADABLE] == ["job 3"]


def test_a_history_begins_with_the_first_job_that_ran(tmp_path: Path) -> None:
    """A job cancelled a month before, or without a submit time, must not extend the time that is paid for."""
    path = tmp_path / "jobs.json"
    cancelled = {"id": 5, "t_submit": 10.0, "t_inactive": 11.0, "ntasks": 1, "ncores": -1, "duration": 0.0}
    unsaid = {"id": 6, "t_run": 1500.0, "t_cleanup": 1501.0, "ntasks": 1, "ncores": 1, "duration": 0.0}
    path.write_text(json.dumps({"jobs": [*FLUX_JOBS["jobs"], cancelled, unsaid]}))
    workload, oddities = open_flux_jobs(path), Oddities()
    assert [job.submit_s for job in workload.read(oddities)] == [0.0, 100.0]
    assert workload.start_at == 1000.5
    assert oddities.examples == {NEVER_RAN: ["job 5", "job 4"], UNREADABLE: ["job 6", "job 3"], NO_LIMIT: ["job 1"]}


@pytest.mark.parametrize(("tasks", "cores"), [(3, 8), (5, 2)])
def test_cores_that_tasks_do_not_share_evenly_are_all_counted(tmp_path: Path, tasks: int, cores: int) -> None:
    """For example three tasks that had a whole node of eight cores."""
    path = tmp_path / "jobs.json"
    job = {"id": 1, "t_submit": 1.0, "t_run": 2.0, "t_cleanup": 3.0, "ntasks": tasks, "ncores": cores}
    path.write_text(json.dumps({"jobs": [{**job, "duration": 60.0}]}))
    oddities = Oddities()
    (read,) = open_flux_jobs(path).read(oddities)
    assert read.shape == Shape(slots=cores, cores_per_slot=1)
    assert oddities.examples == {UNEVEN: ["job 1"]}


def test_a_journal_begins_with_the_first_job_that_ran(tmp_path: Path) -> None:
    path = a_journal(tmp_path / "journal.sqlite", [])
    shape = json.dumps(shape_to_json(Shape(slots=2, cores_per_slot=1)))
    times = ((BEGUN_AT - 30 * 86_400.0, None, shape), (BEGUN_AT - 60.0, BEGUN_AT, "?"), (BEGUN_AT, BEGUN_AT, shape))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, 120.0, 1, '', ?)",
            [(str(number), at, began_at, BEGUN_AT + 60.0, it) for number, (at, began_at, it) in enumerate(times)],
        )
    workload, oddities = open_workload(str(path), a_site(tmp_path), Processors.CORES), Oddities()
    assert [(job.name, job.submit_s) for job in workload.read(oddities)] == [("2", 0.0)]
    assert workload.start_at == BEGUN_AT
    assert oddities.examples == {NEVER_RAN: ["job 0"], UNREADABLE: ["job 1"]}


@pytest.mark.parametrize("column", ["submitted_at", "began_at", "duration_s", "userid"])
def test_a_row_that_is_spoilt_where_sqlite_takes_no_notice_is_left_out_and_named(
    tmp_path: Path, column: str
) -> None:
    path = a_journal(tmp_path / "journal.sqlite", [])
    shape = json.dumps(shape_to_json(Shape(slots=2, cores_per_slot=1)))
    row = (BEGUN_AT, BEGUN_AT, BEGUN_AT + 60.0, shape)
    with closing(sqlite3.connect(path)) as connection, connection:
        for job in ("1", "2"):
            connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, 120.0, 1, '', ?)", (job, *row))
        connection.execute(f"UPDATE jobs SET {column} = 'rubbish' WHERE job = '2'")  # noqa: S608
    oddities = Oddities()
    workload = open_workload(str(path), a_site(tmp_path), Processors.CORES)
    assert [job.name for job in workload.read(oddities)] == ["1"]
    assert oddities.examples == {UNREADABLE: ["job 2"]}


def test_a_single_job_is_a_history_too(tmp_path: Path) -> None:
    """For a single job id, ``flux jobs --json`` prints the job without a list."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(FLUX_JOBS["jobs"][2]))
    assert [job.name for job in open_flux_jobs(path).read(Oddities())] == ["2"]


def test_what_is_no_history_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    path.write_text('{"nodes": []}')
    with pytest.raises(WorkloadError, match="flux jobs -a --json"):
        open_flux_jobs(path)


@pytest.mark.parametrize("kind", ["lublin", "poisson", "narrowing"])
def test_a_synthetic_workload_is_a_function_of_its_seed(kind: str) -> None:
    one, same, other = (
        list(open_synthetic(f"{kind}:jobs=200,seed={seed},procs=32", 64).read(Oddities())) for seed in (5, 5, 6)
    )
    assert one == same != other
    assert len(one) == 200
    assert all(job.run_s >= 1 and job.run_s <= job.limit_s and 1 <= job.shape.slots <= 32 for job in one)
    assert all(before.submit_s <= after.submit_s for before, after in pairwise(one))


def test_lublin_has_the_shares_and_the_day_of_its_model() -> None:
    jobs = list(open_synthetic("lublin:jobs=20000,seed=1,procs=128", 128).read(Oddities()))
    serial = sum(job.shape.slots == 1 for job in jobs) / len(jobs)
    powers = sum(job.shape.slots.bit_count() == 1 and job.shape.slots > 1 for job in jobs) / len(jobs)
    assert 0.23 < serial < 0.26
    assert powers > 0.55
    by_hour = [sum(job.submit_s % 86_400 // 3600 == hour for job in jobs) for hour in range(24)]
    assert sum(by_hour[11:18]) > 3 * sum(by_hour[1:8])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lublin:jobs=many", '"many" is not a valid value for jobs'),
        ("lublin:size=3", 'unknown key "size"'),
        ("pareto:jobs=3", "unknown workload"),
        ("poisson:every=0s", "every must be above 0"),
    ],
)
def test_what_a_synthetic_workload_cannot_be_is_said(text: str, why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        open_synthetic(text, 64)


def test_a_name_that_is_no_workload_lists_what_is(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"lublin:jobs=1000"):
        open_workload("kth", a_site(tmp_path), Processors.CORES)
