"""A run's journal: what came in, what was decided and what came of it, a JSON object a line.

It is a workload too: replayed on the same site with the same seed it gives the same journal, byte for byte. What
the nodes cost can be added up from it without the code that ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from nodemanager.journal.shapes import read_shape, written_shape
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
    return Workload(path.name, partial(_jobs, path), start_at)


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
