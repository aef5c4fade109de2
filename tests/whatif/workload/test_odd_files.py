"""Files that neither a run nor Flux wrote: the error names the place, and there is never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodemanager.cli.main import main
from nodemanager.whatif.workload.event_log import open_event_log
from nodemanager.whatif.workload.flux_jobs import UNREADABLE, open_flux_jobs
from nodemanager.whatif.workload.workload import Oddities, WorkloadError
from tests.whatif.sites import a_site

RUN = {"what": "run", "policy": "small", "seed": 3, "start_at": 1e6}
SUBMIT = {
    "at": 5.0,
    "what": "submit",
    "job": "1",
    "run_s": 60.0,
    "limit_s": 0.0,
    "userid": 0,
    "shape": {"slots": 1, "cores_per_slot": 1},
}
JOB = {
    "id": 1,
    "t_submit": 1e6,
    "t_run": 1e6 + 1,
    "t_cleanup": 1e6 + 61,
    "ntasks": 1,
    "ncores": 1,
    "duration": 99.0,
}
INFINITE, NONE = float("inf"), float("nan")


def _journal(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in (RUN, *lines)))
    return path


@pytest.mark.parametrize(
    "odd",
    [
        {"run_s": "60"},
        {"run_s": -1.0},
        {"run_s": True},
        {"at": None},
        {"at": INFINITE},
        {"at": NONE},
        {"at": 4.0},
        {"limit_s": NONE},
        {"userid": "root"},
        {"job": 7},
        {"shape": {"slots": INFINITE, "cores_per_slot": 1}},
        {"shape": {"slots": 1, "cores_per_slot": 0}},
        {"shape": {"slots": 1, "cores_per_slot": 1, "nodes": "all"}},
        {"shape": {"slots": 1, "cores_per_slot": 1, "constraint": ["not"]}},
        {"shape": {"cores": 1}},
        {"shape": 3},
    ],
)
def test_a_line_that_no_run_wrote_is_an_error_that_names_it(tmp_path: Path, odd: dict[str, Any]) -> None:
    workload = open_event_log(_journal(tmp_path / "run.jsonl", SUBMIT, {**SUBMIT, **odd}))
    with pytest.raises(WorkloadError, match=r"run\.jsonl: line 3: not written by simulate"):
        list(workload.read(Oddities()))


@pytest.mark.parametrize(
    "odd", [b'{"what": "subm\xff"}\n', b'{"what": "submit", "at": 5', b"[]\n", b'{"at": 5.0}\n']
)
def test_bytes_that_are_no_line_are_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: bytes
) -> None:
    run = _journal(tmp_path / "run.jsonl", SUBMIT)
    run.write_bytes(run.read_bytes() + odd)
    arguments = ["--config", str(a_site(tmp_path).path), "--baselines", "none"]
    assert main(["simulate", str(run), *arguments]) == 1
    assert "run.jsonl: line 3: not written by simulate" in capsys.readouterr().err


@pytest.mark.parametrize("start_at", [NONE, -1.0, "soon", None])
def test_a_journal_that_begins_at_no_time_is_none(tmp_path: Path, start_at: object) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({**RUN, "start_at": start_at}) + "\n")
    with pytest.raises(WorkloadError, match="not a journal written by simulate"):
        open_event_log(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key in ("ntasks", "ncores", "t_run", "duration", "userid")
        for value in (INFINITE, NONE, "x")
    ],
)
def test_a_job_of_no_measure_is_left_out_and_named(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [JOB, {**JOB, "id": 2, key: value}]}))
    oddities = Oddities()
    assert [job.name for job in open_flux_jobs(path).read(oddities)] == ["1"]
    assert oddities.examples == {UNREADABLE: ["job 2"]}


@pytest.mark.parametrize("value", [INFINITE, NONE, "x"])
def test_a_job_submitted_at_no_time_is_left_out_and_named(tmp_path: Path, value: object) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [JOB, {**JOB, "id": 2, "t_submit": value}]}))
    oddities = Oddities()
    assert [job.name for job in open_flux_jobs(path).read(oddities)] == ["1"]
    assert oddities.examples == {UNREADABLE: ["job 2"]}
