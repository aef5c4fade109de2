"""Many servers of a real Nova: by a create for each, or by one create and a ticket in each server's metadata.

    FNM_NOVA_VENV=... python -m tests.benchmarks.bench_nova [SERVERS]

Nova has no hypervisor. All of it is one process, so ``CPU`` is the work of its API, conductor, scheduler and
compute service together. ``calls``: how long a client with one connection waits for its calls. This Nova answers a
create when it has scheduled the servers; in production it answers earlier. In the last rows the host has room for
half of the servers.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nodemanager.cloud.openstack.port import cluster_tag
from tests.cloud.openstack.nova.process import FLAVOR, Nova, nova_python, openstack_cloud
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_type

HOST_MIB = 8_192 - 512  # without what Nova reserves for the host
USER_DATA = "#" * 2_200  # as long as ours with a ticket
LIMIT_S = 600.0
POLL_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROW = "{:<44} {:>9} {:>8} {:>13}   {}"


class Bench:
    """Creates servers in both ways, and prints what each costs."""

    def __init__(self, servers: int) -> None:
        self.nova = Nova(nova_python())
        self.servers = servers
        self._cloud = openstack_cloud(self.nova, CLUSTER, CLUSTER_UUID, lambda *_: USER_DATA)
        half = {**FLAVOR, "id": "half", "name": "half", "ram": HOST_MIB // (servers // 2) // 8 * 8}
        self.nova.administer("POST", "/flavors", {"flavor": half})

    def run(self) -> None:
        print(f"{self.servers} servers, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(ROW.format("", "calls, s", "CPU, s", "CPU each, ms", "then"))
        for flavor in (str(FLAVOR["name"]), "half"):
            self._measure(f"a create for each, {flavor}", partial(self._create_each, flavor))
            self._measure("  delete each", self._delete)
            self._measure(f"one create, {flavor}", partial(self._create_all, flavor))
            if flavor != "half":
                self._measure("  a ticket into the metadata of each", self._write_tickets)
            self._measure("  delete each", self._delete)
        self.nova.stop()

    def _create_each(self, flavor: str) -> None:
        """As the manager does it: look for the server, create it, read it."""
        for number in range(self.servers):
            self._cloud.create(a_launch(str(number)), replace(a_type(), size=flavor))

    def _create_all(self, flavor: str) -> None:
        network = self._cloud.driver.network_id("private")
        server = {
            "name": "ada",
            "flavorRef": self._cloud.driver.flavor_id(flavor),
            "imageRef": self._cloud.driver.image_id(a_type().image),
            "networks": [{"uuid": network}],
            "user_data": base64.b64encode(USER_DATA.encode()).decode(),
            "metadata": {f"fnm:{number}": "x" * 36 for number in range(5)},
            "tags": [cluster_tag(CLUSTER)],
            "min_count": 1,
            "max_count": self.servers,
        }
        self._cloud.driver.post_server(server)

    def _write_tickets(self) -> None:
        ticket = {"metadata": {"fnm:ticket": "0" * 64}}
        for server in self._list():
            self.nova.administer("POST", f"/servers/{server['id']}/metadata", ticket)

    def _delete(self) -> None:
        for server in self._list():
            self.nova.administer("DELETE", f"/servers/{server['id']}")

    def _list(self) -> list[dict[str, Any]]:
        servers: list[dict[str, Any]] = self.nova.administer("GET", "/servers/detail?all_tenants=1")["servers"]
        return servers

    def _measure(self, what: str, act: Callable[[], None]) -> None:
        """Print how long the calls took, and Nova's processor time until it has done all that they asked for."""
        began_s, cpu_s = time.monotonic(), self._cpu_s()
        act()
        calls_s = time.monotonic() - began_s
        self._wait(gone=act == self._delete)
        cpu_s = self._cpu_s() - cpu_s
        found = Counter(server["status"] for server in self._list())
        states = ", ".join(f"{count} {state}" for state, count in found.items()) or "none"
        each_ms = f"{1000 * cpu_s / self.servers:.0f}"
        print(ROW.format(what, f"{calls_s:.2f}", f"{cpu_s:.2f}", each_ms, states), flush=True)

    def _wait(self, *, gone: bool) -> None:
        """Wait until no server is being built, or until there is none, by calls that cost Nova little."""
        query = "limit=1" if gone else "limit=1&status=BUILD"
        deadline_s = time.monotonic() + LIMIT_S
        while self.nova.administer("GET", f"/servers?all_tenants=1&{query}")["servers"]:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Nova is not done after {LIMIT_S:g} s")
            time.sleep(POLL_S)

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.nova.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    Bench(int(sys.argv[1]) if len(sys.argv) > 1 else 20).run()
