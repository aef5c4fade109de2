"""One site and others like it: a sweep over a key, and what differs between two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from nodemanager.config import Site
from nodemanager.notation import NotationError, format_fsd, parse_fsd
from nodemanager.settings import Settings, keys_of

SECTIONS = ("policy", "timing", "limits", "simulation")
STEPS = 7
STEPS_MAX = 100


class SweepError(Exception):
    """The sweep cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key of the site, and the values that it is to have, as they would be written."""

    key: str
    values: tuple[str, ...]


def read_sweep(text: str) -> Sweep:
    """``idle_timeout=1m..1h`` (7 steps, each as many times the one before), ``..1h/12``, or ``=1m,5m,1h``."""
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise SweepError(f'--sweep {text}: "KEY=FROM..TO", "KEY=FROM..TO/STEPS" or "KEY=A,B,C" is needed')
    if ".." not in values:
        return Sweep(key, tuple(value.strip() for value in values.split(",")))
    span, _, steps = values.partition("/")
    first, _, last = span.partition("..")
    try:
        count = int(steps) if steps else STEPS
        low, high = parse_fsd(first), parse_fsd(last)
    except (ValueError, NotationError) as error:
        raise SweepError(f"--sweep {text}: {error}") from error
    if not (0 < low < high and 2 <= count <= STEPS_MAX):
        raise SweepError(f"--sweep {text}: a span above 0 that rises, in 2 to {STEPS_MAX} steps, is needed")
    durations = first[-1].isalpha() or last[-1].isalpha()
    factor = (high / low) ** (1 / (count - 1))
    marks = [low, *(_round(low * factor**step, durations) for step in range(1, count - 1)), high]
    written = [format_fsd(mark) if durations else str(round(mark)) for mark in marks]
    return Sweep(key, tuple(dict.fromkeys(written)))


def _round(mark: float, duration: bool) -> float:
    """To two figures, those of a duration in its own unit, so that it can be said."""
    length = next((length for length in (3600.0, 60.0) if duration and mark >= length), 1.0)
    return float(f"{mark / length:.2g}") * length


def variants(site: Site, sweep: Sweep) -> Iterator[tuple[str, Site]]:
    """The site with each of the values, named by it."""
    for value in sweep.values:
        yield f"{sweep.key}={value}", with_key(site, sweep.key, value)


def with_key(site: Site, key: str, value: str) -> Site:
    """The site with one key of another value. Raises :class:`SweepError` for one that may not be."""
    known = [name for section in SECTIONS for name in keys_of(type(getattr(site, section)))]
    for section in SECTIONS:
        settings: Settings = getattr(site, section)
        if key in keys_of(type(settings)):
            changed = {section: _with(settings, key, value)}
            return replace(site, **changed)  # type: ignore[arg-type]  # of the section's own class
    raise SweepError(f'--sweep: no such key "{key}"; known are {", ".join(known)}')


def _with(settings: Settings, key: str, value: str) -> Settings:
    fields = type(settings).model_fields
    name = next(name for name, field in fields.items() if key in (name, field.validation_alias))
    # What the site does not say stays unsaid: a run tells the two apart.
    kept = {other: getattr(settings, other) for other in settings.model_fields_set if other != name}
    try:
        return type(settings).model_validate({**kept, key: value})
    except ValidationError as error:
        why = error.errors()[0]["ctx"]["error"]
        raise SweepError(f"--sweep: {key} = {value}: {why}") from error


def differences(one: Site, other: Site) -> Mapping[str, tuple[str, str]]:
    """``[Section] key`` to what it is in each, where they differ."""
    first, second = _written(one), _written(other)
    return {
        key: (first.get(key, "-"), second.get(key, "-"))
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    }


def _written(site: Site) -> dict[str, str]:
    written: dict[str, str] = {}
    for section in (*SECTIONS, "cloud"):
        settings: Settings = getattr(site, section)
        for name, field in type(settings).model_fields.items():
            value = getattr(settings, name)
            shown = _shown(name, value)
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


def _shown(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, float) and math.isfinite(value):
        return format_fsd(value)
    return str(value)
