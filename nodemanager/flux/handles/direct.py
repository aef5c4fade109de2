"""A handle of flux-core's Python bindings, imported by this process.

Handles and futures are destroyed by scope. The garbage collector might free them in another thread while their own
thread uses the connection. A watch or a stream refers to itself, so its owner destroys it.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from nodemanager.flux.handles import far_side
from nodemanager.flux.handles.handle import BindingsMissing, Change, Future, ServiceRequest, Watcher, read_answer

_DISCOVERY_TIMEOUT_S = 20.0
_WITHOUT_TIMEOUT = -1.0


def load() -> None:
    """Import the bindings. If Python does not find them, search where the ``flux`` on PATH keeps them.

    Raises ``BindingsMissing``.
    """
    if why := _why_missing():
        raise BindingsMissing(why)


@functools.cache  # each connection of a bridged manager asks, and the search starts flux
def _why_missing() -> str:
    """Import the bindings. Return why that fails, and what to do; "" if it does not."""
    if (fault := _import_fault()) is None:
        return ""
    folders = [folder for folder in _folders_of_flux() if folder not in sys.path]
    sys.path.extend(folders)
    if (second_fault := _import_fault()) is None:
        return ""
    for folder in folders:
        sys.path.remove(folder)
    return _missing_bindings_text(second_fault if folders else fault, folders)


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
        "  - put flux's folder on PATH: flux-node-manager then speaks to flux-core by its own Python\n"
        "  - put flux-core's site-packages on PYTHONPATH (flux env printenv PYTHONPATH shows it)\n"
        "  - run this program with flux's own Python: flux python -m nodemanager.cli.main\n"
        "With flux-core 0.86 or later, flux-node-manager on PATH also runs as: flux node-manager"
    )


class DirectHandle:
    """:class:`~nodemanager.flux.handles.handle.Handle` by the bindings. Raises ``OSError`` if it cannot connect."""

    def __init__(self, uri: str) -> None:
        self._flux = far_side.open_handle(uri)

    @property
    def where(self) -> str:
        return str(sys.modules["flux"].__file__)

    @property
    def version(self) -> str:
        return str(far_side.version())

    @property
    def rank(self) -> int:
        return int(self._flux.get_rank())

    # --- calls ---

    def rpc(self, topic: str, payload: object, rank: int, *, streaming: bool = False) -> Future:
        def read(future: Any) -> Any:
            text = _read_text(future)
            return None if text is None else read_answer(text)

        return self._future(far_side.send_rpc(self._flux, topic, payload, rank, streaming=streaming), read, topic)

    def rpc_text(self, topic: str, payload: object, rank: int) -> Future:
        return self._future(far_side.send_rpc(self._flux, topic, payload, rank, streaming=False), _read_text)

    def lookup(self, key: str, namespace: str = "") -> Future:
        return self._future(
            far_side.send_lookup(self._flux, key, namespace, names=False),
            lambda future: far_side.read_lookup(future, names=False),
        )

    def lookup_names(self, directory: str) -> Future:
        return self._future(
            far_side.send_lookup(self._flux, directory, "", names=True),
            lambda future: far_side.read_lookup(future, names=True),
        )

    def commit(self, changes: Sequence[Change], *, namespace: str = "", sync: bool = False) -> Future:
        plain = [(change.key, change.text, change.append) for change in changes]
        return self._future(far_side.send_commit(self._flux, plain, namespace, sync), _read_nothing)

    def submit(self, jobspec: Mapping[str, Any], urgency: int) -> Future:
        return self._future(far_side.send_submit(self._flux, json.dumps(jobspec), urgency), far_side.read_submit)

    def take_user_role(self) -> None:
        far_side.take_user_role(self._flux)

    def _future(self, future: Any, read: Callable[[Any], Any], topic: str = "") -> _DirectFuture:
        return _DirectFuture(self._flux, future, read, topic)

    # --- services ---

    def register(self, service: str) -> Future:
        return self._future(far_side.checked(self._flux.service_register(service)), _read_nothing)

    def unregister(self, service: str) -> Future:
        return self._future(far_side.checked(self._flux.service_unregister(service)), _read_nothing)

    def on_request(self, topic: str, callback: Callable[[ServiceRequest], None], *, for_users: bool) -> Watcher:
        watcher: Watcher = far_side.watch_requests(
            self._flux, topic, lambda message: callback(_DirectRequest(self._flux, message)), for_users
        )
        return watcher

    # --- the loop ---

    def run(self) -> None:
        self._flux.reactor_run()

    def stop(self) -> None:
        self._flux.reactor_stop()

    def timer(self, delay_s: float, repeat_s: float, callback: Callable[[], None]) -> Watcher:
        watcher: Watcher = self._flux.timer_watcher_create(delay_s, lambda *_: callback(), repeat=repeat_s)
        return watcher

    def on_readable(self, fd: int, callback: Callable[[], None]) -> Watcher:
        readable = importlib.import_module("flux.constants").FLUX_POLLIN
        watcher: Watcher = self._flux.fd_watcher_create(fd, lambda *_: callback(), readable)
        return watcher

    def close(self) -> None:
        self._flux.__exit__(None, None, None)


def _read_text(future: Any) -> str | None:
    try:
        text: str | None = future.get_str()
    except UnicodeError as error:
        raise OSError(errno.EPROTO, f"the answer is no text: {error}") from error
    return text


def _read_nothing(future: Any) -> None:
    future.get()


class _DirectFuture:
    def __init__(self, flux: Any, future: Any, read: Callable[[Any], Any], topic: str) -> None:
        self._flux = flux
        self._future = future
        self._read = read
        self._topic = topic

    def get(self) -> Any:
        return self._read(self._future)

    def wait(self, timeout_s: float) -> Self:
        with suppress(FileNotFoundError):  # some calls answer "no such thing" so; get() tells
            self._future.wait_for(timeout_s)
        return self

    def then(self, callback: Callable[[], None], timeout_s: float | None = None) -> None:
        self._future.then(lambda _: callback(), timeout=_WITHOUT_TIMEOUT if timeout_s is None else timeout_s)

    def next(self) -> None:
        self._future.reset()

    def cancel(self) -> None:
        far_side.send_cancel(self._flux, self._topic, self._future)

    def destroy(self) -> None:
        self._future.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


class _DirectRequest:
    def __init__(self, flux: Any, message: Any) -> None:
        self._flux = flux
        self._message = message

    @property
    def text(self) -> str | None:
        text: str | None = self._message.payload_str
        return text

    @property
    def userid(self) -> int:
        return int(far_side.credential(self._message, "userid"))

    @property
    def by_owner(self) -> bool:
        return bool(far_side.is_by_owner(self._message))

    def respond(self, text: str) -> None:
        self._flux.respond(self._message, text)

    def respond_error(self, number: int, text: str) -> None:
        self._flux.respond_error(self._message.handle, number, text)
