"""The EC2 port over real HTTP to moto: the errors of the stock driver, and the faults that EC2 may produce."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")

from libcloud.compute.base import NodeSize
from libcloud.compute.drivers.ec2 import EC2NodeDriver

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.ec2.credentials import Keys
from nodemanager.cloud.ec2.driver import READ_TRIES_MAX, Action, Ec2Driver, endpoint_of
from nodemanager.cloud.ec2.port import Ec2Cloud
from nodemanager.cloud.ec2.run_instances import Ec2Placement
from nodemanager.core.nodes import CloudState, FailureKind, LaunchId, Leftover, LeftoverKind, ProviderId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market, TypeName
from tests.cloud.ec2.moto_faults import Fault
from tests.cloud.ec2.moto_front import IMAGE, NAMESPACE, REGION, SECRETS, MotoFront
from tests.contract.cloud_subjects import (
    CLUSTER,
    CLUSTER_UUID,
    SystemClock,
    a_launch,
    a_script,
    a_type,
    until,
)
from tests.contract.ec2_subject import a_cloud

KEYS = Keys(*next(iter(SECRETS.items())))
OTHER_UUID = "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def front() -> Iterator[MotoFront]:
    front = MotoFront()
    yield front
    front.close()


@pytest.fixture
def cloud(front: MotoFront) -> Ec2Cloud:
    return a_cloud(front)


def a_cloud_with(front: MotoFront, **changes: Any) -> Ec2Cloud:
    settings: dict[str, Any] = {
        "keys": KEYS,
        "sleep": lambda _: None,
        "placement": Ec2Placement(),
        "script": a_script,
    }
    settings |= changes
    keys = settings["keys"]
    driver = Ec2Driver(endpoint_of(REGION, front.url), lambda: keys, sleep=settings["sleep"])
    placements = {TypeName("small"): settings["placement"]}
    given = PortSettings(CLUSTER, CLUSTER_UUID, settings["script"], SystemClock())
    return Ec2Cloud(driver, given, placements)


def failure_of(call: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as failed:
        call()
    return failed.value


def made(front: MotoFront) -> dict[str, str]:
    """The parameters of the last RunInstances."""
    return dict([call for call in front.received if call.action == "RunInstances"][-1].parameters)


# --- the peer ---------------------------------------------------------------------------------------------


def test_a_known_instance_goes_through_stock_libcloud_and_back(front: MotoFront) -> None:
    """If this fails, moto or its front does not match libcloud's idea of EC2, and no other test here counts."""
    driver: Any = EC2NodeDriver
    stock = driver(
        *next(iter(SECRETS.items())), secure=False, host="127.0.0.1", port=front.port, region=REGION,
        signature_version="4",
    )  # fmt: skip
    image = stock.list_images(ex_image_ids=[IMAGE])[0]
    size = NodeSize("t3.micro", "t3.micro", 1024, 0, 0, 0.0, stock)
    node = stock.create_node(
        name="known", size=size, image=image, ex_metadata={"color": "blue"}, ex_userdata="hello"
    )
    (seen,) = stock.list_nodes(ex_filters={"tag:color": "blue"})
    assert (seen.id, seen.name, seen.extra["instance_type"], seen.extra["image_id"]) == (
        node.id, "known", "t3.micro", IMAGE,
    )  # fmt: skip
    assert front.user_data(node.id) == b"hello"
    assert stock.destroy_node(node) is True
    assert stock.list_nodes(ex_filters={"tag:color": "blue"})[0].state == "terminated"


# --- how a call is made -----------------------------------------------------------------------------------


def test_every_call_is_a_signed_post_without_a_query(front: MotoFront, cloud: Ec2Cloud) -> None:
    created = cloud.create(a_launch(), a_type())
    cloud.list_nodes()
    cloud.sweep()
    cloud.destroy(created.provider_id)
    assert len(front.received) >= 7
    assert {(call.method, call.query) for call in front.received} == {("POST", "")}
    assert front.calls.keys() <= set(Action)
    # The front verifies version 4 signatures for this region and service, and refuses everything else.
    assert all(f"/{REGION}/ec2/aws4_request" in call.headers["authorization"] for call in front.received)


