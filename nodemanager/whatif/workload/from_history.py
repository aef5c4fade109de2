"""A workload from the service's history: the jobs of the site that have ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path

from nodemanager.core.untrusted import read_json
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.history.store.shapes import shape_from_json
from nodemanager.whatif.workload.flux_jobs import NEVER_RAN, UNREADABLE
from nodemanager.whatif.workload.swf import NO_LIMIT, OVERRUN
from nodemanager.whatif.workload.workload import Oddities, TraceJob, Workload, WorkloadError

KINDS = {
    "job": str,
    "userid": int,
    "submitted_at": float,
    "began_at": float,
    "ended_at": float,
    "duration_s": float,
}


def open_service_history(path: Path, since_at: float = 0.0, jobs_max: int | None = None) -> Workload:
    """Open the jobs in a history file that have ended by now. The service may go on writing it.

    ``since_at``: leave out jobs that were submitted earlier. ``jobs_max``: take only so many, the latest. Raises
    :class:`WorkloadError`.
    """
    reader = HistoryReader(path)
    try:
        until_at = (
            reader.last_job_ended_at()
        )  # each policy reads the file by itself, and all must get the same jobs
        if jobs_max is not None:
            since_at = max(since_at, reader.submission_of_latest(jobs_max))
        count = reader.count_jobs(since_at)
        # The workload starts with the first job that ran, not with one that was cancelled long before.
        with closing(_read(reader, 0.0, since_at, until_at, Oddities())) as jobs:
            start_at = next((job.submit_s for job in jobs), 0.0)
    except (HistoryUnreadable, WorkloadError) as error:
        raise WorkloadError(
            f"{error}: not a journal with jobs. A journal written by an earlier version gets them after the "
            "service has run with this version"
        ) from error
    return Workload(path.name, partial(_read, reader, start_at, since_at, until_at), start_at, jobs_about=count)


def _read(
    reader: HistoryReader, start_at: float, since_at: float, until_at: float, oddities: Oddities
) -> Generator[TraceJob, None, None]:
    try:
        for row in reader.jobs(until_at, since_at):
            job = _job(row, start_at, oddities)
            if job is not None:
                yield job
    except HistoryUnreadable as error:
        raise WorkloadError(str(error)) from error


def _job(row: sqlite3.Row, start_at: float, oddities: Oddities) -> TraceJob | None:
    place = f"job {row['job']}"
    if row["began_at"] is None:
        oddities.note(NEVER_RAN, place)
        return None
    if not all(isinstance(row[name], kind) for name, kind in KINDS.items()):
        oddities.note(UNREADABLE, place)  # the file is corrupt in a way that SQLite does not notice
        return None
    try:
        shape = shape_from_json(read_json(row["shape"]))
    except (ValueError, KeyError, TypeError, IndexError):
        oddities.note(UNREADABLE, place)
        return None
    run_s, limit_s = max(0.0, row["ended_at"] - row["began_at"]), row["duration_s"]
    if not limit_s:
        oddities.note(NO_LIMIT, place)
    elif run_s > limit_s:
        oddities.note(OVERRUN, place)
        limit_s = run_s
    submit_s = max(0.0, row["submitted_at"] - start_at)
    return TraceJob(row["job"], submit_s, run_s, limit_s, shape, row["userid"])
