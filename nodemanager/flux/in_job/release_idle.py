"""Gives idle nodes of a sub-instance back to the outer instance before its job ends.

Run it again at any time: what an earlier run has begun is read from the drains, and finished. Each step comes after
the one that makes it safe: drain, look again, stop the broker, see it gone, and only then tell the outer instance.

A broker that ends in good order ends its task of the job in good order too: the job goes on, and ends with its own
exit code (tried on 0.88). That does not hold for critical ranks, which the instance knows.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from nodemanager.core.nodes import FluxRank
from nodemanager.core.notation import NotationError, format_idset, parse_idset, parse_job_id
from nodemanager.core.ports import FluxError
from nodemanager.core.slots import Rank
from nodemanager.flux.bindings import LEADER, CallFailed, Handle, ask, ask_all
from nodemanager.flux.parse.resources import read_ranks
from nodemanager.flux.port import terminate_command
from nodemanager.flux.records import given_back

DRAIN_REASON = "given back to the outer instance"
_LOOK = ("resource.status", "sched.resource-status")
_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.2


class CannotRelease(Exception):
    """No node can be given back. The message says why."""


@dataclass(frozen=True, slots=True)
class Released:
    """The outer instance's ranks that were given back, now and before."""

    ranks: frozenset[Rank]
    new: frozenset[Rank]

    def __str__(self) -> str:
        if not self.ranks:
            return "no node is idle and may leave: nothing was given back"
        before = self.ranks - self.new
        said = f"given back: rank {format_idset(self.new)} of the outer instance" if self.new else "nothing new"
        return f"{said}{f'; earlier: rank {format_idset(before)}' if before else ''}"


