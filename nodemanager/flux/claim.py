"""The service name ``node-manager`` on rank 0. Only the manager that holds it may act.

Flux delivers a service's requests to the handle that registered it. The name is free as soon as that handle is
closed or its process dies. So the claim has its own handle and a small thread that only answers
``node-manager.owner`` and ``.floor``. It answers even while the port waits for a slow call or the watch reads a
backlog.

What every user of the instance may ask is another service, ``node-manager-info``, with its own handle and thread.
So a user who floods it with requests delays neither the claim nor the checks of it.

To check that we still hold the name, the port sends one RPC through the broker (0.5 ms). The answer must contain
our token, which proves that the broker sends the name's requests to us. A local variable could not prove that.

When rank 0 restarts, the claim is not taken again automatically, because the record may have changed meanwhile.
The manager decides (``FluxPort.claim``).
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from nodemanager.core.ports import FluxError, Info
from nodemanager.flux.bindings import LEADER, CallFailed, Handle, ask
from nodemanager.flux.reactor import Answer, Reactor, RpcRequest, contained

SERVICE = "node-manager"
INFO_SERVICE = "node-manager-info"
JOB_ID_MAX = 64  # characters


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


Floor = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # answers an ensemble that asks for nodes


class Claim:
    """Our hold on the name. Any thread may call its methods. ``floor`` is called in the claim's own thread."""

    def __init__(self, uri: str, *, timeout_s: float, info: Info | None = None, floor: Floor | None = None) -> None:
        self._owner = Owner(secrets.token_hex(16), os.getpid(), socket.gethostname())
        self._uri = uri
        self._timeout_s = timeout_s
        self._info = info if info is not None else Info()
        self._floor = floor
        self._lock = threading.Lock()
        self._keeper: _ServiceThread | None = None
        self._informer: _ServiceThread | None = None

    def take(self) -> None:
        """Register the name again. Raises ``FluxError`` if that fails, ``CallFailed`` with EEXIST if it is held."""
        with self._lock:
            self._end()
            own = {"owner": self._answer_owner, "floor": self._answer_floor}
            self._keeper = self._start(SERVICE, own, for_users=False)
            methods = {"status": lambda _: self._info.status(), "explain": self._answer_explain}
            try:
                self._informer = self._start(INFO_SERVICE, methods, for_users=True)
            except FluxError as fault:  # the manager acts without it
                structlog.get_logger().warning("info_service_failed", service=INFO_SERVICE, why=str(fault))

    def _start(self, service: str, methods: Mapping[str, Answer], *, for_users: bool) -> _ServiceThread:
        thread = _ServiceThread(self._uri, service, methods, self._timeout_s, for_users=for_users)
        try:
            thread.wait()
        except FluxError:
            thread.end()
            raise
        return thread

    def _answer_owner(self, _: RpcRequest) -> str:
        return json.dumps({"token": self._owner.token, "pid": self._owner.pid, "host": self._owner.host})

    def _answer_floor(self, request: RpcRequest) -> str:
        """Answer an ensemble that asks for nodes (:mod:`nodemanager.service.floors`)."""
        if self._floor is None:
            raise LookupError("this manager keeps no nodes for ensembles")
        return json.dumps(self._floor(request.payload))

    def _answer_explain(self, request: RpcRequest) -> str:
        job_id = request.payload.get("id")
        if not isinstance(job_id, str) or len(job_id) > JOB_ID_MAX:
            raise ValueError('the payload must be {"id": JOBID}, with the id as a text')
        return self._info.explain(job_id, request.userid)

    def release(self) -> None:
        """Release the name; it is free on return. Releasing a name not held is no error."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        for thread in (self._informer, self._keeper):
            if thread is not None:
                thread.end()
        self._informer = self._keeper = None

    def is_ours(self, owner: Owner) -> bool:
        """Whether the owner is this process."""
        return secrets.compare_digest(owner.token, self._owner.token)


class _ServiceThread:
    """A thread with a handle that holds a service's name and answers its requests."""

    def __init__(
        self, uri: str, service: str, methods: Mapping[str, Answer], timeout_s: float, *, for_users: bool
    ) -> None:
        self._uri = uri
        self._service = service
        self._methods = methods
        self._for_users = for_users
        self._timeout_s = timeout_s
        self._ready = threading.Event()
        self._fault: FluxError | None = None
        self._asked_to_end, self._ask_to_end = socket.socketpair()
        self._thread = threading.Thread(target=self._keep, name=f"flux-{service}", daemon=True)
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
                with contained(f"the service {self._service}"), Reactor(self._uri) as reactor:
                    self._register(reactor)
                    self._ready.set()
                    reactor.run()
                    reactor.unserve(self._service, timeout_s=self._timeout_s)
            except FluxError as fault:
                # After a lost connection, the next check of the name finds out that it is no longer held.
                self._fault = fault
            finally:
                self._ready.set()

    def _register(self, reactor: Reactor) -> None:
        if (rank := reactor.handle.rank) != LEADER:
            where = self._uri or "FLUX_URI"
            raise FluxError(
                f"{where} leads to rank {rank}, but the node manager must connect to rank 0:"
                " run it on the leader's machine, with uri = the leader's local-uri"
            )
        reactor.serve(self._service, self._methods, timeout_s=self._timeout_s, for_users=self._for_users)
        reactor.on_readable(self._asked_to_end.fileno(), reactor.stop)
