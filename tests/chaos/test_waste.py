"""The rules about wasted nodes can fail: runs with a planner that wastes nodes break them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner import node_steps, observe_cloud
from nodemanager.planner.step_context import StepContext, Verdict
from tests.chaos.command import run_seed, scenario_for_seed, silence_logs
from tests.chaos.run import site

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _quiet() -> None:
    silence_logs()


@pytest.mark.parametrize(
    "stated",
    [
        because(Code.PAID_TIME_LEFT, idle_s=1.0, window_left_s=1.0, stop_lead_s=1.0),
        because(Code.WINDOW_CLOSES, idle_s=1.0, window_left_s=1.0, stop_lead_s=1.0),
        because(Code.SPARE, node_type="small", spares=1),  # the site has no spares
        because(Code.PREPAID, node_type="small", prepaid=1),  # no node is prepaid
        because(Code.WANTED, jobs=("f1",)),  # no job waits
        because(Code.HELD_BY_DRAIN, drain_reason="broken"),  # nobody drained it
    ],
    ids=lambda it: str(it.code),
)
def test_a_node_that_is_kept_for_nothing_breaks_a_rule(monkeypatch: Patch, stated: Reason) -> None:
    monkeypatch.setattr(node_steps, "should_retire", lambda *_, **__: Verdict(stated))
    broken = run_seed(5)
    assert broken is not None
    assert "is idle for" in broken.rule


def test_spares_that_are_bought_and_ended_again_and_again_break_a_rule(monkeypatch: Patch) -> None:
    """Purchases know of spares, and retirement does not."""
    small, *others = site.NODE_TYPES
    monkeypatch.setattr(site, "NODE_TYPES", (replace(small, spares=1), *others))
    monkeypatch.setattr(node_steps, "_why_type_keeps", lambda *_: None)
    monkeypatch.setattr(StepContext, "_are_all_needed", lambda *_: False)
    broken = run_seed(6)
    assert broken is not None
    assert "of small in a row booted and were ended without a job" in broken.rule


def test_a_node_that_is_given_up_because_its_list_is_late_breaks_a_rule(monkeypatch: Patch) -> None:
    monkeypatch.setattr(observe_cloud, "_is_due_in_lists", lambda *_: True)
    broken = run_seed(43)
    assert broken is not None
    assert "only listed late" in broken.rule


def test_some_seeds_have_lists_that_are_minutes_late() -> None:
    sites = [scenario_for_seed(seed).script for seed in range(100)]
    assert 5 < sum(60.0 <= it.list_lag_s <= 240.0 for it in sites) < 30
    assert {it.covers_lag for it in sites if it.list_lag_s} == {True, False}
