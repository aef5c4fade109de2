"""The backlog of the history thread keeps only the newest publication complete."""

from __future__ import annotations

import pytest

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import CloudCallFailed, QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, RankAllocation
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.history.follower import BACKLOG_MAX, Backlog, Follower, HistoryUpdate, condense
from nodemanager.history.store.rows import Rows
from nodemanager.planner.snapshot import Node
from tests.builders import NOW_S, WALL_AT, a_job, a_node, a_policy, whole_nodes
from tests.history.publications import a_moment

AGO_S = NOW_S - 3570  # a node of that age has paid for 30 s more


def a_node_that_works() -> Node:
    return a_node("cloud1", NodeState.BUSY)


def a_node_that_may_go() -> Node:
    return a_node("cloud1", NodeState.IDLE, billed_from_s=AGO_S, since_s=AGO_S, idle_looks=9)


def a_job_there(id_: int = 7) -> Job:
    held = RankAllocation(a_node_that_works().launch.rank, 4, 0)
    return a_job(id_, state=JobState.RUN, submitted_at=WALL_AT, began_at=WALL_AT + 1, allocations=(held,))


def a_story(*, acts: bool) -> list[Publication]:
    """A node ends, one is bought for a new job, a call fails, a job starts, and another is submitted and ends."""
    came, ended = a_job(9, submitted_at=WALL_AT), JobId(9)
    return [
        a_moment(0, nodes=[a_node_that_works()], acts=acts),
        a_moment(1, nodes=[a_node_that_may_go()], acts=acts),
        a_moment(2, jobs=[a_job(7, whole_nodes(2), submitted_at=WALL_AT)], acts=acts),
        a_moment(3, acts=acts, facts=[CloudCallFailed("list", None, FailureKind.TRANSIENT, "500")]),
        a_moment(
            63, nodes=[a_node_that_works()], jobs=[a_job_there()], acts=acts, facts=[QueueSeen(NOW_S, (came,))]
        ),
        a_moment(130, nodes=[a_node_that_works()], acts=acts, facts=[QueueSeen(NOW_S, (), (), (ended,))]),
    ]


def followed(first: Publication, batch: list[Publication]) -> HistoryUpdate:
    follower = Follower()
    follower.follow([first])
    return follower.follow(batch)


@pytest.mark.parametrize("acts", [True, False])
def test_what_is_left_of_a_publication_tells_all_that_happened(*, acts: bool) -> None:
    first, *batch = a_story(acts=acts)
    whole = followed(first, batch)
    assert followed(first, [*map(condense, batch[:-1]), batch[-1]]) == whole
    assert whole.events
    assert whole.ended_jobs
    assert (whole.savings is None) == acts


def test_a_job_that_began_before_the_newest_where_a_node_would_be_gone_is_charged_a_boot() -> None:
    began = [a_moment(after_s, nodes=[a_node_that_works()], jobs=[a_job_there()], acts=False) for after_s in (1, 2)]
    begun = followed(a_moment(0, nodes=[a_node_that_may_go()], acts=False), [condense(began[0]), began[1]])
    assert begun.savings is not None
    assert begun.savings.waits[JobId(7)].advised_s == 1.0 + a_policy().timing.boot_timeout_s


def test_only_the_newest_keeps_what_was_known_of_jobs() -> None:
    waiting = Backlog()
    moments = [a_moment(after_s, jobs=[a_job(1)]) for after_s in (0.0, 1.0, 2.0)]
    for moment in moments:
        waiting.add(moment)
    *before, newest = waiting.take()
    assert newest is moments[-1]
    assert [(it.snapshot.jobs, it.plan.jobs, it.plan.basis) for it in before] == [({}, {}, None)] * 2
    assert [it.plan.actions for it in before] == [it.plan.actions for it in moments[:-1]]


def test_where_too_many_wait_the_newest_is_taken_in_all_the_same() -> None:
    waiting = Backlog()
    for after_s in range(BACKLOG_MAX + 100):
        waiting.add(a_moment(float(after_s)))
    taken = waiting.take()
    assert (len(taken), waiting.dropped) == (BACKLOG_MAX, 100)
    assert taken[-1].snapshot.now_s == NOW_S + BACKLOG_MAX + 99


def test_nothing_is_taken_at_the_end_but_what_waits() -> None:
    waiting = Backlog()
    waiting.add(a_moment())
    waiting.end()
    assert len(waiting.take()) == 1
    assert waiting.take() == []


@pytest.mark.parametrize("acts", [True, False])
def test_the_condensed_backlog_makes_the_same_history(*, acts: bool) -> None:
    first, *batch = a_story(acts=acts)
    happened = followed(first, batch)
    assert Rows.from_updates([happened.condensed]) == Rows.from_updates([happened])
    assert (happened.condensed.newest.snapshot.jobs, happened.condensed.facts) == ({}, ())
