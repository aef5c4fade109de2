"""The gRPC service: members ask it for more or fewer nodes, and for their state."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog

from nodemanager.ensemble.operator import ChangeDenied, ChangeFailed, MembersPort, ReplyStatus, read_change
from nodemanager.join.connection_limits import ConnectionBounds
from nodemanager.web.grpc.front import BOUNDS, Front
from nodemanager.web.grpc.material import ServiceMaterial, token_of_member
from nodemanager.web.grpc.messages import SERVICE, load_grpc, load_messages
from nodemanager.web.listen import CannotListen, TcpAddress

KEEP_EVERY_S = 60.0
WORKERS = 4
REQUESTS_MAX = 64  # at one time; the others are told to try again
REQUEST_BYTES_MAX = 2**20  # a node manager that adds 1,000 pods sends 130 kB
IDLE_S = 600.0  # a connection without requests is closed
STOP_S = 1.0
_SHARED_TOKEN = ""


class MembersServer:
    """Serves members. ``material`` None is without TLS and token.

    ``own_tokens``: each member has a token of its own (``token_of_member``), and can ask in its own name only.
    Making one raises ``GrpcMissing``.
    """

    def __init__(
        self,
        address: TcpAddress,
        members: MembersPort,
        material: ServiceMaterial | None,
        *,
        own_tokens: bool = False,
        bounds: ConnectionBounds = BOUNDS,
    ) -> None:
        self._grpc = load_grpc()
        self._messages = load_messages()
        self._address = address
        self._members = members
        self._material = material
        self._own_tokens = own_tokens
        # All members with the shared token count as one, so together they may have half of the connections.
        shared_max = max(bounds.per_launch_max, bounds.connections_max // 2)
        self._bounds = bounds if own_tokens else replace(bounds, per_launch_max=shared_max)
        self._front: Front | None = None
        self._log: Any = structlog.get_logger()
        self._stopped = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="ensemble-members", daemon=True)
        self._server = self._grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="grpc"),
            handlers=[self._grpc.method_handlers_generic_handler(SERVICE, self._handlers())],
            maximum_concurrent_rpcs=REQUESTS_MAX,
            options=[
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.max_connection_idle_ms", int(1000 * IDLE_S)),
            ],
        )

    def start(self) -> int:
        """Listen, and return the port. Raises ``CannotListen``."""
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        try:
            self._front = front = Front(self._address, self._material, self._bounds)
            try:
                self._server.add_insecure_port(front.inner)
                self._server.start()
                port = front.start()
            except BaseException:
                self._server.stop(None)
                front.stop(STOP_S)
                raise
        except (CannotListen, RuntimeError, ValueError) as error:
            place = f"{host}:{self._address.port}"
            raise CannotListen(f"{place}: the gRPC service cannot listen there: {error}") from error
        self._keeper.start()
        self._log.info("ensemble_service", address=f"{host}:{port}", tls=self._material is not None)
        return port

    def stop(self) -> None:
        """Stop listening. Requests under way may end within a second."""
        self._stopped.set()
        self._server.stop(STOP_S).wait(2 * STOP_S)
        if self._front is not None:
            self._front.stop(STOP_S)

    def _keep(self) -> None:
        while True:
            self._members.keep()
            if self._stopped.wait(KEEP_EVERY_S):
                return

    # --- requests ---

    def _handlers(self) -> dict[str, Any]:
        return {
            "RequestStatus": self._handler(self._messages.status_request, self._status),
            "RequestAction": self._handler(self._messages.action_request, self._action),
        }

    def _handler(self, request: Any, answer: Callable[[Any], tuple[ReplyStatus, Mapping[str, Any]]]) -> Any:
        def serve(asked: Any, context: Any) -> Any:
            header = dict(context.invocation_metadata()).get("authorization", "")
            if not self._knows_token(header, asked.name):
                context.abort(self._grpc.StatusCode.UNAUTHENTICATED, "the token is required")
            if self._front is not None:
                self._front.heard(context.peer(), self._proven_by(asked.name))
            status, payload = answer(asked)
            return self._messages.response(status=int(status), payload=json.dumps(payload))

        return self._grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=request.FromString,
            response_serializer=self._messages.response.SerializeToString,
        )

    def _proven_by(self, name: str) -> str | None:
        """For whom a connection with this request counts. A name without a token of its own proves nothing."""
        if self._material is None:
            return None
        return name if self._own_tokens else _SHARED_TOKEN

    def _knows_token(self, header: str, name: str) -> bool:
        if self._material is None:
            return True
        token = self._material.token
        expected = token_of_member(token, name) if self._own_tokens else token
        return secrets.compare_digest(header.encode(), f"Bearer {expected}".encode())

    def _status(self, request: Any) -> tuple[ReplyStatus, Mapping[str, Any]]:
        try:
            return ReplyStatus.SUCCESS, self._members.status(request.name)
        except ChangeFailed as fault:
            return ReplyStatus.ERROR, {"why": str(fault)}

    def _action(self, request: Any) -> tuple[ReplyStatus, Mapping[str, Any]]:
        status, payload = self._resize(request)
        shown = {"ensemble": request.name[:200], "action": request.action[:20], **payload}
        self._log.info("ensemble_member_asked", status=status.name, **shown)
        return status, payload

    def _resize(self, request: Any) -> tuple[ReplyStatus, Mapping[str, Any]]:
        try:
            change = read_change(request.name, request.action, request.payload)
            return ReplyStatus.SUCCESS, {"nodes": self._members.resize(change)}
        except ValueError as fault:
            return ReplyStatus.ERROR, {"why": str(fault)}
        except ChangeFailed as fault:
            return ReplyStatus.ERROR, {"why": str(fault), **({"kind": fault.kind} if fault.kind else {})}
        except ChangeDenied as fault:
            known = {"nodes": fault.nodes} if fault.nodes is not None else {}
            return ReplyStatus.DENIED, {"why": str(fault), **known}
