"""Says that the data of a job has been copied off its nodes, from any rank of the instance.

It needs no node manager: it writes the job's record, and the one that completes it posts the event. flux-core posts
events only for jobs that have not ended (``job-manager.post-event``, tried on 0.88). Housekeeping runs after the
end, so the event is then appended to the eventlog in the KVS: ``flux job eventlog`` shows it, but ``flux job
wait-event`` stops reading at ``clean``.
"""

from __future__ import annotations

import errno
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import NotationError, format_idset, format_job_id, parse_idset
from nodemanager.core.ports import FluxError
from nodemanager.core.slots import Rank
from nodemanager.core.untrusted import read_json
from nodemanager.flux import kvs
from nodemanager.flux.bindings import LEADER, CallFailed, Handle, ask
from nodemanager.flux.parse.json_fields import list_at, object_at, text_at
from nodemanager.flux.records import data_safe as record

ALL = "all"


class CannotSay(Exception):
    """The data cannot be said to be safe. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Said:
    """What holds now. ``missing``: the ranks whose data is not safe yet. ``posted``: how the event was posted."""

    job: JobId
    ranks: frozenset[Rank]
    missing: frozenset[Rank]
    posted: str = ""

    def __str__(self) -> str:
        said = f"{format_job_id(self.job)}: the data of rank {format_idset(self.ranks)} is safe"
        if self.missing:
            return f"{said}; not yet that of rank {format_idset(self.missing)}"
        return f"{said}, and so is all of the job's{f' ({self.posted})' if self.posted else ''}"


def say_data_safe(
    handle: Handle, job: JobId, ranks: str, *, timeout_s: float, wall_at: Callable[[], float] = time.time
) -> Said:
    """Record that the data of ranks is safe, and post the event once it is that of all the job's ranks.

    ``ranks``: an idset, ``all``, or "" for the own rank. On rank 0, which is the operator's, "" means all unless
    the job ran there. Say it again at any time. Raises :class:`CannotSay` and ``FluxError``.
    """
    of_job = _ranks_of(handle, job, timeout_s)
    saying = _ranks_to_say(handle.rank, of_job, job, ranks)
    mark = secrets.token_hex(8)
    _append(handle, record.key_of(job), record.encode(mark, saying), timeout_s)
    known = _read(handle, job, timeout_s)
    posted = ""
    if known.is_mine_to_tell(mark, of_job):
        posted = _post(handle, job, of_job, timeout_s, wall_at)
        _append(handle, record.key_of(job), record.TOLD, timeout_s)
    return Said(job, saying, of_job - known.safe, posted)


def _ranks_of(handle: Handle, job: JobId, timeout_s: float) -> frozenset[Rank]:
    """The ranks on which the job runs or ran, from its R."""
    key = f"{record.job_directory(job)}.R"
    text = kvs.read(handle, [key], timeout_s=timeout_s).get(key)
    if text is None:
        raise CannotSay(
            f"{format_job_id(job)}: there is no such job with nodes: give the id of one that has started"
        )
    try:
        execution = object_at(object_at(read_json(text), "R").get("execution"), "R.execution")
        entries = [object_at(it, "R_lite") for it in list_at(execution.get("R_lite"), "R.execution.R_lite")]
        return frozenset(
            Rank(rank) for it in entries for rank in parse_idset(text_at(it.get("rank"), "R_lite.rank"))
        )
    except (ValueError, NotationError) as fault:
        raise FluxError(f"KVS key {key} cannot be read: {fault}") from fault


def _ranks_to_say(own: int, of_job: frozenset[Rank], job: JobId, given: str) -> frozenset[Rank]:
    here = frozenset({Rank(own)})
    if not given:
        saying = of_job if own == LEADER and not here <= of_job else here
    elif given == ALL:
        saying = of_job
    else:
        try:
            saying = frozenset(map(Rank, parse_idset(given)))
        except NotationError as fault:
            raise CannotSay(f"RANKS: {fault}: give ranks such as 1-3, or all") from fault
    if own != LEADER and saying != here:
        raise CannotSay(
            f"this is rank {own}, which speaks for itself only: leave out RANKS, or run it on rank 0"
            f" (flux exec -r 0 flux-node-manager data-safe {format_job_id(job)} {given})"
        )
    if not saying or not saying <= of_job:
        others = format_idset(saying - of_job) or "none"
        raise CannotSay(f"{format_job_id(job)} ran on rank {format_idset(of_job)}, not on {others}")
    return saying


def _post(
    handle: Handle, job: JobId, ranks: frozenset[Rank], timeout_s: float, wall_at: Callable[[], float]
) -> str:
    context = {"ranks": format_idset(ranks)}
    try:
        event = {"id": int(job), "name": record.EVENT, "context": context}
        ask(handle, "job-manager.post-event.post", event, timeout_s=timeout_s)
    except CallFailed as failure:
        if failure.errno != errno.ENOENT:
            raise
        line = json.dumps({"timestamp": wall_at(), "name": record.EVENT, "context": context}) + "\n"
        _append(handle, f"{record.job_directory(job)}.eventlog", line, timeout_s)
        return f"the job has ended: event {record.EVENT} appended to its eventlog"
    return f"event {record.EVENT} posted"


def _append(handle: Handle, key: str, text: str, timeout_s: float) -> None:
    kvs.append(handle, key, text, timeout_s=timeout_s)


def _read(handle: Handle, job: JobId, timeout_s: float) -> record.DataRecord:
    key = record.key_of(job)
    try:
        return record.decode(kvs.read(handle, [key], timeout_s=timeout_s).get(key, ""))
    except ValueError as fault:
        raise FluxError(f"KVS key {key} cannot be read: {fault}") from fault
