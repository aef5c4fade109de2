"""How long a job waits for a node that is not there: printed, not asserted.

``FNM_SUBMISSIONS=200 FNM_AT_ONCE=1 pytest tests/live/test_latency.py`` for figures worth keeping.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from statistics import median

import pytest

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import CloudNode, Launch, Leftover, ProviderId
from nodemanager.core.orders import BootNode
from nodemanager.core.ports import CloudPort
from nodemanager.core.slots import NodeType
from nodemanager.service.assembly.ports import SitePorts, make_ports
from nodemanager.service.service import Service
from tests.live.elastic import Elastic, Offer, an_elastic_site

SUBMISSIONS = int(os.environ.get("FNM_SUBMISSIONS", "10"))
AT_ONCE = int(os.environ.get("FNM_AT_ONCE", "10"))  # slots, too: no job may wait for another's node


@dataclass
class Stopwatch:
    """When the queue had settled for a job, and when the create for a slot was called."""

    settles_s: dict[JobId, float] = field(default_factory=dict)
    serves: dict[str, JobId] = field(default_factory=dict)
    created_s: dict[str, float] = field(default_factory=dict)

    def publish(self, published: Publication) -> None:
        for job, reason in published.plan.jobs.items():
            if reason.code == "settling":
                self.settles_s[job] = float(str(reason.figures["settles_at_s"]))
        for action in published.plan.actions:
            if isinstance(action, BootNode):
                self.serves[action.launch.id] = action.serves[0]

    def to_create_s(self) -> list[float]:
        return [
            self.created_s[launch] - self.settles_s[job]
            for launch, job in self.serves.items()
            if launch in self.created_s and job in self.settles_s
        ]


@dataclass
class TimedCloud:
    port: CloudPort
    watch: Stopwatch

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        self.watch.created_s[launch.id] = time.monotonic()
        return self.port.create(launch, node_type)

    def list_nodes(self) -> tuple[CloudNode, ...]:
        return self.port.list_nodes()

    def destroy(self, provider_id: ProviderId) -> None:
        self.port.destroy(provider_id)

    def sweep(self) -> tuple[Leftover, ...]:
        return self.port.sweep()


def test_latency(capsys: pytest.CaptureFixture[str]) -> None:
    offers = [Offer("cpu", price="0.1", slots=f"cpu[1-{AT_ONCE}]")]
    with an_elastic_site(offers, settle="1s", billing="1s") as elastic:
        watch = Stopwatch()
        outside: SitePorts = make_ports(elastic.site)
        (name, make) = next(iter(outside.clouds.items()))
        timed = {name: lambda: TimedCloud(make(), watch)}
        service = Service(elastic.site, replace(outside, clouds=timed), watch.publish)
        service.start()
        try:
            for start in range(0, SUBMISSIONS, AT_ONCE):
                for _ in range(start, min(start + AT_ONCE, SUBMISSIONS)):
                    elastic.submit("true")
                elastic.eventually("the jobs have run", lambda: _all_completed(elastic))
                elastic.eventually("the nodes have gone", lambda: not elastic.launches())
        finally:
            service.stop()
        seen = elastic.jobs().values()
        to_run_s = sorted(job.began_at - job.submitted_at for job in seen if job.began_at is not None)
        to_create_s = sorted(watch.to_create_s())
    assert len(to_run_s) == SUBMISSIONS
    with capsys.disabled():
        print(f"\n{SUBMISSIONS} submissions, each on a node that was not there")
        _print("end of settling to create call, ms", [1000 * s for s in to_create_s])
        _print("submission to running, ms (1 s of it settling)", [1000 * s for s in to_run_s])


def _all_completed(elastic: Elastic) -> bool:
    return all(job.result == "COMPLETED" for job in elastic.jobs().values())


def _print(what: str, figures: list[float]) -> None:
    if figures:
        p99 = figures[min(len(figures) - 1, int(0.99 * len(figures)))]
        print(f"{what}: n {len(figures)}, p50 {median(figures):.0f}, p99 {p99:.0f}, max {figures[-1]:.0f}")
