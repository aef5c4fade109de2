"""No jobspec ends the service: any user's jobs go through every surface, beside a job that must be served.

``pytest tests/stories/test_any_jobspec.py --hypothesis-profile many`` runs 5,000 examples.
"""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from nodemanager.actors.base import Fate
from nodemanager.actors.manager import Publication
from nodemanager.core.facts import FluxUnreachable
from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.slots import DEFAULT_CLOUD
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.service.assembly.ports import SitePorts
from nodemanager.service.assembly.wiring import wire
from nodemanager.service.outputs import NoticeTracker
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.odd_jobspecs import NAMED, odd_jobspec, plain_jobspec, replaced
from nodemanager.simulation.time.pump import Pump
from nodemanager.simulation.time.world import World
from nodemanager.web.api import explain
from nodemanager.web.api.endpoints import ENDPOINTS
from tests.builders import a_policy
from tests.simulation.fleets import CLOUD, GPU, slots_of
from tests.web.fleets import HOST, Stand, a_stand

SERVED_WITHIN_S = 300.0
GUEST = 4242
PATHS = sorted(
    endpoint.path
    for endpoint in ENDPOINTS
    if endpoint.method == "GET" and "{" not in endpoint.path and "events" not in endpoint.path
)


class Site:
    """The production actors on a simulated Flux and cloud, with all that is made from their publications."""

    def __init__(self, folder: Path) -> None:
        self.world = World(1)
        self.flux = SimulatedFlux(self.world, [CLOUD, GPU], slots_of(CLOUD, GPU))
        faults = CloudFaults(boot_delay_s=(5.0, 5.0), stop_delay_s=(1.0, 1.0))
        self.provider = SimulatedProvider(self.world, faults)
        self.provider.on_boot, self.provider.on_end = self.flux.on_node_booted, self.flux.on_node_ended
        self.policy = a_policy(CLOUD, GPU, nodes_max=6, price_per_hour_max=Decimal(100))
        self.stand: Stand = a_stand(folder / HISTORY_FILE, by_socket=True)
        self.notices = NoticeTracker()
        self.updates: list[HistoryUpdate] = []
        self.published: Publication | None = None
        self.fate = Fate()
        self.pump, self.watch = self._start("first")

    def _start(self, name: str) -> tuple[Pump, SimulatedFluxWatch]:
        pump, watch, clock = (
            Pump(self.world, name, idle_tick_s=2.0),
            SimulatedFluxWatch(self.flux),
            self.world.clock(),
        )
        outside = SitePorts(
            clock=clock,
            flux=lambda: SimulatedFluxPort(self.flux, name, self.policy.cluster_uuid),
            clouds={
                DEFAULT_CLOUD: lambda: self.provider.port(self.policy.cluster, self.policy.cluster_uuid),
            },
            watch=watch,
            close=lambda: None,
        )
        manager = wire(outside, self.policy, acts=True, publish=self._publish, fate=self.fate, spawn=pump.spawn)
        pump.start_ticks(manager, clock)
        watch.start(manager.tell, lambda why: manager.tell(FluxUnreachable(clock.monotonic_s(), why)))
        return pump, watch

    def restart(self) -> None:
        """Kill the manager and start another one."""
        self.watch.stop()
        self.pump.kill(lambda: True)
        self.flux.drop_claim("first")
        self.pump, self.watch = self._start("second")

    def _publish(self, published: Publication) -> None:
        self.published = published
        self.stand.board.publish(published)
        update = self.stand.follower.follow([published])
        self.stand.board.take_in(update)
        self.stand.served.metrics.take_in(update)
        list(self.notices.update(update))
        self.updates.append(update)

    def serve_a_probe(self) -> None:
        """Submit a job of another user, which must run."""
        probe = self.flux.submit(Shape(slots=1, cores_per_slot=1), 60.0, run_s=1.0)
        until_s = self.world.now_s + SERVED_WITHIN_S
        while self.flux.job_state(probe) is not None:
            assert self.world.now_s < until_s, self.published and self.published.plan
            self.world.advance_by(1.0)

    def check_surfaces(self, jobs: list[JobId], folder: Path) -> None:
        assert self.published is not None
        aside = [bad for bad in self.published.snapshot.queues.unreadable.values() if bad.set_aside]
        assert aside == [], "a failure is contained there, and is to be mended here"
        writer = HistoryWriter(folder / HISTORY_FILE)
        writer.write([it.condensed for it in self.updates if it.has_rows])
        assert (writer.failure, writer.lost) == ("", 0)
        writer.close()
        names = [str(int(job)) for job in jobs]
        paths = [*PATHS, *(f"/explain/job/{quote(name)}{at}" for name in names for at in ("", "?at=1m&history=1"))]
        with TestClient(self.stand.application, base_url=f"http://{HOST}") as client:
            for path in paths:
                response = client.get(path)
                assert response.status_code < 500 or response.status_code == 503, (path, response.text)
                if response.headers["content-type"] == "application/json":
                    json.loads(response.text, parse_constant=pytest.fail)
        reader = HistoryReader(folder / HISTORY_FILE)
        for name in names:
            json.dumps(explain.job_to_user(self.published, name, GUEST))
            json.dumps(explain.job(self.published, name, reader)).encode()


def go_through(jobspecs: list[Any], updates: list[Any]) -> Site:
    """Submit the jobspecs as a guest, and see that a probe is served: beside them, and after a restart."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        site = Site(folder)
        site.world.advance_by(2.0)
        odd = [site.flux.submit_unscheduled(it, urgency=1, userid=GUEST) for it in jobspecs]
        for job, update in zip(odd, updates, strict=False):
            site.flux.update_jobspec(job, update)
        site.serve_a_probe()
        site.restart()
        site.serve_a_probe()
        site.check_surfaces(odd, folder)
        for job in odd:
            memo = site.flux.shown_on_jobs[job]
            assert memo.isprintable(), memo
            assert json.dumps(memo).encode()
        for job in odd:
            site.flux.cancel(job)
        site.serve_a_probe()
        site.check_surfaces([], folder)
        assert not site.fate.ended.is_set()
        return site


@pytest.mark.parametrize(("place", "value"), NAMED)
def test_a_request_that_cannot_be_read_ends_nothing(place: str, value: Any) -> None:
    site = go_through([replaced(plain_jobspec(), place, value)], [])
    assert site.published is not None


@pytest.mark.timeout(0)  # 5,000 examples take longer than any other test
@given(draws=st.randoms(use_true_random=False), count=st.integers(1, 3), updated=st.booleans())
def test_no_jobspec_ends_the_service_and_another_job_is_served(draws: Random, count: int, updated: bool) -> None:
    jobspecs = [odd_jobspec(draws) for _ in range(count)]
    updates = [{"attributes.system.duration": odd_jobspec(draws)}] if updated else []
    go_through(jobspecs, updates)
