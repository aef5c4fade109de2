"""A workload: jobs in the order in which they were submitted, read as a stream, and what was odd about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from nodemanager.core.jobs import Shape

EXAMPLES_MAX = 5


class WorkloadError(Exception):
    """The workload cannot be read at all; the text says what was wrong, where, and what to do."""


class Processors(StrEnum):
    """What one processor of a trace is on the site."""

    CORES = "cores"  # one core, wherever there is one
    NODES = "nodes"  # one node, whole


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. ``submit_s``: since the workload's beginning, never less than that of the job before it."""

    name: str
    submit_s: float
    run_s: float
    limit_s: float  # 0 is unlimited
    shape: Shape
    userid: int = 0


@dataclass(slots=True)
class Oddities:
    """Lines that were left out or read otherwise than they stand: counted by kind, the first few by place."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, place: str) -> None:
        self.counts[kind] += 1
        places = self.examples.setdefault(kind, [])
        if len(places) < EXAMPLES_MAX:
            places.append(place)


@dataclass(frozen=True, slots=True)
class Workload:
    """``read`` begins anew at each call: it yields the jobs, and notes what is odd as it comes upon it.

    It can be handed to another process, ``read`` too.
    ``start_at``: the moment 0 of ``submit_s``, in seconds since the epoch. ``jobs_about`` and ``processors``: how
    many there are, where the workload says so; ``each``: what one processor is on the site.
    """

    name: str
    read: Callable[[Oddities], Iterator[TraceJob]]
    start_at: float = 0.0
    jobs_about: int | None = None
    processors: int | None = None
    each: Processors = Processors.CORES
    header: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def shape_for(processors: int, each: Processors) -> Shape:
    """What a job of so many processors asks Flux for."""
    if each is Processors.NODES:
        return Shape(nodes=processors, slots=1, cores_per_slot=1, exclusive=True)
    return Shape(slots=processors, cores_per_slot=1)
