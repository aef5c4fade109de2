"""Reasons for decisions and inaction: a code and its figures. A reason explains and never steers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Unpack, cast

from nodemanager.core.reason_codes import Code, Figure, Figures


def _no_figures() -> Mapping[str, Figure]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its figures. ``reason_text`` turns it into a sentence for display; sentences are never stored."""

    code: Code
    figures: Mapping[str, Figure] = field(default_factory=_no_figures)

    def with_figures(self, **figures: Unpack[Figures]) -> Reason:
        """The same reason with more figures."""
        return Reason(self.code, MappingProxyType({**self.figures, **cast("dict[str, Figure]", figures)}))

    def __str__(self) -> str:
        return " ".join([self.code, *(f"{name}={_format_figure(value)}" for name, value in self.figures.items())])


def because(code: Code, **figures: Unpack[Figures]) -> Reason:
    """Make a reason: ``because(Code.PAID_TIME_LEFT, idle_s=95.0, window_left_s=280.0, stop_lead_s=60.0)``.

    mypy checks the names and the types of the figures; ``tests/core/test_reason_codes.py`` checks that each
    call has the figures of its code.
    """
    return Reason(code, MappingProxyType(cast("dict[str, Figure]", figures)))


def _format_figure(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
