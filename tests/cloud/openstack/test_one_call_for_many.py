"""Why each server has a create call of its own: how a real Nova treats one call for several (decision 33)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodemanager.cloud.openstack.port import OpenStackCloud, cluster_tag
from nodemanager.core.nodes import CloudState
from tests.cloud.openstack.nova.process import Nova, openstack_cloud, shared_nova
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type

# The host has 8,192 MiB, and Nova keeps 512 of them: it has room for two of these.
HUGE: dict[str, Any] = {"id": "huge", "name": "local.huge", "vcpus": 1, "ram": 3_000, "disk": 1}


@pytest.fixture
def nova() -> Iterator[Nova]:
    nova = shared_nova()
    nova.administer("POST", "/flavors", {"flavor": HUGE})
    try:
        yield nova
    finally:
        nova.allow(-1)
        nova.empty()
        nova.administer("DELETE", f"/flavors/{HUGE['id']}")


@pytest.fixture
def cloud(nova: Nova) -> OpenStackCloud:
    return openstack_cloud(nova, CLUSTER, CLUSTER_UUID, a_script)


def create_together(cloud: OpenStackCloud, servers: int, flavor: str) -> None:
    """Create servers by one call, as many as there can be."""
    cloud.driver.post_server(
        {
            "name": "ada",
            "flavorRef": flavor,
            "imageRef": cloud.driver.image_id(a_type().image),
            "networks": [{"uuid": cloud.driver.network_id("private")}],
            "tags": [cluster_tag(CLUSTER)],
            "min_count": 1,
            "max_count": servers,
        }
    )


def states(nova: Nova, cloud: OpenStackCloud, servers: int) -> Counter[CloudState]:
    """The states of so many servers once all are built or have failed."""

    def settled() -> bool:
        listed = cloud.list_nodes()
        return len(listed) == servers and all(node.state is not CloudState.PENDING for node in listed)

    nova.until(settled, f"{servers} servers that are built or have failed")
    return Counter(node.state for node in cloud.list_nodes())


def shown_to_tenant(cloud: OpenStackCloud) -> dict[str, Any]:
    connection: Any = cloud.driver.connection
    server: dict[str, Any]
    (server,) = connection.request("/servers/detail").object["servers"]
    return server


def test_if_one_server_of_a_call_finds_no_host_all_of_them_fail(nova: Nova, cloud: OpenStackCloud) -> None:
    create_together(cloud, 3, HUGE["id"])
    assert states(nova, cloud, 3) == {CloudState.FAILED: 3}
    assert {node.died_because for node in cloud.list_nodes()} == {
        "No valid host was found. There are not enough hosts available."
    }


def test_of_servers_with_a_call_each_as_many_come_up_as_there_is_room_for(
    nova: Nova, cloud: OpenStackCloud
) -> None:
    for number in range(3):
        cloud.create(a_launch(str(number)), replace(a_type(), size=HUGE["name"]))
        states(nova, cloud, number + 1)
    assert states(nova, cloud, 3) == {CloudState.RUNNING: 2, CloudState.FAILED: 1}


def test_one_call_creates_as_many_servers_as_the_quota_allows_and_numbers_their_names(
    nova: Nova, cloud: OpenStackCloud
) -> None:
    nova.allow(2)
    create_together(cloud, 3, "small")
    assert states(nova, cloud, 2) == {CloudState.RUNNING: 2}
    servers = nova.administer("GET", "/servers?all_tenants=1")["servers"]
    assert {server["name"] for server in servers} == {"ada-1", "ada-2"}


def test_everybody_in_the_project_sees_the_metadata_of_a_server_but_only_an_administrator_its_user_data(
    nova: Nova, cloud: OpenStackCloud
) -> None:
    created = cloud.create(a_launch(), a_type())
    shown = shown_to_tenant(cloud)
    assert shown["metadata"]["fnm:launch"] == "launch-1"
    assert not any("user_data" in key for key in shown)
    whole = nova.administer("GET", f"/servers/{created.provider_id}")["server"]
    assert whole["OS-EXT-SRV-ATTR:user_data"]
