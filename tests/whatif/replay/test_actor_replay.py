"""The fast replay engine, compared with the production actors on the full simulated Flux."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.whatif.replay.actor_replay import ActorReplay
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.workload import Oddities
from tests.whatif.sites import a_job, a_site, a_workload, unseen

JOBS = (
    a_job(10.0, run_s=300.0, slots=3),
    a_job(20.0, run_s=200.0, slots=2),
    a_job(400.0, run_s=500.0, slots=8),
    a_job(1500.0, run_s=100.0, slots=1),
    a_job(1510.0, run_s=100.0, slots=13, name="huge"),
)


@pytest.mark.parametrize("billing", ["per-second", "hourly"])
def test_both_come_to_the_same(tmp_path: Path, billing: str) -> None:
    site, workload = a_site(tmp_path, billing=billing), a_workload(JOBS)
    short = Runner(workload, unseen).run_production("short", site)
    whole = ActorReplay(site, workload, workload.read(Oddities()), lambda _: None).run("whole")
    assert (short.jobs_served, whole.jobs_served) == (4, 4)
    assert (short.boots, short.peak_nodes) == (whole.boots, whole.peak_nodes)
    assert short.cost == pytest.approx(whole.cost, rel=0.03)
    assert short.wait_mean_s == pytest.approx(whole.wait_mean_s, abs=15.0)
    assert len(short.jobs_unserved) == len(whole.jobs_unserved) == 1
    assert short.plans < whole.plans
