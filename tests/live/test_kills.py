"""The manager dies before and after each call that it can make, and the next one brings all to the same end."""

from __future__ import annotations

import signal

import pytest

from nodemanager.core.ports import CloudPort, FluxPort
from tests.live.elastic import Elastic
from tests.live.six_jobs import run_to_the_end, submit_six_jobs

# What six jobs on sound nodes never cause. A death around each of them is the simulation's (tests/simulation).
NEVER_CALLED = {
    # They have their own steps to die at: test_slots.py.
    "change_slots",
    "refuse_slots",
    # An operator's word is kept before it is answered: test_operate.py.
    "keep_steering",
    # Of a spot node that the provider takes back.
    "requeue",
    # Of a node whose housekeeping does not end.
    "kill_housekeeping",
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
@pytest.mark.parametrize("call", CALLS)
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
