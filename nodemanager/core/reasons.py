"""Why something was decided, or was not: a code and its figures. A reason explains and never steers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


Figure = str | int | float | Decimal | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and the figures behind it. Sentences are made of it at the edge (``explain``), never stored."""

    code: str
    figures: Mapping[str, Figure] = field(default_factory=_nothing)

    def __str__(self) -> str:
        return " ".join([self.code, *(f"{name}={_shown(value)}" for name, value in self.figures.items())])


def because(code: str, **figures: Figure) -> Reason:
    """Make a reason: ``because("paid_time_left", window_left_s=280)``."""
    return Reason(code, MappingProxyType(figures))


def _shown(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
