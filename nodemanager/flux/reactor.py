"""A connection with an event loop for streams, timers and a service, which all end with the connection.

Futures and watchers refer to themselves, so they would live until a garbage collection in any thread. Here each one
is destroyed as soon as it is done, and the rest at the end of the ``with``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import structlog

from nodemanager.core.ports import FluxError
from nodemanager.core.untrusted import read_object
from nodemanager.flux.bindings import LEADER, BindingsMissing, CallFailed, Future, connect, flux_call
from nodemanager.flux.handles.handle import ServiceRequest, Watcher

REQUEST_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request to a service. ``userid`` is None if the instance's owner asks."""

    payload: Mapping[str, Any]
    userid: int | None


Answer = Callable[[RpcRequest], str]  # returns JSON; raises LookupError or ValueError


@contextmanager
def contained(stream: str) -> Iterator[None]:
    """Turn an unexpected exception of a callback into a ``FluxError``, after logging it with its traceback.

    Everything that a connection knows ends with it, so a new connection is as good as a new process.
    """
    try:
        yield
    except (FluxError, BindingsMissing):
        raise
    except Exception as bug:
        structlog.get_logger().error("stream_failed", stream=stream, exc_info=bug)
        raise FluxError(f"{stream}: {type(bug).__name__}: {bug} (the log has the traceback)") from bug


def _respond(request: ServiceRequest, answer: Answer) -> None:
    """Answer one request. Nothing that a user sends may raise, because that would end the service."""
    try:
        found, number = answer(_read_request(request)), 0
    except LookupError as error:
        found, number = str(error.args[0]), errno.ENOENT
    except ValueError as error:
        found, number = str(error), errno.EPROTO
    except Exception as bug:  # noqa: BLE001 - a stream ends, and begins again
        structlog.get_logger().error("request_failed", exc_info=bug)
        found, number = f"a fault of the manager: {type(bug).__name__}: {bug}", errno.EIO
    with suppress(OSError):  # the asker is gone
        if number:
            request.respond_error(number, found)
        else:
            request.respond(found)


def _read_request(request: ServiceRequest) -> RpcRequest:
    """Raises ``ValueError``, also if the payload is not JSON or not an object."""
    try:
        text = request.text
    except OSError as error:  # no text
        raise ValueError(f"the payload is unusable: {error}") from error
    payload = read_object(text, size_max=REQUEST_BYTES_MAX) if text is not None else {}
    return RpcRequest(payload, None if request.by_owner else request.userid)


def _read(future: Future) -> Any:
    """Raises ``OSError``, with EPROTO if the bindings cannot read the answer."""
    try:
        return future.get()
    except (ValueError, RecursionError) as error:
        raise OSError(errno.EPROTO, f"the answer cannot be read: {error}") from error