def test_a_temporary_key_brings_its_session_token(front: MotoFront) -> None:
    cloud = a_cloud_with(front, keys=replace(KEYS, session_token="a-session"))
    assert cloud.list_nodes() == ()
    assert front.received[-1].headers["x-amz-security-token"] == "a-session"
    assert "x-amz-security-token" in front.received[-1].headers["authorization"]


def test_a_wrong_secret_is_a_matter_of_credentials(front: MotoFront) -> None:
    cloud = a_cloud_with(front, keys=replace(KEYS, secret_access_key="another"))
    assert failure_of(cloud.list_nodes).kind is FailureKind.CREDENTIALS
    assert failure_of(lambda: cloud.create(a_launch(), a_type())).kind is FailureKind.CREDENTIALS


def test_a_netrc_does_not_take_the_place_of_the_signature(
    front: MotoFront, cloud: Ec2Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login ada password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert cloud.list_nodes() == ()


def test_a_call_is_not_sent_on_to_elsewhere(front: MotoFront, cloud: Ec2Cloud) -> None:
    front.faults.append(Fault("", "Moved", status=307, times=100, headers={"Location": front.url + "/elsewhere"}))
    assert failure_of(cloud.list_nodes).kind is FailureKind.TRANSIENT
    assert front.calls["DescribeInstances"] == READ_TRIES_MAX


# --- making a node ----------------------------------------------------------------------------------------


def test_a_create_asks_for_all_that_makes_a_node_safe(front: MotoFront, cloud: Ec2Cloud) -> None:
    cloud.create(a_launch(), a_type())
    asked = made(front)
    assert (
        asked.items()
        >= {
            "MinCount": "1",
            "MaxCount": "1",
            "ClientToken": "token-1",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions.HttpTokens": "required",
            "MetadataOptions.HttpPutResponseHopLimit": "1",
            "BlockDeviceMapping.1.DeviceName": "/dev/sda1",
            "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
        }.items()
    )
    assert not [name for name in asked if name.startswith(("InstanceMarketOptions", "Placement", "SubnetId"))]


def test_the_instance_its_volumes_and_its_interfaces_are_tagged_at_their_creation(
    front: MotoFront, cloud: Ec2Cloud
) -> None:
    cloud.create(a_launch(), a_type())
    assert "CreateTags" not in front.calls
    ours = {
        "Name": f"{CLUSTER}-node-1",
        "fnm:cluster": CLUSTER,
        "fnm:cluster-uuid": CLUSTER_UUID,
        "fnm:launch": "launch-1",
        "fnm:slot": "node-1",
        "fnm:type": "small",
    }
    (instance,) = front.standing()
    (volume,) = front.backend.volumes.values()
    for thing in (instance, volume, *instance.nics.values()):
        assert {tag["key"]: tag["value"] for tag in thing.get_tags()} == ours
    assert made(front)["TagSpecification.3.ResourceType"] == "network-interface"


def test_the_volumes_of_an_image_go_with_the_instance_whatever_the_image_says(
    front: MotoFront, cloud: Ec2Cloud
) -> None:
    created = cloud.create(a_launch(), a_type())
    assert len(front.backend.volumes) == 1
    cloud.destroy(created.provider_id)
    assert not front.backend.volumes


def test_an_image_is_asked_for_once(front: MotoFront, cloud: Ec2Cloud) -> None:
    for name in "123":
        cloud.create(a_launch(name), a_type())
    assert front.calls["DescribeImages"] == 1


def test_an_image_that_is_not_there_is_a_fault_of_the_site_and_makes_nothing(
    front: MotoFront, cloud: Ec2Cloud
) -> None:
    failure = failure_of(lambda: cloud.create(a_launch(), replace(a_type(), image="ami-00000000")))
    assert (failure.kind, "ami-00000000" in failure.detail) == (FailureKind.CONFIG, True)
    assert not front.instances()


def test_an_image_that_cannot_be_looked_up_just_now_makes_no_doubtful_create(
    front: MotoFront, cloud: Ec2Cloud
) -> None:
    front.faults.append(Fault("DescribeImages", "InternalError", status=500, times=100))
    assert failure_of(lambda: cloud.create(a_launch(), a_type())).kind is FailureKind.TRANSIENT
    assert not front.calls["RunInstances"]


def test_a_create_that_nobody_waits_for_any_more_is_not_sent(front: MotoFront) -> None:
    # Finding the image took 87 s, and an order lasts 60 s: the planner would have recorded the node as absent.
    class Late(SystemClock):
        readings = itertools.chain([0.0], itertools.repeat(60.0))

        def monotonic_s(self) -> float:
            return next(self.readings)

    driver = Ec2Driver(endpoint_of(REGION, front.url), lambda: KEYS, sleep=lambda _: None)
    cloud = Ec2Cloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, Late(), call_timeout_s=60.0))
    assert failure_of(lambda: cloud.create(a_launch(), a_type())).kind is FailureKind.TRANSIENT
    assert front.calls["DescribeImages"] == 1
    assert front.calls["RunInstances"] == 0


