"""flux-core's Python bindings, and the only place that imports them.

``kvs.py`` and ``reactor.py`` beside it speak to what ``part`` gives them; what crosses to other rooms is plain
data. A handle belongs to the thread that opened it, and so does all that is made on it. Handles and futures are
destroyed by scope: left to the garbage collector they would be freed in whatever thread it runs in, while their
own thread uses the connection.

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

Handle = Any  # flux.Flux: the bindings carry no types
Future = Any  # flux.future.Future

LEADER = 0
_DISCOVERY_TIMEOUT_S = 20.0
_VERSION_TIMEOUT_S = 5.0
_LEAST_WAIT_S = 0.01  # less than none is for ever
# Answers of a broker that is well: the connection they came by is kept.
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
    """flux-core's Python bindings cannot be imported; the text says how to get them."""


class VersionsDiffer(BindingsMissing):
    """The bindings that can be imported are of another flux-core than the instance runs. Only a new start helps."""


class CallFailed(FluxError):
    """One call to the instance failed.

    ``what`` was tried; ``errno`` is Flux's own; ``answered`` tells a refusal by a broker that is well from a lost
    connection, a timeout or the like, after which the handle is not to be used again.
    """

    def __init__(self, what: str, error: OSError) -> None:
        self.what = what
        self.errno = error.errno or 0
        self.answered = self.errno in _ANSWERS
        super().__init__(f"{what}: {error.strerror or error}")

    @property
    def timed_out(self) -> bool:
        return self.errno == errno.ETIMEDOUT


# --- finding and importing --------------------------------------------------------------------------------


