"""Observed node types: decisions about them are only reported, and the other types serve the jobs."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import NodeCordoned, QueueProbed
from nodemanager.core.jobs import JobId, JobState, RankAllocation
from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import BootNode, CordonNode, DestroyNode, DrainNode, EndLease, RequeueJob, StopBroker
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import Rank, TypeName
from nodemanager.planner.plan import plan
from tests.builders import (
    NOW_S,
    a_cloud_node,
    a_job,
    a_launch,
    a_node,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    a_world,
    busy,
    drained,
    orders,
    whole_nodes,
)

CHEAP, DEAR = a_type("cheap", slots=4, price="0.10"), a_type("dear", slots=4, price="0.90")
OBSERVED = frozenset({TypeName("cheap")})
LONG_AGO_S = NOW_S - 2 * 3600 + 30  # its second hour is nearly over


def test_jobs_are_served_by_the_types_that_act_and_what_all_of_them_would_do_is_said() -> None:
    policy = a_policy(CHEAP, DEAR, observed=OBSERVED)
    made = plan(a_snapshot(policy, jobs=[a_job(1, whole_nodes(2))]), policy)
    assert [order.launch.slot for order in made.actions if isinstance(order, BootNode)] == ["dear1", "dear2"]
    assert [order.launch.slot for order in made.would if isinstance(order, BootNode)] == ["cheap1", "cheap2"]
    assert made.types[TypeName("cheap")].code == "only_observed"


def test_a_job_that_only_they_could_serve_waits_and_is_told_why() -> None:
    policy = a_policy(CHEAP, observed=OBSERVED)
    made = plan(a_snapshot(policy, jobs=[a_job(1, whole_nodes(2))]), policy)
    assert (made.actions, len(made.would)) == ((), 2)
    assert made.jobs[JobId(1)].code == "only_observed"


def test_spares_and_the_least_number_of_nodes_are_not_bought_of_them() -> None:
    policy = a_policy(replace(CHEAP, spares=2), observed=OBSERVED, nodes_min=1)
    made = plan(a_snapshot(policy), policy)
    assert (made.actions, len(made.would)) == ((), 2)


def test_their_idle_nodes_stay_and_the_others_go() -> None:
    policy = a_policy(CHEAP, DEAR, observed=OBSERVED, idle_timeout_s=1.0)
    old = {"billed_from_s": LONG_AGO_S, "since_s": LONG_AGO_S, "idle_looks": 9}
    nodes = [a_node("cheap1", NodeState.IDLE, policy, **old), a_node("dear1", NodeState.IDLE, policy, **old)]
    made = plan(a_snapshot(policy, nodes=nodes), policy)
    (goes,) = made.actions
    (would_go,) = made.would
    assert isinstance(goes, DrainNode)
    assert isinstance(would_go, DrainNode)
    assert (goes.launch, would_go.launch) == ("dear1-1", "cheap1-1")
    assert made.nodes[nodes[0].id].code == "only_observed"


def test_what_was_begun_with_one_is_ended() -> None:
    policy = a_policy(CHEAP, observed=OBSERVED)
    stopping = a_node("cheap1", NodeState.STOPPING, policy)
    gone = a_node("cheap2", NodeState.GONE, policy)
    made = plan(a_snapshot(policy, nodes=[stopping, gone]), policy)
    assert {type(order) for order in made.actions} == {StopBroker, EndLease}
    assert made.would == ()


def test_where_no_type_is_only_observed_nothing_is_only_said() -> None:
    policy = a_policy(CHEAP, DEAR)
    assert plan(a_snapshot(policy, jobs=[a_job(1, whole_nodes(2))]), policy).would == ()


ALL_CLOUD = frozenset({TypeName("cloud")})
SPENT = {"budgets": {("", "day"): Decimal("0.1")}}  # one hour of a node is more than that


def test_no_node_at_work_is_drained_whatever_is_the_matter() -> None:
    for world in (
        a_world(observed=ALL_CLOUD, **SPENT).busy_node("cloud1"),
        a_world(observed=ALL_CLOUD).busy_node("cloud1", reclaimed="spot"),
        a_world(observed=ALL_CLOUD).busy_node("cloud1", misfit=because(Code.LESS_THAN_DECLARED)),
    ):
        made = world.plan()
        assert orders(made) == []
        assert world.why("cloud1") == "only_observed"
        assert [type(order) for order in made.would] == [CordonNode]


def test_once_its_job_has_ended_it_stays_as_well() -> None:
    world = a_world(observed=ALL_CLOUD, **SPENT).busy_node("cloud1")
    world.decide()
    world.wait(5).see_ranks(a_rank("cloud1", online=True)).wait(1).see_ranks().wait(1)
    assert (orders(world.decide()), world.why("cloud1")) == ([], "only_observed")


def test_one_that_was_to_go_when_the_mode_was_changed_goes_on() -> None:
    world = a_world(**SPENT).busy_node("cloud1")
    assert orders(world.decide()) == ["cordon cloud1-1 flux-node-manager:cloud1-1"]
    text = drain_text(world.id("cloud1"))
    looked = drained(busy(world.rank_now("cloud1")), text)
    world.wait(0.1).see(NodeCordoned(world.id("cloud1"), world.snapshot.now_s, looked))
    world.policy = replace(world.policy, observed=ALL_CLOUD)
    world.wait(5).see_ranks(drained(a_rank("cloud1", online=True), text)).wait(1)
    assert orders(world.decide()) == ["drain cloud1-1"]


def test_a_drain_of_ours_that_holds_no_more_is_undone_all_the_same() -> None:
    world = a_world(observed=ALL_CLOUD)
    looked = drained(busy(a_rank("cloud1")), "flux-node-manager:cloud1-1")
    world.node("cloud1", NodeState.BUSY, rank=looked)
    assert orders(world.plan()) == ["undrain cloud1-1"]


def test_no_job_on_one_is_submitted_again() -> None:
    held = drained(busy(a_rank("cloud1")), "somebody's own")
    world = a_world().node("cloud1", NodeState.BUSY, rank=held, reclaimed="spot")
    runs = a_job(7, state=JobState.RUN, allocations=(RankAllocation(Rank(1), 4, 0),), requeue=True)
    world.but(jobs={runs.id: runs})
    assert orders(world.plan()) == ["requeue 7"]
    world.policy = replace(world.policy, observed=ALL_CLOUD)
    made = world.plan()
    assert orders(made) == []
    assert [type(order) for order in made.would] == [RequeueJob]


def test_an_ownerless_node_of_one_is_not_destroyed() -> None:
    world = a_world(orphan_grace_s=60.0).idle_node("cloud1")
    twin = a_cloud_node(a_launch("cloud1", number=7))
    for _ in range(2):
        world.wait(61).see_cloud(a_cloud_node(world["cloud1"].launch), twin).see_ranks()
        world.see(QueueProbed(world.snapshot.now_s))
    assert "destroy i-cloud1-7" in orders(world.plan())
    world.policy = replace(world.policy, observed=ALL_CLOUD)
    made = world.plan()
    assert orders(made) == []
    assert DestroyNode in [type(order) for order in made.would]
