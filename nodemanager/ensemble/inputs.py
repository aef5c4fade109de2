"""What an ensemble is told, one input after the other, and how its log stores each: one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.untrusted import read_json, read_lines


@dataclass(frozen=True, slots=True)
class Begun:
    """The ensemble begins. The first input of every log."""

    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A heartbeat."""

    at: float


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a job that this ensemble submitted (RFC 21).

    ``group`` and ``key``, of ``submit`` only: what the job carries. ``status``, of ``finish`` only: as of wait(2).
    ``kind``, ``severity`` and ``note``, of ``exception`` only.
    """

    job: int
    name: str
    at: float
    group: str = ""
    key: str = ""
    status: int = 0
    kind: str = ""
    severity: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Flux accepted no job for this key."""

    key: str
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An order other than a submission was carried out, or not. ``action``: what a custom function returned."""

    key: str
    at: float
    why: str = ""  # "" if it was carried out
    action: Mapping[str, Any] | None = field(default=None, hash=False)


Input = Begun | Tick | JobEvent | Refused | Answered

_DEFAULTS = JobEvent(0, "", 0.0)
_OPTIONAL = ("group", "key", "status", "kind", "severity", "note")


def write_inputs(inputs: Iterable[Input]) -> str:
    """Write inputs as lines of a log."""
    return "".join(json.dumps(_to_list(it), separators=(",", ":")) + "\n" for it in inputs)


def read_inputs(log: str) -> list[Input]:
    """Read the lines of a log. Raises ``ValueError`` if it is damaged."""
    return [_from_list(read_json(line)) for line in read_lines(log)]


def _to_list(it: Input) -> list[Any]:
    match it:
        case Begun(at):
            return ["begun", at]
        case Tick(at):
            return ["tick", at]
        case Refused(key, at, why):
            return ["refused", at, key, why]
        case Answered(key, at, why, action):
            return ["answered", at, key, why, *([] if action is None else [dict(action)])]
        case JobEvent():
            more = {name: value for name in _OPTIONAL if (value := getattr(it, name)) != getattr(_DEFAULTS, name)}
            return ["job", it.at, it.job, it.name, *([more] if more else [])]


def _from_list(line: Any) -> Input:
    match line:
        case ["job", at, job, name]:
            return JobEvent(job, name, at)
        case ["job", at, job, name, more]:
            return JobEvent(job, name, at, **more)
        case ["tick", at]:
            return Tick(at)
        case ["begun", at]:
            return Begun(at)
        case ["refused", at, key, why]:
            return Refused(key, at, why)
        case ["answered", at, key, why]:
            return Answered(key, at, why)
        case ["answered", at, key, why, action]:
            return Answered(key, at, why, action)
    raise ValueError(f"the ensemble's log has a line that cannot be read: {str(line)[:100]}")
