"""Takes single jobs out of answers to clients that may not see them.

Reasons of nodes, types and warnings name jobs, so this is done to each whole answer and not in each document.
Events that are about a job alone are left out before that (``HistoryEvent.of_job``).
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from nodemanager.core.notation import NotationError, parse_job_id
from nodemanager.web.state.board import Board

HIDDEN = "(hidden)"
JOB_KEYS = frozenset({"job", "jobs", "serves"})  # the fields that hold job ids, and the figures of reasons
KEPT_MAX = 16  # answers of which the version without jobs is kept
# Flux's ids begin with the milliseconds since the instance began. A smaller number is a count.
_NUMBER_MIN = 1 << 24
_DIGITS_MIN = len(str(_NUMBER_MIN))
_ID = re.compile(r"(?<![\w-])(?:[fƒ][1-9A-HJ-NP-Za-km-z]{1,11}|[0-9]{1,20})(?![\w-])", re.ASCII)


class HiddenBodies:
    """Answers without their jobs. The latest ones are kept, because everybody asks for the same few."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[object, bytes, bytes]] = OrderedDict()

    def of(self, path: str, body: bytes) -> bytes:
        """Return the answer at a path without its jobs."""
        latest = self._board.latest
        kept = self._kept.get(path)
        if kept is not None and kept[0] is latest and kept[1] == body:
            return kept[2]
        hidden = hide_jobs(body, self._board.is_active_job)
        with self._lock:
            self._kept[path] = (latest, body, hidden)
            self._kept.move_to_end(path)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return hidden


def hide_jobs(body: bytes, is_active: Callable[[int], bool]) -> bytes:
    """Return a JSON answer without the ids that its fields name, those of active jobs, and all written with ƒ.

    A job that has ended is known to nobody here, so its number looks like any other.
    """
    document = json.loads(body)
    named = frozenset(_named(document))

    def hide(found: re.Match[str]) -> str:
        job = _job_of(found[0])
        if job is None:
            return found[0]
        is_no_count = job >= _NUMBER_MIN or not found[0].isdecimal()
        known = found[0].startswith("ƒ") or job in named or (is_no_count and is_active(job))
        return HIDDEN if known else found[0]

    return json.dumps(_without(document, hide), ensure_ascii=False, separators=(",", ":")).encode()


def _job_of(text: str) -> int | None:
    if len(text) < _DIGITS_MIN and text.isdecimal() and text.isascii():  # most numbers, and quicker
        return int(text)
    try:
        return parse_job_id(text)
    except NotationError:
        return None


def _named(document: Any) -> Iterator[int]:
    match document:
        case list():
            for it in document:
                yield from _named(it)
        case dict():
            for name, value in document.items():
                if name in JOB_KEYS:
                    ids = value if isinstance(value, list) else [value]
                    yield from (job for it in ids if isinstance(it, str) and (job := _job_of(it)) is not None)
                yield from _named(value)


def _without(document: Any, hide: Callable[[re.Match[str]], str]) -> Any:
    match document:
        case str():
            return _ID.sub(hide, document)
        case list():
            return [_without(it, hide) for it in document]
        case dict():
            return {name: _without(value, hide) for name, value in document.items()}
        case _:
            return document
