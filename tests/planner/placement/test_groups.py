"""Node types with ``placement = cluster``: a wide job gets all its new nodes in one placement group."""

from __future__ import annotations

from dataclasses import replace

from nodemanager.core.facts import CloudCallFailed, CloudListed, LaunchesRecorded
from nodemanager.core.jobs import HasProperty, Shape
from nodemanager.core.nodes import FailureKind, Identity, NodeState, group_name, group_prefix
from nodemanager.core.orders import BootNode, CreateNode, RecordLaunches
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.slots import NodePlacement, NodeType
from nodemanager.planner.plan import Plan
from tests.builders import World, a_cloud_node, a_job, a_launch, a_type, a_world, nodes, tasks, whole_nodes

CLOSE = replace(a_type("close", slots=8), zones=("a", "b"), placement=NodePlacement.CLUSTER)
OTHER = replace(a_type("other", slots=8, price="5.00"), zones=("b", "a"), properties=frozenset({"other"}))


def world(*types: NodeType) -> World:
    return a_world(*(types or (CLOSE,)), nodes_max=16)


def asked(world: World, *shapes: Shape) -> World:
    """The jobs are submitted, and the queue has settled."""
    world.see_queue(*(a_job(number, shape) for number, shape in enumerate(shapes, start=1)))
    return world.wait(world.policy.timing.settle_s + 1).all_is_fresh()


def bought(made: Plan) -> list[tuple[str, str, str]]:
    """The slots for which nodes are bought, each with its zone and its group."""
    boots = [action.launch for action in made.actions if isinstance(action, BootNode)]
    return [(launch.slot, launch.zone, launch.group) for launch in boots]


def group(world: World, zone: str, node_type: NodeType = CLOSE) -> str:
    return group_name(world.policy.cluster_uuid, node_type.name, zone)


def why_bought(made: Plan) -> set[str]:
    return {
        to_sentence(action.reason.code, action.reason.figures)
        for action in made.actions
        if isinstance(action, BootNode)
    }


def no_capacity(world: World, order: CreateNode) -> CloudCallFailed:
    return CloudCallFailed("create", order.launch.id, FailureKind.CAPACITY, "no room near the others")


# --- what is bought ---------------------------------------------------------------------------------------


def test_a_wide_job_gets_all_its_nodes_in_one_group_of_one_zone() -> None:
    fleet = world()
    made = asked(fleet, whole_nodes(3)).plan()
    assert bought(made) == [(f"close{number}", "a", group(fleet, "a")) for number in (1, 2, 3)]
    assert why_bought(made) == {f"bought for 1 job, in placement group {group(fleet, 'a')}"}


def test_tasks_that_need_more_than_one_node_count_as_a_wide_job() -> None:
    (job,) = asked(world(), tasks(6)).snapshot.jobs.values()
    assert job.shape.one_zone, "six cores, and a node has four"
    (job,) = asked(world(), tasks(4)).snapshot.jobs.values()
    assert not job.shape.one_zone


def test_a_job_of_one_node_may_start_anywhere_though_its_node_is_in_a_group() -> None:
    fleet = asked(world(), whole_nodes(1))
    assert not fleet.snapshot.jobs[a_job().id].shape.one_zone
    assert bought(fleet.plan()) == [("close1", "a", group(fleet, "a"))]


def test_a_wide_job_that_cannot_run_on_the_type_is_left_as_it_is() -> None:
    fleet = asked(world(CLOSE, OTHER), whole_nodes(2, where=HasProperty("other")))
    assert not fleet.snapshot.jobs[a_job().id].shape.one_zone
    assert {group for _, _, group in bought(fleet.plan())} == {""}
    too_large = asked(world(CLOSE, OTHER), nodes(2, cores=5))
    assert not too_large.snapshot.jobs[a_job().id].shape.one_zone


def test_without_such_a_type_nothing_is_gathered() -> None:
    fleet = asked(a_world(replace(CLOSE, placement=NodePlacement.ANYWHERE)), whole_nodes(2))
    assert not fleet.snapshot.jobs[a_job().id].shape.one_zone
    assert {group for _, _, group in bought(fleet.plan())} == {""}


def test_a_later_job_uses_what_is_up_and_grows_the_same_group() -> None:
    fleet = world()
    launch = replace(a_launch("close1", fleet.policy), zone="b", group=group(fleet, "b"))
    made = asked(fleet.node("close1", NodeState.IDLE, launch=launch), whole_nodes(3)).plan()
    assert bought(made) == [(slot, "b", group(fleet, "b")) for slot in ("close2", "close3")]


def test_spare_nodes_are_in_the_group_too() -> None:
    fleet = a_world(replace(CLOSE, spares=1))
    assert bought(fleet.plan()) == [("close1", "a", group(fleet, "a"))]


# --- a group without room ----------------------------------------------------------------------------------


def test_the_whole_gang_goes_to_the_next_zone_if_its_group_is_full() -> None:
    """Two of three nodes were created when the third is refused: all three are bought in the next zone."""
    fleet = asked(world(), whole_nodes(3))
    launches = [action.launch for action in fleet.decide().actions if isinstance(action, BootNode)]
    fleet.see(LaunchesRecorded(tuple(launches)))
    creates = [action for action in fleet.decide().actions if isinstance(action, CreateNode)]
    assert len(creates) == 3
    fleet.see(no_capacity(fleet, creates[-1]))
    fleet.see_cloud(*(a_cloud_node(it.launch, group=it.launch.group) for it in creates[:-1]))
    made = fleet.plan()
    assert {(zone, group_) for _, zone, group_ in bought(made)} == {("b", group(fleet, "b"))}
    assert len(bought(made)) == 3
    (why,) = why_bought(made)
    assert why.endswith("passed over: a (capacity: no room near the others)")


def test_a_gang_waits_if_no_group_has_room_for_all_of_it() -> None:
    fleet = asked(a_world(replace(CLOSE, slots=CLOSE.slots[:3]), nodes_max=16), whole_nodes(4))
    assert bought(fleet.plan()) == []


# --- after a restart -----------------------------------------------------------------------------------------


def test_a_node_that_is_taken_back_keeps_its_group() -> None:
    fleet = world()
    launch = replace(a_launch("close1", fleet.policy), group=group(fleet, "a"))
    identity = Identity(fleet.policy.cluster, fleet.policy.cluster_uuid, launch.id, launch.slot, launch.type_name)
    found = a_cloud_node(launch, group=launch.group, identity=identity)
    fleet.see(CloudListed(fleet.snapshot.now_s, (found,)))
    fleet.wait(fleet.policy.timing.orphan_grace_s + 1).all_is_fresh()
    (record,) = (action for action in fleet.plan().actions if isinstance(action, RecordLaunches))
    assert [it.group for it in record.launches] == [launch.group]


# --- names ---------------------------------------------------------------------------------------------------


def test_a_group_s_name_suits_every_provider_and_tells_types_and_zones_apart() -> None:
    """Letters, digits and "-" in 63 characters at most: Google's rule, the narrowest."""
    uuid = "11111111-1111-4111-8111-111111111111"
    names = [group_name(uuid, CLOSE.name, zone) for zone in ("", "eu-central-1a", "a" * 200, "ünïcode")]
    names += [group_name(uuid, OTHER.name, "eu-central-1a"), group_name(uuid, type(CLOSE.name)("Close"), "")]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.startswith(group_prefix(uuid))
        assert len(name) <= 63
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert not name.endswith("-")
    assert group_prefix(uuid) != group_prefix("22222222-1111-4111-8111-111111111111")
