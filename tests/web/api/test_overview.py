"""The document of the dashboard: figures of a range, forecasts, boots by type, waiting jobs in groups."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nodemanager.core.jobs import JobState
from nodemanager.core.nodes import NodeState
from nodemanager.history.fleet_samples import FleetSample
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.node_lives import NodeLife
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.web.api.overview import STRIPS_MAX, demand
from nodemanager.web.state.range_figures import POINTS, RANGES_S, RangeCache, chart_samples
from nodemanager.web.state.token import NamedToken, Role
from tests.builders import NOW_S, WALL_AT, a_job, a_node, a_policy, a_snapshot, a_type, tasks, whole_nodes
from tests.history.publications import a_moment, told
from tests.web.fleets import HOST, STOP_S, TOKEN, Stand, a_fleet, a_stand, later, published

WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}


def overview(stand: Stand, query: str = "", **headers: str) -> dict[str, Any]:
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        answer = client.get(f"/overview{query}", headers=headers)
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document


def a_life(number: int, outcome: str, took_s: float | None = None) -> NodeLife:
    begun_at = WALL_AT - 1000 + number
    joined_at = begun_at + took_s if took_s is not None else None
    return NodeLife(f"cpu{number}-1", f"cpu{number}", "cpu", begun_at, joined_at=joined_at, outcome=outcome)  # type: ignore[arg-type]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Ten minutes of a fleet are on record, with the boots of some nodes."""
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    journal.start()
    moments = [later(a_fleet(20), 60.0 * minute) for minute in range(11)]
    for update in told(*moments):
        journal.take_in(update)
    lives = [a_life(1, "joined", 40.0), a_life(2, "joined", 60.0), a_life(3, "joined", 90.0)]
    lives += [a_life(4, "never_joined"), a_life(5, "create_capacity"), a_life(6, "not_needed")]
    changes = tuple((None, life) for life in lives)
    journal.take_in(HistoryUpdate(moments[-1], (), (), (), changes, {}))
    journal.stop(STOP_S)
    stand = a_stand(journal.path)
    stand.post(moments[-1])
    return stand


def test_it_has_all_that_the_page_needs(stand: Stand) -> None:
    shown = overview(stand, **WITH_TOKEN)
    assert shown["status"]["nodes"]["total"] == len(shown["nodes"]) == 20
    assert shown["fleet"] is None
    assert shown["range"]["name"] == "6h"
    assert [it["name"] for it in shown["types"]] == ["cpu", "large", "gpu"]
    assert sum(it["nodes"] for it in shown["types"]) == 20
    assert shown["peers"]["delegates"] is False
    assert shown["ensembles"]["ensembles"] == []


def test_many_nodes_come_in_the_compact_form() -> None:
    stand = a_stand()
    stand.post(a_fleet(STRIPS_MAX + 1))
    shown = overview(stand)
    assert shown["nodes"] is None
    assert len(shown["fleet"]["node"]) == STRIPS_MAX + 1


def test_the_cores_that_jobs_use_are_counted_now_and_over_the_range(stand: Stand) -> None:
    cores = overview(stand, "?range=1h")["range"]["cores"]
    fleet = a_fleet(20).snapshot
    running = sum(held.cores for job in fleet.jobs.values() for held in job.allocations)
    assert 0 < cores["used"] == running < cores["paid"]
    assert cores["share"] == pytest.approx(cores["used"] / cores["paid"])
    assert cores["paid_hours"] == pytest.approx(cores["paid"] / 6)


def test_boots_that_failed_are_counted_by_type_and_those_no_longer_needed_are_not(stand: Stand) -> None:
    boots = {it["name"]: it["boots"] for it in overview(stand)["types"]}
    assert boots["cpu"]["joined"] >= 3
    assert boots["cpu"]["failed"] == 2
    assert boots["cpu"]["failures"] == {"never_joined": 1, "create_capacity": 1}
    assert boots["cpu"]["median_s"] is not None


def test_the_cost_is_compared_with_as_many_nodes_always_on(stand: Stand) -> None:
    cost = overview(stand)["range"]["cost"]
    listed = [node for node in a_fleet(20).snapshot.nodes.values() if node.cloud is not None]
    assert 0 < sum(cost["nodes"].values()) == len(listed) < 20, "a node that is only requested costs nothing yet"
    assert cost["since_at"] == WALL_AT
    assert cost["always_on"] > 0
    assert cost["cost"] >= 0


def test_waits_are_those_of_jobs_that_began_in_the_range(tmp_path: Path) -> None:
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    waiting = [a_job(number, whole_nodes(1), submitted_at=WALL_AT - 10 * number) for number in range(1, 21)]
    running = [
        a_job(number, whole_nodes(1), submitted_at=WALL_AT - 10 * number, state=JobState.RUN, began_at=WALL_AT)
        for number in range(1, 21)
    ]
    now = a_moment(10, jobs=running)
    journal.write(told(a_moment(jobs=waiting), now))
    journal.close()
    stand = a_stand(journal.path)
    stand.post(now)
    waits = overview(stand)["range"]["waits"]
    assert (waits["jobs"], waits["median_s"], waits["p95_s"]) == (20, 110.0, 200.0), "by the nearest rank"


