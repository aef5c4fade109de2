"""Batches on EC2: the one request, its tags, and lists of which one instance cannot be terminated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.cloud.common.request import (
    SLOTS_TAGS_MAX,
    TAG_SLOTS,
    VALUE_MAX_CHARS,
    batch_from_tags,
    fits_tags,
    identity_in_batch,
    tags_of_batch,
)
from nodemanager.cloud.ec2.port import DESTROY_CALLS_MAX, Ec2Cloud
from nodemanager.cloud.ec2.run_instances import TOKEN_MAX_CHARS
from nodemanager.core.nodes import Batch, CloudNode, FailureKind, ProviderId, batch_of, launch_id
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import SlotName, TypeName
from tests.cloud.ec2.moto_faults import Fault
from tests.cloud.ec2.moto_front import MotoFront
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_type
from tests.contract.ec2_subject import a_cloud
from tests.contract.test_cloud_batches import STAMP, launches

slot_names = st.from_regex(r"[a-z]{1,6}-?[0-9]{0,4}", fullmatch=True)


@pytest.fixture
def front() -> Iterator[MotoFront]:
    made = MotoFront()
    yield made
    made.close()


@pytest.fixture
def cloud(front: MotoFront) -> Ec2Cloud:
    return a_cloud(front)


@given(st.lists(slot_names, min_size=1, max_size=300, unique=True), st.sampled_from(["", "abc"]))
def test_tags_name_every_slot_of_a_batch_in_order(names: list[str], made_from: str) -> None:
    batch = Batch(STAMP, tuple(map(SlotName, names)))
    tags = tags_of_batch(batch, CLUSTER, CLUSTER_UUID, TypeName("small"), made_from)
    assert max(map(len, tags.values())) <= VALUE_MAX_CHARS
    assert batch_from_tags(tags) == batch
    for index, slot in enumerate(names):
        identity = identity_in_batch(tags, str(index))
        assert identity is not None
        assert (identity.slot, identity.launch, identity.made_from) == (slot, f"{slot}-{STAMP}", made_from)


@pytest.mark.parametrize("index", ["", "2", "-1", "x", "\u0661"])
def test_an_instance_without_a_place_in_its_batch_has_no_identity(index: str) -> None:
    batch = Batch(STAMP, (SlotName("node-1"), SlotName("node-2")))
    assert identity_in_batch(tags_of_batch(batch, CLUSTER, CLUSTER_UUID, TypeName("small"), ""), index) is None


def test_one_request_asks_for_all_and_is_content_with_one(front: MotoFront, cloud: Ec2Cloud) -> None:
    cloud.create_many(launches(30), a_type())
    (asked,) = (call.parameters for call in front.received if call.action == "RunInstances")
    assert (asked["MinCount"], asked["MaxCount"]) == ("1", "30")
    assert len(asked["ClientToken"]) <= TOKEN_MAX_CHARS
    assert asked["TagSpecification.1.Tag.5.Value"] == STAMP
    assert len({front.user_data(made.id) for made in front.standing()}) == 1


def test_names_that_no_tags_can_hold_take_two_requests(front: MotoFront, cloud: Ec2Cloud) -> None:
    many = [
        replace(it, slot=(slot := SlotName(f"{it.slot}-{'x' * 200}")), id=launch_id(slot, STAMP))
        for it in launches(60)
    ]
    assert not fits_tags(Batch(STAMP, tuple(it.slot for it in many)))
    assert SLOTS_TAGS_MAX * VALUE_MAX_CHARS < 60 * 200
    made = cloud.create_many(many, a_type())
    assert [node.identity.slot for node in made if isinstance(node, CloudNode) and node.identity] == [
        it.slot for it in many
    ]
    assert front.calls["RunInstances"] == 2


def test_the_tags_of_a_batch_name_its_slots_as_a_range_in_whatever_order_they_were_ordered() -> None:
    """Orders are sorted by name: node-1, node-10, node-11."""
    ordered = sorted(launches(30), key=lambda it: it.id)
    tags = tags_of_batch(batch_of(ordered), CLUSTER, CLUSTER_UUID, TypeName("small"), "")
    assert tags[TAG_SLOTS] == "node-[1-30]"


def test_nodes_of_a_batch_are_in_the_placement_group_of_their_launches(front: MotoFront, cloud: Ec2Cloud) -> None:
    cloud.create_many([replace(it, group="fnm-123-small") for it in launches(3)], a_type())
    assert {made.placement.group_name for made in front.standing()} == {"fnm-123-small"}


def test_a_reply_with_an_instance_that_has_no_place_is_not_believed(front: MotoFront, cloud: Ec2Cloud) -> None:
    index = b"<amiLaunchIndex>0</amiLaunchIndex>"

    def twice(content: bytes) -> bytes:
        assert index in content
        return content.replace(b"<amiLaunchIndex>1</amiLaunchIndex>", index)

    front.faults.append(Fault("RunInstances", rewrite=twice))
    with pytest.raises(CloudError) as failed:
        cloud.create_many(launches(3), a_type())
    assert failed.value.kind is FailureKind.AMBIGUOUS


def test_a_protected_instance_hinders_no_other_and_the_calls_stay_few(front: MotoFront, cloud: Ec2Cloud) -> None:
    made = cloud.create_many(launches(40), a_type())
    ids = [node.provider_id for node in made if isinstance(node, CloudNode)]
    protected = ids[17]
    named = {f"InstanceId.{number}": protected for number in range(1, 41)}
    front.faults += [
        Fault("TerminateInstances", "OperationNotPermitted", times=1_000, where={name: protected}) for name in named
    ]
    answers = cloud.destroy_many(ids)
    refused = [id_ for id_, answer in zip(ids, answers, strict=True) if answer is not None]
    assert refused == [protected]
    assert [it.id for it in front.standing()] == [protected]
    assert front.calls["TerminateInstances"] <= 15


def test_an_instance_that_the_reply_does_not_name_was_not_destroyed(front: MotoFront, cloud: Ec2Cloud) -> None:
    one, other, single = (
        it.provider_id for it in cloud.create_many(launches(3), a_type()) if isinstance(it, CloudNode)
    )

    def without(id_: ProviderId) -> Fault:
        return Fault(
            "TerminateInstances", rewrite=lambda reply: reply.replace(id_.encode(), b"i-0000000000000dead")
        )

    front.faults += [without(one), without(single)]
    missing, accepted = cloud.destroy_many([one, other])
    assert accepted is None
    assert missing is not None
    assert (missing.kind, "does not mention" in missing.detail) == (FailureKind.TRANSIENT, True)
    with pytest.raises(CloudError, match=f"does not mention {single}"):
        cloud.destroy(single)


def test_a_list_that_is_refused_as_a_whole_takes_a_limited_number_of_calls(
    front: MotoFront, cloud: Ec2Cloud
) -> None:
    front.faults.append(Fault("TerminateInstances", "OperationNotPermitted", times=1_000))
    answers = cloud.destroy_many([ProviderId(f"i-{number:017x}") for number in range(200)])
    assert all(isinstance(answer, CloudError) and answer.kind is FailureKind.CONFIG for answer in answers)
    assert front.calls["TerminateInstances"] <= DESTROY_CALLS_MAX
