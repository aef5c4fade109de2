"""Housekeeping: the script that runs on a job's ranks after the job has ended, before the ranks are free.

The job manager's journal does not show it: the job's ``release`` and ``free`` come earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_idset
from nodemanager.core.slots import Rank
from nodemanager.simulation.flux.jobid import format_f58
from nodemanager.simulation.flux.resource_set import Grant
from nodemanager.simulation.time.world import Scheduled, World

HousekeepingTime = float | Mapping[Rank, float]  # seconds on every rank, or by rank


@dataclass(frozen=True, slots=True)
class _Holding:
    grant: Grant
    end: Scheduled
    started_at: float
    ignores: frozenset[int]  # signals


class Housekeepers:
    """All running housekeeping.

    ``free`` is called with each grant when its rank is done. ``connected``: whether a rank's broker can be reached.
    """

    def __init__(self, world: World, connected: Callable[[int], bool], free: Callable[[Grant], None]) -> None:
        # False: a job's ranks are freed together when the last one is done (no ``release-after``).
        self.partial_release = True
        self.ignores: frozenset[int] = frozenset()  # signals that do not end a housekeeping started from now on
        self._world = world
        self._connected = connected
        self._free = free
        self._holdings: dict[JobId, dict[int, _Holding]] = {}

    def take_over(self, job_id: JobId, grants: Sequence[Grant], lasts_s: HousekeepingTime) -> None:
        """Keep a job's grants while housekeeping runs. Ranks that are offline are freed at once."""
        durations_s = {grant.rank: _duration_on(lasts_s, grant.rank) for grant in grants}
        if not self.partial_release:
            durations_s = dict.fromkeys(durations_s, max(durations_s.values(), default=0.0))
        holdings: dict[int, _Holding] = {}
        for grant in grants:
            if durations_s[grant.rank] > 0 and self._connected(grant.rank):
                holdings[grant.rank] = self._hold(job_id, grant, durations_s[grant.rank])
            else:
                self._free(grant)
        if holdings:
            self._holdings[job_id] = holdings

    def lose_rank(self, rank: int) -> None:
        """End the housekeeping of a rank whose broker is gone."""
        for job_id, holdings in tuple(self._holdings.items()):
            if rank in holdings:
                holdings[rank].end.cancel()
                self._end(job_id, rank)

    def kill(self, rank: int, signal: int) -> None:
        """Send a signal to a rank's housekeeping. One stuck in the kernel may ignore even SIGKILL."""
        for job_id, holdings in tuple(self._holdings.items()):
            holding = holdings.get(rank)
            if holding is not None and signal not in holding.ignores:
                holding.end.cancel()
                self._end(job_id, rank)

    def end_all(self) -> None:
        for job_id, holdings in tuple(self._holdings.items()):
            for rank in tuple(holdings):
                holdings[rank].end.cancel()
                self._end(job_id, rank)

    def started_at(self, rank: int) -> tuple[float, ...]:
        return tuple(holdings[rank].started_at for holdings in self._holdings.values() if rank in holdings)

    def stats(self) -> Mapping[str, object]:
        """The ``housekeeping`` part of the reply of ``job-manager.stats-get``."""
        running = {
            format_f58(job_id): {
                "t_start": min(holding.started_at for holding in holdings.values()),
                "pending": format_idset(holdings),
                "allocated": format_idset(holdings),
            }
            for job_id, holdings in self._holdings.items()
        }
        return {"running": running, "config": {}}

    def held_grants(self) -> Iterator[tuple[JobId, Grant]]:
        for job_id, holdings in self._holdings.items():
            for holding in holdings.values():
                yield job_id, holding.grant

    def _hold(self, job_id: JobId, grant: Grant, lasts_s: float) -> _Holding:
        end = self._world.after(lasts_s, lambda: self._end(job_id, grant.rank))
        return _Holding(grant, end, self._world.wall_at(), self.ignores)

    def _end(self, job_id: JobId, rank: int) -> None:
        holdings = self._holdings[job_id]
        grant = holdings.pop(rank).grant
        if not holdings:
            del self._holdings[job_id]
        self._free(grant)


def _duration_on(lasts_s: HousekeepingTime, rank: int) -> float:
    return lasts_s.get(Rank(rank), 0.0) if isinstance(lasts_s, Mapping) else lasts_s
