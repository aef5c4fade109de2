"""Several clouds in one service: what happens to one stops nothing of the others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.facts import CloudCallFailed, CloudListed
from nodemanager.core.jobs import JobState, RankAllocation
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Identity, LaunchId, NodeState, ProviderId
from nodemanager.core.orders import BootNode, DestroyNode, ListCloud
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.slots import CloudName, NodeType, SlotName, TypeName
from nodemanager.planner.policy import Calls, CloudRules
from nodemanager.planner.snapshot import Account, Source
from tests.builders import CLUSTER, CLUSTER_UUID, NOW_S, World, a_type, a_world, boots, orders, whole_nodes

EAST, WEST = CloudName("east"), CloudName("west")


def a_type_in(cloud: CloudName, name: str, price: str, slots: int = 4) -> NodeType:
    return replace(a_type(name, price=price, slots=slots), cloud=cloud)


def two_clouds(**settings: Any) -> World:
    """East is cheap, west is dear; both have answered a second ago."""
    types = a_type_in(EAST, "east", "0.10"), a_type_in(WEST, "west", "0.40")
    rules = settings.pop("rules_of", {EAST: CloudRules(), WEST: CloudRules()})
    world = a_world(*types, clouds=rules, **settings)
    fresh = Account(source=Source(seen_s=NOW_S - 1), swept_s=NOW_S - 1)
    return world.but(accounts={EAST: fresh, WEST: fresh})


def in_cloud(world: World, slot: str, cloud: CloudName) -> World:
    """Record the cloud on the lease of a slot's node, as a purchase does."""
    node = world[slot]
    nodes = {**world.snapshot.nodes, node.id: replace(node, launch=replace(node.launch, cloud=cloud))}
    return world.but(nodes=nodes)


def test_the_cheapest_of_all_clouds_is_bought_and_the_lease_says_where() -> None:
    made = two_clouds().job(whole_nodes(1)).plan()
    assert boots(made) == ["east1"]
    (boot,) = made.actions
    assert isinstance(boot, BootNode)
    assert boot.launch.cloud == EAST


def test_a_cloud_that_does_not_answer_stops_nothing_of_the_other() -> None:
    world = two_clouds().job(whole_nodes(1)).but(accounts={WEST: two_clouds().snapshot.account_of(WEST)})
    made = world.plan()
    assert made.stands_still is None
    assert boots(made) == ["west1"]
    assert made.types[TypeName("east")].code == "cloud_closed"


def test_nothing_is_decided_once_no_cloud_answers() -> None:
    made = two_clouds().job(whole_nodes(1)).but(accounts={}).plan()
    assert made.stands_still is not None
    assert made.stands_still.figures["source"] == "cloud east"


def test_nodes_of_a_cloud_with_old_data_are_left_alone() -> None:
    world = two_clouds().idle_node("east1", hour_ends_in_s=30.0).idle_node("west1", hour_ends_in_s=30.0)
    world = in_cloud(in_cloud(world, "east1", EAST), "west1", WEST)
    assert sorted(orders(world.plan())) == [f"drain {world.id('east1')}", f"drain {world.id('west1')}"]
    stale = replace(world.snapshot.account_of(EAST), source=Source(seen_s=NOW_S - 999))
    world.but(accounts={**world.snapshot.accounts, EAST: stale})
    assert orders(world.plan()) == [f"drain {world.id('west1')}"]
    assert world.why("east1") == "cloud_closed"


def test_jobs_are_served_elsewhere_while_nobody_knows_whether_their_nodes_come() -> None:
    world = in_cloud(two_clouds().booting_node("east1"), "east1", EAST).job(whole_nodes(1))
    assert boots(world.plan()) == []
    stale = replace(world.snapshot.account_of(EAST), source=Source(seen_s=NOW_S - 999))
    assert boots(world.but(accounts={**world.snapshot.accounts, EAST: stale}).plan()) == ["west1"]


def test_a_list_says_nothing_about_the_nodes_of_another_cloud() -> None:
    world = in_cloud(two_clouds().idle_node("east1"), "east1", EAST)
    for _ in range(world.policy.timing.absences + 2):
        world.wait(20.0).see(CloudListed(world.snapshot.now_s, (), WEST)).see_ranks()
    assert world["east1"].listing.absences == 0
    world.see(CloudListed(world.snapshot.now_s, (), EAST))
    assert world["east1"].listing.absences == 1


def test_a_list_that_lacks_many_nodes_puts_only_its_own_cloud_into_safe_mode() -> None:
    world = two_clouds().job(whole_nodes(1))
    for number in range(1, 5):
        world = in_cloud(world.busy_node(f"east{number}"), f"east{number}", EAST)
    world.wait(5.0).see_ranks().see(CloudListed(world.snapshot.now_s, (), EAST))
    world.see(CloudListed(world.snapshot.now_s, (), WEST))
    assert world.snapshot.account_of(EAST).doubted_lists == 1
    assert world.plan().stands_still is None
    assert boots(world.plan()) == ["west1"]


