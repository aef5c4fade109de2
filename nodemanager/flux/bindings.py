"""Calls to Flux through flux-core's Python bindings, which only this module imports.

``kvs.py``, ``reactor.py`` and ``submit.py`` get parts of the bindings from ``flux_module``; other packages see only
plain data. A handle and everything made on it belong to the thread that opened it. Handles and futures are
destroyed by scope. The garbage collector might free them in another thread while their own thread uses the
connection.

Sources: flux-core's ``flux.core.handle``, ``flux.future``, ``flux.rpc``; RFC 6 (RPC).
"""

from __future__ import annotations

import errno
import importlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from nodemanager.core.ports import FluxError
from nodemanager.flux.parse.versions import why_too_old

Handle = Any  # flux.Flux: the bindings carry no types
Future = Any  # flux.future.Future

LEADER = 0
_DISCOVERY_TIMEOUT_S = 20.0
_VERSION_TIMEOUT_S = 5.0
_LEAST_WAIT_S = 0.01  # a negative timeout would wait for ever
# Errors that a healthy broker answers: the connection stays usable.
_ANSWERS = frozenset(
    {
        errno.EEXIST,
        errno.EHOSTUNREACH,
        errno.EINVAL,
        errno.EISDIR,
        errno.ENOENT,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EPROTO,
    }
)


class BindingsMissing(Exception):
    """flux-core's Python bindings cannot be imported. The message says how to get them."""


class BindingsTooOld(BindingsMissing):
    """This flux-core is older than the oldest supported one. The message says what to do."""


class VersionsDiffer(BindingsMissing):
    """The bindings belong to another flux-core version than the instance. Only a restart with others helps."""


class CallFailed(FluxError):
    """One call to the instance failed.

    ``what`` names the call, ``errno`` is Flux's error number and ``text`` its words. ``answered`` is true if a
    healthy broker refused the call. If it is false (lost connection, timeout), the handle must not be used again.
    """

    def __init__(self, what: str, error: OSError) -> None:
        self.what = what
        self.errno = error.errno or 0
        self.answered = self.errno in _ANSWERS
        self.text = str(error.strerror or error)
        super().__init__(f"{what}: {self.text}")

    @property
    def timed_out(self) -> bool:
        """Whether the instance did not answer in time."""
        return self.errno == errno.ETIMEDOUT


# --- finding and importing --------------------------------------------------------------------------------


def load() -> None:
    """Import the bindings. If Python does not find them, search where the ``flux`` on PATH keeps them.

    Raises ``BindingsMissing``.
    """
    if (fault := _import_fault()) is None:
        return
    folders = [folder for folder in _folders_of_flux() if folder not in sys.path]
    sys.path.extend(folders)
    if (second_fault := _import_fault()) is None:
        return
    for folder in folders:
        sys.path.remove(folder)
    raise BindingsMissing(_missing_bindings_text(second_fault if folders else fault, folders))


def _import_fault() -> ImportError | None:
    try:
        for name in ("flux", "flux.constants", "flux.future", "flux.kvs"):
            importlib.import_module(name)
    except ImportError as error:
        # Remove the incomplete import, or the next try would find it and fail again.
        for name in [name for name in sys.modules if name.partition(".")[0] in {"flux", "_flux"}]:
            del sys.modules[name]
        return error
    return None


def _folders_of_flux() -> list[str]:
    """List the folders that the ``flux`` on PATH adds to PYTHONPATH, by running printenv under it."""
    if (flux := shutil.which("flux")) is None or (printenv := shutil.which("printenv")) is None:
        return []
    command = [flux, "env", printenv, "PYTHONPATH"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_DISCOVERY_TIMEOUT_S, check=True)  # noqa: S603 - found by which
    except (OSError, subprocess.SubprocessError):
        return []
    return [folder for folder in shown.stdout.strip().split(":") if folder]


def _missing_bindings_text(fault: ImportError, folders: Sequence[str]) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    tried = f" (also searched {', '.join(folders)}, from the flux on PATH)" if folders else ""
    return (
        f"flux-core's Python bindings cannot be imported by {sys.executable} (Python {version}): {fault}{tried}.\n"
        "flux-core contains its own bindings, built for one version of Python. Do one of these:\n"
        "  - put flux's folder on PATH, and install what its bindings import (cffi, PyYAML):"
        " pip install cffi PyYAML\n"
        "  - put flux-core's site-packages on PYTHONPATH (flux env printenv PYTHONPATH shows it)\n"
        "  - run this program with flux's own Python: flux python -m nodemanager.cli.main\n"
        "With flux-core 0.86 or later, flux-node-manager on PATH also runs as: flux node-manager"
    )


def flux_module(name: str) -> Any:
    """Return a module of the bindings. The first ``connect`` loads them."""
    return importlib.import_module(name)


# --- handles ----------------------------------------------------------------------------------------------


def connect(uri: str, *, any_version: bool = False) -> Handle:
    """Open a handle in this thread; ``""`` means the enclosing instance. Close it with ``close``.

    Raises ``BindingsMissing`` (``VersionsDiffer`` among them, unless ``any_version``) or ``FluxError``.
    """
    load()
    where = uri or "the enclosing instance (FLUX_URI)"
    try:
        handle = flux_module("flux").Flux(uri) if uri else flux_module("flux").Flux()
    except OSError as error:
        raise CallFailed(f"cannot reach Flux at {where}", error) from error
    try:
        if not any_version:
            _check_version(handle, where)
    except Exception:
        close(handle)
        raise
    return handle


