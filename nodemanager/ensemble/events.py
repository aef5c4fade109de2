"""Show what a run does: as plain data for programs, and as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.core.notation import format_job_id
from nodemanager.ensemble.deeds import Call, Cancel, Deed, Fired, Noted, Notify, Resize, Submit, Terminate


def to_document(deed: Deed, at: float) -> dict[str, Any]:
    """Return a deed as an event: ``event`` is its kind, ``at`` seconds since the epoch."""
    match deed:
        case Fired(rule, run, fired_at, job, text):
            return {"event": "rule", "at": fired_at, "rule": rule, "run": run, "job": _id(job), "text": text}
        case Noted(noted_at, text):
            return {"event": "note", "at": noted_at, "text": text}
        case Submit(key, jobs):
            return {"event": "submit", "at": at, "key": key, "group": jobs.group}
        case Cancel(key, jobs, why):
            return {"event": "cancel", "at": at, "key": key, "jobs": [_id(job) for job in jobs], "text": why}
        case Notify(key, text, job):
            return {"event": "notify", "at": at, "key": key, "job": _id(job), "text": text}
        case Resize(key, change, floor, _):
            return {"event": "resize", "at": at, "key": key, "change": change, "floor": floor}
        case Call(key, function, rule):
            return {"event": "call", "at": at, "key": key, "rule": rule, "function": function}
        case Terminate(key, why):
            return {"event": "terminate", "at": at, "key": key, "text": why}


def to_line(deed: Deed) -> str:
    """Return a deed as a line; "" for those that the line of their rule says already."""
    match deed:
        case Fired(rule, run, _, job, text):
            by = f" (job {format_job_id(job)})" if job is not None else ""
            returned = "" if run else " returned"
            return f"rule {rule}{returned}: {text}{by}"
        case Noted(_, text):
            return text
        case Cancel(_, jobs):
            return f"cancel {len(jobs)} job{'' if len(jobs) == 1 else 's'}"
        case Notify(_, text):
            return f"message: {text}"
        case Resize(_, change, floor, _):
            return f"nodes: {change:+d}, so at least {floor}"
        case Submit() | Call() | Terminate():
            return ""


def counts_line(counts: Mapping[str, int]) -> str:
    """Return the counts of a group in a line."""
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing submitted"


def _id(job: int | None) -> str | None:
    return None if job is None else format_job_id(job)