def test_sixteen_kib_of_user_data_arrive_and_one_byte_more_is_refused_before_it_is_sent(front: MotoFront) -> None:
    script = "#!/bin/sh\n".ljust(16_384, "#")
    created = a_cloud_with(front, script=lambda *_: script).create(a_launch(), a_type())
    assert front.user_data(created.provider_id) == script.encode()
    too_much = a_cloud_with(front, script=lambda *_: script + "#")
    assert failure_of(lambda: too_much.create(a_launch("2"), a_type())).kind is FailureKind.CONFIG
    assert front.calls["RunInstances"] == 1


def test_a_token_that_comes_again_with_another_request_may_stand_for_a_node(front: MotoFront) -> None:
    a_cloud(front).create(a_launch(), a_type())
    changed = a_cloud_with(front, script=lambda *_: "#!/bin/sh\n# another\n")
    assert failure_of(lambda: changed.create(a_launch(), a_type())).kind is FailureKind.AMBIGUOUS
    assert len(front.instances()) == 1


def test_a_spot_node_is_asked_for_once_and_seen_as_one(front: MotoFront, cloud: Ec2Cloud) -> None:
    created = cloud.create(a_launch(), replace(a_type(), market=Market.SPOT))
    asked = made(front)
    assert asked["InstanceMarketOptions.MarketType"] == "spot"
    assert asked["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert asked["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    assert created.market is Market.SPOT
    assert cloud.list_nodes()[0].market is Market.SPOT


def test_a_launch_goes_to_the_subnet_of_its_zone_and_without_a_zone_to_the_first(front: MotoFront) -> None:
    subnets = {
        zone: next(iter(front.backend.subnets[zone])) for zone in (f"{REGION}b", f"{REGION}a")
    }  # fmt: skip
    group = front.backend.create_security_group("nodes", "of the cluster", vpc_id=_vpc(front)).id
    cloud = a_cloud_with(front, placement=Ec2Placement(subnets=subnets, security_groups=(group,), key_name="ops"))
    cloud.create(replace(a_launch("1"), zone=f"{REGION}a"), a_type())
    assert made(front)["SubnetId"] == subnets[f"{REGION}a"]
    cloud.create(a_launch("2"), a_type())
    assert made(front)["SubnetId"] == subnets[f"{REGION}b"]
    assert (made(front)["SecurityGroupId.1"], made(front)["KeyName"]) == (group, "ops")
    assert {instance.placement.zone for instance in front.standing()} == {f"{REGION}a", f"{REGION}b"}


def test_a_zone_without_a_subnet_is_a_fault_of_the_site(front: MotoFront) -> None:
    cloud = a_cloud_with(front, placement=Ec2Placement(subnets={f"{REGION}a": "subnet-1"}))
    failure = failure_of(lambda: cloud.create(replace(a_launch(), zone=f"{REGION}f"), a_type()))
    assert (failure.kind, f"{REGION}f" in failure.detail) == (FailureKind.CONFIG, True)


def test_a_zone_that_is_out_of_a_type_says_so_and_another_one_has_it(front: MotoFront, cloud: Ec2Cloud) -> None:
    code = "InsufficientInstanceCapacity"
    front.faults.append(Fault("RunInstances", code, status=500, zone=f"{REGION}a", times=100))
    failure = failure_of(lambda: cloud.create(replace(a_launch("1"), zone=f"{REGION}a"), a_type()))
    assert failure.kind is FailureKind.CAPACITY
    cloud.create(replace(a_launch("2"), zone=f"{REGION}b"), a_type())
    assert [instance.placement.zone for instance in front.standing()] == [f"{REGION}b"]


def _vpc(front: MotoFront) -> str:
    return str(next(iter(front.backend.subnets[f"{REGION}a"].values())).vpc_id)


# --- listing ----------------------------------------------------------------------------------------------


def test_a_list_of_many_pages_is_whole(front: MotoFront, cloud: Ec2Cloud) -> None:
    made_ids = [cloud.create(a_launch(str(number)), a_type()).provider_id for number in range(10)]
    front.page_max = 3
    before = front.calls["DescribeInstances"]
    assert [node.provider_id for node in cloud.list_nodes()] == made_ids
    assert front.calls["DescribeInstances"] - before == 4


def test_pages_without_an_end_are_an_error(front: MotoFront, cloud: Ec2Cloud) -> None:
    token = b"<nextToken>again</nextToken></DescribeInstancesResponse>"
    front.faults.append(
        Fault("DescribeInstances", times=100, rewrite=lambda c: c.replace(b"</DescribeInstancesResponse>", token))
    )
    assert failure_of(cloud.list_nodes).kind is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda content: content.replace(f"{NAMESPACE}/".encode(), NAMESPACE.encode()),
        lambda content: content.replace(b"2016-11-15", b"2014-01-01"),
        lambda content: content.replace(f' xmlns="{NAMESPACE}/"'.encode(), b""),
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda _: b"",
        lambda _: b"<html><body>Welcome to the portal</body></html>",
        lambda _: b'{"reservations": []}',
        lambda _: f'<DescribeInstancesResponse xmlns="{NAMESPACE}/"/>'.encode(),
        lambda _: f'<DescribeImagesResponse xmlns="{NAMESPACE}/"><imagesSet/></DescribeImagesResponse>'.encode(),
        lambda content: content.replace(b"<instanceId>", b"<id>").replace(b"</instanceId>", b"</id>"),
        lambda content: content.replace(b"instancesSet", b"serversSet"),
    ],
    ids=[
        "a slash less", "another version", "no namespace", "half", "a byte less", "empty", "a portal", "JSON",
        "no list in it", "another reply", "no ids", "no instances",
    ],
)  # fmt: skip
def test_a_foreign_or_cut_reply_is_an_error_and_never_no_nodes(
    front: MotoFront, cloud: Ec2Cloud, rewrite: Callable[[bytes], bytes]
) -> None:
    cloud.create(a_launch(), a_type())
    front.faults.append(Fault("", times=100, rewrite=rewrite))
    assert failure_of(cloud.list_nodes).kind is FailureKind.TRANSIENT
    assert failure_of(lambda: cloud.create(a_launch("2"), a_type())).kind is FailureKind.AMBIGUOUS
    front.faults.clear()
    assert len(cloud.list_nodes()) == 2, "and when it has passed, the list is whole again"


