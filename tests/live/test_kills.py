"""The manager dies before and after each call that it can make, and the next one brings all to the same end."""

from __future__ import annotations

import signal

import pytest

from nodemanager.core.ports import CloudPort, FluxPort
from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.six_jobs import run_to_the_end, submit_six_jobs

# What six jobs on sound nodes never cause. A death around each of them is the simulation's (tests/simulation).
NEVER_CALLED = {
    # They have their own steps to die at: test_slots.py.
    "change_slots",
    "refuse_slots",
    # An operator's word is kept before it is answered: test_operate.py.
    "keep_steering",
    # Of a spot node that the provider takes back, and of the copies of its jobs: test_requeue.py.
    "requeue",
    "result",
    "start_copy",
    "cancel_copy",
    # Of a node whose housekeeping does not end.
    "kill_housekeeping",
    # Of a job that limits keep from being served: below.
    "hold_jobs",
    "release_jobs",
}
CALLS = [
    name
    for port in (CloudPort, FluxPort)
    for name in vars(port)
    if not name.startswith("_") and name not in NEVER_CALLED
]


def test_the_list_is_that_of_the_ports() -> None:
    assert {"create", "destroy", "record", "forget", "claim"} < set(CALLS)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "call", [pytest.param(it, marks=pytest.mark.smoke) if it in ("create", "destroy") else it for it in CALLS]
)
def test_a_manager_killed_at_a_call_is_followed_by_one_that_ends_it_all_well(
    elastic: Elastic, call: str, when: str
) -> None:
    jobs = submit_six_jobs(elastic)
    doomed = elastic.start_manager(call, when, "1", module="tests.live.killed")
    elastic.eventually(f"it dies {when} {call}", lambda: doomed.status is not None)
    assert doomed.status == -signal.SIGKILL, doomed.tail()
    assert elastic.unrecorded() == []

    elastic.start_manager()
    run_to_the_end(elastic, jobs)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["hold_jobs", "release_jobs"])
def test_a_manager_killed_while_it_holds_or_releases_a_job_leaves_no_job_held(call: str, when: str) -> None:
    offers = (Offer("small", "0.10", "s1"), Offer("dear", "60", "d[1-2]"))
    with an_elastic_site(offers, policy="unserved = hold") as site:
        pair = site.submit("true", nodes=2, requires={"properties": ["dear"]})  # beyond price_per_hour_max
        small = site.submit("true", requires={"properties": ["small"]})
        doomed = site.start_manager(call, when, "1", module="tests.live.killed")
        if call == "hold_jobs":
            site.eventually("it dies", lambda: doomed.status == -signal.SIGKILL)
            site.start_manager()
        site.eventually("the job behind has run", lambda: site.result(small) == "COMPLETED")
        assert site.flux("jobs", "-ano", "{urgency}", str(pair)) == "0"

        text = site.site.path.read_text(encoding="utf-8")
        site.site.path.write_text(text.replace("price_per_hour_max = 100", "price_per_hour_max = 1000"))
        site.verb("reload")
        if call == "release_jobs":
            site.eventually("it dies", lambda: doomed.status == -signal.SIGKILL)
            site.start_manager()
        site.eventually("the job is released and has run", lambda: site.result(pair) == "COMPLETED")
        site.eventually(
            "no job is held", lambda: not site.flux("kvs", "ls", "-1", "node-manager.held-jobs", check=False)
        )
