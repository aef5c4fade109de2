"""The Azure port, on replies recorded in libcloud's tests and on invented ones."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nodemanager.cloud.azure.driver import AzureDriver
from nodemanager.cloud.azure.port import AzureCloud, AzurePlacement
from nodemanager.cloud.common.libcloud_port import READ_TRIES
from nodemanager.cloud.common.request import PortSettings, unique_name
from nodemanager.core.nodes import CloudState, FailureKind, Identity, LaunchId, Leftover, LeftoverKind, ProviderId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType, SlotName, TypeName
from tests.cloud.recorded import LOST, Reply, Service, a_service, of_libcloud, said
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SystemClock, a_launch, a_script, a_type

GROUP = "/subscriptions/99999999/resourceGroups/nodes/providers"
MACHINES = ("GET", f"{GROUP}/Microsoft.Compute/virtualMachines")
INTERFACES = ("GET", f"{GROUP}/Microsoft.Network/networkInterfaces")
NAME = unique_name("ada-node-1", LaunchId("launch-1"))
MACHINE = f"{MACHINES[1]}/{NAME}"
INTERFACE = f"{INTERFACES[1]}/{NAME}-nic"
LOGIN = ("POST", "/tenant/oauth2/token")
IDENTITY = Identity(CLUSTER, CLUSTER_UUID, LaunchId("launch-1"), SlotName("node-1"), TypeName("small"))
TAGS = {
    "fnm:cluster": CLUSTER,
    "fnm:cluster-uuid": CLUSTER_UUID,
    "fnm:launch": "launch-1",
    "fnm:slot": "node-1",
    "fnm:type": "small",
}


def a_token(**changes: Any) -> Reply:
    token = of_libcloud("azure_arm/_77777777_7777_7777_7777_777777777777_oauth2_token")
    return said({**token, "expires_on": str(int(time.time()) + 3600), **changes})


def a_machine(state: str = "Succeeded", **changes: Any) -> dict[str, Any]:
    """libcloud's recorded machine with our tags."""
    recorded = of_libcloud(
        "azure_arm/_subscriptions_99999999_resourceGroups_000000_providers_Microsoft_Compute_virtualMachines_test_node_1"
    )
    properties = {
        **recorded["properties"],
        "provisioningState": state,
        "timeCreated": "2026-11-21T10:36:58.1234567+00:00",
        "networkProfile": {"networkInterfaces": [{"id": INTERFACE.upper()}]},
    }
    return {**recorded, "name": NAME, "id": MACHINE, "tags": TAGS, "properties": properties, **changes}


def an_interface(**changes: Any) -> dict[str, Any]:
    recorded = of_libcloud("azure_arm/_subscriptions_99999999_providers_Microsoft_Network_networkInterfaces")
    return {**recorded["value"][0], "name": f"{NAME}-nic", "id": INTERFACE, "tags": TAGS, **changes}


def values(*items: Any, **more: Any) -> Reply:
    return said({"value": list(items), **more})


def an_error(status: int, code: str, message: str = "no", **headers: str) -> Reply:
    return said({"error": {"code": code, "message": message}}, status, **headers)


# An interface of this cluster whose machine was never created.
LONELY = an_interface(properties={**an_interface()["properties"], "virtualMachine": None})
NOT_FOUND = an_error(404, "ResourceNotFound")


@pytest.fixture
def azure() -> Iterator[Service]:
    with a_service(Service) as service:
        service.says(*LOGIN, a_token())
        service.says(*MACHINES, values())
        service.says(*INTERFACES, values())
        service.says("GET", MACHINE, NOT_FOUND)
        service.says("PUT", INTERFACE, said({}, 201))
        service.says("PUT", MACHINE, said(a_machine("Creating"), 201))
        service.says("DELETE", INTERFACE, Reply(202))
        service.says("DELETE", MACHINE, Reply(202))
        yield service


def cloud_at(service: Service) -> AzureCloud:
    driver = AzureDriver("tenant", "99999999", "client", "not-a-secret", "nodes", endpoint=service.url)
    return AzureCloud(
        driver,
        PortSettings(CLUSTER, CLUSTER_UUID, a_script, SystemClock(), sleep=lambda _: None),
        {TypeName("small"): AzurePlacement("net/subnet", "1")},
        location="westeurope",
        ssh_public_key="ssh-ed25519 AAAA",
    )


def an_azure_type(image: str = "debian:debian-12:12:latest") -> NodeType:
    return replace(a_type(), size="Standard_D2s_v5", image=image)


