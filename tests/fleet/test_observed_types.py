"""Node types that are only observed: what would be done with them is said, and the others serve the jobs."""

from __future__ import annotations

from dataclasses import replace

from nodemanager.fleet.plan import plan
from nodemanager.model import JobId, NodeState, TypeName
from nodemanager.orders import BootNode, DrainNode, EndLease, StopBroker
from tests.builders import NOW_S, a_job, a_node, a_policy, a_snapshot, a_type, whole_nodes

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
