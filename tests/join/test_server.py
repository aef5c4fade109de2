"""The service as a client sees it: it answers every request by the protocol, and never reveals a secret."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from structlog.testing import capture_logs

from nodemanager.core.nodes import JoinPhase, LaunchId
from nodemanager.join import flux_node_join
from nodemanager.join.admission import RefusalCode
from nodemanager.join.rate_limits import network_of
from nodemanager.join.server import (
    BODY_MAX_BYTES,
    LINES_BURST,
    REFUSALS_LOGGED_BURST,
    STATUS,
    JoinApi,
    RequestLimits,
    fault_logger,
)
from nodemanager.join.tickets import hash_nonce
from tests.join.admission import CURVE, KEY, LAUNCH, NONCE, OTHER_NONCE, AdmissionRig, entry

WHATS = ("redeem", "fetch", "renew", "report")
LOOSE = RequestLimits(requests_per_s=1e9, requests_burst=1e9)
SECRETS = (CURVE, KEY.ticket(LAUNCH), ("k" * 32).encode().hex(), NONCE, OTHER_NONCE)


class Client:
    """Makes requests to an application, one at a time. Raises the service's exceptions here, not as a 500."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def post(
        self, path: str, *, json: object = None, content: bytes | AsyncIterator[bytes] = b""
    ) -> httpx.Response:
        return self.ask("POST", path, content=content) if json is None else self.ask("POST", path, json=json)

    def ask(self, method: str, path: str, source: str = "10.0.0.5", **body: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(source, 1))
            async with httpx.AsyncClient(transport=transport, base_url="https://join") as client:
                return await client.request(method, path, **body)

        return asyncio.run(ask())


class Logged(list[str]):
    """Collects every log line, structured or not."""

    def __call__(self, logger: object, name: str, event: MutableMapping[str, Any]) -> str:
        del logger, name
        self.append(json.dumps(event, default=repr))
        raise structlog.DropEvent


@contextmanager
def a_service(rig: AdmissionRig, limits: RequestLimits = LOOSE) -> Iterator[tuple[Client, Logged]]:
    logged = Logged()
    before = structlog.get_config()
    structlog.configure(processors=[logged], cache_logger_on_first_use=False)
    try:
        yield Client(JoinApi(rig.admission, limits).make_app()), logged
    finally:
        structlog.configure(**before)


def ticket_of(launch: LaunchId = LAUNCH, nonce: str = NONCE) -> dict[str, str]:
    return {"launch": launch, "ticket": KEY.ticket(launch), "nonce": nonce}


def test_a_node_is_admitted_reports_and_renews() -> None:
    with a_service(AdmissionRig()) as (service, _):
        given = service.post("/v1/redeem", json=ticket_of()).json()
        asking = {"launch": LAUNCH, "key": given["lease_key"]}
        assert service.post("/v1/fetch", json=asking).json()["curve_cert"] == CURVE
        assert service.post("/v1/renew", json=asking).json()["may_start"] is True
        assert service.post("/v1/report", json={**asking, "phase": "started"}).json() == {}
        for phase in ("replayed", "redeemed", "of another protocol"):  # only the service reports the first two
            assert service.post("/v1/report", json={**asking, "phase": phase}).status_code == 400


def test_the_service_serves_the_client_to_nodes() -> None:
    with a_service(AdmissionRig()) as (service, _):
        assert service.get("/v1/flux-node-join").text == Path(flux_node_join.__file__).read_text()


def test_every_refusal_has_a_status() -> None:
    assert set(STATUS) == set(RefusalCode)


def test_a_replay_is_an_error_in_the_log() -> None:
    with a_service(AdmissionRig()) as (service, logged):
        service.post("/v1/redeem", json=ticket_of())
        assert service.post("/v1/redeem", json=ticket_of(nonce=OTHER_NONCE)).status_code == 409
    assert any('"ticket_replayed"' in line and LAUNCH in line for line in logged)


