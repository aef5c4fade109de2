"""The contract of :class:`nodemanager.core.ports.BatchCloudPort`: whatever holds for one create holds for many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Identity, Launch, ProviderId, launch_id
from nodemanager.core.ports import BatchCloudPort, CloudError
from nodemanager.core.slots import Rank, SlotName
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SUBJECTS, CloudSubject, a_launch, a_type

STAMP = "19ab4c2f3d1"


@pytest.fixture(params=SUBJECTS)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudSubject]:
    if request.param not in ("simulated", "ec2", "gce"):
        pytest.skip("this provider creates each node by a call of its own")
    subject = SUBJECTS[request.param](tmp_path / "cloud")
    try:
        yield subject
    finally:
        subject.close()


def port_of(cloud: CloudSubject) -> BatchCloudPort:
    assert isinstance(cloud.port, BatchCloudPort)
    return cloud.port


def launches(count: int, stamp: str = STAMP) -> list[Launch]:
    """Launches of one plan."""
    return [
        replace(
            a_launch(),
            id=launch_id(SlotName(f"node-{rank}"), stamp),
            slot=SlotName(f"node-{rank}"),
            rank=Rank(rank),
            client_token=f"token-{rank}-{stamp}",
        )
        for rank in range(1, count + 1)
    ]


def ours(launch: Launch) -> Identity:
    return Identity(CLUSTER, CLUSTER_UUID, launch.id, launch.slot, launch.type_name)


def identities(cloud: CloudSubject) -> list[Identity | None]:
    return sorted((node.identity for node in cloud.port.list_nodes()), key=str)


class TestCreateMany:
    def test_makes_one_node_for_each_launch_and_answers_in_their_order(self, cloud: CloudSubject) -> None:
        ordered = list(reversed(launches(12)))
        made = port_of(cloud).create_many(ordered, a_type())
        assert [node.identity for node in made if isinstance(node, CloudNode)] == list(map(ours, ordered))
        assert identities(cloud) == sorted(map(ours, ordered), key=str)
        assert {node.provider_id for node in cloud.port.list_nodes()} == {
            node.provider_id for node in made if isinstance(node, CloudNode)
        }

    def test_repeated_makes_no_second_node(self, cloud: CloudSubject) -> None:
        first = port_of(cloud).create_many(launches(5), a_type())
        again = cast("BatchCloudPort", cloud.another_port()).create_many(launches(5), a_type())
        assert [_id(node) for node in again] == [_id(node) for node in first]
        assert len(cloud.port.list_nodes()) == 5

    def test_another_plan_makes_other_nodes(self, cloud: CloudSubject) -> None:
        port_of(cloud).create_many(launches(3), a_type())
        port_of(cloud).create_many(launches(2, "19ab4c30000"), a_type())
        assert len(cloud.port.list_nodes()) == 5

    def test_some_capacity_makes_some_nodes_and_refuses_the_others(self, cloud: CloudSubject) -> None:
        with cloud.room_for(3):
            made = port_of(cloud).create_many(launches(5), a_type())
        refused = [answer for answer in made if isinstance(answer, CloudError)]
        assert [answer.kind for answer in refused] == [FailureKind.CAPACITY] * 2
        granted = [node for node in made if isinstance(node, CloudNode)]
        assert len({node.identity for node in granted}) == 3
        assert identities(cloud) == sorted((node.identity for node in granted), key=str)

    def test_partial_batch_repeated_makes_no_more(self, cloud: CloudSubject) -> None:
        with cloud.room_for(3):
            port_of(cloud).create_many(launches(5), a_type())
        again = port_of(cloud).create_many(launches(5), a_type())
        assert sum(isinstance(answer, CloudNode) for answer in again) == 3
        assert len(cloud.port.list_nodes()) == 3

    def test_no_capacity_makes_nothing(self, cloud: CloudSubject) -> None:
        with cloud.out_of_capacity(), pytest.raises(CloudError) as failed:
            port_of(cloud).create_many(launches(5), a_type())
        assert failed.value.kind is FailureKind.CAPACITY
        assert cloud.port.list_nodes() == ()

    def test_quota_makes_nothing(self, cloud: CloudSubject) -> None:
        with cloud.at_quota(), pytest.raises(CloudError) as failed:
            port_of(cloud).create_many(launches(5), a_type())
        assert failed.value.kind is FailureKind.QUOTA
        assert cloud.port.list_nodes() == ()

    def test_throttled_call_makes_nothing_and_says_how_long_to_wait(self, cloud: CloudSubject) -> None:
        with cloud.throttling(), pytest.raises(CloudError) as failed:
            port_of(cloud).create_many(launches(5), a_type())
        assert failed.value.kind is FailureKind.THROTTLED
        assert 0 < failed.value.retry_after_s <= 300
        assert cloud.port.list_nodes() == ()

    def test_lost_reply_is_ambiguous_and_every_node_is_found_by_list(self, cloud: CloudSubject) -> None:
        with cloud.losing_replies(), pytest.raises(CloudError) as failed:
            port_of(cloud).create_many(launches(5), a_type())
        assert failed.value.kind is FailureKind.AMBIGUOUS
        assert identities(cloud) == sorted(map(ours, launches(5)), key=str)

    def test_repeating_after_a_lost_reply_makes_no_second_node(self, cloud: CloudSubject) -> None:
        with cloud.losing_replies(), pytest.raises(CloudError):
            port_of(cloud).create_many(launches(5), a_type())
        again = port_of(cloud).create_many(launches(5), a_type())
        assert {_id(node) for node in again} == {node.provider_id for node in cloud.port.list_nodes()}

    def test_launches_of_two_plans_are_refused_before_any_call(self, cloud: CloudSubject) -> None:
        mixed = [*launches(1), *launches(2, "19ab4c30000")[1:]]
        with pytest.raises(ValueError, match="not of one plan"):
            port_of(cloud).create_many(mixed, a_type())
        assert cloud.port.list_nodes() == ()


class TestDestroyMany:
    def test_all_end(self, cloud: CloudSubject) -> None:
        made = [_id(node) for node in port_of(cloud).create_many(launches(5), a_type())]
        assert port_of(cloud).destroy_many(made[:4]) == [None] * 4
        cloud.wait(lambda: [node.provider_id for node in cloud.standing()] == made[4:], "the end of four nodes")

    def test_repeated_is_no_error(self, cloud: CloudSubject) -> None:
        made = [_id(node) for node in port_of(cloud).create_many(launches(3), a_type())]
        port_of(cloud).destroy_many(made)
        assert port_of(cloud).destroy_many(made) == [None] * 3
        cloud.wait(lambda: cloud.standing() == [], "the end of the nodes")

    @pytest.mark.parametrize("unknown", ["i-0123456789abcdef0", "nobody's", ""])
    def test_unknown_node_hinders_no_other(self, cloud: CloudSubject, unknown: str) -> None:
        made = [_id(node) for node in port_of(cloud).create_many(launches(4), a_type())]
        listed = [*made[:2], ProviderId(unknown), *made[2:]]
        assert port_of(cloud).destroy_many(listed) == [None] * 5
        cloud.wait(lambda: cloud.standing() == [], "the end of the nodes")

    def test_throttled_call_ends_nothing(self, cloud: CloudSubject) -> None:
        made = [_id(node) for node in port_of(cloud).create_many(launches(3), a_type())]
        with cloud.throttling(), pytest.raises(CloudError) as failed:
            port_of(cloud).destroy_many(made)
        assert failed.value.kind is FailureKind.THROTTLED
        assert {node.state for node in cloud.standing()} <= {CloudState.PENDING, CloudState.RUNNING}
        assert len(cloud.standing()) == 3


class TestSweep:
    def test_of_a_batch_that_partly_went_leaves_the_others_alone(self, cloud: CloudSubject) -> None:
        made = [_id(node) for node in port_of(cloud).create_many(launches(3), a_type())]
        cloud.port.destroy(made[0])
        cloud.wait(lambda: len(cloud.standing()) == 2, "the end of one node")
        assert [cloud.port.sweep() for _ in range(3)] == [(), (), ()]
        assert len(cloud.standing()) == 2


def _id(answer: CloudNode | CloudError) -> ProviderId:
    assert isinstance(answer, CloudNode)
    return answer.provider_id
