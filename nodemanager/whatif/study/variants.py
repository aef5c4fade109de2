"""Variants of a site: a sweep over the values of one key, and the differences between two sites."""

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
FIGURES = range(2, 16)  # the significant digits of a value: as few as keep all values apart


class SweepError(Exception):
    """The sweep is not possible. The text says why."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key of the site and its values in the sweep, as written in a site file.

    ``caution``: how the sweep differs from the request; "" if it does not.
    """

    key: str
    values: tuple[str, ...]
    caution: str = ""


def read_sweep(text: str) -> Sweep:
    """Read a sweep: ``idle_timeout=1m..1h`` (7 values in equal ratios), ``=1m..1h/12``, or ``=1m,5m,1h``.

    Both ends stay as written. The values between them are whole numbers if the key takes only those. Raises
    :class:`SweepError`.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise SweepError(f'--sweep {text}: give "KEY=FROM..TO", "KEY=FROM..TO/STEPS" or "KEY=A,B,C"')
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
        raise SweepError(f"--sweep {text}: give 0 < FROM < TO, and 2 to {STEPS_MAX} steps")
    section, name = _field(key)
    between = _marks_between(low, high, count - 2, _writer_for(SECTIONS[section], name))
    marks = (first, *between, last)
    caution = (
        f"--sweep {text}: there are only {len(marks)} values: {', '.join(marks)}" if len(marks) < count else ""
    )
    return Sweep(key, marks, caution)


def _marks_between(low: float, high: float, count: int, write: Callable[[float, int], str]) -> Sequence[str]:
    """Return ``count`` values between two, in equal ratios; fewer if they would not differ when written."""
    factor = (high / low) ** (1 / (count + 1))
    exact = [low * factor**step for step in range(1, count + 1)]
    for figures in FIGURES:
        written = [write(mark, figures) for mark in exact]
        values = [low, *map(parse_fsd, written), high]
        if all(before < after for before, after in pairwise(values)):
            return written
    return [mark for mark in dict.fromkeys(written) if low < parse_fsd(mark) < high]


def _writer_for(settings: type[SectionSettings], name: str) -> Callable[[float, int], str]:
    """Return the function that writes a key's value with a given number of digits."""
    if name.endswith("_s"):
        return _duration
    return _whole if settings.model_fields[name].annotation is int else _number


def _duration(mark_s: float, figures: int) -> str:
    """Write a duration. The digits count in its own unit, so it stays readable."""
    length_s = next((length_s for length_s in (3600.0, 60.0) if mark_s >= length_s), 1.0)
    return format_fsd(float(f"{mark_s / length_s:.{figures}g}") * length_s)


def _whole(mark: float, figures: int) -> str:
    return str(round(float(f"{mark:.{figures}g}")))


def _number(mark: float, figures: int) -> str:
    return f"{Decimal(f'{mark:.{figures}g}'):f}"


def variants(site: Site, sweep: Sweep) -> Iterator[tuple[str, Site]]:
    """Yield the site with each of the values, and the name of the run: ``key=value``."""
    for value in sweep.values:
        yield f"{sweep.key}={value}", with_key(site, sweep.key, value)


def with_key(site: Site, key: str, value: str) -> Site:
    """Return the site with another value of one key. Raises :class:`SweepError` for an invalid one."""
    section, name = _field(key)
    changed = {section: _with_value(getattr(site, section), name, key, value)}
    return replace(site, **changed)  # type: ignore[arg-type]  # of the section's own class


def _field(key: str) -> tuple[str, str]:
    """Find the section of a key, and the name of its field. Raises :class:`SweepError` for an unknown key."""
    for section, settings in SECTIONS.items():
        for name, field in settings.model_fields.items():
            if key in (name, field.validation_alias) and key in allowed_keys(settings):
                return section, name
    known = [name for settings in SECTIONS.values() for name in allowed_keys(settings)]
    raise SweepError(f'--sweep: no such key "{key}"; known are {", ".join(known)}')


def _with_value(settings: SectionSettings, name: str, key: str, value: str) -> SectionSettings:
    # Keep only the keys that the site sets: a run distinguishes them from defaults.
    kept = {other: getattr(settings, other) for other in settings.model_fields_set if other != name}
    try:
        return type(settings).model_validate({**kept, key: value})
    except ValidationError as error:
        why = error.errors()[0]["ctx"]["error"]
        raise SweepError(f"--sweep: {key} = {value}: {why}") from error


def differences(one: Site, other: Site) -> Mapping[str, tuple[str, str]]:
    """Return the keys that differ, as ``[Section] key``, with both values."""
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
