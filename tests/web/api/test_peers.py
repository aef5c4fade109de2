"""The peers, and where a delegated job is: over HTTP, in metrics and on the command line."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from nodemanager.cli import tables
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import PeerName
from nodemanager.delegation.view import DelegatedJob, DelegationView, PeerStatus
from nodemanager.planner.burst import Bursts, WayToRun
from tests.builders import a_job
from tests.web.fleets import HOST, Stand, a_fleet, a_stand

B = PeerName("b")
LOAD = PeerLoad(100.0, "sched-simple", 2, 2, 1, 8, 3, running=5)
UP = PeerStatus(
    B, "local:///b", reachable=True, why="", load=LOAD, jobs=1, jobs_max=9, price_per_core_hour=Decimal("0.5")
)
AWAY = replace(UP, name=PeerName("c"), reachable=False, why="connection refused", load=None, jobs=0)
RUNNING = DelegatedJob(
    JobId(1),
    "any",
    because(Code.DELEGATED_RUNNING, peer="b", remote="ƒ7"),
    5.0,
    B,
    "local:///b",
    JobId(7),
    6.0,
    because(Code.PEER_CHOSEN, peer="b", wait="0 s", price_per_hour=Decimal(2), others="c: connection refused"),
)
VIEW = DelegationView({JobId(1): RUNNING}, (UP, AWAY), ended=4)


def a_delegating_stand(view: DelegationView | None = VIEW) -> Stand:
    stand = a_stand(by_socket=True)
    stand.post(a_fleet(2))
    if view is not None:
        stand.board.publish_delegation(view)
    return stand


def get(stand: Stand, path: str) -> dict[str, object]:
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        document: dict[str, object] = answer.json()
        return document


def printed(renderable: object, tmp_path: Path) -> str:
    with (tmp_path / "shown").open("w") as file:
        console = Console(width=200, record=True, file=file)
        console.print(renderable)
        return " ".join(console.export_text().split())


def test_a_site_without_peers_says_so(tmp_path: Path) -> None:
    document = get(a_delegating_stand(None), "/peers")
    assert document == {"delegates": False, "fault": "", "jobs": 0, "peers": []}
    assert "no [Peer NAME]" in printed(tables.peers(document), tmp_path)


def test_the_peers(tmp_path: Path) -> None:
    document = get(a_delegating_stand(), "/peers")
    text = printed(tables.peers(document), tmp_path)
    assert "b up, sched-simple 1/2 3/8" in text
    assert "c away: connection refused" in text
    assert "1/9" in text


def test_everything_that_is_known_of_a_peer_is_in_the_json() -> None:
    document: Any = get(a_delegating_stand(), "/peers")
    up, away = document["peers"]
    assert up == {
        "name": "b",
        "uri": "local:///b",
        "reachable": True,
        "why": "",
        "price_per_core_hour": 0.5,
        "jobs": 1,
        "jobs_max": 9,
        "load": {
            "seen_at": 100.0,
            "scheduler": "sched-simple",
            "nodes": 2,
            "nodes_up": 2,
            "nodes_free": 1,
            "cores": 8,
            "cores_free": 3,
            "waiting": 0,
            "running": 5,
            "queues": None,
            "wait_s": 0.0,
        },
    }
    assert (away["reachable"], away["why"], away["load"]) == (False, "connection refused", None)


@pytest.mark.parametrize(
    ("waiting", "free", "last_start_at", "wait_s"),
    [(0, 3, None, 0.0), (0, 0, 160.0, 60.0), (2, 3, 160.0, 60.0), (2, 3, 40.0, 0.0), (2, 3, None, None)],
)
def test_the_expected_wait(waiting: int, free: int, last_start_at: float | None, wait_s: float | None) -> None:
    load = replace(LOAD, waiting=waiting, cores_free=free, last_start_at=last_start_at)
    assert load.wait_s == wait_s


def test_why_nothing_is_delegated(tmp_path: Path) -> None:
    view = replace(VIEW, fault="add plugins")
    text = printed(tables.peers(get(a_delegating_stand(view), "/peers")), tmp_path)
    assert "No job is delegated now: add plugins" in text


def test_a_delegated_job_is_explained_by_where_it_is(tmp_path: Path) -> None:
    document = get(a_delegating_stand(), "/explain/job/1")
    text = printed(tables.explanation(document), tmp_path)
    assert "runs at b as ƒ7" in text
    assert "flux proxy local:///b flux job kill" in text
    assert "others: c: connection refused" in text


def test_another_job_is_explained_as_ever() -> None:
    job = get(a_delegating_stand(), "/explain/job/2")["job"]
    assert isinstance(job, dict)
    assert job["delegated"] is None


def test_jobs_are_listed_with_their_peer() -> None:
    jobs = get(a_delegating_stand(), "/jobs")["jobs"]
    assert isinstance(jobs, list)
    assert [job["delegated"]["peer"] for job in jobs if job["delegated"]] == ["b"]


def test_metrics() -> None:
    stand = a_delegating_stand()
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        text = client.get("/metrics").text
    assert 'node_manager_peer_jobs{peer="b"} 1.0' in text
    assert 'node_manager_peer_up{peer="c"} 0.0' in text
    assert 'node_manager_peer_cores_free{peer="b"} 3.0' in text
    assert 'node_manager_peer_wait_seconds{peer="b"} 0.0' in text
    assert 'node_manager_peer_wait_seconds{peer="c"}' not in text, "it has not said how busy it is"
    assert 'node_manager_peer_price_per_core_hour{peer="c"} 0.5' in text
    assert "node_manager_delegated_jobs_ended_total 4.0" in text


def test_why_a_job_waits_while_delegation_is_stopped() -> None:
    fleet = a_fleet(2)
    waiting = a_job(1, state=JobState.DEPEND, delegated_to="any")
    stand = a_delegating_stand(DelegationView(fault="add plugins = [...]"))
    stand.post(replace(fleet, snapshot=replace(fleet.snapshot, jobs={waiting.id: waiting})))
    explained: Any = get(stand, "/explain/job/1")
    assert explained["reason"]["code"] == "delegation_stopped"
    assert "add plugins" in explained["reason"]["text"]
    assert explained["job"]["delegated"]["target"] == "any"


def test_explain_names_the_ways_that_a_job_did_not_take(tmp_path: Path) -> None:
    stand = a_delegating_stand()
    published = a_fleet(2)
    waiting = next(iter(published.plan.jobs))
    away = WayToRun("c", 0.0, Decimal(0), "connection refused")
    weighed = Bursts(not_taken={waiting: [WayToRun("b", 90.0, Decimal("0.5")), away]})
    stand.post(replace(published, plan=replace(published.plan, bursts=weighed)))
    document = get(stand, f"/explain/job/{waiting}")
    assert document["not_taken"] == ["b: wait 90 s, 0.5 an hour", "c: connection refused"]
    shown = printed(tables.explanation(document), tmp_path)
    assert "not taken b: wait 90 s, 0.5 an hour not taken c: connection refused" in shown
