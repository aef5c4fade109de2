from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import NodeState
from nodemanager.core.slots import Billing
from nodemanager.planner.billing import age_s, cost, node_share, paid_s, window_left_s
from tests.builders import NOW_S, a_node, a_type

HOURLY = Billing(3600)
PER_SECOND = Billing(1, minimum_s=60)
OWN_HARDWARE = Billing(0)

RULES = st.builds(
    Billing,
    window_s=st.sampled_from([0.0, 1.0, 60.0, 600.0, 3600.0]),
    minimum_s=st.sampled_from([0.0, 60.0, 90.0, 3600.0]),
)
AGES = st.floats(0, 10**7, allow_nan=False)


@pytest.mark.parametrize(
    ("billing", "lived_s", "billed_s"),
    [
        (HOURLY, 0, 3600),
        (HOURLY, 1, 3600),
        (HOURLY, 3600, 3600),  # at its exact end the next window is not billed yet
        (HOURLY, 3600.5, 7200),
        (PER_SECOND, 3, 60),
        (PER_SECOND, 60.5, 61),
        (Billing(60, minimum_s=90), 1, 120),  # the minimum, in whole windows
        (OWN_HARDWARE, 10**6, 0),
    ],
)
def test_what_is_begun_is_paid(billing: Billing, lived_s: float, billed_s: float) -> None:
    assert paid_s(billing, lived_s) == billed_s


@pytest.mark.parametrize(
    ("billing", "lived_s", "left_s"),
    [
        (HOURLY, 0, 3600),
        (HOURLY, 3320, 280),
        (HOURLY, 3600, 0),
        (HOURLY, 3601, 3599),
        (PER_SECOND, 20, 40),
        (PER_SECOND, 61, 0),
        (OWN_HARDWARE, 5, 0),
    ],
)
def test_what_is_left_of_the_window(billing: Billing, lived_s: float, left_s: float) -> None:
    assert window_left_s(billing, lived_s) == left_s


@given(RULES, AGES)
def test_a_bill_is_whole_windows_and_covers_life_and_minimum(billing: Billing, lived_s: float) -> None:
    billed_s = paid_s(billing, lived_s)
    if billing.window_s == 0:
        assert billed_s == 0
        return
    assert billed_s % billing.window_s == 0
    assert billed_s >= billing.window_s
    assert billed_s >= max(lived_s, billing.minimum_s) or math.isclose(billed_s, lived_s)


@given(RULES, AGES)
def test_no_more_is_billed_than_the_window_that_is_under_way(billing: Billing, lived_s: float) -> None:
    due_s = max(lived_s, billing.minimum_s, billing.window_s)
    assert paid_s(billing, lived_s) < due_s + billing.window_s or billing.window_s == 0


@given(RULES, AGES, AGES)
def test_a_longer_life_never_costs_less(billing: Billing, one_s: float, other_s: float) -> None:
    node_type = a_type(window_s=billing.window_s, minimum_s=billing.minimum_s)
    shorter_s, longer_s = sorted([one_s, other_s])
    assert cost(node_type, shorter_s) <= cost(node_type, longer_s)


@given(RULES, AGES)
def test_time_left_is_paid_for_and_not_used(billing: Billing, lived_s: float) -> None:
    left_s = window_left_s(billing, lived_s)
    assert 0 <= left_s <= max(billing.window_s, billing.minimum_s + billing.window_s)
    if left_s > 0:
        assert lived_s + left_s == pytest.approx(paid_s(billing, lived_s))


def test_cost_is_exact_in_the_site_s_currency() -> None:
    assert cost(a_type(price="0.10", window_s=3600), 7200) == Decimal("0.20")
    assert cost(a_type(price="0.36", window_s=1), 10) == Decimal("0.001")
    assert cost(a_type(price="0", window_s=3600), 10**6) == 0


def test_the_bill_runs_from_the_provider_s_word_and_before_it_from_our_asking() -> None:
    assert age_s(a_node(billed_from_s=NOW_S - 40), NOW_S) == 40
    requested = a_node(state=NodeState.REQUESTED, requested_s=NOW_S - 7)
    assert age_s(requested, NOW_S) == 7


def test_a_creation_in_the_future_is_no_negative_age() -> None:
    assert age_s(a_node(billed_from_s=NOW_S + 300), NOW_S) == 0


@pytest.mark.parametrize(
    ("cores", "gpus", "share"),
    [
        (2, 0, (2, 8)),
        (2, 1, (1, 2)),  # half of the GPUs is more than a quarter of the cores
        (4, 1, (4, 8)),
        (8, 1, (8, 8)),
        (0, 2, (2, 2)),
    ],
)
def test_a_job_has_its_larger_share_of_the_cores_and_of_the_gpus(
    cores: int, gpus: int, share: tuple[int, int]
) -> None:
    assert node_share(cores, gpus, of_cores=8, of_gpus=2) == share


def test_of_a_node_of_unknown_size_a_job_has_no_share() -> None:
    assert node_share(4, 0, of_cores=0, of_gpus=0) == (0, 1)
