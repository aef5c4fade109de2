"""Read and write the instance's key-value store, with a timeout on every step.

Values are text; callers give them meaning. Source: RFC 16 (KVS).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from nodemanager.flux.bindings import CallFailed, Future, Handle, flux_call
from nodemanager.flux.handles.handle import Change
from nodemanager.flux.reactor import Reactor

# Lookups sent together: enough to hide the round trip, few enough to bound the queue.
_LOOKUPS_TOGETHER_MAX = 256


def read(handle: Handle, keys: Sequence[str], *, timeout_s: float) -> dict[str, str]:
    """Read the values of the keys that exist. Raises ``CallFailed``."""
    found: dict[str, str] = {}
    for first in range(0, len(keys), _LOOKUPS_TOGETHER_MAX):
        found |= _read_together(handle, keys[first : first + _LOOKUPS_TOGETHER_MAX], timeout_s)
    return found


def _read_together(handle: Handle, keys: Sequence[str], timeout_s: float) -> dict[str, str]:
    found: dict[str, str] = {}
    with ExitStack() as futures:
        lookups: dict[str, Future] = {}
        for key in keys:
            with flux_call(f"KVS lookup of {key}"):
                lookups[key] = futures.enter_context(handle.lookup(key))
        for key, future in lookups.items():
            with flux_call(f"KVS lookup of {key}"):
                if (value := future.wait(timeout_s).get()) is not None:
                    found[key] = value
    return found


def list_names(handle: Handle, directory: str, *, timeout_s: float) -> tuple[str, ...]:
    """List the names in a directory, sorted; empty if it does not exist. Raises ``CallFailed``."""
    with flux_call(f"KVS lookup of {directory}"), handle.lookup_names(directory) as future:
        return tuple(future.wait(timeout_s).get())


def commit(handle: Handle, changes: Mapping[str, str | None], *, timeout_s: float) -> None:
    """Write values (None unlinks) in one transaction, all or none; return only when they are on disk.

    Raises ``CallFailed``. If it ``timed_out``, the values may or may not be written.
    """
    transaction = [Change(key, value) for key, value in changes.items()]
    with flux_call("KVS commit"), handle.commit(transaction, sync=True) as future:
        future.wait(timeout_s).get()


def append(handle: Handle, key: str, text: str, *, timeout_s: float) -> None:
    """Append text to a value; return only when it is on disk. Raises ``CallFailed``."""
    with flux_call("KVS append"), handle.commit([Change(key, text, append=True)], sync=True) as future:
        future.wait(timeout_s).get()


def send_append(handle: Handle, key: str, text: str) -> Future:
    """Send text to append to a value, and return the future of the answer. Raises ``CallFailed``.

    The broker applies commits of one handle in the order in which they were sent.
    """
    with flux_call("KVS append"):
        return handle.commit([Change(key, text, append=True)])


# --- in a namespace, from a reactor -----------------------------------------------------------------------


def read_later(
    reactor: Reactor,
    namespace: str,
    key: str,
    on_answer: Callable[[str], None],
    on_failure: Callable[[CallFailed], None],
    *,
    timeout_s: float,
) -> None:
    """Read a value of a namespace; "" if there is none."""
    reactor.take_later(
        f"KVS lookup of {key}",
        lambda: reactor.handle.lookup(key, namespace),
        lambda value: on_answer(value or ""),
        on_failure,
        timeout_s=timeout_s,
    )


def append_later(
    reactor: Reactor,
    namespace: str,
    texts: Mapping[str, str],
    on_answer: Callable[[object], None],
    on_failure: Callable[[CallFailed], None],
    *,
    timeout_s: float,
) -> None:
    """Append to values of a namespace, by key, in one transaction."""
    changes = [Change(key, text, append=True) for key, text in texts.items()]
    reactor.take_later(
        f"KVS append to {', '.join(texts)}",
        lambda: reactor.handle.commit(changes, namespace=namespace),
        on_answer,
        on_failure,
        timeout_s=timeout_s,
    )
