"""A member's side: ask a gRPC service, ours or the one that ensemble-python publishes, to keep nodes."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nodemanager.ensemble.operator import make_request, read_kept, read_reply
from nodemanager.ensemble.ports import Then
from nodemanager.flux.reactor import Reactor
from nodemanager.web.grpc.material import MemberMaterial
from nodemanager.web.grpc.messages import SERVICE, load_grpc, load_messages
from nodemanager.web.listen import TcpAddress

MEMBER = "miniclusters"  # as ensemble-python's members call themselves
DEADLINE_S = 30.0  # of a request with all its attempts
# gRPC itself would pause for up to two minutes before it tries to connect again.
_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 8000))
RELEASE_S = 1.5  # how long the end of a run waits for the service
_RETRY = {
    "maxAttempts": 5,
    "initialBackoff": "1s",
    "maxBackoff": "8s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_CONFIG = json.dumps({"methodConfig": [{"name": [{"service": SERVICE}], "retryPolicy": _RETRY}]})


@dataclass(frozen=True, slots=True)
class _Keep:
    floor: int
    change: int
    then: Then


class ServiceNodes:
    """:class:`nodemanager.ensemble.ports.NodesPort` by a gRPC service. One request is under way at a time.

    ``material`` None is without TLS and token. Making one raises ``GrpcMissing``.
    """

    def __init__(
        self,
        reactor: Reactor,
        name: str,
        address: TcpAddress,
        material: MemberMaterial | None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._name = name
        self._address = address
        self._deadline_s = deadline_s
        self._messages = load_messages()
        self._channel = open_channel(address, material)
        serializer = {"response_deserializer": self._messages.response.FromString}
        self._ask_status, self._ask_action = (
            self._channel.unary_unary(
                f"/{SERVICE}/{method}", request_serializer=request.SerializeToString, **serializer
            )
            for method, request in (
                ("RequestStatus", self._messages.status_request),
                ("RequestAction", self._messages.action_request),
            )
        )
        self._waiting: deque[_Keep] = deque()
        self._now: _Keep | None = None
        self._call: Any = None  # the request under way
        self._on_done: Callable[[Any], None] = self._finish_action
        self._done, self._wake = socket.socketpair()  # gRPC's threads wake the reactor's
        self._wake.setblocking(False)  # noqa: FBT003 - the interface of sockets
        reactor.on_readable(self._done.fileno(), self._on_wake)

    def keep(self, floor: int, change: int, then: Then) -> None:
        self._waiting.append(_Keep(floor, change, then))
        self._send_next()

    def close(self) -> None:
        """End all requests. If the last one lets all nodes go, they are sent and waited for shortly."""
        last = self._waiting[-1] if self._waiting else self._now
        if last is not None and last.floor == 0:
            self._send_the_rest()
        self._channel.close()
        self._wake.close()
        self._done.close()

    def _send_the_rest(self) -> None:
        end_s = time.monotonic() + RELEASE_S
        grpc = load_grpc()
        with suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
            self._call.result(RELEASE_S)
            for it in self._waiting:
                if it.change:
                    self._ask_action(self._action(it), timeout=max(0.01, end_s - time.monotonic()))

    # --- requests ---

    def _send_next(self) -> None:
        if self._now is not None or not self._waiting:
            return
        self._now = self._waiting.popleft()
        if self._now.change:
            self._send(self._ask_action, self._action(self._now), self._finish_action)
        else:
            request = self._messages.status_request(member=MEMBER, name=self._name)
            self._send(self._ask_status, request, self._finish_status)

    def _action(self, it: _Keep) -> Any:
        action, payload = make_request(it.change, it.floor)
        return self._messages.action_request(member=MEMBER, name=self._name, action=action, payload=payload)

    def _send(self, ask: Any, request: Any, on_done: Callable[[Any], None]) -> None:
        self._on_done = on_done
        self._call = ask.future(request, timeout=self._deadline_s)
        self._call.add_done_callback(self._note_done)

    def _note_done(self, _: object) -> None:
        with suppress(OSError):  # closed meanwhile
            self._wake.send(b"x")

    def _on_wake(self) -> None:
        self._done.recv(1)
        fault = self._call.exception()
        if fault is None:
            self._on_done(self._call.result())
        else:
            self._end(
                f"the ensemble service {self._address.host}:{self._address.port} did not answer: {_text(fault)}"
            )

    def _finish_status(self, reply: Any) -> None:
        """A service that was started again, or let the nodes go, keeps another number than ours."""
        now, kept = self._now, read_kept(reply.payload)
        if now is None or kept is None or kept == now.floor:
            self._end("")
            return
        self._now = _Keep(now.floor, now.floor - kept, now.then)
        self._send(self._ask_action, self._action(self._now), self._finish_action)

    def _finish_action(self, reply: Any) -> None:
        self._end(read_reply(reply.status, reply.payload))

    def _end(self, why: str) -> None:
        now, self._now = self._now, None
        if now is not None:
            now.then(why)
        self._send_next()


def open_channel(address: TcpAddress, material: MemberMaterial | None) -> Any:
    """Connect to a service. ``material`` None is without TLS and token."""
    grpc = load_grpc()
    host = f"[{address.host}]" if ":" in address.host else address.host
    target = f"{host}:{address.port}"
    options = [("grpc.service_config", _CONFIG), *_RECONNECT]
    if material is None:
        return grpc.insecure_channel(target, options=options)
    if material.name:
        options.append(("grpc.ssl_target_name_override", material.name))
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(material.trusted), grpc.access_token_call_credentials(material.token)
    )
    return grpc.secure_channel(target, credentials, options=options)


def _text(fault: Any) -> str:
    code, details = getattr(fault, "code", None), getattr(fault, "details", None)
    if code is None or details is None:
        return type(fault).__name__
    return f"{code().name.lower().replace('_', ' ')}: {str(details())[:500]}"
