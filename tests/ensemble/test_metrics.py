"""The streaming statistics, compared with known figures and with a recording of river."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.ensemble.file.model import Count, MetricName
from nodemanager.ensemble.metrics import Metrics, Series
from tests.paths import ROOT

RIVER = json.loads((ROOT / "tests" / "data" / "ensembles" / "river.json").read_text())
DATA = (0.5, 2.25, 1, 8, 3.5, 0.75, 12, 4, 4, 6.5, 1.5, 20)
# What ensemble-python shows after each datum.
GOLDEN = {
    "variance": (
        0, 1.53125, 0.8125, 11.932291667, 9.0125, 8.091666667, 19.1875, 16.446428571, 14.390625, 13.416666667,
        12.7625, 32.935606061,
    ),
    "iqr": (
        0, 1.75, 1.75, 7, 2.5, 0.916666667, 0.916666667, 2.291666667, 3.6015625, 4.5421875, 4.5421875, 5.147222222,
    ),
    "mad": (0, 0, 0, 0, 0, 0, 0, 0.548611111, 1.188657407, 1.188657407, 1.702980324, 1.702980324),
}  # fmt: skip


@pytest.mark.parametrize("statistic", GOLDEN)
def test_each_datum_changes_a_figure_as_in_ensemble_python(statistic: str) -> None:
    series, figures = Series(), []
    for value in DATA:
        series.add(value)
        figures.append(series.get(statistic))
    assert figures == pytest.approx(GOLDEN[statistic], abs=1e-6)


@pytest.mark.parametrize("stream", RIVER["streams"], ids=lambda stream: stream["name"])
def test_the_figures_are_those_of_river(stream: dict[str, Any]) -> None:
    series = Series((0.05, 0.5, 0.9, 0.95, 0.99))
    after = {recorded["n"]: recorded for recorded in stream["after"]}
    for number, value in enumerate(stream["data"], start=1):
        series.add(value)
        if recorded := after.get(number):
            for statistic in ("mean", "variance", "iqr", "mad"):
                assert series.get(statistic) == pytest.approx(recorded[statistic], abs=1e-6), (number, statistic)
            for fraction, figure in recorded["quantiles"].items():
                assert series.quantile(float(fraction)) == pytest.approx(figure, abs=1e-6), (number, fraction)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_exact_figures_are_those_of_the_statistics_module(data: list[float]) -> None:
    series = Series()
    for value in data:
        series.add(value)
    assert series.mean == pytest.approx(statistics.fmean(data), abs=1e-6)
    assert series.variance == pytest.approx(statistics.variance(data), rel=1e-6, abs=1e-3)
    assert (series.min, series.max) == (min(data), max(data))
    assert 0 <= series.iqr <= series.max - series.min
    assert series.mad >= 0


def test_a_metric_has_no_value_before_its_first_datum() -> None:
    metrics = Metrics()
    assert metrics.value(MetricName("mean", "sim", "pending")) is None
    assert metrics.value(MetricName("count", "sim", "failed")) is None
    metrics.add("sim", "pending", 2.0)
    metrics.count("sim", Count.SUCCESS)
    assert metrics.value(MetricName("mean", "sim", "pending")) == 2.0
    assert metrics.value(MetricName("mean", "sim", "duration")) is None
    assert metrics.value(MetricName("count", "sim", "success")) == 1
    assert metrics.value(MetricName("count", "sim", "failed")) is None, "as in ensemble-python: none failed yet"


def test_only_the_quantiles_that_a_rule_asks_for_are_estimated() -> None:
    asked = MetricName("quantile", "sim", "duration", 0.95)
    metrics = Metrics([asked])
    for value in range(100):
        metrics.add("sim", "duration", float(value))
    assert metrics.value(asked) == pytest.approx(94, abs=2)
    assert metrics.value(MetricName("quantile", "sim", "duration", 0.5)) is None
    assert metrics.models()["p95"] == {"sim-duration": metrics.value(asked)}
