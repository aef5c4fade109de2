"""For any fleet and any request: never a server error, and always valid JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from nodemanager.planner.snapshot import Snapshot, Sources
from nodemanager.web.api.endpoints import ENDPOINTS
from tests.builders import a_policy
from tests.planner.strategies import TYPES, snapshots
from tests.web.fleets import HOST, TOKEN, a_stand, published

POLICY = a_policy(*TYPES)
PATHS = sorted({endpoint.path for endpoint in ENDPOINTS})
NAMES = st.one_of(
    st.text(min_size=1), st.sampled_from(["1", "f2", "cloud1", "cloud", "node_up_count", "..", "ƒ", "f" * 99])
)
BODIES = st.one_of(st.binary(max_size=80), st.sampled_from([b"", b'{"by": 1}', b'{"by": "ada"}', b"[" * 4000]))
CHANGES: list[dict[str, Any]] = [
    {},
    {"sources": Sources(claimed=False)},
    {"sources": Sources(claimed=True), "accounts": {}},
    {"now_s": 0.0},
]


@settings(max_examples=30)
@given(
    snapshot=snapshots(POLICY),
    changes=st.sampled_from(CHANGES),
    acts=st.booleans(),
    path=st.sampled_from(PATHS),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    name=NAMES,
    body=BODIES,
    token=st.sampled_from([TOKEN, "wrong"]),
)
def test_no_request_and_no_snapshot_is_a_server_error(
    snapshot: Snapshot,
    changes: dict[str, Any],
    acts: bool,
    path: str,
    method: str,
    name: str,
    body: bytes,
    token: str,
) -> None:
    stand = a_stand(jobs_for_everybody=True)
    stand.post(published(POLICY, replace(snapshot, **changes), acts=acts))
    written = quote(name.encode("utf-8", "surrogatepass"), safe="")
    for placeholder in ("{name}", "{metric}", "{namespace}", "{resource}"):
        path = path.replace(placeholder, written)
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        response = client.request(method, path, content=body, headers={"Authorization": f"Bearer {token}"})
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.headers["content-type"] == "application/json":
        json.loads(response.text, parse_constant=pytest.fail)  # neither NaN nor Infinity is JSON
