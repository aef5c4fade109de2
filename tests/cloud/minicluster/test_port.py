"""The MiniCluster port: one PATCH for many orders, the order of indexes, other writers, and a silent operator."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from structlog.testing import capture_logs

from nodemanager.cloud.minicluster.objects import Owner
from nodemanager.cloud.minicluster.watch import _Follower
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, ProviderId
from nodemanager.core.orders import CreateNode
from nodemanager.core.ports import CloudError, SizedCloudPort
from tests.cloud.minicluster.api_server import AUTOSCALERS, MANAGER_ROLE, MINICLUSTERS
from tests.cloud.minicluster.setting import (
    NAMESPACE,
    Setting,
    SystemClock,
    a_setting,
    creates,
    destroys,
    launch_of,
    states,
)
from tests.contract.cloud_subjects import CLUSTER_UUID, a_type

PENDING, RUNNING, STOPPING, TERMINATED = (
    CloudState.PENDING,
    CloudState.RUNNING,
    CloudState.STOPPING,
    CloudState.TERMINATED,
)


@pytest.fixture
def mini() -> Iterator[Setting]:
    with a_setting("mini", 1, maxSize=10) as setting:
        setting.steps()
        yield setting


def errors(answers: object) -> list[CloudError]:
    assert isinstance(answers, list)
    return [answer for answer in answers if isinstance(answer, CloudError)]


class TestOnePatch:
    def test_many_creates_are_one_patch(self, mini: Setting) -> None:
        port = mini.port()
        assert isinstance(port, SizedCloudPort)
        answers = port.resize(creates(1, 2, 3))
        assert states([it for it in answers if isinstance(it, CloudNode)]) == [PENDING] * 3
        (patch,) = mini.api.patches()
        assert patch.body["spec"] == {"size": 4}
        assert patch.content_type == "application/merge-patch+json"
        mini.steps()
        assert states(port.list_nodes()) == [RUNNING] * 3

    def test_many_destroys_are_one_patch(self, mini: Setting) -> None:
        port = mini.port()
        port.resize(creates(1, 2, 3))
        mini.steps()
        nodes = port.list_nodes()
        assert port.resize(destroys(nodes[1:])) == [None, None]
        assert [call.body["spec"] for call in mini.api.patches()] == [{"size": 4}, {"size": 2}]
        mini.steps()
        assert states(port.list_nodes()) == [RUNNING, TERMINATED, TERMINATED]
        assert mini.operator.pods().keys() == {0, 1}

    def test_repeated_orders_change_nothing(self, mini: Setting) -> None:
        port = mini.port()
        port.resize(creates(1, 2))
        mini.steps()
        port.resize(creates(1, 2))
        nodes = port.list_nodes()
        port.resize(destroys(nodes))
        port.resize(destroys(nodes))
        assert len(mini.api.patches()) == 2

    def test_the_lead_broker_is_no_node(self, mini: Setting) -> None:
        port = mini.port()
        assert port.list_nodes() == ()
        port.destroy(ProviderId("mini-0/mini-0-found"))
        assert mini.api.patches() == []


class TestOrder:
    def test_an_index_below_one_that_stays_is_refused(self, mini: Setting) -> None:
        port = mini.port()
        port.resize(creates(1, 2, 3))
        mini.steps()
        nodes = port.list_nodes()
        answers = port.resize(destroys([nodes[0], nodes[2]]))
        assert [error.detail for error in errors(answers)] == ["index 1 stays: index 2 above it does not leave"]
        assert mini.size == 3

    def test_an_index_above_a_gap_is_refused(self, mini: Setting) -> None:
        answers = mini.port().resize(creates(1, 3))
        assert [error.detail for error in errors(answers)] == [
            "index 3 needs mini-2, which was not ordered with it"
        ]
        assert mini.size == 2

    def test_an_id_of_an_earlier_life_of_the_index_removes_nothing(self, mini: Setting) -> None:
        port = mini.port()
        first = port.create(launch_of(1), a_type())
        port.destroy(first.provider_id)
        mini.steps()
        second = port.create(launch_of(1, number=2), a_type())
        port.destroy(first.provider_id)
        assert mini.size == 2
        assert second.provider_id != first.provider_id


class TestLimits:
    def test_above_max_size_is_a_quota_and_changes_nothing(self, mini: Setting) -> None:
        mini.edit(maxSize=3)
        answers = mini.port().resize(creates(1, 2, 3))
        assert [(error.kind, error.detail) for error in errors(answers)] == [
            (FailureKind.QUOTA, "spec.maxSize is 3, so index 3 is too high")
        ]
        assert mini.size == 3

    def test_without_max_size_the_first_size_is_the_maximum(self) -> None:
        with a_setting("mini", 2) as mini:
            mini.steps()
            answers = mini.port().resize(creates(2))
            assert [error.kind for error in errors(answers)] == [FailureKind.QUOTA]

    def test_below_min_size_nothing_leaves(self) -> None:
        with a_setting("mini", 4, minSize=3, maxSize=8) as mini:
            mini.steps()
            port = mini.port()
            nodes = port.list_nodes()
            assert [node.tenure.fixed for node in nodes] == ["spec.minSize is 3", "spec.minSize is 3", ""]
            answers = port.resize(destroys(nodes))
            assert [error.detail for error in errors(answers)] == [
                "index 1 stays: spec.minSize is 3",
                "index 2 stays: spec.minSize is 3",
            ]
            assert mini.size == 3

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"maxSize": 1, "size": 2}, "spec.maxSize 1 is below spec.size 2"),
            ({"minSize": 5}, "spec.size 1 is below spec.minSize 5"),
            ({"minSize": 12}, "spec.maxSize 10 is below spec.minSize 12"),
            ({"flux": {"bursting": {"leadBroker": {"address": "a"}}}}, "bursting"),
        ],
    )
    def test_a_minicluster_that_the_operator_ignores_is_refused(
        self, mini: Setting, spec: dict[str, object], words: str
    ) -> None:
        mini.edit(**spec)
        with pytest.raises(CloudError, match=words) as failed:
            mini.port().create(launch_of(1), a_type())
        assert failed.value.kind is FailureKind.CONFIG

    def test_a_finished_job_is_never_resized(self, mini: Setting) -> None:
        finished = {"type": "JobFinished", "status": "True"}
        mini.api.store.change(
            MINICLUSTERS, NAMESPACE, "mini", lambda it: it["status"].update(conditions=[finished])
        )
        with pytest.raises(CloudError, match=r"spec\.interactive"):
            mini.port().create(launch_of(1), a_type())
        assert mini.api.patches() == []

    def test_an_autoscaler_of_the_same_object_is_refused_by_name(self, mini: Setting) -> None:
        target = {"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "mini"}
        scaler = {"metadata": {"name": "night-hpa"}, "spec": {"scaleTargetRef": target}}
        mini.api.store.put(AUTOSCALERS, NAMESPACE, scaler)
        with pytest.raises(CloudError, match="HorizontalPodAutoscaler night-hpa in namespace flux") as failed:
            mini.port().create(launch_of(1), a_type())
        assert failed.value.kind is FailureKind.CONFIG
        assert mini.api.patches() == []


class TestSuccessIsWhatTheOperatorDid:
    def test_a_silent_operator_leaves_nodes_pending(self, mini: Setting) -> None:
        port = mini.port()
        mini.operator.silent = True
        port.resize(creates(1, 2))
        mini.steps()
        assert states(port.list_nodes()) == [PENDING, PENDING]

    def test_a_node_leaves_only_when_the_operator_shows_the_size_and_the_pod_is_gone(self, mini: Setting) -> None:
        port = mini.port()
        node = port.create(launch_of(1), a_type())
        mini.steps()
        mini.operator.grace_s = 3600.0
        mini.operator.silent = True
        port.destroy(node.provider_id)
        assert states(port.list_nodes()) == [STOPPING]
        mini.operator.silent = False
        mini.steps()
        assert mini.operator.shown()["status"]["size"] == 1
        assert states(port.list_nodes()) == [STOPPING]  # its pod has not ended
        mini.operator.grace_s = 0.0
        mini.api.store.delete(("", "v1", "pods"), NAMESPACE, mini.operator.pods()[1]["metadata"]["name"])
        assert states(port.list_nodes()) == [TERMINATED]

    def test_a_pod_that_fits_nowhere_is_queued_with_the_schedulers_words(self, mini: Setting) -> None:
        port = mini.port()
        mini.operator.room = 1
        port.create(launch_of(1), a_type())
        mini.steps()
        (node,) = port.list_nodes()
        assert node.state is PENDING
        assert node.note == "0/3 nodes are available: 3 Insufficient cpu."

    def test_a_pod_that_dies_is_pending_again_with_the_same_identity(self, mini: Setting) -> None:
        port = mini.port()
        made = port.create(launch_of(1), a_type())
        mini.steps()
        mini.operator.kubelet.kill(1)
        mini.operator.room = 1
        mini.steps()
        (node,) = port.list_nodes()
        assert (node.provider_id, node.identity, node.state) == (made.provider_id, made.identity, PENDING)


class TestOtherWriters:
    def test_a_conflict_is_read_again_and_patched_once_more(self, mini: Setting) -> None:
        port = mini.port()
        store = mini.api.store
        real_get = store.get
        raced: list[bool] = []

        def racing_get(*key: object) -> dict[str, object]:
            found = real_get(*key)  # type: ignore[arg-type]
            if not raced and key[0] == MINICLUSTERS:
                raced.append(True)
                mini.edit(tasks=2)
            return found

        store.get = racing_get  # type: ignore[method-assign, assignment]
        port.create(launch_of(1), a_type())
        store.get = real_get  # type: ignore[method-assign]
        assert raced
        assert len(mini.api.patches()) == 2  # the first one was refused with 409
        assert mini.operator.shown()["spec"]["tasks"] == 2
        assert mini.size == 2

    def test_indexes_of_others_are_adopted_if_the_size_is_ours(self, mini: Setting) -> None:
        mini.edit(size=3)
        mini.steps()
        port = mini.port()
        nodes = port.list_nodes()
        assert [node.identity.launch for node in nodes if node.identity] == ["mini-1-found", "mini-2-found"]
        assert {node.identity.cluster_uuid for node in nodes if node.identity} == {CLUSTER_UUID}
        port.resize(destroys(nodes))
        assert mini.size == 1

    def test_indexes_of_others_are_never_removed_if_the_size_is_shared(self, mini: Setting) -> None:
        port = mini.port(Owner.SHARED)
        port.create(launch_of(1), a_type())
        mini.edit(size=3)
        mini.steps()
        ours, theirs = port.list_nodes()
        assert theirs.identity is None
        assert ours.tenure.fixed == "index 2 above it belongs to others"
        port.destroy(theirs.provider_id)
        assert mini.size == 3
        answers = port.resize(creates(2))
        assert [error.kind for error in errors(answers)] == [FailureKind.TRANSIENT]

    def test_a_minicluster_of_another_manager_is_not_changed(self, mini: Setting) -> None:
        theirs = mini.port(cluster="other", uuid="22222222-2222-4222-8222-222222222222")
        theirs.create(launch_of(1), a_type())
        with pytest.raises(CloudError, match="belongs to cluster other"):
            mini.port().create(launch_of(2), a_type())
        (node,) = mini.port().list_nodes()
        assert node.identity is not None
        assert node.identity.cluster == "other"


class TestAccess:
    def test_a_wrong_token_is_a_matter_of_credentials(self, mini: Setting) -> None:
        with pytest.raises(CloudError) as failed:
            mini.port(token="old").list_nodes()
        assert failed.value.kind is FailureKind.CREDENTIALS

    def test_a_missing_permission_is_named(self, mini: Setting) -> None:
        without_patch = MANAGER_ROLE - {(MINICLUSTERS[0], "miniclusters", "patch")}
        mini.api.tokens["reader"] = ("reader", without_patch)
        with pytest.raises(CloudError, match="cannot patch resource") as failed:
            mini.port(token="reader").create(launch_of(1), a_type())
        assert failed.value.kind is FailureKind.CREDENTIALS

    def test_an_api_server_that_is_away_is_transient_for_reads(self, mini: Setting) -> None:
        port = mini.port()
        mini.api.faults.away = True
        with pytest.raises(CloudError) as failed:
            port.list_nodes()
        assert failed.value.kind is FailureKind.TRANSIENT
        mini.api.faults.away = False
        assert port.list_nodes() == ()

    def test_a_missing_minicluster_is_named(self, mini: Setting) -> None:
        mini.api.store.delete(MINICLUSTERS, NAMESPACE, "mini")
        with pytest.raises(CloudError, match='"mini" not found'):
            mini.port().list_nodes()

    def test_long_lists_are_read_page_by_page(self) -> None:
        with a_setting("mini", 1201, maxSize=1300) as mini:
            mini.steps(1)
            nodes = mini.port().list_nodes()
            assert len(nodes) == 1200
            assert sum(call.path.endswith("/pods") for call in mini.api.calls) == 3


class _Passing(SystemClock):
    """A clock that tests put forward."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def test_a_pod_that_is_long_gone_is_terminated_although_the_operator_still_shows_the_larger_size() -> None:
    with a_setting("mini", 1, maxSize=10) as mini:
        mini.steps()
        port, clock = mini.port(), _Passing()
        port._clock = clock
        port.resize(creates(1, 2))
        mini.steps()
        port.resize(destroys(port.list_nodes()))
        mini.steps()
        mini.api.store.change(MINICLUSTERS, NAMESPACE, "mini", lambda it: it["status"].update(size=3))
        assert states(port.list_nodes()) == [CloudState.STOPPING] * 2
        clock.ahead_s = 59.0
        assert states(port.list_nodes()) == [CloudState.STOPPING] * 2
        clock.ahead_s = 61.0
        assert states(port.list_nodes()) == [CloudState.TERMINATED] * 2
        port.resize([CreateNode(launch_of(1, number=2), a_type())])
        assert states(port.list_nodes())[0] is CloudState.PENDING