def create(cloud: AzureCloud) -> Any:
    return cloud.create(a_launch(), an_azure_type())


def failure_of(call: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as failed:
        call()
    return failed.value


class TestCreate:
    def test_makes_the_interface_then_the_machine_both_tagged(self, azure: Service) -> None:
        created = create(cloud_at(azure))
        (interface,), (machine,) = azure.asked("PUT", INTERFACE), azure.asked("PUT", MACHINE)
        assert azure.calls.index(interface) < azure.calls.index(machine)
        assert interface.body["tags"] == machine.body["tags"] == TAGS
        (address,) = interface.body["properties"]["ipConfigurations"]
        assert (
            address["properties"]["subnet"]["id"] == f"{GROUP}/Microsoft.Network/virtualNetworks/net/subnets/subnet"
        )
        assert (created.provider_id, created.state, created.identity) == (NAME, CloudState.PENDING, IDENTITY)

    def test_what_the_machine_has_goes_with_it(self, azure: Service) -> None:
        create(cloud_at(azure))
        properties = azure.asked("PUT", MACHINE)[0].body["properties"]
        (interface,) = properties["networkProfile"]["networkInterfaces"]
        assert interface == {"id": INTERFACE, "properties": {"deleteOption": "Delete"}}
        assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"

    def test_user_data_arrives_as_it_was(self, azure: Service) -> None:
        # libcloud 3.9.1 raises TypeError for text and for bytes: https://github.com/apache/libcloud/issues/1893
        create(cloud_at(azure))
        sent = azure.asked("PUT", MACHINE)[0].body["properties"]["osProfile"]["customData"]
        assert base64.b64decode(sent).decode() == a_script(a_launch(), a_type())

    def test_says_all_the_rest(self, azure: Service) -> None:
        create(cloud_at(azure))
        body = azure.asked("PUT", MACHINE)[0].body
        assert (body["location"], body["zones"]) == ("westeurope", ["1"])
        assert body["properties"]["hardwareProfile"] == {"vmSize": "Standard_D2s_v5"}
        assert body["properties"]["storageProfile"]["imageReference"] == {
            "publisher": "debian",
            "offer": "debian-12",
            "sku": "12",
            "version": "latest",
        }
        assert body["properties"]["osProfile"]["linuxConfiguration"]["disablePasswordAuthentication"] is True

    def test_image_of_ones_own_is_named_by_its_id(self, azure: Service) -> None:
        cloud_at(azure).create(a_launch(), an_azure_type("/subscriptions/1/x/images/flux"))
        reference = azure.asked("PUT", MACHINE)[0].body["properties"]["storageProfile"]["imageReference"]
        assert reference == {"id": "/subscriptions/1/x/images/flux"}

    def test_one_that_is_there_is_the_answer_and_is_not_put_again(self, azure: Service) -> None:
        azure.says("GET", MACHINE, said(a_machine()))
        assert create(cloud_at(azure)).identity == IDENTITY
        assert azure.asked("PUT", MACHINE) == azure.asked("PUT", INTERFACE) == []

    @pytest.mark.parametrize("tags", [None, [], {}, {**TAGS, "fnm:cluster-uuid": "another"}])
    def test_machine_of_somebody_else_is_not_put_over(self, azure: Service, tags: object) -> None:
        azure.says("GET", MACHINE, said(a_machine(tags=tags)))
        assert failure_of(lambda: create(cloud_at(azure))).kind is FailureKind.CONFIG
        assert azure.asked("PUT", MACHINE) == azure.asked("PUT", INTERFACE) == []

    def test_lost_reply_is_ambiguous_and_keeps_the_interface(
        self, azure: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS", "1")
        azure.says("PUT", MACHINE, LOST)
        assert failure_of(lambda: create(cloud_at(azure))).kind is FailureKind.AMBIGUOUS
        assert len(azure.asked("PUT", MACHINE)) == 1
        assert azure.asked("DELETE", INTERFACE) == []

    def test_that_is_refused_leaves_no_interface_behind(self, azure: Service) -> None:
        azure.says("PUT", MACHINE, an_error(409, "SkuNotAvailable"))
        assert failure_of(lambda: create(cloud_at(azure))).kind is FailureKind.CAPACITY
        assert len(azure.asked("DELETE", INTERFACE)) == 1

    @pytest.mark.parametrize("reply", [LOST, an_error(503, "ServerTimeout"), an_error(400, "SubnetIsFull")])
    def test_without_its_interface_makes_no_machine(self, azure: Service, reply: Reply) -> None:
        azure.says("PUT", INTERFACE, reply)
        assert failure_of(lambda: create(cloud_at(azure))).kind is not FailureKind.AMBIGUOUS
        assert azure.asked("PUT", MACHINE) == []

    @pytest.mark.parametrize("code", ["ResourceGroupNotFound", "NotFound", "ResourceNotFound"])
    def test_without_its_network_is_a_fault_of_the_site(self, azure: Service, code: str) -> None:
        # Classified as GONE, this error was once treated as transient.
        azure.says("PUT", INTERFACE, an_error(404, code))
        assert failure_of(lambda: create(cloud_at(azure))).kind is FailureKind.CONFIG

    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (an_error(409, "AllocationFailed"), FailureKind.CAPACITY),
            (an_error(409, "ZonalAllocationFailed"), FailureKind.CAPACITY),
            (
                an_error(409, "OperationNotAllowed", "exceeding approved Total Regional Cores quota"),
                FailureKind.QUOTA,
            ),
            (an_error(409, "QuotaExceeded"), FailureKind.QUOTA),
            (an_error(429, "TooManyRequests", Retry_After="7"), FailureKind.THROTTLED),
            (an_error(429, "", Retry_After="soon"), FailureKind.THROTTLED),
            (an_error(403, "AuthorizationFailed"), FailureKind.CREDENTIALS),
            (an_error(404, "ResourceNotFound"), FailureKind.CONFIG),
            (an_error(400, "InvalidParameter"), FailureKind.CONFIG),
            (an_error(500, "InternalServerError"), FailureKind.AMBIGUOUS),
            (an_error(409, "Conflict"), FailureKind.AMBIGUOUS),
            (said({}), FailureKind.AMBIGUOUS),
            (said([]), FailureKind.AMBIGUOUS),
            (said(a_machine(name="another")), FailureKind.AMBIGUOUS),
            (Reply(200), FailureKind.AMBIGUOUS),
            (Reply(200, "<html>"), FailureKind.AMBIGUOUS),
            (Reply(502, "<html>"), FailureKind.AMBIGUOUS),
        ],
        ids=lambda value: f"{value.status} {value.body[-60:]}" if isinstance(value, Reply) else str(value),
    )
    def test_that_is_refused_says_what_there_is_to_do(
        self, azure: Service, reply: Reply, kind: FailureKind
    ) -> None:
        azure.says("PUT", MACHINE, reply)
        failed = failure_of(lambda: create(cloud_at(azure)))
        assert failed.kind is kind
        assert failed.detail


