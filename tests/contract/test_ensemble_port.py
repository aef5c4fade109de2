"""The contract of every ``EnsemblePort``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from nodemanager.ensemble.file.model import JobSet
from nodemanager.ensemble.jobspec import make_jobspec
from nodemanager.ensemble.journal import CAUGHT_UP
from nodemanager.ensemble.ports import EnsemblePort
from tests.contract.ensemble_subjects import EnsembleSubject, a_real_ensemble_host, a_simulated_ensemble_host

SUBJECTS: dict[str, Callable[[], AbstractContextManager[EnsembleSubject]]] = {
    "real": a_real_ensemble_host,
    "simulated": a_simulated_ensemble_host,
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[EnsembleSubject]:
    with SUBJECTS[request.param]() as subject:
        yield subject


class Journal:
    """What a port's journal has shown."""

    def __init__(self, port: EnsemblePort) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.caught_up = False
        port.follow(self._take)

    def _take(self, record: Mapping[str, Any]) -> None:
        if record["id"] == CAUGHT_UP:
            self.caught_up = True
        else:
            self.records.append(record)

    def events(self, job: int) -> list[str]:
        return [event["name"] for record in self.records if record["id"] == job for event in record["events"]]

    def job(self, key: str) -> int | None:
        """The job that carries a key, from the record with its jobspec."""
        for record in self.records:
            if record.get("jobspec", {}).get("attributes", {}).get("user", {}).get("member") == key:
                return int(record["id"])
        return None


class Answers(list[str]):
    def __call__(self, why: str) -> None:
        self.append(why)


def submit(subject: EnsembleSubject, port: EnsemblePort, key: str, **how: Any) -> str:
    """Submit a job that sleeps, and return why it was refused."""
    jobs = JobSet("g", ("sleep", how.pop("seconds", "0.1")), **how)
    answers = Answers()
    port.submit(make_jobspec(jobs, "run-1", key, "/"), 16, answers)
    assert not answers, "it answers later"
    subject.until("the submission is answered", lambda: bool(answers))
    return answers[0]


def job_of(subject: EnsembleSubject, journal: Journal, key: str) -> int:
    subject.until(f"{key} is in the journal", lambda: journal.job(key) is not None)
    job = journal.job(key)
    assert job is not None
    return job


def test_a_job_is_seen_from_its_submission_to_its_end(subject: EnsembleSubject) -> None:
    port = subject.port()
    journal = Journal(port)
    subject.until("the backlog's end", lambda: journal.caught_up)
    assert submit(subject, port, "1.1.0.0") == ""
    job = job_of(subject, journal, "1.1.0.0")
    subject.until("its end", lambda: "clean" in journal.events(job))
    events = [name for name in journal.events(job) if name in {"submit", "alloc", "start", "finish", "clean"}]
    assert events == ["submit", "alloc", "start", "finish", "clean"]


def test_the_backlog_has_the_jobs_that_have_ended_with_all_their_events(subject: EnsembleSubject) -> None:
    port = subject.port()
    first = Journal(port)
    submit(subject, port, "1.1.0.0")
    job = job_of(subject, first, "1.1.0.0")
    subject.until("its end", lambda: "clean" in first.events(job))
    second = Journal(subject.port())
    subject.until("the backlog's end", lambda: second.caught_up)
    assert second.job("1.1.0.0") == job
    assert second.events(job) == [name for name in first.events(job) if name != "annotations"]
    assert "annotations" in first.events(job), "an event that is only seen live"


def test_a_job_that_no_node_can_hold_ends_without_a_start(subject: EnsembleSubject) -> None:
    port = subject.port()
    journal = Journal(port)
    if submit(subject, port, "1.1.0.0", nodes=50, tasks=50):
        return  # an instance with a feasibility check refuses it at once
    job = job_of(subject, journal, "1.1.0.0")
    subject.until("its end", lambda: "clean" in journal.events(job))
    assert "exception" in journal.events(job)
    assert "start" not in journal.events(job)


def test_a_cancelled_job_ends_and_cancelling_it_again_is_no_error(subject: EnsembleSubject) -> None:
    port = subject.port()
    journal = Journal(port)
    submit(subject, port, "1.1.0.0", seconds="600")
    job = job_of(subject, journal, "1.1.0.0")
    subject.until("it runs", lambda: "start" in journal.events(job))
    answers = Answers()
    port.cancel(job, "a test", answers)
    subject.until("its end", lambda: "clean" in journal.events(job))
    port.cancel(job, "a test", answers)
    subject.until("both answers", lambda: len(answers) == 2)
    assert answers == ["", ""]
    (cancelled,) = (e for r in journal.records for e in r["events"] if e["name"] == "exception")
    assert (cancelled["context"]["type"], cancelled["context"]["severity"]) == ("cancel", 0)


def test_a_text_can_be_shown_on_a_job_and_one_that_has_ended_is_no_error(subject: EnsembleSubject) -> None:
    port = subject.port()
    journal = Journal(port)
    submit(subject, port, "1.1.0.0", seconds="1")
    job = job_of(subject, journal, "1.1.0.0")
    answers = Answers()
    port.show_on_job(job, "hello", answers)
    subject.until("its end", lambda: "clean" in journal.events(job))
    port.show_on_job(job, "hello again", answers)
    subject.until("both answers", lambda: len(answers) == 2)
    assert answers == ["", ""]


def test_lines_are_kept_in_order_for_the_next_process(subject: EnsembleSubject) -> None:
    port = subject.port()
    assert port.read_log() == ""
    stored: list[int] = []
    for number in range(20):
        port.append(f"line {number}\n", lambda number=number: stored.append(number))  # type: ignore[misc]
    subject.until("all are stored", lambda: len(stored) == 20)
    assert subject.port().read_log() == "".join(f"line {number}\n" for number in range(20))


def test_what_a_process_appends_after_the_next_has_begun_is_not_in_the_log(subject: EnsembleSubject) -> None:
    port = subject.port()
    assert port.read_log() == ""
    done: list[str] = []
    port.append("one\n", lambda: done.append("one"))
    subject.until("it is stored", lambda: done == ["one"])
    second = subject.port()
    assert second.read_log() == "one\n"
    port.append("late\n", lambda: done.append("late"))
    second.append("two\n", lambda: done.append("two"))
    subject.until("the second is stored", lambda: "two" in done)
    assert subject.port().read_log() == "one\ntwo\n"


def test_time_passes_and_delays_are_kept(subject: EnsembleSubject) -> None:
    port = subject.port()
    at: list[float] = []
    begun_at = port.wall_at()
    port.after(0.2, lambda: at.append(port.wall_at()))
    assert not at
    subject.until("the delay is over", lambda: bool(at))
    assert at[0] >= begun_at + 0.19


def test_a_finished_run_is_on_record_without_a_log(subject: EnsembleSubject) -> None:
    port = subject.port()
    port.read_log()
    done: list[bool] = []
    port.append("one\n", lambda: done.append(True))
    subject.until("it is stored", lambda: bool(done))
    port.finish("rule 1 ended it", {"groups": {}})
    assert subject.finished() == "rule 1 ended it"
