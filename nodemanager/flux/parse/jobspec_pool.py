"""Keep each distinct jobspec once. A queue of a million jobs has few distinct ones, once trimmed.

A jobspec is kept as text, which takes a tenth of the memory of its objects, and with what it asks for.
"""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakValueDictionary

from nodemanager.core.jobs import JobRequest
from nodemanager.flux.parse.jobspec import DroppedJobspec, size_bytes, trim_jobspec, try_request


class KeptJobspec:
    """A trimmed jobspec. It never changes, and equal ones are one object as long as a job has it."""

    __slots__ = ("__weakref__", "_text", "request", "size_bytes")

    def __init__(self, text: str, jobspec: object) -> None:
        self._text = text
        self.size_bytes = size_bytes(jobspec)  # of its objects, an estimate
        self.request: JobRequest | str = try_request(jobspec)  # or why it cannot be read

    def parse(self) -> Any:
        """Return the jobspec as objects."""
        return json.loads(self._text)


class JobspecPool:
    """The jobspecs of the jobs of one queue."""

    def __init__(self) -> None:
        self._kept: WeakValueDictionary[str, KeptJobspec] = WeakValueDictionary()

    def keep(self, jobspec: object) -> KeptJobspec | DroppedJobspec:
        """Trim a jobspec, and return the kept one that equals it. Never raises."""
        trimmed = trim_jobspec(jobspec)
        if isinstance(trimmed, DroppedJobspec):
            return trimmed
        try:
            text = json.dumps(trimmed, separators=(",", ":"))
        except RecursionError:
            return DroppedJobspec("jobspec: its objects nest too deeply")
        kept = self._kept.get(text)
        if kept is None:
            kept = self._kept[text] = KeptJobspec(text, trimmed)
        return kept
