"""One service changes the sizes of several MiniClusters, and shares pods among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from nodemanager.cloud.minicluster.access import Access
from nodemanager.cloud.minicluster.client import Client
from nodemanager.cloud.minicluster.members import WISH_S, MiniClusterMembers
from nodemanager.cloud.minicluster.objects import Scope
from nodemanager.cloud.minicluster.port import MiniClusterCloud
from nodemanager.core.nodes import CloudNode, FailureKind
from nodemanager.core.orders import CloudEffect, CreateNode
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import TypeName
from nodemanager.ensemble.operator import OUTDATED, ChangeDenied, ChangeFailed, SizeChange
from nodemanager.web.grpc.material import MemberMaterial, ServiceMaterial, service_material, token_of_member
from nodemanager.web.grpc.server import MembersServer
from nodemanager.web.grpc.sizes import EnsembleSizes
from nodemanager.web.listen import TcpAddress
from tests.cloud.minicluster.api_server import MANAGER_ROLE, MINICLUSTERS, ApiServer
from tests.cloud.minicluster.operator import NAMESPACE, Memory, Operator, a_minicluster
from tests.cloud.minicluster.setting import SystemClock, destroys, launch_of
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_type

pytest.importorskip("grpc", reason="the extra ensemble is not installed")

SERVICE_ROLE = frozenset((MINICLUSTERS[0], "miniclusters", verb) for verb in ("get", "patch"))
MEMBER_ROLE = MANAGER_ROLE - {(MINICLUSTERS[0], "miniclusters", "patch")}


@dataclass
class Wall:
    at: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.at


class Cluster:
    """Two MiniClusters "a" and "b", each with an operator, and the service of both."""

    def __init__(self, pods_max: int | None, material: ServiceMaterial, **spec: Any) -> None:
        self.api = ApiServer()
        self.api.tokens |= {"service": ("service", SERVICE_ROLE), "member": ("member", MEMBER_ROLE)}
        self.operators = {name: Operator(self.api, name, Memory()) for name in ("a", "b")}
        for name in self.operators:
            self.api.store.put(MINICLUSTERS, NAMESPACE, a_minicluster(name, **{"size": 1, "maxSize": 8, **spec}))
        self.wall = Wall()
        self.members = MiniClusterMembers(self.client("service"), NAMESPACE, ["a", "b"], pods_max, self.wall)
        self._material = material
        self._server = MembersServer(TcpAddress("127.0.0.1", 0), self.members, material, own_tokens=True)
        self._address = TcpAddress("127.0.0.1", self._server.start())
        self.steps()

    def client(self, token: str) -> Client:
        return Client(Access(self.api.url, token=lambda: token), SystemClock(), timeout_s=10.0)

    def port(self, name: str, token: str | None = None) -> MiniClusterCloud:
        """What the node manager of a member uses: it may only read."""
        own = token_of_member(self._material.token, name) if token is None else token
        material = MemberMaterial(own, self._material.certificate, "flux-node-manager-ensembles")
        sizes = EnsembleSizes(self._address, material, timeout_s=20.0)
        scope = Scope(CLUSTER, CLUSTER_UUID, TypeName("small"))
        return MiniClusterCloud(self.client("member"), NAMESPACE, name, scope, SystemClock(), service=sizes)

    def steps(self) -> None:
        for operator in self.operators.values():
            for _ in range(4):
                operator.step()

    def sizes(self) -> tuple[int, int]:
        return tuple(self.operators[name].shown()["spec"]["size"] for name in ("a", "b"))

    def notes(self, name: str) -> dict[str, str]:
        found = self.operators[name].shown()["metadata"].get("annotations", {})
        return {key.partition("/")[2]: value for key, value in found.items()}

    def change(self, name: str, **spec: Any) -> None:
        self.api.store.change(MINICLUSTERS, NAMESPACE, name, lambda it: it["spec"].update(spec))
        self.steps()

    def stop(self) -> None:
        self._server.stop()
        self.api.stop()


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> ServiceMaterial:
    return service_material(tmp_path_factory.mktemp("material"))


@pytest.fixture
def cluster(material: ServiceMaterial, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(getattr(request, "param", None), material)
    try:
        yield made
    finally:
        made.stop()


def creates_in(name: str, *indexes: int, number: int = 1) -> list[CloudEffect]:
    return [CreateNode(launch_of(index, name, number), a_type()) for index in indexes]


def kinds(answers: Any) -> list[str]:
    return ["added" if isinstance(it, CloudNode) else str(it.kind) if it else "removed" for it in answers]


# --- a node manager ---------------------------------------------------------------------------------------


def test_a_manager_that_may_only_read_grows_and_shrinks_by_one_patch_of_the_service(cluster: Cluster) -> None:
    port = cluster.port("a")
    assert kinds(port.resize(creates_in("a", 1, 2))) == ["added"] * 2
    cluster.steps()
    assert cluster.sizes() == (3, 1)
    nodes = port.list_nodes()
    assert [str(it.identity.launch) for it in nodes if it.identity] == ["a-1-launch1", "a-2-launch1"]
    assert kinds(port.resize(destroys(nodes))) == ["removed"] * 2
    assert cluster.sizes() == (1, 1)
    assert {call.user for call in cluster.api.patches()} == {"service"}
    assert len(cluster.api.patches()) == 2


def test_a_manager_cannot_act_for_another_member(cluster: Cluster, material: ServiceMaterial) -> None:
    for wrong in (token_of_member(material.token, "b"), material.token, "guessed"):
        with pytest.raises(CloudError) as refused:
            cluster.port("a", token=wrong).resize(creates_in("a", 1))
        assert refused.value.kind is FailureKind.CREDENTIALS
    assert cluster.api.patches() == []


def test_a_size_that_changed_since_it_was_read_is_read_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = cluster.port("a")
    asked: list[str] = []
    real = cluster.members.resize

    def resize(change: SizeChange) -> int:
        asked.append(change.version)
        if len(asked) == 1:
            cluster.change("a", size=2)
        return real(change)

    monkeypatch.setattr(cluster.members, "resize", resize)
    assert kinds(port.resize(creates_in("a", 1, 2))) == ["added", "added"]
    assert len(set(asked)) == 2
    assert cluster.sizes()[0] == 3


def test_without_the_api_server_nobody_knows_whether_the_size_changed(cluster: Cluster) -> None:
    port = cluster.port("a")
    cluster.api.faults.lose_replies = True
    with pytest.raises(CloudError) as lost:
        port.resize(creates_in("a", 1))
    assert lost.value.kind is FailureKind.AMBIGUOUS
    cluster.api.faults.lose_replies = False
    assert kinds(port.resize(creates_in("a", 1))) == ["added"], "the same order again changes nothing"
    assert cluster.sizes() == (2, 1)


# --- limits -----------------------------------------------------------------------------------------------


def test_no_size_leaves_its_bounds(cluster: Cluster) -> None:
    cluster.change("a", minSize=2, size=3)
    with pytest.raises(ChangeDenied, match=r"spec\.maxSize is 8") as denied:
        cluster.members.resize(SizeChange("a", 6))
    assert denied.value.nodes == 7
    version = cluster.operators["a"].shown()["metadata"]["resourceVersion"]
    with pytest.raises(ChangeDenied, match=r"spec\.minSize is 2"):
        cluster.members.resize(SizeChange("a", -2, 0, version))
    assert cluster.sizes() == (3, 1)
    assert cluster.api.patches() == []


def test_who_does_not_drain_cannot_shrink(cluster: Cluster) -> None:
    cluster.change("a", size=3)
    for nodes in (None, 0):
        with pytest.raises(ChangeDenied, match="jobs may run"):
            cluster.members.resize(SizeChange("a", -1, nodes))
    assert cluster.members.resize(SizeChange("a", 1)) == 3, "but it may grow"
    assert cluster.members.resize(SizeChange("a", 1, 1)) == 3, "one node at least: it has three"
    assert cluster.sizes() == (4, 1)


def test_only_annotations_of_a_manager_are_written(cluster: Cluster) -> None:
    version = cluster.operators["a"].shown()["metadata"]["resourceVersion"]
    notes = {"flux-node-manager/index-1": "x pod 1", "flux-node-manager/share": "8", "other/key": "x"}
    cluster.members.resize(SizeChange("a", 1, 1, version, notes))
    assert cluster.notes("a") == {"index-1": "x pod 1"}


@pytest.mark.parametrize(("name", "kind"), [("c", FailureKind.CONFIG), ("a", OUTDATED)])
def test_what_cannot_be_changed_says_why(cluster: Cluster, name: str, kind: str) -> None:
    with pytest.raises(ChangeFailed) as failed:
        cluster.members.resize(SizeChange(name, 1, 1, "17"))
    assert failed.value.kind == kind


def test_a_minicluster_that_the_operator_ignores_is_left_alone(cluster: Cluster) -> None:
    cluster.change("a", minSize=5)
    with pytest.raises(ChangeFailed, match=r"below spec\.minSize"):
        cluster.members.resize(SizeChange("a", 1))


# --- fair shares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_what_is_left_is_granted_and_the_rest_is_kept_as_a_wish(cluster: Cluster) -> None:
    answers = cluster.port("a").resize(creates_in("a", 1, 2, 3, 4, 5, 6))
    assert kinds(answers) == ["added"] * 4 + ["capacity"] * 2
    assert "the fair share of a is 5 of 6 pods" in str(answers[-1])
    assert cluster.sizes() == (5, 1)
    assert cluster.notes("a")["wanted"].split(" ")[0] == "7"


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_a_member_above_its_share_is_told_to_give_back(cluster: Cluster) -> None:
    greedy, late = cluster.port("a"), cluster.port("b")
    greedy.resize(creates_in("a", 1, 2, 3, 4))
    cluster.steps()
    assert kinds(late.resize(creates_in("b", 1, 2, 3))) == ["capacity"] * 3
    assert cluster.notes("a")["share"] == "3"
    nodes = greedy.list_nodes()
    assert [it.tenure.owed for it in nodes] == ["", "", *["the fair share of a is 3 pods"] * 2]
    greedy.resize(destroys(nodes[2:]))
    cluster.steps()
    assert kinds(late.resize(creates_in("b", 1, 2, 3))) == ["added"] * 2 + ["capacity"]
    cluster.steps()
    assert cluster.sizes() == (3, 3)
    assert kinds(greedy.resize(creates_in("a", 3, 4, number=2))) == ["capacity"] * 2, "it has its share"
    cluster.members.keep()
    assert "share" not in cluster.notes("a")
    assert not any(it.tenure.owed for it in greedy.list_nodes())


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_a_wish_lapses_and_nobody_gives_back_any_more(cluster: Cluster) -> None:
    cluster.port("a").resize(creates_in("a", 1, 2, 3, 4))
    cluster.port("b").resize(creates_in("b", 1, 2))
    assert cluster.notes("a")["share"] == "3"
    cluster.wall.at += WISH_S
    cluster.members.keep()
    assert cluster.notes("a")["share"] == "3"
    cluster.wall.at += 1
    cluster.members.keep()
    assert "share" not in cluster.notes("a")


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_pods_that_still_leave_are_not_given_to_others(cluster: Cluster) -> None:
    port = cluster.port("a")
    port.resize(creates_in("a", 1, 2, 3, 4))
    cluster.steps()
    cluster.operators["a"].silent = True
    port.resize(destroys(port.list_nodes()))
    assert cluster.sizes() == (1, 1)
    (answer,) = cluster.port("b").resize(creates_in("b", 1))
    assert isinstance(answer, CloudError)
    assert answer.detail == "the other members still have 5 of 6 pods"
    cluster.operators["a"].silent = False
    cluster.steps()
    assert kinds(cluster.port("b").resize(creates_in("b", 1))) == ["added"]


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_a_restarted_service_knows_all_wishes(cluster: Cluster) -> None:
    cluster.port("a").resize(creates_in("a", 1, 2, 3, 4))
    cluster.port("b").resize(creates_in("b", 1, 2, 3))
    again = MiniClusterMembers(cluster.client("service"), NAMESPACE, ["a", "b"], 6, cluster.wall)
    with pytest.raises(ChangeDenied, match="the fair share of a is 3 of 6 pods"):
        again.resize(SizeChange("a", 1))
    assert again.status("b")["size"] == {"size": 1, "min": 1, "max": 8, "allowed": 1}


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_members_that_finished_or_were_deleted_have_no_share(cluster: Cluster) -> None:
    cluster.port("b").resize(creates_in("b", 1, 2, 3))
    cluster.steps()
    end = {"conditions": [{"type": "JobFinished", "status": "True"}]}
    cluster.api.store.change(MINICLUSTERS, NAMESPACE, "b", lambda it: it["status"].update(end))
    assert kinds(cluster.port("a").resize(creates_in("a", 1, 2, 3))) == ["added"] * 3
    cluster.api.store.delete(MINICLUSTERS, NAMESPACE, "b")
    assert kinds(cluster.port("a").resize(creates_in("a", 4, 5, 6))) == ["added"] * 2 + ["capacity"]
    cluster.members.keep()
    with pytest.raises(ChangeFailed, match="not found"):
        cluster.members.resize(SizeChange("b", 1))


@pytest.mark.parametrize("cluster", [6], indirect=True)
def test_a_manager_that_uses_the_service_no_more_gives_nothing_back(cluster: Cluster) -> None:
    cluster.port("a").resize(creates_in("a", 1, 2, 3, 4))
    cluster.port("b").resize(creates_in("b", 1, 2))
    assert any(it.tenure.owed for it in cluster.port("a").list_nodes())
    scope = Scope(CLUSTER, CLUSTER_UUID, TypeName("small"))
    alone = MiniClusterCloud(cluster.client("member"), NAMESPACE, "a", scope, SystemClock())
    assert not any(it.tenure.owed for it in alone.list_nodes())


def test_the_member_s_minimum_comes_before_all_shares(material: ServiceMaterial) -> None:
    cluster = Cluster(6, material)
    try:
        cluster.change("b", minSize=4, size=4)
        assert kinds(cluster.port("a").resize(creates_in("a", 1, 2, 3))) == ["added", "capacity", "capacity"]
        cluster.members.keep()
        assert "share" not in cluster.notes("b")
    finally:
        cluster.stop()
