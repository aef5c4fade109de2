"""The demo on a real Flux: rank 0 on the loopback interface, and nodes that are processes on this machine."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudState
from nodemanager.core.ports import CloudPort
from nodemanager.flux.setup.bootstrap import Bootstrap, write_bootstrap
from nodemanager.service.assembly.cluster import with_cluster_uuid
from nodemanager.service.assembly.ports import SitePorts, make_ports

CONFIG = Path(__file__).parents[2] / "config"
LOCAL = CONFIG / "local.ini"
HEAD_UP_S = 20.0
ENSEMBLE_LOG = "surrogate.log"

# (seconds after the start, arguments of flux submit)
SUBMISSIONS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.0, ("-n1", "sleep", "4")),
    (0.0, ("-N3", "-x", "sleep", "6")),
    (0.0, ("-n1", "--urgency=0", "true")),
    (3.0, ("-n1", "-g1", "--requires=gpu", "sleep", "3")),
    (12.0, ("-n1", "-g1", "--requires=gpu", "sleep", "3")),
    (13.0, ("--cc=1-6", "-n1", "sleep", "1")),
)
LOSE_A_NODE_AT_S = 9.0
PEER = "b"
PEERS = {PEER: "0.04", "c": "0.10"}  # the price per core-hour of each
AT_PEER_S = 1.0
# For the other instance: one that ends well, one that ends with exit code 3, and one that may run in any peer.
PEER_SUBMISSIONS: tuple[tuple[str, ...], ...] = (
    (f"--dependency=delegate:{PEER}", "-n1", "sh", "-c", "echo this is $(flux getattr hostname); sleep 3"),
    (f"--dependency=delegate:{PEER}", "-n1", "sh", "-c", "sleep 2; exit 3"),
    ("--dependency=delegate:any", "-n2", "sleep", "2"),
)
ENSEMBLE_AT_S = 2.0  # the example of doc/ensembles.md


@dataclass
class RealSetup:
    """A real Flux. ``step`` submits jobs by ``flux submit``, runs an ensemble, and kills one node once.

    Some jobs run in other instances, the peers.
    """

    site: Site
    ports: SitePorts
    flux: str
    folder: Path
    ensemble: subprocess.Popen[bytes] | None = None
    held: int = 1
    began_s: float = field(default_factory=time.monotonic)
    submitted: int = 0
    lost: bool = False
    delegated: list[str] = field(default_factory=list)

    def step(self) -> None:
        age_s = time.monotonic() - self.began_s
        while self.submitted < len(SUBMISSIONS) and SUBMISSIONS[self.submitted][0] <= age_s:
            self._submit(SUBMISSIONS[self.submitted][1])
            self.submitted += 1
        if not self.delegated and age_s >= AT_PEER_S:
            self.delegated = [self._submit(arguments) for arguments in PEER_SUBMISSIONS]
        if self.ensemble is None and age_s >= ENSEMBLE_AT_S:
            self.ensemble = self._run_ensemble()
        if not self.lost and age_s >= LOSE_A_NODE_AT_S:
            self.lost = True
            cloud = _only_cloud(self.ports)
            running = [node for node in cloud.list_nodes() if node.state is CloudState.RUNNING]
            if running:
                # Not ordered by the manager, which just sees a dead node.
                cloud.destroy(running[0].provider_id)

    def has_submitted_all(self) -> bool:
        ran = self.ensemble is not None and self.ensemble.poll() is not None
        return ran and bool(self.delegated) and self.submitted == len(SUBMISSIONS)

    def _run_ensemble(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nodemanager", "ensemble", "run", str(CONFIG / "surrogate.yaml")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / ENSEMBLE_LOG).open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own list of arguments
                [*command, "--uri", self.site.flux.uri], cwd=self.folder, stdout=log, stderr=log, env=environment
            )

    def close(self) -> None:
        """Show what the delegated jobs and the ensemble did, and end the ensemble if it still runs."""
        if self.delegated:
            print("Jobs that ran in other instances, as flux jobs shows them here:")
            columns = "{id.f58:>12} {status:>10} {returncode:>3} {nodelist:>5} {runtime!F:>8} {user.delegated}"
            print(self._flux("jobs", "-o", columns, *self.delegated), end="")
            print(
                f"and flux job attach of {self.delegated[0]}: {self._flux('job', 'attach', self.delegated[0])}",
                end="",
            )
        if self.ensemble is not None:
            self.ensemble.terminate()
            self.ensemble.wait()
            print("What ensemble run of config/surrogate.yaml printed:")
            print((self.folder / ENSEMBLE_LOG).read_text(), end="")

    def _submit(self, arguments: tuple[str, ...]) -> str:
        return self._flux("submit", *arguments).strip()

    def _flux(self, *arguments: str) -> str:
        ran = subprocess.run(  # noqa: S603 - our own list of arguments
            [self.flux, *arguments],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "FLUX_URI": self.site.flux.uri},
        )
        return ran.stdout


@contextmanager
def real_setup() -> Iterator[RealSetup]:
    """Start rank 0 in a temporary folder, and stop everything at the end."""
    flux = shutil.which("flux")
    if flux is None:
        raise SystemExit("bin/demo --real needs flux-core on PATH")
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        site, bootstrap = _prepare_site(Path(folder))
        commands = [bootstrap.start_command, *(_peer_command(flux, Path(folder), peer) for peer in PEERS)]
        brokers = [_start(command) for command in commands]
        try:
            _wait_for(flux, bootstrap.uri)
            for peer in PEERS:
                _wait_for(flux, f"local://{folder}/{peer}/socket")
            ports = make_ports(site)
            setup = RealSetup(site, ports, flux, Path(folder))
            try:
                yield setup
            finally:
                setup.close()
            cloud = _only_cloud(ports)
            for node in cloud.list_nodes():
                cloud.destroy(node.provider_id)
        finally:
            for broker in brokers:
                broker.send_signal(signal.SIGTERM)
            for broker in brokers:
                broker.wait(HEAD_UP_S)


def _only_cloud(ports: SitePorts) -> CloudPort:
    """Return a port to the demo's only cloud."""
    (cloud,) = ports.clouds.values()
    return cloud()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - commands of ours
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _peer_command(flux: str, folder: Path, peer: str) -> list[str]:
    """Write the configuration of a peer, an instance of one broker. Returns the command that starts it."""
    home = folder / peer
    (home / "conf.d").mkdir(parents=True)
    (home / "conf.d" / "flux.toml").write_text(
        f'[resource]\nnoverify = true\n[[resource.config]]\nhosts = "{peer}"\ncores = "0-3"\n'
    )
    settings = {
        "broker.rc2_none": "1",
        "local-uri": f"local://{home}/socket",
        "hostname": peer,
        "rundir": str(home / "run"),
        "statedir": str(home),
    }
    return [flux, "broker", "-c", str(home / "conf.d"), *(f"-S{key}={value}" for key, value in settings.items())]


