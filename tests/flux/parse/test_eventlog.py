"""How a job ended, read from the eventlogs that Flux writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodemanager.core.jobs import JobException
from nodemanager.flux.parse.eventlog import EXCEPTIONS_MAX, NOTE_MAX, read_job_end


def eventlog(*events: tuple[str, dict[str, Any]]) -> str:
    """An eventlog with an event a second."""
    entries = [
        {"timestamp": float(at), "name": name, "context": context} for at, (name, context) in enumerate(events)
    ]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


SUBMIT = ("submit", {"userid": 1000, "urgency": 16})
UNSATISFIABLE = {"type": "alloc", "severity": 0, "userid": 0, "note": "unsatisfiable request: need 9 node(s)"}


def test_a_job_that_ran_has_its_times_its_result_and_its_exit_code() -> None:
    end = read_job_end(eventlog(SUBMIT, ("start", {}), ("finish", {"status": 768}), ("clean", {})))
    assert end is not None
    assert (end.began_at, end.ended_at, end.result, end.how) == (1.0, 3.0, "FAILED", "exit code 3")


@pytest.mark.parametrize(
    ("status", "exception", "result", "how"),
    [
        (0, None, "COMPLETED", "exit code 0"),
        (9, "cancel", "CANCELED", "signal 9"),
        (36608, "timeout", "TIMEOUT", "exit code 143"),
        (256, "exec", "FAILED", "exit code 1"),
    ],
)
def test_the_result_is_the_one_that_flux_jobs_shows(
    status: int, exception: str | None, result: str, how: str
) -> None:
    raised = [("exception", {"type": exception, "severity": 0})] if exception else []
    end = read_job_end(eventlog(SUBMIT, ("start", {}), *raised, ("finish", {"status": status}), ("clean", {})))
    assert end is not None
    assert (end.result, end.how) == (result, how)


def test_a_job_that_the_scheduler_refused_has_flux_s_note_and_never_ran() -> None:
    end = read_job_end(eventlog(SUBMIT, ("exception", UNSATISFIABLE), ("clean", {})))
    assert end is not None
    assert (end.began_at, end.result, end.how) == (None, "FAILED", "")
    assert end.exceptions == (JobException("alloc", 0, "unsatisfiable request: need 9 node(s)"),)


def test_a_job_that_was_refused_at_submission_is_told_as_such() -> None:
    raised = {"type": "dependency", "severity": 0, "note": "unknown scheme"}
    end = read_job_end(eventlog(SUBMIT, ("exception", raised), ("invalidate", {})))
    assert end is not None
    assert end.result == "REFUSED"


def test_the_fatal_exceptions_come_first_and_notes_are_bounded_and_printable() -> None:
    lesser = [("exception", {"type": "log", "severity": 3, "note": "\x1b[2Jx" * NOTE_MAX})] * EXCEPTIONS_MAX
    end = read_job_end(eventlog(SUBMIT, *lesser, ("exception", UNSATISFIABLE), ("clean", {})))
    assert end is not None
    assert [it.severity for it in end.exceptions] == [0] + [3] * (EXCEPTIONS_MAX - 1)
    assert "\x1b" not in end.exceptions[1].note


def test_an_active_job_has_no_end() -> None:
    assert read_job_end(eventlog(SUBMIT, ("start", {}), ("finish", {"status": 0}))) is None


@pytest.mark.parametrize("text", ["no json", "[]", '{"name": "clean"}', '{"name": 5, "timestamp": 1}'])
def test_an_eventlog_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_job_end(text)
