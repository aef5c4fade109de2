"""The name ``node-manager`` on rank 0: who holds it acts, and everybody may ask who that is.

A service's requests arrive at the handle that registered it, and its name is free as soon as that handle is closed
or its process is dead. So the claim has a handle and a small thread of its own, which does nothing but answer
``node-manager.owner`` and ``node-manager.status``: it answers while the port waits for a slow call, and while the
watch takes in a backlog.

To look whether we still hold the name is one RPC through the broker (0.5 ms) whose answer must carry our token:
it proves that the broker sends the name's requests here, which no variable of ours could.

The claim is not taken again by itself when rank 0 comes back: what was on record may have changed meanwhile, so
that is for the one who decides (``FluxPort.claim``).
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
    """Who answers for the name. Figures of a stranger are what it says of itself."""

    token: str
    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def owner_of(handle: Handle, *, timeout_s: float) -> Owner | None:
    """Ask who holds the name; None if nobody does. Raises ``CallFailed``, timed out when a holder is stuck."""
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


class Claim:
    """Our hold on the name. Every method may be called from any thread; ``status`` is asked in one of its own."""

    def __init__(self, uri: str, *, timeout_s: float, status: Status = dict) -> None:
        self._owner = Owner(secrets.token_hex(16), os.getpid(), socket.gethostname())
        self._uri = uri
        self._timeout_s = timeout_s
        self._status = status
        self._lock = threading.Lock()
        self._keeper: _Keeper | None = None

    def take(self) -> None:
        """Register the name anew. Raises ``FluxError`` if that fails, ``CallFailed`` EEXIST if it is held."""
        with self._lock:
            self._end()
            keeper = _Keeper(self._uri, self._owner, self._timeout_s, self._status)
            try:
                keeper.wait()
            except FluxError:
                keeper.end()
                raise
            self._keeper = keeper

    def release(self) -> None:
        """Give the name up; it is free on return. Not held, it is no error."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def is_ours(self, owner: Owner) -> bool:
        return secrets.compare_digest(owner.token, self._owner.token)


class _Keeper:
    """The thread that holds the name."""

    def __init__(self, uri: str, owner: Owner, timeout_s: float, status: Status) -> None:
        self._uri = uri
        self._owner = owner
        self._timeout_s = timeout_s
        self._status = status
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
        self._ask_to_end.close()  # readable at the other end, where the thread still runs
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
                # Once the name was held, a lost connection; whoever looks whether it still is finds out.
                self._fault = fault
            finally:
                self._ready.set()

    def _register(self, reactor: Reactor) -> None:
        if (rank := rank_of(reactor.handle)) != LEADER:
            where = self._uri or "FLUX_URI"
            raise FluxError(
                f"{where} leads to rank {rank}; the node manager works beside rank 0:"
                " run it on the leader's machine, with uri = the leader's local-uri"
            )
        methods = {"owner": self._say_owner, "status": self._status}
        # How the fleet stands names no user and no job, so every user of the instance may ask it.
        reactor.serve(SERVICE, methods, timeout_s=self._timeout_s, for_users=["status"])
        reactor.on_readable(self._asked_to_end.fileno(), reactor.stop)

    def _say_owner(self) -> dict[str, object]:
        return {"token": self._owner.token, "pid": self._owner.pid, "host": self._owner.host}