def test_one_source_is_throttled_and_gets_a_retry_after() -> None:
    with a_service(AdmissionRig(), RequestLimits(requests_per_s=0.1, requests_burst=2)) as (service, _):
        wrong = {**ticket_of(), "ticket": "0" * 64}
        answers = [service.post("/v1/redeem", json=wrong) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [403, 403, 429]
    assert int(answers[-1].headers["Retry-After"]) >= 10


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/x"), ("OPTIONS", "/v1/redeem"), ("GET", "/v1/flux-node-join")]
)
def test_every_request_counts_whatever_its_path_and_method(method: str, path: str) -> None:
    with a_service(AdmissionRig(), RequestLimits(requests_per_s=0.1, requests_burst=2)) as (service, _):
        statuses = [service.ask(method, path).status_code for _ in range(3)]
    assert 429 not in statuses[:2]
    assert statuses[2] == 429


def test_a_path_that_holds_a_secret_is_not_logged() -> None:
    with a_service(AdmissionRig(), RequestLimits(requests_per_s=0.1, requests_burst=1)) as (service, logged):
        statuses = [service.ask("GET", f"/v1/redeem/{KEY.ticket(LAUNCH)}").status_code for _ in range(2)]
    assert statuses == [404, 429]
    assert len(logged) == 1
    assert KEY.ticket(LAUNCH) not in logged[0]


def test_a_whole_network_of_ipv6_is_one_source() -> None:
    with a_service(AdmissionRig(), RequestLimits(requests_per_s=0.1, requests_burst=2)) as (service, _):
        answers = [service.ask("GET", "/x", source=f"2001:db8::{number}") for number in range(3)]
        assert answers[2].status_code == 429
        assert service.ask("GET", "/x", source="2001:db8:1::").status_code == 404


