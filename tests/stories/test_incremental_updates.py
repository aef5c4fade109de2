"""Shortcuts do not change results: facts taken in together, looks reported as changes, and stored indexes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.facts import (
    BrokerStopped,
    Fact,
    HousekeepingKilled,
    LaunchesRecorded,
    LeaseEnded,
    NodeCordoned,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    RanksSeen,
)
from nodemanager.core.jobs import OnRanks, Shape
from nodemanager.core.nodes import FluxRank, LaunchId
from nodemanager.core.slots import Rank
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.observe import observe, observe_all
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Indexes, NodeIndex, Snapshot
from tests.builders import NOW_S, a_cloud_node, a_launch, a_rank, a_world, with_settings
from tests.planner.strategies import CONDITIONS, POLICIES, a_rank_that_is, ranks, snapshots
from tests.planner.test_plan import to_the_byte

SLOTS = ("cloud1", "cloud2", "cloud3", "gpu1")
# Facts about nodes. Some concern nodes that are gone, or calls that nobody waits for.
KINDS = (
    NodeCreated,
    NodeDrained,
    NodeCordoned,
    BrokerStopped,
    HousekeepingKilled,
    NodeDestroyed,
    LeaseEnded,
    LaunchesRecorded,
)


def _fact(kind: type[Any], slot: str, condition: str, policy: Policy) -> Fact:
    launch = a_launch(slot, policy)
    seen = a_rank_that_is(condition, policy, slot, launch.id)
    made: dict[type[Any], Fact] = {
        NodeCreated: NodeCreated(launch.id, a_cloud_node(launch)),
        NodeDrained: NodeDrained(launch.id, NOW_S + 1, seen),
        NodeCordoned: NodeCordoned(launch.id, NOW_S + 1, seen),
        BrokerStopped: BrokerStopped(launch.id),
        HousekeepingKilled: HousekeepingKilled(launch.id),
        NodeDestroyed: NodeDestroyed(launch.id, a_cloud_node(launch).provider_id),
        LeaseEnded: LeaseEnded(launch.id),
        LaunchesRecorded: LaunchesRecorded((launch,)),
    }
    return made[kind]


@st.composite
def told(draw: st.DrawFn) -> tuple[Snapshot, Policy, list[Fact]]:
    """A fleet, and facts about its nodes: often several of one kind in a row."""
    policy = draw(POLICIES)
    facts: list[Fact] = []
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=5)):
        slots = draw(st.lists(st.sampled_from(SLOTS), min_size=1, max_size=4))
        facts += [_fact(kind, slot, draw(st.sampled_from(CONDITIONS)), policy) for slot in slots]
    return draw(snapshots(policy)), policy, facts


@settings(deadline=None, max_examples=200)
@given(told())
def test_facts_taken_in_together_make_what_one_after_the_other_makes(
    case: tuple[Snapshot, Policy, list[Fact]],
) -> None:
    snapshot, policy, facts = case
    one_by_one = snapshot
    for fact in facts:
        one_by_one = observe(one_by_one, fact, policy)
    together = observe_all(snapshot, facts, policy)
    assert together == one_by_one
    assert list(together.nodes) == list(one_by_one.nodes)
    assert to_the_byte(plan(together, policy)) == to_the_byte(plan(one_by_one, policy))


def _with_index(snapshot: Snapshot, index: NodeIndex) -> Snapshot:
    return replace(snapshot, indexes=replace(snapshot.indexes, nodes=index))


@settings(deadline=None, max_examples=200)
@given(told())
def test_the_roll_that_is_kept_is_the_one_that_would_be_read(case: tuple[Snapshot, Policy, list[Fact]]) -> None:
    snapshot, policy, facts = case
    after = observe_all(_with_index(snapshot, node_index_of(snapshot)), facts, policy)
    kept = node_index_of(after)
    read = node_index_of(_with_index(after, NodeIndex(confirmations=kept.confirmations)))
    assert (kept.to_check, kept.at_rest, kept.resting) == (read.to_check, read.at_rest, read.resting)
    assert (kept.with_call, kept.launch_of_rank, kept.launch_of_slot) == (
        read.with_call,
        read.launch_of_rank,
        read.launch_of_slot,
    )
    counts = [
        {name: count for name, count in counted.items() if count}
        for counted in (kept.count_by_state, read.count_by_state, kept.count_by_type, read.count_by_type)
    ]
    assert (counts[0], counts[2]) == (counts[1], counts[3])


@st.composite
def looks(draw: st.DrawFn) -> tuple[Snapshot, Policy, list[FluxRank]]:
    """A fleet after a look, and the ranks that the next look shows."""
    policy = draw(POLICIES)
    snapshot = draw(snapshots(policy))
    slots = draw(st.lists(st.sampled_from(SLOTS), unique=True))
    return snapshot, policy, [draw(ranks(policy, slot, LaunchId(f"{slot}-1"))) for slot in slots]


@settings(deadline=None, max_examples=200)
@given(looks(), st.booleans())
def test_a_look_told_by_its_changes_is_the_whole_look(
    case: tuple[Snapshot, Policy, list[FluxRank]], of_another: bool
) -> None:
    """Also if the changes refer to something other than the last look."""
    snapshot, policy, shown = case
    since = dict(snapshot.ranks)
    if of_another:
        away = replace(a_rank("cloud1", policy, online=False), drain_reason="broken fan")
        since[away.rank] = away
    whole = {**since, **{rank.rank: rank for rank in shown}}
    seen = observe(snapshot, RanksSeen(NOW_S, tuple(whole.values())), policy)
    told_short = RanksSeen(NOW_S, tuple(shown), previous=since if of_another else snapshot.ranks)
    assert observe(snapshot, told_short, policy) == seen


@settings(deadline=None, max_examples=200)
@given(looks(), st.sampled_from([0.0, 1.0, 400.0]))
def test_what_is_kept_for_the_planner_decides_nothing(
    case: tuple[Snapshot, Policy, list[FluxRank]], later_s: float
) -> None:
    """Planned before and after a look, with stored indexes and without any."""
    snapshot, policy, shown = case
    plan(snapshot, policy)
    seen = {**snapshot.ranks, **{rank.rank: rank for rank in shown}}
    after = observe(snapshot, RanksSeen(NOW_S + later_s, tuple(seen.values())), policy)
    anew = replace(after, indexes=Indexes())
    assert to_the_byte(plan(after, policy)) == to_the_byte(plan(anew, policy))
    smaller = with_settings(policy, nodes_max=1)
    assert to_the_byte(plan(after, smaller)) == to_the_byte(plan(anew, smaller)), "under another policy, too"


def test_a_slot_at_another_rank_makes_a_job_possible_that_never_was() -> None:
    """Whether a shape could ever be served is computed once, and again when slots have other ranks."""
    world = a_world().job(Shape(1, 1, constraint=OnRanks(("90",))))
    assert world.why_job(1).code == "no_type_fits"
    moved = [replace(it, rank=Rank(90)) if it.host == "cloud1" else it for it in world.snapshot.ranks.values()]
    world.see(RanksSeen(world.snapshot.now_s + 1, tuple(moved)))
    assert world.why_job(1).code != "no_type_fits"
