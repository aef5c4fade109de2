"""Read job events as the journal and ``job-info`` send them (RFC 18, RFC 21).

Every function raises ``ValueError``, and nothing else, if what an instance sent has another shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodemanager.core import untrusted
from nodemanager.delegation.jobs import EventlogEntry
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, text_at, whole_at

JOURNAL = "job-manager.events-journal"
CAUGHT_UP = frozenset({-1, (1 << 64) - 1})  # FLUX_JOBID_ANY, the id of the journal's sentinel


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
