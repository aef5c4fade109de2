"""A thread with a connection to one instance: requests go in, facts come out, and a lost connection is made again.

Opening a handle by ssh blocks, and an instance may hang, so each instance has a thread, a handle and a reactor of
its own. After a lost connection the bindings raise errors of any number, such as EEXIST. So a failed request counts
as refused only if the instance then answers a probe; otherwise the connection counts as lost.
"""

from __future__ import annotations

import collections
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from nodemanager.core.ports import FluxError
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.reactor import Reactor, contained

RECONNECT_MIN_S = 0.2
RECONNECT_MAX_S = 2.0
STOP_WITHIN_S = 2.0
_WAKE = b"\0"

Request = TypeVar("Request")


class LinkSession(Generic[Request]):
    """One connection, until it is lost. Everything here runs in its reactor.

    ``synced``: all that it follows has been reported once. ``lost``: why it ended, if nothing else tells.
    """

    lost = "the connection is lost"
    probe_s = 5.0  # an instance that says nothing is asked for a sign of life this often

    def __init__(self, timeout_s: float) -> None:
        self.synced = False
        self._timeout_s = timeout_s
        self._fault: FluxError | None = None
        self._reactor: Reactor

    def run(self, uri: str, wake: socket.socket, on_wake: Callable[[], None]) -> None:
        """Run until ``stop``. Raises ``FluxError`` if the connection cannot be made or is lost."""
        try:
            with self._connected(uri) as self._reactor:
                self._reactor.on_readable(wake.fileno(), on_wake)
                self._reactor.every(self.probe_s, self.probe).start()
                self.begin()
                self._reactor.run()
        except ValueError as fault:
            raise FluxError(f"the instance sent something that cannot be read: {fault}") from fault
        if self._fault is not None:
            raise self._fault

    def _connected(self, uri: str) -> Reactor:
        return Reactor(uri)

    def begin(self) -> None:
        """Send the first requests."""
        raise NotImplementedError

    def carry_out(self, requests: list[Request]) -> None:
        """Carry out requests, in their order. Override this if there are any."""

    def probe(self) -> None:
        """Ask for a sign of life."""
        self.ask("attr.get", {"name": "rank"}, lambda _: None)

    def stop(self) -> None:
        """Make ``run`` return."""
        self._reactor.stop()

    def fail(self, failure: FluxError) -> None:
        """End the connection."""
        self._fault = self._fault or failure
        self._reactor.stop()

    def ask(
        self,
        topic: str,
        payload: object,
        on_answer: Callable[[Any], None],
        on_refused: Callable[[CallFailed], None] | None = None,
    ) -> None:
        """Send one RPC. ``on_refused`` is called if a sound instance refuses it. Without it the connection ends."""
        take_failure = partial(self.take_failure, on_refused)
        self._reactor.request(topic, payload, on_answer, take_failure, timeout_s=self._timeout_s)

    def take_failure(self, on_refused: Callable[[CallFailed], None] | None, failure: CallFailed) -> None:
        """Find out whether a sound instance refused a request, or whether the connection is lost."""
        if on_refused is None or failure.timed_out:
            self.fail(failure)
            return
        self._reactor.request(
            "attr.get", {"name": "rank"}, lambda _: on_refused(failure), self.fail, timeout_s=self._timeout_s
        )


class Link(Generic[Request]):
    """The thread. ``make_session`` makes the session of each new connection; ``find_uri`` says where it leads."""

    def __init__(
        self,
        name: str,
        find_uri: Callable[[], str],
        make_session: Callable[[], LinkSession[Request]],
        lost: Callable[[FluxError], None],
        *,
        reconnect_max_s: float = RECONNECT_MAX_S,
    ) -> None:
        self._name = name
        self._find_uri = find_uri
        self._make_session = make_session
        self._lost = lost
        self._reconnect_max_s = reconnect_max_s
        self._requests: collections.deque[Request] = collections.deque()
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.settimeout(0)  # never block
        self._roused = False  # a wake-up is on its way, and the thread has not looked for requests since
        self._stopped = threading.Event()
        self._session: LinkSession[Request] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, request: Request) -> None:
        """Pass a request to the thread."""
        self._requests.append(request)
        self._rouse()

    def stop(self) -> None:
        """Stop the thread. One that hangs in an open is left behind; it ends with the process."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._rouse()
        if self._thread.is_alive():
            self._thread.join(STOP_WITHIN_S)
        if not self._thread.is_alive():
            self._wake.close()
            self._waker.close()

    def _rouse(self) -> None:
        if self._roused:
            return
        self._roused = True
        with suppress(BlockingIOError):  # then it has enough to wake up for
            self._waker.send(_WAKE)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            # Requests of an earlier connection: their sender hears of its loss and decides again.
            self._requests.clear()
            self._session = session = self._make_session()
            try:
                with contained(self._name):
                    session.run(self._find_uri(), self._wake, self._take_requests)
            except FluxError as failure:
                if not self._stopped.is_set():
                    self._lost(failure)
            else:
                if not self._stopped.is_set():
                    self._lost(FluxError(session.lost))
            longer_s = min(max(2 * pause_s, RECONNECT_MIN_S), self._reconnect_max_s)
            pause_s = RECONNECT_MIN_S if session.synced else longer_s

    def _take_requests(self) -> None:
        with suppress(BlockingIOError):
            self._wake.recv(4096)
        self._roused = False  # before the requests are taken: one that comes now rouses the thread again
        session = self._session
        if session is None:
            return
        if self._stopped.is_set():
            session.stop()
            return
        requests = []
        while self._requests:
            requests.append(self._requests.popleft())
        if requests and session.synced:
            session.carry_out(requests)
