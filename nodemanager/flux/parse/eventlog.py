"""Read the events of jobs as the job manager's journal and ``job-info`` send them (RFC 18, RFC 21).

Every function raises ``ValueError``, and nothing else, if what an instance sent has another shape.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from nodemanager.core import untrusted
from nodemanager.core.jobs import JobEnd, JobException
from nodemanager.core.notation import escape_unprintable
from nodemanager.delegation.jobs import EventlogEntry
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, text_at, whole_at

JOURNAL = "job-manager.events-journal"
CAUGHT_UP = frozenset({-1, (1 << 64) - 1})  # FLUX_JOBID_ANY, the id of the journal's sentinel
# "clean" is the last event of a job, "invalidate" the last one of a job that was refused at submission.
LAST_EVENTS = frozenset({"clean", "invalidate"})
NOTE_MAX = 1000  # characters
EXCEPTIONS_MAX = 10
# The exceptions that give a job a result of their own; any other one is a failure (flux-core, job-list).
_RESULTS = {"cancel": "CANCELED", "timeout": "TIMEOUT"}


def journal_request(names: Iterable[str], *, full: bool = False) -> dict[str, object]:
    """Ask for events of these names. ``full``: also of the jobs that have ended."""
    return {"full": full, "allow": dict.fromkeys(sorted(names), 1)}


def read_events(entries: Iterable[object]) -> tuple[EventlogEntry, ...]:
    """Read the events of one job."""
    return tuple(read_event(entry) for entry in entries)


def read_event(entry: object) -> EventlogEntry:
    """Read one event. Flux's own are flat: of one that nests too deep, only the name and the time are read."""
    event = object_at(entry, "event")
    found = event.get("context") or {}
    context = object_at({} if isinstance(found, untrusted.TooDeep) else found, "event.context")
    return EventlogEntry(
        text_at(event.get("name"), "event.name"), seconds_at(event.get("timestamp"), "event.timestamp"), context
    )


def read_journal(response: object) -> tuple[int, list[Mapping[str, Any]]]:
    """Read a response of the journal: a job's id, and its events, of which only the names have been checked."""
    entry = object_at(response, "journal")
    events = [object_at(event, "event") for event in list_at(entry.get("events"), "journal.events")]
    for event in events:
        text_at(event.get("name"), "event.name")
    return whole_at(entry.get("id"), "journal.id"), events


def is_submitted_by(userid: int, events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether these events of a job say that this user submitted it."""
    for event in events:
        context = event.get("context")
        if event["name"] == "submit" and isinstance(context, Mapping) and context.get("userid") == userid:
            return True
    return False


def read_eventlog(text: object) -> list[Mapping[str, Any]]:
    """Split an eventlog into its entries, one JSON object a line."""
    return [object_at(read_json(line), "event") for line in untrusted.read_lines(text_at(text, "eventlog"))]


def read_output(text: object) -> list[Mapping[str, Any]]:
    """Split an eventlog of a copy's output. The job's user can write there, so a bad line becomes a note."""
    return [_read_output_event(line) for line in untrusted.read_lines(text_at(text, "eventlog"))]


def _read_output_event(line: str) -> Mapping[str, Any]:
    try:
        return object_at(read_json(line), "event")
    except ValueError as fault:
        return {"name": "data", "timestamp": 0.0, "context": untrusted.Unreadable(f"cannot be read: {fault}")}


def read_json(text: object) -> Any:
    """Read JSON. A value in it that nests too deep is ``TOO_DEEP``."""
    return untrusted.read_message(text_at(text, "JSON"))


# --- how a job ended --------------------------------------------------------------------------------------


def read_job_end(eventlog: str) -> JobEnd | None:
    """Fold a job's eventlog; None if the job has not ended. Raises ``ValueError``."""
    began_at = ended_at = status = None
    refused = False
    exceptions: list[JobException] = []
    for event in read_events(read_eventlog(eventlog)):
        name, at, context = event.name, event.at, event.context
        if name == "start":
            began_at = at
        elif name == "finish":
            status = whole_at(context.get("status"), "finish.status")
        elif name == "exception":
            exceptions.append(
                JobException(
                    escape_unprintable(text_at(context.get("type"), "exception.type")[:NOTE_MAX]),
                    whole_at(context.get("severity"), "exception.severity"),
                    escape_unprintable(str(context.get("note") or "")[:NOTE_MAX]),
                )
            )
        elif name in LAST_EVENTS:
            ended_at, refused = at, name == "invalidate"
    if ended_at is None:
        return None
    # The fatal ones first: they explain the end.
    exceptions.sort(key=lambda it: it.severity)
    result = "REFUSED" if refused else _result(status, exceptions)
    return JobEnd(ended_at, result, began_at, _how(status), tuple(exceptions[:EXCEPTIONS_MAX]))


def _result(status: int | None, exceptions: list[JobException]) -> str:
    """The result, as ``flux jobs`` shows it."""
    if status == 0:
        return "COMPLETED"
    fatal = next((it for it in exceptions if it.severity == 0), None)
    return _RESULTS.get(fatal.type, "FAILED") if fatal is not None else "FAILED"


def _how(status: int | None) -> str:
    """The wait status in words; "" if the job has none."""
    if status is None:
        return ""
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
