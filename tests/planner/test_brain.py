"""The brain decides at the time that it names itself: not later than anything it waits for, and seldom else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import QueueProbed, RanksChanged, RanksSeen, Tick
from nodemanager.core.jobs import JobId, JobState, RankAllocation
from nodemanager.core.nodes import CallKind, FailureKind, NodeState
from nodemanager.core.orders import LookAtRanks
from nodemanager.core.slots import NodeType, Rank
from nodemanager.planner.brain import Brain
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import EVERYTHING, Block, Source, Stray
from tests.builders import (
    CLOUD,
    NOW_S,
    WALL_AT,
    World,
    a_call,
    a_cloud_node,
    a_job,
    a_launch,
    a_policy,
    a_rank,
    a_type,
    a_world,
    busy,
    drained,
    orders,
    whole_nodes,
    with_settings,
)
from tests.planner.strategies import POLICIES, snapshots


@dataclass
class Played:
    """Facts arrive at given moments; a plan is made then, and when time alone allows more."""

    took_s: float
    policy: Policy = field(default_factory=lambda: a_policy(probe_s=10, settle_max_s=10))
    looks_s: list[float] = field(default_factory=list)  # when each look was ordered

    def __post_init__(self) -> None:
        self.brain = Brain(self.policy, snapshot=a_world().but(look_due_since_s=None).snapshot)
        self.answer_s = float("inf")

    @property
    def began_s(self) -> float:
        return self.looks_s[-1]

    def plan_at(self, now_s: float) -> float:
        """The plan at a moment, and when the next one is due."""
        self.advance(now_s)
        if now_s >= self.answer_s:
            ranks = tuple(self.brain.snapshot.ranks.values())
            self.brain.take(RanksSeen(self.began_s, ranks, took_s=self.took_s))
            self.answer_s = float("inf")
        self.brain.take(QueueProbed(now_s))
        decision = self.brain.decide()
        if LookAtRanks() in decision.asks:
            self.looks_s.append(now_s)
            self.answer_s = now_s + self.took_s
        return min(decision.next_at_s, self.answer_s)

    def advance(self, now_s: float) -> None:
        known = self.brain.snapshot
        self.brain.advance(Tick(now_s, known.wall_at + now_s - known.now_s))

    def stirred_at(self, moments: list[float], until_s: float) -> None:
        due_s = NOW_S
        for moment in [*moments, until_s]:
            while due_s < moment:
                due_s = self.plan_at(due_s)
            self.advance(moment)
            self.brain.take(RanksChanged())
            due_s = self.plan_at(moment)

    def rest_after(self, look: int) -> float:
        began_s = self.looks_s[look]
        return max(began_s + 0.1, began_s + self.took_s + min(10.0, 9 * self.took_s))


TOOK_S = st.sampled_from([0.001, 0.005, 0.044, 0.3, 5.0])


@given(gaps_s=st.lists(st.floats(0.001, 20.0), min_size=1, max_size=40), took_s=TOOK_S)
def test_a_stir_is_looked_at_at_once_or_as_soon_as_the_last_look_was_rested_from(
    gaps_s: list[float], took_s: float
) -> None:
    played = Played(took_s)
    stirs_s = [NOW_S + sum(gaps_s[: count + 1]) for count in range(len(gaps_s))]
    played.stirred_at(stirs_s, stirs_s[-1] + 60)
    for stir_s in stirs_s:
        earlier = [number for number, look_s in enumerate(played.looks_s) if look_s < stir_s]
        rested_s = played.rest_after(earlier[-1]) if earlier else stir_s
        looked_s = next(look_s for look_s in played.looks_s if look_s >= stir_s)
        assert looked_s == pytest.approx(max(stir_s, rested_s), abs=1e-6)


@pytest.mark.parametrize(("took_s", "most"), [(0.001, 101), (0.005, 101), (0.044, 24), (0.3, 5)])
def test_looks_take_a_tenth_of_the_time_at_the_most_where_ranks_stir_without_end(took_s: float, most: int) -> None:
    played = Played(took_s)
    played.stirred_at([NOW_S + 0.01 * count for count in range(1, 1001)], NOW_S + 10)
    assert most - 2 <= len(played.looks_s) <= most


def test_ranks_that_take_long_to_show_are_looked_at_again_a_probe_later() -> None:
    played = Played(took_s=4.0)
    played.stirred_at([NOW_S + 0.5 * count for count in range(1, 121)], NOW_S + 60)
    assert [look_s - NOW_S for look_s in played.looks_s] == [0.5, 14.5, 28.5, 42.5, 56.5]


# --- when to decide again ---------------------------------------------------------------------------------

# The sources were just read and are not read again for long: only what the case is about waits for time.
QUIET: dict[str, Any] = {"probe_s": 1e6, "relist_s": 1e6, "sweep_s": 1e6, "stale_after_s": 1e9, "settle_s": 5.0}
HOUR = a_type(slots=4, cores=4, window_s=3600.0)
MINUTE = a_type(slots=4, cores=4, window_s=60.0)


def quiet_world(node_type: NodeType = HOUR, **settings: Any) -> World:
    return a_world(node_type, **{**QUIET, "idle_timeout_s": 600.0, "stop_lead_s": 30.0, **settings})


def at_work(ends_in_s: float) -> World:
    """A busy node, whose job's time limit expires in a while, and a job that waits for all of it."""
    job = a_job(state=JobState.RUN, allocations=(RankAllocation(Rank(1), 4, 0),), ends_at=WALL_AT + ends_in_s)
    return quiet_world(nodes_max=1).busy_node().but(jobs={job.id: job, JobId(2): a_job(2, whole_nodes(1))})


