"""``when`` and the paths of metrics."""

from __future__ import annotations

import pytest

from nodemanager.ensemble.file.conditions import read_condition, read_metric
from nodemanager.ensemble.file.model import MetricName


@pytest.mark.parametrize(
    ("when", "held", "not_held"),
    [
        (3, 3, 4),
        (2.5, 2.5, 2),
        (-1, -1, 1),
        ("3", 3, 2),
        ("> 0.5", 0.6, 0.5),
        (">0.5", 0.6, 0.4),
        (">= -1", -1, -1.5),
        ("< 1e3", 999, 1000),
        ("<= 12.75", 12.75, 13),
        ("== 5", 5, 5.1),
        ("= 5", 5, 4),
        ("!= 5", 4, 5),
        ("> 5 and < 7", 6, 8),
        ("> 5 AND < 7", 6, 5),
    ],
)
def test_a_condition_compares_with_the_number_that_is_written(
    when: float | str, held: float, not_held: float
) -> None:
    condition = read_condition(when)
    assert condition.holds(held)
    assert not condition.holds(not_held)


@pytest.mark.parametrize("when", ["mean > 5", "> abc", "", ">", "> 5 < 7", "=> 5", "> 5 or < 3", "> nan", "<> 5"])
def test_what_is_no_comparison_is_refused(when: str) -> None:
    with pytest.raises(ValueError, match="use a number, or comparisons"):
        read_condition(when)


@pytest.mark.parametrize(
    ("path", "metric"),
    [
        ("count.sim.success", MetricName("count", "sim", "success")),
        ("count.a.b.refused", MetricName("count", "a.b", "refused")),
        ("mean.sim-pending", MetricName("mean", "sim", "pending")),
        ("max.big-sleep-duration", MetricName("max", "big-sleep", "duration")),
        ("iqr.v1.2-duration", MetricName("iqr", "v1.2", "duration")),
        ("p95.sim-pending", MetricName("quantile", "sim", "pending", 0.95)),
        ("p99.9.sim-pending", MetricName("quantile", "sim", "pending", 0.999)),
    ],
)
def test_a_metric_names_a_figure_of_a_group(path: str, metric: MetricName) -> None:
    assert read_metric(path, ["sim", "a.b", "big-sleep", "v1.2"]) == metric


def test_a_percentile_belongs_to_the_group_that_exists() -> None:
    assert read_metric("p99.9.sim-pending", ["9.sim"]) == MetricName("quantile", "9.sim", "pending", 0.99)


@pytest.mark.parametrize(
    "path", ["", "sum.sim-pending", "mean.sim", "count.sim", "count.sim.done", "p101.sim-pending"]
)
def test_what_is_no_metric_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a metric"):
        read_metric(path, ["sim"])


def test_spaces_cost_no_more_than_other_characters() -> None:
    spaces = " " * 1_000_000  # when each division of them was tried, 30,000 took 13 s
    assert read_condition(f">{spaces}5{spaces}and{spaces}< 7{spaces}") == read_condition("> 5 and < 7")
    for text in (spaces, f">{spaces}5{spaces}x", f"5{spaces}an{spaces}"):
        with pytest.raises(ValueError, match="not a"):
            read_condition(text)


def test_a_number_too_large_for_a_double_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        read_condition(10**400)
