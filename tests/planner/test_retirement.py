from __future__ import annotations

from typing import Any

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import CloudState, NodeState
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import Billing
from nodemanager.history.node_lives import BOOT_FAILURES
from nodemanager.planner.billing import window_left_s
from nodemanager.planner.node_health import why_give_up
from nodemanager.planner.node_steps import StopObstacle, second_look
from nodemanager.planner.step_context import should_retire
from tests.builders import NOW_S, a_cloud_node, a_launch, a_node, a_policy, a_rank, a_type, busy, drained

POLICY = a_policy(a_type("cloud", window_s=3600), stop_lead_s=60, idle_timeout_s=300, idle_confirmations=2)
OURS = drain_text(a_launch("cloud1").id)
UP = a_rank("cloud1", online=True)


def _weigh(*, surplus: int = 1, window_s: float = 3600, minimum_s: float = 0, **node: Any) -> tuple[bool, Reason]:
    node_type = a_type("cloud", window_s=window_s, minimum_s=minimum_s)
    verdict = should_retire(a_node("cloud1", **node), node_type, POLICY, NOW_S, surplus)
    return verdict.retires, verdict.reason


# --- idle nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_s", "goes"),
    [
        (0, False),
        (3539, False),
        (3540, True),  # the last safe moment: only the lead is left
        (3599, True),
        (3600, True),  # the exact end: the next window is not billed yet
        (3601, False),  # missed: the next window is paid for
        (7140, True),
    ],
)
def test_a_node_billed_by_the_hour_goes_as_its_window_closes(age_s: float, goes: bool) -> None:
    decided, reason = _weigh(billed_from_s=NOW_S - age_s)
    assert decided is goes
    assert reason.code == ("window_closes" if goes else "paid_time_left")
    assert reason.figures["window_left_s"] == window_left_s(Billing(3600), age_s)
    assert reason.figures["stop_lead_s"] == 60


@pytest.mark.parametrize(("idle_s", "goes"), [(0, False), (299, False), (300, True), (5000, True)])
def test_a_node_billed_by_the_second_goes_after_long_enough_without_work(idle_s: float, goes: bool) -> None:
    decided, reason = _weigh(window_s=1, idle_since_s=NOW_S - idle_s)
    assert decided is goes
    assert reason.code == ("window_closes" if goes else "idle_not_long")
    assert reason.figures["idle_s"] == idle_s


def test_one_s_own_hardware_goes_after_long_enough_without_work() -> None:
    assert _weigh(window_s=0, idle_since_s=NOW_S - 299)[0] is False
    assert _weigh(window_s=0, idle_since_s=NOW_S - 301)[0] is True


def test_a_minimum_that_is_paid_is_used() -> None:
    decided, reason = _weigh(window_s=1, minimum_s=1800, billed_from_s=NOW_S - 900, idle_since_s=NOW_S - 800)
    assert not decided
    assert reason.code == "paid_time_left"
    assert reason.figures["window_left_s"] == 900


@pytest.mark.parametrize(
    ("changes", "surplus", "code"),
    [
        ({"rank": drained(UP, "broken fan")}, 1, "held_by_drain"),
        ({"idle_looks": 1}, 1, "idle_unconfirmed"),
        ({}, 0, "nodes_min"),
        ({}, -3, "nodes_min"),
    ],
)
def test_what_keeps_an_idle_node_at_the_end_of_its_window(changes: dict[str, Any], surplus: int, code: str) -> None:
    decided, reason = _weigh(billed_from_s=NOW_S - 3590, surplus=surplus, **changes)
    assert not decided
    assert reason.code == code


def test_a_node_of_a_type_that_the_site_no_longer_names_goes_when_idle() -> None:
    verdict = should_retire(a_node(), None, POLICY, NOW_S, 1)
    assert verdict.retires
    assert verdict.reason.figures["node_type"] == "cloud"


# --- nodes that never serve -------------------------------------------------------------------------------


def _overdue(state: NodeState, **changes: Any) -> str | None:
    given_up = why_give_up(a_node("cloud1", state, **changes), POLICY, NOW_S)
    assert given_up is None or given_up.boot_failed == (given_up.reason.code in BOOT_FAILURES)
    return given_up.reason.code if given_up is not None else None


def test_a_node_that_does_not_join_in_time_is_given_up() -> None:
    assert _overdue(NodeState.BOOTING, requested_s=NOW_S - 899, since_s=NOW_S - 800) is None
    assert _overdue(NodeState.BOOTING, requested_s=NOW_S - 900, since_s=NOW_S - 800) == "never_joined"


def test_a_node_found_after_a_restart_gets_the_time_to_rejoin() -> None:
    """To a manager that has just started, a broker that is briefly away looks like one that never joined."""
    assert _overdue(NodeState.BOOTING, requested_s=NOW_S - 86400, since_s=NOW_S - 119) is None
    assert _overdue(NodeState.BOOTING, requested_s=NOW_S - 86400, since_s=NOW_S - 120) == "never_joined"


def test_a_node_that_failed_at_the_provider_is_given_up_at_once() -> None:
    failed = a_cloud_node(a_launch(), state=CloudState.FAILED, died_because="no such image")
    assert _overdue(NodeState.BOOTING, cloud=failed) == "failed_at_provider"


def test_a_node_whose_broker_is_lost_gets_the_time_to_rejoin() -> None:
    assert _overdue(NodeState.LOST, since_s=NOW_S - 119) is None
    assert _overdue(NodeState.LOST, since_s=NOW_S - 120) == "broker_lost"


@pytest.mark.parametrize(
    "state", [state for state in NodeState if state not in (NodeState.BOOTING, NodeState.LOST)]
)
def test_no_other_node_is_ever_overdue(state: NodeState) -> None:
    assert _overdue(state, requested_s=0.0, since_s=0.0) is None


# --- the second look --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "obstacle"),
    [
        (drained(UP, OURS), None),
        (a_rank("cloud1"), None),  # offline, and no job on it
        (drained(busy(UP), OURS), StopObstacle.JOB_SLIPPED_IN),
        (a_rank("cloud1", allocated=True), StopObstacle.JOB_SLIPPED_IN),
        (a_rank("cloud1", online=True, drain_reason=OURS), StopObstacle.STILL_SCHEDULABLE),
        (a_rank("cloud1", online=True, schedulable=False), StopObstacle.NOT_DRAINED),
        (drained(UP, "broken fan"), StopObstacle.HELD_BY_DRAIN),
        (drained(busy(UP), "broken fan"), StopObstacle.HELD_BY_DRAIN),
        (drained(UP, ""), StopObstacle.HELD_BY_DRAIN),  # drained by hand without giving a reason
    ],
)
def test_the_second_look(rank: Any, obstacle: StopObstacle | None) -> None:
    assert second_look(a_node("cloud1", NodeState.DRAINING), rank) is obstacle
