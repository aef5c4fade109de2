"""Gives idle nodes of a sub-instance back to the outer instance before its job ends.

Run it again at any time: what an earlier run has begun is read from the drains, and finished. Each step comes after
the one that makes it safe: drain, look again, stop the broker, see it gone, and only then tell the outer instance.

A broker that ends in good order ends its task of the job in good order too: the job goes on, and ends with its own
exit code (tried on 0.88). That does not hold for critical ranks, which the instance knows.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, NoReturn

from nodemanager.core.nodes import FluxRank
from nodemanager.core.notation import NotationError, format_idset, parse_idset, parse_job_id
from nodemanager.core.ports import FluxError
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Rank
from nodemanager.core.untrusted import read_json
from nodemanager.flux.bindings import LEADER, CallFailed, Handle, ask, ask_all
from nodemanager.flux.parse.resources import read_ranks
from nodemanager.flux.port import terminate_command
from nodemanager.flux.records import given_back

DRAIN_REASON = "given back to the outer instance"
_LOOK = ("resource.status", "sched.resource-status")
_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.2
_FOLLOW_EVERY_S = 5.0


class CannotRelease(Exception):
    """No node can be given back. The message says why."""


@dataclass(frozen=True, slots=True)
class Released:
    """The outer instance's ranks that were given back, now and before."""

    ranks: frozenset[Rank]
    new: frozenset[Rank]
    leaving: frozenset[Rank] = frozenset()  # their brokers were told to end, and take long

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
    with _inside(uri, connect, timeout_s, wait_s, now_s) as job:
        return job.give_back(lambda idle: idle[: most if most is not None else len(idle)])


