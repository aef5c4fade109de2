"""Read and write the instance's key-value store, with a timeout on every step.

Values are text; callers give them meaning. Sources: ``flux.kvs``, RFC 11 (tree objects), RFC 16 (KVS).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from nodemanager.flux.bindings import CallFailed, Future, Handle, checked_future, flux_call, flux_module
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
    get = flux_module("flux.kvs").RAW.flux_kvs_lookup_get
    with ExitStack() as futures:
        lookups = {key: futures.enter_context(_lookup(handle, key, 0)) for key in keys}
        values = {key: _read_lookup(future, get, key, timeout_s) for key, future in lookups.items()}
    return {key: value for key, value in values.items() if value is not None}


def list_names(handle: Handle, directory: str, *, timeout_s: float) -> tuple[str, ...]:
    """List the names in a directory, sorted; empty if it does not exist. Raises ``CallFailed``."""
    raw = flux_module("flux.kvs").RAW
    with _lookup(handle, directory, raw.FLUX_KVS_READDIR) as future:
        tree = _read_lookup(future, raw.flux_kvs_lookup_get_treeobj, directory, timeout_s)
    return tuple(sorted(json.loads(tree)["data"])) if tree else ()


def commit(handle: Handle, changes: Mapping[str, str | None], *, timeout_s: float) -> None:
    """Write values (None unlinks) in one transaction, all or none; return only when they are on disk.

    Raises ``CallFailed``. If it ``timed_out``, the values may or may not be written.
    """
    store = flux_module("flux.kvs")
    with flux_call("KVS commit"):
        transaction = store.KVSTxn(handle)
        for key, value in changes.items():
            if value is None:
                transaction.unlink(key)
            else:
                transaction.put(key, value.encode())  # bytes are written as they are, in every version
        sync = flux_module("flux.constants").FLUX_KVS_SYNC
        with checked_future(store.commit_async(handle, flags=sync, _kvstxn=transaction)) as future:
            future.wait_for(timeout_s).get()


def send_append(handle: Handle, key: str, text: str) -> Future:
    """Send text to append to a value, and return the future of the answer. Raises ``CallFailed``.

    The broker applies commits of one handle in the order in which they were sent.
    """
    store = flux_module("flux.kvs")
    with flux_call("KVS append"):
        transaction = store.KVSTxn(handle)
        store.RAW.flux_kvs_txn_put(transaction.txn, store.RAW.FLUX_KVS_APPEND, key, text.encode())
        return checked_future(store.commit_async(handle, _kvstxn=transaction))


def _lookup(handle: Handle, key: str, flags: int) -> Future:
    with flux_call(f"KVS lookup of {key}"):
        lookup = flux_module("flux.kvs").RAW.flux_kvs_lookup(handle, None, flags, key)
        return checked_future(flux_module("flux.future").Future(lookup))


def _read_lookup(future: Future, get: Callable[..., Any], key: str, timeout_s: float) -> str | None:
    ffi = flux_module("_flux._core").ffi
    value = ffi.new("char *[1]")
    with flux_call(f"KVS lookup of {key}"):
        try:
            future.wait_for(timeout_s)
            get(future, value)
        except FileNotFoundError:
            return None
        return ffi.string(value[0]).decode(errors="replace") if value[0] != ffi.NULL else ""


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
    raw = flux_module("flux.kvs").RAW
    ffi = flux_module("_flux._core").ffi

    def send() -> Future:
        return flux_module("flux.future").Future(
            raw.flux_kvs_lookup(reactor.handle, namespace.encode(), 0, key.encode())
        )

    def read(future: Future) -> str:
        value = ffi.new("char *[1]")
        try:
            raw.flux_kvs_lookup_get(future, value)
        except FileNotFoundError:
            return ""
        return ffi.string(value[0]).decode(errors="replace") if value[0] != ffi.NULL else ""

    reactor.take_later(f"KVS lookup of {key}", send, read, on_answer, on_failure, timeout_s=timeout_s)


def append_later(
    reactor: Reactor,
    namespace: str,
    key: str,
    text: str,
    on_answer: Callable[[object], None],
    on_failure: Callable[[CallFailed], None],
    *,
    timeout_s: float,
) -> None:
    """Append to a value of a namespace."""
    raw = flux_module("flux.kvs").RAW
    append = flux_module("flux.constants").FLUX_KVS_APPEND

    def send() -> Future:
        transaction = raw.flux_kvs_txn_create()
        try:
            raw.flux_kvs_txn_put(transaction, append, key.encode(), text.encode())
            return flux_module("flux.future").Future(
                raw.flux_kvs_commit(reactor.handle, namespace.encode(), 0, transaction)
            )
        finally:
            raw.flux_kvs_txn_destroy(transaction)

    reactor.take_later(
        f"KVS append to {key}", send, lambda future: future.get(), on_answer, on_failure, timeout_s=timeout_s
    )
