"""The Compute Engine port, on replies recorded in libcloud's tests and on invented ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from nodemanager.cloud.common.libcloud_port import READ_TRIES
from nodemanager.cloud.common.request import PortSettings, launch_digest
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.instances import LABEL_CLUSTER, LABEL_LAUNCH, GcePlacement
from nodemanager.cloud.gce.port import POLL_MAX_S, POLL_S, GceCloud
from nodemanager.core.nodes import CloudState, FailureKind, Identity, LaunchId, ProviderId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market, NodeType, SlotName, TypeName
from tests.cloud.recorded import LOST, Reply, Service, a_service, of_libcloud, said
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SystemClock, a_launch, a_script, a_type

PROJECT = "/compute/v1/projects/project_name"
LIST = ("GET", f"{PROJECT}/aggregated/instances")
ZONES = ("us-central1-a", "us-central1-b")
POST = ("POST", f"{PROJECT}/zones/us-central1-a/instances")
POST_B = ("POST", f"{PROJECT}/zones/us-central1-b/instances")
OPERATION = of_libcloud("gce/zones_us-central1-a_instances_post")
DONE = of_libcloud("gce/operations_operation_zones_us-central1-a_instances_post")
WAIT = ("GET", f"{PROJECT}/zones/us-central1-a/operations/{OPERATION['name']}")
NAME = f"n-ada-node-1-{launch_digest(LaunchId('launch-1'))[:8]}"
INSTANCE = ("GET", f"{PROJECT}/zones/us-central1-a/instances/{NAME}")
DELETE = ("DELETE", f"{PROJECT}/zones/us-central1-a/instances/{NAME}")
IDENTITY = Identity(CLUSTER, CLUSTER_UUID, LaunchId("launch-1"), SlotName("node-1"), TypeName("small"))
EXHAUSTED = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no room"}]}


class AToken:
    access_token = "token"

    def forget(self) -> None:
        self.access_token = "another"


def an_instance(**changes: Any) -> dict[str, Any]:
    """libcloud's recorded instance with our labels and metadata."""
    tags = {
        "fnm-cluster": CLUSTER,
        "fnm-cluster-uuid": CLUSTER_UUID,
        "fnm-launch": "launch-1",
        "fnm-slot": "node-1",
        "fnm-type": "small",
    }
    return {
        **of_libcloud("gce/zones_us-central1-a_instances_node-name"),
        "name": NAME,
        "metadata": {"items": [{"key": key, "value": value} for key, value in tags.items()]},
        **changes,
    }


def a_list(*instances: dict[str, Any], zone: str = "zones/us-central1-a", **more: Any) -> Reply:
    return said({"id": "list", "items": {zone: {"instances": list(instances)}}, **more})


def an_error(status: int, reason: str, **headers: str) -> Reply:
    return said({"error": {"code": status, "message": "no", "errors": [{"reason": reason}]}}, status, **headers)


