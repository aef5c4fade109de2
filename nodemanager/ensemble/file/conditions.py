"""Read the two small notations of a rule: ``when``, and the path of a metric."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

from nodemanager.ensemble.file.model import Condition, Count, MetricName

STATISTICS = ("mean", "variance", "iqr", "max", "min", "mad")
SPANS = ("pending", "duration")
_QUANTILE = re.compile(r"p(?P<percent>\d{1,3}(?:\.\d+)?)\.(?P<rest>.+)", re.ASCII)
_SHORT_QUANTILE = re.compile(r"p(?P<percent>\d{1,3})\.(?P<rest>.+)", re.ASCII)
# Spaces are stripped first, and looked at one at a time: two patterns for the same spaces would try every division.
_COMPARISON = re.compile(r"(?P<sign><=|>=|==|!=|<|>|=)?\s*(?P<number>[^\s<>=!]+)", re.ASCII)
_AND = re.compile(r"(?<=\s)and(?=\s)", re.IGNORECASE)
_SHOWN_MAX = 60
EXAMPLE = 'use a number, or comparisons such as "> 5", "<= -0.5" or "> 5 and < 7"'


def read_condition(when: float | str) -> Condition:
    """Read ``when``: a number must be equal; a text holds comparisons joined by "and". Raises ``ValueError``."""
    if not isinstance(when, str):
        try:
            return Condition((("==", float(when)),))
        except OverflowError:
            raise ValueError(f"the number is too large: {EXAMPLE}") from None
    return Condition(tuple(_comparison(part) for part in _AND.split(when)))


def _comparison(text: str) -> tuple[str, float]:
    found = _COMPARISON.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'"{text.strip()[:_SHOWN_MAX]}" is not a comparison: {EXAMPLE}')
    try:
        number = float(found["number"])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f'"{found["number"][:_SHOWN_MAX]}" is not a number: {EXAMPLE}')
    sign = found["sign"] or "=="
    return ("==" if sign == "=" else sign), number


def read_metric(path: str, groups: Collection[str]) -> MetricName:
    """Read the path of a metric, such as ``mean.sim-pending``, ``count.sim.success`` or ``p95.sim-duration``.

    A group's name may contain dots. Raises ``ValueError``.
    """
    readings = list(_readings(path))
    known = [reading for reading in readings if reading.group in groups]
    if not readings:
        raise ValueError(
            f'"{path}" is not a metric: use count.GROUP.{{{",".join(Count)}}}, or one of '
            f"{', '.join(STATISTICS)} or a percentile such as p95, followed by .GROUP-pending or .GROUP-duration"
        )
    return (known or readings)[0]


def _readings(path: str) -> Iterator[MetricName]:
    statistic, _, rest = path.partition(".")
    if statistic == "count":
        group, _, count = rest.rpartition(".")
        if group and count in set(Count):
            yield MetricName("count", group, count)
    elif statistic in STATISTICS:
        yield from _span(statistic, rest, 0.0)
    for pattern in (_QUANTILE, _SHORT_QUANTILE):  # of "p99.9.x" the group is "x", or "9.x"
        if (found := pattern.fullmatch(path)) and 0 <= float(found["percent"]) <= 100:
            yield from _span("quantile", found["rest"], round(float(found["percent"]) / 100, 9))


def _span(statistic: str, rest: str, fraction: float) -> Iterator[MetricName]:
    group, _, span = rest.rpartition("-")
    if group and span in SPANS:
        yield MetricName(statistic, group, span, fraction)