def with_stray(**changes: Any) -> World:
    stray = Stray(replace(a_cloud_node(a_launch()), identity=None), **changes)
    return quiet_world(orphan_grace_s=600.0).but(strays={stray.node.provider_id: stray})


TOLD: dict[str, Any] = {
    "broker_told_s": NOW_S - 1,
    "rank": drained(a_rank("cloud1", online=True), drain_text(a_launch().id)),
}
AWAY: dict[str, Any] = {"departures_s": (NOW_S - 300, NOW_S - 200, NOW_S - 100)}
CORDONED = drained(busy(a_rank("cloud1")), drain_text(a_launch().id))
BLOCK = Block(NOW_S + 40, FailureKind.CAPACITY, "none")
FLUX_DRAIN = drained(a_rank("cloud1", online=True), "broker was unresponsive")
SCHEDULABLE = a_rank("cloud1", online=True, drain_reason=drain_text(a_launch().id))
TORPID = replace(a_rank("cloud1", online=True), torpid=True)
HOUSEKEEPING = replace(drained(busy(a_rank("cloud1")), "by hand"), housekeeping_since_at=WALL_AT - 100)

WAITS: dict[str, tuple[Callable[[], World], float]] = {
    "a boot": (lambda: quiet_world().booting_node(requested_s=NOW_S - 100), 800.0),
    "a boot found after a restart": (
        lambda: quiet_world().booting_node(requested_s=NOW_S - 9000, since_s=NOW_S - 20),
        100.0,
    ),
    "a lost broker": (lambda: quiet_world().node("cloud1", NodeState.LOST, since_s=NOW_S - 50), 70.0),
    "idle time": (lambda: quiet_world(MINUTE).idle_node(idle_since_s=NOW_S - 580, hour_ends_in_s=50.0), 20.0),
    "idle time, then paid time": (
        lambda: quiet_world(MINUTE).idle_node(idle_since_s=NOW_S - 590, hour_ends_in_s=50.0),
        20.0,
    ),
    "paid time": (lambda: quiet_world().idle_node(hour_ends_in_s=130.0), 100.0),
    "a broker that stops": (lambda: quiet_world(broker_stop_s=5.0).stopping_node(**TOLD), 4.0),
    "a drain that the scheduler missed": (
        lambda: quiet_world().draining_node(rank=SCHEDULABLE, drained_s=NOW_S - 0.25),
        0.75,
    ),
    "a retry": (lambda: quiet_world().draining_node(retry_s=NOW_S + 7), 7.0),
    "a call's deadline": (lambda: quiet_world().draining_node(call=a_call(CallKind.DRAIN, lasts_s=9.0)), 9.0),
    "a new call's deadline": (lambda: quiet_world().draining_node(), 60.0),
    "a block": (
        lambda: quiet_world().job(whole_nodes(1)).but(blocks={EVERYTHING: BLOCK}),
        40.0,
    ),
    "the rate of creates": (
        lambda: quiet_world(creates_per_s=0.25).node("cloud1", NodeState.REQUESTED, sent_s=None)
        .job(whole_nodes(1)).but(create_credit=0.5, create_credit_s=NOW_S),
        2.0,
    ),
    "an orphan": (lambda: with_stray(since_s=NOW_S - 100), 500.0),
    "an orphan destroyed before": (lambda: with_stray(since_s=NOW_S - 900, destroy_after_s=NOW_S + 33), 33.0),
    "the queue to settle": (
        lambda: quiet_world().job(whole_nodes(1)).but(newest_job_s=NOW_S - 1, unsettled_s=NOW_S - 1),
        4.0,
    ),
    "a job's end to come near": (lambda: at_work(300.0).but(boots_s={CLOUD.name: (90.0,) * 3}), 210.0),
    "a job's end to pass": (lambda: at_work(60.0).but(boots_s={CLOUD.name: (90.0,) * 3}), 60.0),
    "a drain by Flux": (
        lambda: quiet_world().idle_node(rank=FLUX_DRAIN, drained_by_flux_s=NOW_S - 100),
        200.0,
    ),
    "a node that hangs": (
        lambda: quiet_world(nodes_min=1)
        .node("cloud1", NodeState.IDLE, torpid_s=NOW_S - 20, rank=TORPID),
        100.0,
    ),
    "a long housekeeping": (
        lambda: quiet_world().node("cloud1", NodeState.BUSY, housekeeping_s=NOW_S - 100, rank=HOUSEKEEPING),
        1700.0,
    ),
    "a node that flaps to be forgiven": (
        lambda: quiet_world().node("cloud1", NodeState.BUSY, rank=CORDONED, **AWAY),
        600.0,
    ),
    "safe mode": (lambda: quiet_world().but(unready_since_s=NOW_S - 800), 1000.0),
    "the next look": (lambda: a_world(**{**QUIET, "probe_s": 10.0}), 9.0),
    "the next list": (lambda: a_world(**{**QUIET, "relist_s": 60.0}), 59.0),
    "the next sweep": (lambda: a_world(**{**QUIET, "sweep_s": 600.0}), 599.0),
    "a look's answer": (lambda: quiet_world().but(flux=Source(NOW_S - 1, answer_due_s=NOW_S + 8)), 8.0),
    "old data": (lambda: a_world(**{**QUIET, "stale_after_s": 180.0}), 179.0),
    "the claim": (lambda: quiet_world().but(claimed=False, claim=Source(retry_s=NOW_S + 1)), 1.0),
    "an answered wish": (lambda: quiet_world().but(wish_due_s=NOW_S + 12), 12.0),
    "the end of the day": (
        lambda: quiet_world(budgets={("", "day"): Decimal(5)}),
        86_400 - WALL_AT % 86_400,
    ),
    "the budget to be spent": (  # 0.10 an hour: 0.20 is left after the hour that is paid for begins
        lambda: quiet_world(a_type(window_s=3600.0, price="0.10"), budgets={("", "day"): Decimal("0.25")})
        .busy_node(billed_from_s=NOW_S - 1800),
        3600.0 * (0.25 - 0.1 - 0.1) / 0.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("wait", WAITS)
def test_it_decides_again_when_what_it_waits_for_is_due(wait: str) -> None:
    make, due_in_s = WAITS[wait]
    decision = make().brain.decide()
    assert decision.next_at_s - NOW_S == pytest.approx(due_in_s, abs=0.01), decision.plan.nodes


def test_nothing_is_waited_for_where_only_news_can_change_something() -> None:
    assert quiet_world(nodes_min=1).idle_node().brain.decide().next_at_s > NOW_S + 1e5
    assert quiet_world(nodes_max=0).job(whole_nodes(1)).brain.decide().next_at_s > NOW_S + 1e5
    assert quiet_world().busy_node().brain.decide().next_at_s > NOW_S + 1e5


@given(data=st.data(), policy=POLICIES, share=st.floats(0.0, 1.0), seconds=st.floats(0.1, 5000.0))
def test_nothing_is_decided_late(data: st.DataObject, policy: Policy, share: float, seconds: float) -> None:
    """Whoever decides before ``next_at_s`` finds nothing to order and nothing to ask."""
    brain = Brain(with_settings(policy, quiet_s=0.0), snapshot=data.draw(snapshots(policy)))
    now_s = NOW_S
    for _ in range(3):
        decision = brain.decide()
        while decision.orders:  # what their answers would make it look at
            decision = brain.decide()
        early_s = now_s + share * (min(decision.next_at_s, now_s + seconds) - now_s)
        early = Brain(brain.policy, snapshot=brain.snapshot)
        early.advance(Tick(early_s, WALL_AT + early_s - NOW_S))
        found = early.decide()
        assert early_s == decision.next_at_s or (found.orders, found.asks) == ((), ())
        now_s = min(decision.next_at_s, now_s + 5000.0)
        brain.advance(Tick(now_s, WALL_AT + now_s - NOW_S))


@given(
    idle_for_s=st.floats(0, 700),
    hour_ends_in_s=st.floats(1, 3599) | st.floats(1, 30),
    hourly=st.booleans(),
    stops_s=st.sampled_from([(), (25.0,) * 3]),  # within the last 15 s of the hour it would be too late
)
def test_an_idle_node_is_retired_when_its_time_is_up(
    idle_for_s: float, hour_ends_in_s: float, hourly: bool, stops_s: tuple[float, ...]
) -> None:
    world = quiet_world(HOUR if hourly else MINUTE, probe_s=10.0)
    world.idle_node(hour_ends_in_s=hour_ends_in_s, idle_since_s=NOW_S - idle_for_s)
    world.but(stops_s={CLOUD.name: stops_s})
    decisions = 0
    while not (decision := world.all_is_fresh().brain.decide()).orders:
        now_s = world.snapshot.now_s
        due_s = decision.plan.again_at_s
        assert now_s < due_s
        world.wait(max(due_s, now_s + 0.001) - now_s)
        decisions += 1
    assert orders(decision.plan) == ["drain cloud1-1"]
    assert decisions <= 3
