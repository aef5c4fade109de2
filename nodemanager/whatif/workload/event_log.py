"""A run's event log (``--journal``): submissions, decisions and their effects, one JSON object a line.

It can be replayed as a workload: on the same site with the same seed it gives the same log, byte for byte. The cost
of the nodes can be computed from it without the code of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from nodemanager.core.jobs import Shape
from nodemanager.core.slots import NodeType
from nodemanager.core.untrusted import read_json
from nodemanager.history.store.shapes import shape_from_json, shape_to_json
from nodemanager.whatif.workload.swf import VALUE_MAX
from nodemanager.whatif.workload.workload import Oddities, TraceJob, Workload, WorkloadError


@dataclass(slots=True)
class EventLog:
    """Writes events to ``sink``; without a sink it writes nothing."""

    sink: TextIO | None = None

    def write_run(self, policy: str, seed: int, start_at: float) -> None:
        self._write({"what": "run", "policy": policy, "seed": seed, "start_at": start_at})

    def write_submitted(self, at_s: float, job: TraceJob) -> None:
        if self.sink is not None:
            self._write(
                {
                    "at": at_s,
                    "what": "submit",
                    "job": job.name,
                    "run_s": job.run_s,
                    "limit_s": job.limit_s,
                    "userid": job.userid,
                    "shape": shape_to_json(job.shape),
                    **({"narrow_s": job.narrow_s} if job.narrow_s else {}),
                }
            )

    def write_unserved(self, at_s: float, job: str, why: str) -> None:
        self._write({"at": at_s, "what": "unserved", "job": job, "why": why})

    def write_started(self, at_s: float, job: str, ranks: Iterable[int]) -> None:
        if self.sink is not None:
            self._write({"at": at_s, "what": "start", "job": job, "ranks": list(ranks)})

    def write_ended(self, at_s: float, job: str) -> None:
        self._write({"at": at_s, "what": "end", "job": job})

    def write_created(self, at_s: float, node: str, slot: str, node_type: NodeType) -> None:
        if self.sink is not None:
            self._write(
                {
                    "at": at_s,
                    "what": "created",
                    "node": node,
                    "slot": slot,
                    "type": node_type.name,
                    "price_per_hour": str(node_type.price_per_hour),
                    "window_s": node_type.billing.window_s,
                    "minimum_s": node_type.billing.minimum_s,
                }
            )

    def write_gone(self, at_s: float, node: str, why: str) -> None:
        self._write({"at": at_s, "what": "gone", "node": node, "why": why})

    def write_decided(self, at_s: float, order: str, subject: str, why: str) -> None:
        self._write({"at": at_s, "what": "decided", "order": order, "subject": subject, "because": why})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.sink is not None:
            self.sink.write(json.dumps(line, separators=(",", ":")) + "\n")


def open_event_log(path: Path) -> Workload:
    """Open a run's event log as a workload. Raises :class:`WorkloadError`, later also for any line no run wrote."""
    try:
        with _open_text(path) as file:
            first = read_json(next(file))
        start_at = _measure(first, "start_at")
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{path}: not a journal written by simulate: {error!r}") from error
    return Workload(path.name, partial(_jobs, path), start_at)


def _open_text(path: Path) -> TextIO:
    """Open a file that may not be UTF-8. Invalid bytes become text that is not JSON: the error names the line."""
    return path.open(encoding="utf-8", errors="backslashreplace")


def _jobs(path: Path, oddities: Oddities) -> Iterator[TraceJob]:
    del oddities
    latest_s = 0.0
    with _open_text(path) as file:
        for number, text in enumerate(file, start=1):
            try:
                job = _job(text, latest_s)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                why = f"{path}: line {number}: not written by simulate: {_why(error)}"
                raise WorkloadError(why) from error
            if job is not None:
                latest_s = job.submit_s
                yield job


def _job(text: str, latest_s: float) -> TraceJob | None:
    """Read the job of a "submit" line; None for other lines."""
    line = read_json(text)
    if line["what"] != "submit":
        return None
    at_s = _measure(line, "at")
    if at_s < latest_s:
        raise ValueError(f"at is {at_s}, earlier than that of the job before")
    name, userid, shape = line["job"], line["userid"], shape_from_json(line["shape"])
    if not (isinstance(name, str) and _is_count(userid, 0) and _is_plausible(shape)):
        raise ValueError("its job, userid or shape has a wrong value")
    narrow_s = _measure(line, "narrow_s") if "narrow_s" in line else 0.0
    return TraceJob(name, at_s, _measure(line, "run_s"), _measure(line, "limit_s"), shape, userid, narrow_s)


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _measure(line: Mapping[str, Any], key: str) -> float:
    value = line[key]
    if not (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= VALUE_MAX):
        raise ValueError(f"{key} is {value!r}, not a number from 0 to {VALUE_MAX:g}")  # nor is NaN
    return value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= VALUE_MAX


def _is_plausible(shape: Shape) -> bool:
    """Whether all numbers of a shape are in their range."""
    positive = (shape.slots, shape.cores_per_slot, 1 if shape.nodes is None else shape.nodes)
    return all(_is_count(value, 1) for value in positive) and all(
        _is_count(value, 0) for value in (shape.gpus_per_slot, shape.memory_bytes_per_slot)
    )
