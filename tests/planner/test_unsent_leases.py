"""A lease whose create was not sent ends at no cost if nothing wants it any more."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.facts import (
    CloudCallFailed,
    FluxUnreachable,
    HoldPlaced,
    LaunchesRecorded,
    LeaseEnded,
    NodeReleased,
    QueueSeen,
    RetirementRequested,
)
from nodemanager.core.jobs import HasProperty, JobId, Not
from nodemanager.core.nodes import FailureKind, Launch, NodeState
from nodemanager.core.orders import BootNode, CreateNode, EndLease
from nodemanager.core.records import Mark
from nodemanager.core.slots import TypeName
from nodemanager.planner.snapshot import FailureStreak, Quota, Scope
from tests.builders import (
    CLOUD,
    GPU,
    NOW_S,
    WALL_AT,
    World,
    a_cloud_node,
    a_job,
    a_policy,
    a_world,
    boots,
    changed,
    orders,
    whole_nodes,
    with_settings,
)

ADA = Mark("ada", WALL_AT)
ON_CLOUD = Not(HasProperty("gpu"))
SLOW = {"creates_burst": 0, "creates_per_s": 0.1}  # no create goes out for ten seconds


def leased(jobs: int, **settings: Any) -> World:
    """Jobs of one node each; their leases are on record, and no create was sent."""
    world = a_world(**(SLOW | settings)).job(*[whole_nodes(1, where=ON_CLOUD)] * jobs)
    return recorded(world)


def recorded(world: World) -> World:
    launches = tuple(action.launch for action in world.decide().actions if isinstance(action, BootNode))
    assert launches
    return world.see(LaunchesRecorded(launches)).wait(1)


def at_pace(world: World) -> World:
    """Allow creates from now on."""
    world.policy = with_settings(world.policy, creates_burst=9)
    return world.but(create_credit=9.0)


def all_cancelled(world: World) -> World:
    return world.see(QueueSeen(world.snapshot.now_s, complete=True))


def ended(world: World) -> list[str]:
    return [order.removesuffix("-1a3185c5000") for order in orders(world.plan()) if order.startswith("end-lease")]


def answered(world: World) -> list[str]:
    """Decide, and confirm the end of every lease that is to end."""
    made = world.decide()
    for action in made.actions:
        if isinstance(action, EndLease):
            world.see(LeaseEnded(action.launch.id))
    return orders(made)


# --- nobody wants it any more -----------------------------------------------------------------------------


def test_what_jobs_wait_for_is_made() -> None:
    world = at_pace(leased(3))
    assert [order.split()[0] for order in orders(world.plan())] == ["create"] * 3


def test_no_create_is_sent_once_all_jobs_were_cancelled() -> None:
    world = all_cancelled(leased(3)).wait(1)
    assert ended(world) == ["end-lease cloud1", "end-lease cloud2", "end-lease cloud3"]
    assert world.why("cloud1") == "lease_not_wanted"
    answered(world)
    assert not world.snapshot.nodes
    assert orders(world.wait(1).plan()) == []


def test_those_for_jobs_that_still_wait_are_kept() -> None:
    world = leased(3)
    world.see(QueueSeen(world.snapshot.now_s, ended=(JobId(2),))).wait(1)
    assert ended(world) == ["end-lease cloud3"]


def test_a_job_that_began_on_a_node_that_is_up_needs_no_other() -> None:
    world = leased(1).idle_node("cloud4").wait(1)
    assert ended(world) == ["end-lease cloud1"]
    assert world.why_job(1).code == "fits_on_a_node_that_is_up"


def test_what_was_given_back_is_not_bought_again() -> None:
    world = all_cancelled(leased(4)).wait(1)
    kept = a_job(1, whole_nodes(1, where=ON_CLOUD))
    world.see_queue(kept).wait(2)
    assert [order.split()[0] for order in answered(world)] == ["end-lease"] * 3
    for _ in range(5):
        assert not any(order.startswith(("boot", "end-lease")) for order in answered(world.wait(1).all_is_fresh()))
    assert [node.launch.slot for node in world.snapshot.nodes.values()] == ["cloud1"]


def test_until_the_queue_is_quiet_it_is_neither_made_nor_given_back() -> None:
    world = all_cancelled(leased(1, creates_burst=9, creates_per_s=9.0, quiet_s=0.5))
    assert (orders(world.plan()), world.why("cloud1")) == ([], "settling")
    assert ended(world.wait(0.5)) == ["end-lease cloud1"]


def test_while_it_is_not_known_which_queues_are_stopped_none_is_given_back() -> None:
    world = leased(1)
    world.see(FluxUnreachable(world.snapshot.now_s, "gone")).wait(1)
    world.see_claim(world["cloud1"].launch).see_ranks().see(QueueSeen(world.snapshot.now_s, complete=True))
    assert (orders(world.wait(5).plan()), world.why("cloud1")) == ([], "settling")
    world.see(QueueSeen(world.snapshot.now_s, (a_job(1, whole_nodes(1)),), queues_stopped=frozenset())).wait(5)
    assert [order.split()[0] for order in orders(at_pace(world).plan())] == ["create"]


def test_one_that_was_found_after_a_restart_is_looked_for_as_it_may_have_been_made() -> None:
    launch = leased(1)["cloud1"].launch
    world = a_world().but(claimed=False).see_claim(launch).see_ranks().wait(1)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "looked_for")


def test_one_whose_create_was_sent_is_not_given_back() -> None:
    world = leased(1, creates_burst=9)
    assert any(isinstance(action, CreateNode) for action in world.decide().actions)
    all_cancelled(world).wait(1)
    assert ended(world) == []


def test_a_provider_that_refuses_everything_keeps_no_lease_that_nobody_wants() -> None:
    world = leased(3, creates_burst=1)
    (create,) = (action for action in world.decide().actions if isinstance(action, CreateNode))
    world.see(CloudCallFailed("create", create.launch.id, FailureKind.CREDENTIALS, "expired"))
    assert [it for it in answered(world) if it.startswith("end")] == [f"end-lease {create.launch.id}"]
    assert world.why("cloud2") == "blocked_create_credentials"  # still wanted: it waits
    answered(all_cancelled(world).wait(1))
    assert not world.snapshot.nodes


def test_one_that_is_bought_to_see_whether_boots_work_again_is_made_though_more_are_wanted() -> None:
    failed = FailureStreak(failures=3, retry_s=NOW_S - 1, pause_s=900.0, why="never_joined")
    world = a_world(CLOUD, **SLOW).but(streaks={(TypeName("cloud"), ""): failed}).job(whole_nodes(2))
    assert boots(world.plan()) == ["cloud1"]
    world = recorded(world)
    assert world.why_job(1).code == "breaker_trying"
    assert [order.split()[0] for order in orders(at_pace(world).plan())] == ["create"]
    assert ended(all_cancelled(world).wait(1)) == ["end-lease cloud1"]


def test_one_that_is_bought_to_see_whether_there_is_more_is_made_though_more_are_wanted() -> None:
    quota = Quota(cap=0, probe_s=NOW_S - 1, pause_s=900.0, detail="limit exceeded")
    world = a_world(CLOUD, **SLOW).but(quotas={Scope(TypeName("cloud")): quota}).job(whole_nodes(2))
    assert boots(world.plan()) == ["cloud1"]
    assert [order.split()[0] for order in orders(at_pace(recorded(world)).plan())] == ["create"]


def test_one_that_an_operator_holds_is_not_given_back() -> None:
    world = leased(2)
    world.see(HoldPlaced(world.id("cloud1"), ADA))
    assert ended(all_cancelled(world).wait(1)) == ["end-lease cloud2"]


def test_of_a_type_that_the_site_does_not_name_any_more_none_is_kept() -> None:
    world = leased(1)
    world.policy = a_policy(GPU, nodes_max=1)
    assert ended(world.wait(1)) == ["end-lease cloud1"]


# --- what nodes_min and spares want -----------------------------------------------------------------------


def test_for_nodes_min_as_many_are_kept() -> None:
    world = recorded(a_world(nodes_min=3, **SLOW))
    assert ended(world) == []
    world.policy = with_settings(world.policy, nodes_min=1)
    assert ended(world) == ["end-lease cloud1", "end-lease cloud2"]


def test_of_those_for_nodes_min_the_dearest_are_given_back() -> None:
    world = recorded(a_world(**SLOW).job(whole_nodes(1, where=HasProperty("gpu")), whole_nodes(1, where=ON_CLOUD)))
    world.policy = with_settings(world.policy, nodes_min=1)
    assert ended(all_cancelled(world).wait(1)) == ["end-lease gpu1"]


def test_the_spares_of_a_type_are_kept() -> None:
    world = recorded(a_world(replace(CLOUD, spares=3), **SLOW))
    assert ended(world) == []
    world.policy = a_policy(replace(CLOUD, spares=1), **SLOW)
    assert ended(world) == ["end-lease cloud1", "end-lease cloud2"]


def test_a_lease_goes_before_a_spare_that_stands() -> None:
    world = leased(1, nodes_max=9)
    world.policy = a_policy(replace(CLOUD, spares=1), GPU, **SLOW)
    world.idle_node("cloud4", hour_ends_in_s=10)
    assert ended(all_cancelled(world).wait(1)) == ["end-lease cloud1"]
    assert world.why("cloud4") == "spare"


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowered", [{"nodes_max": 2}, {"price_per_hour_max": Decimal("0.80")}])
def test_above_a_limit_that_was_lowered_the_last_in_the_queue_lose_theirs(lowered: dict[str, Any]) -> None:
    world = leased(4)
    world.policy = with_settings(world.policy, **lowered)
    assert ended(world) == ["end-lease cloud3", "end-lease cloud4"]
    assert world.why("cloud3") == "lease_above_limits"
    answered(world)
    for _ in range(3):
        assert not any(order.startswith(("boot", "end-lease")) for order in answered(world.wait(1).all_is_fresh()))


def test_those_that_are_being_ended_are_not_counted_again() -> None:
    world = leased(4)
    world.policy = with_settings(world.policy, nodes_max=3)
    world.decide()
    assert ended(world) == []


def test_no_node_that_stands_goes_where_leases_are_enough() -> None:
    world = leased(2, nodes_max=4).idle_node("gpu1").idle_node("gpu2")
    world.policy = with_settings(world.policy, nodes_max=2)
    assert orders(world.decide()) == [f"end-lease {world.id('cloud1')}", f"end-lease {world.id('cloud2')}"]
    assert orders(world.plan()) == []


def test_no_idle_node_makes_room_where_a_lease_that_nobody_wants_does() -> None:
    world = leased(1, nodes_max=2).idle_node("cloud2")
    assert ended(world) == ["end-lease cloud1"]  # it fits on the node that is up
    on_gpu = a_job(9, whole_nodes(1, where=HasProperty("gpu")), priority=20)
    world.see_queue(on_gpu).wait(2)
    assert answered(world) == ["end-lease cloud1-1a3185c5000"]
    assert [it.split("-")[0] for it in orders(world.plan())] == ["boot gpu1"]


def test_a_stray_counts_as_a_node() -> None:
    world = leased(2, nodes_max=2)
    stray = Launch(**{**_fields(world["cloud1"].launch), "id": "cloud4-7", "slot": "cloud4", "rank": 9})
    world.wait(1).see_cloud(a_cloud_node(stray)).see_ranks()
    assert "end-lease cloud2" in ended(world)


def _fields(launch: Launch) -> dict[str, Any]:
    return {name: getattr(launch, name) for name in Launch.__dataclass_fields__}


# --- only observed ----------------------------------------------------------------------------------------


def test_of_a_type_that_is_only_observed_from_now_on_none_is_made() -> None:
    world = leased(1, creates_burst=9)
    world.policy = replace(world.policy, observed=frozenset({TypeName("cloud")}))
    made = world.decide()
    assert [type(action) for action in made.actions] == [EndLease]
    assert [type(action) for action in made.would] == [CreateNode]
    assert world.snapshot.nodes[made.actions[0].launch.id].state is NodeState.REQUESTED  # type: ignore[union-attr]


# --- an operator's word -----------------------------------------------------------------------------------


def test_one_that_is_to_go_before_it_was_made_is_not_made() -> None:
    world = leased(1)
    world.see(RetirementRequested(world.id("cloud1"), ADA)).but(steering_on_record=world.snapshot.operator.steering)
    retired = world.id("cloud1")
    made = world.wait(20).all_is_fresh().wait(1).decide()
    assert orders(made)[0] == f"end-lease {retired}"
    assert boots(made) == ["cloud2"]  # the job waits as before
    assert str(made.nodes[retired]).startswith("retired_by_operator")
    world.see(LeaseEnded(retired))
    assert not world.snapshot.operator.steering.retirements


def test_released_in_time_it_is_made() -> None:
    world = leased(1, creates_burst=9)
    launch = world.id("cloud1")
    world.see(RetirementRequested(launch, ADA), NodeReleased(launch)).wait(1)
    assert orders(world.plan()) == [f"create {launch}"]


def test_one_that_goes_with_its_create_on_its_way_is_looked_for() -> None:
    world = leased(1, creates_burst=9)
    world.decide()
    world.see(RetirementRequested(world.id("cloud1"), ADA)).wait(1)
    assert ended(world) == []


def test_one_that_is_to_go_is_put_on_record_first_where_that_failed() -> None:
    world = leased(1)
    node = changed(world["cloud1"], recorded=False)
    world.but(nodes={node.id: node}).see(RetirementRequested(node.id, ADA))
    assert orders(world.plan())[0].startswith("record")