def _check_version(handle: Handle, where: str) -> None:
    """Refuse an instance of another version: its answers may have another meaning."""
    ours = version()
    if why := why_too_old(ours):
        raise BindingsTooOld(why)
    theirs = str(ask(handle, "attr.get", {"name": "version"}, timeout_s=_VERSION_TIMEOUT_S)["value"])
    if ours != theirs:
        raise VersionsDiffer(
            f"flux-core's Python bindings have version {ours} ({flux_module('flux').__file__}), but {where}"
            f" runs flux-core {theirs}. Run flux-node-manager with the bindings of flux-core {theirs}: put the"
            f" flux of that version first on PATH, or its site-packages on PYTHONPATH. Build a container image"
            f" from flux-core {theirs} (build argument FLUX_VERSION)"
        )


def version() -> str:
    """Return the flux-core version that the bindings were built for, as ``flux version`` shows it."""
    core = flux_module("_flux._core")
    return str(core.ffi.string(core.lib.flux_core_version_string()).decode())


def close(handle: Handle) -> None:
    """Close a handle, in the thread that opened it."""
    handle.__exit__(None, None, None)


@contextmanager
def connection(uri: str) -> Iterator[Handle]:
    """Open a handle for the ``with`` block. Raises as :func:`connect`."""
    handle = connect(uri)
    try:
        yield handle
    finally:
        close(handle)


def rank_of(handle: Handle) -> int:
    """Return the rank of the broker to which the handle is connected."""
    return int(handle.get_rank())


# --- request and response ---------------------------------------------------------------------------------


def ask(handle: Handle, topic: str, payload: object = None, *, rank: int = LEADER, timeout_s: float) -> Any:
    """Send one RPC and wait for its answer, decoded from JSON. Raises ``CallFailed``."""
    return ask_all(handle, {topic: payload}, rank=rank, timeout_s=timeout_s)[topic]


def ask_texts(handle: Handle, topic: str, ranks: Iterable[int], *, timeout_s: float) -> dict[int, str]:
    """Send one RPC without a payload to each rank, all together; return the raw text of each answer received."""
    return _ask_each_rank(handle, topic, None, ranks, lambda future: str(future.get_str()), timeout_s)


def ask_each(
    handle: Handle, topic: str, payload: object, ranks: Iterable[int], *, timeout_s: float
) -> dict[int, Any]:
    """Send one RPC to each rank, all together; return the answers received, decoded from JSON."""
    return _ask_each_rank(handle, topic, payload, ranks, lambda future: future.get(), timeout_s)


def _ask_each_rank(
    handle: Handle,
    topic: str,
    payload: object,
    ranks: Iterable[int],
    read: Callable[[Future], Any],
    timeout_s: float,
) -> dict[int, Any]:
    with ExitStack() as futures:
        sent: dict[int, Future] = {}
        for rank in ranks:
            with flux_call(_call_text(topic, rank)):
                sent[rank] = futures.enter_context(checked_future(handle.rpc(topic, payload, rank)))
        answers: dict[int, Any] = {}
        end_s = time.monotonic() + timeout_s
        for rank, future in sent.items():
            with suppress(CallFailed), flux_call(_call_text(topic, rank)):
                answers[rank] = read(future.wait_for(_time_left_s(end_s)))
        return answers


def ask_all(
    handle: Handle, payloads: Mapping[str, object], *, rank: int = LEADER, timeout_s: float
) -> dict[str, Any]:
    """Send one RPC to each topic, all together, and wait for all answers. The first failure raises."""
    with ExitStack() as futures:
        sent: dict[str, Future] = {}
        answers: dict[str, Any] = {}
        for topic, payload in payloads.items():
            with flux_call(_call_text(topic, rank)):
                sent[topic] = futures.enter_context(checked_future(handle.rpc(topic, payload, rank)))
        end_s = time.monotonic() + timeout_s
        for topic, future in sent.items():
            with flux_call(_call_text(topic, rank)):
                answers[topic] = future.wait_for(_time_left_s(end_s)).get()
        return answers


@contextmanager
def held_service(handle: Handle, service: str, *, timeout_s: float) -> Iterator[bool]:
    """Hold a service name on this broker for the ``with`` block; False if another process holds it.

    Requests to it meanwhile are not answered.
    """
    try:
        with flux_call(f"service {service}"), checked_future(handle.service_register(service)) as registered:
            registered.wait_for(timeout_s).get()
    except CallFailed as failure:
        if failure.errno != errno.EEXIST:
            raise
        yield False
        return
    try:
        yield True
    finally:
        with flux_call(f"service {service}"), checked_future(handle.service_unregister(service)) as removed:
            removed.wait_for(timeout_s).get()


def checked_future(future: Future) -> Future:
    """Return the future of a request. It may be empty if the connection is being lost: this raises ``OSError``."""
    if future.handle is None:
        raise OSError(errno.ENOTCONN, "the connection is lost")
    return future


def _time_left_s(end_s: float) -> float:
    """Return the time left of the limit that all calls sent together share, enough to read an answer received."""
    return max(_LEAST_WAIT_S, end_s - time.monotonic())


def _call_text(topic: str, rank: int) -> str:
    return topic if rank == LEADER else f"{topic} on rank {rank}"


@contextmanager
def flux_call(what: str) -> Iterator[None]:
    """Turn every error that Flux raises inside into ``CallFailed`` with the name of the call."""
    try:
        yield
    except OSError as error:
        raise CallFailed(what, error) from error
