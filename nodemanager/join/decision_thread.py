"""The one thread that decides the join service's requests. It waits for the disk, so it is not the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nodemanager.join.admission import Answer

TOGETHER_MAX = 64  # decisions for which one commit is waited for

_Decision = Callable[[], Answer]
_T = TypeVar("_T")


class DecisionThread:
    """Decides requests in the order in which they come, for one event loop.

    While the thread waits for the disk, further requests come. ``decide_together`` then decides all of them and
    commits once, so a slow disk costs each request one or two commits, however many there are.

    If that raises, nothing is stored, and each is decided again by itself: a bug that one request meets fails no
    other.
    """

    def __init__(self, decide_together: Callable[[Sequence[_Decision]], list[Answer]]) -> None:
        self._decide_together = decide_together
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="admission")
        self._waiting: list[tuple[_Decision, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def decide(self, decision: _Decision) -> Answer:
        """Return the answer of a decision once what it stored is on disk."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((decision, answer))
        if self._task is None:
            self._task = loop.create_task(self._decide_waiting())
        return await answer

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do other work in the same thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _decide_waiting(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
                await self._decide_all(taken)
        finally:
            self._task = None

    async def _decide_all(self, taken: Sequence[tuple[_Decision, asyncio.Future[Answer]]]) -> None:
        decisions = [decision for decision, _ in taken]
        work = asyncio.ensure_future(self.run(lambda: self._decide_together(decisions)))
        await asyncio.wait([work])
        fault = work.exception()
        if fault is not None and len(taken) > 1:
            for one in taken:
                await self._decide_all([one])
            return
        for number, (_, answer) in enumerate(taken):
            if answer.done():  # the client is gone
                continue
            if fault is None:
                answer.set_result(work.result()[number])
            else:
                answer.set_exception(fault)
