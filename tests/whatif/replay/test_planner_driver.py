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


def test_a_node_that_joins_while_jobs_wait_is_kept_idle_no_longer_than_a_schedule_says(tmp_path: Path) -> None:
    """The third job starts elsewhere while its node still boots. The fourth needs nodes that are busy."""
    a_site(tmp_path)
    path = tmp_path / "small.ini"
    schedule = "[Schedule always]\nwhen = Mon-Sun 00:00-24:00\nnode_types = thin\nidle_timeout = 30s\n"
    path.write_text(path.read_text().replace("idle_timeout = 5m", "idle_timeout = 40m") + schedule)
    jobs = [
        a_job(10.0, run_s=9000.0, slots=2),
        a_job(20.0, run_s=600.0, slots=2),
        a_job(660.0, run_s=6000.0, slots=2),
        a_job(670.0, run_s=600.0, slots=12),
    ]
    sink = io.StringIO()
    Runner(a_workload(jobs), unseen).run_production("joined", load_site(path), sink)
    lines = list(map(json.loads, sink.getvalue().splitlines()))
    drained = next(line for line in lines if line.get("order") == "DrainNode")
    assert drained["subject"].startswith("thin3")
    idle_s = float(drained["because"].partition("idle_s=")[2].split()[0])
    assert 30.0 <= idle_s < 60.0
