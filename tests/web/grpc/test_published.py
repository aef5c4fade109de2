"""The client and the services that ensemble-python 0.0.16 publishes, with ours (pip install ensemble-python)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from nodemanager.web.listen import TcpAddress
from tests.web.grpc.services import Member, MembersInMemory, serving

pytestmark = pytest.mark.filterwarnings("ignore")  # what their libraries warn about is not ours to mend
grpc = pytest.importorskip("grpc", reason="the extra ensemble is not installed")
client = pytest.importorskip("ensemble.members.client", reason="ensemble-python is not installed")


def theirs() -> Any:
    """Their module with the services, which needs all of their dependencies."""
    return pytest.importorskip("ensemble.server", reason="ensemble-python's dependencies are not installed")


@contextmanager
def published_service(endpoint: Any) -> Iterator[TcpAddress]:
    server = grpc.server(ThreadPoolExecutor(2))
    theirs().api.add_EnsembleOperatorServicer_to_server(endpoint, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield TcpAddress("127.0.0.1", port)
    finally:
        server.stop(None).wait(10)


def test_the_published_client_grows_and_shrinks_here() -> None:
    members = MembersInMemory()
    with serving(members) as address:
        asking = client.EnsembleClient(host=f"{address.host}:{address.port}")
        payload = {"version": "v1alpha2", "group": "flux-framework.org"}
        grown = asking.action_request("miniclusters", "mini", "grow", {**payload, "grow": 4})
        shrunk = asking.action_request("miniclusters", "mini", "shrink", {**payload, "shrink": 1})
        denied = asking.action_request("miniclusters", "mini", "grow", {**payload, "grow": 90})
    assert (grown.status, json.loads(grown.payload)) == (grown.SUCCESS, {"nodes": 4})
    assert (shrunk.status, json.loads(shrunk.payload)) == (shrunk.SUCCESS, {"nodes": 3})
    assert (denied.status, json.loads(denied.payload)) == (denied.DENIED, {"why": "nodes_max = 6"})
    assert members.kept == {"mini": 3}


def test_a_member_of_ours_asks_the_published_service_without_kubernetes(capfd: pytest.CaptureFixture[str]) -> None:
    with published_service(theirs().EnsembleEndpoint()) as address:
        member = Member(address)
        # It leaves each status unspecified, and has no RequestStatus.
        assert member.ask((2, 2), (1, -1), (0, -3)) == ["", "", ""]
        assert "unimplemented" in member.ask((1, 0))[0]
        member.nodes.close()
    said = capfd.readouterr().out
    assert [line for line in said.splitlines() if line.startswith(("Name", "Action", "Received"))] == [
        "Name mini", "Action grow", "Received request to grow",
        "Name mini", "Action shrink", "Received request to shrink",
        "Name mini", "Action shrink", "Received request to shrink",
    ]  # fmt: skip


def test_a_member_of_ours_asks_the_published_service_for_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    server = theirs()
    cluster: dict[str, Any] = {"metadata": {"name": "mini"}, "spec": {"size": 2, "minSize": 1, "maxSize": 4}}
    wanted: list[tuple[str, str]] = []

    def find(_: object, request: Any) -> Any:
        content = json.loads(request.payload)
        wanted.append((request.member, f"{content['group']}/{content['version']}"))
        if request.name != "mini":
            raise ValueError("no such MiniCluster")
        return cluster

    def resize(_: object, minicluster: Any, size: int) -> None:
        minicluster["spec"]["size"] = size

    monkeypatch.setattr(server.KubernetesEnsemble, "get_minicluster", find)
    monkeypatch.setattr(server.KubernetesEnsemble, "update_minicluster_size", resize)
    with published_service(server.KubernetesEnsemble()) as address:
        member = Member(address)
        sizes = []
        for floor, change in ((1, 1), (0, -2), (8, 8)):
            assert member.ask((floor, change)) == [""]
            sizes.append(cluster["spec"]["size"])
        member.nodes.close()
        other = Member(address, name="other")
        assert other.ask((1, 1)) == ["the ensemble service reports an error"]
        other.nodes.close()
    assert sizes == [3, 1, 4], "their service keeps within minSize and maxSize itself"
    assert set(wanted) == {("miniclusters", "flux-framework.org/v1alpha2")}
