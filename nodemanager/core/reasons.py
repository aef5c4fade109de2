"""Reasons for decisions and inaction: a code and its figures. A reason explains and never steers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType


def _no_figures() -> Mapping[str, str]:
    return MappingProxyType({})


Figure = str | int | float | Decimal | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its figures. ``reason_text`` turns it into a sentence for display; sentences are never stored."""

    code: str
    figures: Mapping[str, Figure] = field(default_factory=_no_figures)

    def with_figures(self, **figures: Figure) -> Reason:
        """The same reason with more figures."""
        return Reason(self.code, MappingProxyType({**self.figures, **figures}))

    def __str__(self) -> str:
        return " ".join([self.code, *(f"{name}={_format_figure(value)}" for name, value in self.figures.items())])


def because(code: str, **figures: Figure) -> Reason:
    """Make a reason: ``because("paid_time_left", window_left_s=280)``."""
    return Reason(code, MappingProxyType(figures))


def _format_figure(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
