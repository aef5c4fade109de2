"""The contract of every ``HomePort``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from nodemanager.actors.delegation.requests import INERT, pretended_resources
from nodemanager.core.jobs import JobId
from nodemanager.delegation.home_port import (
    AppendOutput,
    CountOutput,
    FindJob,
    HoldJob,
    HomeDone,
    HomeEvents,
    HomeLost,
    HomeRefused,
    HomeRequest,
    HomeSynced,
    JobFound,
    JobspecRead,
    OutputCounted,
    PostEvent,
    RaiseOnJob,
    ReadJobspec,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowMemo,
    ShowRunning,
    TakeJob,
    Validate,
)
from nodemanager.delegation.jobs import (
    DURATION,
    EXEC,
    HOLD,
    PROXY_R,
    SUBMITTED,
    TAKEN,
    EventlogEntry,
    Failure,
    Phase,
)
from nodemanager.delegation.jobspec import read_duration_s
from nodemanager.delegation.relay import EXEC as EXEC_LOG
from nodemanager.delegation.relay import OUTPUT
from tests.contract.home_subjects import SUBJECTS, Subject

NEVER_WAS = JobId(5)
pytestmark = pytest.mark.xdist_group("live")  # they must not compete for processors


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with SUBJECTS[request.param]() as made:
        yield made


def delegated(subject: Subject) -> JobId:
    """A proxy that waits on our hold."""
    job = subject.submit(100, target="b")
    subject.until_event(job, "validate")
    return job


def running(subject: Subject) -> JobId:
    """A proxy that is shown as running."""
    job = delegated(subject)
    done(subject, RemoveDependency(job, HOLD))
    subject.until_event(job, "alloc")
    done(subject, ShowRunning(job))
    subject.until_event(job, "start")
    return job


def ended(subject: Subject) -> JobId:
    job = delegated(subject)
    end(subject, job)
    return job


def end(subject: Subject, job: JobId) -> None:
    done(subject, RaiseOnJob(job, Failure("cancel", "the end of the test")))
    subject.until_event(job, "clean")


def done(subject: Subject, request: HomeRequest) -> None:
    assert subject.answer(request) == HomeDone(request)


def refused(subject: Subject, request: HomeRequest) -> str:
    answer = subject.answer(request)
    assert isinstance(answer, HomeRefused), answer
    assert answer.request == request
    assert answer.why
    return answer.why


@pytest.fixture
def busy(subject: Subject) -> JobId:
    """A job that keeps others from running."""
    return subject.keep_busy()


def a_line(text: str, stream: str = "stdout") -> str:
    data = {"stream": stream, "rank": "0", "data": text}
    return json.dumps({"timestamp": 1.0, "name": "data", "context": data}) + "\n"


def a_placement() -> EventlogEntry:
    return EventlogEntry(SUBMITTED, 1.0, {"peer": "b", "jobid": 7, "uri": "local:///b"})


# --- what it reports ---


def test_it_tells_when_the_instance_started(subject: Subject) -> None:
    assert subject.began_at <= subject.until(HomeSynced).started_at <= subject.now_at()


def test_a_delegated_job_is_reported_from_its_submission_and_is_held(subject: Subject) -> None:
    job = delegated(subject)
    first = subject.until(HomeEvents, lambda it: it.job == job)
    assert first.events[0].name == "submit"
    assert (first.target, first.duration_s, first.nodelist) == ("b", 100.0, "b")
    proxy = subject.proxy(job)
    assert proxy.held
    assert proxy.waits_for == {HOLD}
    assert (proxy.phase, proxy.urgency) == (Phase.WAITING, 16)
    assert proxy.userid == subject.userid
    assert subject.began_at <= proxy.bypass_at
    end(subject, job)


def test_every_event_is_reported_once_and_in_order(subject: Subject) -> None:
    job = running(subject)
    done(subject, ShowFinished(job, 0))
    subject.until_event(job, "clean")
    told = {
        "submit",
        "dependency-add",
        "validate",
        "dependency-remove",
        "depend",
        "alloc",
        "start",
        "finish",
        "clean",
    }
    assert [name for name in subject.names(job) if name in told] == [
        "submit", "dependency-add", "validate", "dependency-remove", "depend", "alloc", "start", "finish", "clean"
    ]  # fmt: skip


# --- requests ---


def test_the_jobspec_is_what_the_user_submitted(subject: Subject) -> None:
    job = delegated(subject)
    read = subject.answer(ReadJobspec(job))
    assert isinstance(read, JobspecRead)
    system = read.jobspec["attributes"]["system"]
    assert system["dependencies"] == [{"scheme": "delegate", "value": "b"}]
    assert not system.keys() & {"delegate", "alloc-bypass", "exec"}
    assert read_duration_s(read.jobspec) == 100.0
    end(subject, job)
    again = subject.answer(ReadJobspec(job))
    assert again == read, "also after its end"


def test_an_event_is_posted(subject: Subject) -> None:
    job = delegated(subject)
    done(subject, PostEvent(job, a_placement()))
    assert subject.until_event(job, SUBMITTED) == a_placement().context
    placed = subject.proxy(job).placed
    assert placed is not None
    assert (placed.peer, placed.remote) == ("b", 7)
    end(subject, job)


def test_a_proxy_is_named_after_another_node(subject: Subject) -> None:
    job = delegated(subject)
    done(subject, PostEvent(job, EventlogEntry("jobspec-update", 1.0, {PROXY_R: pretended_resources("c")})))
    subject.until_event(job, "jobspec-update")
    assert subject.proxy(job).nodelist == "c"
    end(subject, job)


def test_without_the_hold_it_gets_its_pretended_resources(subject: Subject) -> None:
    job = delegated(subject)
    done(subject, RemoveDependency(job, HOLD))
    assert subject.until_event(job, "alloc")["bypass"] is True
    assert not subject.proxy(job).held
    done(subject, RemoveDependency(job, HOLD))
    end(subject, job)
    assert subject.names(job).count("alloc") == 1
    done(subject, RemoveDependency(job, HOLD))


def test_a_validation_makes_alloc_bypass_take_note_again(subject: Subject) -> None:
    job = delegated(subject)
    noted = subject.names(job).count("set-flags")
    done(subject, Validate(job, 100.0))
    assert subject.until_event(job, "jobspec-update")[DURATION] == 100.0
    subject.wait("it is noted once more", lambda: subject.names(job).count("set-flags") == noted + 1)
    assert subject.proxy(job).duration_wanted_s is None
    end(subject, job)


def test_it_runs_and_to_show_it_once_more_is_no_error(subject: Subject) -> None:
    job = running(subject)
    assert subject.proxy(job).phase is Phase.RUNNING
    done(subject, ShowRunning(job))
    end(subject, job)
    assert subject.names(job).count("start") == 1


def test_it_ends_with_a_status(subject: Subject) -> None:
    job = running(subject)
    done(subject, ShowFinished(job, 768))
    assert subject.until_event(job, "finish")["status"] == 768
    subject.until_event(job, "clean")
    assert subject.proxy(job).failure is None


def test_a_failure_of_a_job_that_waits(subject: Subject) -> None:
    job = delegated(subject)
    done(subject, RaiseOnJob(job, Failure("delegate", "b: lost")))
    subject.until_event(job, "clean")
    assert subject.proxy(job).failure == Failure("delegate", "b: lost")
    assert "finish" not in subject.names(job)


@pytest.mark.parametrize(("status", "shown"), [(14, 142 << 8), (768, 768), (None, 15)])
def test_a_failure_of_a_job_that_runs(subject: Subject, status: int | None, shown: int) -> None:
    job = running(subject)
    done(subject, RaiseOnJob(job, Failure("timeout", "b: too long"), status))
    assert subject.until_event(job, "finish")["status"] == shown
    subject.until_event(job, "clean")
    assert subject.proxy(job).failure == Failure("timeout", "b: too long")
    done(subject, RaiseOnJob(job, Failure("cancel", "once more")))
    assert subject.names(job).count("exception") == 1


def test_its_user_reads_a_memo(subject: Subject) -> None:
    job = delegated(subject)
    done(subject, ShowMemo(job, "b f7"))
    subject.wait("the memo is shown", lambda: subject.memo(job) == "b f7")
    end(subject, job)


def test_output_is_appended_in_order_and_counted(subject: Subject) -> None:
    job = running(subject)
    nothing = subject.answer(CountOutput(job))
    assert nothing == OutputCounted(job, {OUTPUT: 0, EXEC_LOG: 0})
    service = {"leader-rank": 0, "size": 1, "service": "shell"}
    shell = json.dumps({"timestamp": 1.0, "name": "shell.init", "context": service}) + "\n"
    header = {"version": 1, "encoding": {"stdout": "UTF-8", "stderr": "UTF-8"},
              "count": {"stdout": 1, "stderr": 1}, "options": {}}  # fmt: skip
    first = json.dumps({"timestamp": 1.0, "name": "header", "context": header}) + "\n"
    requests = [
        AppendOutput(job, {EXEC_LOG: shell}),
        AppendOutput(job, {OUTPUT: first + a_line("one\n")}),
        AppendOutput(job, {OUTPUT: a_line("two\n")}),
        AppendOutput(job, {OUTPUT: a_line("three\n")}),
    ]
    for request in requests:
        subject.port.send(request)
    for request in requests:
        subject.until(HomeDone, lambda it, request=request: it.request == request)  # type: ignore[misc]
    before = len(subject.facts)
    subject.port.send(CountOutput(job))
    subject.wait("it is counted", lambda: any(isinstance(it, OutputCounted) for it in subject.facts[before:]))
    counted = next(it for it in subject.facts[before:] if isinstance(it, OutputCounted))
    assert counted.counts == {OUTPUT: 4, EXEC_LOG: 1}
    done(subject, ShowFinished(job, 0))
    subject.until_event(job, "clean")
    assert subject.output(job).split() == ["one", "two", "three"]


def test_a_job_without_the_dependency_is_reported_whole_once_it_is_taken(subject: Subject, busy: JobId) -> None:
    job = subject.submit(50)
    done(subject, TakeJob(job, "b", 16))
    assert subject.until_event(job, TAKEN) == {"target": "b", "urgency": 16}
    first = subject.until(HomeEvents, lambda it: it.job == job)
    assert (first.events[0].name, first.target, first.duration_s) == ("submit", "", 50.0)
    assert subject.proxy(job).taken
    assert busy not in {it.job for it in subject.facts if isinstance(it, HomeEvents)}
    end(subject, job)


def test_a_taken_job_is_held_made_inert_and_released(subject: Subject, busy: JobId) -> None:
    job = subject.submit(50)
    done(subject, TakeJob(job, "b", 16))
    subject.until_event(job, TAKEN)
    done(subject, HoldJob(job))
    assert subject.until_event(job, "urgency")["urgency"] == 0
    done(subject, PostEvent(job, EventlogEntry("jobspec-update", 1.0, {EXEC: INERT})))
    subject.until_event(job, "jobspec-update")
    assert subject.proxy(job).inert
    done(subject, ReleaseJob(job, 16))
    subject.wait("it is released", lambda: subject.proxy(job).urgency == 16)
    end(subject, job)


def test_a_taken_job_that_is_inert_is_shown_as_a_proxy(subject: Subject, busy: JobId) -> None:
    """As the delegator does, step by step."""
    job = subject.submit(50)
    done(subject, TakeJob(job, "b", 16))
    done(subject, HoldJob(job))
    done(subject, PostEvent(job, EventlogEntry("jobspec-update", 1.0, {EXEC: INERT})))
    done(subject, PostEvent(job, EventlogEntry("jobspec-update", 1.0, {PROXY_R: pretended_resources("b")})))
    done(subject, Validate(job, 50.0))
    assert subject.until_event(job, "alloc")["bypass"] is True
    done(subject, ShowRunning(job))
    subject.until_event(job, "start")
    done(subject, ShowFinished(job, 256))
    subject.until_event(job, "clean")
    assert subject.until_event(job, "finish")["status"] == 256


def test_a_job_that_has_its_resources_cannot_be_held(subject: Subject, busy: JobId) -> None:
    done(subject, TakeJob(busy, "b", 16))
    subject.until_event(busy, "start")
    refused(subject, HoldJob(busy))
    refused(subject, ReleaseJob(busy, 16))
    end(subject, busy)


def test_a_job_that_is_not_active_may_be_known(subject: Subject) -> None:
    job = ended(subject)
    assert subject.answer(FindJob(job)) == JobFound(job, known=True)
    assert subject.answer(FindJob(NEVER_WAS)) == JobFound(NEVER_WAS, known=False)


# --- refusals ---

ON_A_JOB: dict[str, Callable[[JobId], HomeRequest]] = {
    "post": lambda job: PostEvent(job, a_placement()),
    "validate": lambda job: Validate(job, 50.0),
    "show running": ShowRunning,
    "finish": lambda job: ShowFinished(job, 0),
    "memo": lambda job: ShowMemo(job, "b f7"),
    "append": lambda job: AppendOutput(job, {OUTPUT: a_line("too late\n")}),
    "take": lambda job: TakeJob(job, "b", 16),
    "hold": HoldJob,
    "release": lambda job: ReleaseJob(job, 16),
}


@pytest.mark.parametrize("request_", ON_A_JOB)
def test_a_job_that_has_ended_is_refused(subject: Subject, request_: str) -> None:
    job = ended(subject)
    before = subject.names(job)
    refused(subject, ON_A_JOB[request_](job))
    assert subject.names(job) == before


@pytest.mark.parametrize("request_", [*ON_A_JOB, "read"])
def test_a_job_that_never_was_is_refused(subject: Subject, request_: str) -> None:
    refused(subject, {**ON_A_JOB, "read": ReadJobspec}[request_](NEVER_WAS))


def test_to_end_a_job_that_never_was_or_to_remove_its_hold_is_no_error(subject: Subject) -> None:
    done(subject, RaiseOnJob(NEVER_WAS, Failure("cancel", "ended")))
    done(subject, RemoveDependency(NEVER_WAS, HOLD))


def test_a_job_that_is_held_does_not_run(subject: Subject) -> None:
    job = delegated(subject)
    for request in (ShowRunning(job), ShowFinished(job, 0), AppendOutput(job, {OUTPUT: a_line("too early\n")})):
        refused(subject, request)
    assert subject.proxy(job).phase is Phase.WAITING
    end(subject, job)


def test_output_of_a_job_that_does_not_run_cannot_be_counted(subject: Subject) -> None:
    held = delegated(subject)
    for job in (held, ended(subject), NEVER_WAS):
        subject.port.send(CountOutput(job))
        assert subject.until(HomeRefused, lambda it, job=job: it.request == CountOutput(job)).why  # type: ignore[misc]
    end(subject, held)


# --- lost connections ---


def test_after_a_restart_active_jobs_are_reported_whole_and_a_running_one_still_runs(
    subject: Subject, busy: JobId
) -> None:
    over, held, runs, taken = ended(subject), delegated(subject), running(subject), subject.submit(50)
    done(subject, TakeJob(taken, "b", 16))
    done(subject, HoldJob(taken))
    first = subject.until(HomeSynced)
    subject.facts.clear()
    subject.restart()
    assert not subject.until(HomeLost).setup_fault
    synced = subject.until(HomeSynced)
    assert synced.started_at > first.started_at
    told = subject.facts[: subject.facts.index(synced)]
    again = {it.job: it for it in told if isinstance(it, HomeEvents) and it.events[0].name == "submit"}
    assert {held, runs, taken} <= again.keys()
    assert over not in again
    assert (again[held].target, again[held].nodelist, again[held].duration_s) == ("b", "b", 100.0)
    assert subject.proxy(runs).phase is Phase.RUNNING
    assert subject.proxy(taken).taken
    done(subject, ShowFinished(runs, 0))
    subject.until_event(runs, "clean")
    assert subject.proxy(held).bypass_at < synced.started_at, "alloc-bypass forgot it"
    done(subject, Validate(held, 100.0))
    done(subject, RemoveDependency(held, HOLD))
    subject.until_event(held, "alloc")
    end(subject, held)
    end(subject, taken)


def test_a_manager_that_lost_the_name_changes_nothing(subject: Subject) -> None:
    job = delegated(subject)
    subject.facts.clear()
    back = subject.let_another_act()
    subject.port.send(PostEvent(job, a_placement()))
    lost = subject.until(HomeLost)
    assert not lost.setup_fault
    assert lost.why
    back()
    subject.until(HomeSynced)
    assert SUBMITTED not in subject.names(job)
    assert not any(isinstance(it, HomeDone | HomeRefused) for it in subject.facts)
    end(subject, job)


def test_once_it_is_stopped_it_tells_nothing(subject: Subject) -> None:
    job = delegated(subject)
    subject.port.stop()
    told = len(subject.facts)
    later = subject.submit(100, target="b")
    subject.wait("both are active", lambda: {job, later} <= subject.active())
    assert len(subject.facts) == told
    subject.connect()
    assert {job, later} <= {it.job for it in subject.facts if isinstance(it, HomeEvents)}
    end(subject, job)
    end(subject, later)