def release_idle(
    uri: str,
    connect: Callable[[str], Handle],
    most: int | None,
    *,
    timeout_s: float,
    wait_s: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> Released:
    """Give back at most ``most`` idle nodes of the instance at ``uri``, or all that may leave.

    ``connect`` opens a connection; ``uri`` must lead to rank 0 of the instance, or be "" for the enclosing one.
    Raises :class:`CannotRelease` and ``FluxError``.
    """
    with ExitStack() as opened:

        def open_(where: str) -> Handle:
            handle = connect(where)
            opened.callback(handle.close)
            return handle

        instance = _Instance(open_(uri), lambda: open_(uri), timeout_s, wait_s, now_s)
        outer_uri, id_ = instance.attribute("parent-uri"), instance.attribute("jobid")
        if not outer_uri or not id_:
            raise CannotRelease("this instance is no job of another instance: nobody takes nodes back")
        outer, job = open_(outer_uri), parse_job_id(id_)
        outer_of = _outer_ranks(outer, instance, job, timeout_s)
        stopped = instance.stop_idle(most, outer_of)
        gone = frozenset(outer_of[it] for it in instance.gone())
        if gone:
            memo = {"id": job, "volatile": False, "memo": given_back.encode(gone)}
            ask(outer, "job-manager.memo", memo, timeout_s=timeout_s)
        return Released(gone, frozenset(outer_of[it] for it in stopped) & gone)


class _Instance:
    """The sub-instance, by a handle on its rank 0."""

    def __init__(
        self,
        handle: Handle,
        another: Callable[[], Handle],
        timeout_s: float,
        wait_s: Callable[[float], None],
        now_s: Callable[[], float],
    ) -> None:
        if handle.rank != LEADER:
            raise CannotRelease("run it on rank 0 of the instance, for example in the batch script")
        self._handle = handle
        self._another = another
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._now_s = now_s

    def attribute(self, name: str) -> str:
        """An attribute of the broker; "" if it has none."""
        try:
            return str(self._ask("attr.get", {"name": name})["value"])
        except CallFailed as failure:
            if failure.errno != errno.ENOENT:
                raise
            return ""

    def stop_idle(self, most: int | None, ranks: Mapping[Rank, Rank]) -> list[Rank]:
        """Drain idle ranks that may leave, look again, and stop the brokers of those that are still idle."""
        critical = frozenset(parse_idset(self.attribute("broker.critical-ranks") or str(LEADER))) | {LEADER}
        may_leave = [it for it in self._look().values() if it.rank not in critical and it.rank in ranks]
        begun = [it.rank for it in may_leave if it.drain_reason == DRAIN_REASON and it.online]
        idle = [it.rank for it in may_leave if it.idle and it.drain_reason is None]
        # The highest ranks first: jobs of the instance get the low ones first.
        chosen = begun + sorted(idle, reverse=True)[: most if most is not None else len(idle)]
        for rank in chosen:
            self._drain(rank)
        # The scheduler may notice a drain a moment later, and give the rank a job until then.
        seen = self._look_until(lambda seen: not any(seen[rank].schedulable for rank in chosen))
        stopped = [rank for rank in chosen if _is_at_rest(seen[rank])]
        for rank in chosen:
            if rank in stopped:
                self._stop(rank)
            elif seen[rank].drain_reason == DRAIN_REASON:  # a job began just before the drain
                self._ask("resource.undrain", {"targets": str(rank)})
        self._look_until(lambda seen: not any(seen[rank].online for rank in stopped))
        return stopped

    def gone(self) -> list[Rank]:
        """The ranks that we drained and whose brokers are gone."""
        return [it.rank for it in self._look().values() if it.drain_reason == DRAIN_REASON and not it.online]

    def _look_until(self, holds: Callable[[Mapping[Rank, FluxRank]], bool]) -> Mapping[Rank, FluxRank]:
        """Look until something holds, or for as long as that may take; return the last look."""
        until_s = self._now_s() + _WITHIN_S
        while not holds(seen := self._look()) and self._now_s() < until_s:
            self._wait_s(_LOOK_EVERY_S)
        return seen

    def _drain(self, rank: Rank) -> None:
        try:
            self._ask("resource.drain", {"targets": str(rank), "reason": DRAIN_REASON})
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:  # somebody was faster: the look that follows shows it
                raise

    def _stop(self, rank: Rank) -> None:
        try:
            pid = int(self._ask("attr.get", {"name": "broker.pid"}, rank)["value"])
            # More answers follow the first one, so it has a connection of its own, which stays open until the end.
            ask(self._another(), "rexec.exec", terminate_command(pid), rank=rank, timeout_s=self._timeout_s)
        except CallFailed as failure:
            if failure.errno not in {errno.EHOSTUNREACH, errno.ENOSYS}:  # it is leaving already
                raise

    def _look(self) -> dict[Rank, FluxRank]:
        seen = ask_all(self._handle, dict.fromkeys(_LOOK), timeout_s=self._timeout_s)
        try:
            return {it.rank: it for it in read_ranks(seen[_LOOK[0]], seen[_LOOK[1]], {}, {}, None)}
        except ValueError as fault:
            raise FluxError(f"an answer of the instance cannot be read: {fault}") from fault

    def _ask(self, topic: str, payload: object = None, rank: int = LEADER) -> Any:
        return ask(self._handle, topic, payload, rank=rank, timeout_s=self._timeout_s)


def _is_at_rest(rank: FluxRank) -> bool:
    return rank.drain_reason == DRAIN_REASON and not (rank.allocated or rank.schedulable)


def _outer_ranks(outer: Handle, instance: _Instance, job: int, timeout_s: float) -> Mapping[Rank, Rank]:
    """The outer rank of each rank of the instance. Each node must have one broker, as with ``flux batch -N``."""
    lookup = {"id": job, "keys": ["R"], "flags": 0}
    answer = ask(outer, "job-info.lookup", lookup, timeout_s=timeout_s)
    size = int(instance.attribute("size"))
    try:
        ranks = given_back.outer_ranks(json.loads(answer["R"]))
        mapping = json.loads(instance.attribute("broker.mapping"))
    except (ValueError, NotationError) as fault:
        raise FluxError(f"the job's R, or the mapping of its brokers, cannot be read: {fault}") from fault
    if len(ranks) != size or mapping != [[0, size, 1, 1]]:
        raise CannotRelease(
            f"the instance has {size} brokers on {len(ranks)} nodes: nodes can be given back if each has one broker"
        )
    return {Rank(number): rank for number, rank in enumerate(ranks)}
