"""The HTTP API, as a client sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from nodemanager.core.facts import ClaimRefused, HoldPlaced
from nodemanager.core.jobs import JobId, JobState, UnreadableJob
from nodemanager.core.notation import format_job_id
from nodemanager.core.orders import CancelCopy, ReadResult, StartCopy
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import TypeName
from nodemanager.ensemble.fair_share import Claim, NodeClaim
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryUpdate
from nodemanager.planner.observe import observe
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Source
from nodemanager.web.api import hidden_jobs
from nodemanager.web.api.documents import reason_fields, status
from nodemanager.web.api.handlers import POLICY
from nodemanager.web.api.hidden_jobs import HIDDEN, hide_jobs
from nodemanager.web.api.kubernetes_metrics import API_ROOT as METRICS_API
from nodemanager.web.api.kubernetes_metrics import METRICS
from nodemanager.web.app import SECURITY_HEADERS
from nodemanager.web.state.token import NamedToken, Role
from tests.builders import (
    NOW_S,
    WALL_AT,
    a_job,
    a_node,
    a_policy,
    a_rank,
    a_snapshot,
    a_world,
    changed,
    drained,
    whole_nodes,
    with_settings,
)
from tests.paths import ROOT
from tests.web.fleets import HOST, TOKEN, Stand, a_fleet, a_stand, published

WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def stand() -> Stand:
    stand = a_stand(jobs_for_everybody=True)
    stand.post(a_fleet(12))
    return stand


@pytest.fixture
def client(stand: Stand) -> Iterator[TestClient]:
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        yield client


def asked(client: TestClient, path: str, **headers: str) -> Any:
    response = client.get(path, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


# --- asking -----------------------------------------------------------------------------------------------


def test_status_counts_what_there_is(client: TestClient) -> None:
    status = asked(client, "/status")
    assert (status["cluster"], status["mode"], status["acts"]) == ("demo", "act", True)
    assert status["nodes"]["total"] == 12
    assert sum(status["nodes"]["by_state"].values()) == 12
    assert status["jobs"]["inactive"] == 41
    assert status["sources"]["cloud"] == {"age_s": 1.0, "stale": False, "failure": ""}
    assert status["limits"]["nodes_left"] == status["limits"]["nodes_max"] - 12


def test_held_jobs_and_those_that_wait_for_others_do_not_count_as_waiting_for_nodes() -> None:
    world = a_world().job(whole_nodes(1), whole_nodes(1)).job(whole_nodes(1), urgency=0, priority=0)
    world.job(whole_nodes(1), state=JobState.DEPEND)
    document = status(published(world.policy, world.snapshot))
    assert document["jobs_waiting_for_nodes"] == 2
    assert sum(document["jobs_waiting"].values()) == 4
    nothing_seen = a_snapshot(jobs=list(world.snapshot.jobs.values()), claimed=False)
    assert status(published(world.policy, nothing_seen))["jobs_waiting_for_nodes"] == 4


def test_every_node_is_shown_with_its_reason_and_window(client: TestClient) -> None:
    nodes = asked(client, "/nodes")["nodes"]
    assert len(nodes) == 12
    assert all(node["reason"]["code"] and node["reason"]["text"] for node in nodes)
    window = next(node["window"] for node in nodes if node["window"])
    assert 0 <= window["left_s"] <= window["length_s"]


def test_the_fleet_in_few_characters_says_the_same_as_the_nodes(client: TestClient) -> None:
    fleet, nodes = asked(client, "/fleet"), asked(client, "/nodes")["nodes"]
    assert fleet["node"] == [node["node"] for node in nodes]
    assert [fleet["states"][state] for state in fleet["state"]] == [node["state"] for node in nodes]


def test_jobs_that_wait_come_first_and_are_limited(client: TestClient) -> None:
    jobs = asked(client, "/jobs?limit=2")
    assert [job["state"] for job in jobs["jobs"]] == ["sched", "sched"]
    assert jobs["total"] > 2
    assert all(job["reason"]["text"] for job in jobs["jobs"])


@pytest.mark.parametrize("form", ["f2", "1", "0x1"])
def test_a_job_is_explained_by_any_form_of_its_id(client: TestClient, form: str) -> None:
    explained = asked(client, f"/explain/job/{form}")
    assert explained["subject"] == "f2"
    assert explained["reason"]["code"]


@pytest.mark.parametrize("name", ["cpu1", "cpu1-1"])
def test_a_node_is_explained_by_its_slot_or_its_launch(client: TestClient, name: str) -> None:
    assert asked(client, f"/explain/node/{name}")["node"]["slot"] == "cpu1"


def test_a_node_is_explained_by_its_provider_id(client: TestClient) -> None:
    node = next(it for it in asked(client, "/nodes")["nodes"] if it["provider_id"])
    assert asked(client, f"/explain/node/{node['provider_id']}")["node"]["slot"] == node["slot"]


def test_a_type_is_explained(client: TestClient) -> None:
    explained = asked(client, "/explain/type/gpu")
    assert explained["node_type"]["gpus"] == 4
    assert explained["reason"]["code"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/explain/job/f99999", "no active job"),
        ("/explain/job/zzz", "a job id is needed"),
        ("/explain/node/nowhere", "there is no node or slot nowhere"),
        ("/explain/node/gpu3", "slot gpu3 has no node"),
        ("/explain/type/none", "it has cpu, large, gpu"),
        (f"{METRICS_API}/namespaces/x/metrics/none", "there is no metric none"),
        ("/nowhere", "Not Found"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(client: TestClient, path: str, said: str) -> None:
    response = client.get(path)
    assert (response.status_code, said in response.json()["error"]) == (404, True), response.text


@pytest.mark.parametrize(
    "path", ["/jobs?limit=-1", "/jobs?limit=many", "/events/recent?limit=nan", "/explain/node/cpu1?at=inf"]
)
def test_a_number_that_is_none_is_refused_with_its_range(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert (response.status_code, "must be a number from" in response.json()["error"]) == (400, True)


def test_before_anything_is_known_it_says_so() -> None:
    with TestClient(a_stand().application, base_url=f"http://{HOST}") as client:
        for path in ("/status", "/nodes", "/plan", "/jobs", f"{METRICS_API}/namespaces/x/metrics/node_up_count"):
            assert client.get(path).status_code == 503, path
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics").status_code == 200


def test_the_past_needs_the_history_file(client: TestClient) -> None:
    response = client.get("/explain/node/cpu1?at=1800000000")
    assert (response.status_code, "the history cannot be read" in response.json()["error"]) == (503, True)


def test_recent_events_are_numbered_and_bounded(client: TestClient) -> None:
    events = asked(client, "/events/recent?limit=3")["events"]
    assert len(events) == 3
    assert [event["number"] for event in events] == sorted(event["number"] for event in events)
    assert asked(client, "/events/recent?limit=0")["events"] == []


# --- access -----------------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Stand:
    stand = a_stand()
    stand.post(a_fleet(12))
    return stand


def test_over_tcp_jobs_are_shown_with_the_token_only(guarded: Stand) -> None:
    with TestClient(guarded.application, base_url=f"http://{HOST}") as client:
        without, with_token = asked(client, "/jobs"), asked(client, "/jobs", **WITH_TOKEN)
        assert (without["shown"], without["jobs"], without["total"]) == (False, [], with_token["total"])
        assert with_token["jobs"]
        assert client.get("/explain/job/f2").status_code == 401
        assert client.get("/explain/job/f2", headers=WITH_TOKEN).status_code == 200
        assert client.get("/report").status_code == 401


OPEN_DOCUMENTS = [
    "/status", "/nodes", "/fleet", "/plan", "/jobs", "/peers", "/ensembles", "/costs", "/history", "/overview",
    "/events/recent",
    "/metrics", "/explain/node/cpu1", "/explain/type/cpu", "/explain/node/cpu1?history=yes",
]  # fmt: skip


def test_over_tcp_no_open_document_names_a_job_without_the_token(guarded: Stand) -> None:
    shown = a_fleet(12)
    guarded.post(shown)
    ids = {format_job_id(job) for job in shown.snapshot.jobs}
    with TestClient(guarded.application, base_url=f"http://{HOST}") as client:
        texts = {path: client.get(path).text for path in OPEN_DOCUMENTS}
        seen = {path: client.get(path, headers=WITH_TOKEN).text for path in OPEN_DOCUMENTS}
    for path, text in texts.items():
        assert not ids & set(re.findall(r'(?<=["\s])\w+', text)), path
        assert '"kind":"job"' not in text, path
    named = [path for path, text in seen.items() if ids & set(re.findall(r'(?<=["\s])\w+', text))]
    assert {"/nodes", "/jobs"} <= set(named)


def test_a_reason_names_no_job_to_whom_may_not_see_it() -> None:
    figures = {"job": "fLqTPgb", "jobs": ["f2", "f3"], "node": "fab1-1", "other": 3}
    said = {"figures": figures, "text": "fLqTPgb and f9 wait for fab1-1, not f2x", "since": "f3: f2"}
    answer = json.loads(hide_jobs(json.dumps([said]).encode(), {8}.__contains__))
    assert answer == [
        {
            "figures": {"job": HIDDEN, "jobs": [HIDDEN, HIDDEN], "node": "fab1-1", "other": 3},
            "text": f"{HIDDEN} and {HIDDEN} wait for fab1-1, not f2x",
            "since": f"{HIDDEN}: {HIDDEN}",
        }
    ]


@pytest.mark.parametrize(
    "reason",
    [
        because(Code.DEPENDENCY, jobs=("7", "120000000")),
        because(Code.CLOUD_FULL, cloud="east", why="2 of its nodes_max of 2 exist", jobs=("7", "120000000")),
        because(Code.NODES_MAX, node_type="cpu", nodes_max=2, short=1, jobs=("7", "120000000")),
    ],
    ids=lambda it: it.code,
)
def test_the_jobs_that_another_one_waits_for_are_hidden_too(reason: Reason) -> None:
    said = json.dumps({"reason": reason_fields(reason.code, reason.figures)})
    hidden = hide_jobs(said.encode(), lambda _: False).decode()
    for job in (7, 120000000):
        assert f'"{job}"' in said
        assert format_job_id(job) not in hidden
        assert f'"{job}"' not in hidden
    assert hidden.count(HIDDEN) == 4, "each in the figures and in the sentence"


def test_an_order_about_a_job_and_its_event_name_no_job_without_the_token(guarded: Stand) -> None:
    original, copy, unread = JobId(7 << 24), JobId(8 << 24), JobId(9 << 24)
    fleet = a_fleet(12)
    reason = because(Code.UNREADABLE, why=f"{copy}, {format_job_id(copy)}, {unread} and {format_job_id(unread)}")
    orders = (ReadResult(copy, original, reason), StartCopy(copy, reason), CancelCopy(copy, reason))
    bad = {unread: UnreadableJob(unread, "odd")}
    snapshot = replace(
        fleet.snapshot,
        jobs={**fleet.snapshot.jobs, copy: a_job(copy)},
        queues=replace(fleet.snapshot.queues, unreadable=bad),
    )
    guarded.post(replace(fleet, snapshot=snapshot, plan=replace(fleet.plan, actions=orders)))
    # The board may get this one some day.
    waits = HistoryEvent(WALL_AT, "because", str(original), "waits", of_job=True)
    guarded.board.take_in(HistoryUpdate(fleet, (), (), (replace(waits, kind="delegation"),), (), {}))
    ids = {notation for job in (original, copy, unread) for notation in (str(job), format_job_id(job))}
    with TestClient(guarded.application, base_url=f"http://{HOST}") as client:
        for path in ("/plan", "/events/recent"):
            text = client.get(path).text
            assert not [it for it in ids if it in text], path
            seen = client.get(path, headers=WITH_TOKEN).text
            assert str(copy) in seen, path
            assert format_job_id(copy) in seen, path
        assert '"ReadResult"' not in client.get("/events/recent").text
        assert '"ReadResult"' in client.get("/plan").text


def test_the_answer_without_jobs_is_made_once_for_everybody(
    guarded: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []
    hide = hidden_jobs.hide_jobs

    def hide_and_note(body: bytes, is_active: Callable[[int], bool]) -> bytes:
        made.append(body)
        return hide(body, is_active)

    monkeypatch.setattr(hidden_jobs, "hide_jobs", hide_and_note)
    with TestClient(guarded.application, base_url=f"http://{HOST}") as client:
        answers = [client.get("/nodes").text for _ in range(3)]
        assert (len(made), len(set(answers))) == (1, 1)
        guarded.post(a_fleet(12, moment=1))
        client.get("/nodes")
        assert len(made) == 2
        for number in range(2 * hidden_jobs.KEPT_MAX):
            client.get(f"/nodes?any={number}")
        assert client.get("/nodes").status_code == 200


def test_whoever_may_use_the_socket_sees_jobs_and_still_needs_the_token_to_steer() -> None:
    stand = a_stand(by_socket=True)
    stand.post(a_fleet(12))
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        assert asked(client, "/jobs")["jobs"]
        assert client.post("/pause").status_code == 401


STEERING = [
    "/hold/cpu1", "/release/cpu1", "/retire/cpu1", "/replace/cpu1", "/replace-all", "/replace-all/cpu", "/pause",
    "/resume", "/reload", "/plan",
]  # fmt: skip


@pytest.mark.parametrize("path", STEERING)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}])
def test_nobody_steers_without_the_token(
    client: TestClient, stand: Stand, path: str, headers: dict[str, str]
) -> None:
    response = client.post(path, headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert stand.manager.told == []


def test_where_the_token_cannot_be_had_nobody_steers() -> None:
    stand = a_stand(token=None)
    stand.post(a_fleet(3))
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        assert client.post("/pause", headers={"Authorization": "Bearer None"}).status_code == 503


TEAM = (NamedToken("ada", Role.OPERATE, "a" * 32), NamedToken("bob", Role.VIEW, "b" * 32))


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_named_token_shows_jobs_and_steers_by_its_role(guarded: Stand) -> None:
    guarded.served.access.team.tokens = TEAM
    ada, bob = bearer("a" * 32), bearer("b" * 32)
    with TestClient(guarded.application, base_url=f"http://{HOST}") as client:
        assert asked(client, "/jobs", **bob)["jobs"]
        refused = client.post("/pause", headers=bob)
        assert (refused.status_code, "bob may view, not operate" in refused.json()["error"]) == (403, True)
        assert client.post("/hold/cpu1", headers=ada, json={"by": "somebody else"}).status_code == 200
        assert asked(client, "/nodes")["nodes"][0]["held"]["by"] == "ada", "the token proves the name"
        assert client.post("/reload", headers=ada).status_code == 200
        assert guarded.manager.reloaded_by == ["ada"]
        guarded.served.access.team.tokens = TEAM[1:]
        assert client.post("/resume", headers=ada).status_code == 401, "a token that was taken out no longer works"


def test_named_tokens_steer_where_the_owners_token_cannot_be_had() -> None:
    stand = a_stand(token=None)
    stand.post(a_fleet(3))
    stand.served.access.team.tokens = TEAM
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        assert client.post("/pause", headers=bearer("a" * 32)).status_code == 200


@pytest.mark.parametrize("host", ["evil.example.org", "127.0.0.1.evil.example.org", "evil.example.org:8080"])
def test_a_request_for_another_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/status", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/status", "/nowhere", "/static/dashboard.js", "/docs"])
def test_every_answer_keeps_others_out_of_the_page(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


# --- steering ---------------------------------------------------------------------------------------------


def steer(client: TestClient, path: str, body: object = None) -> Any:
    return client.post(path, headers=WITH_TOKEN, content=json.dumps(body) if body is not None else b"")


def test_a_hold_is_told_with_who_and_when_and_shown(client: TestClient, stand: Stand) -> None:
    response = steer(client, "/hold/cpu1", {"by": "ada"})
    assert (response.status_code, response.json()) == (200, {"node": "cpu1-1", "on_record": True})
    (fact,) = stand.manager.told
    assert isinstance(fact, HoldPlaced)
    assert fact.mark.by == "ada"
    held = asked(client, "/explain/node/cpu1")
    assert (held["node"]["held"]["by"], held["reason"]["code"]) == ("ada", "held_by_operator")
    assert steer(client, "/release/cpu1").status_code == 200
    assert asked(client, "/explain/node/cpu1")["node"]["held"] is None


def test_an_order_has_a_reason_and_an_end(client: TestClient, stand: Stand) -> None:
    now_at = asked(client, "/status")["at"]
    words = {"by": "ada", "reason": "its disk", "until_at": now_at + 60}
    assert steer(client, "/hold/cpu1", words).json()["on_record"]
    held = asked(client, "/explain/node/cpu1")
    assert (held["node"]["held"]["why"], held["node"]["held"]["until_at"]) == ("its disk", now_at + 60)
    assert "its disk" in held["reason"]["text"]
    again = steer(client, "/hold/cpu1", {"by": "ada", "until_at": now_at + 3600})
    assert (again.status_code, again.json()["on_record"]) == (200, True)
    assert asked(client, "/explain/node/cpu1")["node"]["held"]["until_at"] == now_at + 3600
    assert steer(client, "/hold/cpu2", {"until_at": now_at - 1}).status_code == 400
    assert len(stand.manager.told) == 2


def test_a_pause_stands_still_until_resumed(client: TestClient) -> None:
    assert steer(client, "/pause", {"by": "ada"}).status_code == 200
    status = asked(client, "/status")
    assert (status["stands_still"]["code"], status["paused"]["by"], status["acts"]) == ("paused", "ada", False)
    assert asked(client, "/readyz")["ok"]
    assert steer(client, "/resume").status_code == 200
    assert asked(client, "/status")["acts"]


def test_a_node_is_retired(client: TestClient) -> None:
    assert steer(client, "/retire/cpu1").status_code == 200
    assert asked(client, "/nodes")["nodes"][0]["to_retire"]["by"] == "operator"


def test_nodes_are_replaced_in_turns_and_the_status_says_when(client: TestClient) -> None:
    answer = steer(client, "/replace-all/cpu", {"by": "ada"})
    assert (answer.status_code, answer.json()["on_record"]) == (200, True)
    status = asked(client, "/status")
    # Those that are not up yet take their turn once they are.
    assert len(answer.json()["nodes"]) > status["nodes"]["to_replace"] == len(status["due"]) > 1
    first, second = status["due"][:2]
    assert (first["why"]["code"], first["stage"]) == ("replaced_by_operator", "replaced_first")
    assert (second["reason"]["code"], second["stage"]) == ("waits_for_turn", "waits")
    assert asked(client, f"/explain/node/{second['slot']}")["node"]["due"]["code"] == "waits_for_turn"
    assert steer(client, f"/release/{second['slot']}").status_code == 200
    assert second["node"] not in [it["node"] for it in asked(client, "/status")["due"]]
    assert steer(client, f"/replace/{second['slot']}").status_code == 200


def test_who_retires_a_node_that_somebody_drained_is_told_that_it_stays(client: TestClient, stand: Stand) -> None:
    policy = a_policy()
    node = a_node("cloud1", policy=policy, rank=drained(a_rank("cloud1", online=True), "broken fan"))
    stand.post(published(policy, a_snapshot(policy, nodes=[node])))
    answer = steer(client, "/retire/cloud1").json()
    assert answer["waits_for"] == 'somebody drained it ("broken fan"), which keeps it: flux resource undrain 1'
    assert [it["code"] for it in asked(client, "/status")["warnings"]] == ["drained_yet_paid"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/release/cpu1", 409, "neither held nor"),
        ("/hold/nowhere", 404, "there is no node or slot nowhere"),
        ("/replace/nowhere", 404, "there is no node or slot nowhere"),
        ("/replace-all/nothing", 404, "the site has no node type nothing; it has cpu"),
    ],
)
def test_what_cannot_be_done_is_said(client: TestClient, path: str, status: int, said: str) -> None:
    response = steer(client, path)
    assert (response.status_code, said in response.json()["error"]) == (status, True)


@pytest.mark.parametrize(
    "body",
    ["[1]", '{"by": 7}', '{"by": ""}', '{"by": "a\\u0000"}', "no json", "[" * 100_000, '{"by": "%s"}' % ("x" * 65)],
)
def test_who_steers_must_be_a_name(client: TestClient, stand: Stand, body: str) -> None:
    assert client.post("/pause", headers=WITH_TOKEN, content=body).status_code == 400
    assert stand.manager.told == []


def test_what_fails_by_a_bug_says_so_and_keeps_others_out_of_the_page(stand: Stand) -> None:
    def fails() -> bytes:
        raise ZeroDivisionError

    stand.served.metrics.render = fails  # type: ignore[method-assign]
    with TestClient(stand.application, base_url=f"http://{HOST}", raise_server_exceptions=False) as client:
        response = client.get("/metrics")
    assert (response.status_code, "bug" in response.json()["error"]) == (500, True)
    assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_an_observer_is_not_steered(stand: Stand, client: TestClient) -> None:
    first = a_fleet(3)
    stand.board.publish(published(first.policy, first.snapshot, acts=False))
    response = steer(client, "/pause")
    assert (response.status_code, "observe" in response.json()["error"]) == (409, True)


def test_one_that_waits_for_the_name_is_not_steered(stand: Stand, client: TestClient) -> None:
    first = a_fleet(3)
    waits = observe(first.snapshot, ClaimRefused(NOW_S, "process 7 has it"), first.policy)
    stand.board.publish(published(first.policy, waits))
    assert steer(client, "/pause").status_code == 409
    assert asked(client, "/status")["stands_still"]["code"] == "not_the_actor"


def test_a_bad_site_is_refused_whole_with_every_fault(stand: Stand, client: TestClient) -> None:
    assert steer(client, "/reload").json()["reloaded"]
    stand.manager.fault = "site.ini, line 3: nodes_mx: no such key"
    response = steer(client, "/reload")
    assert (response.status_code, response.json()["error"]) == (409, stand.manager.fault)


def test_too_large_a_body_is_cut_off(client: TestClient) -> None:
    assert client.post("/plan", headers=WITH_TOKEN, content=b"x" * (1 << 20) + b"x").status_code == 413


# --- the plan ---------------------------------------------------------------------------------------------


def test_the_plan_says_what_is_ordered_and_why_each_type_is_not() -> None:
    policy = a_policy()
    stand = a_stand()
    stand.post(published(policy, a_snapshot(policy, jobs=[a_job(1, whole_nodes(2))])))
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        plan = asked(client, "/plan", **WITH_TOKEN)
        assert [(it["order"], it["slot"], it["serves"]) for it in plan["actions"]] == [
            ("BootNode", "cloud1", ["f2"]),
            ("BootNode", "cloud2", ["f2"]),
        ]
        assert plan["nodes_wanted"] == {"cloud": 2, "gpu": 0}


def test_a_type_that_is_only_observed_is_wanted_all_the_same_for_others_to_follow() -> None:
    policy = a_policy(observed=frozenset({TypeName("cloud")}))
    stand = a_stand()
    stand.post(published(policy, a_snapshot(policy, jobs=[a_job(1, whole_nodes(2))])))
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        plan = asked(client, "/plan")
        orders = [
            [(it["order"], it["slot"]) for it in plan[key] if it["node_type"] == "cloud"]
            for key in ("actions", "would")
        ]
        assert orders == [[], [("BootNode", "cloud1"), ("BootNode", "cloud2")]]
        assert plan["nodes_wanted"]["cloud"] == 2
        assert asked(client, "/status")["observed"] == ["cloud"]
        assert asked(client, "/explain/type/cloud")["acts"] is False


def test_a_policy_with_budgets_is_tried_too(stand: Stand, client: TestClient) -> None:
    posted = stand.board.latest
    assert posted is not None
    budgets = {("", "day"): Decimal(5), ("cloud a,b", "month"): Decimal("7.5")}
    policy = with_settings(posted.published.policy, budgets=budgets, block_s={})
    body = TypeAdapter(Policy).dump_json(policy)
    assert POLICY.validate_json(body).budgets == budgets
    assert client.post("/plan", headers=WITH_TOKEN, content=body).status_code == 200
    wrong = body.replace(b'",day"', b'"day"')
    assert client.post("/plan", headers=WITH_TOKEN, content=wrong).status_code == 400


def test_another_policy_is_tried_on_what_is_known_and_nothing_is_ordered(stand: Stand, client: TestClient) -> None:
    posted = stand.board.latest
    assert posted is not None
    tight = with_settings(posted.published.policy, nodes_max=1, block_s={})
    body = TypeAdapter(Policy).dump_json(tight)
    plan = client.post("/plan", headers=WITH_TOKEN, content=body).json()
    assert plan["acts"] is False
    assert stand.board.latest is posted
    assert client.post("/plan", headers=WITH_TOKEN, content=b"{}").status_code == 400


# --- health -----------------------------------------------------------------------------------------------


def test_a_stale_source_is_no_health(stand: Stand, client: TestClient) -> None:
    assert asked(client, "/healthz")["ok"]
    first = a_fleet(3)
    stale = changed(first.snapshot, cloud=Source(seen_s=NOW_S - 10_000, failure="no answer"))
    stand.board.publish(published(first.policy, stale))
    response = client.get("/healthz")
    assert (response.status_code, response.json()["stale"]) == (503, ["cloud"])


def test_a_silent_manager_is_unhealthy() -> None:
    stand = a_stand(clock_s=[0.0, 1.0, *[500.0] * 9])
    stand.post(a_fleet(3))
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        response = client.get("/healthz")
        assert (response.status_code, response.json()["late"]) == (503, True)


# --- custom metrics ---------------------------------------------------------------------------------------


def custom(client: TestClient, name: str) -> str:
    (item,) = asked(client, f"{METRICS_API}/namespaces/flux/metrics/{name}")["items"]
    assert (item["metric"]["name"], item["describedObject"]["namespace"]) == (name, "flux")
    return str(item["value"])


def test_the_custom_metrics_have_the_eleven_names_and_right_values(stand: Stand, client: TestClient) -> None:
    names = [it["name"] for it in asked(client, METRICS_API)["resources"]]
    assert sorted(names) == sorted(METRICS)
    assert len(names) == 11
    posted = stand.board.latest
    assert posted is not None
    snapshot = posted.published.snapshot
    up = [rank for rank in snapshot.ranks.values() if rank.online and rank.drain_reason is None]
    running = sum(1 for job in snapshot.jobs.values() if job.state is JobState.RUN)
    assert custom(client, "node_up_count") == str(len(up))
    assert custom(client, "node_free_count") == str(sum(1 for rank in up if rank.cores_free))
    assert custom(client, "node_cores_up_count") == str(sum(rank.cores for rank in up))
    assert custom(client, "node_cores_free_count") == str(sum(rank.cores_free for rank in up))
    assert custom(client, "job_queue_state_run_count") == str(running)
    assert custom(client, "job_queue_state_sched_count") == "4"
    assert custom(client, "job_queue_state_inactive_count") == "41"
    assert [custom(client, f"job_queue_state_{it}_count") for it in ("new", "depend", "priority", "cleanup")] == [
        "0"
    ] * 4


@pytest.mark.parametrize("path", ["/namespaces/n/services/s/node_up_count", "/services/s/node_up_count"])
def test_a_custom_metric_is_found_by_each_of_kubernetes_paths(client: TestClient, path: str) -> None:
    (item,) = asked(client, METRICS_API + path)["items"]
    assert item["describedObject"]["name"] == "s"


# --- the description --------------------------------------------------------------------------------------


def test_the_description_names_every_path(client: TestClient) -> None:
    paths = asked(client, "/openapi.json")["paths"]
    assert {"/status", "/hold/{name}", "/metrics", "/explain/job/{name}"} <= set(paths)
    assert paths["/pause"]["post"]["security"] == [{"token": []}]


def test_pages_are_there_and_vendored(client: TestClient) -> None:
    for path in ("/", "/docs", "/static/dashboard.js", "/static/draw.js", "/static/style.css", "/static/icon.svg"):
        response = client.get(path)
        assert (response.status_code, len(response.content) > 100) == (200, True), path
        assert "https://" not in response.text.replace("http://www.w3.org", ""), path


def test_static_files_are_those_that_are_named_and_no_others(client: TestClient) -> None:
    folder = ROOT / "nodemanager" / "web" / "static"
    for file in folder.iterdir():
        if file.suffix in (".js", ".css", ".svg"):
            assert client.get(f"/static/{file.name}").status_code == 200
    assert client.get("/static/../server.py").status_code == 404


def test_an_ensemble_is_explained_with_whom_it_waits_for(stand: Stand, client: TestClient) -> None:
    reason = because(Code.ENSEMBLE_SHARE, wanted=4, have=3, nodes_max=6, others="a keeps 3 of 5 (weight 1)")
    terms = Claim(2, weight=2.0, per_day=Decimal(9))
    stand.board.node_claims = {"b": NodeClaim(2, 4, 2, terms, Decimal("1.5"), reason)}
    explained = asked(client, "/explain/ensemble/b")
    assert explained["reason"]["text"].endswith("its share of nodes_max = 6 is 3: a keeps 3 of 5 (weight 1)")
    assert (explained["ensemble"]["wanted"], explained["ensemble"]["kept"]) == (4, 2)
    assert (explained["ensemble"]["cost_today"], explained["ensemble"]["per_day"]) == (1.5, 9.0)
    assert "known are b" in client.get("/explain/ensemble/c").json()["error"]
    assert client.get("/explain/ensemble/b", params={"at": 5}).status_code == 400
