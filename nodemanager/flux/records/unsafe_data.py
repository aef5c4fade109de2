"""Which ended jobs' data may still be on their nodes, for the types of nodes that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import FluxRank, Launch, UnsafeData
from nodemanager.core.notation import parse_idset
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.flux.parse.json_fields import seconds_at, text_at, whole_at
from nodemanager.flux.parse.resources import listed_jobs
from nodemanager.flux.records.data_safe import DataRecord, key_of


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended, and the ranks that it had."""

    id: JobId
    ranks: frozenset[Rank]
    ended_at: float


def read_ended_jobs(job_list: object) -> list[EndedJob]:
    """Read the ended jobs that had ranks from an answer of ``job-list.list``.

    The request must include the attributes ``ranks`` and ``t_inactive``. Raises ``ValueError``.
    """
    found = []
    for where, job in listed_jobs(job_list):
        if job.get("ranks") is None or job.get("t_inactive") is None:
            continue
        ranks = frozenset(map(Rank, parse_idset(text_at(job["ranks"], f"{where}.ranks"))))
        ended_at = seconds_at(job["t_inactive"], f"{where}.t_inactive")
        found.append(EndedJob(JobId(whole_at(job.get("id"), f"{where}.id")), ranks, ended_at))
    return found


class UnsafeJobs:
    """The ended jobs whose data is not known to be safe.

    ``types``: the node types that wait for data. ``slots_without``: the slots of the others, which counts if the
    instance's configuration does not say the type of a rank.
    """

    def __init__(self, types: Iterable[TypeName], slots_without: Iterable[SlotName] = ()) -> None:
        self._types = frozenset(types)
        self._slots_without = frozenset(slots_without)
        self._jobs: dict[JobId, EndedJob] = {}

    def add(self, ended: Iterable[EndedJob], ranks: Iterable[FluxRank]) -> None:
        """Take jobs that have ended, with their ranks of the types that wait."""
        waiting = {it.rank for it in ranks if self._waits(it)}
        for job in ended:
            if kept := job.ranks & waiting:
                self._jobs[job.id] = replace(job, ranks=kept)

    def _waits(self, rank: FluxRank) -> bool:
        return rank.type_name in self._types if rank.type_name else rank.host not in self._slots_without

    def drop_before(self, leases: Iterable[Launch]) -> None:
        """Forget what ran before the present leases: those nodes are gone, and their data with them."""
        leased_at = {it.rank: it.requested_at for it in leases}
        for job in [*self._jobs.values()]:
            self._keep(job, frozenset(it for it in job.ranks if leased_at.get(it, inf) <= job.ended_at))

    def drop_rank(self, rank: Rank) -> None:
        """Forget what ran on a rank whose lease has ended."""
        for job in [it for it in self._jobs.values() if rank in it.ranks]:
            self._keep(job, job.ranks - {rank})

    def keys(self) -> Mapping[str, JobId]:
        """The KVS keys to read."""
        return {key_of(id_): id_ for id_ in self._jobs}

    def apply(self, job: JobId, record: DataRecord) -> None:
        """Forget the ranks that were said to be safe."""
        self._keep(self._jobs[job], self._jobs[job].ranks - record.safe)

    def mark(self, ranks: tuple[FluxRank, ...]) -> tuple[FluxRank, ...]:
        """Return the ranks with the jobs whose data is not safe there, the oldest first."""
        if not self._jobs:
            return ranks
        found: dict[Rank, list[UnsafeData]] = {}
        for job in sorted(self._jobs.values(), key=lambda it: (it.ended_at, it.id)):
            for rank in job.ranks:
                found.setdefault(rank, []).append(UnsafeData(job.id, job.ended_at))
        return tuple(replace(it, unsafe=tuple(found[it.rank])) if it.rank in found else it for it in ranks)

    def _keep(self, job: EndedJob, ranks: frozenset[Rank]) -> None:
        if ranks:
            self._jobs[job.id] = replace(job, ranks=ranks)
        else:
            del self._jobs[job.id]