class TestList:
    def test_is_two_calls_however_many_there_are(self, azure: Service) -> None:
        azure.says(*MACHINES, values(*(a_machine(name=f"n{number}") for number in range(50))))
        assert len(cloud_at(azure).list_nodes()) == 50
        assert [call.method for call in azure.calls] == ["POST", "GET", "GET"]

    def test_shows_a_machine_with_its_moment_and_its_addresses(self, azure: Service) -> None:
        azure.says(*MACHINES, values(a_machine()))
        azure.says(*INTERFACES, values(an_interface()))
        (node,) = cloud_at(azure).list_nodes()
        assert (node.provider_id, node.state, node.identity) == (NAME, CloudState.RUNNING, IDENTITY)
        assert node.addresses == ("172.20.2.4",)
        assert node.created_at == pytest.approx(
            datetime(2026, 11, 21, 10, 36, 58, 123_456, tzinfo=UTC).timestamp(), abs=1e-5
        )

    def test_of_what_libcloud_recorded_shows_strangers_and_follows_the_pages(self, azure: Service) -> None:
        pages = [
            of_libcloud(f"azure_arm/_subscriptions_99999999_providers_Microsoft_Compute_virtualMachines{number}")
            for number in ("", "_1")
        ]
        following = pages[0]["nextLink"].split("?")
        pages[0]["nextLink"] = f"https://management.azure.com:443{MACHINES[1]}?{following[1]}"
        azure.says(*MACHINES, *(said(page) for page in pages))
        nodes = cloud_at(azure).list_nodes()
        assert [node.provider_id for node in nodes] == ["test-node-1", "test-node-2"]
        assert {(node.identity, node.state, node.created_at) for node in nodes} == {
            (None, CloudState.RUNNING, None)
        }
        assert "$skiptoken" in azure.asked(*MACHINES)[1].query

    @pytest.mark.parametrize(
        ("provisioning", "state"),
        [
            ("Creating", CloudState.PENDING),
            ("Updating", CloudState.RUNNING),
            ("Succeeded", CloudState.RUNNING),
            ("Deleting", CloudState.STOPPING),  # libcloud says terminated, but it still costs money
            ("Failed", CloudState.FAILED),
        ],
    )
    def test_shows_each_for_what_it_costs(self, azure: Service, provisioning: str, state: CloudState) -> None:
        azure.says(*MACHINES, values(a_machine(provisioning)))
        (node,) = cloud_at(azure).list_nodes()
        assert node.state is state
        assert (node.died_of is FailureKind.CAPACITY) is (state is CloudState.FAILED)
        assert bool(node.died_because) is (state is CloudState.FAILED)

    def test_shows_no_interface_whose_machine_was_never_made(self, azure: Service) -> None:
        # Once listed as a node, it kept the lease of a refused create until the boot timeout.
        azure.says(*INTERFACES, values(LONELY))
        assert cloud_at(azure).list_nodes() == ()

    @pytest.mark.parametrize("path", [MACHINES, INTERFACES])
    @pytest.mark.parametrize(
        "reply",
        [
            said({}),
            said([]),
            said(None),
            said({"value": None}),
            said({"value": [1]}),
            values({"name": "bare"}),
            Reply(200, "<html>Welcome</html>"),
            Reply(200),
            Reply(204),
            an_error(503, "ServerTimeout"),
            LOST,
        ],
        ids=lambda reply: reply.body[:60],
    )
    def test_that_is_foreign_or_cut_is_an_error_and_never_an_empty_list(
        self, azure: Service, path: tuple[str, str], reply: Reply
    ) -> None:
        azure.says(*path, reply)
        assert failure_of(cloud_at(azure).list_nodes).kind is FailureKind.TRANSIENT

    def test_that_does_not_end_is_an_error(self, azure: Service) -> None:
        azure.says(*MACHINES, values(nextLink=f"https://management.azure.com{MACHINES[1]}?$skiptoken=1"))
        assert failure_of(cloud_at(azure).list_nodes).kind is FailureKind.TRANSIENT

    def test_that_fails_on_is_given_up(self, azure: Service) -> None:
        azure.says(*INTERFACES, an_error(503, "ServerTimeout"))
        failure_of(cloud_at(azure).list_nodes)
        assert len(azure.asked(*INTERFACES)) == READ_TRIES


