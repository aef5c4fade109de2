"""The stream of server-sent events: each event of the history as it happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nodemanager.web.api.handlers import event_document
from nodemanager.web.api.hidden_jobs import hide_jobs
from nodemanager.web.state.access import Access
from nodemanager.web.state.board import Board

STREAMS_MAX = 64
POLL_S = 0.2
KEEP_ALIVE_S = 15.0


class EventStreams:
    """Sends each client the events from now on, or from the last event whose number it has seen."""

    def __init__(self, board: Board, access: Access, ended: Callable[[], bool]) -> None:
        self._board = board
        self._access = access
        self._ended = ended
        self._open = 0

    async def respond(self, request: Request) -> Response:
        if self._open >= STREAMS_MAX:
            return JSONResponse({"error": f"there are {STREAMS_MAX} streams already"}, status_code=503)
        seen = request.headers.get("last-event-id", request.query_params.get("after", ""))
        latest = self._board.events_after(0, 1)
        after = int(seen) if seen.isascii() and seen.isdecimal() and len(seen) < 18 else -1
        if after < 0:
            after = latest[-1][0] if latest else 0
        self._open += 1  # before the next request is looked at
        return _CountedStream(self._events(after, shows_jobs=self._access.may_see_jobs(request)), self._leave)

    def _leave(self) -> None:
        self._open -= 1

    async def _events(self, after: int, *, shows_jobs: bool) -> AsyncIterator[str]:
        quiet_s = 0.0
        yield ": from here on\n\n"
        while not self._ended():
            for number, event in self._board.events_after(after):
                after = number
                quiet_s = 0.0
                if event.of_job and not shows_jobs:
                    continue
                data = json.dumps(event_document(number, event))
                if not shows_jobs:
                    data = hide_jobs(data.encode(), self._board.is_active_job).decode()
                yield f"id: {number}\nevent: {event.kind}\ndata: {data}\n\n"
            await asyncio.sleep(POLL_S)
            quiet_s += POLL_S
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield ": nothing new\n\n"


class _CountedStream(StreamingResponse):
    """A stream that says once when it has ended, even if its client left before the first line."""

    def __init__(self, lines: AsyncIterator[str], leave: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