@pytest.mark.parametrize(
    ("source", "network"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("2001:db8::5", "2001:db8::/48"),
        ("2001:DB8:0:0:ffff::", "2001:db8::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("", ""),
    ],
)
def test_the_network_that_an_address_is_counted_for(source: str, network: str) -> None:
    assert network_of(source) == network


def test_admitted_nodes_do_not_fill_the_log() -> None:
    with a_service(AdmissionRig()) as (service, logged):
        given = service.post("/v1/redeem", json=ticket_of()).json()
        for _ in range(150):
            service.post("/v1/fetch", json={"launch": LAUNCH, "key": given["lease_key"]})
    assert 0 < len(logged) <= 10


def test_many_refused_sources_do_not_fill_the_log() -> None:
    with a_service(AdmissionRig()) as (service, logged):
        for number in range(1000):
            service.ask("POST", "/v1/redeem", source=f"10.0.{number // 250}.{number % 250}")
        assert len(logged) <= REFUSALS_LOGGED_BURST + 20
        service.post("/v1/redeem", json=ticket_of())
        service.post("/v1/redeem", json=ticket_of(nonce=OTHER_NONCE))
    assert any('"ticket_replayed"' in line for line in logged)


def test_the_event_loops_connection_faults_are_logged_at_a_limited_rate() -> None:
    loop = asyncio.new_event_loop()
    with closing(loop), capture_logs() as logged:
        loop.set_exception_handler(fault_logger(structlog.get_logger(), lambda: 0.0))
        for _ in range(100):
            loop.call_exception_handler(
                {"message": "socket.accept() out of system resource", "exception": OSError(24)}
            )
        loop.call_exception_handler({"message": "another"})
    assert len(logged) == LINES_BURST + 1


def test_one_refused_source_does_not_fill_the_log() -> None:
    with a_service(AdmissionRig()) as (service, logged):
        for _ in range(50):
            service.post("/v1/redeem", json=ticket_of() | {"ticket": "0" * 64})
    assert 0 < len(logged) <= 10


def test_a_body_is_bounded_with_and_without_its_length() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * BODY_MAX_BYTES

    with a_service(AdmissionRig()) as (service, _):
        assert service.post("/v1/redeem", content=b" " * (BODY_MAX_BYTES + 1)).status_code == 413
        assert service.post("/v1/redeem", content=chunks()).status_code == 413


@pytest.mark.parametrize("path", ["/", "/v1/", "/v1/redeem/x", "/v1/redeem/", "/docs", "/v1/roster.json"])
def test_nothing_else_is_served(path: str) -> None:
    with a_service(AdmissionRig()) as (service, _):
        assert service.get(path).status_code in (404, 405)
        assert service.post(path).json() == {"error": "malformed"}


# --- fuzz -------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
launches = st.sampled_from([LAUNCH, "cloud2-1", "cloud9-9"]) | st.text(max_size=20) | anything
LEASE_KEY = KEY.lease_key(LAUNCH, hash_nonce(NONCE))
MEASURES = ("cores", "threads", "gpus", "memory_bytes")
secrets = (
    st.sampled_from([*SECRETS, LEASE_KEY, KEY.ticket(LaunchId("cloud2-1")), KEY.lease_key(LAUNCH, "")]) | anything
)
details = st.text() | secrets | st.dictionaries(st.sampled_from(MEASURES), st.integers()).map(json.dumps)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "launch": launches,
        "ticket": secrets,
        "nonce": secrets,
        "key": secrets,
        "phase": st.sampled_from(list(JoinPhase)) | anything,
        "detail": details | st.just('{"a":' + "[" * 3000),
        "hosts_digest": st.text() | secrets,
        "instance": st.text() | secrets,
        "more": anything,
    },
)
good_bodies = st.fixed_dictionaries(
    {"launch": st.just(LAUNCH), "ticket": st.just(KEY.ticket(LAUNCH)), "nonce": st.just(NONCE)},
    optional={
        "key": st.just(LEASE_KEY),
        "phase": st.sampled_from(list(JoinPhase)),
        "detail": details,
        "instance": st.sampled_from(["a", "b"]),
    },
)
raw_bodies = (
    (bodies | good_bodies).map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=200)
    | anything.map(lambda value: json.dumps(value).encode())
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(WHATS), raw_bodies), min_size=1, max_size=6),
    st.sampled_from(["well", "no roster", "no ledger"]),
)
def test_whatever_is_sent_there_is_no_500_and_no_secret_anywhere(
    requests: list[tuple[str, bytes]], state: str
) -> None:
    rig = AdmissionRig(roster=(entry(), entry(LaunchId("cloud2-1"), "cloud2")) if state != "no roster" else None)
    if state == "no ledger":
        rig.store.close()
    with a_service(rig) as (service, logged), at_the_standard_library() as lines:
        service.post("/v1/redeem", json=ticket_of())  # so that requests usually meet a redeemed ticket
        answers = [service.post(f"/v1/{what}", content=raw) for what, raw in requests]
    for answer in answers:
        assert answer.status_code in {200, *STATUS.values()}
        if answer.status_code != 200:
            assert set(answer.json()) == {"error"}
            assert answer.json()["error"] in set(RefusalCode)
            assert not any(secret in answer.text for secret in (*SECRETS, LEASE_KEY))
        else:
            assert not any(secret in answer.text for secret in SECRETS if secret != CURVE)
    shown = "\n".join([*logged, *lines])
    assert not any(secret in shown for secret in SECRETS), shown
    assert not re.search(r"[0-9a-f]{64}", shown)


@pytest.mark.parametrize("what", WHATS)
def test_the_fuzzed_requests_include_valid_ones(what: str) -> None:
    """The fuzz test must also reach the code behind the checks."""

    def is_let_in(raw: bytes) -> bool:
        with a_service(AdmissionRig()) as (service, _):
            service.post("/v1/redeem", json=ticket_of())
            return service.post(f"/v1/{what}", content=raw).status_code == 200

    find(raw_bodies, is_let_in, settings=settings(max_examples=500, derandomize=True, database=None))


@contextmanager
def at_the_standard_library() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)
