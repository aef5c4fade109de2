"""A workload: a stream of jobs in the order of their submission, and the oddities found while reading it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from nodemanager.core.jobs import Shape

EXAMPLES_MAX = 5


class WorkloadError(Exception):
    """The workload cannot be used. The text names the fault, the place and the remedy."""


class Processors(StrEnum):
    """What one processor of a trace stands for on the site."""

    CORES = "cores"  # one core, wherever there is one
    NODES = "nodes"  # one whole node


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. ``submit_s`` counts from the start of the workload, and never decreases from job to job.

    ``narrow_s``: so many seconds after its start it uses only its first node and can give others back; 0: never.
    """

    name: str
    submit_s: float
    run_s: float
    limit_s: float  # 0 is unlimited
    shape: Shape
    userid: int = 0
    narrow_s: float = 0.0


@dataclass(slots=True)
class Oddities:
    """Skipped and reinterpreted lines: counted by kind, with the places of the first few."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, place: str) -> None:
        self.counts[kind] += 1
        places = self.examples.setdefault(kind, [])
        if len(places) < EXAMPLES_MAX:
            places.append(place)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload that can be read several times, also in another process.

    Each call of ``read`` starts from the beginning: it yields the jobs and notes the oddities it finds.
    ``start_at``: time 0 of ``submit_s``, in seconds since the epoch. ``jobs_about`` and ``processors``: the number
    of jobs, and of processors of the traced machine, if known. ``each``: what one processor stands for on the site.
    """

    name: str
    read: Callable[[Oddities], Iterator[TraceJob]]
    start_at: float = 0.0
    jobs_about: int | None = None
    processors: int | None = None
    each: Processors = Processors.CORES
    header: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def shape_for(processors: int, each: Processors) -> Shape:
    """Return the shape of a job with this many processors."""
    if each is Processors.NODES:
        return Shape(nodes=processors, slots=1, cores_per_slot=1, exclusive=True)
    return Shape(slots=processors, cores_per_slot=1)
