"""One site and others like it: a sweep over a key, and what differs between two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise

from pydantic import ValidationError

from nodemanager.config.site import Site
from nodemanager.config.text.settings import (
    LimitsSettings,
    PolicySettings,
    SectionSettings,
    SimulationSettings,
    TimingSettings,
    allowed_keys,
)
from nodemanager.core.notation import NotationError, format_fsd, parse_fsd

SECTIONS: Mapping[str, type[SectionSettings]] = {
    "policy": PolicySettings,
    "timing": TimingSettings,
    "limits": LimitsSettings,
    "simulation": SimulationSettings,
}
STEPS = 7
STEPS_MAX = 100
FIGURES = range(2, 16)  # a mark is said in as few as keep the marks apart


class SweepError(Exception):
    """The sweep cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key of the site, and the values that it is to have, as they would be written.

    ``caution``: in what it is not as it was asked for; "" where it is.
    """

    key: str
    values: tuple[str, ...]
    caution: str = ""


def read_sweep(text: str) -> Sweep:
    """``idle_timeout=1m..1h`` (7 steps, each as many times the one before), ``..1h/12``, or ``=1m,5m,1h``.

    The ends are as they were written, and the marks between them whole where the key's values are.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise SweepError(f'--sweep {text}: "KEY=FROM..TO", "KEY=FROM..TO/STEPS" or "KEY=A,B,C" is needed')
    if ".." not in values:
        return Sweep(key, tuple(dict.fromkeys(value.strip() for value in values.split(","))))
    span, _, steps = values.partition("/")
    first, _, last = (part.strip() for part in span.partition(".."))
    try:
        count = int(steps) if steps else STEPS
        low, high = parse_fsd(first), parse_fsd(last)
    except (ValueError, NotationError) as error:
        raise SweepError(f"--sweep {text}: {error}") from error
    if not (0 < low < high < math.inf and 2 <= count <= STEPS_MAX):
        raise SweepError(f"--sweep {text}: a span above 0 that rises, in 2 to {STEPS_MAX} steps, is needed")
    section, name = _field(key)
    between = _marks_between(low, high, count - 2, _writer_for(SECTIONS[section], name))
    marks = (first, *between, last)
    caution = f"--sweep {text}: only {len(marks)} values lie so: {', '.join(marks)}" if len(marks) < count else ""
    return Sweep(key, marks, caution)


def _marks_between(low: float, high: float, count: int, write: Callable[[float, int], str]) -> Sequence[str]:
    """So many marks between two, each as many times the one before; fewer where these cannot be told apart."""
    factor = (high / low) ** (1 / (count + 1))
    exact = [low * factor**step for step in range(1, count + 1)]
    for figures in FIGURES:
        written = [write(mark, figures) for mark in exact]
        values = [low, *map(parse_fsd, written), high]
        if all(before < after for before, after in pairwise(values)):
            return written
    return [mark for mark in dict.fromkeys(written) if low < parse_fsd(mark) < high]


def _writer_for(settings: type[SectionSettings], name: str) -> Callable[[float, int], str]:
    """How a key's values are written, in so many figures."""
    if name.endswith("_s"):
        return _duration
    return _whole if settings.model_fields[name].annotation is int else _number


def _duration(mark_s: float, figures: int) -> str:
    """Its figures are those of its own unit, so that it can be said."""
    length_s = next((length_s for length_s in (3600.0, 60.0) if mark_s >= length_s), 1.0)
    return format_fsd(float(f"{mark_s / length_s:.{figures}g}") * length_s)


def _whole(mark: float, figures: int) -> str:
    return str(round(float(f"{mark:.{figures}g}")))


def _number(mark: float, figures: int) -> str:
    return f"{Decimal(f'{mark:.{figures}g}'):f}"


def variants(site: Site, sweep: Sweep) -> Iterator[tuple[str, Site]]:
    """The site with each of the values, named by it."""
    for value in sweep.values:
        yield f"{sweep.key}={value}", with_key(site, sweep.key, value)


def with_key(site: Site, key: str, value: str) -> Site:
    """The site with one key of another value. Raises :class:`SweepError` for one that may not be."""
    section, name = _field(key)
    changed = {section: _with_value(getattr(site, section), name, key, value)}
    return replace(site, **changed)  # type: ignore[arg-type]  # of the section's own class


def _field(key: str) -> tuple[str, str]:
    """The section that has a key, and the field's name there."""
    for section, settings in SECTIONS.items():
        for name, field in settings.model_fields.items():
            if key in (name, field.validation_alias) and key in allowed_keys(settings):
                return section, name
    known = [name for settings in SECTIONS.values() for name in allowed_keys(settings)]
    raise SweepError(f'--sweep: no such key "{key}"; known are {", ".join(known)}')


def _with_value(settings: SectionSettings, name: str, key: str, value: str) -> SectionSettings:
    # What the site does not say stays unsaid: a run tells the two apart.
    kept = {other: getattr(settings, other) for other in settings.model_fields_set if other != name}
    try:
        return type(settings).model_validate({**kept, key: value})
    except ValidationError as error:
        why = error.errors()[0]["ctx"]["error"]
        raise SweepError(f"--sweep: {key} = {value}: {why}") from error


def differences(one: Site, other: Site) -> Mapping[str, tuple[str, str]]:
    """``[Section] key`` to what it is in each, where they differ."""
    first, second = _settings_text(one), _settings_text(other)
    return {
        key: (first.get(key, "-"), second.get(key, "-"))
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    }


def _settings_text(site: Site) -> dict[str, str]:
    written: dict[str, str] = {}
    for section in (*SECTIONS, "cloud"):
        settings: SectionSettings = getattr(site, section)
        for name, field in type(settings).model_fields.items():
            value = getattr(settings, name)
            shown = _format_value(name, value)
            written[f"[{section.title()}] {field.validation_alias or name}"] = shown
    for node_type in site.node_types:
        node = f"[Node {node_type.name}]"
        written[f"{node} price_per_hour"] = str(node_type.price_per_hour)
        written[f"{node} cores"] = str(node_type.cores)
        written[f"{node} gpus"] = str(node_type.gpus)
        written[f"{node} slots"] = str(len(node_type.slots))
        written[f"{node} market"] = str(node_type.market)
        written[f"{node} billing"] = f"{node_type.billing.window_s:g}s, {node_type.billing.minimum_s:g}s at least"
    return written


def _format_value(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, float) and math.isfinite(value):
        return format_fsd(value)
    return str(value)