def _prepare_site(folder: Path) -> tuple[Site, Bootstrap]:
    """Write the local site, with short times, and its bootstrap into the folder."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(LOCAL)
    settings["Site"]["state_dir"] = "state"
    settings["Flux"].update({"uri": f"local://{folder}/state/flux/run/local-0", "port": str(_free_port())})
    settings["Timing"].update({"probe": "1s", "relist": "5s"})
    settings["Policy"].update({"idle_timeout": "3s", "stop_lead": "4s"})
    for peer, price in PEERS.items():
        settings[f"Peer {peer}"] = {"uri": f"local://{folder}/{peer}/socket", "price_per_core_hour": price}
    file = folder / "site.ini"
    with file.open("w") as written:
        settings.write(written)
    bootstrap = write_bootstrap(load_site(file), folder / "state" / "flux")
    return with_cluster_uuid(load_site(file)), bootstrap


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(flux: str, uri: str) -> None:
    deadline_s = time.monotonic() + HEAD_UP_S
    while time.monotonic() < deadline_s:
        asked = subprocess.run(  # noqa: S603 - our own list of arguments
            [flux, "uptime"], capture_output=True, text=True, env={**os.environ, "FLUX_URI": uri}, check=False
        )
        if " run " in asked.stdout:
            return
        time.sleep(0.1)
    raise SystemExit(f"rank 0 did not come up within {HEAD_UP_S:g} s at {uri}")