def release_idle_always(
    uri: str,
    connect: Callable[[str], Handle],
    idle_timeout_s: float,
    nodes_min: int,
    tell: Callable[[str], None],
    *,
    timeout_s: float,
    wait_s: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> NoReturn:
    """Give ranks back as soon as they have been idle for long enough, until the instance ends.

    ``tell`` gets a line for each rank whose reason changes. No state is kept but since when ranks are idle: a
    second run finishes what the first one began. Raises :class:`CannotRelease` and ``FluxError``.
    """
    idle_since_s: dict[Rank, float] = {}
    told: dict[Rank, Code] = {}
    with _inside(uri, connect, timeout_s, wait_s, now_s) as job:
        released = job.give_back(_only(()))  # those that an earlier run has begun with
        leaving = released.leaving
        tell(str(released))
        while True:
            up = job.instance.ranks_up(idle_since_s, now_s())
            found = choose_idle_ranks(up, job.instance.count_waiting(), nodes_min, idle_timeout_s, now_s())
            for rank, why in found.why.items():
                if told.get(rank) is not why.code:
                    tell(f"rank {rank}: {why}")
            told = {rank: why.code for rank, why in found.why.items()}
            if found.ranks:
                released = job.give_back(_only(found.ranks))
                leaving |= released.leaving
                if released.new:
                    tell(str(released))
            if late := leaving and leaving & job.gone():
                tell(str(Released(job.tell_gone(), late)))
                leaving -= late
            wait_s(max(_LOOK_EVERY_S, min(_FOLLOW_EVERY_S, found.again_at_s - now_s())))


def _only(ranks: Collection[Rank]) -> Callable[[list[Rank]], list[Rank]]:
    return lambda idle: [it for it in idle if it in ranks]


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that is an instance, seen from inside."""

    instance: _Instance
    outer: Handle
    id: int
    outer_of: Mapping[Rank, Rank]  # the outer rank of each of ours
    timeout_s: float

    def give_back(self, choose: Callable[[list[Rank]], list[Rank]]) -> Released:
        """Stop the chosen idle ranks, and tell the outer instance which ranks are gone."""
        stopped = frozenset(self.outer_of[it] for it in self.instance.stop_idle(choose, self.outer_of))
        gone = self.tell_gone()
        return Released(gone, stopped & gone, stopped - gone)

    def tell_gone(self) -> frozenset[Rank]:
        """Tell the outer instance which ranks are gone, and return them. Each call adds to the job's eventlog."""
        gone = self.gone()
        if gone:
            memo = {"id": self.id, "volatile": False, "memo": given_back.encode(gone)}
            ask(self.outer, "job-manager.memo", memo, timeout_s=self.timeout_s)
        return gone

    def gone(self) -> frozenset[Rank]:
        """The outer ranks that were given back and whose brokers are gone."""
        return frozenset(self.outer_of[it] for it in self.instance.gone())


@contextmanager
def _inside(
    uri: str,
    connect: Callable[[str], Handle],
    timeout_s: float,
    wait_s: Callable[[float], None],
    now_s: Callable[[], float],
) -> Iterator[_Job]:
    """Open the connections to an instance and to the one that it is a job of."""
    with ExitStack() as opened:

        def open_(where: str) -> Handle:
            handle = connect(where)
            opened.callback(handle.close)
            return handle

        instance = _Instance(open_(uri), lambda: connect(uri), timeout_s, wait_s, now_s)
        opened.callback(instance.close)
        outer_uri, id_ = instance.attribute("parent-uri"), instance.attribute("jobid")
        if not outer_uri or not id_:
            raise CannotRelease("this instance is no job of another instance: nobody takes nodes back")
        outer, job = open_(outer_uri), parse_job_id(id_)
        yield _Job(instance, outer, job, _outer_ranks(outer, instance, job, timeout_s), timeout_s)


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
        self._stopping: dict[Rank, Handle] = {}

    def close(self) -> None:
        """Close the connections by which brokers were told to end."""
        for rank in list(self._stopping):
            self._stopping.pop(rank).close()

    def attribute(self, name: str) -> str:
        """An attribute of the broker; "" if it has none."""
        try:
            return str(self._ask("attr.get", {"name": name})["value"])
        except CallFailed as failure:
            if failure.errno != errno.ENOENT:
                raise
            return ""

    def critical(self) -> frozenset[int]:
        """The ranks that cannot leave."""
        return frozenset(parse_idset(self.attribute("broker.critical-ranks") or str(LEADER))) | {LEADER}

    def ranks_up(self, idle_since_s: dict[Rank, float], now_s: float) -> list[RankUse]:
        """The ranks that jobs may use, and the leader. ``idle_since_s`` is updated."""
        critical, seen = self.critical(), self._look()
        idle = {it.rank for it in seen.values() if it.idle and it.drain_reason is None}
        for rank in idle_since_s.keys() - idle:
            del idle_since_s[rank]
        for rank in idle:
            idle_since_s.setdefault(rank, now_s)
        up = [it.rank for it in seen.values() if it.online and it.drain_reason is None]
        leader = RankUse(Rank(LEADER), None, is_critical=True)
        return [leader, *(RankUse(rank, idle_since_s.get(rank), rank in critical) for rank in up)]

    def count_waiting(self) -> int:
        """How many jobs wait, without those that are held by urgency 0."""
        request = {"max_entries": 0, "attrs": ["urgency"], "constraint": {"states": ["pending"]}}
        jobs = self._ask("job-list.list", request)["jobs"]
        return sum(job.get("urgency") != 0 for job in jobs)

    def stop_idle(self, choose: Callable[[list[Rank]], list[Rank]], ranks: Mapping[Rank, Rank]) -> list[Rank]:
        """Drain the chosen idle ranks, look again, and stop the brokers of those that are still idle."""
        critical = self.critical()
        may_leave = [it for it in self._look().values() if it.rank not in critical and it.rank in ranks]
        begun = [it.rank for it in may_leave if it.drain_reason == DRAIN_REASON and it.online]
        idle = [it.rank for it in may_leave if it.idle and it.drain_reason is None]
        # The highest ranks first: jobs of the instance get the low ones first.
        chosen = begun + choose(sorted(idle, reverse=True))
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
        gone = [it.rank for it in self._look().values() if it.drain_reason == DRAIN_REASON and not it.online]
        for rank in self._stopping.keys() & set(gone):
            self._stopping.pop(rank).close()
        return gone

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
            # More answers follow the first one, so it has a connection of its own, until the broker is gone.
            if rank not in self._stopping:
                self._stopping[rank] = self._another()
            ask(self._stopping[rank], "rexec.exec", terminate_command(pid), rank=rank, timeout_s=self._timeout_s)
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
        ranks = given_back.outer_ranks(read_json(answer["R"]))
        mapping = read_json(instance.attribute("broker.mapping"))
    except (ValueError, NotationError) as fault:
        raise FluxError(f"the job's R, or the mapping of its brokers, cannot be read: {fault}") from fault
    if len(ranks) != size or mapping != [[0, size, 1, 1]]:
        raise CannotRelease(
            f"the instance has {size} brokers on {len(ranks)} nodes: nodes can be given back if each has one broker"
        )
    return {Rank(number): rank for number, rank in enumerate(ranks)}


# --- idle ranks -------------------------------------------------------------------------------------------
#
# Choose the idle ranks that a batch job's own instance gives back to the outer one before the job ends.


@dataclass(frozen=True, slots=True)
class RankUse:
    """A rank of the instance that is up. ``idle_since_s``: None while something runs there."""

    rank: Rank
    idle_since_s: float | None
    is_critical: bool = False  # the instance dies with it, or other ranks are connected through it


@dataclass(frozen=True, slots=True)
class GivingBack:
    """The ranks to give back now, and the reason of every idle rank. ``again_at_s``: when time changes this."""

    ranks: tuple[Rank, ...]
    why: Mapping[Rank, Reason]
    again_at_s: float = inf


def choose_idle_ranks(
    up: Collection[RankUse], jobs_waiting: int, nodes_min: int, idle_timeout_s: float, now_s: float
) -> GivingBack:
    """Choose among the ranks that are ``up``, the leader included, and leave ``nodes_min`` of them.

    A job that waits needs more than what is idle, or is about to start there, so nothing is given back then. The
    highest ranks go first, because jobs of the instance get the low ones first.
    """
    given: list[Rank] = []
    why: dict[Rank, Reason] = {}
    again_at_s = inf
    for it in sorted(up, key=lambda it: -it.rank):
        if it.idle_since_s is None:
            continue
        idle_s = now_s - it.idle_since_s
        if it.is_critical:
            why[it.rank] = because(Code.RANK_CRITICAL)
        elif jobs_waiting:
            why[it.rank] = because(Code.WAITING_JOBS_NEED_IT, job_count=jobs_waiting)
        elif len(up) - len(given) <= nodes_min:
            why[it.rank] = because(Code.KEPT_BY_MIN, nodes_min=nodes_min)
        elif idle_s < idle_timeout_s:
            why[it.rank] = because(Code.IDLE_NOT_LONG, idle_s=idle_s, idle_timeout_s=idle_timeout_s)
            again_at_s = min(again_at_s, it.idle_since_s + idle_timeout_s)
        else:
            why[it.rank] = because(Code.RANK_GIVEN_BACK, idle_s=idle_s, idle_timeout_s=idle_timeout_s)
            given.append(it.rank)
    return GivingBack(tuple(given), why, again_at_s)
