"""Reasons of the past, explained from the history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from starlette.testclient import TestClient

from nodemanager.cli import tables
from nodemanager.cli.tables import clock
from nodemanager.core.jobs import JobEnd, JobException, JobState
from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_text import format_wall_time
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.store.writer import HistoryWriter
from tests.builders import WALL_AT, a_job, a_node, whole_nodes
from tests.history.publications import a_moment, told
from tests.web.fleets import HOST, a_stand

STOP_S = 10.0


@pytest.fixture
def journal(tmp_path: Path) -> HistoryWriter:
    """A job waited, got a node and ran there. Both are gone."""
    waiting = a_job(1, whole_nodes(1), submitted_at=WALL_AT)
    runs = replace(waiting, state=JobState.RUN)
    story = [
        a_moment(0, jobs=[waiting]),
        a_moment(60, jobs=[waiting], nodes=[a_node("cloud1", NodeState.BOOTING)]),
        a_moment(120, jobs=[runs], nodes=[a_node("cloud1", NodeState.BUSY)]),
        a_moment(180, nodes=[a_node("cloud1", NodeState.IDLE)]),
        a_moment(240),
    ]
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    journal.start()
    for happened in told(*story):
        journal.take_in(happened)
    journal.stop(STOP_S)
    return journal


def a_client(journal: HistoryWriter, *, jobs_for_everybody: bool) -> TestClient:
    stand = a_stand(journal.path, jobs_for_everybody=jobs_for_everybody)
    stand.post(a_moment(240))
    return TestClient(stand.application, base_url=f"http://{HOST}")


@pytest.fixture
def client(journal: HistoryWriter) -> Iterator[TestClient]:
    with a_client(journal, jobs_for_everybody=True) as client:
        yield client


@pytest.mark.parametrize("name", ["1", "f2", "type cloud", "type%20cloud", ""])
def test_the_path_of_nodes_shows_no_jobs_without_the_token(journal: HistoryWriter, name: str) -> None:
    with a_client(journal, jobs_for_everybody=False) as client:
        assert client.get(f"/explain/job/1?at={WALL_AT + 30}").status_code == 401
        assert client.get(f"/explain/node/{name}?at={WALL_AT + 30}").status_code == 404
        assert client.get(f"/explain/node/cloud1?at={WALL_AT + 90}").status_code == 200


def asked(client: TestClient, path: str, after_s: float) -> Any:
    response = client.get(f"{path}?at={WALL_AT + after_s}")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("path", "after_s", "subject", "code"),
    [
        ("/explain/job/f2", 30, "f2", "node_ordered"),
        ("/explain/job/1", 90, "f2", "node_coming"),
        ("/explain/node/cloud1", 90, "cloud1-1", "booting"),
        ("/explain/node/cloud1-1", 150, "cloud1-1", "busy"),
        ("/explain/node/i-cloud1-1", 150, "cloud1-1", "busy"),
        ("/explain/type/cloud", 30, "cloud", "bought"),
        ("/explain/type/cloud", 200, "cloud", "nothing_is_short"),
    ],
)
def test_what_was_so_then_is_told_with_its_reason(
    client: TestClient, path: str, after_s: float, subject: str, code: str
) -> None:
    explained = asked(client, path, after_s)
    assert (explained["subject"], explained["reason"]["code"]) == (subject, code)
    assert explained["said_at"] <= WALL_AT + after_s
    assert explained["history"]


def test_a_job_that_has_ended_is_told_with_its_end_and_where_flux_tells_why(tmp_path: Path) -> None:
    """A job that Flux refused ended too: only Flux knows its exception."""
    ran = a_job(1, state=JobState.RUN, began_at=WALL_AT + 30)
    story = [a_moment(0, jobs=[ran, a_job(2, whole_nodes(1))]), a_moment(60), a_moment(120)]
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    journal.start()
    for happened in told(*story):
        journal.take_in(happened)
    journal.stop(STOP_S)
    with a_client(journal, jobs_for_everybody=True) as client:
        errors = [client.get(f"/explain/job/{job}").json()["error"] for job in (1, 2, 3)]
    began, ended = format_wall_time(WALL_AT + 30), format_wall_time(WALL_AT + 60)
    assert f"it ran from {began} to {ended}." in errors[0]
    assert f"it ended at {ended}." in errors[1]
    assert "it has ended, or was never submitted here." in errors[2]
    assert "flux job eventlog f3." in errors[1]


def test_an_ended_job_is_told_with_its_end_and_its_exception_by_flux_s_own_record(tmp_path: Path) -> None:
    refused = JobException("alloc", 0, "unsatisfiable request: need 9 node(s)")
    ends = {
        1: JobEnd(WALL_AT + 60, "FAILED", WALL_AT + 30, "exit code 3"),
        2: JobEnd(WALL_AT + 60, "FAILED", exceptions=(refused,)),
    }
    stand = a_stand(tmp_path / "journal.sqlite", jobs_for_everybody=True)
    stand.served = replace(stand.served, job_end=ends.get)
    stand.post(a_moment(120))
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        ran, never, unknown = (client.get(f"/explain/job/{job}") for job in (1, 2, 3))
    began, ended = format_wall_time(WALL_AT + 30), format_wall_time(WALL_AT + 60)
    assert f"it ran from {began} to {ended}: FAILED (exit code 3)" in as_text(tables.explanation(ran.json()))
    shown = as_text(tables.explanation(never.json()))
    assert f"it ended at {ended} and never ran: FAILED" in shown
    assert "alloc (severity 0): unsatisfiable request: need 9 node(s)" in shown
    assert unknown.status_code == 404


@pytest.mark.parametrize(("after_s", "what", "shown"), [(150, "began", "was running"), (200, "ended", "had ended")])
def test_a_job_that_had_begun_or_ended_was_kept_by_nothing(
    client: TestClient, after_s: float, what: str, shown: str
) -> None:
    explained = asked(client, "/explain/job/f2", after_s)
    assert (explained["what"], explained["reason"]) == (what, None)
    assert shown in as_text(tables.explanation(explained))


def test_the_nodes_of_a_past_reason_are_told_as_they_were_then(client: TestClient) -> None:
    for after_s, path in ((30, "/explain/job/f2"), (30, "/explain/type/cloud")):
        text = asked(client, path, after_s)["reason"]["text"]
        assert "[" not in text, text
    assert "cloud1 ordered" in asked(client, "/explain/job/f2", 30)["reason"]["text"]


def as_text(shown: RenderableType) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(shown)
    written = console.file
    assert isinstance(written, StringIO)
    return written.getvalue()


def test_a_report_says_where_the_history_begins_later_than_it_was_asked_for(client: TestClient) -> None:
    """If the history file was deleted or moved aside, sums lack what was before."""
    report = client.get(f"/report?since_s={3600}").json()
    assert report["begins_at"] == WALL_AT
    assert "begins" in as_text(tables.report(report))
    whole = client.get(f"/report?since_s={200}").json()
    assert whole["begins_at"] is None
    assert "begins" not in as_text(tables.report(whole))


def test_a_report_of_a_minute_says_that_its_cost_is_of_an_hour(client: TestClient) -> None:
    report = client.get("/report?since_s=60").json()
    assert clock(WALL_AT // 3600 * 3600) in as_text(tables.report(report))
    assert "older ones have been deleted" not in as_text(tables.report(report))
    quarter = client.get(f"/report?since_s={90 * 86_400}").json()
    assert "older ones have been deleted" in as_text(tables.report(quarter))


def test_a_question_before_the_history_names_its_beginning_and_files_moved_aside(
    client: TestClient, tmp_path: Path
) -> None:
    aside = tmp_path / "journal.sqlite.unusable-1800000000"
    aside.write_bytes(b"rubbish")
    error = client.get(f"/explain/node/cloud1?at={WALL_AT - 1}").json()["error"]
    assert format_wall_time(WALL_AT) in error
    assert aside.name in error
    assert aside.name in as_text(tables.report(client.get("/report").json()))


@pytest.mark.parametrize("path", ["/explain/job/f2", "/explain/node/cloud1", "/explain/type/cloud"])
def test_before_its_beginning_the_history_has_nothing(client: TestClient, path: str) -> None:
    response = client.get(f"{path}?at={WALL_AT - 1}")
    assert (response.status_code, "has nothing on" in response.json()["error"]) == (404, True)


def test_the_runs_of_an_ensemble_are_in_the_history(journal: HistoryWriter, tmp_path: Path) -> None:
    again = HistoryWriter(journal.path)
    again.start()
    events = [
        HistoryEvent(WALL_AT + at, "ensemble", "ensemble work", what, figures={"detail": detail})
        for at, what, detail in (
            (1, "begun", "run 1"),
            (2, "rule", "rule 1: start -> submit a"),
            (3, "ended", "done"),
        )
    ]
    again.take_in(HistoryUpdate(a_moment(240), (), (), tuple(events), (), {}))
    again.stop(STOP_S)
    with a_client(journal, jobs_for_everybody=True) as client:
        explained = client.get("/explain/ensemble/work").json()
    assert [line["detail"] for line in explained["history"]] == ["run 1", "rule 1: start -> submit a", "done"]
    assert explained["ensemble"] is None
    assert "rule 1: start -> submit a" in as_text(tables.explanation(explained))
    with a_client(journal, jobs_for_everybody=False) as client:
        assert client.get("/explain/ensemble/work").status_code == 401
