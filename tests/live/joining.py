"""A yard for joining: rank 0, the join service as a process of its own, nodes by their user-data.

The test is the manager.

Everything lies in one folder with a short path (sockets), and ``reap`` leaves no process of it behind.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from nodemanager.config.load import load_site
from nodemanager.core.facts import NodeMeasured
from nodemanager.core.nodes import LaunchId, RosterEntry
from nodemanager.core.slots import SlotName
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.setup.bootstrap import write_bootstrap
from nodemanager.join import flux_node_join
from nodemanager.join.exchange import ExchangePaths, FileExchange
from nodemanager.join.key_material import MaterialPaths, fingerprint, make_material
from nodemanager.join.user_data import JoinUserData
from tests.contract.flux_subjects import MonotonicClock
from tests.live.instance import WITHIN_S, eventually, free_port
from tests.live.manager_process import ManagerProcess
from tests.live.processes import kill_all, run_flux, start

BEAT_S = 0.5
# As a machine does, it outlives its user-data; and it is what a node that powers itself off kills.
INIT = '"$0"; while :; do sleep 86400; done'
RPC_WITHIN_S = 10.0

SITE = """
[Site]
cluster = live
state_dir = state
[Flux]
head_address = 127.0.0.1
port = {port}
join = service
[Cloud]
provider = local
[Limits]
nodes_max = 4
price_per_hour_max = 1
[Timing]
orphan_grace = {orphan_grace}
manager_silence_max = {silence_max}
[Join]
listen = 127.0.0.1:{join_port}
addresses = 127.0.0.1:{dead_port}, 127.0.0.1:{join_port}
renew = {renew}
requests_per_s = 1000
node_dir = join
hosts_file = hosts
{join}
[Node cloud]
cores = 2
memory = 1GiB
price_per_hour = 0.1
slots = cloud[1-3]
"""


class Node:
    """A machine that runs the user-data of a launch, in a session and a folder of its own."""

    def __init__(self, folder: Path, script: str, name: str) -> None:
        self.folder = folder / name
        self.tmp = self.folder / "t"  # a short path, for sockets lie below it
        self.tmp.mkdir(parents=True)
        self._script = self.folder / "user-data"
        self._script.write_text(script, encoding="utf-8")
        self._script.chmod(0o700)
        self.log = self.folder / "console.log"
        self.process: psutil.Popen | None = None

    def boot(self) -> Node:
        with self.log.open("ab") as log:
            self.process = psutil.Popen(
                ["/bin/sh", "-c", INIT, str(self._script)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.folder), "TMPDIR": str(self.tmp)},
            )
        return self

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def broker(self) -> psutil.Process | None:
        """Its Flux broker; None while there is none."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if "flux-broker" in process.name():
                    return process
        return None

    def processes(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        try:
            return [*self.process.children(recursive=True), self.process]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """The machine loses its power."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        kill_all(processes)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def hosts(self) -> dict[str, str]:
        """The names that its hosts file resolves."""
        file = self.folder / "hosts"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {line.split()[1]: line.split()[0] for line in lines if line and not line.startswith("#")}


class Yard:
    def __init__(
        self,
        folder: Path,
        *,
        join: str = "",
        silence_max: str = "1h",
        orphan_grace: str = "10m",
        renew: str = "200ms",
    ) -> None:
        self.folder = folder
        text = SITE.format(
            port=free_port(),
            join_port=free_port(),
            dead_port=free_port(),
            join=join,
            renew=renew,
            silence_max=silence_max,
            orphan_grace=orphan_grace,
        )
        self.site_file = folder / "site.ini"
        self.site_file.write_text(text, encoding="utf-8")
        self.bootstrap = write_bootstrap(load_site(self.site_file), folder / "state" / "flux")
        self.site = load_site(self.site_file)
        make_material(self.site, self.bootstrap.output)
        self.nodes: list[Node] = []
        self._processes: list[psutil.Popen] = []
        self._scripts = JoinUserData(self.site)
        self._exchange = FileExchange(ExchangePaths(self.site.join.material_dir))
        self._reports: list[tuple[str, str, str]] = []
        self._entries: dict[str, RosterEntry] = {}
        self._head: psutil.Popen | None = None
        self._beating = threading.Event()
        self._lock = threading.Lock()
        self._beat = threading.Thread(target=self._post_for_ever, name="manager", daemon=True)
        self._beat.start()

    # --- rank 0 and the service ---

    def start_head(self) -> None:
        self._head = self._start(self.bootstrap.start_command, "head.log")
        eventually("rank 0 runs", lambda: " run " in self.flux("uptime", check=False))

    def stop_head(self) -> None:
        """In good order: the queue is kept, the followers end."""
        self._end_head(signal.SIGTERM)

    def kill_head(self) -> None:
        self._end_head(signal.SIGKILL)

    def _end_head(self, number: int) -> None:
        assert self._head is not None
        orphans = self._head.children(recursive=True)
        self._head.send_signal(number)
        self._head.wait(WITHIN_S)
        kill_all(orphans)
        self._head = None

    def start_service(self) -> ManagerProcess:
        command = [sys.executable, "-m", "nodemanager.cli.main", "join-service", "--config", str(self.site_file)]
        name = f"service-{len(self._processes)}.log"
        service = ManagerProcess(self._start(command, name), self.folder / name)
        service.until_said("join_service_started")
        return service

    # --- what a manager does ---

    def launch(self, name: str, slot: str, **entry: Any) -> LaunchId:
        """Put a launch on the roster."""
        launch = LaunchId(name)
        until_at = entry.pop("redeemable_until_at", time.time() + 600)
        self._change(
            {name: RosterEntry(launch, SlotName(slot), until_at, **{"may_start": True, "online": False, **entry})}
        )
        return launch

    def change(self, name: str, **entry: Any) -> None:
        self._change({name: replace(self._entries[name], **entry)})

    def end_lease(self, name: str) -> None:
        with self._lock:
            del self._entries[name]
            self._post()

    def fall_silent(self) -> None:
        """The manager dies; the roster that it left stays."""
        self._beating.set()
        self._beat.join()

    def reports(self) -> list[tuple[str, str, str]]:
        """(launch, phase, detail) of all that was reported."""
        for report in self._exchange.reports():
            if isinstance(report, NodeMeasured):
                self._reports.append((report.launch, "measured", str(report.hardware)))
            else:
                self._reports.append((report.launch, str(report.phase), report.detail))
        return self._reports

    def reported(self, launch: str, phase: str) -> list[str]:
        return [detail for of, said, detail in self.reports() if (of, said) == (launch, phase)]

    def _change(self, changed: Mapping[str, RosterEntry]) -> None:
        with self._lock:
            self._entries |= changed
            self._post()

    def _post(self) -> None:
        self._exchange.post(tuple(self._entries.values()), time.time())

    def _post_for_ever(self) -> None:
        while not self._beating.wait(BEAT_S):
            with self._lock:
                self._post()

    # --- nodes ---

    def node(self, launch: LaunchId, **changed: str) -> Node:
        """A machine that will run the launch's user-data, with settings of it changed."""
        script = self._scripts(launch)
        for name, value in changed.items():
            script = script.replace("\nmkdir -p", f"\nexport FLUX_NODE_JOIN_{name}='{value}'\nmkdir -p", 1)
        node = Node(self.folder, script, f"node{len(self.nodes)}")
        self.nodes.append(node)
        return node

    def post(self, what: str, body: Mapping[str, str]) -> dict[str, Any]:
        """One request to the service, as a client makes it."""
        pin = fingerprint(MaterialPaths(self.site.join.material_dir).tls_certificate)
        return flux_node_join.post_json(self.site.join.listen, pin, f"/v1/{what}", dict(body))

    # --- what a user does ---

    def flux(self, *command: str, check: bool = True) -> str:
        return run_flux(self.bootstrap.uri, *command, check=check)

    def online(self) -> set[str]:
        flux = RealFlux(self.bootstrap.uri, self.bootstrap.cluster_uuid, MonotonicClock(), timeout_s=RPC_WITHIN_S)
        with closing(flux.port()) as port:
            return {rank.host for rank in port.ranks() if rank.online}

    def job_state(self, job: str) -> str:
        return self.flux("jobs", "-a", "-no", "{status_abbrev}", job)

    def eventually(self, what: str, holds: Any, within_s: float = 30.0) -> None:
        try:
            eventually(what, holds, within_s)
        except AssertionError as error:
            said = "\n".join(f"--- {node.folder.name}\n{node.said()}" for node in self.nodes)
            logs = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log")))
            raise AssertionError(f"{error}\nreports: {self.reports()}\n{said}\n{logs}") from error

    # --- the end ---

    def reap(self) -> None:
        self._beating.set()
        self._beat.join()
        for node in self.nodes:
            node.kill()
        for process in self._processes:
            if process.is_running():
                kill_all([*process.children(recursive=True), process])
        marked = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.folder) in " ".join(process.info["cmdline"] or [])
        ]
        kill_all(marked)

    def _start(self, command: Sequence[str], log: str) -> psutil.Popen:
        process = start(command, self.folder / log)
        self._processes.append(process)
        return process
