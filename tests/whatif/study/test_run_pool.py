"""Several runs at once: each has the same result as alone."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.config.site import Site
from nodemanager.core.jobs import Shape
from nodemanager.history.store.shapes import shape_to_json
from nodemanager.whatif.study.run_pool import PolicyRun, execute_all
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, WorkloadError
from tests.whatif.cloud.journals import BEGUN_AT, a_journal
from tests.whatif.sites import a_site

POISSON = "poisson:jobs=100,procs=4,run=5m"
TRACE = "; MaxProcs: 8\n" + "".join(f"{n} {60 * n} 0 90 2 -1 -1 2 120 -1 1 1 1 1 1 1 -1 -1\n" for n in range(1, 9))
HISTORY = {
    "jobs": [
        {"id": n, "t_submit": 60.0 * n, "t_run": 60.0 * n + 1, "t_cleanup": 60.0 * n + 90, "ntasks": 2, "ncores": 2}
        for n in range(1, 9)
    ]
}


def _nobody(run: str, jobs: int) -> None:
    del run, jobs


def _a_service_that_saw_jobs_end(path: Path) -> None:
    a_journal(path, [])
    _jobs_end(path, range(8))


def _jobs_end(path: Path, numbers: Iterable[int]) -> None:
    shape = json.dumps(shape_to_json(Shape(slots=2, cores_per_slot=1)))
    times = [(str(n), BEGUN_AT + 60 * n, BEGUN_AT + 60 * n + 1, BEGUN_AT + 60 * n + 90) for n in numbers]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, 120.0, 1, '', ?)", [(*it, shape) for it in times]
        )


def _runs(site: Site) -> list[PolicyRun]:
    return [
        PolicyRun("own", site),
        PolicyRun("fixed", site, baseline=True),
        PolicyRun("arvados", site, baseline=True),
    ]


@pytest.mark.parametrize("name", ["trace.swf", "history.json", "run.jsonl", "service.sqlite", POISSON])
def test_any_workload_can_be_handed_to_another_process(tmp_path: Path, name: str) -> None:
    site = a_site(tmp_path)
    (tmp_path / "trace.swf").write_text(TRACE)
    (tmp_path / "history.json").write_text(json.dumps(HISTORY))
    _a_service_that_saw_jobs_end(tmp_path / "service.sqlite")
    runner = Runner(open_workload(POISSON, site, Processors.CORES), _nobody, 8)
    list(execute_all(runner, [PolicyRun("own", site, event_log=tmp_path / "run.jsonl")], 1))
    workload = open_workload(name if name == POISSON else str(tmp_path / name), site, Processors.CORES)
    here, there = Oddities(), Oddities()
    jobs = list(workload.read(here))
    assert len(jobs) == (100 if name == POISSON else 8)
    assert list(pickle.loads(pickle.dumps(workload)).read(there)) == jobs  # noqa: S301 - our own
    assert there == here


def test_every_policy_gets_the_jobs_of_a_service_that_had_ended_when_it_was_opened(tmp_path: Path) -> None:
    journal = tmp_path / "service.sqlite"
    _a_service_that_saw_jobs_end(journal)
    workload = open_workload(str(journal), a_site(tmp_path), Processors.CORES)
    before = list(workload.read(Oddities()))
    _jobs_end(journal, range(8, 12))
    assert list(workload.read(Oddities())) == before
    assert len(before) == workload.jobs_about == 8


def test_what_runs_come_to_in_other_processes_is_what_they_come_to_here(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    runner = Runner(open_workload(POISSON, site, Processors.CORES), _nobody)
    alone = list(execute_all(runner, _runs(site), 1))
    assert alone[0].outcome.jobs_served == 100
    assert list(execute_all(runner, _runs(site), 2)) == alone


def test_how_far_each_has_come_is_told_here(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    told: list[tuple[str, int]] = []
    runner = Runner(open_workload(POISSON, site, Processors.CORES), lambda run, jobs: told.append((run, jobs)))
    assert len(list(execute_all(runner, _runs(site)[:2], 2))) == 2
    assert sorted(told) == [("fixed", 64), ("own", 64)]


def test_a_journal_is_the_same_from_another_process(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    runner = Runner(open_workload(POISSON, site, Processors.CORES), _nobody)
    for number in (1, 2):
        runs = [
            PolicyRun("own", site, event_log=tmp_path / f"{number}.jsonl"),
            PolicyRun("fixed", site, baseline=True),
        ]
        list(execute_all(runner, runs, number))
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()


@pytest.mark.parametrize("processes", [1, 2])
def test_what_one_raises_is_raised_in_its_turn(tmp_path: Path, processes: int) -> None:
    site = a_site(tmp_path)
    runner = Runner(open_workload(POISSON, site, Processors.CORES), _nobody)
    runs = [PolicyRun("own", site), PolicyRun("own", site, event_log=tmp_path / "none" / "run.jsonl")]
    with closing(execute_all(runner, runs, processes)) as ended:
        assert next(ended).outcome.jobs == 100
        with pytest.raises(FileNotFoundError, match=r"run\.jsonl"):
            next(ended)


def _killed(oddities: Oddities) -> Iterator[TraceJob]:
    del oddities
    os.kill(os.getpid(), signal.SIGKILL)
    return iter(())


def test_one_whose_process_is_killed_is_said(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    workload = open_workload(POISSON, site, Processors.CORES)
    fatal = replace(workload, read=_killed)
    with pytest.raises(WorkloadError, match="--processes 1"):
        list(execute_all(Runner(fatal, _nobody), _runs(site)[:2], 2))