def test_a_read_that_fails_now_and_then_is_made_again(front: MotoFront) -> None:
    waits_s: list[float] = []
    cloud = a_cloud_with(front, sleep=waits_s.append)
    for fault in (
        Fault("DescribeInstances", lost=True),
        Fault("DescribeInstances", "InternalError", status=500),
        Fault("DescribeInstances", "RequestLimitExceeded", status=503),
    ):
        front.faults.append(fault)
    assert cloud.list_nodes() == ()
    assert front.calls["DescribeInstances"] == 4
    assert len(waits_s) == 3
    assert all(0 <= wait_s <= 4 for wait_s in waits_s)


def test_one_that_never_works_is_given_up(front: MotoFront, cloud: Ec2Cloud) -> None:
    front.faults.append(Fault("DescribeInstances", "Unavailable", status=503, times=100))
    assert failure_of(cloud.list_nodes).kind is FailureKind.TRANSIENT
    assert front.calls["DescribeInstances"] == READ_TRIES_MAX


def test_one_that_cannot_work_is_not_made_again(front: MotoFront, cloud: Ec2Cloud) -> None:
    front.faults.append(Fault("DescribeInstances", "UnauthorizedOperation", status=403, times=100))
    assert failure_of(cloud.list_nodes).kind is FailureKind.CREDENTIALS
    assert front.calls["DescribeInstances"] == 1


