from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.jobs import (
    HasProperty,
    Job,
    JobId,
    JobRequest,
    JobState,
    RankAllocation,
    Shape,
    UnreadableJob,
)
from nodemanager.core.slots import Rank
from nodemanager.delegation.jobs import HOLD
from nodemanager.delegation.jobspec import DELEGATE
from nodemanager.flux.parse import job_journal
from nodemanager.flux.parse.job_journal import AWAITED_MAX, JobQueue, changes_allocation
from nodemanager.flux.parse.jobspec import PLAIN_BYTES, size_bytes
from tests.flux.recording import job_events, lines

# RFC 21's states, as job-list gives them.
STATES = {1: "new", 2: "depend", 4: "priority", 8: "sched", 16: "run", 32: "cleanup"}
INACTIVE = 64

JOBSPEC: Mapping[str, Any] = {
    "version": 1,
    "resources": [{"type": "slot", "count": 2, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "attributes": {"system": {"duration": 60}},
}
SUBMIT = {"userid": 1000, "urgency": 16, "flags": 0, "version": 1}


class Journal:
    """A queue that receives a job's events, one per second."""

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.at = 0.0

    def says(self, job: int, *events: str, jobspec: object = JOBSPEC, **context: object) -> Journal:
        for event in events:
            self.at += 1.0
            said = SUBMIT | context if event == "submit" else context
            self.queue.apply(job, event, self.at, said, jobspec if event == "submit" else None)
        return self

    def waits(self, job: int) -> Journal:
        """The job was submitted, and the scheduler has it."""
        return self.says(job, "submit", "validate", "depend").says(job, "priority", priority=16)

    def runs(self, job: int) -> Journal:
        return self.waits(job).says(job, "alloc", "start")

    def job(self, job: int) -> Job:
        return next(found for found in self.queue.complete(0.0).jobs if found.id == job)

    def why(self, job: int) -> str:
        return next(found for found in self.queue.complete(0.0).unreadable if found.id == job).why

    def ids(self) -> list[int]:
        return [job.id for job in self.queue.complete(0.0).jobs]


# --- the recording ----------------------------------------------------------------------------------------


def test_what_a_running_job_holds_and_when_it_ends_is_read_off_its_r() -> None:
    """From the recording: a job on two nodes, then a job on a part of one of them."""
    queue, began = JobQueue(), dict[JobId, Job]()
    for line in lines():
        if line["kind"] == "job-event":
            jobspec, r = line.get("jobspec"), line.get("R")
            queue.apply(line["jobid"], line["name"], line["timestamp"], line["context"], jobspec, r)
            if line["name"] == "alloc":
                began |= {job.id: job for job in queue.changes(0.0).jobs if job.id == line["jobid"]}
    first, second, *_ = began.values()
    assert first.allocations == (RankAllocation(Rank(1), 4, 0), RankAllocation(Rank(5), 8, 2))
    assert second.allocations == (RankAllocation(Rank(5), 2, 1),)
    for job in began.values():
        assert (job.ends_at is None) is (job.duration_s == 0)


def test_a_job_without_a_time_limit_never_expires() -> None:
    r = {"version": 1, "execution": {"R_lite": [{"rank": "1", "children": {"core": "0-3"}}], "expiration": 0.0}}
    queue = Journal().waits(1).queue
    queue.apply(1, "alloc", 5.0, {}, r=r)
    (job,) = queue.changes(0.0).jobs
    assert (job.allocations, job.ends_at) == ((RankAllocation(Rank(1), 4, 0),), None)


def test_a_job_that_has_finished_holds_nothing_more_and_has_begun_all_the_same() -> None:
    """Its user is not charged for the node while it is cleaned up. The history must not say that it never ran."""
    r = {"version": 1, "execution": {"R_lite": [{"rank": "1", "children": {"core": "0-3"}}], "expiration": 0.0}}
    journal = Journal().waits(1)
    journal.queue.apply(1, "alloc", 5.0, {}, r=r)
    assert journal.job(1).allocations
    job = journal.says(1, "finish").job(1)
    assert (job.state, job.allocations, job.began_at) == (JobState.CLEANUP, (), 5.0)


def test_a_job_that_gets_more_time_ends_later() -> None:
    journal = Journal().runs(1).says(1, "resource-update", expiration=5000.0)
    (job,) = journal.queue.changes(0.0).jobs
    assert job.ends_at == 5000.0


def test_replayed_the_recorded_journal_agrees_with_every_recorded_job_list() -> None:
    queue, told, compared = JobQueue(), dict[JobId, Job](), 0
    for line in lines():
        if line["kind"] == "job-event":
            queue.apply(line["jobid"], line["name"], line["timestamp"], line["context"], line.get("jobspec"))
        elif line.get("topic") == "job-list.list":
            seen = queue.changes(line["t"])
            assert not seen.unreadable
            told |= {job.id: job for job in seen.jobs}
            told = {job_id: job for job_id, job in told.items() if job_id not in seen.ended}
            listed = [job for job in line["response"]["jobs"] if job["state"] != INACTIVE]
            assert {job_id: _as_listed(job) for job_id, job in told.items()} == {
                job["id"]: {key: job.get(key) for key in _LISTED} for job in listed
            }
            assert {job.id: job for job in queue.complete(line["t"]).jobs} == told
            compared += 1
    assert compared >= 10


_LISTED = ("state", "urgency", "priority", "userid", "t_submit", "duration")


def _as_listed(job: Job) -> dict[str, object]:
    number = next(bit for bit, name in STATES.items() if name == job.state)
    # The job list shows no priority until one is computed.
    priority = None if job.state is JobState.DEPEND else job.priority
    values = (number, job.urgency, priority, job.userid, job.submitted_at, job.duration_s)
    return dict(zip(_LISTED, values, strict=True))


def test_the_recorded_queue_while_no_node_was_there() -> None:
    queue = JobQueue()
    for line in job_events():
        if line["t"] < 1.0:
            queue.apply(line["jobid"], line["name"], line["timestamp"], line["context"], line.get("jobspec"))
    seen = queue.complete(5.0)
    assert (seen.started_s, seen.complete, seen.unreadable, seen.ended) == (5.0, True, (), ())
    assert [(job.state, job.shape, job.urgency) for job in seen.jobs] == [
        (JobState.SCHED, Shape(1, 1, nodes=2, exclusive=True), 16),
        (JobState.SCHED, Shape(1, 2, gpus_per_slot=1), 16),
        (JobState.SCHED, Shape(1, 1, constraint=HasProperty("small")), 16),
        (JobState.DEPEND, Shape(1, 1), 16),
        (JobState.SCHED, Shape(1, 1), 0),
    ]


# --- states -----------------------------------------------------------------------------------------------


def test_a_job_s_life() -> None:
    journal, states = Journal(), []
    life: list[tuple[str, dict[str, Any]]] = [
        ("submit", {}),
        ("validate", {}),
        ("dependency-add", {"description": "after-finish=f1"}),
        ("dependency-remove", {"description": "after-finish=f1"}),
        ("depend", {}),
        ("priority", {"priority": 20}),
        ("annotations", {"annotations": {"sched": {"t_estimate": 5.0}}}),
        ("memo", {"node": "coming"}),
        ("alloc", {}),
        ("prolog-start", {"description": "boot"}),
        ("prolog-finish", {"description": "boot", "status": 0}),
        ("start", {}),
        ("finish", {"status": 0}),
        ("release", {"ranks": "all", "final": True}),
        ("free", {}),
    ]
    for event, context in life:
        journal.says(7, event, **context)
        states.append(str(journal.job(7).state))
    assert states == ["new", *["depend"] * 3, "priority", *["sched"] * 3, *["run"] * 4, *["cleanup"] * 3]
    assert journal.job(7).priority == 20
    assert journal.says(7, "clean").ids() == []


def test_a_job_that_depends_on_others_names_them_while_it_does() -> None:
    """The descriptions are those of flux-core 0.88. Its user may write an id in any form."""
    journal = Journal().says(7, "submit")
    for description in (
        "after-success=ƒSqrUud",
        "after-start=ƒSqrUud",
        "after-failure=16961765377",
        "begin-time=9.0",
    ):
        journal.says(7, "dependency-add", description=description)
    journal.says(7, "dependency-remove", description="after-start=ƒSqrUud").says(7, "validate")
    assert journal.job(7).awaits == (16961765376, 16961765377)
    journal.says(7, "dependency-remove", description="after-success=ƒSqrUud")
    assert journal.job(7).awaits == (16961765377,)
    assert journal.says(7, "dependency-remove", description="after-failure=16961765377").job(7).awaits == ()


def test_a_job_that_waits_for_its_begin_time_says_when_that_is() -> None:
    """The description is that of flux-core 0.88."""
    journal = Journal().says(7, "submit").says(7, "dependency-add", description="begin-time=1795490531.735")
    journal.says(7, "validate")
    assert journal.job(7).not_before_at == 1795490531.735
    journal.says(7, "dependency-remove", description="begin-time=1795490531.735")
    assert journal.job(7).not_before_at is None


def test_the_hold_of_a_delegated_job_is_no_begin_time_of_its_user() -> None:
    jobspec = {**JOBSPEC, "attributes": {"system": {**JOBSPEC["attributes"]["system"], DELEGATE: "b"}}}
    journal = Journal().says(7, "submit", jobspec=jobspec).says(7, "dependency-add", description=HOLD)
    assert journal.says(7, "validate").job(7).not_before_at is None


@pytest.mark.parametrize("moment", ["", "x", "nan", "inf", "-1", "1e300", "1e14", "9" * 400])
def test_a_begin_time_that_no_calendar_has_is_not_named(moment: str) -> None:
    journal = Journal().says(7, "submit").says(7, "dependency-add", description=f"begin-time={moment}")
    assert journal.says(7, "validate").job(7).not_before_at is None


def test_a_job_names_few_of_very_many_jobs_that_it_depends_on() -> None:
    journal = Journal().says(7, "submit", "validate")
    for number in range(1, 100):
        journal.says(7, "dependency-add", description=f"after-finish={number}")
    assert journal.job(7).awaits == tuple(range(1, AWAITED_MAX + 1))


@pytest.mark.parametrize(
    "description", ["after-finish=", "after-finish=x!", "after-finish", "singleton=7", "", 7, None]
)
def test_a_dependency_on_no_job_that_can_be_read_names_none(description: object) -> None:
    assert (
        Journal().says(7, "submit", "validate").says(7, "dependency-add", description=description).job(7).awaits
        == ()
    )


def test_a_submitted_job_is_reported_with_its_values() -> None:
    job = Journal().says(7, "submit", urgency=31, userid=1001).job(7)
    assert job == Job(
        JobId(7), JobState.NEW, JobRequest(Shape(2, 1), 60.0), 1.0, urgency=31, priority=31, userid=1001
    )


@pytest.mark.parametrize(
    ("event", "context"),
    [("urgency", {"urgency": 0, "userid": 0}), ("jobspec-update", {}), ("flux-restart", {})],
)
def test_a_waiting_job_goes_back_for_its_priority(event: str, context: dict[str, object]) -> None:
    journal = Journal().waits(7).says(7, event, **context)
    assert journal.job(7).state is JobState.PRIORITY
    assert journal.says(7, "priority", priority=3).job(7).state is JobState.SCHED
    assert journal.job(7).priority == 3


@pytest.mark.parametrize("event", ["flux-restart", "depend", "validate", "jobspec-update", "start", "nonsense"])
def test_a_running_job_runs_on(event: str) -> None:
    assert Journal().runs(7).says(7, event).job(7).state is JobState.RUN


def test_a_job_is_held_and_released_by_its_urgency() -> None:
    journal = Journal().waits(7).says(7, "urgency", urgency=0).says(7, "priority", priority=0)
    assert (journal.job(7).urgency, journal.job(7).priority) == (0, 0)
    journal.says(7, "urgency", urgency=16).says(7, "priority", priority=16)
    assert (journal.job(7).urgency, journal.job(7).priority, journal.job(7).state) == (16, 16, JobState.SCHED)


def test_a_priority_counts_only_while_the_job_waits() -> None:
    assert Journal().runs(7).says(7, "priority", priority=99).job(7).priority == 16


@pytest.mark.parametrize(("severity", "state"), [(0, JobState.CLEANUP), (1, JobState.SCHED), (7, JobState.SCHED)])
def test_only_a_fatal_exception_ends_a_job(severity: int, state: JobState) -> None:
    journal = Journal().waits(7).says(7, "exception", type="cancel", severity=severity, userid=0)
    assert journal.job(7).state is state


def test_a_fatal_exception_before_the_job_is_valid_leaves_its_end_to_the_next_event() -> None:
    """RFC 21: in state NEW only ``validate`` and ``invalidate`` move a job."""
    journal = Journal().says(7, "submit").says(7, "exception", type="cancel", severity=0, userid=0)
    assert journal.job(7).state is JobState.NEW
    assert journal.says(7, "validate").job(7).state is JobState.DEPEND


def test_a_job_refused_at_submission_ends_without_a_clean() -> None:
    assert Journal().says(7, "submit", "invalidate").ids() == []


# --- updates ----------------------------------------------------------------------------------------------


def test_updates_change_a_waiting_job() -> None:
    journal = Journal().waits(7)
    journal.says(7, "jobspec-update", **{"attributes.system.duration": 3600.0, "attributes.system.queue": "big"})
    journal.says(7, "jobspec-update", **{"attributes.system.constraints": {"properties": ["gpu"]}})
    job = journal.job(7)
    assert (job.duration_s, job.queue, job.shape) == (3600.0, "big", Shape(2, 1, constraint=HasProperty("gpu")))


def test_updates_already_in_the_jobspec_may_be_applied_again() -> None:
    # The journal begins with the current jobspec, and then repeats every event.
    now = {**JOBSPEC, "attributes": {"system": {"duration": 3600.0}}}
    journal = (
        Journal().says(7, "submit", jobspec=now).says(7, "jobspec-update", **{"attributes.system.duration": 90.0})
    )
    journal.says(7, "jobspec-update", **{"attributes.system.duration": 3600.0})
    assert journal.job(7).duration_s == 3600.0


# --- changes ----------------------------------------------------------------------------------------------


def test_each_change_is_reported_once() -> None:
    journal = Journal().waits(7)
    seen = journal.queue.changes(3.0)
    assert (seen.started_s, seen.complete, [job.id for job in seen.jobs]) == (3.0, False, [7])
    assert not journal.queue.changes(4.0).jobs
    journal.says(7, "annotations", annotations={}).says(7, "memo", user="x")
    assert not journal.queue.changes(5.0).jobs
    journal.says(7, "alloc")
    assert [job.state for job in journal.queue.changes(6.0).jobs] == [JobState.RUN]
    journal.says(7, "finish", "clean")
    seen = journal.queue.changes(7.0)
    assert (seen.jobs, seen.ended) == ((), (7,))
    assert not journal.queue.changes(8.0).ended


def test_a_job_that_lives_only_between_two_looks_is_never_reported() -> None:
    seen = Journal().runs(7).says(7, "finish", "clean").queue.changes(1.0)
    assert (seen.jobs, seen.ended) == ((), ())


def test_the_complete_queue_includes_all_changes() -> None:
    journal = Journal().waits(7).waits(8)
    assert [job.id for job in journal.queue.complete(1.0).jobs] == [7, 8]
    assert not journal.queue.changes(2.0).jobs


def test_a_job_that_changed_back_is_not_reported() -> None:
    journal = Journal().waits(7)
    journal.queue.changes(1.0)
    journal.says(7, "urgency", urgency=3).says(7, "urgency", urgency=16).says(7, "priority", priority=16)
    assert not journal.queue.changes(2.0).jobs


# --- what cannot be read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("jobspec", [None, [], {}, {**JOBSPEC, "resources": 5}])
def test_a_jobspec_that_cannot_be_read_makes_an_unreadable_job(jobspec: object) -> None:
    journal = Journal().says(7, "submit", jobspec=jobspec).waits(8)
    seen = journal.queue.changes(1.0)
    assert [job.id for job in seen.unreadable] == [7]
    assert [job.id for job in seen.jobs] == [8]
    assert journal.says(7, "validate", "depend").queue.changes(2.0).unreadable == ()
    assert journal.says(7, "clean").queue.changes(3.0).ended == (7,)


def test_why_a_job_cannot_be_read_contains_nothing_that_controls_a_terminal() -> None:
    system = {"duration": 0, "constraints": {"\x1b[2J": ["\x07"]}}
    journal = Journal().says(7, "submit", jobspec={**JOBSPEC, "attributes": {"system": system}}).waits(8)
    journal.says(8, "jobspec-update", **{"\x1b[2J..b": 1})
    for job in (7, 8):
        assert journal.why(job).isprintable()
        assert r"\x1b[2J" in journal.why(job)


@pytest.mark.parametrize(
    ("event", "context", "why"),
    [
        ("urgency", {}, "event urgency: context.urgency: a whole number is needed, not nothing"),
        ("urgency", {"urgency": True}, "event urgency: context.urgency: a whole number is needed, not True"),
        (
            "priority",
            {"priority": "high"},
            "event priority: context.priority: a whole number is needed, not 'high'",
        ),
        ("exception", {}, "event exception: context.severity: a whole number is needed, not nothing"),
        ("jobspec-update", {"a..b": 1}, "event jobspec-update: updates: a path such as"),
    ],
)
def test_an_event_that_cannot_be_read_makes_an_unreadable_job(
    event: str, context: dict[str, Any], why: str
) -> None:
    journal = Journal().waits(7).says(7, event, **context)
    assert journal.why(7).startswith(why)
    assert journal.says(7, "alloc").why(7).startswith(why)


@pytest.mark.parametrize(("timestamp", "context"), [("now", SUBMIT), (None, SUBMIT), (1.0, None), (1.0, {})])
def test_a_submission_that_cannot_be_read(timestamp: object, context: object) -> None:
    queue = JobQueue()
    queue.apply(7, "submit", timestamp, context, JOBSPEC)
    assert [job.id for job in queue.complete(0.0).unreadable] == [7]


def test_events_of_a_job_whose_submission_was_not_seen_are_ignored() -> None:
    assert Journal().says(7, "priority", "alloc", "urgency", "clean").ids() == []


EVENTS = st.sampled_from(["submit", "validate", "depend", "priority", "alloc", "start", "finish", "clean"]) | (
    st.sampled_from(["invalidate", "urgency", "jobspec-update", "exception", "flux-restart", "memo", "nonsense"])
)
VALUES = st.integers(-1, 31) | st.none() | st.booleans() | st.text(max_size=3) | st.floats()
KEYS = st.sampled_from(
    ["userid", "urgency", "priority", "severity", "type", "attributes.system.duration", "resources", "attributes"]
)
CONTEXTS = st.dictionaries(KEYS, VALUES, max_size=4).map(lambda context: SUBMIT | context) | VALUES
STREAM = st.lists(
    st.tuples(
        st.integers(1, 3), EVENTS, VALUES | st.just(5.0), CONTEXTS, st.just(JOBSPEC) | st.none() | st.just({"a": 1})
    ),
    max_size=30,
)


@given(STREAM, st.integers(1, 10))
def test_events_in_any_order_never_raise_and_the_changes_add_up(
    stream: list[tuple[int, str, object, object, object]], told_every: int
) -> None:
    queue = JobQueue()
    told: dict[JobId, Job | UnreadableJob] = {}

    def tell() -> None:
        seen = queue.changes(0.0)
        told.update({job.id: job for job in seen.jobs} | {job.id: job for job in seen.unreadable})
        for job_id in seen.ended:
            told.pop(job_id, None)

    for count, (job_id, name, timestamp, context, jobspec) in enumerate(stream):
        queue.apply(job_id, name, timestamp, context, jobspec)
        if count % told_every == 0:
            tell()
    tell()
    complete = queue.complete(0.0)
    assert told == {job.id: job for job in complete.jobs} | {job.id: job for job in complete.unreadable}


def test_what_concerns_ranks() -> None:
    concerning = {line["name"] for line in job_events() if changes_allocation(line["name"])}
    assert concerning == {"alloc", "release", "free"}


# --- large jobspecs ---------------------------------------------------------------------------------------


def _large(kib: int) -> dict[str, Any]:
    """A jobspec whose constraint takes so much memory beyond that of a plain jobspec."""
    hosts = "h" * (kib * 1024 + PLAIN_BYTES - size_bytes(_with_hosts("")))
    return _with_hosts(hosts)


def _with_hosts(hosts: str) -> dict[str, Any]:
    constraints = {"hostlist": [hosts]}
    return {**JOBSPEC, "attributes": {"system": {"duration": 60, "constraints": constraints}}}


def test_a_user_s_large_jobspecs_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_journal, "USER_BYTES_MAX", 100 * 1024)
    journal = Journal()
    for number in range(1, 5):
        journal.says(number, "submit", jobspec=_large(30))
    assert journal.ids() == [1, 2, 3]
    assert "the user's large jobspecs take more than" in journal.why(4)
    journal.says(5, "submit", jobspec=_large(30), userid=2000)
    assert journal.ids() == [1, 2, 3, 5]


def test_plain_jobspecs_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_journal, "USER_BYTES_MAX", 0)
    journal = Journal()
    for number in range(1, 50):
        journal.says(number, "submit", jobspec=_large(0))
    assert len(journal.ids()) == 49


