"""Behaviour that only a real Nova shows: accepted nodes that never appear, tokens, limits, microversions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nodemanager.cloud.common.request import USER_DATA_MAX_BYTES
from nodemanager.cloud.openstack.port import OpenStackCloud
from nodemanager.core.nodes import CloudState, FailureKind, Launch
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType
from tests.cloud.openstack.nova.process import Nova, openstack_cloud, shared_nova
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type


@pytest.fixture
def nova() -> Iterator[Nova]:
    nova = shared_nova()
    try:
        yield nova
    finally:
        nova.hosts("enable")
        nova.empty()


def a_cloud(nova: Nova, **changes: str | bool) -> OpenStackCloud:
    return openstack_cloud(nova, CLUSTER, CLUSTER_UUID, a_script, **changes)


def test_without_a_host_a_create_is_taken_and_the_server_fails_for_want_of_capacity(nova: Nova) -> None:
    cloud = a_cloud(nova)
    nova.hosts("disable")
    created = cloud.create(a_launch(), a_type())
    assert created.state in {CloudState.PENDING, CloudState.FAILED}
    nova.until(lambda: cloud.list_nodes()[0].state is CloudState.FAILED, "a server that fails")
    (failed,) = cloud.list_nodes()
    assert "No valid host" in failed.died_because
    assert failed.died_of is FailureKind.CAPACITY
    cloud.destroy(failed.provider_id)
    nova.until(lambda: cloud.list_nodes() == (), "its end")


def test_tokens_that_are_revoked_are_renewed(nova: Nova) -> None:
    cloud = a_cloud(nova)
    cloud.create(a_launch("1"), a_type())
    nova.turn(expire=True)
    cloud.create(a_launch("2"), a_type())
    nova.turn(expire=True)
    assert len(cloud.list_nodes()) == 2


def test_an_application_credential_is_enough(nova: Nova) -> None:
    cloud = a_cloud(
        nova, application_credential=True, user="application-credential", secret="not-a-secret-either", project=""
    )
    assert cloud.list_nodes() == ()


def test_a_newer_microversion_is_as_good(nova: Nova) -> None:
    cloud = a_cloud(nova, microversion="2.96")
    created = cloud.create(a_launch(), a_type())
    assert cloud.list_nodes()[0].identity == created.identity


def test_the_longest_script_that_we_take_is_taken(nova: Nova) -> None:
    def long_script(launch: Launch, node_type: NodeType) -> str:
        return a_script(launch, node_type).ljust(USER_DATA_MAX_BYTES, "#")

    cloud = openstack_cloud(nova, CLUSTER, CLUSTER_UUID, long_script)
    assert cloud.create(a_launch(), a_type()).identity is not None


@pytest.mark.parametrize(
    "node_type",
    [replace(a_type(), size="no such flavor"), replace(a_type(), image="00000000-0000-4000-8000-000000000000")],
    ids=["flavor", "image"],
)
def test_what_nova_does_not_have_can_never_work(nova: Nova, node_type: NodeType) -> None:
    with pytest.raises(CloudError) as failed:
        a_cloud(nova).create(a_launch(), node_type)
    assert failed.value.kind is FailureKind.CONFIG
    assert a_cloud(nova).list_nodes() == ()
