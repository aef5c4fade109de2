"""What the decisions of an observer would have changed in cost and waits. No busy node is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import Job, JobId, JobState, RankAllocation
from nodemanager.core.nodes import NodeState
from nodemanager.core.slots import TypeName
from nodemanager.history.observe_savings import ObserveSavings, SavingsTracker, format_savings
from nodemanager.history.store import writer
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.planner.snapshot import Node
from tests.builders import NOW_S, WALL_AT, a_job, a_node, a_policy, whole_nodes
from tests.history.publications import a_moment, told

HOUR_S = 3600.0
AGO_S = NOW_S - HOUR_S + 30  # a node of that age has paid for 30 s more


def idle() -> Node:
    """A node that any manager would terminate now, at 0.40 an hour."""
    return a_node("cloud1", NodeState.IDLE, billed_from_s=AGO_S, since_s=AGO_S, idle_looks=9)


def a_look(after_s: float, nodes: list[Node], jobs: list[Job] | None = None) -> Publication:
    return a_moment(after_s, nodes=nodes, jobs=jobs or [], acts=False)


def advised(*publications: Publication) -> list[ObserveSavings]:
    advice = SavingsTracker()
    return [it for it in (advice.update([publication]) for publication in publications) if it is not None]


def runs_on(node: Node, submitted_at: float) -> Job:
    return a_job(
        7,
        state=JobState.RUN,
        submitted_at=submitted_at,
        began_at=submitted_at + 1,
        allocations=(RankAllocation(node.launch.rank, 4, 0),),
    )


def test_a_node_that_would_be_gone_costs_nothing_more() -> None:
    (minute,) = advised(a_look(0, [idle()]), a_look(60, [idle()]))
    assert minute.cost == pytest.approx(0.40 / 60)
    assert (minute.cost_advised, minute.busy_touched, minute.waits) == (0.0, 0, {})


def test_a_node_that_would_be_gone_is_paid_for_again_once_a_job_has_begun_there() -> None:
    at_work = a_node("cloud1", NodeState.BUSY)
    looks = [a_look(after_s, [at_work], [runs_on(at_work, WALL_AT + 25)]) for after_s in (30.0, 90.0)]
    *_, last = advised(a_look(0, [idle()]), *looks)
    assert last.cost_advised == pytest.approx(0.40 / 60)


def test_a_node_that_would_be_bought_costs_from_its_order_on() -> None:
    waiting = a_job(7, whole_nodes(2), submitted_at=WALL_AT)
    (minute,) = advised(a_look(0, [], [waiting]), a_look(60, [], [waiting]))
    assert minute.cost == 0.0
    assert minute.cost_advised == pytest.approx(2 * 0.40 / 60)


def test_a_job_that_begins_where_a_node_would_be_gone_is_charged_a_boot() -> None:
    at_work = a_node("cloud1", NodeState.BUSY)
    (told_,) = advised(a_look(0, [idle()]), a_look(30, [at_work], [runs_on(at_work, WALL_AT + 25)]))
    wait = told_.waits[JobId(7)]
    assert (wait.actual_s, wait.advised_s) == (1.0, 1.0 + a_policy().timing.boot_timeout_s)


def test_a_job_begins_sooner_where_its_node_would_have_been_ordered_sooner() -> None:
    policy = a_policy(boot_timeout_s=40.0)
    waiting = a_job(7, whole_nodes(1), submitted_at=WALL_AT)
    node = a_node("cloud1", NodeState.BUSY)
    runs = replace(
        waiting, state=JobState.RUN, began_at=WALL_AT + 300, allocations=(RankAllocation(node.launch.rank, 4, 0),)
    )
    publications = [
        a_moment(0, jobs=[waiting], policy=policy, acts=False),
        a_moment(300, nodes=[node], jobs=[runs], policy=policy, acts=False),
    ]
    (told_,) = advised(*publications)
    assert (told_.waits[JobId(7)].actual_s, told_.waits[JobId(7)].advised_s) == (300.0, 40.0)


def test_a_manager_that_acts_with_all_types_observes_nothing() -> None:
    assert advised(a_moment(0, nodes=[idle()]), a_moment(600, nodes=[idle()])) == []


def test_what_was_said_before_it_acted_counts_no_more_when_it_observes_again() -> None:
    acting = a_moment(60, nodes=[idle()])
    young = a_node("cloud1", NodeState.IDLE)
    *_, last = advised(a_look(0, [idle()]), acting, a_look(120, [young]), a_look(180, [young]))
    assert last.cost == last.cost_advised > 0


def test_of_one_that_acts_with_some_only_the_others_are_observed() -> None:
    policy = a_policy(observed=frozenset({TypeName("gpu")}))
    nodes = [a_node("cloud1", NodeState.BUSY, policy), a_node("gpu1", NodeState.BUSY, policy)]
    (minute,) = advised(*(a_moment(after_s, nodes=nodes, policy=policy) for after_s in (0.0, 60.0)))
    assert minute.cost == minute.cost_advised == pytest.approx(3.00 / 60)


def test_the_report_says_it_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FLUSH_S", 0.0)
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    at_work = a_node("cloud1", NodeState.BUSY)
    for happened in told(
        *(a_look(float(after_s), [idle()]) for after_s in range(0, 601, 60)),
        a_look(630, [at_work], [runs_on(at_work, WALL_AT + 625)]),
    ):
        journal.write([happened])
    journal.close()
    observed = HistoryReader(journal.path).report(WALL_AT - 60, WALL_AT + 700)["observed"]
    assert (observed["jobs"], observed["busy_touched"], observed["span_s"]) == (1, 0, 630.0)
    assert observed["text"] == "10 minutes: 100 % cheaper, p95 wait +15 min, 0 busy nodes touched"


@pytest.mark.parametrize(
    ("told_", "line"),
    [
        ((7 * 86_400.0, 100.0, 59.0, 0, 120.0), "7 days: 41 % cheaper, p95 wait +2 min, 0 busy nodes touched"),
        ((9_000.0, 1.0, 1.5, 1, -20.0), "2 hours: 50 % dearer, p95 wait -20 s, 1 busy nodes touched"),
        ((300.0, 0.0, 2.5, 0, None), "5 minutes: 2.50 instead of 0, no job started, 0 busy nodes touched"),
        ((300.0, 1.0, 1.0, 0, 0.0), "5 minutes: same cost, p95 wait +0 s, 0 busy nodes touched"),
    ],
)
def test_a_line_says_what_it_was(told_: tuple[float, float, float, int, float | None], line: str) -> None:
    assert format_savings(*told_) == line
