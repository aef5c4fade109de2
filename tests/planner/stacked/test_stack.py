"""Providers that have only a number of nodes: which node leaves, which comes, and why the others stay."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import CloudChanged
from nodemanager.core.jobs import Job, JobState, OnHosts, RankAllocation
from nodemanager.core.nodes import CallKind, CloudNode, CloudState, FluxRank, NodeState, Tenure
from nodemanager.core.orders import ListCloud
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import DEFAULT_CLOUD, Rank, SlotName
from nodemanager.planner.observe import observe
from nodemanager.planner.plan import Plan, asks_now, plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot, Stray
from nodemanager.planner.stack import lowest_gap
from nodemanager.planner.step_context import UNLIMITED
from tests.builders import (
    NOW_S,
    a_call,
    a_job,
    a_node,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    boots,
    changed,
    orders,
    rank_of,
    whole_nodes,
)

IDLE, BUSY, DRAINING, STOPPING = NodeState.IDLE, NodeState.BUSY, NodeState.DRAINING, NodeState.STOPPING


def a_stacked_policy(slots: int = 6, **changes: Any) -> Policy:
    """Slots pod1 to pod6. Idle nodes are due after a minute."""
    pods = a_type("pod", slots=slots, window_s=1.0, price="0.10")
    given: dict[str, Any] = {"idle_timeout_s": 60.0, "nodes_max": slots, **changes}
    return replace(a_policy(pods, **given), stacked=True)


POLICY = a_stacked_policy()


def a_pod(number: int, state: NodeState = IDLE, policy: Policy = POLICY, **changes: Any) -> Node:
    return a_node(f"pod{number}", state, policy, **changes)


def a_fleet(*pods: NodeState, policy: Policy = POLICY, jobs: tuple[Job, ...] = (), **changes: Any) -> Snapshot:
    nodes = [a_pod(number, state, policy) for number, state in enumerate(pods, start=1)]
    return a_snapshot(policy, nodes=nodes, jobs=jobs, **changes)


def a_running_job(pod: int, number: int = 9) -> Job:
    held = (RankAllocation(rank_of(POLICY, f"pod{pod}"), 4, 0),)
    return a_job(number, whole_nodes(1), state=JobState.RUN, allocations=held)


def a_waiting_job(number: int = 1, **shape: Any) -> Job:
    return a_job(number, whole_nodes(1, **shape))


def made(snapshot: Snapshot, policy: Policy = POLICY) -> Plan:
    return plan(snapshot, policy)


def code(result: Plan, pod: int) -> Code:
    return result.nodes[f"pod{pod}-1"].code  # type: ignore[index]


class TestLeaving:
    def test_idle_nodes_are_drained_from_the_top(self) -> None:
        assert orders(made(a_fleet(IDLE, IDLE, IDLE))) == ["drain pod3-1", "drain pod2-1", "drain pod1-1"]

    def test_idle_nodes_below_a_busy_one_stay_and_it_takes_no_new_job(self) -> None:
        result = made(a_fleet(IDLE, IDLE, BUSY, jobs=(a_running_job(3),)))
        assert orders(result) == [f"cordon pod3-1 {drain_text('pod3-1')}"]  # type: ignore[arg-type]
        kept = result.nodes["pod1-1"]  # type: ignore[index]
        assert (kept.code, kept.figures) == (Code.KEPT_BY_HIGHER_NODE, {"node": "pod3", "jobs": ("9",)})
        assert code(result, 3) is Code.IDLE_NODES_BELOW

    def test_what_pins_the_size_is_a_warning_with_figures(self) -> None:
        result = made(a_fleet(IDLE, IDLE, BUSY, jobs=(a_running_job(3),)))
        (warning,) = result.warnings
        assert warning.code is Code.IDLE_BELOW_BUSY_NODE
        assert warning.figures == {"node_count": 2, "node": "pod3", "jobs": ("9",)}

    def test_only_one_busy_node_is_drained_ahead(self) -> None:
        result = made(a_fleet(IDLE, BUSY, BUSY))
        assert [order for order in orders(result) if order.startswith("cordon")] == [
            f"cordon pod3-1 {drain_text('pod3-1')}"  # type: ignore[arg-type]
        ]

    def test_a_busy_node_above_nodes_that_are_not_due_goes_on(self) -> None:
        fresh = [a_pod(1, idle_since_s=NOW_S - 10), a_pod(2, BUSY)]
        result = made(a_snapshot(POLICY, nodes=fresh))
        assert orders(result) == []
        assert result.again_at_s <= NOW_S + 50

    def test_a_busy_node_that_was_drained_ahead_is_undrained_if_jobs_want_more(self) -> None:
        top = a_pod(3, BUSY)
        assert top.rank is not None
        drained = changed(top, rank=replace(top.rank, drain_reason=drain_text(top.id), schedulable=False))
        jobs = (a_running_job(3), *(a_waiting_job(number) for number in range(10, 15)))
        result = made(a_snapshot(POLICY, nodes=[a_pod(1), a_pod(2), drained], jobs=jobs))
        assert "undrain pod3-1" in orders(result)

    def test_a_busy_node_stays_drained_while_idle_nodes_below_it_are_due(self) -> None:
        top = a_pod(3, BUSY)
        assert top.rank is not None
        drained = changed(top, rank=replace(top.rank, drain_reason=drain_text(top.id), schedulable=False))
        result = made(a_snapshot(POLICY, nodes=[a_pod(1), drained]))
        assert orders(result) == []
        assert code(result, 3) is Code.IDLE_NODES_BELOW

    def test_nodes_min_keeps_the_lowest(self) -> None:
        policy = a_stacked_policy(nodes_min=2)
        assert orders(made(a_fleet(IDLE, IDLE, IDLE, policy=policy), policy)) == ["drain pod3-1"]

    def test_a_node_that_the_provider_never_removes_stays(self) -> None:
        fixed = [changed(a_pod(number), cloud=with_fixed(a_pod(number))) for number in (1, 2)]
        result = made(a_snapshot(POLICY, nodes=[*fixed, a_pod(3)]))
        assert orders(result) == ["drain pod3-1"]
        assert code(result, 2) is Code.FIXED_BY_PROVIDER

    def test_a_wanted_node_keeps_those_below_it(self) -> None:
        result = made(a_fleet(IDLE, IDLE, jobs=(a_waiting_job(where=OnHosts(("pod2",))),)))
        assert orders(result) == []
        assert code(result, 1) is Code.KEPT_BY_HIGHER_NODE


class TestOwed:
    """A service that shares pods among several MiniClusters wants the highest nodes back."""

    def test_owed_nodes_are_drained_whatever_waits_and_whatever_runs_there(self) -> None:
        idle, busy = owed(a_pod(2)), owed(a_pod(3, BUSY))
        jobs = (a_running_job(3), *(a_waiting_job(number) for number in range(10, 15)))
        result = made(a_snapshot(POLICY, nodes=[a_pod(1, BUSY), idle, busy], jobs=jobs))
        leaving = [order for order in orders(result) if not order.startswith("boot")]
        assert leaving == [f"cordon pod3-1 {drain_text('pod3-1')}", "drain pod2-1"]  # type: ignore[arg-type]
        assert code(result, 3) is Code.OWED_TO_OTHERS
        assert result.nodes["pod2-1"].figures == {"detail": "the fair share is 2 pods"}  # type: ignore[index]

    def test_a_drained_node_that_is_owed_leaves_although_jobs_wait(self) -> None:
        nodes = [a_pod(1, BUSY), owed(a_pod(2, DRAINING)), owed(a_pod(3, DRAINING))]
        result = made(a_snapshot(POLICY, nodes=nodes, jobs=(a_waiting_job(),)))
        assert [it for it in orders(result) if "destroy" in it] == ["destroy i-pod3-1", "destroy i-pod2-1"]

    def test_a_busy_node_that_is_owed_keeps_those_below_it(self) -> None:
        nodes = [a_pod(1, BUSY), owed(a_pod(2, DRAINING)), owed(a_pod(3, BUSY))]
        assert not [it for it in orders(made(a_snapshot(POLICY, nodes=nodes))) if "destroy" in it]

    def test_a_node_that_is_owed_no_more_takes_jobs_again(self) -> None:
        nodes = [a_pod(1, BUSY), a_pod(2, DRAINING)]
        result = made(a_snapshot(POLICY, nodes=nodes, jobs=(a_waiting_job(),)))
        assert "undrain pod2-1" in orders(result)


def owed(node: Node) -> Node:
    assert node.cloud is not None
    return changed(node, cloud=replace(node.cloud, tenure=Tenure(owed="the fair share is 2 pods")))


def with_fixed(node: Node) -> CloudNode:
    assert node.cloud is not None
    return replace(node.cloud, tenure=Tenure(fixed="spec.minSize is 3"))


class TestTerminating:
    def test_drained_nodes_at_the_top_are_terminated_together_and_their_brokers_are_not_stopped(self) -> None:
        assert orders(made(a_fleet(BUSY, DRAINING, DRAINING))) == ["destroy i-pod3-1", "destroy i-pod2-1"]

    def test_a_drained_node_waits_for_the_drain_of_the_next_one(self) -> None:
        waiting = changed(a_pod(1, DRAINING, call=a_call(CallKind.DRAIN)), drained_s=None)
        result = made(a_snapshot(POLICY, nodes=[waiting, a_pod(2, DRAINING)]))
        assert orders(result) == []
        assert code(result, 2) is Code.LEAVES_WITH_OTHERS

    def test_a_drained_node_below_a_busy_one_is_not_terminated(self) -> None:
        result = made(a_fleet(DRAINING, BUSY))
        assert orders(result) == []
        assert code(result, 1) is Code.KEPT_BY_HIGHER_NODE

    def test_a_drained_node_that_a_job_wants_is_undrained(self) -> None:
        result = made(a_fleet(BUSY, DRAINING, jobs=(a_waiting_job(),)))
        assert orders(result) == ["undrain pod2-1"]

    def test_a_job_that_slipped_in_keeps_the_node_and_all_below_it(self) -> None:
        top = a_pod(3, DRAINING)
        assert top.rank is not None
        slipped = changed(top, rank=replace(top.rank, allocated=True))
        result = made(a_snapshot(POLICY, nodes=[a_pod(1, BUSY), a_pod(2, DRAINING), slipped]))
        assert orders(result) == ["undrain pod3-1"]
        assert code(result, 2) is Code.KEPT_BY_HIGHER_NODE

    def test_a_node_that_never_joined_is_given_up_only_at_the_top(self) -> None:
        overdue: dict[str, Any] = {"requested_s": NOW_S - 2000, "since_s": NOW_S - 2000}
        middle, top = a_pod(1, NodeState.BOOTING, **overdue), a_pod(2, BUSY)
        result = made(a_snapshot(POLICY, nodes=[middle, top]))
        assert orders(result) == []
        assert code(result, 1) is Code.KEPT_BY_HIGHER_NODE
        result = made(a_snapshot(POLICY, nodes=[a_pod(1, BUSY), a_pod(2, NodeState.BOOTING, **overdue)]))
        assert orders(result) == ["drain pod2-1"]


class TestComing:
    def test_the_next_slots_are_bought(self) -> None:
        jobs = tuple(a_waiting_job(number) for number in (1, 2))
        assert boots(made(a_fleet(BUSY, BUSY, jobs=jobs))) == ["pod3", "pod4"]

    def test_slots_below_a_wanted_host_are_bought_too(self) -> None:
        result = made(a_fleet(BUSY, jobs=(a_waiting_job(where=OnHosts(("pod4",))),)))
        assert boots(result) == ["pod2", "pod3", "pod4"]
        reasons = [action.reason.code for action in result.actions]  # type: ignore[union-attr]
        assert reasons == [Code.FILLS_A_GAP, Code.FILLS_A_GAP, Code.DEMAND]

    def test_nothing_is_bought_if_the_limits_do_not_allow_the_slots_between(self) -> None:
        policy = a_stacked_policy(nodes_max=3)
        result = made(a_fleet(BUSY, policy=policy, jobs=(a_waiting_job(where=OnHosts(("pod4",))),)), policy)
        assert boots(result) == []
        policy = a_stacked_policy(price_per_hour_max=Decimal("0.35"))
        result = made(a_fleet(BUSY, policy=policy, jobs=(a_waiting_job(where=OnHosts(("pod4",))),)), policy)
        assert boots(result) == []

    def test_a_stray_holds_its_slot_and_one_of_no_slot_of_ours_holds_none(self) -> None:
        second, unknown = a_pod(2).cloud, a_pod(3).cloud
        assert second is not None
        assert unknown is not None
        assert unknown.identity is not None
        unknown = replace(unknown, identity=replace(unknown.identity, slot=SlotName("pod99")))
        strays = {it.provider_id: Stray(it, NOW_S) for it in (second, unknown)}
        snapshot = a_fleet(BUSY, jobs=(a_waiting_job(),))
        account = replace(snapshot.account_of(), strays=strays)
        assert lowest_gap(snapshot.with_account(DEFAULT_CLOUD, account), POLICY) == rank_of(POLICY, "pod3")

    def test_nothing_is_bought_while_nodes_are_being_removed(self) -> None:
        result = made(a_fleet(BUSY, STOPPING, jobs=(a_waiting_job(),)))
        assert boots(result) == []
        assert result.types[POLICY.node_types[0].name].code is Code.NODES_BEING_REMOVED

    def test_a_lease_above_a_free_slot_is_given_back(self) -> None:
        above = a_pod(3, NodeState.REQUESTED)
        jobs = tuple(a_waiting_job(number) for number in (1, 2))
        result = made(a_snapshot(POLICY, nodes=[a_pod(1, BUSY), above], jobs=jobs))
        assert "end-lease pod3-1" in orders(result)
        assert code(result, 3) is Code.LOWER_SLOT_IS_FREE

    def test_leases_of_the_slots_between_are_kept_and_created_together(self) -> None:
        leases = [a_pod(number, NodeState.REQUESTED) for number in (1, 2, 3)]
        job = a_waiting_job(where=OnHosts(("pod3",)))
        result = made(a_snapshot(POLICY, nodes=leases, jobs=[job]))
        assert sorted(orders(result)) == ["create pod1-1", "create pod2-1", "create pod3-1"]

    def test_a_lease_is_given_back_with_the_one_below_it(self) -> None:
        policy = a_stacked_policy(nodes_max=1)
        leases = [a_pod(number, NodeState.REQUESTED, policy) for number in (1, 2)]
        result = made(a_snapshot(policy, nodes=leases, jobs=[a_waiting_job(where=OnHosts(("pod2",)))]), policy)
        assert sorted(orders(result)) == ["end-lease pod1-1", "end-lease pod2-1"]

    def test_one_decision_creates_any_number(self) -> None:
        policy = a_stacked_policy(slots=60, nodes_max=60)
        nodes = [a_pod(number, NodeState.REQUESTED, policy) for number in range(1, 51)]
        jobs = tuple(a_waiting_job(number) for number in range(1, 51))
        result = made(a_snapshot(policy, nodes=nodes, jobs=jobs), policy)
        assert sum(order.startswith("create") for order in orders(result)) == 50
        assert UNLIMITED > 50

    def test_a_slot_with_a_node_of_others_is_no_gap(self) -> None:
        theirs = a_rank("pod1", POLICY, online=True, allocated=True, cores_free=0)
        ours = a_pod(2, NodeState.REQUESTED)
        result = made(a_snapshot(POLICY, nodes=[ours], ranks=[theirs], jobs=[a_waiting_job()]))
        assert orders(result) == ["create pod2-1"]


class TestReasonsOfPendingNodes:
    def test_the_providers_words_are_shown_for_the_node_and_its_job(self) -> None:
        booting = a_pod(1, NodeState.BOOTING, requested_s=NOW_S - 10)
        assert booting.cloud is not None
        pending = replace(booting.cloud, state=CloudState.PENDING, note="0/3 nodes are available")
        result = made(a_snapshot(POLICY, nodes=[changed(booting, cloud=pending)], jobs=[a_waiting_job()]))
        assert code(result, 1) is Code.PENDING_AT_PROVIDER
        (reason,) = result.jobs.values()
        assert reason.code is Code.NODE_PENDING_AT_PROVIDER
        assert reason.figures["detail"] == "0/3 nodes are available"


class TestNews:
    def test_news_of_the_provider_leads_to_a_list_at_once(self) -> None:
        snapshot = a_fleet(IDLE)
        assert ListCloud() not in asks_now(snapshot, POLICY)
        assert ListCloud() in asks_now(observe(snapshot, CloudChanged(), POLICY), POLICY)


class TestTheLeadBroker:
    """The node of rank 0 runs jobs, but it is no slot of the site."""

    LEADER = FluxRank(Rank(100), SlotName("pod0"), online=True, cores=4, cores_free=4, schedulable=True)

    def test_it_counts_for_jobs_that_need_all_nodes(self) -> None:
        wide = a_job(1, whole_nodes(7))
        assert len(boots(made(a_snapshot(POLICY, ranks=[self.LEADER], jobs=[wide])))) == 6

    def test_a_job_for_one_more_can_never_run(self) -> None:
        wide = a_job(1, whole_nodes(8))
        result = made(a_snapshot(POLICY, ranks=[self.LEADER], jobs=[wide]))
        (reason,) = result.jobs.values()
        assert (boots(result), reason.code) == ([], Code.TOO_FEW_SLOTS)

    def test_a_job_that_fits_on_it_buys_nothing(self) -> None:
        assert boots(made(a_snapshot(POLICY, ranks=[self.LEADER], jobs=[a_waiting_job()]))) == []
