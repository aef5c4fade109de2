"""A MiniCluster whose pods are real Flux brokers on loopback, and a manager as a process of its own.

Only Kubernetes is simulated: the API server and the operator of ``tests/cloud/minicluster``. The brokers have the
operator's configuration: ``mini-[0-3]``, a flat tree, quorum 1, and a socket of the lead broker.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from nodemanager.core.notation import parse_idset
from nodemanager.flux import bindings
from nodemanager.flux.kvs import list_names
from tests.cloud.minicluster.api_server import MANAGER_ROLE, MINICLUSTERS, ApiServer
from tests.cloud.minicluster.operator import NAMESPACE, Operator, a_minicluster
from tests.live.instance import eventually, free_port
from tests.live.manager_process import ManagerProcess
from tests.live.processes import kill_all, run_flux, start

NAME = "mini"
CORES = 2
RPC_WITHIN_S = 10.0
SITE = """
[Site]
cluster = live
cluster_uuid = 33333333-3333-4333-8333-333333333333
state_dir = state
mode = act
[Flux]
uri = local://{folder}/head.sock
[Cloud]
provider = minicluster
name = mini
namespace = flux
kubeconfig = kubeconfig
call_timeout = 10s
[Limits]
nodes_max = {nodes}
price_per_hour_max = 100
[Timing]
settle = {settle}
probe = 1s
relist = 3s
boot_timeout = {boot_timeout}
rejoin_timeout = 5s
create_grace = 3s
absences = 2
stale_after = 1m
[Policy]
idle_timeout = 1s
[Web]
listen = off
[Node pod]
slots = mini-[1-{nodes}]
cores = {cores}
memory = 1GiB
price_per_hour = 0.10
billing = 1s
"""


class Pods:
    """Runs each pod's broker. A pod's bash ignores SIGTERM, so a broker ends by SIGKILL only."""

    def __init__(self, folder: Path, max_size: int, name: str = NAME) -> None:
        self._folder = folder
        self._name = name
        self._brokers: dict[int, psutil.Popen] = {}
        self._lock = threading.Lock()
        certificate = folder / "curve.cert"
        subprocess.run(["flux", "keygen", certificate], check=True, capture_output=True)
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        (folder / "conf.d").mkdir()
        (folder / "flux-state").mkdir()
        (folder / "conf.d" / "flux.toml").write_text(
            f"""
            [bootstrap]
            curve_cert = "{certificate}"
            hosts = [
                {{ host = "{name}-0", bind = "{endpoint}", connect = "{endpoint}" }},
                {{ host = "{name}-[1-{max_size - 1}]" }},
            ]
            [resource]
            noverify = true
            [[resource.config]]
            hosts = "{name}-[0-{max_size - 1}]"
            cores = "0-{CORES - 1}"
            """
        )

    def start(self, index: int) -> None:
        name = f"{self._name}-{index}"
        rundir = self._folder / f"run-{index}"
        shutil.rmtree(rundir, ignore_errors=True)
        settings = {"hostname": name, "rundir": str(rundir), "tbon.topo": "kary:256", "broker.quorum": "1"}
        if index == 0:
            settings |= {"broker.rc2_none": "1", "statedir": f"{self._folder}/flux-state"}
            settings |= {"local-uri": f"local://{self._folder}/head.sock"}
        command = ["flux", "broker", "-c", str(self._folder / "conf.d")]
        command += [f"-S{key}={value}" for key, value in settings.items()]
        with self._lock:
            self._brokers[index] = start(command, self._folder / f"{name}.log")

    def alive(self, index: int) -> bool:
        broker = self._brokers.get(index)
        return broker is not None and broker.poll() is None

    def kill(self, index: int) -> None:
        with self._lock:
            broker = self._brokers.pop(index, None)
        if broker is not None and broker.is_running():
            kill_all([*broker.children(recursive=True), broker])
            broker.wait(RPC_WITHIN_S)

    def reap(self) -> None:
        for index in list(self._brokers):
            self.kill(index)


class LiveMiniCluster:
    """Starts with the lead broker alone."""

    def __init__(self, folder: Path, max_size: int = 4, boot_timeout: str = "30s", settle: str = "200ms") -> None:
        self.folder = folder
        self.uri = f"local://{folder}/head.sock"
        self.api = ApiServer()
        self.pods = Pods(folder, max_size)
        self.operator = Operator(self.api, NAME, self.pods, grace_s=0.5)
        self.rotate_token("token-1")
        self.api.store.put(MINICLUSTERS, NAMESPACE, a_minicluster(NAME, 1, maxSize=max_size))
        self._managers: list[ManagerProcess] = []
        self._write_site(max_size - 1, boot_timeout, settle)

    def _write_site(self, nodes: int, boot_timeout: str, settle: str) -> None:
        text = SITE.format(folder=self.folder, nodes=nodes, cores=CORES, boot_timeout=boot_timeout, settle=settle)
        (self.folder / "site.ini").write_text(text, encoding="utf-8")
        config: dict[str, Any] = {
            "current-context": "live",
            "contexts": [{"name": "live", "context": {"cluster": "live", "user": "live"}}],
            "clusters": [{"name": "live", "cluster": {"server": self.api.url}}],
            "users": [{"name": "live", "user": {"tokenFile": "token"}}],
        }
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")

    def rotate_token(self, token: str) -> None:
        """Replace the manager's token. The old one is refused from now on."""
        (self.folder / "token").write_text(token, encoding="utf-8")
        self.api.tokens = {"admin": ("admin", None), token: ("manager", MANAGER_ROLE)}

    def start(self) -> None:
        """Start the operator, and with it the lead broker."""
        self.operator.start()
        self.eventually("the lead broker runs", lambda: " run " in self.flux("uptime", check=False))

    def start_manager(self) -> ManagerProcess:
        log = self.folder / f"manager-{len(self._managers) + 1}.log"
        command = [sys.executable, "-m", "nodemanager", "run", "--config", str(self.folder / "site.ini")]
        manager = ManagerProcess(start(command, log), log)
        self._managers.append(manager)
        return manager

    # --- what there is ---

    @property
    def size(self) -> int:
        return int(self.operator.shown()["spec"]["size"])

    def sizes(self) -> list[int]:
        """The sizes that the manager has asked for."""
        return [int(call.body["spec"]["size"]) for call in self.api.patches()]

    def online(self) -> frozenset[int]:
        return frozenset(parse_idset(self.ask("resource.status")["online"]))

    def drained(self) -> frozenset[int]:
        drains = self.ask("resource.status")["drain"]
        return frozenset(rank for ranks in drains for rank in parse_idset(ranks))

    def keys(self) -> tuple[str, ...]:
        with bindings.connection(self.uri) as handle:
            return list_names(handle, "node-manager.leases", timeout_s=RPC_WITHIN_S)

    def is_small_again(self) -> bool:
        """Whether only the lead broker is left, and nothing of the other pods: no drain and no lease."""
        return self.size == 1 and self.operator.pods().keys() == {0} and not (self.drained() or self.keys())

    # --- what a user does ---

    def flux(self, *command: str, check: bool = True) -> str:
        return run_flux(self.uri, *command, check=check)

    def submit(self, *command: str, nodes: int = 1, requires: str = "") -> str:
        """Submit a job for whole nodes; its id."""
        where = [f"--requires={requires}"] if requires else []
        return self.flux("submit", f"-N{nodes}", "--exclusive", *where, *command)

    def result(self, job: str) -> str:
        return self.flux("jobs", "-no", "{result}", job)

    def ranks_of(self, job: str) -> frozenset[int]:
        return frozenset(parse_idset(self.flux("jobs", "-no", "{ranks}", job)))

    def ask(self, topic: str) -> Any:
        with bindings.connection(self.uri) as handle:
            return bindings.ask(handle, topic, None, timeout_s=RPC_WITHIN_S)

    def eventually(self, what: str, holds: Callable[[], object], within_s: float = 60.0) -> None:
        try:
            eventually(what, holds, within_s)
        except AssertionError as error:
            said = "\n".join(manager.tail() for manager in self._managers[-2:])
            pods = {index: pod["status"]["phase"] for index, pod in self.operator.pods().items()}
            raise AssertionError(f"{error}\nsizes: {self.sizes()}, pods: {pods}\n{said}") from error

    def reap(self) -> None:
        for manager in self._managers:
            manager.kill()
        self.operator.stop()
        self.pods.reap()
        self.api.stop()
