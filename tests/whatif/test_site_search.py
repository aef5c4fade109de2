"""Random sites. ``python -m tests.whatif.site_search --seeds 0-2999`` tries more."""

from __future__ import annotations

import pytest

from nodemanager.planner.policy import Policy
from tests.whatif.site_search import try_site

SITES = 100
AT_ONCE = 10


@pytest.mark.parametrize("first", range(0, SITES, AT_ONCE))
def test_no_rule_breaks_on_a_random_site(first: int) -> None:
    tried = [try_site(seed) for seed in range(first, first + AT_ONCE)]
    assert sum(it.refused for it in tried) < AT_ONCE / 2, [it.text for it in tried if it.refused]
    assert {it.seed: it.broken for it in tried if it.broken} == {}


def test_a_site_whose_cost_no_setting_explains_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle nodes are kept for three hours, whatever the site says."""
    monkeypatch.setattr(Policy, "idle_timeout_s", lambda *_: 3 * 3600.0)
    broken = [rule for seed in range(10) for rule in try_site(seed).broken]
    assert any(it.startswith("dearer: ") for it in broken)


def test_the_setting_that_makes_a_site_dearer_is_named() -> None:
    """By the hour, with stops of five minutes and a ``stop_lead`` of ten seconds: each node pays two hours."""
    tried = try_site(1306)
    assert (tried.broken, tried.why) == ((), ["billing"])
    assert tried.dearer > 2.0
