"""The gRPC side of ``ensemble``: ``serve``, and ``run --service``. Both find the shared files in ``--material``."""

from __future__ import annotations

import select
import signal
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodemanager.cloud.minicluster.access import AccessError, from_kubeconfig, in_cluster
from nodemanager.cloud.minicluster.client import Client
from nodemanager.cloud.minicluster.members import MiniClusterMembers
from nodemanager.ensemble.operator import MembersPort
from nodemanager.ensemble.ports import NodesPort
from nodemanager.flux.bindings import connection
from nodemanager.flux.ensembles.operator import InstanceMembers
from nodemanager.flux.reactor import Reactor
from nodemanager.service import logs
from nodemanager.service.assembly.ports import SystemClock
from nodemanager.web.grpc.client import ServiceNodes
from nodemanager.web.grpc.material import (
    MaterialUnusable,
    default_folder,
    member_material,
    read_address,
    service_material,
)
from nodemanager.web.grpc.messages import load_grpc
from nodemanager.web.grpc.server import MembersServer

CALL_TIMEOUT_S = 10.0  # of a call to the API server


def serve(chosen: Namespace) -> int:
    """Run the gRPC service in the foreground until SIGTERM or SIGINT. Returns the exit status."""
    address = read_address(chosen.listen, plaintext=chosen.plaintext)
    load_grpc()  # before any file is made
    material = None if chosen.plaintext else service_material(_folder(chosen))
    members = _miniclusters(chosen) if chosen.miniclusters else _instance(chosen.uri or "")
    logs.configure()
    server = MembersServer(address, members, material, own_tokens=bool(chosen.miniclusters))
    with stop_signals() as (stop_asked, _):
        server.start()
        select.select([stop_asked], [], [])
        server.stop()
    return 0


def _instance(uri: str) -> MembersPort:
    with connection(uri):
        pass  # a wrong URI or version should fail now, not at the first request
    return InstanceMembers(uri)


def _miniclusters(chosen: Namespace) -> MembersPort:
    """Return the members that are MiniClusters. Raises ``MaterialUnusable`` without access to an API server."""
    clock = SystemClock()
    try:
        access = from_kubeconfig(Path(chosen.kubeconfig), clock.wall_at) if chosen.kubeconfig else in_cluster()
    except AccessError as error:
        what = "" if chosen.kubeconfig else "--miniclusters needs a pod with a service account, or --kubeconfig: "
        raise MaterialUnusable(f"{what}{error}") from error
    names = [name.strip() for name in chosen.miniclusters.split(",") if name.strip()]
    namespace = chosen.namespace or access.namespace or "default"
    client = Client(access, clock, timeout_s=CALL_TIMEOUT_S)
    return MiniClusterMembers(client, namespace, names, chosen.pods_max, clock.wall_at)


@contextmanager
def member_nodes(chosen: Namespace, name: str) -> Iterator[Callable[[Reactor], NodesPort] | None]:
    """Give the function that connects a run with the service of ``--service``; None without that option.

    Raises ``MaterialUnusable`` or ``GrpcMissing``.
    """
    if not chosen.service:
        yield None
        return
    address = read_address(chosen.service, plaintext=chosen.plaintext)
    material = None if chosen.plaintext else member_material(_folder(chosen))
    load_grpc()
    made: list[ServiceNodes] = []

    def connect(reactor: Reactor) -> ServiceNodes:
        _close(made)  # of the connection that was lost
        made.append(ServiceNodes(reactor, name, address, material))
        return made[-1]

    try:
        yield connect
    finally:
        _close(made)


def _close(made: list[ServiceNodes]) -> None:
    while made:
        made.pop().close()


def _folder(chosen: Namespace) -> Path:
    return Path(chosen.material).absolute() if chosen.material else default_folder()


@contextmanager
def stop_signals() -> Iterator[tuple[socket.socket, list[int]]]:
    """Give a socket that becomes readable at SIGTERM and SIGINT, and the list of those received.

    A Python handler would only run once the reactor's C code returns.
    """
    stop_asked, wake = socket.socketpair()
    received: list[int] = []
    wake.setblocking(False)  # noqa: FBT003 - the interface of sockets
    before = signal.set_wakeup_fd(wake.fileno())

    def note(number: int, _: object) -> None:
        received.append(number)

    handlers = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with stop_asked, wake:
            yield stop_asked, received
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
