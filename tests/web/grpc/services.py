"""A gRPC service on loopback with members that are kept in memory, and a member's side without Flux."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from nodemanager.ensemble.operator import ChangeDenied, ChangeFailed, SizeChange
from nodemanager.flux.reactor import Reactor
from nodemanager.join.connection_limits import ConnectionBounds
from nodemanager.web.grpc.client import ServiceNodes
from nodemanager.web.grpc.front import BOUNDS
from nodemanager.web.grpc.material import MemberMaterial, ServiceMaterial
from nodemanager.web.grpc.server import MembersServer
from nodemanager.web.listen import TcpAddress

WITHIN_S = 30.0


class MembersInMemory:
    """Members that may have up to ``nodes_max`` nodes each."""

    def __init__(self, nodes_max: int = 6) -> None:
        self.nodes_max = nodes_max
        self.kept: dict[str, int] = {}
        self.asked: list[SizeChange] = []
        self.heard: list[str] = []
        self.fault = ""

    def resize(self, change: SizeChange) -> int:
        self.asked.append(change)
        if self.fault:
            raise ChangeFailed(self.fault)
        nodes = change.applied_to(self.kept.get(change.name, 0))
        if nodes > self.nodes_max:
            raise ChangeDenied(f"nodes_max = {self.nodes_max}")
        self.kept[change.name] = nodes
        return nodes

    def status(self, name: str) -> Mapping[str, Any]:
        self.heard.append(name)
        return {
            "size": {"asked": self.kept.get(name, 0)},
            "nodes": {"node_up_count": 1},
            "queue": {},
            "metrics": {},
        }

    def keep(self) -> None:
        pass


@contextmanager
def serving(
    members: MembersInMemory,
    material: ServiceMaterial | None = None,
    port: int = 0,
    bounds: ConnectionBounds = BOUNDS,
) -> Iterator[TcpAddress]:
    server = MembersServer(TcpAddress("127.0.0.1", port), members, material, bounds=bounds)
    address = TcpAddress("127.0.0.1", server.start())
    try:
        yield address
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Loop:
    """As much of a reactor as a member's side needs."""

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()  # select(2) knows no more than 1,024 files

    def on_readable(self, fd: int, callback: Callable[[], None]) -> None:
        self._watched[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            readable = self._poll.poll(1000 * WITHIN_S)
            assert readable, "nothing happens any more"
            for fd, _ in readable:
                self._watched[fd]()


class Member:
    """A process that runs an ensemble and asks a service for nodes."""

    def __init__(
        self,
        address: TcpAddress,
        material: MemberMaterial | None = None,
        *,
        deadline_s: float = WITHIN_S,
        name: str = "mini",
    ) -> None:
        self.loop = Loop()
        self.answers: list[str] = []
        self.nodes = ServiceNodes(cast("Reactor", self.loop), name, address, material, deadline_s=deadline_s)

    def ask(self, *floors_and_changes: tuple[int, int]) -> list[str]:
        """Ask for floors, all at once, and return the answers."""
        first = len(self.answers)
        for floor, change in floors_and_changes:
            self.nodes.keep(floor, change, self.answers.append)
        self.loop.until(lambda: len(self.answers) == first + len(floors_and_changes))
        return self.answers[first:]