def test_what_an_ended_job_took_may_be_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_journal, "USER_BYTES_MAX", 30 * 1024)
    journal = Journal()
    for number in range(1, 5):
        assert journal.says(number, "submit", jobspec=_large(30)).ids() == [number]
        journal.says(number, "clean")


def test_a_job_whose_jobspec_shrinks_or_is_submitted_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_journal, "USER_BYTES_MAX", 30 * 1024)
    journal = Journal().says(1, "submit", jobspec=_large(30)).says(1, "submit", jobspec=_large(30))
    journal.says(1, "jobspec-update", **{"attributes.system.constraints": {"hostlist": ["h"]}})
    assert journal.says(2, "submit", jobspec=_large(30)).ids() == [1, 2]


def test_all_users_large_jobspecs_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_journal, "ALL_BYTES_MAX", 100 * 1024)
    journal = Journal()
    for number in range(1, 5):
        journal.says(number, "submit", jobspec=_large(30), userid=number)
    assert journal.ids() == [1, 2, 3]
    assert "all users' large jobspecs take more than" in journal.why(4)


def test_a_dropped_jobspec_cannot_be_updated() -> None:
    journal = Journal().says(1, "submit", jobspec=_large(1000))
    journal.says(1, "jobspec-update", **{"attributes.system.duration": 5})
    assert "take more than 256 KiB" in journal.why(1)
