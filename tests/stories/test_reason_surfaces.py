"""Every reason is shown on every surface: command line, HTTP, memo, metrics and history.

A figure has one type for one name, so a page that reads a figure needs no guess.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from rich.console import Console
from starlette.testclient import TestClient

from nodemanager.actors.job_memos import JobMemos
from nodemanager.actors.manager import Publication
from nodemanager.cli import tables
from nodemanager.core.jobs import JobId
from nodemanager.core.reason_text import SENTENCES
from nodemanager.core.reasons import Figure, Reason, because
from nodemanager.history.follower import Follower
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.planner.plan import plan
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.web.api import explain
from tests.builders import a_job, a_policy, a_snapshot, whole_nodes
from tests.planner.strategies import snapshots
from tests.web.fleets import HOST, a_stand

POLICY = a_policy()
NAMES = ("nodes", "jobs", "lacks", "node_types", "unheeded")
COUNTS = (
    "absences",
    "calls_in_flight_max",
    "have",
    "job_count",
    "kills",
    "looks",
    "needs",
    "node_count",
    "nodes_max",
    "priority",
    "short",
    "slots",
    "spares",
    "times",
    "tries",
    "unready",
    "unready_max",
    "urgency",
)
NUMBERS = ("creates_per_s",)  # whole or not, as the site writes it
AMOUNTS = ("budget", "left", "price_per_hour", "price_per_hour_max", "spent")


def type_of(name: str) -> str:
    """Of what type a figure is, by its name alone."""
    if name in NAMES:
        return "names"
    if name in COUNTS:
        return "count"
    if name in AMOUNTS:
        return "amount"
    return "number" if name in NUMBERS or name.endswith(("_s", "_at")) else "text"


def is_of_its_type(name: str, value: Figure) -> bool:
    match type_of(name):
        case "names":
            return isinstance(value, tuple)
        case "count":
            return isinstance(value, int) and not isinstance(value, bool)
        case "amount":
            return isinstance(value, Decimal)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return isinstance(value, str)


SAMPLES: Mapping[str, Figure] = {
    "names": ("cpu1", "cpu2"),
    "count": 3,
    "amount": Decimal("1.25"),
    "number": 42.5,
    "text": "this and that",
}
# These have no sentence of their own: their code says the kind of the failure.
CODES = [*SENTENCES, "blocked_create_capacity", "blocked_create_config"]


def a_reason(code: str) -> Reason:
    template = SENTENCES.get(code, "{until_s} {detail}")
    names = {name for _, name, _, _ in string.Formatter().parse(template) if name}
    # Moments are monotonic in a reason, and shown by the wall clock.
    seconds = {
        "deadline_at": "deadline_s",
        "retry_at": "retry_s",
        "until_at": "until_s",
        "settles_at": "settles_at_s",
    }
    return because(code, **{seconds.get(name, name): SAMPLES[type_of(seconds.get(name, name))] for name in names})


def waits_because(reason: Reason) -> Publication:
    snapshot = a_snapshot(POLICY, jobs=[a_job(1, whole_nodes(1))])
    made = replace(plan(snapshot, POLICY), jobs={JobId(1): reason}, stands_still=None)
    return Publication(snapshot, made, POLICY, acts=True, facts=())


@pytest.mark.parametrize("code", CODES)
def test_a_job_is_explained_whatever_its_reason(code: str, tmp_path: Path) -> None:
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
    assert memo is not None
    # The history, and explain --at.
    history = HistoryWriter(tmp_path / HISTORY_FILE)
    history.write([Follower().follow([publication])])
    history.close()
    past = explain.explain_past(
        HistoryReader(tmp_path / HISTORY_FILE), "job", "1", publication.snapshot.wall_at + 1
    )
    assert past["reason"]["code"] == code
    assert json.dumps(past)


def figures_of(snapshot: Snapshot) -> Iterator[tuple[str, str, Figure]]:
    made = plan(snapshot, POLICY)
    reasons = [*made.jobs.values(), *made.nodes.values(), *made.types.values(), *made.warnings]
    reasons += [action.reason for action in made.actions if hasattr(action, "reason")]
    reasons += [made.stands_still] if made.stands_still is not None else []
    for reason in reasons:
        yield from ((reason.code, name, value) for name, value in reason.figures.items())


@given(snapshot=snapshots(POLICY))
def test_a_figure_has_one_type_for_one_name(snapshot: Snapshot) -> None:
    wrong = [(code, name, value) for code, name, value in figures_of(snapshot) if not is_of_its_type(name, value)]
    assert not wrong