def test_a_node_that_is_not_shown_yet_is_shown_later(front: MotoFront, cloud: Ec2Cloud) -> None:
    front.visible_delay_s = 0.3
    created = cloud.create(a_launch(), a_type())
    assert cloud.list_nodes() == ()
    until(lambda: len(cloud.list_nodes()) == 1, "the node to be shown")
    assert cloud.list_nodes()[0].identity == created.identity


def test_times_are_utc(front: MotoFront, cloud: Ec2Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        front.wall_at = lambda: 1_750_000_000.0
        assert cloud.create(a_launch(), a_type()).created_at == 1_750_000_000.0
    finally:
        monkeypatch.undo()
        time.tzset()


# --- why nodes end ----------------------------------------------------------------------------------------


def test_a_node_on_its_way_out_is_stopping_and_then_terminated(front: MotoFront, cloud: Ec2Cloud) -> None:
    created = cloud.create(a_launch(), a_type())
    front.stop_delay_s = 0.2
    cloud.destroy(created.provider_id)
    (leaving,) = cloud.list_nodes()
    assert (leaving.state, leaving.died_because.startswith("user: ")) == (CloudState.STOPPING, True)
    until(lambda: cloud.list_nodes()[0].state is CloudState.TERMINATED, "its end")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("Client.UserInitiatedShutdown", "user"),
        ("Client.InstanceInitiatedShutdown", "powered off from inside"),
        ("Server.SpotInstanceTermination", "spot reclaim"),
        ("Server.InternalError", "host failure"),
        ("Server.SomethingNew", "host failure"),
        ("Server.InsufficientInstanceCapacity", "no capacity at launch"),
        ("Client.SomethingNew", "unknown cause"),
    ],
)
def test_the_causes_of_a_nodes_end_are_distinguished(
    front: MotoFront, cloud: Ec2Cloud, code: str, cause: str
) -> None:
    created = cloud.create(a_launch(), a_type())
    assert cloud.list_nodes()[0].died_because == ""
    front.end(created.provider_id, code, "it is so")
    (dead,) = cloud.list_nodes()
    assert (dead.state, dead.died_because) == (CloudState.TERMINATED, f"{cause}: {code}: it is so")


# --- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, FailureKind.CAPACITY),
        ("Unsupported", 400, FailureKind.CAPACITY),
        ("InsufficientFreeAddressesInSubnet", 400, FailureKind.CAPACITY),
        ("VcpuLimitExceeded", 400, FailureKind.QUOTA),
        ("MaxSpotInstanceCountExceeded", 400, FailureKind.QUOTA),
        ("RequestLimitExceeded", 503, FailureKind.THROTTLED),
        ("UnauthorizedOperation", 403, FailureKind.CREDENTIALS),
        ("AuthFailure", 401, FailureKind.CREDENTIALS),
        ("RequestExpired", 400, FailureKind.CREDENTIALS),
        ("InvalidAMIID.NotFound", 400, FailureKind.CONFIG),
        ("InvalidSubnetID.NotFound", 400, FailureKind.CONFIG),
        ("InvalidKeyPair.NotFound", 400, FailureKind.CONFIG),
        ("InternalError", 500, FailureKind.AMBIGUOUS),
        ("Unavailable", 503, FailureKind.AMBIGUOUS),
    ],
)
def test_a_refused_create_is_of_its_kind_and_made_once(
    front: MotoFront, cloud: Ec2Cloud, monkeypatch: pytest.MonkeyPatch, code: str, status: int, kind: FailureKind
) -> None:
    monkeypatch.setenv("LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS", "1")
    front.faults.append(Fault("RunInstances", code, status=status, times=100))
    failure = failure_of(lambda: cloud.create(a_launch(), a_type()))
    assert (failure.kind, code in failure.detail) == (kind, True)
    assert front.calls["RunInstances"] == 1