NOTHING = said({"id": "list", "items": {"zones/us-central1-a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}})


@pytest.fixture
def gce() -> Iterator[Service]:
    with a_service(Service) as service:
        service.says(*LIST, NOTHING)
        service.says(*POST, said(OPERATION))
        service.says(*WAIT, said({**OPERATION, "status": "RUNNING"}), said(DONE))
        service.says(*INSTANCE, said(an_instance()))
        yield service


def cloud_at(service: Service, sleep: Callable[[float], None] = lambda _: None) -> GceCloud:
    driver = GceDriver("project_name", AToken(), endpoint=service.url)
    placements = {TypeName("small"): GcePlacement("global/networks/default", ZONES)}
    return GceCloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, SystemClock(), sleep=sleep), placements)


def a_gce_type(**changes: Any) -> NodeType:
    return replace(a_type(), size="n2-standard-2", image="global/images/family/flux", **changes)


def failure_of(call: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as failed:
        call()
    return failed.value


def create(cloud: GceCloud) -> Any:
    return cloud.create(a_launch(), a_gce_type())


class TestCreate:
    def test_is_one_insert_that_says_all(self, gce: Service) -> None:
        created = create(cloud_at(gce))
        (asked,) = gce.asked(*POST)
        assert asked.body == {
            "name": NAME,
            "machineType": "zones/us-central1-a/machineTypes/n2-standard-2",
            "labels": {LABEL_CLUSTER: "ada", LABEL_LAUNCH: launch_digest(LaunchId("launch-1"))},
            "metadata": {
                "items": [
                    {"key": "startup-script", "value": a_script(a_launch(), a_type())},
                    {"key": "fnm-cluster", "value": "ada"},
                    {"key": "fnm-cluster-uuid", "value": CLUSTER_UUID},
                    {"key": "fnm-launch", "value": "launch-1"},
                    {"key": "fnm-slot", "value": "node-1"},
                    {"key": "fnm-type", "value": "small"},
                ]
            },
            "disks": [
                {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": "global/images/family/flux"}}
            ],
            "networkInterfaces": [{"network": "global/networks/default"}],
        }
        assert (created.provider_id, created.identity) == (f"us-central1-a/{NAME}", IDENTITY)
        assert asked.headers["authorization"] == "Bearer token"

    def test_of_a_spot_node_is_deleted_when_it_is_taken_away(self, gce: Service) -> None:
        cloud_at(gce).create(a_launch(), a_gce_type(market=Market.SPOT))
        scheduling = gce.asked(*POST)[0].body["scheduling"]
        assert (scheduling["provisioningModel"], scheduling["instanceTerminationAction"]) == ("SPOT", "DELETE")

    @pytest.mark.parametrize("market", Market)
    def test_of_a_node_with_gpus_says_that_it_is_stopped_for_its_hosts_maintenance(
        self, gce: Service, market: Market
    ) -> None:
        cloud_at(gce).create(a_launch(), a_gce_type(gpus=1, market=market))
        assert gce.asked(*POST)[0].body["scheduling"]["onHostMaintenance"] == "TERMINATE"

    def test_looks_for_the_launch_first_and_takes_what_it_finds(self, gce: Service) -> None:
        gce.says(*LIST, a_list(an_instance()))
        assert create(cloud_at(gce)).identity == IDENTITY
        assert gce.asked(*LIST)[0].query["filter"] == f'labels.fnm-launch = "{launch_digest(LaunchId("launch-1"))}"'
        assert gce.asked(*POST) == []

    def test_name_that_is_taken_by_the_same_launch_is_the_answer(self, gce: Service) -> None:
        gce.says(*POST, an_error(409, "alreadyExists"))
        assert create(cloud_at(gce)).identity == IDENTITY

    def test_name_that_is_taken_by_another_is_not(self, gce: Service) -> None:
        gce.says(*POST, an_error(409, "alreadyExists"))
        gce.says(*INSTANCE, said(an_instance(metadata={})))
        failure_of(lambda: create(cloud_at(gce)))

    def test_lost_reply_is_ambiguous_and_not_repeated(self, gce: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS", "1")
        gce.says(*POST, LOST)
        assert failure_of(lambda: create(cloud_at(gce))).kind is FailureKind.AMBIGUOUS
        assert len(gce.asked(*POST)) == 1

    def test_zone_without_room_sends_it_on_to_the_next(self, gce: Service) -> None:
        gce.says(*WAIT, said({**DONE, "error": EXHAUSTED}))
        gce.says(*POST_B, said({**OPERATION, "status": "DONE"}))
        created = create(cloud_at(gce))
        assert (created.provider_id, created.state) == (f"us-central1-b/{NAME}", CloudState.PENDING)
        assert created.identity == IDENTITY

    def test_no_zone_with_room_is_capacity(self, gce: Service) -> None:
        gce.says(*POST, said({**DONE, "error": EXHAUSTED}))
        gce.says(*POST_B, said({**DONE, "error": EXHAUSTED}))
        assert failure_of(lambda: create(cloud_at(gce))).kind is FailureKind.CAPACITY

    def test_whatever_else_goes_wrong_in_a_zone_tries_no_other(self, gce: Service) -> None:
        gce.says(*WAIT, said({**DONE, "error": {"errors": [{"code": "INTERNAL_ERROR", "message": "?"}]}}))
        assert failure_of(lambda: create(cloud_at(gce))).kind is FailureKind.AMBIGUOUS
        assert gce.asked(*POST_B) == []

    def test_insert_that_takes_long_is_left_to_the_lists(self, gce: Service) -> None:
        gce.says(*WAIT, said(OPERATION))
        gce.says(*INSTANCE, an_error(404, "notFound"))
        assert create(cloud_at(gce)).state is CloudState.PENDING
        assert len(gce.asked(*WAIT)) == POLL_MAX_S / POLL_S

    @pytest.mark.parametrize(
        "refused",
        [
            an_error(401, "authError"),
            an_error(403, "forbidden"),
            an_error(403, "quotaExceeded"),
            an_error(404, "notFound"),
            an_error(400, "invalid"),
            an_error(503, "backendError"),
            said({**DONE, "status": "RUNNING", "error": EXHAUSTED}),
            said({}),
            LOST,
        ],
        ids=lambda reply: f"{reply.status} {reply.body[-60:]}",
    )
    def test_insert_that_was_accepted_may_have_made_a_node_whatever_a_look_at_it_meets(
        self, gce: Service, refused: Reply
    ) -> None:
        # Once read as "nothing was created": the slot got a second node, and nobody owned the first.
        gce.says(*WAIT, refused)
        assert failure_of(lambda: create(cloud_at(gce))).kind is FailureKind.AMBIGUOUS
        assert len(gce.asked(*POST)) == 1
        assert gce.asked(*POST_B) == []

    @pytest.mark.parametrize("refused", [an_error(403, "rateLimitExceeded"), an_error(429, "", Retry_After="7")])
    def test_look_that_comes_too_often_is_made_again_later(self, gce: Service, refused: Reply) -> None:
        gce.says(*WAIT, refused, refused, said(DONE))
        pauses: list[float] = []
        created = create(cloud_at(gce, pauses.append))
        assert created.identity == IDENTITY
        assert pauses == [POLL_S, *([2 * POLL_S, 4 * POLL_S] if "rate" in refused.body else [7.0, 14.0])]

    def test_looks_that_come_too_often_to_the_end_leave_it_to_the_lists(self, gce: Service) -> None:
        gce.says(*WAIT, an_error(403, "rateLimitExceeded"))
        assert create(cloud_at(gce)).identity == IDENTITY

    @pytest.mark.parametrize(
        "reply", [an_error(403, "rateLimitExceeded"), an_error(401, "authError"), an_error(404, "notFound"), LOST]
    )
    def test_name_that_is_taken_by_what_cannot_be_looked_at_is_ambiguous(self, gce: Service, reply: Reply) -> None:
        gce.says(*POST, an_error(409, "alreadyExists"))
        gce.says(*INSTANCE, reply)
        assert failure_of(lambda: create(cloud_at(gce))).kind is FailureKind.AMBIGUOUS

    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (an_error(403, "quotaExceeded"), FailureKind.QUOTA),
            (said({**DONE, "error": {"errors": [{"code": "QUOTA_EXCEEDED"}]}}), FailureKind.QUOTA),
            (an_error(403, "rateLimitExceeded", Retry_After="7"), FailureKind.THROTTLED),
            (an_error(429, "", Retry_After="soon"), FailureKind.THROTTLED),
            (an_error(403, "forbidden"), FailureKind.CREDENTIALS),
            (an_error(401, "authError"), FailureKind.CREDENTIALS),
            (an_error(400, "invalid"), FailureKind.CONFIG),
            (an_error(404, "notFound"), FailureKind.CONFIG),
            (an_error(503, "backendError"), FailureKind.AMBIGUOUS),
            (said({"error": {}}), FailureKind.AMBIGUOUS),
            (said({"error": {"errors": []}}, 500), FailureKind.AMBIGUOUS),
            (said({"error": "invalid_grant"}, 400), FailureKind.CONFIG),
            (said({}), FailureKind.AMBIGUOUS),
            (Reply(200, "<html>"), FailureKind.AMBIGUOUS),
            (Reply(200), FailureKind.AMBIGUOUS),
            (Reply(502, "<html>"), FailureKind.AMBIGUOUS),
        ],
        ids=lambda value: f"{value.status} {value.body[-60:]}" if isinstance(value, Reply) else str(value),
    )
    def test_that_is_refused_says_what_there_is_to_do(self, gce: Service, reply: Reply, kind: FailureKind) -> None:
        gce.says(*POST, reply)
        failed = failure_of(lambda: create(cloud_at(gce)))
        assert failed.kind is kind
        assert failed.detail


class TestList:
    def test_of_what_libcloud_recorded_shows_strangers(self, gce: Service) -> None:
        gce.says(*LIST, said(of_libcloud("gce/aggregated_instances")))
        nodes = cloud_at(gce).list_nodes()
        assert len(nodes) > 5
        assert {node.identity for node in nodes} == {None}
        first = next(node for node in nodes if node.provider_id.endswith("-multiple-nodes-000"))
        assert first.provider_id == "europe-west1-a/libcloud-demo-europe-multiple-nodes-000"
        assert first.created_at == datetime.fromisoformat("2013-12-13T10:43:58.782-08:00").timestamp()
        assert set(first.addresses) == {"192.158.28.252", "10.240.122.85"}
        assert first.state is CloudState.RUNNING

    def test_is_by_our_label_and_page_after_page(self, gce: Service) -> None:
        gce.says(*LIST, a_list(an_instance(), nextPageToken="2"), a_list(an_instance(name="b")))
        assert [node.identity for node in cloud_at(gce).list_nodes()] == [IDENTITY, IDENTITY]
        first, second = gce.asked(*LIST)
        assert first.query["filter"] == 'labels.fnm-cluster = "ada"'
        assert second.query["pageToken"] == "2"

    def test_is_one_call_however_many_there_are(self, gce: Service) -> None:
        gce.says(*LIST, a_list(*(an_instance(name=f"n{number}") for number in range(50))))
        assert len(cloud_at(gce).list_nodes()) == 50
        assert len(gce.calls) == 1

    @pytest.mark.parametrize(
        ("status", "state"),
        [
            ("PROVISIONING", CloudState.PENDING),
            ("STAGING", CloudState.PENDING),
            ("RUNNING", CloudState.RUNNING),
            ("REPAIRING", CloudState.RUNNING),
            ("SUSPENDED", CloudState.RUNNING),
            ("STOPPING", CloudState.STOPPING),
            ("TERMINATED", CloudState.FAILED),  # powered off; its disk costs money until it is deleted
        ],
    )
    def test_shows_each_for_what_it_costs(self, gce: Service, status: str, state: CloudState) -> None:
        gce.says(*LIST, a_list(an_instance(status=status)))
        (node,) = cloud_at(gce).list_nodes()
        assert node.state is state
        assert bool(node.died_because) is (state is CloudState.FAILED)

    @pytest.mark.parametrize(
        "reply",
        [
            said({}),
            said([]),
            said(None),
            said({"id": "list", "items": []}),
            said({"id": "list", "items": {"zones/a": []}}),
            said({"id": "list", "items": {"zones/a": {"instances": {}}}}),
            said({"id": "list", "items": {"zones/a": {"warning": {"code": "UNREACHABLE"}}}}),
            said({"id": "list", "items": {}, "unreachables": ["zones/a"]}),
            a_list({"name": "bare"}),
            a_list(an_instance(creationTimestamp="soon")),
            a_list(nextPageToken="the same for ever"),
            Reply(200, "<html>Welcome</html>"),
            Reply(200),
            an_error(503, "backendError"),
        ],
        ids=lambda reply: reply.body[:60],
    )
    def test_that_is_foreign_or_a_part_is_an_error_and_never_an_empty_list(
        self, gce: Service, reply: Reply
    ) -> None:
        gce.says(*LIST, reply)
        assert failure_of(cloud_at(gce).list_nodes).kind is FailureKind.TRANSIENT

    def test_that_fails_for_a_moment_is_read_again_and_then_given_up(self, gce: Service) -> None:
        gce.says(*LIST, LOST, an_error(503, "backendError"), NOTHING)
        assert cloud_at(gce).list_nodes() == ()
        gce.says(*LIST, LOST)
        failure_of(cloud_at(gce).list_nodes)
        assert len(gce.asked(*LIST)) == 2 * READ_TRIES


class TestDestroy:
    def test_is_begun_and_not_waited_for(self, gce: Service) -> None:
        gce.says(*DELETE, said(of_libcloud("gce/zones_us-central1-a_instances_node-name_delete")))
        cloud_at(gce).destroy(ProviderId(f"us-central1-a/{NAME}"))
        assert [call.method for call in gce.calls] == ["DELETE"]

    def test_of_one_that_is_gone_is_no_error(self, gce: Service) -> None:
        gce.says(*DELETE, an_error(404, "notFound"))
        # It must not raise.
        cloud_at(gce).destroy(ProviderId(f"us-central1-a/{NAME}"))

    @pytest.mark.parametrize("reply", [LOST, an_error(503, "backendError"), said({})])
    def test_that_failed_is_not_retried(self, gce: Service, reply: Reply) -> None:
        gce.says(*DELETE, reply)
        failed = failure_of(lambda: cloud_at(gce).destroy(ProviderId(f"us-central1-a/{NAME}")))
        assert failed.kind is FailureKind.TRANSIENT
        assert len(gce.calls) == 1

    @pytest.mark.parametrize("name", ["", "nobody's", "../../x", "a/b/c", "zone/../x"])
    def test_of_what_is_no_id_of_ours_calls_nobody(self, gce: Service, name: str) -> None:
        cloud_at(gce).destroy(ProviderId(name))
        assert gce.calls == []


class TestToken:
    def test_that_ended_early_is_renewed_once(self, gce: Service) -> None:
        gce.says(*LIST, an_error(401, "authError"), NOTHING)
        assert cloud_at(gce).list_nodes() == ()
        assert [call.headers["authorization"] for call in gce.asked(*LIST)] == ["Bearer token", "Bearer another"]

    def test_that_ended_early_at_an_insert_makes_one_node(self, gce: Service) -> None:
        gce.says(*POST, an_error(401, "authError"), said(OPERATION))
        assert create(cloud_at(gce)).identity == IDENTITY

    def test_that_is_refused_when_new_is_a_matter_of_credentials(self, gce: Service) -> None:
        gce.says(*LIST, an_error(401, "authError"))
        assert failure_of(cloud_at(gce).list_nodes).kind is FailureKind.CREDENTIALS
        assert len(gce.asked(*LIST)) == 2
