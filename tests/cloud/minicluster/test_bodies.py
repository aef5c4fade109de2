"""Bodies of the API server that cannot be read, or are too long. Nothing listens: the responses are made here."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from nodemanager.cloud.minicluster import client as clients
from nodemanager.cloud.minicluster.client import Client
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.simulation.time.world import World


class Body(io.BytesIO):
    """A body, and how much of it was read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        self.taken += len(part)
        return part


def a_client(monkeypatch: pytest.MonkeyPatch, body: Body, status: int = 200) -> Client:
    access = SimpleNamespace(server="http://api", token=str, verify=True, client_certificate=None, proxy="")
    client = Client(cast("Any", access), World(1).clock(), timeout_s=1.0)

    def answer(method: str, url: str, **options: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.raw = status, body
        response.request = requests.Request(method, url).prepare()
        if not options["stream"]:
            assert response.content is not None  # as requests does it: all of the body
        return response

    monkeypatch.setattr(client._session, "request", answer)
    return client


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"a": NaN}'])
def test_a_change_whose_answer_cannot_be_read_may_have_been_made(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with pytest.raises(CloudError) as unclear:
        a_client(monkeypatch, Body(body)).patch("/minis/a", {"spec": {"size": 2}})
    assert unclear.value.kind is FailureKind.AMBIGUOUS
    with pytest.raises(CloudError) as failed:
        a_client(monkeypatch, Body(body)).get("/minis/a")
    assert failed.value.kind is FailureKind.TRANSIENT


@pytest.mark.parametrize("status", [200, 500])
def test_of_a_body_that_is_too_long_no_more_is_read(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(clients, "SIZE_MAX", 200_000, raising=False)
    body = Body(b" " * 2_000_000)
    with pytest.raises(CloudError):
        a_client(monkeypatch, body, status).get("/minis/a")
    assert body.taken < 400_000


def test_a_line_of_a_watch_that_is_too_long_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SIZE_MAX", 10_000, raising=False)
    event = {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "7", "more": "x" * 2_000}}}
    body = Body(2 * (json.dumps(event) + "\r\n\n").encode() + b" " * 1_000_000)
    watch = a_client(monkeypatch, body).watch("/pods", "1")
    assert [next(watch), next(watch)] == 2 * [("MODIFIED", "7")]
    with pytest.raises(CloudError, match="more than 10000 bytes"):
        next(watch)
    assert body.taken < 50_000
