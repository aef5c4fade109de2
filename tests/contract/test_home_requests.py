"""The contract of every ``HomePort``: its requests, and which of them it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from signal import Signals

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import (
    DURATION,
    HOLD,
    SUBMITTED,
    TAKEN,
    Failure,
    PeerName,
    Phase,
)
from nodemanager.delegation.jobspec import read_duration_s
from nodemanager.delegation.next_step import make_inert, name_nodes
from nodemanager.delegation.ports import (
    AppendOutput,
    CountOutput,
    FindJob,
    HoldJob,
    HomeDone,
    HomeEvents,
    HomeRefused,
    HomeRequest,
    JobFound,
    JobspecRead,
    OutputCounted,
    RaiseOnJob,
    ReadJobspec,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowMemo,
    ShowRunning,
    Validate,
)
from nodemanager.delegation.relay import EXEC as EXEC_LOG
from nodemanager.delegation.relay import OUTPUT
from tests.contract.home_jobs import (
    NEVER_WAS,
    a_line,
    a_placement,
    a_take,
    delegated,
    done,
    end,
    ended,
    refused,
    running,
)
from tests.contract.home_subjects import SUBJECTS, Subject

pytestmark = pytest.mark.xdist_group("live")  # they must not compete for processors


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with SUBJECTS[request.param]() as made:
        yield made


@pytest.fixture
def busy(subject: Subject) -> JobId:
    """A job that keeps others from running."""
    return subject.keep_busy()


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
    done(subject, a_placement(job))
    assert subject.until_event(job, SUBMITTED) == a_placement(job).event.context
    placed = subject.proxy(job).placed
    assert placed is not None
    assert (placed.peer, placed.remote) == ("b", 7)
    end(subject, job)


def test_a_proxy_is_named_after_another_node(subject: Subject) -> None:
    job = delegated(subject)
    done(subject, name_nodes(job, 1.0, PeerName("c")))
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
    by_signal = int(Signals.SIGTERM)
    assert subject.until_event(job, "finish")["status"] == (shown if subject.carries_wait_status() else by_signal)
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
    done(subject, a_take(job))
    assert subject.until_event(job, TAKEN) == {"target": "b", "urgency": 16}
    first = subject.until(HomeEvents, lambda it: it.job == job)
    assert (first.events[0].name, first.target, first.duration_s) == ("submit", "", 50.0)
    assert subject.proxy(job).taken
    assert busy not in {it.job for it in subject.facts if isinstance(it, HomeEvents)}
    end(subject, job)


def test_a_taken_job_is_held_made_inert_and_released(subject: Subject, busy: JobId) -> None:
    job = subject.submit(50)
    done(subject, a_take(job))
    subject.until_event(job, TAKEN)
    done(subject, HoldJob(job))
    assert subject.until_event(job, "urgency")["urgency"] == 0
    done(subject, make_inert(job, 1.0))
    subject.until_event(job, "jobspec-update")
    assert subject.proxy(job).inert
    done(subject, ReleaseJob(job, 16))
    subject.wait("it is released", lambda: subject.proxy(job).urgency == 16)
    end(subject, job)


def test_a_taken_job_that_is_inert_is_shown_as_a_proxy(subject: Subject, busy: JobId) -> None:
    """As the delegator does, step by step."""
    job = subject.submit(50)
    done(subject, a_take(job))
    done(subject, HoldJob(job))
    done(subject, make_inert(job, 1.0))
    done(subject, name_nodes(job, 1.0, PeerName("b")))
    done(subject, Validate(job, 50.0))
    assert subject.until_event(job, "alloc")["bypass"] is True
    done(subject, ShowRunning(job))
    subject.until_event(job, "start")
    done(subject, ShowFinished(job, 256))
    subject.until_event(job, "clean")
    assert subject.until_event(job, "finish")["status"] == 256


def test_a_job_that_has_its_resources_cannot_be_held(subject: Subject, busy: JobId) -> None:
    done(subject, a_take(busy))
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
    "post": a_placement,
    "validate": lambda job: Validate(job, 50.0),
    "show running": ShowRunning,
    "finish": lambda job: ShowFinished(job, 0),
    "memo": lambda job: ShowMemo(job, "b f7"),
    "append": lambda job: AppendOutput(job, {OUTPUT: a_line("too late\n")}),
    "take": a_take,
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


def test_to_count_the_output_of_a_job_that_does_not_run_is_refused_once(subject: Subject) -> None:
    held = delegated(subject)
    for job in (held, ended(subject), NEVER_WAS):
        before = len(subject.facts)
        refused(subject, CountOutput(job))
        done(subject, ShowMemo(held, f"{job}"))  # whatever came before has been answered
        refusals = [it for it in subject.facts[before:] if isinstance(it, HomeRefused)]
        assert [it.request for it in refusals] == [CountOutput(job)]
    end(subject, held)
