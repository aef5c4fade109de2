"""The service name ``node-manager`` on rank 0. Only the manager that holds it may act.

Flux delivers a service's requests to the handle that registered it. The name is free as soon as that handle is
closed or its process dies. So the claim has its own handle and a small thread that only answers
``node-manager.owner``, ``.status`` and ``.floor``. It answers even while the port waits for a slow call or the
watch reads a backlog.

To check that we still hold the name, the port sends one RPC through the broker (0.5 ms). The answer must contain
our token, which proves that the broker sends the name's requests to us. A local variable could not prove that.

When rank 0 restarts, the claim is not taken again automatically, because the record may have changed meanwhile. The
manager decides (``FluxPort.claim``).
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodemanager.core.ports import FluxError
from nodemanager.flux.bindings import LEADER, CallFailed, Handle, ask, rank_of
from nodemanager.flux.reactor import Reactor

SERVICE = "node-manager"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that answers for the name. Nobody checks what another process reports about itself."""

    token: str
    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def owner_of(handle: Handle, *, timeout_s: float) -> Owner | None:
    """Ask who holds the name; None if nobody does. Raises ``CallFailed``, which timed out if the holder hangs."""
    try:
        answer = ask(handle, f"{SERVICE}.owner", timeout_s=timeout_s)
    except CallFailed as failure:
        if failure.errno == errno.ENOSYS:
            return None
        raise
    return _read_owner(answer)


def _read_owner(answer: Any) -> Owner:
    known = answer if isinstance(answer, dict) else {}
    pid = known.get("pid")
    return Owner(str(known.get("token", "")), pid if isinstance(pid, int) else 0, str(known.get("host", "?")))


Status = Callable[[], object]
Floor = Callable[[Any], object]  # answers a request to keep nodes for an ensemble


class Claim:
    """Our hold on the name. Any thread may call its methods.

    ``status`` and ``floor`` are called in the claim's own thread.
    """

    def __init__(self, uri: str, *, timeout_s: float, status: Status = dict, floor: Floor | None = None) -> None:
        self._owner = Owner(secrets.token_hex(16), os.getpid(), socket.gethostname())
        self._uri = uri
        self._timeout_s = timeout_s
        self._status = status
        self._floor = floor
        self._lock = threading.Lock()
        self._keeper: _NameHolder | None = None

    def take(self) -> None:
        """Register the name again. Raises ``FluxError`` if that fails, ``CallFailed`` with EEXIST if it is held."""
        with self._lock:
            self._end()
            keeper = _NameHolder(self._uri, self._owner, self._timeout_s, self._status, self._floor)
            try:
                keeper.wait()
            except FluxError:
                keeper.end()
                raise
            self._keeper = keeper

    def release(self) -> None:
        """Release the name; it is free on return. Releasing a name not held is no error."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def is_ours(self, owner: Owner) -> bool:
        """Whether the owner is this process."""
        return secrets.compare_digest(owner.token, self._owner.token)


class _NameHolder:
    """The thread that holds the name."""

    def __init__(self, uri: str, owner: Owner, timeout_s: float, status: Status, floor: Floor | None) -> None:
        self._uri = uri
        self._owner = owner
        self._timeout_s = timeout_s
        self._status = status
        self._floor = floor
        self._ready = threading.Event()
        self._fault: FluxError | None = None
        self._asked_to_end, self._ask_to_end = socket.socketpair()
        self._thread = threading.Thread(target=self._keep, name="flux-claim", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._ready.wait()
        if self._fault is not None:
            raise self._fault

    def end(self) -> None:
        self._ask_to_end.close()  # makes the other end readable, which stops the thread
        self._thread.join(2 * self._timeout_s)

    def _keep(self) -> None:
        with self._asked_to_end:
            try:
                with Reactor(self._uri) as reactor:
                    self._register(reactor)
                    self._ready.set()
                    reactor.run()
                    reactor.unserve(SERVICE, timeout_s=self._timeout_s)
            except FluxError as fault:
                # After a lost connection, the next check of the name finds out that it is no longer held.
                self._fault = fault
            finally:
                self._ready.set()

    def _register(self, reactor: Reactor) -> None:
        if (rank := rank_of(reactor.handle)) != LEADER:
            where = self._uri or "FLUX_URI"
            raise FluxError(
                f"{where} leads to rank {rank}, but the node manager must connect to rank 0:"
                " run it on the leader's machine, with uri = the leader's local-uri"
            )
        methods: dict[str, Callable[[Any], object]] = {
            "owner": lambda _: self._answer_owner(),
            "status": lambda _: self._status(),
        }
        if self._floor is not None:
            methods["floor"] = self._floor
        # The status names no user and no job, so every user of the instance may request it.
        reactor.serve(SERVICE, methods, timeout_s=self._timeout_s, for_users=["status"])
        reactor.on_readable(self._asked_to_end.fileno(), reactor.stop)

    def _answer_owner(self) -> dict[str, object]:
        return {"token": self._owner.token, "pid": self._owner.pid, "host": self._owner.host}
