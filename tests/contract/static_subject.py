"""Own hosts as a subject of the contract: a host is awake while a file of its name is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.static.commands import HostCommands
from nodemanager.cloud.static.port import StaticHosts
from nodemanager.core.nodes import Identity, ProviderId
from tests.contract.cloud_subjects import (
    CLUSTER,
    CLUSTER_UUID,
    CloudSubject,
    SystemClock,
    a_node_of,
    a_script,
    lacks,
    until,
)

COMMAND_TIMEOUT_S = 60.0


def host_commands(directory: Path) -> HostCommands:
    """The commands of hosts that are awake while ``directory`` has a file of their name."""
    file = f"{directory}/{{node}}"
    return HostCommands(f"touch {file}", f"rm -f {file}", f"test -e {file}", directory, COMMAND_TIMEOUT_S)


class StaticSubject(CloudSubject):
    port: StaticHosts

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "awake").mkdir(parents=True)
        self.hosts = tuple(f"host{number}" for number in range(20))
        self.port = self.another_port()

    def another_port(self) -> StaticHosts:
        return self._port_of(CLUSTER, CLUSTER_UUID)

    def _port_of(self, cluster: str, cluster_uuid: str) -> StaticHosts:
        return StaticHosts(
            self.directory / "cloud",
            lambda _: self.hosts,
            host_commands(self.directory / "awake"),
            PortSettings(cluster, cluster_uuid, a_script, SystemClock(), call_timeout_s=2 * COMMAND_TIMEOUT_S),
            asleep_over_s=0.0,
        )

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until(reached, what)

    def kill(self, provider_id: ProviderId) -> None:
        (self.directory / "awake" / provider_id.partition(".")[0]).unlink()

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            lacks("show a host that serves nobody")
        return a_node_of(self._port_of(identity.cluster, identity.cluster_uuid), identity)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        """The wake command never ends, and is killed."""
        commands = self.port.commands
        self.port.commands = replace(commands, wake="sh -c 'exec sleep 600' {node}", timeout_s=0.01)
        yield
        self.port.commands = commands

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        hosts, self.hosts = self.hosts, ()
        yield
        self.hosts = hosts
