"""Delegated jobs in each state, for the contract of ``HomePort``, and the answers to requests."""

from __future__ import annotations

import json

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import (
    HOLD,
    SUBMITTED,
    TAKEN,
    EventlogEntry,
    Failure,
)
from nodemanager.delegation.ports import (
    HomeDone,
    HomeRefused,
    HomeRequest,
    PostEvent,
    RaiseOnJob,
    RemoveDependency,
    ShowRunning,
)
from tests.contract.home_subjects import Subject

NEVER_WAS = JobId(5)


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


def a_line(text: str, stream: str = "stdout") -> str:
    data = {"stream": stream, "rank": "0", "data": text}
    return json.dumps({"timestamp": 1.0, "name": "data", "context": data}) + "\n"


def a_placement(job: JobId) -> PostEvent:
    return PostEvent(job, EventlogEntry(SUBMITTED, 1.0, {"peer": "b", "jobid": 7, "uri": "local:///b"}))


def a_take(job: JobId) -> PostEvent:
    return PostEvent(job, EventlogEntry(TAKEN, 1.0, {"target": "b", "urgency": 16}))