def test_a_create_whose_reply_is_lost_is_sent_once_even_if_libcloud_is_set_to_repeat(
    front: MotoFront, cloud: Ec2Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS", "1")
    front.faults.append(Fault("RunInstances", lost=True, times=100))
    assert failure_of(lambda: cloud.create(a_launch(), a_type())).kind is FailureKind.AMBIGUOUS
    assert (front.calls["RunInstances"], len(front.instances())) == (1, 1)


def test_a_gateway_that_answers_in_html_keeps_its_status(front: MotoFront, cloud: Ec2Cloud) -> None:
    front.faults.append(Fault("TerminateInstances", "x</Code></Error", status=502))
    failure = failure_of(lambda: cloud.destroy(ProviderId("i-0123456789abcdef0")))
    assert (failure.kind, failure.detail) == (FailureKind.TRANSIENT, "HTTP 502")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        ("7", 7, 7),
        ("soon", 2, 2),
        ("", 2, 2),
        ("-5", 2, 2),
        ("86400", 300, 300),
        ("Fri, 99 Foo 9999 99:99:99 GMT", 2, 2),
        pytest.param(formatdate(time.time() + 1_000_000, usegmt=True), 300, 300, id="in-days"),
        (formatdate(1_000_000, usegmt=True), 2, 2),
    ],
)
def test_a_wait_that_is_asked_for_is_kept_within_bounds_and_one_that_is_not_is_ours(
    front: MotoFront, cloud: Ec2Cloud, status: int, header: str, least_s: float, most_s: float
) -> None:
    refused = Fault("RunInstances", "RequestLimitExceeded", status=status, headers={"Retry-After": header})
    front.faults.append(refused)
    failure = failure_of(lambda: cloud.create(a_launch(), a_type()))
    assert failure.kind is FailureKind.THROTTLED
    assert least_s <= failure.retry_after_s <= most_s


def test_throttled_again_and_again_it_waits_longer_and_after_a_success_no_more(
    front: MotoFront, cloud: Ec2Cloud
) -> None:
    front.throttling = True
    waits_s = [failure_of(lambda: cloud.destroy(ProviderId("i-0"))).retry_after_s for _ in range(7)]
    assert waits_s == [2, 4, 8, 16, 32, 60, 60]
    front.throttling = False
    cloud.list_nodes()
    front.throttling = True
    assert failure_of(lambda: cloud.destroy(ProviderId("i-0"))).retry_after_s == 2


def test_a_list_that_is_to_wait_is_not_asked_for_again_before(front: MotoFront, cloud: Ec2Cloud) -> None:
    refused = Fault("DescribeInstances", "RequestLimitExceeded", 503, headers={"Retry-After": "30"})
    front.faults.append(refused)
    assert failure_of(cloud.list_nodes).retry_after_s == 30
    assert front.calls["DescribeInstances"] == 1


def test_nobody_answers_at_all() -> None:
    keys = KEYS
    driver = Ec2Driver(endpoint_of(REGION, "http://127.0.0.1:1"), lambda: keys, sleep=lambda _: None)
    cloud = Ec2Cloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, SystemClock()))
    assert failure_of(cloud.list_nodes).kind is FailureKind.TRANSIENT


# --- what nodes leave behind ------------------------------------------------------------------------------


def left_behind(front: MotoFront, *, launch: str = "launch-gone", uuid: str = CLUSTER_UUID) -> list[Leftover]:
    """Create a volume, an interface and an address, tagged like a node's and attached to nothing."""
    tags = {"fnm:cluster": CLUSTER, "fnm:cluster-uuid": uuid, "fnm:launch": launch}
    volume = front.backend.create_volume(size=8, zone_name=f"{REGION}a")
    subnet = next(iter(front.backend.subnets[f"{REGION}a"].values()))
    interface = front.backend.create_network_interface(subnet, "10.0.0.9")
    address = front.backend.allocate_address("vpc")
    for thing in (volume, interface, address):
        thing.add_tags(tags)
    found = [
        (LeftoverKind.VOLUME, volume.id),
        (LeftoverKind.INTERFACE, interface.id),
        (LeftoverKind.ADDRESS, address.allocation_id),
    ]
    return [Leftover(kind, ProviderId(id_), LaunchId(launch)) for kind, id_ in found]


