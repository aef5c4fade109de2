from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import Reason
from nodemanager.planner.demand import Demand, read_demand
from tests.builders import a_job, a_snapshot, a_world, nodes, tasks
from tests.planner.strategies import jobs


def wants_nodes(wanted: Demand) -> list[int]:
    """The jobs that want nodes, in the order in which Flux starts them."""
    places = [
        (-key.priority, id_) for key, ids in wanted.batches.items() if key not in wanted.put_off for id_ in ids
    ]
    return [id_ for _, id_ in sorted(places)]


def why_not(wanted: Demand, number: int) -> Reason:
    whole_batches = {id_: why for key, why in wanted.put_off.items() for id_ in wanted.batches[key]}
    return {**whole_batches, **wanted.withheld}[JobId(number)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"urgency": 0}, "held"),
        ({"priority": 0}, "held"),
        ({"state": JobState.NEW}, "not_yet_scheduled"),
        ({"state": JobState.DEPEND}, "dependency"),
        ({"state": JobState.PRIORITY}, "not_yet_scheduled"),
        ({"queue": "debug"}, "queue_stopped"),
    ],
)
def test_a_job_that_waits_for_something_else_wants_no_node(changes: dict[str, Any], code: str) -> None:
    wanted = read_demand(a_snapshot(jobs=[a_job(1, **changes)], stopped=frozenset({"debug"})))
    assert not wants_nodes(wanted)
    assert why_not(wanted, 1).code == code


def test_a_job_that_depends_on_others_names_them() -> None:
    wanted = read_demand(a_snapshot(jobs=[a_job(9, state=JobState.DEPEND, awaits=(JobId(7), JobId(8)))]))
    reason = why_not(wanted, 9)
    assert to_sentence(reason.code, reason.figures) == "waits for its dependency on jobs 7, 8"


def test_a_job_that_waits_for_its_begin_time_names_it() -> None:
    jobs = [
        a_job(8, state=JobState.DEPEND, not_before_at=1_800_000_000.5),
        a_job(9, state=JobState.DEPEND, not_before_at=1_800_000_000.5, awaits=(JobId(7),)),
    ]
    reasons = [why_not(read_demand(a_snapshot(jobs=jobs)), it) for it in (8, 9)]
    assert [to_sentence(it.code, it.figures) for it in reasons] == [
        "waits for its dependency, and starts no earlier than 2027-01-15T08:00:00Z",
        "waits for its dependency on jobs 7, and starts no earlier than 2027-01-15T08:00:00Z",
    ]


def test_a_job_that_runs_or_cleans_up_wants_nothing_and_needs_no_reason() -> None:
    running = [a_job(1, state=JobState.RUN), a_job(2, state=JobState.CLEANUP)]
    wanted = read_demand(a_snapshot(jobs=running))
    assert not wanted.batches
    assert not wanted.withheld


def test_jobs_come_in_flux_s_order() -> None:
    queue = [a_job(3, priority=16), a_job(1, priority=16), a_job(2, priority=31)]
    assert wants_nodes(read_demand(a_snapshot(jobs=queue))) == [2, 1, 3]


def test_an_unreadable_job_is_said_with_what_is_wrong() -> None:
    wanted = read_demand(
        a_world().job(nodes(1), tasks(2)).unreadable_job(9, "resources: a slot is needed").snapshot
    )
    assert wants_nodes(wanted) == [1, 2]
    assert wanted.withheld[JobId(9)].figures["why"] == "resources: a slot is needed"


@given(jobs(), st.booleans())
def test_each_waiting_job_is_wanted_or_withheld_once(queue: list[Job], stopped: bool) -> None:
    wanted = read_demand(a_snapshot(jobs=queue, stopped=frozenset({"debug"}) if stopped else frozenset()))
    waiting = [job.id for job in queue if job.state not in (JobState.RUN, JobState.CLEANUP)]
    put_off = [id_ for key in wanted.put_off for id_ in wanted.batches[key]]
    told = [*wants_nodes(wanted), *put_off, *wanted.withheld]
    assert sorted(told) == sorted(waiting)


@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_became_known_does_not_matter(queue: list[Job], draw: Random) -> None:
    shuffled = queue.copy()
    draw.shuffle(shuffled)
    assert read_demand(a_snapshot(jobs=shuffled)) == read_demand(a_snapshot(jobs=queue))