class TestSweep:
    def test_deletes_an_interface_whose_machine_was_never_made_when_it_is_seen_again(self, azure: Service) -> None:
        azure.says(*INTERFACES, values(LONELY))
        cloud = cloud_at(azure)
        assert cloud.sweep() == ()
        assert azure.asked("DELETE", INTERFACE) == []
        assert cloud.sweep() == (Leftover(LeftoverKind.INTERFACE, ProviderId(f"{NAME}-nic"), LaunchId("launch-1")),)
        assert len(azure.asked("DELETE", INTERFACE)) == 1

    def test_finds_again_what_azure_keeps_for_a_while_after_a_refused_machine(self, azure: Service) -> None:
        reserved = an_error(400, "NicReservedForAnotherVm", "reserved for another Virtual Machine for 180 seconds")
        azure.says("PUT", MACHINE, an_error(409, "SkuNotAvailable"))
        azure.says("DELETE", INTERFACE, reserved, reserved, Reply(202))
        azure.says(*INTERFACES, values(LONELY))
        cloud = cloud_at(azure)
        assert failure_of(lambda: create(cloud)).kind is FailureKind.CAPACITY
        assert cloud.list_nodes() == ()
        assert cloud.sweep() == ()
        assert "NicReserved" in failure_of(cloud.sweep).detail
        assert [left.provider_id for left in cloud.sweep()] == [f"{NAME}-nic"]

    def test_takes_a_name_as_long_as_azure_has_them(self, azure: Service) -> None:
        name = "x" * 80
        azure.says(*INTERFACES, values({**LONELY, "name": name, "id": f"{INTERFACES[1]}/{name}"}))
        azure.says("DELETE", f"{INTERFACES[1]}/{name}", Reply(202))
        cloud = cloud_at(azure)
        assert [len(cloud.sweep()) for _ in range(2)] == [0, 1]

    @pytest.mark.parametrize(
        "changes",
        [
            {"tags": None},
            {"tags": {"fnm:cluster": CLUSTER}},
            {"tags": {**TAGS, "fnm:cluster-uuid": "another"}},
            {"tags": {**TAGS, "fnm:launch": "of-the-machine"}},
            {"id": f"{INTERFACES[1]}/the-machines-own"},
            {"properties": {"ipConfigurations": [], "virtualMachine": {"id": "x"}}},
        ],
    )
    def test_leaves_what_is_of_others_or_of_a_machine(self, azure: Service, changes: dict[str, Any]) -> None:
        own = {"networkProfile": {"networkInterfaces": [{"id": f"{INTERFACES[1]}/THE-MACHINES-OWN"}]}}
        machine = a_machine(name="m", tags={**TAGS, "fnm:launch": "of-the-machine"})
        azure.says(*MACHINES, values({**machine, "properties": {**machine["properties"], **own}}))
        azure.says(*INTERFACES, values({**LONELY, **changes}))
        cloud = cloud_at(azure)
        assert [cloud.sweep() for _ in range(3)] == [()] * 3
        assert [call for call in azure.calls if call.method == "DELETE"] == []

    @pytest.mark.parametrize("path", [MACHINES, INTERFACES])
    def test_of_a_list_that_is_not_whole_deletes_nothing(self, azure: Service, path: tuple[str, str]) -> None:
        azure.says(*INTERFACES, values(LONELY))
        azure.says(*path, said({}))
        cloud = cloud_at(azure)
        for _ in range(2):
            assert failure_of(cloud.sweep).kind is FailureKind.TRANSIENT
        assert [call for call in azure.calls if call.method == "DELETE"] == []


