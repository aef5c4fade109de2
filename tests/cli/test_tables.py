"""What the verbs print for the service's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType
from starlette.testclient import TestClient

from nodemanager.actors.manager import Publication
from nodemanager.cli import tables
from nodemanager.core.drains import hold_text
from nodemanager.core.jobs import JobState, Near, RankAllocation
from nodemanager.core.nodes import NodeState
from nodemanager.core.slots import CloudName
from nodemanager.planner.plan import plan
from tests.builders import WALL_AT, a_job, a_node, a_policy, a_rank, a_snapshot, drained, tasks, whole_nodes
from tests.web.fleets import HOST, a_stand

POLICY = a_policy()
UP = a_rank("cloud1", online=True)


def answer(path: str, publication: Publication) -> Mapping[str, Any]:
    stand = a_stand(by_socket=True)
    stand.post(publication)
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        document: Mapping[str, Any] = client.get(path).raise_for_status().json()
    return document


def as_text(shown: RenderableType) -> str:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(shown)
    return " ".join(capture.get().split())


def with_node(drain_reason: str | None) -> Publication:
    rank = UP if drain_reason is None else drained(UP, drain_reason)
    snapshot = a_snapshot(POLICY, nodes=[a_node("cloud1", policy=POLICY, rank=rank)])
    return Publication(snapshot, plan(snapshot, POLICY), POLICY, acts=True)


def test_what_a_job_wants_is_counted_in_the_singular_too() -> None:
    shapes = [tasks(1, cores=1), tasks(2, cores=1, gpus=1), tasks(1, cores=2, gpus=2), whole_nodes(1)]
    snapshot = a_snapshot(POLICY, jobs=[a_job(number, shape) for number, shape in enumerate(shapes, 1)])
    text = as_text(tables.jobs(answer("/jobs", Publication(snapshot, plan(snapshot, POLICY), POLICY, acts=True))))
    for wants in ("1 core ", "2 x 1 core and 1 GPU ", "2 cores and 2 GPUs ", "1 node, 1 core "):
        assert f" {wants}" in text


def test_what_is_wrong_with_the_place_of_its_data_is_shown_whatever_the_job_waits_for() -> None:
    job = a_job(1, replace(whole_nodes(1), near=Near(CloudName("mars"))), urgency=0, near_fault="data: 5 parsecs")
    snapshot = a_snapshot(POLICY, jobs=[job])
    document = answer("/explain/job/1", Publication(snapshot, plan(snapshot, POLICY), POLICY, acts=True))
    assert document["reason"]["code"] == "held"
    told = "data: 5 parsecs; near: the site has no cloud mars; it has default"
    assert f"its data {told}" in as_text(tables.explanation(document))


# --- without a reason -------------------------------------------------------------------------------------


def test_a_job_that_runs_is_explained_by_where_it_runs() -> None:
    node = a_node("cloud1", NodeState.BUSY, POLICY)
    holds = (RankAllocation(node.launch.rank, 4, 0),)
    snapshot = a_snapshot(POLICY, nodes=[node], jobs=[a_job(1, state=JobState.RUN, allocations=holds)])
    publication = Publication(snapshot, plan(snapshot, POLICY), POLICY, acts=True)
    assert "because it runs on cloud1" in as_text(tables.explanation(answer("/explain/job/1", publication)))


def test_what_no_plan_has_seen_yet_is_said_so() -> None:
    document = {**answer("/explain/node/cloud1", with_node(None)), "reason": None}
    assert "because nothing has been decided about it yet" in as_text(tables.explanation(document))


# --- who keeps a node -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drain_reason", "held_by"),
    [
        ("broken fan", "somebody who drained it (broken fan)"),
        ("", "somebody who drained it (without a reason)"),
        (hold_text(a_node("cloud1").id), "nobody"),  # a release is about to undrain it
        (None, "nobody"),
    ],
)
def test_a_node_that_somebody_drained_is_held_by_somebody(drain_reason: str | None, held_by: str) -> None:
    shown = as_text(tables.explanation(answer("/explain/node/cloud1", with_node(drain_reason))))
    assert f"held by {held_by}" in shown


def test_status_warns_of_a_drained_node_that_costs() -> None:
    shown = as_text(tables.status(answer("/status", with_node("broken fan"))))
    assert "warning: somebody drained cloud1: no job starts there, at a cost of 0.40 an hour" in shown


def test_an_operators_event_says_who_and_why() -> None:
    happened = {
        "at": WALL_AT, "kind": "operator", "what": "hold", "subject": "cloud1-1", "reason": None,
        "figures": {"by": "ada", "why": "its disk"},
    }  # fmt: skip
    assert tables.event(happened).plain.endswith("operator   hold           cloud1-1  by ada: its disk")
