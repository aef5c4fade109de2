"""What a connection to a Flux instance can do, and what its calls give.

A handle and everything made on it belong to the thread that opened it. Calls raise ``OSError`` with Flux's number.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from nodemanager.core.untrusted import UnreadableText, read_message

LEADER = 0


class BindingsMissing(Exception):
    """flux-core's Python bindings cannot be imported. The message says how to get them."""


class BindingsTooOld(BindingsMissing):
    """This flux-core is older than the oldest supported one. The message says what to do."""


class VersionsDiffer(BindingsMissing):
    """The bindings belong to another flux-core version than the instance. Only a restart with others helps."""


MESSAGE_BYTES_MAX = 1 << 28


def read_answer(text: str) -> Any:
    """Read an answer: a value in it that nests too deep is ``TOO_DEEP``. Raises ``OSError`` EPROTO."""
    try:
        return read_message(text, size_max=MESSAGE_BYTES_MAX)
    except UnreadableText as error:
        raise OSError(errno.EPROTO, f"the answer cannot be read: {error}") from error


class Future(Protocol):
    """An answer to come. Destroy it, or use it in a ``with``."""

    def get(self) -> Any:
        """Return the answer that has arrived."""
        ...

    def wait(self, timeout_s: float) -> Self:
        """Wait for the answer. Raises ``OSError``, with ETIMEDOUT if it does not come in time."""
        ...

    def then(self, callback: Callable[[], None], timeout_s: float | None = None) -> None:
        """Call ``callback`` from :meth:`Handle.run` at each answer, at a failure, and when the time is over."""
        ...

    def next(self) -> None:
        """Drop the answer that was read, and expect the next one of the stream."""
        ...

    def cancel(self) -> None:
        """Ask the other side to end the stream."""
        ...

    def destroy(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Watcher(Protocol):
    """Calls back from :meth:`Handle.run`, between ``start`` and ``stop``."""

    def start(self) -> object: ...

    def stop(self) -> object: ...

    def destroy(self) -> None: ...


class ServiceRequest(Protocol):
    """A request to a service that this handle registered. ``text``: its payload, None if it has none."""

    @property
    def text(self) -> str | None:
        """Raises ``OSError`` or ``UnicodeError`` if the payload is not text."""
        ...

    @property
    def userid(self) -> int: ...

    @property
    def by_owner(self) -> bool: ...

    def respond(self, text: str) -> None: ...

    def respond_error(self, number: int, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a key of the KVS: write ``text``, append it, or unlink the key if it is None."""

    key: str
    text: str | None
    append: bool = False


class Handle(Protocol):
    """One connection to one broker."""

    @property
    def where(self) -> str:
        """Where the bindings come from, for messages."""
        ...

    @property
    def version(self) -> str:
        """The flux-core version that the bindings were built for, as ``flux version`` shows it."""
        ...

    @property
    def rank(self) -> int: ...

    # --- calls ---

    def rpc(self, topic: str, payload: object, rank: int, *, streaming: bool = False) -> Future:
        """Send a request. The answers are JSON, read as ``core.untrusted.read_message`` does."""
        ...

    def rpc_text(self, topic: str, payload: object, rank: int) -> Future:
        """Send a request. The answer is text."""
        ...

    def lookup(self, key: str, namespace: str = "") -> Future:
        """Read a value of the KVS as text; None if the key does not exist."""
        ...

    def lookup_names(self, directory: str) -> Future:
        """Read the names in a directory of the KVS; none if it does not exist."""
        ...

    def commit(self, changes: Sequence[Change], *, namespace: str = "", sync: bool = False) -> Future:
        """Change the KVS in one transaction, all or none. ``sync``: it is on disk when the answer comes."""
        ...

    def submit(self, jobspec: Mapping[str, Any], urgency: int) -> Future:
        """Submit a job. The answer is its id; an ``OSError`` has the words of the validator that refused it."""
        ...

    def take_user_role(self) -> None:
        """Send further messages without the owner's role."""
        ...

    # --- services ---

    def register(self, service: str) -> Future: ...

    def unregister(self, service: str) -> Future: ...

    def on_request(self, topic: str, callback: Callable[[ServiceRequest], None], *, for_users: bool) -> Watcher:
        """Watch the requests of a registered service's method. Only the owner's, unless ``for_users``."""
        ...

    # --- the loop ---

    def run(self) -> None:
        """Call back until ``stop``. Raises what a callback raises, and ``OSError`` if the connection is lost."""
        ...

    def stop(self) -> None: ...

    def timer(self, delay_s: float, repeat_s: float, callback: Callable[[], None]) -> Watcher: ...

    def on_readable(self, fd: int, callback: Callable[[], None]) -> Watcher: ...

    def close(self) -> None: ...