class Reactor:
    """One handle, used by the thread that enters it. Entering raises ``FluxError`` if it cannot connect."""

    def __init__(self, uri: str, *, any_version: bool = False) -> None:
        self._uri = uri
        self._any_version = any_version
        self._futures: set[Future] = set()
        self._watchers: list[Watcher] = []
        self._spent: list[Watcher] = []  # those of the watchers that will not call again

    def __enter__(self) -> Self:
        self.handle = connect(self._uri, any_version=self._any_version)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for watcher in self._watchers:
            watcher.destroy()
        for future in self._futures:
            future.destroy()
        self.handle.close()

    def run(self) -> None:
        """Run until ``stop``, or until the connection is lost. Exceptions of callbacks are raised here."""
        with flux_call("connection"):
            self.handle.run()

    def stop(self) -> None:
        """Make ``run`` return."""
        self.handle.stop()

    # --- calls ---

    def request(
        self,
        topic: str,
        payload: object,
        on_answer: Callable[[Any], None],
        on_failure: Callable[[CallFailed], None],
        *,
        timeout_s: float,
    ) -> None:
        """Send one RPC to the leader, and call ``on_answer`` with its answer (decoded JSON) or ``on_failure``."""
        self.take_later(
            topic,
            lambda: self.handle.rpc(topic, payload, LEADER),
            on_answer,
            on_failure,
            timeout_s=timeout_s,
        )

    def take_later(
        self,
        what: str,
        send: Callable[[], Future],
        on_answer: Callable[[Any], None],
        on_failure: Callable[[CallFailed], None],
        *,
        timeout_s: float,
    ) -> None:
        """Call ``on_answer`` with the answer to what ``send`` sends, or ``on_failure``."""

        def take() -> None:
            try:
                answer = _read(future)
            except OSError as error:
                on_failure(CallFailed(what, error))
            else:
                on_answer(answer)
            self._destroy(future)

        with flux_call(what):
            future = send()
            self._futures.add(future)
            future.then(take, timeout_s)

    def subscribe(
        self,
        topic: str,
        payload: object,
        on_response: Callable[[Any], None],
        on_end: Callable[[CallFailed], None],
    ) -> Callable[[], None]:
        """Send a streaming RPC to the leader. Returns a function that cancels the stream.

        ``on_response`` is called with each response. ``on_end`` is called when the stream ends without being
        cancelled, with errno ENODATA if the other side ended it normally. After a cancel neither is called.
        To cancel a stream that has ended does nothing.
        """
        cancelled = False

        def take() -> None:
            try:
                response = _read(stream)
            except OSError as error:
                if not cancelled:
                    on_end(CallFailed(topic, error))
                self._destroy(stream)
                return
            stream.next()
            if not cancelled:
                on_response(response)

        with flux_call(topic):
            stream = self.handle.rpc(topic, payload, LEADER, streaming=True)
            self._futures.add(stream)
            stream.then(take)

        def cancel() -> None:
            nonlocal cancelled
            if stream not in self._futures:
                return
            cancelled = True
            with flux_call(f"{topic}-cancel"):
                stream.cancel()

        return cancel

    # Do not call this in a ``finally``: if a callback raises, the bindings still need its future's handle.
    def _destroy(self, future: Future) -> None:
        self._futures.discard(future)
        future.destroy()

    # --- events ---

    def every(self, period_s: float, callback: Callable[[], None]) -> Watcher:
        """Make a timer that is not started yet."""
        return self._watch(self.handle.timer(period_s, period_s, callback))

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, after a delay."""
        for watcher in self._spent:
            self._watchers.remove(watcher)
            watcher.destroy()
        self._spent.clear()

        def once() -> None:
            callback()
            self._spent.append(watcher)  # destroyed later: its own callback still runs

        watcher = self._watch(self.handle.timer(max(0.0, delay_s), 0.0, once))
        watcher.start()

    def on_readable(self, fd: int, callback: Callable[[], None]) -> Watcher:
        """Call ``callback`` whenever the descriptor is readable. Returns a watcher: stop it before you close."""
        watcher = self._watch(self.handle.on_readable(fd, callback))
        watcher.start()
        return watcher

    def serve(
        self,
        service: str,
        methods: Mapping[str, Answer],
        *,
        timeout_s: float,
        for_users: bool = False,
    ) -> None:
        """Register a service on this broker and answer its methods. Raises ``CallFailed`` EEXIST if it exists.

        The methods answer the instance's owner, or with ``for_users`` every user.
        """
        with flux_call(f"service {service}"), self.handle.register(service) as registered:
            registered.wait(timeout_s).get()
        for method, answer in methods.items():
            respond = partial(_respond, answer=answer)
            self._watch(self.handle.on_request(f"{service}.{method}", respond, for_users=for_users)).start()

    def unserve(self, service: str, *, timeout_s: float) -> None:
        """Remove the service from this broker. Raises ``CallFailed``."""
        with flux_call(f"service {service}"), self.handle.unregister(service) as removed:
            removed.wait(timeout_s).get()

    def _watch(self, watcher: Watcher) -> Watcher:
        self._watchers.append(watcher)
        return watcher
