"""Batches on Compute Engine: the one request, what is short, and how a node of a batch is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.instances import LABEL_BATCH, LABEL_CLUSTER, GcePlacement, instance_name
from nodemanager.cloud.gce.port import FETCH_EVERY_S, INSERTS_MAX, GceCloud, KeyCourier
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Launch, ProviderId, launch_id
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import SlotName, TypeName
from tests.cloud.gce.test_port import (
    DONE,
    EXHAUSTED,
    LIST,
    NOTHING,
    OPERATION,
    AToken,
    a_gce_type,
    a_list,
    an_error,
)
from tests.cloud.recorded import LOST, Call, Reply, Service, a_service, said
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SystemClock, a_script, a_type
from tests.contract.gce_subject import GceSubject
from tests.contract.test_cloud_batches import STAMP, launches
from tests.join.google_tokens import Wall, jwks

PROJECT = "/compute/v1/projects/project_name"
BULK_A, BULK_B = (("POST", f"{PROJECT}/zones/us-central1-{zone}/instances/bulkInsert") for zone in "ab")
WAIT_A = ("GET", f"{PROJECT}/zones/us-central1-a/operations/{OPERATION['name']}")
KEYS = ("GET", "/oauth2/v3/certs")
ACCOUNT = "nodes@lab.iam.gserviceaccount.com"


@pytest.fixture
def gce() -> Iterator[Service]:
    with a_service(Service) as service:
        service.says(*LIST, NOTHING)
        yield service


@pytest.fixture
def project() -> Iterator[GceSubject]:
    subject = GceSubject()
    try:
        yield subject
    finally:
        subject.close()


def a_port(service: Service, account: str = "", **settings: Any) -> GceCloud:
    driver = GceDriver("project_name", AToken(), endpoint=service.url)
    placements = {
        TypeName("small"): GcePlacement("global/networks/default", ("us-central1-a", "us-central1-b"), account)
    }
    given: dict[str, Any] = {
        "clock": SystemClock(),
        "sleep": lambda _: None,
        "batch_script": lambda batch: f"# {batch}\n",
    }
    return GceCloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, **(given | settings)), placements)


def made_of(call: Call, zone: str, *indexes: int) -> Reply:
    """The list after a bulk insert that created some of the instances."""
    names = list(call.body["perInstanceProperties"])
    return a_list(
        *(
            {
                **call.body["instanceProperties"],
                "name": names[index],
                "zone": zone,
                "status": "PROVISIONING",
                "creationTimestamp": "2026-11-21T10:00:00.000-08:00",
            }
            for index in indexes
        ),
        zone=f"zones/{zone}",
    )


def failure_of(cloud: GceCloud, count: int = 3) -> CloudError:
    with pytest.raises(CloudError) as failed:
        cloud.create_many(launches(count), a_gce_type())
    return failed.value


def test_one_request_asks_for_all_and_is_content_with_one(gce: Service) -> None:
    gce.says(*BULK_A, said({**DONE, "operationType": "bulkInsert"}))
    cloud = a_port(gce, ACCOUNT)
    failure_of(cloud)
    (asked,) = gce.asked(*BULK_A)
    assert (asked.body["count"], asked.body["minCount"]) == ("3", "1")
    names = [instance_name(CLUSTER, it.slot, it.id) for it in launches(3)]
    assert asked.body["perInstanceProperties"] == {name: {} for name in names}
    properties = asked.body["instanceProperties"]
    assert properties["machineType"] == "n2-standard-2", "a name: a path gets an internal error"
    assert properties["labels"].keys() == {LABEL_CLUSTER, LABEL_BATCH}
    assert properties["serviceAccounts"] == [
        {"email": ACCOUNT, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
    ]
    metadata = {item["key"]: item["value"] for item in properties["metadata"]["items"]}
    assert (metadata["startup-script"], metadata["fnm-batch"]) == (f"# {STAMP}\n", STAMP)
    assert "fnm-launch" not in metadata


def test_five_hundred_nodes_take_one_insert_and_three_reads(project: GceSubject) -> None:
    calls: list[str] = []
    answer = project.service.answer

    def counted(call: Call) -> Reply:
        calls.append(call.path.removeprefix("/compute/v1/projects/lab/"))
        return answer(call)

    project.service.answer = counted  # type: ignore[method-assign]
    made = project.port.create_many(launches(500), a_type())
    zone, listed = "zones/europe-west3-a", "aggregated/instances"
    assert calls == [listed, f"{zone}/instances/bulkInsert", f"{zone}/operations/0", listed]
    assert len({node.provider_id for node in made if isinstance(node, CloudNode)}) == 500


def test_names_that_no_metadata_can_hold_take_two_inserts_and_every_node_is_known(project: GceSubject) -> None:
    many = [
        replace(it, slot=(slot := SlotName(f"{it.slot}-{'x' * 60}")), id=launch_id(slot, STAMP))
        for it in launches(200)
    ]
    made = project.port.create_many(many, a_type())
    assert [node.identity.slot for node in made if isinstance(node, CloudNode) and node.identity] == [
        it.slot for it in many
    ]
    assert {node.identity.launch for node in project.port.list_nodes() if node.identity} == {it.id for it in many}
    assert len(project.service.bulk) == len(project.service.kept) / 100 == 2


def test_the_same_batch_has_the_same_request_and_another_one_another(gce: Service) -> None:
    gce.says(*BULK_A, LOST)
    cloud = a_port(gce)
    for batch in (launches(3), launches(3), list(reversed(launches(3))), launches(2)):
        with pytest.raises(CloudError) as failed:
            cloud.create_many(batch, a_gce_type())
        assert failed.value.kind is FailureKind.AMBIGUOUS
    ids = [call.query["requestId"] for call in gce.asked(*BULK_A)]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert gce.asked(*BULK_B) == [], "nodes may exist in the first zone"


def test_what_one_zone_lacks_the_next_one_gives(gce: Service) -> None:
    cloud = a_port(gce)
    gce.says(*BULK_A, said({**DONE}))
    gce.says(*BULK_B, said({**DONE}))

    def lists() -> None:
        call = gce.calls[-1]
        if (call.method, call.path) == BULK_A:
            gce.says(*LIST, made_of(call, "us-central1-a", 0, 2))
        elif (call.method, call.path) == BULK_B:
            here = made_of(gce.asked(*BULK_A)[0], "us-central1-a", 0, 2)
            there = made_of(call, "us-central1-b", 0)
            gce.says(*LIST, replace(here, body=_joined(here, there)))

    gce.on_call = lists
    made = cloud.create_many(launches(3), a_gce_type())
    zones = [node.provider_id.partition("/")[0] for node in made if isinstance(node, CloudNode)]
    assert zones == ["us-central1-a", "us-central1-b", "us-central1-a"]
    (second,) = gce.asked(*BULK_B)
    missing = launches(3)[1]
    assert list(second.body["perInstanceProperties"]) == [instance_name(CLUSTER, missing.slot, missing.id)]


def _joined(*lists: Reply) -> str:
    items: dict[str, Any] = {}
    for reply in lists:
        items |= json.loads(reply.body)["items"]
    return json.dumps({"id": "list", "items": items})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (an_error(503, "insufficientCapacity"), FailureKind.CAPACITY),
        (an_error(503, "backendError"), FailureKind.AMBIGUOUS),
        (an_error(403, "quotaExceeded"), FailureKind.QUOTA),
        (an_error(403, "rateLimitExceeded"), FailureKind.THROTTLED),
        (an_error(403, "forbidden"), FailureKind.CREDENTIALS),
        (an_error(400, "invalid"), FailureKind.CONFIG),
        (an_error(409, "alreadyExists"), FailureKind.AMBIGUOUS),
        (said({}), FailureKind.AMBIGUOUS),
        (LOST, FailureKind.AMBIGUOUS),
        (said({**DONE, "error": EXHAUSTED}), FailureKind.CAPACITY),
        (said({**DONE, "error": {"errors": [{"code": "VM_MIN_COUNT_NOT_REACHED"}]}}), FailureKind.CAPACITY),
        (
            said({**DONE, "error": {"errors": [{"code": "VM_MIN_COUNT_NOT_REACHED"}, {"code": "QUOTA_EXCEEDED"}]}}),
            FailureKind.QUOTA,
        ),
        (said({**DONE, "error": {"errors": [{"code": "INTERNAL_ERROR"}]}}), FailureKind.AMBIGUOUS),
    ],
    ids=lambda value: f"{value.status} {value.body[-70:]}" if isinstance(value, Reply) else str(value),
)
def test_a_refusal_says_what_there_is_to_do(gce: Service, answer: Reply, kind: FailureKind) -> None:
    gce.says(*BULK_A, answer)
    gce.says(*BULK_B, answer)
    assert failure_of(a_port(gce)).kind is kind
    assert bool(gce.asked(*BULK_B)) is (kind is FailureKind.CAPACITY)


def test_a_throttled_batch_is_one_call(gce: Service) -> None:
    gce.says(*BULK_A, an_error(403, "rateLimitExceeded"))
    assert failure_of(a_port(gce), 300).kind is FailureKind.THROTTLED
    assert [call.method for call in gce.calls] == ["GET", "POST"]


@pytest.mark.parametrize("room", [1, 3, 100, 299, 499])
def test_a_quota_for_fewer_nodes_is_found_in_a_dozen_calls(gce: Service, room: int) -> None:
    """Google refuses a request for more than the quota as a whole, and makes one for less."""
    cloud, made, left = a_port(gce), dict[str, Any](), room

    def answer(call: Call) -> Reply:
        nonlocal left
        gce.calls.append(call)
        if call.method == "GET":
            return a_list(*made.values())
        names = call.body["perInstanceProperties"]
        if len(names) > left:
            return an_error(403, "quotaExceeded")
        left -= len(names)
        for name in names:
            made[name] = {
                **call.body["instanceProperties"],
                "name": name,
                "zone": "us-central1-a",
                "status": "PROVISIONING",
                "creationTimestamp": "2026-11-21T10:00:00.000-08:00",
            }
        return said(DONE)

    gce.answer = answer  # type: ignore[method-assign]
    answers = cloud.create_many(launches(500), a_gce_type())
    nodes = [it for it in answers if isinstance(it, CloudNode)]
    inserts = [call for call in gce.calls if call.method == "POST"]
    assert len(inserts) <= INSERTS_MAX
    assert len(nodes) == len(made)
    assert room * 0.95 <= len(nodes) <= room
    assert {it.kind for it in answers if isinstance(it, CloudError)} == {FailureKind.QUOTA}
    assert len({call.query["requestId"] for call in inserts}) == len(inserts)


def test_an_insert_that_takes_long_is_left_to_the_lists(gce: Service) -> None:
    gce.says(*BULK_A, said({**OPERATION, "status": "RUNNING"}))
    gce.says(*WAIT_A, said({**OPERATION, "status": "RUNNING"}))
    made = a_port(gce).create_many(launches(3), a_gce_type())
    assert [node.state for node in made if isinstance(node, CloudNode)] == [CloudState.PENDING] * 3
    assert [node.identity.launch for node in made if isinstance(node, CloudNode) and node.identity] == [
        it.id for it in launches(3)
    ]
    assert gce.asked(*BULK_B) == []


def test_instances_that_cannot_be_read_after_a_failed_insert_may_exist(gce: Service) -> None:
    gce.says(*LIST, NOTHING, an_error(403, "forbidden"))
    gce.says(*BULK_A, said({**DONE, "error": EXHAUSTED}))
    assert failure_of(a_port(gce)).kind is FailureKind.AMBIGUOUS


def test_instances_that_no_list_shows_yet_are_not_ordered_in_the_next_zone(gce: Service) -> None:
    gce.says(*BULK_A, said({**DONE, "operationType": "bulkInsert"}))
    assert failure_of(a_port(gce)).kind is FailureKind.AMBIGUOUS, "it has created one at least"
    assert gce.asked(*BULK_B) == []


def test_a_failed_insert_that_left_some_instances_counts_them(gce: Service) -> None:
    gce.says(*BULK_A, said({**DONE, "error": {"errors": [{"code": "QUOTA_EXCEEDED"}]}}))

    def lists() -> None:
        if (gce.calls[-1].method, gce.calls[-1].path) == BULK_A and len(gce.asked(*BULK_A)) == 1:
            gce.says(*LIST, made_of(gce.calls[-1], "us-central1-a", 1))

    gce.on_call = lists
    made = a_port(gce).create_many(launches(3), a_gce_type())
    assert [isinstance(it, CloudNode) for it in made] == [False, True, False]


def test_a_node_of_a_batch_is_not_created_again_by_itself(project: GceSubject) -> None:
    first, second, *_ = project.port.create_many(launches(3), a_type())
    again = project.another_port().create(launches(3)[1], a_type())
    assert isinstance(second, CloudNode)
    assert again.provider_id == second.provider_id
    assert len(project.port.list_nodes()) == 3
    assert isinstance(first, CloudNode)


def test_a_node_created_by_itself_is_not_created_again_in_a_batch(gce: Service) -> None:
    """A manager with ``nodes_per_call = 1`` made it; after a restart with batches its launch may be repeated."""
    (launch,) = launches(1)
    single: dict[str, Any] = {}

    def answer(call: Call) -> Reply:
        gce.calls.append(call)
        if call.method == "POST" and call.path.endswith("/instances"):
            single.update(
                {
                    **call.body,
                    "zone": "us-central1-a",
                    "status": "RUNNING",
                    "creationTimestamp": "2026-11-21T10:00:00Z",
                }
            )
            return said(DONE)
        if call.method == "POST":
            return an_error(409, "alreadyExists")
        return said(single) if single and call.path.endswith(single["name"]) else NOTHING

    gce.answer = answer  # type: ignore[method-assign]
    cloud = a_port(gce)
    cloud.create(launch, a_gce_type())
    assert failure_of(cloud, 2).kind is FailureKind.AMBIGUOUS, "never a second one: the name is taken"


@pytest.mark.parametrize("name", ["n-ada-node-1-00000000", "stranger"])
def test_an_instance_whose_name_is_of_no_launch_of_its_batch_is_a_stranger(project: GceSubject, name: str) -> None:
    project.port.create_many(launches(2), a_type())
    body = next(iter(project.service.kept.values())).body
    project.port.driver.insert("europe-west3-a", {**body, "name": name})
    strangers = [node for node in project.port.list_nodes() if node.identity is None]
    assert [node.provider_id for node in strangers] == [f"europe-west3-a/{name}"]


def test_near_nodes_of_a_batch_share_a_policy_given_by_its_name(project: GceSubject) -> None:
    grouped: list[Launch] = [
        replace(it, zone="europe-west3-a", group=f"fnm-{CLUSTER_UUID[:8]}-small") for it in launches(3)
    ]
    made = project.port.create_many(grouped, a_type())
    assert all(isinstance(node, CloudNode) for node in made)
    assert {policy for kept in project.service.kept.values() for policy in kept.body["resourcePolicies"]} == {
        f"projects/lab/regions/europe-west3/resourcePolicies/{grouped[0].group}"
    }


def test_deletes_stop_at_the_first_refusal_that_concerns_all(gce: Service) -> None:
    ids = [ProviderId(f"us-central1-a/n-{number}") for number in range(4)]
    for number, reply in enumerate([said(DONE), an_error(400, "invalid"), an_error(403, "rateLimitExceeded")]):
        gce.says("DELETE", f"{PROJECT}/zones/us-central1-a/instances/n-{number}", reply)
    answers = a_port(gce).destroy_many(ids)
    assert [it.kind if it else None for it in answers] == [
        None,
        FailureKind.CONFIG,
        FailureKind.THROTTLED,
        FailureKind.THROTTLED,
    ]
    assert len(gce.calls) == 3


# --- the keys of identity tokens --------------------------------------------------------------------------


class KeyFileOfTest:
    def __init__(self) -> None:
        self.due = True
        self.posted: list[tuple[Any, str]] = []

    def is_due(self) -> bool:
        return self.due

    def post(self, keys: Any, cache_control: str) -> None:
        if "keys" not in keys:
            raise ValueError("no set of keys")
        self.posted.append((keys, cache_control))


def _courier(service: Service, file: KeyFileOfTest, wall: Wall) -> KeyCourier:
    return KeyCourier(GceDriver("project_name", AToken(), endpoint=service.url), file, wall)


def test_a_list_brings_the_keys_if_they_are_due(gce: Service) -> None:
    gce.says(*KEYS, said(jwks("google"), Cache_Control="public, max-age=22000"))
    file, wall = KeyFileOfTest(), Wall()
    cloud = a_port(gce, key_file=file, clock=wall)
    assert cloud.list_nodes() == ()
    assert file.posted == [(jwks("google"), "public, max-age=22000")]
    assert "authorization" not in gce.asked(*KEYS)[0].headers, "the keys are public"
    assert "authorization" in gce.asked(*LIST)[0].headers
    file.due = False
    wall.advance(FETCH_EVERY_S)
    cloud.list_nodes()
    assert len(gce.asked(*KEYS)) == 1


def test_the_keys_are_fetched_once_a_minute_at_most(gce: Service) -> None:
    gce.says(*KEYS, said(jwks("google")))
    file, wall = KeyFileOfTest(), Wall()
    courier = _courier(gce, file, wall)
    for _ in range(600):
        courier.bring_if_due()
        wall.advance(0.5)
    assert len(gce.asked(*KEYS)) == 5, "in five minutes"


@pytest.mark.parametrize("reply", [LOST, an_error(503, "backendError"), said({}), said([]), Reply(200, "<html>")])
def test_keys_that_cannot_be_had_fail_no_list(gce: Service, reply: Reply) -> None:
    gce.says(*KEYS, reply, said(jwks("google")))
    file, wall = KeyFileOfTest(), Wall()
    cloud = a_port(gce, key_file=file, clock=wall)
    assert cloud.list_nodes() == ()
    assert file.posted == []
    wall.advance(FETCH_EVERY_S)
    cloud.list_nodes()
    assert len(file.posted) == 1


def test_a_folder_that_cannot_be_read_fails_no_list(gce: Service) -> None:
    class Unreadable(KeyFileOfTest):
        def is_due(self) -> bool:
            raise PermissionError("material_dir is somebody else's")

    assert a_port(gce, key_file=Unreadable(), clock=Wall()).list_nodes() == ()


def test_a_list_that_fails_asks_for_no_keys(gce: Service) -> None:
    gce.says(*LIST, an_error(403, "forbidden"))
    cloud = a_port(gce, key_file=KeyFileOfTest(), clock=Wall())
    with pytest.raises(CloudError):
        cloud.list_nodes()
    assert gce.asked(*KEYS) == []
