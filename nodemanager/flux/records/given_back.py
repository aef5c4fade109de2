"""Ranks that a running instance gives back before it ends: a memo of the job that the instance runs in.

Flux takes memos only from the job's owner, and writes them to the job's eventlog. So the memo is the job's own, and
outlives those who wrote or read it. On stock flux-core an allocation cannot shrink: the ranks stay allocated
until the job ends. Source: RFC 21 (events), flux-core's module job-exec (critical ranks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import NotationError, format_idset, parse_idset_ranges
from nodemanager.core.slots import Rank
from nodemanager.core.untrusted import read_json
from nodemanager.flux.parse.eventlog import read_eventlog
from nodemanager.flux.parse.json_fields import object_at, text_at, whole_at
from nodemanager.flux.parse.resources import listed_jobs, read_holdings

MEMO = "node_manager_given_back"  # an idset of the outer instance's ranks
INSTANCE_MEMO = "uri"  # which a sub-instance sets when it is up
_LOG_MAX = 1 << 20  # characters; an ordinary job has some thousand
# A job that has reached one of these is about to free all its ranks.
_ENDINGS = frozenset({"finish", "release", "free", "clean"})


def jobs_that_gave_back(job_list: object) -> list[JobId]:
    """Read which jobs carry the memo, from an answer of ``job-list.list`` with ``annotations``.

    Raises ``ValueError``.
    """
    found = []
    for where, job in listed_jobs(job_list):
        annotations = job.get("annotations")
        user = annotations.get("user") if isinstance(annotations, dict) else None
        if isinstance(user, dict) and MEMO in user:
            found.append(JobId(whole_at(job.get("id"), f"{where}.id")))
    return found


def read_given_back(eventlog: str, r: str, cores: Mapping[Rank, int]) -> frozenset[Rank]:
    """Return the ranks that a job still holds and has given back. Users write the memo: any fault means none.

    ``eventlog`` and ``r``: the job's own, from the KVS. ``cores``: of each rank. Only ranks count of which the job
    holds all cores, so that no other job runs there, and never its first one, without which it would die.
    """
    memos: dict[str, object] = {}
    if len(eventlog) > _LOG_MAX:
        return frozenset()
    try:
        for event in read_eventlog(eventlog):
            if event.get("name") in _ENDINGS:
                return frozenset()
            if event.get("name") == "memo":
                memos |= object_at(event.get("context"), "context")
        if not memos.get(INSTANCE_MEMO):
            return frozenset()
        given = parse_idset_ranges(text_at(memos.get(MEMO), MEMO))  # ranges, because a user may name any number
        held, _ = read_holdings(read_json(r))
    except (ValueError, NotationError):
        return frozenset()
    first = min((it.rank for it in held), default=None)
    whole = (it.rank for it in held if it.rank != first and it.cores == cores.get(it.rank))
    return frozenset(rank for rank in whole if any(low <= rank <= high for low, high in given))


def outer_ranks(r: object) -> list[Rank]:
    """The ranks of a job in the order of its shell ranks, from its R. Raises ``ValueError``."""
    held, _ = read_holdings(r)
    return sorted(it.rank for it in held)


def encode(ranks: Iterable[Rank]) -> Mapping[str, str]:
    """Write the memo."""
    return {MEMO: format_idset(ranks)}
