"""Reasons as sentences, and moments as clock times."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from nodemanager.core.reason_codes import Code, Figure
from nodemanager.core.reason_text import (
    ClockReading,
    format_duration,
    format_money,
    format_total,
    format_wall_time,
    to_sentence,
    use_currency,
    with_user_names,
)
from nodemanager.core.reasons import Reason, because

EDGE = ClockReading(now_s=500.0, wall_at=1_800_000_000.0)


def said(code: str, **figures: Figure) -> str:
    """Any code with any figures, as a history may hold them."""
    return to_sentence(code, EDGE.figures(Reason(Code.BUSY, figures)))


def test_a_reason_is_a_sentence_with_its_figures() -> None:
    assert (
        said("paid_time_left", idle_s=95.0, window_left_s=4000.0, stop_lead_s=60.0)
        == "idle for 1m35s, paid for 1h06m more (leaves when 1m00s are left)"
    )
    assert said("node_coming", nodes=("cloud2", "cloud3")) == "booting cloud[2-3]"


def test_a_job_is_named_as_flux_names_it() -> None:
    assert said("wanted", jobs=("11744051200000", "58")) == "needed by f6KVnbAAK, f21"
    assert said("behind_a_stuck_job", job="58") == "behind job f21, which cannot get its nodes"


def test_a_moment_of_the_monotonic_clock_is_shown_by_the_wall_clock() -> None:
    figures = EDGE.figures(because(Code.CALL_IN_FLIGHT, call="create", deadline_s=530.0))
    assert figures == {"call": "create", "deadline_at": 1_800_000_030.0}
    assert said("call_in_flight", call="create", deadline_s=530.0).endswith(
        "until 2027-01-15T08:00:30Z at the latest"
    )


def test_a_line_of_a_story_has_its_wall_clock_time() -> None:
    assert EDGE.with_wall_time("joined -> idle at 440.500") == "joined -> idle at 2027-01-15T07:59:00Z"
    assert EDGE.with_wall_time("no moment here") == "no moment here"


def test_a_blocked_type_is_explained_in_the_provider_s_words() -> None:
    assert (
        said("blocked_create_capacity", until_s=620.0, detail="none left")
        == "not bought until 2027-01-15T08:02:00Z: a create failed (capacity): none left"
    )


def test_a_code_without_a_sentence_is_shown_with_its_figures() -> None:
    assert (
        said("brand_new", price_left=Decimal("1.5"), waited_s=61.0) == "brand new: price left 1.50, waited s 1m01s"
    )


def test_a_reason_with_a_missing_figure_is_shown_as_its_code() -> None:
    assert said("stale", source="cloud") == "stale: source cloud"


@pytest.mark.parametrize(
    ("span_s", "text"), [(0.0, "0s"), (59.4, "59s"), (60.0, "1m00s"), (3600.0, "1h00m"), (90061.0, "25h01m")]
)
def test_durations(span_s: float, text: str) -> None:
    assert format_duration(span_s) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Decimal(0), "0.00"),
        (Decimal("0.0116"), "0.0116"),
        (0.000234, "0.000234"),
        (0.1 + 0.2, "0.30"),
        (2 / 15, "0.1333"),
        (Decimal("12.5"), "12.50"),
        (1234.567, "1234.57"),
        (Decimal(100), "100.00"),
        (-0.005, "-0.005"),
        (1e-9, "0.00"),
        (float("inf"), "inf"),
    ],
)
def test_money_has_as_many_decimals_as_it_needs(amount: Decimal | float, text: str) -> None:
    assert format_money(amount) == text
    assert format_money(Decimal(amount)) == text


def test_a_price_in_a_sentence_is_not_rounded_to_nothing() -> None:
    shown = said("price_per_hour_max", node_type="small", left=Decimal("0.0042"))
    assert "the 0.0042 left" in shown


@pytest.fixture
def euros() -> Iterator[None]:
    use_currency("EUR")
    yield
    use_currency("")


def test_every_amount_has_the_currency_of_the_site(euros: None) -> None:
    del euros
    assert format_money(12.5) == "12.50 EUR"
    assert format_total(-1234.5) == "-1,234.50 EUR"
    assert "the 0.0042 EUR left" in said("price_per_hour_max", node_type="small", left=Decimal("0.0042"))
    assert "the 0.0042 EUR left" in said("price_per_hour_max", node_type="small", left=0.0042), "from the history"
    use_currency("€")
    assert (format_money(12.5), format_total(-1234.5)) == ("€12.50", "-€1,234.50")
    assert format_money(float("inf")) == "inf"


def test_clock_time() -> None:
    assert format_wall_time(0.0) == "1970-01-01T00:00:00Z"


def test_users_are_named_by_name() -> None:
    names = {1000: "ada"}
    text = to_sentence(
        "budget_of_account",
        {"account": "user 1000", "period": "day", "budget": 5, "spent": 1, "left": 1, "costs": 1},
    )
    assert "with this job, user ada would exceed" in with_user_names(text, lambda userid: names[userid])
    assert with_user_names("superuser 1000, user x", str) == "superuser 1000, user x"


def test_one_of_something_is_told_in_the_singular() -> None:
    assert said("demand", job_count=1) == "bought for 1 job"
    assert said("demand", job_count=11) == "bought for 11 jobs"
    assert "holds up 1 other job:" in said("job_never_runs", job="58", job_count=1)
    assert "needs 1 node at 0.1" in said(
        "beyond_limits",
        node_count=1,
        price_per_hour=Decimal("0.1"),
        nodes_max=1,
        price_per_hour_max=Decimal("0.01"),
    )
