"""The MiniCluster port: one PATCH for many orders, the order of indexes, other writers, and a silent operator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodemanager.cloud.minicluster.objects import Owner
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, ProviderId
from nodemanager.core.ports import CloudError, SizedCloudPort
from tests.cloud.minicluster.api_server import AUTOSCALERS, MANAGER_ROLE, MINICLUSTERS
from tests.cloud.minicluster.setting import (
    NAMESPACE,
    Setting,
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