def test_refusals_of_one_account_leave_the_other_on_sale() -> None:
    for kind in (FailureKind.CREDENTIALS, FailureKind.THROTTLED, FailureKind.QUOTA):
        world = two_clouds().job(whole_nodes(1))
        boot = world.decide().actions[0]
        assert isinstance(boot, BootNode)
        world.see(CloudCallFailed("create", boot.launch.id, kind, "no", cloud=EAST))
        assert all(
            scope.cloud == EAST for scope in (*world.snapshot.learned.blocks, *world.snapshot.learned.quotas)
        )
        assert boots(world.plan()) == ["west1"], kind


def test_each_cloud_has_a_bucket_of_creates_of_its_own() -> None:
    calls = {EAST: CloudRules(Calls(creates_burst=1)), WEST: CloudRules(Calls(creates_burst=2))}
    world = two_clouds(rules_of=calls)
    for slot, cloud in (("east1", EAST), ("east2", EAST), ("west1", WEST), ("west2", WEST)):
        world = in_cloud(world.node(slot, NodeState.REQUESTED), slot, cloud).job(whole_nodes(1))
    assert sorted(it.split("-")[0] for it in orders(world.plan())) == [
        "create east1",
        "create west1",
        "create west2",
    ]


def a_stray(provider_id: str, slot: str, name: str) -> CloudNode:
    identity = Identity(CLUSTER, CLUSTER_UUID, LaunchId(f"{slot}-old"), SlotName(slot), TypeName(name))
    return CloudNode(ProviderId(provider_id), CloudState.RUNNING, identity)


def test_two_clouds_may_give_their_nodes_the_same_ids() -> None:
    """A node of a type that the site buys elsewhere is destroyed where it is, and only there."""
    world = two_clouds()
    world.see(CloudListed(NOW_S, (a_stray("i-1", "west1", "west"),), EAST))
    world.see(CloudListed(NOW_S, (a_stray("i-1", "west2", "west"),), WEST))
    world.wait(world.policy.timing.orphan_grace_s + 1).see_ranks()
    for cloud, slot in ((EAST, "west1"), (WEST, "west2")):
        world.see(CloudListed(world.snapshot.now_s, (a_stray("i-1", slot, "west"),), cloud))
    world.but(queue=Source(seen_s=world.snapshot.now_s))
    made = world.decide()
    assert next(it for it in made.actions if isinstance(it, DestroyNode)).cloud == EAST
    assert orders(made) == ["destroy i-1", "record west2-old"]
    assert world.snapshot.account_of(WEST).strays.keys() == {"i-1"}


def test_one_account_under_two_names_shows_each_node_twice_and_none_is_destroyed() -> None:
    world = in_cloud(two_clouds().idle_node("east1"), "east1", EAST)
    cloud = world["east1"].cloud
    assert cloud is not None
    world.see(CloudListed(NOW_S, (cloud,), EAST), CloudListed(NOW_S, (cloud,), WEST))
    assert not world.snapshot.account_of(WEST).strays


def test_nodes_of_a_cloud_that_the_site_has_lost_are_left_alone() -> None:
    world = in_cloud(two_clouds().idle_node("east1", hour_ends_in_s=30.0), "east1", CloudName("south"))
    assert orders(world.plan()) == []
    assert world.why("east1") == "cloud_closed"


def test_an_old_lease_belongs_to_the_only_cloud_whatever_its_name_is_now() -> None:
    world = a_world(a_type_in(EAST, "east", "0.10"), clouds={EAST: CloudRules()})
    world.but(accounts={EAST: Account(source=Source(seen_s=NOW_S - 1), swept_s=NOW_S)})
    world.idle_node("east1", hour_ends_in_s=30.0)
    assert orders(world.plan()) == [f"drain {world.id('east1')}"]
    made = world.wait(61.0).plan()
    assert ListCloud(EAST) in made.asks


def test_a_cloud_at_its_own_limit_leaves_the_rest_to_the_next() -> None:
    for rules in (CloudRules(nodes_max=1), CloudRules(price_per_hour_max=Decimal("0.15"))):
        world = two_clouds(rules_of={EAST: rules, WEST: CloudRules()}).job(*[whole_nodes(1)] * 3)
        assert boots(world.plan()) == ["east1", "west1", "west2"]
        full = in_cloud(two_clouds(rules_of={EAST: rules, WEST: CloudRules()}).busy_node("east1"), "east1", EAST)
        made = full.job(whole_nodes(1)).plan()
        assert boots(made) == ["west1"]
        assert made.types[TypeName("east")].code == "cloud_full"


