"""Every reason is shown on every surface: command line, HTTP, memo, metrics and history.

Each sentence is complete: ``core/test_reason_codes.py`` checks that its figures are always there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from rich.console import Console
from starlette.testclient import TestClient

from nodemanager.actors.job_memos import JobMemos
from nodemanager.actors.manager import Publication
from nodemanager.cli import tables
from nodemanager.core.jobs import JobId
from nodemanager.core.reason_codes import Code, Figure, Figures, figure_faults
from nodemanager.core.reasons import Reason, because
from nodemanager.history.follower import Follower, HistoryUpdate
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.planner.plan import plan
from nodemanager.planner.snapshot import Snapshot
from nodemanager.web.api import explain
from nodemanager.web.api.documents import Document
from tests.builders import a_job, a_policy, a_snapshot, whole_nodes
from tests.planner.strategies import snapshots
from tests.web.fleets import HOST, a_stand

POLICY = a_policy()
SAMPLES: Mapping[object, Figure] = {
    tuple[str, ...]: ("cpu1", "cpu2"),
    int: 3,
    Decimal: Decimal("1.25"),
    float: 42.5,
    str: "this and that",
}
TYPES = get_type_hints(Figures)


def a_reason(code: Code) -> Reason:
    return Reason(code, {name: SAMPLES[TYPES[name]] for name in sorted(code.required)})


def waits_because(reason: Reason) -> Publication:
    snapshot = a_snapshot(POLICY, jobs=[a_job(1, whole_nodes(1))])
    made = replace(plan(snapshot, POLICY), jobs={JobId(1): reason}, stands_still=None)
    return Publication(snapshot, made, POLICY, acts=True, facts=())


@pytest.mark.parametrize("code", Code)
def test_a_job_is_explained_whatever_its_reason(code: Code, tmp_path: Path) -> None:
    reason = a_reason(code)
    publication = waits_because(reason)
    # HTTP, which the dashboard reads too.
    stand = a_stand(by_socket=True)
    stand.post(publication)
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        answers = [client.get(path) for path in ("/explain/job/1", "/jobs", "/status", "/plan", "/metrics")]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    document = answers[0].json()
    assert document["reason"]["code"] == code
    # The command line.
    console = Console(width=200, record=True, file=(tmp_path / "shown").open("w"))
    console.print(tables.explanation(document), tables.jobs(answers[1].json()))
    assert document["reason"]["text"] in " ".join(console.export_text().split())
    console.file.close()
    # The memo on the job.
    (memo,) = JobMemos().changes(publication.snapshot, publication.plan).values()
    assert memo == document["reason"]["text"]
    # The history, and explain --at.
    past = explained_later(tmp_path, Follower().follow([publication]), publication.snapshot.wall_at + 1)
    assert past["reason"]["code"] == code
    assert past["reason"]["text"] == memo
    assert json.dumps(past)


def explained_later(folder: Path, told: HistoryUpdate, at: float) -> Document:
    """What ``explain --at`` shows about job 1 after the history was written."""
    history = HistoryWriter(folder / HISTORY_FILE)
    history.write([told])
    history.close()
    return explain.explain_past(HistoryReader(folder / HISTORY_FILE), "job", "1", at)


@pytest.mark.parametrize(
    ("code", "figures", "text"),
    [
        ("node_conjured", {"spells": 3, "until_at": 0.0}, "node conjured: spells 3, until at 1970-01-01T00:00:00Z"),
        ("stale", {"source": "cloud", "old_s": 61.0}, "stale: source cloud, old s 1m01s"),
        ("demand", {"jobs": 2}, "demand: jobs 2"),
    ],
    ids=["an unknown code", "renamed figures", "a figure that had another type"],
)
def test_a_reason_that_another_version_stored_can_be_read(
    code: str, figures: Mapping[str, Figure], text: str, tmp_path: Path
) -> None:
    publication = waits_because(because(Code.DEPENDENCY))
    told = Follower().follow([publication])
    (event,) = (event for event in told.events if event.kind == "because" and event.subject == "1")
    told = replace(told, events=(replace(event, code=code, figures=figures),))
    past = explained_later(tmp_path, told, publication.snapshot.wall_at + 1)
    assert (past["reason"]["code"], past["reason"]["text"]) == (code, text)


def reasons_of(snapshot: Snapshot) -> Iterator[Reason]:
    made = plan(snapshot, POLICY)
    yield from (*made.jobs.values(), *made.nodes.values(), *made.types.values(), *made.warnings)
    yield from (action.reason for action in made.actions if hasattr(action, "reason"))
    if made.stands_still is not None:
        yield made.stands_still


@given(snapshot=snapshots(POLICY))
def test_every_reason_of_a_plan_has_the_figures_of_its_code(snapshot: Snapshot) -> None:
    assert not [fault for reason in reasons_of(snapshot) for fault in figure_faults(reason.code, reason.figures)]
