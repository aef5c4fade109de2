"""The journal of one run, live and in the backlog."""

from __future__ import annotations

from typing import Any

from nodemanager.ensemble.inputs import JobEvent
from nodemanager.ensemble.journal import RunJournal, Taken


def record(job: int, *events: tuple[str, float], run: str = "r") -> dict[str, Any]:
    contexts = {"finish": {"status": 256}, "exception": {"type": "cancel", "severity": 0}}
    return {
        "id": job,
        "events": [
            {"name": n, "timestamp": at, **({"context": contexts[n]} if n in contexts else {})} for n, at in events
        ],
        "jobspec": {"attributes": {"user": {"group": "g", "ensemble": run, "member": f"1.1.0.{job}"}}},
    }


def nothing(_: int) -> Taken:
    return 0, 0.0


def test_jobs_of_other_runs_and_other_users_are_skipped() -> None:
    journal = RunJournal("r")
    assert not journal.live(record(1, ("submit", 1.0), run="other"))
    assert not journal.live({"id": 2, "events": [{"name": "submit", "timestamp": 1.0}], "jobspec": None})
    assert not journal.live({"id": 2, "events": [{"name": "start", "timestamp": 1.0}]})


def test_later_events_of_a_job_are_known_by_its_id() -> None:
    journal = RunJournal("r")
    assert journal.live(record(1, ("submit", 1.0))) == [JobEvent(1, "submit", 1.0, group="g", key="1.1.0.1")]
    finish = {"id": 1, "events": [{"name": "finish", "timestamp": 2.0, "context": {"status": 256}}]}
    assert journal.live(finish) == [JobEvent(1, "finish", 2.0, status=256)]


def test_the_backlog_is_in_the_order_of_time_and_each_job_in_its_own_order() -> None:
    journal = RunJournal("r")
    # A clock that was set back: the events of job 1 keep their order.
    journal.collect(record(1, ("submit", 5.0), ("start", 4.0)))
    journal.collect(record(2, ("submit", 3.0), ("start", 6.0)))
    assert [(it.job, it.name) for it in journal.backlog(nothing)] == [
        (2, "submit"),
        (1, "submit"),
        (1, "start"),
        (2, "start"),
    ]


def test_what_was_taken_before_is_left_out() -> None:
    journal = RunJournal("r")
    taken: dict[int, Taken | None] = {1: (2, 2.0), 2: None, 3: (0, 0.0)}
    for job in taken:
        journal.collect(record(job, ("submit", 1.0), ("alloc", 2.0), ("start", 3.0)))
    assert [(it.job, it.name) for it in journal.backlog(lambda job: taken[job])] == [
        (3, "submit"),
        (3, "alloc"),
        (1, "start"),
        (3, "start"),
    ]


def test_events_that_flux_does_not_store_do_not_count() -> None:
    """Annotations and volatile memos are seen live, and are not in the backlog."""
    journal = RunJournal("r")
    live = journal.live(record(1, ("submit", 1.0), ("annotations", 1.5), ("memo", 1.6), ("alloc", 2.0)))
    assert [it.name for it in live] == ["submit", "memo", "alloc"]
    journal.collect(record(1, ("submit", 1.0), ("memo", 1.5), ("alloc", 2.0), ("start", 3.0), ("memo", 4.0)))
    assert [(it.name, it.at) for it in journal.backlog(lambda _: (2, 2.0))] == [("start", 3.0), ("memo", 4.0)]