def test_a_lease_above_the_limit_of_its_cloud_gets_no_create() -> None:
    world = two_clouds(rules_of={EAST: CloudRules(nodes_max=1), WEST: CloudRules()}).job(*[whole_nodes(1)] * 2)
    for slot in ("east1", "east2"):
        world = in_cloud(world.node(slot, NodeState.REQUESTED), slot, EAST)
    made = orders(world.plan())
    assert sum(order.startswith("create east") for order in made) == 1
    assert sum(order.startswith("end-lease east") for order in made) == 1


def with_priority(east: int, west: int, east_price: str = "0.10", west_price: str = "0.40") -> World:
    types = (
        replace(a_type_in(EAST, "east", east_price, slots=2), priority=east),
        replace(a_type_in(WEST, "west", west_price, slots=2), priority=west),
    )
    world = a_world(*types, clouds={EAST: CloudRules(), WEST: CloudRules()})
    fresh = Account(source=Source(seen_s=NOW_S - 1), swept_s=NOW_S - 1)
    return world.but(accounts={EAST: fresh, WEST: fresh})


def test_a_higher_priority_is_bought_first_whatever_the_price() -> None:
    assert boots(with_priority(0, 0).job(whole_nodes(1)).plan()) == ["east1"]
    assert boots(with_priority(0, 1).job(whole_nodes(1)).plan()) == ["west1"]
    assert boots(with_priority(-1, 0, east_price="0").job(whole_nodes(1)).plan()) == ["west1"]
    assert sorted(boots(with_priority(0, 1).job(*[whole_nodes(1)] * 3).plan())) == ["east1", "west1", "west2"]


@pytest.mark.parametrize("rules", [CloudRules(nodes_max=1), CloudRules(price_per_hour_max=Decimal("0.15"))])
def test_spare_nodes_stay_within_the_limits_of_their_cloud(rules: CloudRules) -> None:
    world = two_clouds(rules_of={EAST: rules, WEST: CloudRules()}, nodes_min=3)
    assert boots(world.plan()) == ["east1", "west1", "west2"]
    with_a_job = world.job(whole_nodes(1)).plan()  # it gets east1, so no spare node may
    assert boots(with_a_job) == ["east1", "west1", "west2"]


def test_a_node_that_waits_for_its_call_tells_how_many_its_own_cloud_takes_at_once() -> None:
    calls = {EAST: CloudRules(Calls(calls_in_flight_max=1)), WEST: CloudRules(Calls(calls_in_flight_max=5))}
    world = two_clouds(rules_of=calls).job(*[whole_nodes(1)] * 2)
    for slot in ("east1", "east2"):
        world = in_cloud(world.node(slot, NodeState.REQUESTED), slot, EAST)
    (reason,) = (it for it in world.plan().nodes.values() if it.code == "calls_in_flight_max")
    assert reason.figures["calls_in_flight_max"] == 1


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (CloudRules(nodes_max=3), "1 of its nodes_max of 3 exist, and 2 more reach it"),
        (
            CloudRules(price_per_hour_max=Decimal("0.35")),
            "a node of type east costs 0.10, above the rest of its price_per_hour_max after 2 more",
        ),
    ],
)
def test_nodes_that_a_wide_job_could_still_get_are_not_told_to_exist(rules: CloudRules, why: str) -> None:
    """One node is busy. The job needs three, and its cloud allows two more."""
    world = two_clouds(rules_of={EAST: rules, WEST: CloudRules(nodes_max=0)})
    world = in_cloud(world.busy_node("east1"), "east1", EAST).job(whole_nodes(3))
    reason = world.why_job(max(world.snapshot.jobs))
    assert (reason.code, reason.figures["why"]) == ("cloud_full", why)


@pytest.mark.parametrize("rules", [CloudRules(nodes_max=1), CloudRules(price_per_hour_max=Decimal("0.15"))])
def test_a_job_at_the_limit_of_a_cloud_is_told_which_jobs_hold_the_nodes_of_that_cloud(rules: CloudRules) -> None:
    """No more than ten are named. The one in the other cloud holds nothing that the job could get."""
    world = two_clouds(rules_of={EAST: rules, WEST: CloudRules(nodes_max=1)})
    world = in_cloud(world.busy_node("east1"), "east1", EAST)
    world = in_cloud(world.busy_node("west1"), "west1", WEST)
    west, east = (world.snapshot.slots.rank_of_slot[SlotName(name)] for name in ("west1", "east1"))
    for rank in (west, *[east] * 12):
        world = world.job(whole_nodes(1), state=JobState.RUN, allocations=(RankAllocation(rank, 1, 0),))
    reason = world.job(whole_nodes(1)).why_job(14)
    assert (reason.code, reason.figures["jobs"]) == ("cloud_full", tuple(str(it) for it in range(2, 12)))
    assert "; waits for jobs 2, 3, 4, " in to_sentence(reason.code, reason.figures)
