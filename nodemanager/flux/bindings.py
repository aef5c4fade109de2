"""Calls to Flux: connections, requests and their errors.

Other packages see only plain data. :mod:`nodemanager.flux.handles` has the connections: by flux-core's bindings in
this process where they can be imported, and otherwise by a process that can (``use_bridge``). A handle and
everything made on it belong to the thread that opened it.

Source: RFC 6 (RPC).
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from nodemanager.config.text.settings import Bridge
from nodemanager.core.ports import FluxError
from nodemanager.flux.handles import direct, far_side
from nodemanager.flux.handles.bridged import BridgedHandle, bridge_command
from nodemanager.flux.handles.handle import LEADER, BindingsMissing, BindingsTooOld, Future, Handle, VersionsDiffer
from nodemanager.flux.parse.versions import why_too_old

__all__ = [
    "LEADER",
    "BindingsMissing",
    "BindingsTooOld",
    "Bridge",
    "CallFailed",
    "Future",
    "Handle",
    "VersionsDiffer",
]

_VERSION_TIMEOUT_S = 5.0
_RESOLVE_TIMEOUT_S = 30.0
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


# --- handles ----------------------------------------------------------------------------------------------


_bridge = Bridge.AUTO


def use_bridge(when: Bridge) -> None:
    """Choose for all connections that this process opens from now on."""
    global _bridge  # noqa: PLW0603 - the bindings that a process can import are the same for all its connections
    _bridge = when


def connect(uri: str, *, any_version: bool = False) -> Handle:
    """Open a handle in this thread; ``""`` means the enclosing instance. Close it with ``close``.

    Raises ``BindingsMissing`` (``VersionsDiffer`` among them, unless ``any_version``) or ``FluxError``.
    """
    where = uri or "the enclosing instance (FLUX_URI)"
    try:
        handle = _open(uri)
    except OSError as error:
        raise CallFailed(f"cannot reach Flux at {where}", error) from error
    try:
        if not any_version:
            _check_version(handle, where)
    except Exception:
        handle.close()
        raise
    return handle


def _open(uri: str) -> Handle:
    """Raises ``BindingsMissing`` and ``OSError``."""
    here = shutil.which("flux") is not None
    if _bridge is not Bridge.ALWAYS:
        try:
            direct.load()
        except BindingsMissing:
            if _bridge is Bridge.NEVER or not (here or uri.startswith("ssh://")):
                raise
        else:
            return direct.DirectHandle(uri)
    try:
        return BridgedHandle(bridge_command(uri, here=here))
    except ValueError as error:
        raise BindingsMissing(f"no flux is on PATH, and {error}: {uri or 'FLUX_URI'}") from error


def resolve(uri: str) -> str:
    """Find the address of an instance that is named otherwise, such as ``jobid:ID``. Raises ``FluxError``."""
    try:
        direct.load()
    except BindingsMissing:
        command = ["flux", "uri", "--", uri]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_TIMEOUT_S, check=False)  # noqa: S603 - the flux on PATH
        except (OSError, subprocess.SubprocessError) as fault:
            raise FluxError(f"{uri}: {fault}") from fault
        if done.returncode:
            raise FluxError(f"{uri}: {done.stderr.strip()}") from None
        return done.stdout.strip()
    try:
        return str(far_side.resolve(uri))
    except (ValueError, OSError) as fault:
        raise FluxError(f"{uri}: {fault}") from fault


def _check_version(handle: Handle, where: str) -> None:
    """Refuse an instance of another version: its answers may have another meaning."""
    ours = handle.version
    if why := why_too_old(ours):
        raise BindingsTooOld(why)
    theirs = str(ask(handle, "attr.get", {"name": "version"}, timeout_s=_VERSION_TIMEOUT_S)["value"])
    if ours != theirs:
        raise VersionsDiffer(
            f"flux-core's Python bindings have version {ours} ({handle.where}), but {where}"
            f" runs flux-core {theirs}. Run flux-node-manager with the bindings of flux-core {theirs}: put the"
            f" flux of that version first on PATH, or its site-packages on PYTHONPATH. Build a container image"
            f" from flux-core {theirs} (build argument FLUX_VERSION)"
        )


@contextmanager
def connection(uri: str) -> Iterator[Handle]:
    """Open a handle for the ``with`` block. Raises as :func:`connect`."""
    handle = connect(uri)
    try:
        yield handle
    finally:
        handle.close()


# --- request and response ---------------------------------------------------------------------------------


def ask(handle: Handle, topic: str, payload: object = None, *, rank: int = LEADER, timeout_s: float) -> Any:
    """Send one RPC and wait for its answer, decoded from JSON. Raises ``CallFailed``."""
    return ask_all(handle, {topic: payload}, rank=rank, timeout_s=timeout_s)[topic]


def ask_texts(handle: Handle, topic: str, ranks: Iterable[int], *, timeout_s: float) -> dict[int, str]:
    """Send one RPC without a payload to each rank, all together; return the raw text of each answer received."""
    return _ask_each_rank(topic, ranks, lambda rank: handle.rpc_text(topic, None, rank), timeout_s)


def ask_each(
    handle: Handle, topic: str, payload: object, ranks: Iterable[int], *, timeout_s: float
) -> dict[int, Any]:
    """Send one RPC to each rank, all together; return the answers received, decoded from JSON."""
    return _ask_each_rank(topic, ranks, lambda rank: handle.rpc(topic, payload, rank), timeout_s)


def _ask_each_rank(
    topic: str, ranks: Iterable[int], send: Callable[[int], Future], timeout_s: float
) -> dict[int, Any]:
    with ExitStack() as futures:
        sent: dict[int, Future] = {}
        for rank in ranks:
            with flux_call(_call_text(topic, rank)):
                sent[rank] = futures.enter_context(send(rank))
        answers: dict[int, Any] = {}
        end_s = time.monotonic() + timeout_s
        for rank, future in sent.items():
            with suppress(CallFailed), flux_call(_call_text(topic, rank)):
                answers[rank] = future.wait(_time_left_s(end_s)).get()
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
                sent[topic] = futures.enter_context(handle.rpc(topic, payload, rank))
        end_s = time.monotonic() + timeout_s
        for topic, future in sent.items():
            with flux_call(_call_text(topic, rank)):
                answers[topic] = future.wait(_time_left_s(end_s)).get()
        return answers


@contextmanager
def held_service(handle: Handle, service: str, *, timeout_s: float) -> Iterator[bool]:
    """Hold a service name on this broker for the ``with`` block; False if another process holds it.

    Requests to it meanwhile are not answered.
    """
    try:
        with flux_call(f"service {service}"), handle.register(service) as registered:
            registered.wait(timeout_s).get()
    except CallFailed as failure:
        if failure.errno != errno.EEXIST:
            raise
        yield False
        return
    try:
        yield True
    finally:
        with flux_call(f"service {service}"), handle.unregister(service) as removed:
            removed.wait(timeout_s).get()


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
