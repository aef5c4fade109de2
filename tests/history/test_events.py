"""Events, derived from one publication and the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.facts import (
    CloudCallFailed,
    DecisionsPaused,
    DecisionsResumed,
    FluxCallFailed,
    HoldPlaced,
    NodeReleased,
    ReplacementsRequested,
)
from nodemanager.core.jobs import JobState, RankAllocation
from nodemanager.core.nodes import FailureKind, LaunchId, NodeState
from nodemanager.core.records import Mark
from nodemanager.core.slots import Rank
from nodemanager.history import events
from nodemanager.history.follower import Follower
from nodemanager.planner.plan import plan
from nodemanager.planner.snapshot import Source
from tests.builders import NOW_S, WALL_AT, a_job, a_node, changed, whole_nodes
from tests.history.publications import a_moment, lines, told


def test_what_is_decided_is_an_entry_with_its_reason_and_whom_it_serves() -> None:
    (first,) = told(a_moment(jobs=[a_job(7)]))
    (boot,) = [entry for entry in first.events if entry.kind == "decided"]
    assert (boot.what, boot.code, boot.node_type, boot.figures["serves"]) == ("BootNode", "demand", "cloud", ("7",))
    assert boot.at == WALL_AT


def test_what_is_only_said_is_said_once_though_its_launch_is_another_every_time() -> None:
    story = [a_moment(after, jobs=[a_job(7)], acts=False) for after in (0, 1, 2)]
    assert [len(lines(it, "would")) for it in told(*story)] == [1, 0, 0]
    assert lines(told(*story)[0], "would", "decided") == ["would BootNode demand"]


def test_what_is_only_said_is_not_said_again_when_the_queue_was_restless_meanwhile() -> None:
    restless = a_moment(1, jobs=[a_job(7)], acts=False, newest_job_s=NOW_S + 1)
    assert (restless.plan.settled, restless.plan.actions) == (False, ())
    story = [a_moment(0, jobs=[a_job(7)], acts=False), restless, a_moment(9, jobs=[a_job(7)], acts=False)]
    assert [len(lines(it, "would")) for it in told(*story)] == [1, 0, 0]


def test_a_node_s_moves_are_told_with_its_story_by_the_wall_clock() -> None:
    before = a_node("cloud1", NodeState.BOOTING)
    after = replace(before, state=NodeState.IDLE, moves=(f"joined -> idle at {NOW_S - 60:.3f}",))
    _, second, third = told(a_moment(nodes=[before]), a_moment(1, nodes=[after]), a_moment(2))
    assert lines(second, "node") == ["node idle"]
    (entry,) = [it for it in second.events if it.kind == "node"]
    assert entry.figures["was"] == "booting"
    assert str(entry.figures["story"]).endswith("Z")
    assert lines(third, "node") == ["node ended"]


def test_a_reason_is_told_when_it_becomes_another_and_not_when_its_figures_change() -> None:
    job = a_job(7, whole_nodes(9))
    story = [a_moment(after, jobs=[job]) for after in (0, 5, 10)]
    first, *later = [lines(it, "because") for it in told(*story)]
    assert sorted(first) == [*["because type job_held_up"] * 2, "because waits too_few_slots"]
    assert later == [[], []]
    node = a_node("cloud1", NodeState.IDLE, idle_looks=0)
    seen = [a_moment(nodes=[changed(node, idle_looks=looks)]) for looks in (0, 1, 2)]
    assert [lines(it, "because") for it in told(*seen)] == [
        ["because idle idle_unconfirmed", *["because type nothing_is_short"] * 2],
        [],
        ["because idle paid_time_left"],
    ]


def test_a_job_that_comes_among_the_first_is_told_of_only_if_it_waits_for_another_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "JOBS_FOLLOWED", 1)
    first, second = a_job(7, whole_nodes(9)), a_job(8, whole_nodes(9), urgency=0)
    third = a_job(9, whole_nodes(9))
    same = [a_moment(jobs=[first, second, third]), *(a_moment(at_s, jobs=[second, third]) for at_s in (5, 10))]
    assert [lines(it, "because") for it in told(*same)][1:] == [[], []]
    released = a_moment(5, jobs=[a_job(8, whole_nodes(9))])
    assert "because waits too_few_slots" in lines(told(a_moment(jobs=[first, second]), released)[1], "because")


def test_a_job_s_beginning_and_end_are_told_with_how_long_it_waited() -> None:
    waiting = a_job(7, submitted_at=WALL_AT - 90, userid=1000)
    runs = replace(waiting, state=JobState.RUN, allocations=(RankAllocation(Rank(1), 4, 0),))
    _, began, ended = told(a_moment(jobs=[waiting]), a_moment(10, jobs=[runs]), a_moment(20))
    (entry,) = [it for it in began.events if it.kind == "job"]
    assert (entry.what, entry.subject, entry.figures["wait_s"], entry.figures["user"]) == (
        "began",
        "7",
        100.0,
        1000,
    )
    assert lines(ended, "job") == ["job ended"]


@pytest.mark.parametrize(
    ("fact", "line"),
    [
        (CloudCallFailed("create", LaunchId("a-1"), FailureKind.QUOTA, "enough"), "failed create quota"),
        (FluxCallFailed((LaunchId("a-1"),), "DrainNode", "no answer"), "failed DrainNode flux"),
        (HoldPlaced(LaunchId("a-1"), Mark("ada", WALL_AT)), "operator hold"),
        (DecisionsPaused(Mark("ada", WALL_AT)), "operator pause"),
        (ReplacementsRequested((LaunchId("a-1"),), Mark("ada", WALL_AT)), "operator replace"),
        (DecisionsResumed("ada"), "operator resume"),
    ],
)
def test_what_failed_and_what_operators_did_is_told(fact: CloudCallFailed, line: str) -> None:
    (happened,) = told(a_moment(facts=[fact]))
    assert lines(happened, "failed", "operator") == [line]


def test_an_operator_event_has_the_name_the_reason_and_the_end() -> None:
    mark = Mark("ada", WALL_AT, "its disk", WALL_AT + 60)
    (happened,) = told(a_moment(facts=[HoldPlaced(LaunchId("a-1"), mark), NodeReleased(LaunchId("a-1"), "bob")]))
    hold, release = [event for event in happened.events if event.kind == "operator"]
    assert hold.figures == {"by": "ada", "why": "its disk", "until_at": WALL_AT + 60}
    assert release.figures == {"by": "bob"}


def test_a_standstill_is_told_when_it_begins_and_when_it_ends() -> None:
    calm = a_moment(1)
    stands = changed(calm.snapshot, cloud=Source(seen_s=NOW_S - 10_000))
    still = replace(calm, snapshot=stands, plan=plan(stands, calm.policy))
    begins, again, ends = told(a_moment(), still, still, a_moment(2))[1:]
    assert lines(begins, "standstill") == ["standstill begins stale"]
    assert lines(again, "standstill") == []
    assert lines(ends, "standstill") == ["standstill ends stale"]


def test_publications_taken_together_lose_no_decision_and_no_fact() -> None:
    fact = CloudCallFailed("list", None, FailureKind.TRANSIENT, "500")
    follower = Follower()
    happened = follower.follow([a_moment(jobs=[a_job(1)]), a_moment(1, facts=[fact]), a_moment(2)])
    assert lines(happened, "decided", "failed") == ["decided BootNode demand", "failed list transient"]
    assert happened.facts == (fact,)


def test_of_a_node_that_came_after_the_plan_no_reason_is_told_yet() -> None:
    """Seed 5: a stray was adopted, so the snapshot had a node that the plan did not know."""
    before, plan_made = a_moment(), a_moment(1)
    taken_back = a_moment(1, nodes=[a_node("cloud1", NodeState.REQUESTED)])
    now = replace(plan_made, snapshot=taken_back.snapshot)
    _, happened, later = told(before, now, taken_back)
    assert lines(happened, "node", "because") == ["node requested"]
    assert len(lines(later, "because")) == 1
