"""Choose the idle ranks that a batch job's own instance gives back to the outer one before the job ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Rank


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
