"""The instance's journals, pushed: a thread with a handle and a reactor of its own.

The job manager's journal (``job-manager.events-journal`` with ``full`` false) begins with every active job's events
so far, in no order of jobs, then says once ``{"id": -1, "events": []}``, then sends each event as it is posted. The
resource journal ends its own backlog with an empty list of events. Whether a queue is stopped stands in no journal,
so it is asked with every listing and probe.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nodemanager.core.facts import QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.ports import Clock, FluxError, QueueListener
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.parse.job_journal import JobQueue, changes_allocation
from nodemanager.flux.reactor import Reactor

_RECONNECT_MIN_S = 0.2
_RECONNECT_MAX_S = 5.0
# Events come one a message; those of one burst are handed over together.
_BATCH_S = 0.01
_STOP_WITHIN_S = 1.0
_CAUGHT_UP = -1
# How job-manager.queue-status shows every queue while the scheduler is away, which is no administrator's will, and
# hides what that is: asked again soon, until the scheduler is there.
_NO_SCHEDULER = "Scheduler is offline"
_ASK_AGAIN_S = 1.0


class RealFluxWatch:
    """``FluxWatch`` on a real instance. It starts once."""

    def __init__(
        self, uri: str, clock: Clock, *, probe_s: float = 10.0, relist_s: float = 60.0, timeout_s: float = 5.0
    ) -> None:
        self._uri = uri
        self._clock = clock
        self._periods = _Periods(probe_s, relist_s, timeout_s)
        self._thread: threading.Thread | None = None
        self._ask_to_stop: socket.socket | None = None

    def start(self, listener: QueueListener, lost: Callable[[str], None]) -> None:
        stop_asked, self._ask_to_stop = socket.socketpair()
        self._thread = threading.Thread(
            target=self._run, args=(stop_asked, listener, lost), name="flux-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, within a second: nothing is pushed any more then. Ended already, it is no error."""
        if self._thread is not None and self._ask_to_stop is not None:
            self._ask_to_stop.close()  # readable at the other end
            self._thread.join(_STOP_WITHIN_S)

    def _run(self, stop_asked: socket.socket, listener: QueueListener, lost: Callable[[str], None]) -> None:
        pause_s = 0.0
        with stop_asked:
            while not _readable_within(stop_asked, pause_s):
                following = _Following(self._clock, self._periods, listener)
                try:
                    following.run(self._uri, stop_asked.fileno())
                except FluxError as failure:
                    lost(str(failure))
                pause_s = _RECONNECT_MIN_S if following.listed else _longer(pause_s)


def _readable_within(asked: socket.socket, wait_s: float) -> bool:
    readable, _, _ = select.select([asked], [], [], wait_s)
    return bool(readable)


def _longer(pause_s: float) -> float:
    return min(max(2 * pause_s, _RECONNECT_MIN_S), _RECONNECT_MAX_S)


@dataclass(frozen=True, slots=True)
class _Periods:
    probe_s: float
    relist_s: float
    timeout_s: float


@dataclass(slots=True)
class _QueueLook:
    """One round of asking which queues are stopped."""

    started_s: float
    unanswered: int
    stopped: set[str] = field(default_factory=set)
    hidden: bool = False

    @property
    def seen(self) -> frozenset[str] | None:
        return None if self.hidden else frozenset(self.stopped)