def _answering(status: int, body: Any, times: int = 1_000) -> Callable[..., requests.Response]:
    """A transport that answers the next calls so, and then as the server does."""
    send, left = HTTPAdapter.send, [times]

    def answer(adapter: HTTPAdapter, request: Any, **options: Any) -> requests.Response:
        if "continue" not in str(request.url) and body is None:
            return send(adapter, request, **options)
        left[0] -= 1
        if left[0] < 0:
            return send(adapter, request, **options)
        found = requests.Response()
        found.status_code, found.request, found.url = status, request, request.url
        text = json.dumps(body or {"kind": "Status", "code": status, "message": "expired"})
        found.raw = io.BytesIO(text.encode())
        return found

    return answer


@pytest.mark.parametrize("status", [409, 410])
def test_a_list_that_is_refused_is_a_failed_call(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with a_setting("mini", 1, maxSize=10) as mini:
        mini.steps()
        monkeypatch.setattr(HTTPAdapter, "send", _answering(status, {"kind": "Status", "message": "no"}))
        with pytest.raises(CloudError) as failed:
            mini.port().list_nodes()
        assert failed.value.kind is FailureKind.TRANSIENT


def test_a_list_whose_token_expires_between_two_pages_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodemanager.cloud.minicluster.client.PAGE_MAX", 2)
    with a_setting("mini", 1, maxSize=10) as mini:
        mini.steps()
        mini.port().resize(creates(1, 2, 3))
        mini.steps()
        monkeypatch.setattr(HTTPAdapter, "send", _answering(410, None, times=1))
        assert len(mini.port().list_nodes()) == 3


def test_a_watch_that_the_server_ends_at_once_is_begun_ever_more_rarely() -> None:
    waits: list[float] = []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return True

        def is_set(self) -> bool:
            return len(waits) >= 7

    class Ends:
        def version(self, path: str, **query: str) -> str:
            return "7"

        def watch(self, path: str, version: str, **query: str) -> Iterator[tuple[str, str]]:
            return iter([("BOOKMARK", "8")])

        def close(self) -> None:
            pass

    _Follower(Ends, "/pods").run(threading.Event(), Stopped())  # type: ignore[arg-type]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_watch_that_is_lost_after_it_ended_early_says_so_once() -> None:
    attempts: list[int] = []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return True

        def is_set(self) -> bool:
            return len(attempts) >= 4

    class Away:
        """It ends the first watch, and answers no other."""

        def version(self, path: str, **query: str) -> str:
            return "7"

        def watch(self, path: str, version: str, **query: str) -> Iterator[tuple[str, str]]:
            attempts.append(1)
            if len(attempts) > 1:
                raise CloudError(FailureKind.TRANSIENT, "away")
            return iter([("BOOKMARK", "8")])

        def close(self) -> None:
            pass

    with capture_logs() as said:
        _Follower(Away, "/pods").run(threading.Event(), Stopped())  # type: ignore[arg-type]
    assert [it["event"] for it in said] == ["cloud_watch_lost"]
