"""Replays of batch jobs that use fewer nodes towards their end, with and without ``early_release``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.core.jobs import Shape
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.event_log import open_event_log
from nodemanager.whatif.workload.open import open_synthetic
from nodemanager.whatif.workload.workload import Oddities, TraceJob, Workload
from tests.whatif.sites import a_site, a_workload, unseen

WIDE = Shape(nodes=4, slots=1, cores_per_slot=1, exclusive=True)
THIN = Shape(nodes=1, slots=1, cores_per_slot=1, exclusive=True)


def run(folder: Path, workload: Workload, *, early_release: bool) -> tuple[Outcome, list[dict[str, object]]]:
    a_site(folder)
    text = (folder / "small.ini").read_text()
    answer = "yes" if early_release else "no"
    (folder / "small.ini").write_text(text.replace("idle_timeout", f"early_release = {answer}\nidle_timeout"))
    sink = io.StringIO()
    outcome = Runner(workload, unseen).run_production("small", load_site(folder / "small.ini", {}), sink)
    return outcome, [json.loads(line) for line in sink.getvalue().splitlines()]


def lives(log: list[dict[str, object]]) -> list[float]:
    begun = {line["node"]: line["at"] for line in log if line["what"] == "created"}
    ended = {line["node"]: line["at"] for line in log if line["what"] == "gone"}
    return sorted(ended[node] - begun[node] for node in begun)  # type: ignore[operator]


def test_the_nodes_that_a_job_gives_back_leave_and_it_goes_on(tmp_path: Path) -> None:
    workload = a_workload([TraceJob("wide", 0.0, 7200.0, 0.0, WIDE, narrow_s=1200.0)])
    kept, kept_log = run(tmp_path, workload, early_release=False)
    released, log = run(tmp_path, workload, early_release=True)
    assert all(life > 7200 for life in lives(kept_log))
    *gone, first = lives(log)
    assert len(gone) == 3
    assert all(1200 < life < 1400 for life in gone)
    assert first > 7200
    why = [str(line["because"]) for line in log if line["what"] == "decided" and line["order"] == "DrainNode"]
    assert sum(it.startswith("node_given_back") for it in why) == 3
    assert (released.jobs_served, released.restarts, released.lost_core_hours) == (1, 0, 0.0)
    assert released.wait_mean_s == kept.wait_mean_s
    # 1200 s of three nodes and 7200 s of one are used, at 0.30 an hour.
    assert released.cost_busy == pytest.approx((3 * 1200 + 7200) / 3600 * 0.30, rel=0.01)
    assert released.cost < 0.5 * kept.cost


def test_their_slots_are_used_again_when_the_job_has_ended(tmp_path: Path) -> None:
    """The site has six slots. Two are free and three given back, so the other wide job has to wait."""
    jobs = [
        TraceJob("wide", 0.0, 3600.0, 0.0, WIDE, narrow_s=600.0),
        TraceJob("thin", 1500.0, 60.0, 0.0, THIN),
        TraceJob("next", 1500.0, 60.0, 0.0, WIDE),
    ]
    outcome, log = run(tmp_path, a_workload(jobs), early_release=True)
    started = {line["job"]: line["at"] for line in log if line["what"] == "start"}
    assert outcome.jobs_served == 3
    assert started["thin"] < 2000  # type: ignore[operator]
    assert started["next"] > started["wide"] + 3600  # type: ignore[operator]


def test_a_job_that_keeps_part_of_a_node_for_others_gives_none_back(tmp_path: Path) -> None:
    shared = Shape(nodes=4, slots=1, cores_per_slot=1)
    workload = a_workload([TraceJob("shared", 0.0, 7200.0, 0.0, shared, narrow_s=1200.0)])
    _, log = run(tmp_path, workload, early_release=True)
    assert all(life > 7200 for life in lives(log))


def test_the_event_log_is_a_workload_that_gives_the_same_run(tmp_path: Path) -> None:
    workload = open_synthetic("narrowing:jobs=20,every=5m,procs=4", 12)
    jobs = list(workload.read(Oddities()))
    assert all(job.shape.exclusive and 0 < job.narrow_s < job.run_s for job in jobs)
    first, log = run(tmp_path, workload, early_release=True)
    path = tmp_path / "again.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in log))
    again, _ = run(tmp_path, open_event_log(path), early_release=True)
    assert again == first
    assert first.cost < run(tmp_path, workload, early_release=False)[0].cost
