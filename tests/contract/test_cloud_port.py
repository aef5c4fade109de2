"""The contract of every cloud port: a test for each promise of ``nodemanager.core.ports.CloudPort``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.core.nodes import (
    CloudState,
    FailureKind,
    Identity,
    Launch,
    LaunchId,
    Leftover,
    LeftoverKind,
    ProviderId,
    group_name,
)
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market, SlotName, TypeName
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SIZES, SUBJECTS, CloudSubject, a_type

ODD_NAMES = [
    "ünïcode-節点",
    "two words",
    "quote'and\"quote",
    "back\\slash/../slash",
    "line\nbreak\ttab",
    "$(reboot) `reboot` ;& |",
    "-rf",
    "%s{}#?=",
    "fnm:slot",
    "x" * 200,
]


@pytest.fixture(params=SUBJECTS)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudSubject]:
    subject = SUBJECTS[request.param](tmp_path / "cloud")
    try:
        yield subject
    finally:
        subject.close()


def ours(launch: Launch) -> Identity:
    return Identity(CLUSTER, CLUSTER_UUID, launch.id, launch.slot, launch.type_name)


class TestCreate:
    def test_made_node_carries_the_identity_of_its_launch(self, cloud: CloudSubject) -> None:
        launch = cloud.launch()
        created = cloud.port.create(launch, a_type())
        assert created.identity == ours(launch)
        assert created.state in {CloudState.PENDING, CloudState.RUNNING}
        assert created.died_because == ""
        assert created.market in {None, Market.ON_DEMAND}

    def test_made_node_is_listed_as_it_was_answered(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        (listed,) = cloud.port.list_nodes()
        assert (listed.provider_id, listed.identity) == (created.provider_id, created.identity)
        assert listed.created_at == created.created_at
        assert created.created_at is not None

    def test_nodes_of_one_type_are_made_and_listed_as_the_size_that_was_ordered(self, cloud: CloudSubject) -> None:
        if not cloud.tells_sizes:
            pytest.skip("this provider does not tell the size of a node")
        sizes = {}
        for number, size in enumerate(SIZES):
            ordered = replace(a_type(), size=size)
            sizes[cloud.port.create(cloud.launch(str(number), f"node-{number}"), ordered).provider_id] = size
        listed = {node.provider_id: node.size for node in cloud.port.list_nodes()}
        assert listed == sizes

    def test_pending_becomes_running(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        states = [created.state]

        def runs() -> bool:
            states.append(cloud.state(created.provider_id) or CloudState.TERMINATED)
            return states[-1] is CloudState.RUNNING

        cloud.wait(runs, "a running node")
        assert set(states[:-1]) <= {CloudState.PENDING, CloudState.RUNNING}
        assert cloud.standing()[0].died_because == ""

    def test_same_launch_twice_makes_one_node(self, cloud: CloudSubject) -> None:
        first = cloud.port.create(cloud.launch(), a_type())
        again = cloud.another_port().create(cloud.launch(), a_type())
        assert again.provider_id == first.provider_id
        assert len(cloud.port.list_nodes()) == 1

    def test_launch_of_a_dead_node_is_not_made_anew(self, cloud: CloudSubject) -> None:
        if not cloud.remembers_the_dead:
            pytest.skip("this provider lists no node that has ended")
        first = cloud.port.create(cloud.launch(), a_type())
        cloud.port.destroy(first.provider_id)
        cloud.wait(lambda: cloud.standing() == [], "the end of the node")
        again = cloud.port.create(cloud.launch(), a_type())
        assert (again.provider_id, again.state) == (first.provider_id, CloudState.TERMINATED)
        assert cloud.standing() == []

    def test_two_launches_for_one_slot_are_two_nodes(self, cloud: CloudSubject) -> None:
        if cloud.one_node_per_slot:
            pytest.skip(cloud.one_node_per_slot)
        first = cloud.port.create(cloud.launch("1"), a_type())
        second = cloud.port.create(cloud.launch("2"), a_type())
        assert first.provider_id != second.provider_id

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_come_back_as_they_were(self, cloud: CloudSubject, name: str) -> None:
        if cloud.one_node_per_slot:
            pytest.skip(f"the slots have the provider's own names: {cloud.one_node_per_slot}")
        launch = cloud.launch(name, slot=name, type_name=name)
        created = cloud.port.create(launch, a_type(name))
        assert created.identity == ours(launch)
        assert cloud.port.list_nodes()[0].identity == ours(launch)


class TestCreateThatFails:
    def test_lost_reply_is_ambiguous_and_the_node_is_found_by_list(self, cloud: CloudSubject) -> None:
        with cloud.losing_replies(), pytest.raises(CloudError) as failed:
            cloud.port.create(cloud.launch(), a_type())
        assert failed.value.kind is FailureKind.AMBIGUOUS
        (found,) = cloud.port.list_nodes()
        assert found.identity == ours(cloud.launch())

    def test_repeating_after_a_lost_reply_makes_no_second_node(self, cloud: CloudSubject) -> None:
        with cloud.losing_replies(), pytest.raises(CloudError):
            cloud.port.create(cloud.launch(), a_type())
        again = cloud.port.create(cloud.launch(), a_type())
        assert [node.provider_id for node in cloud.port.list_nodes()] == [again.provider_id]

    def test_no_capacity_makes_nothing(self, cloud: CloudSubject) -> None:
        with cloud.out_of_capacity(), pytest.raises(CloudError) as failed:
            cloud.port.create(cloud.launch(), a_type())
        assert failed.value.kind is FailureKind.CAPACITY
        assert cloud.port.list_nodes() == ()

    def test_capacity_that_comes_back_serves_the_same_launch(self, cloud: CloudSubject) -> None:
        with cloud.out_of_capacity(), pytest.raises(CloudError):
            cloud.port.create(cloud.launch(), a_type())
        assert cloud.port.create(cloud.launch(), a_type()).identity == ours(cloud.launch())

    def test_made_already_is_answered_even_without_capacity(self, cloud: CloudSubject) -> None:
        first = cloud.port.create(cloud.launch(), a_type())
        with cloud.out_of_capacity():
            assert cloud.port.create(cloud.launch(), a_type()).provider_id == first.provider_id

    def test_quota_makes_nothing(self, cloud: CloudSubject) -> None:
        with cloud.at_quota(), pytest.raises(CloudError) as failed:
            cloud.port.create(cloud.launch(), a_type())
        assert failed.value.kind is FailureKind.QUOTA
        assert cloud.port.list_nodes() == ()


class TestThrottling:
    @pytest.mark.parametrize("call", ["create", "list", "destroy"])
    def test_throttled_call_says_how_long_to_wait_and_does_nothing(self, cloud: CloudSubject, call: str) -> None:
        kept = cloud.port.create(cloud.launch("kept"), a_type())
        calls: dict[str, Callable[[], object]] = {
            "create": lambda: cloud.port.create(cloud.launch("new"), a_type()),
            "list": cloud.port.list_nodes,
            "destroy": lambda: cloud.port.destroy(kept.provider_id),
        }
        with cloud.throttling(), pytest.raises(CloudError) as failed:
            calls[call]()
        assert failed.value.kind is FailureKind.THROTTLED
        assert 0 < failed.value.retry_after_s <= 300
        assert [node.provider_id for node in cloud.standing()] == [kept.provider_id]


class TestDestroy:
    def test_destroyed_node_is_terminated_or_absent_at_last(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        cloud.port.destroy(created.provider_id)
        cloud.wait(lambda: cloud.state(created.provider_id) in {None, CloudState.TERMINATED}, "the end of the node")

    def test_running_node_is_terminated_at_last(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        cloud.wait(lambda: cloud.state(created.provider_id) is CloudState.RUNNING, "a running node")
        cloud.another_port().destroy(created.provider_id)
        cloud.wait(lambda: cloud.standing() == [], "the end of the node")

    def test_repeated_is_no_error(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        cloud.port.destroy(created.provider_id)
        cloud.port.destroy(created.provider_id)
        cloud.wait(lambda: cloud.standing() == [], "the end of the node")
        cloud.port.destroy(created.provider_id)
        assert cloud.standing() == []

    @pytest.mark.parametrize("name", ["i-0123456789abcdef0", "nobody's", "../../nodes", ""])
    def test_of_an_unknown_node_is_no_error_and_touches_nothing(self, cloud: CloudSubject, name: str) -> None:
        kept = cloud.port.create(cloud.launch(), a_type())
        cloud.port.destroy(ProviderId(name))
        assert [node.provider_id for node in cloud.standing()] == [kept.provider_id]

    def test_touches_no_other_node(self, cloud: CloudSubject) -> None:
        first = cloud.port.create(cloud.launch("1"), a_type())
        second = cloud.port.create(cloud.launch("2", "node-2"), a_type())
        goes, stays = (second, first) if cloud.only_the_last_leaves else (first, second)
        cloud.port.destroy(goes.provider_id)
        cloud.wait(lambda: len(cloud.standing()) == 1, "the end of one node")
        cloud.wait(lambda: cloud.state(stays.provider_id) is CloudState.RUNNING, "the other one to run")


class TestList:
    def test_of_an_empty_account_is_empty(self, cloud: CloudSubject) -> None:
        assert cloud.port.list_nodes() == ()

    def test_is_the_same_from_another_port(self, cloud: CloudSubject) -> None:
        for name in ("1", "2", "3"):
            cloud.port.create(cloud.launch(name), a_type())
        cloud.wait(lambda: {node.state for node in cloud.port.list_nodes()} == {CloudState.RUNNING}, "all to run")
        assert cloud.another_port().list_nodes() == cloud.port.list_nodes()

    def test_keeps_the_order_of_creation(self, cloud: CloudSubject) -> None:
        made = [cloud.port.create(cloud.launch(str(number)), a_type()).provider_id for number in range(12)]
        assert [node.provider_id for node in cloud.port.list_nodes()] == made
        if cloud.only_the_last_leaves:
            return
        cloud.port.destroy(made[3])
        assert [node.provider_id for node in cloud.port.list_nodes() if node.provider_id in made[4:]] == made[4:]

    def test_shows_sudden_death_with_its_cause(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        cloud.wait(lambda: cloud.state(created.provider_id) is CloudState.RUNNING, "a running node")
        cloud.kill(created.provider_id)
        cloud.wait(lambda: cloud.state(created.provider_id) is CloudState.TERMINATED, "the death to show")
        dead = cloud.node(created.provider_id)
        assert dead is not None
        assert dead.died_because
        assert dead.identity == ours(cloud.launch())

    def test_shows_an_untagged_node_without_identity_or_not_at_all(self, cloud: CloudSubject) -> None:
        stranger = cloud.add_stranger(None)
        cloud.port.create(cloud.launch(), a_type())
        seen = {node.provider_id: node.identity for node in cloud.port.list_nodes()}
        assert len(seen) in {1, 2}
        assert seen.get(stranger) is None

    def test_shows_nodes_of_our_name_and_another_uuid_as_theirs(self, cloud: CloudSubject) -> None:
        theirs = Identity(
            CLUSTER,
            "22222222-2222-4222-8222-222222222222",
            LaunchId("launch-theirs"),
            SlotName("node-1"),
            TypeName("small"),
        )
        cloud.add_stranger(theirs)
        cloud.port.create(cloud.launch(), a_type())
        identities = [node.identity for node in cloud.port.list_nodes()]
        assert identities == [theirs, ours(cloud.launch())]


class TestSweep:
    def test_of_a_standing_fleet_deletes_nothing_however_often(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        cloud.wait(lambda: cloud.state(created.provider_id) is CloudState.RUNNING, "a running node")
        assert [cloud.port.sweep() for _ in range(3)] == [(), (), ()]
        assert [node.provider_id for node in cloud.standing()] == [created.provider_id]

    def test_of_a_fleet_that_went_leaves_nothing_to_sweep(self, cloud: CloudSubject) -> None:
        created = cloud.port.create(cloud.launch(), a_type())
        cloud.wait(lambda: cloud.state(created.provider_id) is CloudState.RUNNING, "a running node")
        cloud.port.destroy(created.provider_id)
        cloud.wait(lambda: cloud.standing() == [], "the end of the node")
        assert [cloud.port.sweep() for _ in range(3)] == [(), (), ()]


GROUP = group_name(CLUSTER_UUID, TypeName("small"), "")


@pytest.fixture
def grouping(cloud: CloudSubject) -> CloudSubject:
    if not cloud.has_groups:
        pytest.skip("this provider has no placement groups, and the config refuses them")
    return cloud


def in_group(launch: Launch, group: str = GROUP) -> Launch:
    return replace(launch, group=group)


def swept_groups(swept: tuple[Leftover, ...]) -> list[LeftoverKind]:
    return [leftover.kind for leftover in swept]


class TestPlacementGroups:
    def test_nodes_are_made_in_the_group_of_their_launch_by_any_port(self, grouping: CloudSubject) -> None:
        grouping.port.create(in_group(grouping.launch("1")), a_type())
        grouping.another_port().create(in_group(grouping.launch("2", "node-2")), a_type())
        grouping.port.create(grouping.launch("3", "node-2"), a_type())
        assert list(grouping.groups()) == [GROUP]
        listed = {node.identity.launch: node.group for node in grouping.standing() if node.identity is not None}
        told = GROUP if grouping.tells_groups else ""
        assert listed == {"launch-1": told, "launch-2": told, "launch-3": ""}

    def test_repeating_after_a_lost_reply_makes_no_second_node_and_no_second_group(
        self, grouping: CloudSubject
    ) -> None:
        launch = in_group(grouping.launch())
        with grouping.losing_replies(), pytest.raises(CloudError):
            grouping.port.create(launch, a_type())
        again = grouping.another_port().create(launch, a_type())
        assert [node.provider_id for node in grouping.standing()] == [again.provider_id]
        assert list(grouping.groups()) == [GROUP]

    def test_group_with_a_node_is_never_swept(self, grouping: CloudSubject) -> None:
        grouping.port.create(in_group(grouping.launch()), a_type())
        assert [grouping.port.sweep() for _ in range(3)] == [(), (), ()]
        assert list(grouping.groups()) == [GROUP]

    def test_group_that_no_capacity_left_empty_is_swept_at_the_second_look(self, grouping: CloudSubject) -> None:
        with grouping.out_of_capacity(), pytest.raises(CloudError) as failed:
            grouping.port.create(in_group(grouping.launch()), a_type())
        assert failed.value.kind is FailureKind.CAPACITY
        assert list(grouping.groups()) == [GROUP]
        assert grouping.port.sweep() == ()
        assert LeftoverKind.GROUP in swept_groups(grouping.port.sweep())
        assert list(grouping.groups()) == []

    def test_group_goes_after_its_last_node_and_is_made_again_for_the_next(self, grouping: CloudSubject) -> None:
        launches = [in_group(grouping.launch(name)) for name in ("1", "2")]
        first = grouping.port.create(launches[0], a_type())
        grouping.port.destroy(first.provider_id)
        grouping.wait(lambda: grouping.standing() == [], "the end of the node")
        assert swept_groups(grouping.port.sweep()) == []
        assert swept_groups(grouping.another_port().sweep()) == [], "each port looks twice by itself"
        assert swept_groups(grouping.port.sweep()) == [LeftoverKind.GROUP]
        assert list(grouping.groups()) == []
        second = grouping.port.create(launches[1], a_type())
        assert [node.provider_id for node in grouping.standing()] == [second.provider_id]
        assert list(grouping.groups()) == [GROUP], "the port knows the group that the sweep deleted"

    def test_groups_of_other_clusters_are_left_alone(self, grouping: CloudSubject) -> None:
        others = "22222222-2222-4222-8222-222222222222"
        theirs = group_name(others, TypeName("small"), "")
        port = grouping.port_of(others)
        port.destroy(port.create(in_group(grouping.launch(), theirs), a_type()).provider_id)
        grouping.wait(lambda: grouping.standing() == [], "the end of the node")
        assert [grouping.port.sweep() for _ in range(3)] == [(), (), ()]
        assert list(grouping.groups()) == [theirs]
