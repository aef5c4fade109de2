"""When the fast replay plans, and what it has seen by then."""

from __future__ import annotations

import io
import json
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.whatif.study.study import Runner
from tests.whatif.sites import a_job, a_site, a_workload, unseen


def test_a_spare_that_a_job_takes_is_replaced_at_once(tmp_path: Path) -> None:
    a_site(tmp_path)
    path = tmp_path / "small.ini"
    path.write_text(path.read_text().replace("slots = thin", "spares = 1\nslots = thin"))
    jobs = [a_job(1000.0 + 700.0 * number, run_s=3000.0, slots=2) for number in range(5)]
    outcome = Runner(a_workload(jobs), unseen).run_production("spares", load_site(path))
    assert outcome.wait_mean_s == 0.0  # a spare was up for each of them
    assert outcome.boots == len(jobs) + 1


def test_nothing_is_bought_for_a_job_that_is_just_starting(tmp_path: Path) -> None:
    """Two jobs wait for two nodes each, again and again: a plan may come just when the second one starts.

    The ranks show that start a moment before the queue does. A plan that saw only the ranks would buy for the job.
    """
    jobs = [a_job(100.0 + 2000.0 * (number // 2) + number % 2, run_s=300.0, slots=4) for number in range(400)]
    sink = io.StringIO()
    outcome = Runner(a_workload(jobs), unseen).run_production("pairs", a_site(tmp_path), sink)
    lines = map(json.loads, sink.getvalue().splitlines())
    bought = [line for line in lines if line["what"] == "decided" and line["order"] == "BootNode"]
    assert len(bought) == outcome.boots == 2 * len(jobs)
