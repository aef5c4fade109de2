"""Read job events as the journal and ``job-info`` send them (RFC 18, RFC 21).

Every function raises ``ValueError``, and nothing else, if what an instance sent has another shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

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
    """Read one event."""
    event = object_at(entry, "event")
    context: Mapping[str, Any] = object_at(event.get("context") or {}, "event.context")
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
    lines = text_at(text, "eventlog").splitlines()
    return [object_at(read_json(line), "event") for line in lines if line]


def read_json(text: object) -> Any:
    """Read JSON. Python would also take NaN and infinity, which Flux then refuses."""
    try:
        return json.loads(text_at(text, "JSON"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