def what_there_is(front: MotoFront) -> set[str]:
    backend = front.backend
    return {*backend.volumes, *backend.enis, *(address.allocation_id for address in backend.addresses)}


def test_leftovers_found_twice_in_a_row_are_deleted_and_returned(front: MotoFront, cloud: Ec2Cloud) -> None:
    left = left_behind(front)
    assert cloud.sweep() == ()
    assert what_there_is(front) == {leftover.provider_id for leftover in left}
    assert set(cloud.sweep()) == set(left)
    assert what_there_is(front) == set()
    assert cloud.sweep() == ()
    cloud.destroy(cloud.create(replace(a_launch(), group="fnm-near"), a_type()).provider_id)
    cloud.list_nodes()
    cloud.sweep()
    assert [it.kind for it in cloud.sweep()] == [LeftoverKind.GROUP]
    assert front.calls.keys() == set(Action), "each action that the policy allows is made use of, and no other"


def test_what_is_not_ours_or_is_in_use_or_may_be_soon_is_left_alone(front: MotoFront, cloud: Ec2Cloud) -> None:
    left_behind(front, uuid=OTHER_UUID)
    cloud.create(a_launch(), a_type())
    left_behind(front, launch="launch-1")  # of an existing node: not attached yet, or no longer
    front.backend.create_volume(size=8, zone_name=f"{REGION}a").add_tags({"fnm:cluster-uuid": CLUSTER_UUID})
    before = what_there_is(front)
    assert [cloud.sweep() for _ in range(3)] == [(), (), ()]
    assert what_there_is(front) == before


def test_one_that_cannot_be_deleted_does_not_keep_the_others(front: MotoFront, cloud: Ec2Cloud) -> None:
    left = left_behind(front)
    cloud.sweep()
    front.faults.append(Fault("DeleteVolume", "VolumeInUse", times=1))
    assert {leftover.kind for leftover in cloud.sweep()} == {LeftoverKind.INTERFACE, LeftoverKind.ADDRESS}
    assert cloud.sweep() == (left[0],)


def test_a_sweep_that_may_delete_nothing_says_so(front: MotoFront, cloud: Ec2Cloud) -> None:
    left_behind(front)
    cloud.sweep()
    front.faults.append(Fault("", "UnauthorizedOperation", status=403, times=1))
    assert failure_of(cloud.sweep).kind is FailureKind.CREDENTIALS


def test_nodes_that_cannot_be_listed_leave_nothing_to_delete(front: MotoFront, cloud: Ec2Cloud) -> None:
    left_behind(front)
    before = what_there_is(front)
    cloud.sweep()
    front.faults.append(Fault("DescribeInstances", times=100, rewrite=lambda _: b"<html/>"))
    assert failure_of(cloud.sweep).kind is FailureKind.TRANSIENT
    assert what_there_is(front) == before


def test_one_that_is_gone_meanwhile_is_no_error(front: MotoFront, cloud: Ec2Cloud) -> None:
    left_behind(front)
    cloud.sweep()
    front.faults.append(Fault("DeleteVolume", "InvalidVolume.NotFound", status=400))
    assert len(cloud.sweep()) == 3


def test_user_data_is_sent_in_the_body_alone(front: MotoFront) -> None:
    cloud = a_cloud_with(front, script=lambda *_: "#!/bin/sh\n# a-one-time-ticket\n")
    cloud.create(a_launch(), a_type())
    (call,) = [call for call in front.received if call.action == "RunInstances"]
    secret = base64.b64encode(b"#!/bin/sh\n# a-one-time-ticket\n").decode()
    assert call.parameters["UserData"] == secret
    assert secret not in call.query + str(call.headers)