class TestDestroy:
    def test_is_one_call_that_waits_for_nothing(self, azure: Service) -> None:
        cloud_at(azure).destroy(ProviderId(NAME))
        assert [call.method for call in azure.calls] == ["POST", "DELETE"]

    def test_of_a_name_as_long_as_azure_has_them_is_asked_for(self, azure: Service) -> None:
        azure.says("DELETE", f"{MACHINES[1]}/{'x' * 64}", Reply(202))
        cloud_at(azure).destroy(ProviderId("x" * 64))
        assert [call.method for call in azure.calls] == ["POST", "DELETE"]

    @pytest.mark.parametrize("reply", [NOT_FOUND, Reply(204)])  # libcloud raises for a 204
    def test_of_one_that_is_gone_is_no_error(self, azure: Service, reply: Reply) -> None:
        azure.says("DELETE", MACHINE, reply)
        # It must not raise.
        cloud_at(azure).destroy(ProviderId(NAME))

    @pytest.mark.parametrize("reply", [LOST, an_error(503, "ServerTimeout"), an_error(409, "Conflict")])
    def test_that_was_refused_is_not_retried(self, azure: Service, reply: Reply) -> None:
        azure.says("DELETE", MACHINE, reply)
        assert failure_of(lambda: cloud_at(azure).destroy(ProviderId(NAME))).kind is FailureKind.TRANSIENT
        assert len(azure.asked("DELETE", MACHINE)) == 1

    @pytest.mark.parametrize("name", ["", "nobody's", "../../nodes", "a/b"])
    def test_of_what_is_no_name_of_ours_calls_nobody(self, azure: Service, name: str) -> None:
        cloud_at(azure).destroy(ProviderId(name))
        assert azure.calls == []


class TestLogin:
    def test_is_not_before_it_must_be(self, azure: Service) -> None:
        cloud_at(azure)
        assert azure.calls == []

    def test_token_that_ended_early_is_renewed_once(self, azure: Service) -> None:
        azure.says("DELETE", MACHINE, an_error(401, "ExpiredAuthenticationToken"), Reply(202))
        cloud_at(azure).destroy(ProviderId(NAME))
        assert len(azure.asked(*LOGIN)) == 2

    def test_new_token_that_is_refused_too_is_a_matter_of_credentials(self, azure: Service) -> None:
        azure.says(*MACHINES, an_error(401, "InvalidAuthenticationToken"))
        assert failure_of(cloud_at(azure).list_nodes).kind is FailureKind.CREDENTIALS

    @pytest.mark.parametrize("status", [400, 401])
    def test_that_is_refused_is_a_matter_of_credentials(self, azure: Service, status: int) -> None:
        azure.says(*LOGIN, said({"error": "invalid_client", "error_description": "no"}, status))
        failed = failure_of(cloud_at(azure).list_nodes)
        assert failed.kind is FailureKind.CREDENTIALS
        assert "not-a-secret" not in failed.detail

    @pytest.mark.parametrize(
        "reply",
        [said({}), said([]), a_token(expires_on="soon"), Reply(200), Reply(200, "<html>"), Reply(503), LOST],
    )
    def test_of_any_other_form_is_an_error_and_no_bug(self, azure: Service, reply: Reply) -> None:
        azure.says(*LOGIN, reply)
        assert failure_of(cloud_at(azure).list_nodes).kind is FailureKind.TRANSIENT