class _Following:
    """One connection, from its complete queue to its loss. Everything here runs in its reactor."""

    def __init__(self, clock: Clock, periods: _Periods, listener: QueueListener) -> None:
        self.listed = False  # the complete queue was handed over at least once
        self._clock = clock
        self._periods = periods
        self._listener = listener
        self._fault: FluxError | None = None
        self._stopped = False
        # The queue, and what is missing before it may be handed over as complete.
        self._queue = JobQueue()
        self._listing = True
        self._listing_started_s = 0.0
        self._caught_up = False
        self._queues_asked = False  # since the listing began
        self._queues_stopped: frozenset[str] | None = None
        # What happened since the last handing over.
        self._first_change_s: float | None = None
        self._stirred = False
        self._resources_caught_up = False

    def run(self, uri: str, stop_fd: int) -> None:
        """Follow until asked to stop. Raises ``FluxError`` when the connection is lost, or cannot be made."""
        with Reactor(uri) as self._reactor:
            self._reactor.on_readable(stop_fd, self._stop)
            self._batch = self._reactor.every(_BATCH_S, self._hand_over)
            self._reactor.every(self._periods.probe_s, self._look_at_queues).start()
            self._reactor.every(self._periods.relist_s, self._list_anew).start()
            self._ask_again = self._reactor.every(_ASK_AGAIN_S, self._look_at_queues)
            self._reactor.subscribe("resource.journal", None, self._resource_said, self._fail)
            self._cancel_jobs = self._follow_jobs()
            self._reactor.run()
        if self._fault is not None:
            raise self._fault
        if not self._stopped:
            raise FluxError(f"the connection to {uri or 'the enclosing instance'} is lost")

    def _stop(self) -> None:
        self._stopped = True
        self._reactor.stop()

    def _fail(self, failure: CallFailed) -> None:
        self._fault = self._fault or failure
        self._reactor.stop()

    # --- jobs ---

    def _list_anew(self) -> None:
        if not self._listing:
            self._cancel_jobs()
            self._cancel_jobs = self._follow_jobs()

    def _follow_jobs(self) -> Callable[[], None]:
        self._queue = JobQueue()
        self._listing = True
        self._listing_started_s = self._clock.monotonic_s()
        self._caught_up = False
        self._queues_asked = False
        self._look_at_queues()
        return self._reactor.subscribe("job-manager.events-journal", {"full": False}, self._job_said, self._fail)

    def _job_said(self, response: dict[str, Any]) -> None:
        if response["id"] == _CAUGHT_UP:
            self._caught_up = True
            self._hand_over_all()
            return
        for event in response["events"]:
            self._queue.apply(
                response["id"],
                event["name"],
                event["timestamp"],
                event.get("context", {}),
                response.get("jobspec"),
                response.get("R"),
            )
            self._stirred |= changes_allocation(event["name"])
        self._note_change()

    def _resource_said(self, response: dict[str, Any]) -> None:
        if not response["events"]:
            self._resources_caught_up = True
        if self._resources_caught_up:
            self._stirred = True
            self._note_change()

    def _note_change(self) -> None:
        if self._first_change_s is None:
            self._first_change_s = self._clock.monotonic_s()
            self._batch.start()

    # --- handing over ---

    def _hand_over_all(self) -> None:
        if not self._caught_up or not self._queues_asked:
            return
        self._listing = False
        self.listed = True
        complete = self._queue.complete(self._listing_started_s)
        self._listener(replace(complete, queues_stopped=self._queues_stopped))
        self._stirred = True
        self._hand_over()

    def _hand_over(self) -> None:
        """Give the listener what has changed since it was last told."""
        self._batch.stop()
        started_s, self._first_change_s = self._first_change_s, None
        if self._listing:
            return
        if started_s is not None:
            changes = self._queue.changes(started_s)
            if changes.jobs or changes.unreadable or changes.ended:
                self._listener(changes)
        if self._stirred:
            self._stirred = False
            self._listener(RanksChanged())

    # --- queues: the probe ---

    def _look_at_queues(self) -> None:
        started_s = self._clock.monotonic_s()
        self._ask("queue-list", {}, lambda answer: self._ask_each(answer["queues"], started_s), self._fail)

    def _ask_each(self, names: list[str], started_s: float) -> None:
        payloads: dict[str, dict[str, str]] = {name: {"name": name} for name in names} or {"": {}}
        look = _QueueLook(started_s, len(payloads))
        for name, payload in payloads.items():
            self._ask(
                "queue-status", payload, partial(self._queue_said, look, name), partial(self._queue_failed, look)
            )

    def _ask(
        self, what: str, payload: object, answered: Callable[[Any], None], failed: Callable[[CallFailed], None]
    ) -> None:
        self._reactor.request(f"job-manager.{what}", payload, answered, failed, timeout_s=self._periods.timeout_s)

    def _queue_said(self, look: _QueueLook, name: str, status: dict[str, Any]) -> None:
        if not status["start"]:
            look.hidden |= status.get("stop_reason") == _NO_SCHEDULER
            look.stopped.add(name)
        self._answered(look)

    def _queue_failed(self, look: _QueueLook, failure: CallFailed) -> None:
        if failure.errno == errno.EINVAL:  # configured away since it was listed
            self._answered(look)
        else:
            self._fail(failure)

    def _answered(self, look: _QueueLook) -> None:
        look.unanswered -= 1
        if look.unanswered:
            return
        was, self._queues_stopped = self._queues_stopped, look.seen
        self._queues_asked = True
        if look.hidden:
            self._ask_again.start()
        else:
            self._ask_again.stop()
        if self._listing:
            self._hand_over_all()
            return
        # The journal is in step with these answers, so what it said before them goes first.
        self._hand_over()
        if self._queues_stopped != was or look.hidden:
            self._listener(QueueSeen(look.started_s, queues_stopped=self._queues_stopped))
        else:
            self._listener(QueueProbed(look.started_s))
