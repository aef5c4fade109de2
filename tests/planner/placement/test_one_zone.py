"""Jobs that want all their nodes in one zone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.facts import CloudCallFailed, LaunchesRecorded
from nodemanager.core.jobs import QueuePolicy, Shape
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.orders import BootNode, CreateNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.planner.plan import Plan
from nodemanager.planner.snapshot import Block, Scope
from tests.builders import NOW_S, World, a_launch, a_type, a_world, boots, nodes, tasks, whole_nodes

CLOUD = replace(a_type("cloud", slots=8), zones=("a", "b"))
LARGE = replace(a_type("large", slots=4, cores=16, price="1.00"), zones=("b", "c"))


def gang(count: int, **changes: Any) -> Shape:
    return replace(whole_nodes(count), one_zone=True, **changes)


def world(*types: NodeType, **settings: Any) -> World:
    return a_world(*(types or (CLOUD,)), nodes_max=12, **settings)


def zones(made: Plan) -> list[tuple[str, str]]:
    """The slots for which nodes are bought, each with its zone."""
    return [(boot.launch.slot, boot.launch.zone) for boot in made.actions if isinstance(boot, BootNode)]


def blocked(world: World, zone: str, type_name: str = "cloud") -> World:
    scope = Scope(TypeName(type_name), Market.ON_DEMAND, zone)
    block = Block(NOW_S + 60, FailureKind.CAPACITY, "none here")
    return world.but(blocks={**world.snapshot.learned.blocks, scope: block})


def in_zone(world: World, slot: str, state: NodeState, zone: str) -> World:
    return world.node(slot, state, launch=replace(a_launch(slot, world.policy), zone=zone))


# --- where it is made -------------------------------------------------------------------------------------


def test_a_gang_is_bought_in_one_zone_though_nodes_stand_in_another() -> None:
    """A job without zone constraint would also use the node that is up in `b`."""
    up = in_zone(blocked(world(), "b"), "cloud1", NodeState.IDLE, "b")
    assert zones(up.job(gang(2)).plan()) == [("cloud2", "a"), ("cloud3", "a")]
    indifferent = in_zone(blocked(world(), "b"), "cloud1", NodeState.IDLE, "b").job(whole_nodes(2))
    assert zones(indifferent.plan()) == [("cloud2", "a")]


def test_the_zone_where_most_of_it_stands_is_chosen() -> None:
    up = in_zone(in_zone(world(), "cloud1", NodeState.IDLE, "b"), "cloud2", NodeState.BOOTING, "b")
    made = up.job(gang(3)).plan()
    assert zones(made) == [("cloud3", "b")]
    assert up.why_job(1) == because(Code.NODE_ORDERED, nodes=("cloud3",), zone="b")
    assert made.nodes[up.id("cloud1")].code == "wanted"


def test_types_that_share_no_zone_are_not_mixed() -> None:
    """The eight `cloud` nodes are too few for ten pieces, and only zone `b` of theirs has `large` too."""
    made = world(CLOUD, LARGE).job(gang(10)).plan()
    assert {zone for _, zone in zones(made)} == {"b"}
    assert len(zones(made)) == 10


def test_a_zone_that_lacks_a_type_is_passed_over_whole() -> None:
    assert {zone for _, zone in zones(blocked(world(), "a").job(gang(3)).plan())} == {"b"}


def test_all_or_nothing_and_what_is_left_over_serves_the_next() -> None:
    """Zone `a` ran out after two nodes: all are bought again in `b`, and the two serve a job without constraint."""
    fleet = in_zone(in_zone(world(), "cloud1", NodeState.BOOTING, "a"), "cloud2", NodeState.BOOTING, "a")
    fleet = blocked(fleet, "a").job(gang(3), whole_nodes(2))
    made = fleet.plan()
    assert zones(made) == [("cloud3", "b"), ("cloud4", "b"), ("cloud5", "b")]
    assert fleet.why_job(2) == because(Code.NODE_COMING, nodes=("cloud1", "cloud2"))


def test_it_does_not_go_back_once_the_first_zone_has_capacity_again() -> None:
    fleet = in_zone(world(), "cloud1", NodeState.BOOTING, "a")
    for slot in ("cloud2", "cloud3"):
        in_zone(fleet, slot, NodeState.BOOTING, "b")
    assert zones(fleet.job(gang(2)).plan()) == []
    assert fleet.why_job(1).figures["nodes"] == ("cloud2", "cloud3")


def test_small_jobs_go_along_on_what_is_bought_for_a_gang() -> None:
    made = world().job(replace(nodes(2, cores=2), one_zone=True), tasks(2), tasks(2)).plan()
    assert zones(made) == [("cloud1", "a"), ("cloud2", "a")]


def test_two_kinds_of_gangs_may_stand_in_two_zones_and_never_share_a_node() -> None:
    fleet = world(CLOUD, LARGE).job(
        replace(nodes(2, cores=2), one_zone=True), replace(nodes(4, cores=8), one_zone=True)
    )
    made = fleet.plan()
    by_type = {slot.rstrip("0123456789"): zone for slot, zone in zones(made)}
    assert by_type == {"cloud": "a", "large": "b"}


def test_a_type_without_zones_counts_as_one() -> None:
    assert zones(a_world().job(gang(2)).plan()) == [("cloud1", ""), ("cloud2", "")]


# --- what stands in the way -------------------------------------------------------------------------------


def test_where_no_zone_has_all_of_it_nothing_is_bought_and_it_is_said() -> None:
    fleet = blocked(world(CLOUD, LARGE), "b").job(gang(9), tasks(1))
    assert boots(fleet.plan()) == []
    assert fleet.why_job(1) == because(Code.ONE_ZONE_SHORT, zone="a", have=8, short=1)
    assert fleet.why_job(2).code == "behind_a_stuck_job"


def test_under_a_scheduler_that_fills_gaps_those_behind_get_theirs() -> None:
    fleet = blocked(world(CLOUD, LARGE, queue_policy=QueuePolicy.BACKFILL), "b").job(gang(9), tasks(1))
    assert zones(fleet.plan()) == [("cloud1", "a")]


def test_one_that_starts_across_zones_is_told_of() -> None:
    """The scheduler knows no zones, and two suitable nodes are up."""
    fleet = in_zone(in_zone(world(), "cloud1", NodeState.IDLE, "a"), "cloud2", NodeState.IDLE, "b").job(gang(2))
    made = fleet.plan()
    assert zones(made) == []
    assert fleet.why_job(1).code == "fits_on_a_node_that_is_up"
    assert made.warnings == (because(Code.JOB_ACROSS_ZONES, job="1", zones=("a", "b")),)


def test_a_gang_whose_last_node_is_not_to_be_had_moves_whole() -> None:
    """From the orders to the refusal and the next plan, as in the manager."""
    fleet = world().job(gang(3))
    first = fleet.decide()
    assert {zone for _, zone in zones(first)} == {"a"}
    for boot in [action for action in first.actions if isinstance(action, BootNode)]:
        fleet.see(LaunchesRecorded((boot.launch,)))
    creates = [action for action in fleet.wait(1).all_is_fresh().decide().actions if isinstance(action, CreateNode)]
    assert len(creates) == 3
    fleet.see(CloudCallFailed("create", creates[-1].launch.id, FailureKind.CAPACITY, "none left"))
    fleet.wait(2)
    assert zones(fleet.decide()) == [("cloud4", "b"), ("cloud5", "b"), ("cloud6", "b")]


# --- whatever the fleet -----------------------------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> World:
    made = world(CLOUD, LARGE, queue_policy=draw(st.sampled_from(QueuePolicy)))
    for slot in ("cloud1", "cloud2", "cloud3", "large1"):
        state = draw(st.sampled_from([None, NodeState.IDLE, NodeState.BUSY, NodeState.BOOTING]))
        if state is not None:
            in_zone(made, slot, state, draw(st.sampled_from(["a", "b"])))
    for zone in draw(st.sets(st.sampled_from(["a", "b", "c"]), max_size=2)):
        blocked(blocked(made, zone, "large"), zone)
    shapes = st.builds(
        replace,
        st.one_of(st.integers(1, 5).map(whole_nodes), st.integers(1, 5).map(lambda count: nodes(count, cores=2))),
        one_zone=st.booleans(),
    )
    return made.job(*draw(st.lists(shapes, min_size=1, max_size=5)))


@settings(deadline=None, max_examples=300)
@given(fleets())
def test_what_a_gang_waits_for_stands_in_one_zone(made: World) -> None:
    """All nodes of such a job are in one zone, unless it starts at once on nodes that are up."""
    plan = made.plan()
    zone_of = {node.launch.slot: node.launch.zone for node in made.snapshot.nodes.values()}
    zone_of |= {boot.launch.slot: boot.launch.zone for boot in plan.actions if isinstance(boot, BootNode)}
    for boot in [action for action in plan.actions if isinstance(action, BootNode)]:
        assert Scope(boot.launch.type_name, Market.ON_DEMAND, boot.launch.zone) not in made.snapshot.learned.blocks
    for id_, job in made.snapshot.jobs.items():
        reason = plan.jobs[id_]
        if job.shape.one_zone and reason.code in ("node_ordered", "node_coming"):
            named = reason.figures["nodes"]
            assert isinstance(named, tuple)
            assert {zone_of[slot] for slot in named} == {reason.figures["zone"]}  # type: ignore[index]
            serves = [
                zone_of[node.launch.slot]
                for node in made.snapshot.nodes.values()
                if str(id_) in str(plan.nodes[node.id].figures.get("jobs", "")).split("'")
            ]
            assert set(serves) <= {reason.figures["zone"]}


def test_the_ranks_of_others_count_as_left_to_the_provider() -> None:
    fleet = world().rank("cloud1", online=True).job(gang(2))
    assert zones(fleet.plan()) == [("cloud2", "a"), ("cloud3", "a")]