def load() -> None:
    """Import the bindings, from where the ``flux`` on PATH keeps them if Python does not know.

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
    raise BindingsMissing(_how_to_get_them(second_fault if folders else fault, folders))


def _import_fault() -> ImportError | None:
    try:
        for name in ("flux", "flux.constants", "flux.future", "flux.kvs"):
            importlib.import_module(name)
    except ImportError as error:
        # A half-made import would be found again, and its fault with it, on the next try.
        for name in [name for name in sys.modules if name.partition(".")[0] in {"flux", "_flux"}]:
            del sys.modules[name]
        return error
    return None


def _folders_of_flux() -> list[str]:
    """Where the ``flux`` on PATH would have Python look: it prints its environment on request."""
    if (flux := shutil.which("flux")) is None or (printenv := shutil.which("printenv")) is None:
        return []
    command = [flux, "env", printenv, "PYTHONPATH"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_DISCOVERY_TIMEOUT_S, check=True)  # noqa: S603 - found by which
    except (OSError, subprocess.SubprocessError):
        return []
    return [folder for folder in shown.stdout.strip().split(":") if folder]


def _how_to_get_them(fault: ImportError, folders: Sequence[str]) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    tried = f" (also looked in {', '.join(folders)}, of the flux on PATH)" if folders else ""
    return (
        f"flux-core's Python bindings cannot be imported by {sys.executable} (Python {version}): {fault}{tried}.\n"
        "flux-core brings its own bindings, built for one version of Python. One of these helps:\n"
        "  - put the folder of flux on PATH, and install what its bindings import (cffi, PyYAML):"
        " pip install cffi PyYAML\n"
        "  - put the site-packages of flux-core on PYTHONPATH (flux env printenv PYTHONPATH shows it)\n"
        "  - run this program by flux's own Python: flux python -m nodemanager.cli.main\n"
        "With flux-core 0.86 or later, flux-node-manager on PATH also runs as: flux node-manager"
    )


def flux_module(name: str) -> Any:
    """A module of the bindings, for the rooms that speak to Flux; loaded by the first ``connect``."""
    return importlib.import_module(name)


# --- handles ----------------------------------------------------------------------------------------------


def connect(uri: str) -> Handle:
    """Open a handle in this thread; ``""`` is the instance that encloses us. Close it with ``close``.

    Raises ``BindingsMissing`` (``VersionsDiffer`` among them) or ``FluxError``.
    """
    load()
    where = uri or "the enclosing instance (FLUX_URI)"
    try:
        handle = flux_module("flux").Flux(uri) if uri else flux_module("flux").Flux()
    except OSError as error:
        raise CallFailed(f"cannot reach Flux at {where}", error) from error
    try:
        _require_its_version(handle, where)
    except Exception:
        close(handle)
        raise
    return handle


def _require_its_version(handle: Handle, where: str) -> None:
    """Brokers and bindings are made for each other: what another version answers may mean other things."""
    ours = version()
    theirs = str(ask(handle, "attr.get", {"name": "version"}, timeout_s=_VERSION_TIMEOUT_S)["value"])
    if ours != theirs:
        raise VersionsDiffer(
            f"flux-core's Python bindings are of version {ours} ({flux_module('flux').__file__}), and {where}"
            f" runs flux-core {theirs}. Run flux-node-manager with the bindings of flux-core {theirs}: put the"
            f" flux of that version first on PATH, or its site-packages on PYTHONPATH; a container image is to be"
            f" built from flux-core {theirs} (build argument FLUX_VERSION)"
        )


def version() -> str:
    """Which flux-core the bindings were built with and for, as ``flux version`` has it."""
    core = flux_module("_flux._core")
    return str(core.ffi.string(core.lib.flux_core_version_string()).decode())


def close(handle: Handle) -> None:
    handle.__exit__(None, None, None)


@contextmanager
def connection(uri: str) -> Iterator[Handle]:
    handle = connect(uri)
    try:
        yield handle
    finally:
        close(handle)


def rank_of(handle: Handle) -> int:
    return int(handle.get_rank())


# --- calls that are answered ------------------------------------------------------------------------------


def ask(handle: Handle, topic: str, payload: object = None, *, rank: int = LEADER, timeout_s: float) -> Any:
    """Send one RPC and await its answer, decoded from JSON. Raises ``CallFailed``."""
    return ask_all(handle, {topic: payload}, rank=rank, timeout_s=timeout_s)[topic]


def ask_texts(handle: Handle, topic: str, ranks: Iterable[int], *, timeout_s: float) -> dict[int, str]:
    """As :func:`ask_each`, of an RPC without a payload; the answers as they are, and not as JSON."""
    return _each(handle, topic, None, ranks, lambda future: str(future.get_str()), timeout_s)


def ask_each(
    handle: Handle, topic: str, payload: object, ranks: Iterable[int], *, timeout_s: float
) -> dict[int, Any]:
    """Send one RPC to each rank, all together; the answers of those that give one."""
    return _each(handle, topic, payload, ranks, lambda future: future.get(), timeout_s)


def _each(
    handle: Handle,
    topic: str,
    payload: object,
    ranks: Iterable[int],
    read: Callable[[Future], Any],
    timeout_s: float,
) -> dict[int, Any]:
    with ExitStack() as futures:
        sent = {rank: futures.enter_context(handle.rpc(topic, payload, rank)) for rank in ranks}
        answers: dict[int, Any] = {}
        end_s = time.monotonic() + timeout_s
        for rank, future in sent.items():
            with suppress(CallFailed), flux_call(_at(topic, rank)):
                answers[rank] = read(future.wait_for(_left_s(end_s)))
        return answers


def ask_all(
    handle: Handle, payloads: Mapping[str, object], *, rank: int = LEADER, timeout_s: float
) -> dict[str, Any]:
    """Send one RPC to each topic, all together, then await all the answers. The first failure raises."""
    with ExitStack() as futures:
        sent: dict[str, Future] = {}
        answers: dict[str, Any] = {}
        for topic, payload in payloads.items():
            with flux_call(_at(topic, rank)):
                sent[topic] = futures.enter_context(handle.rpc(topic, payload, rank))
        end_s = time.monotonic() + timeout_s
        for topic, future in sent.items():
            with flux_call(_at(topic, rank)):
                answers[topic] = future.wait_for(_left_s(end_s)).get()
        return answers


def _left_s(end_s: float) -> float:
    """Of one time for all that were sent together. An answer that is there is read in no time."""
    return max(_LEAST_WAIT_S, end_s - time.monotonic())


def _at(topic: str, rank: int) -> str:
    return topic if rank == LEADER else f"{topic} on rank {rank}"


@contextmanager
def flux_call(what: str) -> Iterator[None]:
    """Whatever Flux raises inside becomes ``CallFailed``, with the name of what was tried."""
    try:
        yield
    except OSError as error:
        raise CallFailed(what, error) from error
