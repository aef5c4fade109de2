"""Hosts with addresses of their own: network namespaces around one router, whose firewall cuts and loses packets.

Every host has a subnet of its own and reaches the others through the router alone. So a rule there cuts exactly one
direction between two hosts, and none of them is told: no call fails, packets are lost without a word.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from unittest.mock import patch

import psutil

from nodemanager.cloud.local import port
from nodemanager.cloud.local.port import LocalNodeDriver, NodeRecord
from nodemanager.cloud.local.process import INIT_SCRIPT
from tests.live.instance import eventually

OURS = re.compile(r"fnm(?P<pid>[0-9]+)-\S+")  # the name of a namespace: of which process, and which host
NEEDED = ("ip", "nsenter", "iptables", "ip6tables")
COMMAND_WITHIN_S = 30.0
FIRST_NODE = 20  # the subnets below it are the other hosts'
LOSS = ("-m", "statistic", "--mode", "random", "--probability")

# A function of the shell, for nodes add themselves: add_host PREFIX NAME NUMBER 4|6
ADD_HOST = """\
add_host() {
    host=$1-$2 router=$1-router
    case $4 in
        4) net=198.18.$3 own=$net.2/24 gateway=$net.1 far=$net.1/24 flag= ;;
        6) net=fd00:0:0:$3 own=$net::2/64 gateway=$net::1 far=$net::1/64 flag=nodad ;;
    esac
    ip -n "$router" link del "v$3" 2> /dev/null  # of a former host of this number
    ip netns add "$host" &&
        ip -n "$router" link add "v$3" type veth peer name eth0 netns "$host" &&
        ip -n "$router" addr add "$far" dev "v$3" $flag &&
        ip -n "$router" link set "v$3" up &&
        ip -n "$host" link set lo up &&
        ip -n "$host" addr add "$own" dev eth0 $flag &&
        ip -n "$host" link set eth0 up &&
        ip -n "$host" "-$4" route add default via "$gateway"
}
"""
# Before anything of a node runs, its init goes into a namespace of its own. The init keeps its pid.
ENTER = """\
if [ -z "$FNM_NETWORK" ]; then
    number=${{FNM_NODE#local-}}
    add_host {prefix} n$$ $(({first} + $(expr "${{number%%-*}}" + 0))) {version} || exit 1
    exec env FNM_NETWORK=entered nsenter --net=/run/netns/{prefix}-n$$ sh "$0" "$@"
fi
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A host that is not a node. ``command``: what to put before a command that is to run there."""

    address: str
    command: tuple[str, ...]


class Network:
    """A router, and the hosts around it. Addresses are IPv4 ones, or IPv6 ones alone."""

    def __init__(self, prefix: str = "", version: int = 4) -> None:
        self.prefix = prefix or f"fnm{os.getpid()}"
        self.version = version
        self._numbers = count(1)

    # --- hosts ---

    def begin(self) -> None:
        _run("ip", "netns", "add", f"{self.prefix}-router")
        _run("ip", "-n", f"{self.prefix}-router", "link", "set", "lo", "up")
        for forwarding in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            path = f"/proc/sys/{forwarding.replace('.', '/')}"
            self._at_router("sh", "-c", f"echo 1 > {path}")

    def add_host(self, name: str) -> Host:
        number = next(self._numbers)
        arguments = (self.prefix, name, str(number), str(self.version))
        _run("sh", "-c", f'{ADD_HOST}add_host "$@"', "add_host", *arguments)
        return Host(self._address(number), ("nsenter", f"--net=/run/netns/{self.prefix}-{name}"))

    def address_of(self, node: NodeRecord) -> str:
        return self._address(FIRST_NODE + node.sequence)

    def _address(self, number: int) -> str:
        return f"198.18.{number}.2" if self.version == 4 else f"fd00:0:0:{number}::2"

    # --- the firewall ---

    def cut(self, sender: str, receiver: str) -> None:
        """Lose all packets from one host to another."""
        self._firewall("-I", "FORWARD", "-s", sender, "-d", receiver, "-j", "DROP")

    def cut_both_ways(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def lose(self, share: float) -> None:
        """Lose this share of all packets between hosts."""
        self._firewall("-A", "FORWARD", *LOSS, str(share), "-j", "DROP")

    def translate(self, receiver: str) -> None:
        """Let all hosts reach the receiver by one address, as behind a NAT."""
        self._firewall("-t", "nat", "-A", "POSTROUTING", "-d", receiver, "-j", "MASQUERADE")

    def packets_lost(self) -> int:
        """How many packets the present rules have dropped."""
        shown = self._firewall("-L", "FORWARD", "-vnx")
        return sum(int(line.split()[0]) for line in shown.splitlines() if " DROP " in line)

    def open_again(self) -> None:
        """Forget every rule."""
        self._firewall("-F", "FORWARD")
        self._firewall("-t", "nat", "-F", "POSTROUTING")

    def _firewall(self, *arguments: str) -> str:
        return self._at_router("iptables" if self.version == 4 else "ip6tables", "-w", *arguments)

    def _at_router(self, *command: str) -> str:
        return _run("nsenter", f"--net=/run/netns/{self.prefix}-router", *command)

    # --- the end ---

    def end(self) -> None:
        """End every process of every host, and take the hosts away."""
        _remove([name for name in _namespaces() if name.startswith(f"{self.prefix}-")])


def init_script(network: Network) -> str:
    """The init of local nodes that enter the network."""
    entering = ENTER.format(prefix=network.prefix, version=network.version, first=FIRST_NODE)
    return f"{ADD_HOST}{entering}{INIT_SCRIPT}"


def let_nodes_enter(network: Network) -> None:
    """Have every local node of this process enter the network, and the driver tell its address."""
    patch.object(port, "INIT_SCRIPT", init_script(network)).start()
    tell = LocalNodeDriver._libcloud_node

    def with_address(driver: LocalNodeDriver, record: NodeRecord) -> object:
        node = tell(driver, record)
        node.private_ips = [network.address_of(record)]
        return node

    patch.object(LocalNodeDriver, "_libcloud_node", with_address).start()


@contextmanager
def a_network(version: int = 4) -> Iterator[Network]:
    """A network for local nodes, taken away in the end with all that runs in it."""
    _sweep()
    network = Network(version=version)
    with patch.object(port, "INIT_SCRIPT", init_script(network)):  # drivers and witnesses write it too
        try:
            network.begin()
            yield network
        finally:
            network.end()


def why_no_networks() -> str:
    """Why there can be no network namespaces here; "" if there can be."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [program for program in NEEDED if shutil.which(program) is None]:
        return f"network namespaces need {', '.join(missing)} (apt install iproute2 iptables util-linux)"
    try:
        with a_network() as network:
            network.lose(0.5)
            network.translate("198.18.1.2")
    except NetworkRefused as refused:
        return str(refused)
    return ""


class NetworkRefused(Exception):
    """This machine does not let us. The text says what it said."""


def _run(*command: str) -> str:
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_WITHIN_S)
    if ran.returncode != 0:
        raise NetworkRefused(f"{shlex.join(command)[-200:]}: {ran.stderr.strip()}")
    return ran.stdout


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]


def _sweep() -> None:
    """Take away the networks of test runs that were killed."""
    found = [(match, name) for name in _namespaces() if (match := OURS.fullmatch(name))]
    _remove([name for match, name in found if not psutil.pid_exists(int(match["pid"]))])


def _remove(names: Sequence[str]) -> None:
    for name in names:
        eventually(f"nothing runs in {name}", lambda name=name: not _kill_all_in(name))  # type: ignore[misc]
    for name in names:
        _run("ip", "netns", "del", name)


def _kill_all_in(name: str) -> list[int]:
    pids = [int(pid) for pid in _run("ip", "netns", "pids", name).split()]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
