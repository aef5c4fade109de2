"""Reasons as sentences and moments as clock times, for display only: nothing here is stored.

A reason is shown as its code and figures if this version does not know the code, or if a figure of the sentence is
missing. ``doc/reasons.md`` says what to do about each reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import get_type_hints

from nodemanager.core.notation import compress_hostlist, format_fsd, format_job_id
from nodemanager.core.reason_codes import Code, Figure, Figures
from nodemanager.core.reasons import Reason

# Figures that name a moment by the monotonic clock, which means nothing outside this process.
MOMENT_FIGURES: Mapping[str, str] = {
    "deadline_s": "deadline_at",
    "retry_s": "retry_at",
    "until_s": "until_at",
    "settles_at_s": "settles_at",
    "since_s": "since_at",
}
# Amounts. The history and HTTP have them as floats.
MONEY_FIGURES = frozenset(name for name, kind in get_type_hints(Figures).items() if kind is Decimal)
JOB_FIGURES = frozenset({"job", "jobs"})  # if they hold ids; ``jobs`` may also be a count
_USER = re.compile(r"\buser ([0-9]{1,10})\b")  # an account, as ``planner.budget`` names it
# "1 jobs" and "1 other jobs", where a sentence counts: no digit, "." or letter before it.
_ONE_OF_MANY = re.compile(r"(?<![\w.,-])1( other|) (job|node|shape|time|signal|core|GPU)s\b")
_OPTIONAL_PART = re.compile("<([^<>]*)>")
_FIGURE = re.compile(r"{(\w+)}")
# The sentence of each code, with the names that moments have once they are converted.
_TEMPLATES: Mapping[str, str] = {
    code: _FIGURE.sub(lambda found: f"{{{MOMENT_FIGURES.get(found[1], found[1])}}}", code.sentence) for code in Code
}
_TRAILING_MOMENT = re.compile(r" at (-?[0-9]+\.[0-9]+)$")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One moment read from both clocks, which converts monotonic moments to wall-clock time."""

    now_s: float
    wall_at: float

    def to_wall(self, moment_s: float) -> float:
        """Convert a monotonic moment to wall-clock time."""
        return self.wall_at + (moment_s - self.now_s)

    def figures(self, reason: Reason) -> dict[str, Figure]:
        """Convert a reason's figures: moments to wall-clock time (``until_s`` to ``until_at``), job ids to F58."""
        return dict(self._figure(name, value) for name, value in reason.figures.items())

    def sentence(self, reason: Reason) -> str:
        """Write a reason as a sentence for people."""
        return to_sentence(reason.code, self.figures(reason))

    def _figure(self, name: str, value: Figure) -> tuple[str, Figure]:
        if name in MOMENT_FIGURES and isinstance(value, float):
            return MOMENT_FIGURES[name], self.to_wall(value)
        if name in JOB_FIGURES and isinstance(value, tuple):
            return name, tuple(map(_job_id, value))
        return name, _job_id(value) if name in JOB_FIGURES and isinstance(value, str) else value

    def with_wall_time(self, line: str) -> str:
        """Replace the monotonic moment at the end of a line (" at 12.345") by wall-clock time."""
        return _TRAILING_MOMENT.sub(lambda found: f" at {format_wall_time(self.to_wall(float(found[1])))}", line)


def with_user_names(text: str, name_of: Callable[[int], str]) -> str:
    """Replace the ids of users in a sentence ("user 1000") by their names."""
    return _USER.sub(lambda found: f"user {name_of(int(found[1]))}", text)


def _job_id(text: str) -> str:
    return format_job_id(int(text)) if text.isascii() and text.isdecimal() else text


def format_wall_time(at: float) -> str:
    """``2026-11-21T14:03:20Z``"""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_sentence(code: str, figures: Mapping[str, Figure]) -> str:
    """Write a reason as a sentence. ``figures`` come from :meth:`ClockReading.figures`, or from a stored history.

    A history may hold codes and figures of another version: these are shown as they are.
    """
    shown = {name: _format_figure(name, value) for name, value in figures.items()}
    if (template := _TEMPLATES.get(code)) is not None:
        template = _OPTIONAL_PART.sub(
            lambda part: part[1] if all(map(shown.get, _FIGURE.findall(part[1]))) else "", template
        )
        try:
            sentence = template.format_map(shown).removesuffix(": ")  # some have no text
            return _ONE_OF_MANY.sub(lambda found: f"1{found[1]} {found[2]}", sentence)
        except KeyError:
            pass
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    return code.replace("_", " ") + (f": {rest}" if rest else "")


def _format_figure(name: str, value: Figure) -> str:
    if isinstance(value, tuple):
        return compress_hostlist(value) if name == "nodes" else ", ".join(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return str(value)
    if name.endswith("_at"):
        return format_wall_time(float(value))
    if name.endswith("_s"):
        return format_duration(float(value))
    if isinstance(value, Decimal) or name in MONEY_FIGURES:
        return format_money(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_currency = ""  # of every amount that this process writes for people


def use_currency(currency: str) -> None:
    """Write all amounts from now on in the site's currency: a code of three letters, a symbol, or "" for none."""
    global _currency  # noqa: PLW0603 - a process works on one site, which has one currency
    _currency = currency


def used_currency() -> str:
    """The currency in use; "" if there is none."""
    return _currency


def with_currency(amount: str) -> str:
    """Add the currency to a written amount: "12.50 EUR", "€12.50"."""
    if not _currency:
        return amount
    if _currency.isalpha():
        return f"{amount} {_currency}"
    sign = "-" if amount.startswith("-") else ""
    return f"{sign}{_currency}{amount.removeprefix('-')}"


def format_money(amount: Decimal | float) -> str:
    """Write an amount to four digits, with 2 to 6 decimals: "12.50", "0.0116", "0.000234"; with the currency."""
    value = float(amount)
    if not math.isfinite(value):
        return str(value)
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    whole, _, decimals = f"{value:.{max(2, min(6, digits))}f}".partition(".")
    return with_currency(f"{whole}.{decimals.rstrip('0'):0<2}")


def format_total(amount: float) -> str:
    """Write a sum to two decimals: "12,345.60"; with the currency."""
    return with_currency(f"{amount:,.2f}")


def format_duration(span_s: float) -> str:
    """Write a duration to the second, or to the minute above an hour: "1m40s", "3h05m"."""
    whole = round(abs(span_s))
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else (f"{seconds}s" if seconds else format_fsd(0.0))
