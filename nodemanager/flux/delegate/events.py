"""Read job events as the journal and ``job-info`` send them (RFC 18, RFC 21)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nodemanager.delegation.jobs import JobEvent
from nodemanager.flux.parse.json_fields import object_at, seconds_at, text_at


def read_events(entries: Iterable[object]) -> tuple[JobEvent, ...]:
    """Read the events of one job. Raises ``ValueError`` if one cannot be read."""
    return tuple(read_event(entry) for entry in entries)


def read_event(entry: object) -> JobEvent:
    """Read one event. Raises ``ValueError``."""
    event = object_at(entry, "event")
    context: Mapping[str, Any] = object_at(event.get("context") or {}, "event.context")
    return JobEvent(
        text_at(event.get("name"), "event.name"), seconds_at(event.get("timestamp"), "event.timestamp"), context
    )


def read_eventlog(text: str) -> list[Any]:
    """Split an eventlog into its entries, one JSON text a line. Raises ``ValueError``."""
    return [json.loads(line) for line in text.splitlines() if line]
