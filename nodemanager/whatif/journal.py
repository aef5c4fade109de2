"""A run's journal: what came in, what was decided and what came of it, a JSON object a line.

It is a workload too: replayed on the same site with the same seed it gives the same journal, byte for byte. What
the nodes cost can be added up from it without the code that ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from nodemanager.model import (
    ANYWHERE,
    All,
    AnyOf,
    Constraint,
    HasProperty,
    Not,
    OnHosts,
    OnRanks,
    Shape,
)
from nodemanager.whatif.cloud import Machine
from nodemanager.whatif.scheduler import QueuedJob
from nodemanager.whatif.workload import Oddities, TraceJob, Workload, WorkloadError


@dataclass(slots=True)
class Journal:
    """Writes to ``sink``; without one it writes nothing."""

    sink: TextIO | None = None

    def begun(self, policy: str, seed: int, start_at: float) -> None:
        self._write({"what": "run", "policy": policy, "seed": seed, "start_at": start_at})

    def submitted(self, at_s: float, job: TraceJob) -> None:
        if self.sink is not None:
            self._write(
                {
                    "at": at_s,
                    "what": "submit",
                    "job": job.name,
                    "run_s": job.run_s,
                    "limit_s": job.limit_s,
                    "userid": job.userid,
                    "shape": written_shape(job.shape),
                }
            )

    def refused(self, at_s: float, job: str, why: str) -> None:
        self._write({"at": at_s, "what": "unserved", "job": job, "why": why})

    def started(self, at_s: float, job: QueuedJob) -> None:
        if self.sink is not None:
            ranks = [grant.rank for grant in job.grants]
            self._write({"at": at_s, "what": "start", "job": job.name, "ranks": ranks})

    def ended(self, at_s: float, job: QueuedJob) -> None:
        self._write({"at": at_s, "what": "end", "job": job.name})

    def created(self, at_s: float, machine: Machine) -> None:
        if self.sink is not None:
            node_type = machine.node_type
            self._write(
                {
                    "at": at_s,
                    "what": "created",
                    "node": machine.provider_id,
                    "slot": machine.slot,
                    "type": node_type.name,
                    "price_per_hour": str(node_type.price_per_hour),
                    "window_s": node_type.billing.window_s,
                    "minimum_s": node_type.billing.minimum_s,
                }
            )

    def gone(self, at_s: float, machine: Machine) -> None:
        self._write({"at": at_s, "what": "gone", "node": machine.provider_id, "why": machine.died_because})

    def decided(self, at_s: float, order: str, subject: str, why: str) -> None:
        self._write({"at": at_s, "what": "decided", "order": order, "subject": subject, "because": why})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.sink is not None:
            self.sink.write(json.dumps(line, separators=(",", ":")) + "\n")


def open_journal(path: Path) -> Workload:
    """The jobs of a run, from its journal."""
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(next(file))
        start_at = float(first["start_at"])
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{path}: not a journal of simulate: {error!r}") from error
    return Workload(path.name, lambda oddities: _jobs(path, oddities), start_at)


def _jobs(path: Path, oddities: Oddities) -> Iterator[TraceJob]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
                if line["what"] != "submit":
                    continue
                yield TraceJob(
                    line["job"],
                    line["at"],
                    line["run_s"],
                    line["limit_s"],
                    read_shape(line["shape"]),
                    line["userid"],
                )
            except (ValueError, KeyError, TypeError):
                oddities.note("left out: a line that no run wrote", f"line {number}")


# --- shapes -----------------------------------------------------------------------------------------------


def written_shape(shape: Shape) -> dict[str, Any]:
    written: dict[str, Any] = {"slots": shape.slots, "cores_per_slot": shape.cores_per_slot}
    if shape.gpus_per_slot:
        written["gpus_per_slot"] = shape.gpus_per_slot
    if shape.nodes is not None:
        written["nodes"] = shape.nodes
    if shape.exclusive:
        written["exclusive"] = True
    if shape.constraint != ANYWHERE:
        written["constraint"] = _written(shape.constraint)
    return written


def read_shape(written: Mapping[str, Any]) -> Shape:
    fields = dict(written)
    constraint = _read(fields.pop("constraint")) if "constraint" in fields else ANYWHERE
    return Shape(constraint=constraint, **fields)


def _written(constraint: Constraint) -> list[Any]:
    match constraint:
        case HasProperty(name):
            return ["property", name]
        case OnHosts(hosts):
            return ["hosts", *sorted(hosts)]
        case OnRanks(ranks):
            return ["ranks", *sorted(ranks)]
        case All(parts):
            return ["all", *map(_written, parts)]
        case AnyOf(parts):
            return ["any", *map(_written, parts)]
        case Not(part):
            return ["not", _written(part)]


def _read(written: list[Any]) -> Constraint:
    kind, *rest = written
    match kind:
        case "property":
            return HasProperty(rest[0])
        case "hosts":
            return OnHosts(frozenset(rest))
        case "ranks":
            return OnRanks(frozenset(rest))
        case "all":
            return All(tuple(map(_read, rest)))
        case "any":
            return AnyOf(tuple(map(_read, rest)))
        case "not":
            return Not(_read(rest[0]))
        case _:
            raise ValueError(f"no such constraint: {kind}")