def test_a_budget_has_a_forecast_at_the_mean_cost_of_the_last_day(tmp_path: Path) -> None:
    policy = a_policy(a_type("cpu", slots=2, cores=8, price="2.00"), budgets={("", "day"): Decimal(100)})
    node = a_node("cpu1", NodeState.IDLE, policy, billed_from_s=NOW_S)
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    moments = [a_moment(minute * 60.0, nodes=[node], policy=policy) for minute in range(181)]
    journal.write(told(*moments))
    journal.close()
    stand = a_stand(journal.path)
    stand.post(moments[-1])
    (budget,) = overview(stand)["status"]["spent"]["budgets"]
    left_h = (budget["ends_at"] - WALL_AT - 180 * 60) / 3600
    assert 0 < left_h < 24
    assert budget["ends_at"] % 86_400 == 0
    assert budget["forecast"] == pytest.approx(budget["spent"] + 2.0 * left_h, rel=0.02)
    assert "forecast" not in asked_status(stand)["spent"]["budgets"][0]


def asked_status(stand: Stand) -> dict[str, Any]:
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        document: dict[str, Any] = client.get("/status").json()
        return document


def test_without_a_history_the_figures_are_empty_and_it_says_why() -> None:
    stand = a_stand()
    stand.post(a_fleet(5))
    shown = overview(stand)
    assert "unable to open" in shown["range"]["failure"]
    assert shown["range"]["cost"] is None
    assert shown["range"]["cores"]["share"] is None
    assert shown["range"]["cores"]["paid"] > 0, "what is now needs no history"
    assert len(shown["samples"]) == 1


# --- the range --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RANGES_S)
def test_every_range_has_about_as_many_points(name: str) -> None:
    step_s = RANGES_S[name] / (4 * POINTS)
    live = [a_sample(WALL_AT + step_s * number) for number in range(5 * POINTS)]
    shown = chart_samples((), live, RANGES_S[name])
    assert POINTS <= len(shown) <= POINTS + 2
    assert shown[-1] is live[-1]
    assert shown[-1].at - shown[0].at <= RANGES_S[name]


def test_an_unknown_range_is_refused(stand: Stand) -> None:
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        for path in ("/overview", "/history"):
            answer = client.get(f"{path}?range=2h")
            assert (answer.status_code, answer.json()) == (
                400,
                {"error": "range must be one of 1h, 6h, 1d, 7d, 30d"},
            )


def test_the_history_is_asked_once_in_a_while(stand: Stand) -> None:
    now_s = 0.0
    cache = RangeCache(lambda: now_s)
    reader = stand.served.reader
    first = cache.figures("1h", WALL_AT + 600, reader)
    now_s = 5.0
    assert cache.figures("1h", WALL_AT + 605, reader) is first
    assert cache.figures("6h", WALL_AT + 605, reader) is not first
    assert cache.figures("1h", WALL_AT - 9000, reader) is not first, "the clock was set back"
    now_s = 20.0
    assert cache.figures("1h", WALL_AT + 620, reader).since_at == WALL_AT + 620 - 3600


def a_sample(at: float) -> FleetSample:
    return FleetSample(at, {"busy": 1}, {"cpu": (1, 1.0)}, 0, 1, 1.0, 4, 8)


# --- waiting jobs, and who asks ---------------------------------------------------------------------------


def groups(*jobs: Any, **changes: Any) -> list[Mapping[str, Any]]:
    policy = a_policy(a_type("cpu", slots=4, cores=16), nodes_max=4)
    found, count = demand(published(policy, a_snapshot(policy, jobs=jobs, **changes)))
    assert count == len(found)
    return [dict(it) for it in found]


def test_equal_jobs_are_one_group() -> None:
    equal = [a_job(number, tasks(1, cores=4), submitted_at=WALL_AT - 100 + number) for number in range(1, 35)]
    other = a_job(90, whole_nodes(2), submitted_at=WALL_AT - 5)
    found = groups(*equal, other)
    assert sum(it["count"] for it in found) == 35
    of_four = [it for it in found if it["cores_per_slot"] == 4]
    assert sum(it["count"] for it in of_four) == 34
    assert len({it["reason"]["code"] for it in of_four}) == len(of_four), "one group for each reason"
    assert max(it["waits_s"] for it in of_four) == 99


def test_jobs_of_others_and_held_jobs_are_groups_of_their_own() -> None:
    mine, others = a_job(1, tasks(1, cores=4), userid=0), a_job(2, tasks(1, cores=4), userid=1)
    held = a_job(3, tasks(1, cores=4), userid=0, urgency=0, priority=0)
    found = groups(mine, others, held)
    assert [it["count"] for it in found] == [1, 1, 1]
    assert found[-1]["reason"]["code"] == "held"


def test_during_a_standstill_all_wait_for_its_end() -> None:
    found = groups(a_job(1, tasks(1, cores=4)), a_job(2, tasks(1, cores=4)), claimed=False)
    assert [(it["count"], it["reason"]["code"]) for it in found] == [(2, "not_the_actor")]


def test_single_jobs_need_the_token_and_so_does_steering(stand: Stand) -> None:
    without, with_token = overview(stand), overview(stand, **WITH_TOKEN)
    assert without["demand"] == {"shown": False, "groups": 0, "first": []}
    assert sum(it["count"] for it in with_token["demand"]["first"]) == 4
    assert without["you"] == {"name": None, "may_steer": False}
    assert with_token["you"] == {"name": None, "may_steer": True}
    team = (NamedToken("ada", Role.OPERATE, "a" * 32), NamedToken("eve", Role.VIEW, "e" * 32))
    stand.served.access.team.tokens = team
    for name, may in (("ada", True), ("eve", False)):
        you = overview(stand, Authorization=f"Bearer {name[0] * 32}")["you"]
        assert you == {"name": name, "may_steer": may}
