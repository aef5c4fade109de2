"""A workload straight from a running instance's job list."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.whatif.workload.flux_jobs import NEVER_RAN, open_running_instance
from nodemanager.whatif.workload.workload import Oddities, WorkloadError
from tests.live.instance import LiveInstance


def test_the_jobs_of_a_running_instance_are_a_workload(instance: LiveInstance) -> None:
    instance.start_slot(1)
    for _ in range(2):
        instance.run("submit", "-n1", "-t", "5m", "--flags=waitable", "true")
    instance.run("job", "wait", "--all")
    instance.submit("-n1", "--urgency=hold")
    oddities = Oddities()
    jobs = list(open_running_instance(instance.uri).read(oddities))
    assert [(job.shape.slots, job.shape.cores_per_slot, job.limit_s) for job in jobs] == [(1, 1, 300.0)] * 2
    assert jobs[0].submit_s == 0.0 <= jobs[1].submit_s
    assert oddities.counts == {NEVER_RAN: 1}


def test_an_instance_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be listed"):
        open_running_instance(f"local://{tmp_path}/nobody")
