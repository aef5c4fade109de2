"""The log of decisions: each is told once, and again when it changes or returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structlog.testing import capture_logs

from nodemanager.actors.decision_log import DecisionLog
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.plan import Plan
from tests.builders import a_world, whole_nodes


def told(*plans: Plan, acts: bool = True) -> list[list[dict[str, Any]]]:
    """The lines of each plan, as one log tells them in a row."""
    log, lines = DecisionLog(acts), []
    for it in plans:
        with capture_logs() as said:
            log.log_plan(it)
        lines.append([dict(line) for line in said])
    return lines


def with_warning(reason: Reason) -> Plan:
    return Plan(faults=(reason,), settled=True)


def test_a_warning_is_told_once_and_again_when_it_returns() -> None:
    bad = with_warning(because(Code.NO_NODE_TYPE))
    first, again, gone, back = told(bad, bad, Plan(settled=True), bad)
    assert [(it["event"], it["log_level"]) for it in first] == [("no_node_type", "warning")]
    assert (again, gone) == ([], [])
    assert [it["event"] for it in back] == ["no_node_type"]


def test_a_warning_of_another_node_is_another_warning() -> None:
    one, other = (with_warning(because(Code.GPU_NODE_TAKEN, job="1", node_type=it, nodes=())) for it in "ab")
    assert [len(it) for it in told(one, other, replace(one, faults=(*one.faults, *other.faults)))] == [1, 1, 1]


def test_why_all_stands_still_is_told_again_only_in_other_words() -> None:
    def still(source: str, old_s: float) -> Plan:
        return Plan(stands_still=because(Code.STALE, source=source, age_s=old_s, stale_after_s=30.0, failure=""))

    lines = told(still("cloud", 60.0), still("cloud", 61.0), still("queue", 61.0))
    assert [[it["event"] for it in found] for found in lines] == [["stands_still"], [], ["stands_still"]]


def test_the_number_of_waiting_jobs_is_told_when_it_changes() -> None:
    world = a_world(nodes_max=1).job(whole_nodes(2))
    one = world.plan()
    two = world.job(whole_nodes(2)).plan()
    lines = told(one, one, two, acts=False)
    waits = [[it for it in found if it["event"] == "jobs_wait"] for found in lines]
    assert [len(it) for it in waits] == [1, 0, 1]
    assert sum(count for name, count in waits[2][0].items() if name not in ("event", "log_level")) == 2


def test_jobs_that_wait_for_a_node_on_its_way_are_not_told() -> None:
    (lines,) = told(a_world().job(whole_nodes(1)).plan())
    assert [it["event"] for it in lines] == ["decided"]


def test_one_that_acts_tells_each_order_and_one_that_observes_tells_it_once() -> None:
    made = a_world().job(whole_nodes(1)).plan()
    assert [[it["event"] for it in found] for found in told(made, made)] == [["decided"], ["decided"]]
    assert [[it["event"] for it in found] for found in told(made, made, acts=False)] == [["would"], []]
