"""A waiting job is held and released on a real Flux, and keeps its place in the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.core.records import HeldJob
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.parse.versions import GOES_ON_AFTER_HOLD, parse_version
from nodemanager.flux.port import RealFluxPort
from tests.contract.flux_subjects import CLUSTER_UUID, MonotonicClock
from tests.live.instance import LiveInstance, eventually, flux_version

WAS = HeldJob(20, 20)


@pytest.fixture
def port(instance: LiveInstance) -> Iterator[RealFluxPort]:
    flux = RealFlux(instance.uri, CLUSTER_UUID, MonotonicClock())
    port = flux.port()
    port.claim()
    yield port
    port.close()
    flux.close()


def test_a_held_job_lets_the_one_behind_it_start_and_is_next_once_released(
    instance: LiveInstance, port: RealFluxPort
) -> None:
    first = instance.submit("-N2", "--urgency=20")
    second = instance.submit("-N1", "--urgency=10")
    instance.start_slot(1)

    def state(job: int) -> str:
        return instance.run("jobs", "-ano", "{state} {urgency}", str(job))

    assert (state(first), state(second)) == ("SCHED 20", "SCHED 10"), "the first is in the way"
    port.hold_jobs({JobId(first): WAS})
    if (parse_version(flux_version()) or GOES_ON_AFTER_HOLD) < GOES_ON_AFTER_HOLD:
        instance.run("cancel", str(instance.submit("-N1", "--urgency=1")))
    eventually("the second starts", lambda: state(second).startswith("RUN"))
    assert state(first) == "SCHED 0"
    third = instance.submit("-N1", "--urgency=16")
    port.release_jobs({JobId(first): WAS})
    assert state(first) == "SCHED 20"
    instance.run("cancel", str(second))
    instance.start_slot(2)
    eventually("the first starts before the third", lambda: state(first).startswith("RUN"))
    assert state(third).startswith("SCHED")
    assert port.held_jobs() == {}
