"""How often the ranks are read while they change, and how often a plan is made if nothing happens.

Simulates the manager's loop over a long time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.facts import QueueProbed, RanksChanged, RanksSeen, Tick
from nodemanager.core.orders import LookAtRanks
from nodemanager.core.slots import TypeName
from nodemanager.planner.brain import PLAN_EVERY_S, QUIET_EVERY_S, next_plan_s
from nodemanager.planner.commit import commit_asks
from nodemanager.planner.observe.observe import advance_to, observe
from nodemanager.planner.plan import plan
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Source
from tests.builders import NOW_S, World, a_policy, a_type, a_world, orders, whole_nodes


@dataclass
class Played:
    """Facts arrive at given moments; a plan is made then, and when time alone allows more."""

    took_s: float
    policy: Policy = field(default_factory=lambda: a_policy(probe_s=10, settle_max_s=10))
    looks_s: list[float] = field(default_factory=list)  # when each look was ordered

    def __post_init__(self) -> None:
        self.snapshot: Snapshot = a_world().but(look_due_since_s=None).snapshot
        self.answer_s = float("inf")

    @property
    def began_s(self) -> float:
        return self.looks_s[-1]

    def plan_at(self, now_s: float) -> float:
        """The plan at a moment, and when the next one is due."""
        self.snapshot = advance_to(self.snapshot, Tick(now_s, self.snapshot.wall_at + now_s - self.snapshot.now_s))
        if now_s >= self.answer_s:
            self._see(RanksSeen(self.began_s, tuple(self.snapshot.ranks.values()), took_s=self.took_s))
            self.answer_s = float("inf")
        self._see(QueueProbed(now_s))
        made = plan(self.snapshot, self.policy)
        if LookAtRanks() in made.asks:
            self.looks_s.append(now_s)
            self.answer_s = now_s + self.took_s
        self.snapshot = commit_asks(self.snapshot, made, self.policy)
        return min(next_plan_s(self.snapshot, made, self.policy), self.answer_s)

    def _see(self, fact: RanksSeen | RanksChanged | QueueProbed) -> None:
        self.snapshot = observe(self.snapshot, fact, self.policy)

    def stirred_at(self, moments: list[float], until_s: float) -> None:
        due_s = NOW_S
        for moment in [*moments, until_s]:
            while due_s < moment:
                due_s = self.plan_at(due_s)
            self.snapshot = advance_to(
                self.snapshot, Tick(moment, self.snapshot.wall_at + moment - self.snapshot.now_s)
            )
            self._see(RanksChanged())
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


# --- plans ------------------------------------------------------------------------------------------------


def again_after_s(world: World) -> float:
    return next_plan_s(world.snapshot, world.decide(), world.policy) - NOW_S


def test_what_is_under_way_is_looked_after_every_second() -> None:
    probed = {"flux": Source(seen_s=NOW_S), "cloud": Source(seen_s=NOW_S)}
    assert again_after_s(a_world(nodes_min=1).idle_node().but(**probed)) == QUIET_EVERY_S
    assert again_after_s(a_world(nodes_min=1).idle_node().booting_node("cloud2").but(**probed)) == PLAN_EVERY_S
    assert again_after_s(a_world().draining_node().but(**probed)) == PLAN_EVERY_S
    assert again_after_s(a_world(nodes_max=0).job(whole_nodes(1)).but(**probed)) == PLAN_EVERY_S
    assert again_after_s(a_world(nodes_min=1).idle_node().but(**probed, claimed=False)) == PLAN_EVERY_S


def test_the_source_that_is_to_be_asked_next_is_asked_in_time() -> None:
    world = a_world(nodes_min=1, probe_s=10).idle_node().but(cloud=Source(seen_s=NOW_S))
    assert again_after_s(world.but(flux=Source(seen_s=NOW_S - 8.5))) == 1.5
    assert again_after_s(world.but(flux=Source(seen_s=NOW_S - 20, answer_due_s=NOW_S + 0.5))) == 0.5


@given(
    idle_for_s=st.floats(0, 700),
    hour_ends_in_s=st.floats(1, 3599) | st.floats(1, 30),
    hourly=st.booleans(),
    stops_s=st.sampled_from([(), (25.0,) * 3]),  # within the last 15 s of the hour it would be too late
)
def test_a_node_that_stands_idle_goes_when_its_time_is_up(
    idle_for_s: float, hour_ends_in_s: float, hourly: bool, stops_s: tuple[float, ...]
) -> None:
    world = a_world(a_type(window_s=3600.0 if hourly else 60.0), idle_timeout_s=600.0, stop_lead_s=30.0)
    world.idle_node(hour_ends_in_s=hour_ends_in_s, idle_since_s=NOW_S - idle_for_s)
    world.but(stops_s={TypeName("cloud"): stops_s})
    while not (made := world.all_is_fresh().plan()).actions:
        now_s = world.snapshot.now_s
        due_s = next_plan_s(world.snapshot, made, world.policy)
        assert now_s < due_s <= now_s + QUIET_EVERY_S
        assert orders(world.wait(0.9 * (due_s - now_s)).plan()) == [], "it is due, and nobody would see it"
        world.wait(due_s - world.snapshot.now_s)
    assert orders(made) == ["drain cloud1-1"]
