"""The real Nova that tests share. It starts with the first test that needs it, and ends with the tests' process."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests

from nodemanager.cloud.common.request import PortSettings, UserDataSource
from nodemanager.cloud.openstack.driver import Login
from nodemanager.cloud.openstack.port import OpenStackCloud, OpenStackPlacement
from nodemanager.core.nodes import ProviderId
from nodemanager.service.assembly.ports import SystemClock
from tests.paths import ROOT

SERVER = Path(__file__).with_name("server.py")
WAIT_S = 60.0
POLL_S = 0.1
PASSWORD = "not-a-secret"
# As the node types of the contract ask for them.
FLAVOR = {"id": "small", "name": "local.small", "vcpus": 1, "ram": 64, "disk": 1}
LARGER = {"id": "large", "name": "local.large", "vcpus": 2, "ram": 128, "disk": 1}
FLAVORS: tuple[dict[str, Any], ...] = (FLAVOR, LARGER)


def nova_python() -> Path:
    """Return the Python of an environment with Nova. Skip the test if there is none."""
    python = Path(os.environ.get("FNM_NOVA_VENV", ROOT / ".venv-nova")) / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no Nova in {python.parent.parent}: bin/test --openstack installs it")
    return python


class Nova:
    """A running Nova. ``url`` is also the address of its identity service."""

    def __init__(self, python: Path, page: int = 1_000) -> None:
        self._process = subprocess.Popen(
            [python, SERVER, "0", str(page)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        atexit.register(self.stop)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for line in self._process.stdout:  # ends with the process
            if line.startswith("READY "):
                self.url = f"http://127.0.0.1:{line.split()[1]}"
                self.project_id: str = self._call("GET", "/control")["project"]
                for flavor in FLAVORS:
                    self.administer("POST", "/flavors", {"flavor": flavor})
                self.allow(-1)
                return
        pytest.fail(f"Nova did not start: {self._process.stderr.read()[-2000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def turn(self, **knobs: object) -> None:
        self._call("POST", "/control", knobs)

    def calls(self) -> list[tuple[str, str, str]]:
        """Return the method, path and query of clients' calls since the last call of this method."""
        return [(method, path, query) for method, path, query in self._call("GET", "/control")["calls"]]

    def administer(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Make a call of Nova's API as its administrator."""
        return self._call(method, f"/v2.1{path}", body)

    def empty(self) -> None:
        """Delete every server and reset all faults."""
        self.turn(lose=0, throttle=0, times=0)
        self.until(self._deleted, "the end of all servers")

    def allow(self, instances: int, cores: int = -1) -> None:
        """Set the tenants' quotas; -1 means none."""
        quota = {"instances": instances, "cores": cores, "ram": -1}
        self.administer("PUT", f"/os-quota-sets/{self.project_id}", {"quota_set": quota})

    def ask_of_hosts(self, size: str, specs: Mapping[str, str]) -> None:
        """Set what servers of a flavor need beside cores, memory and disk; nothing if ``specs`` is empty."""
        path = next(f"/flavors/{flavor['id']}/os-extra_specs" for flavor in FLAVORS if flavor["name"] == size)
        for name in self.administer("GET", path)["extra_specs"]:
            self.administer("DELETE", f"{path}/{name}")
        if specs:
            self.administer("POST", path, {"extra_specs": specs})

    def hosts(self, change: str) -> None:
        """Allow the scheduler all hosts ("enable") or none ("disable")."""
        for service in self.administer("GET", "/os-services?binary=nova-compute")["services"]:
            self.administer("PUT", f"/os-services/{change}", {"host": service["host"], "binary": "nova-compute"})

    def add_untagged(self) -> ProviderId:
        """Create somebody else's server in the same project."""
        image = self._call("GET", "/image/v2/images")["images"][0]["id"]
        network = self._call("GET", "/network/v2.0/networks")["networks"][0]["id"]
        server = {"name": "x", "flavorRef": FLAVOR["id"], "imageRef": image, "networks": [{"uuid": network}]}
        return ProviderId(self.administer("POST", "/servers", {"server": server})["server"]["id"])

    def until(self, reached: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not reached():
            if time.monotonic() > deadline_s:
                pytest.fail(f"waited {WAIT_S:g} s in vain for {what}")
            time.sleep(POLL_S)

    def _deleted(self) -> bool:
        servers = self.administer("GET", "/servers?all_tenants=1")["servers"]
        for server in servers:
            with contextlib.suppress(requests.HTTPError):  # already deleted, or not deletable yet
                self.administer("DELETE", f"/servers/{server['id']}")
        return not servers

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        headers = {"X-Control": "1", "OpenStack-API-Version": "compute 2.52"}
        reply = requests.request(method, self.url + path, json=body, headers=headers, timeout=WAIT_S)
        reply.raise_for_status()
        return reply.json() if reply.content else {}


def openstack_cloud(
    nova: Nova, cluster: str, cluster_uuid: str, user_data: UserDataSource, **changes: str | bool
) -> OpenStackCloud:
    """Return a port of this Nova that accepts node types of any name."""
    login = Login(auth_url=nova.url, user="demo", secret=PASSWORD, project="demo", region="RegionOne")
    return OpenStackCloud(
        replace(login, **changes),  # type: ignore[arg-type]
        PortSettings(cluster, cluster_uuid, user_data, SystemClock(), sleep=lambda _: None),
        defaultdict(lambda: OpenStackPlacement(("private",))),
    )


@cache
def shared_nova() -> Nova:
    return Nova(nova_python())
