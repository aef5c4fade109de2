"""A site on loopback with short patience: rank 0, the manager as a process of its own, nodes that are processes.

Everything lies in one folder with a short path (sockets), and ``reap`` leaves no process of it behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from nodemanager.cloud.local.port import LocalNodeDriver, NodeRecord
from nodemanager.cloud.local.process import is_alive
from nodemanager.config.load import load_site
from nodemanager.config.text.settings import bracketed
from nodemanager.core.nodes import FluxRank, Launch
from nodemanager.core.notation import expand_hostlist
from nodemanager.flux import bindings
from nodemanager.flux.claim import Owner, owner_of
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.kvs import list_names
from nodemanager.flux.port import RealFluxPort
from nodemanager.flux.setup.bootstrap import write_bootstrap
from nodemanager.join.key_material import make_material
from nodemanager.service.assembly.cluster import with_cluster_uuid
from tests.contract.flux_subjects import MonotonicClock
from tests.live.instance import eventually, free_port, why_no_flux
from tests.live.manager_process import ManagerProcess
from tests.live.networks import Host, Network
from tests.live.processes import END_WITHIN_S, kill_all, run_flux, start, without_flux
from tests.live.witness import Witness, launch_of, slot_of
from tests.paths import ROOT

RPC_WITHIN_S = 10.0
VERB_WITHIN_S = 90.0
HEAD_WITHIN_S = 60.0  # on a busy machine
SHOWN_MAX = 4
EVERY_JOB = 0  # job-list.list: no limit
RESULTS = {1: "COMPLETED", 2: "FAILED", 4: "CANCELED", 8: "TIMEOUT"}  # flux-core's job.h

SITE = """
[Site]
cluster = live
state_dir = state
mode = {mode}
[Flux]
uri = local://{folder}/state/flux/run/local-0
head_address = {head}
port = {port}
{join}
[Cloud]
provider = local
calls_in_flight_max = 4
[Limits]
nodes_max = 24
price_per_hour_max = 100
[Timing]
settle = {settle}
settle_max = 5s
probe = 1s
relist = 3s
boot_timeout = 30s
rejoin_timeout = 20s
create_grace = 3s
orphan_grace = 5s
absences = 2
stale_after = 30s
{timing}
[Policy]
idle_timeout = 1s
stop_lead = 2s
"""

JOIN = """join = service
[Join]
listen = {listen}
addresses = {listen}
renew = 500ms
requests_per_s = 1000
{join}
"""

NODE_TYPE = """
[Node {name}]
cores = {cores}
gpus = {gpus}
memory = 1GiB
price_per_hour = {price}
properties = {name}
billing = {billing}
slots = {slots}
"""


@dataclass(frozen=True, slots=True)
class Offer:
    """A node type with two cores, unless it claims more; its name is its property too."""

    name: str
    price: str
    slots: str
    gpus: int = 0
    cores: int = 2


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What Flux says of a job. ``result`` is "" before it has ended, ``began_at`` None before it ran."""

    result: str
    submitted_at: float
    began_at: float | None
    ended_at: float | None
    slots: tuple[str, ...]  # on which it ran, or runs


class Elastic:
    """One site. It starts with rank 0 down, no manager and no node."""

    def __init__(
        self,
        folder: Path,
        offers: Sequence[Offer],
        settle: str = "500ms",
        billing: str = "4s",
        *,
        by_tickets: bool = False,
        timing: str = "",
        policy: str = "",
        flux: str = "",
        changes: Mapping[str, str] = MappingProxyType({}),
        join: str = "",
        network: Network | None = None,
    ) -> None:
        self._changes = changes
        self._network = network
        # In a network rank 0 and the join service are hosts of their own, so that a node can be cut from either.
        self.head_host = network.add_host("head") if network is not None else None
        self.join_host = network.add_host("join") if network is not None else None
        self._timing = timing
        self._policy = policy
        self._folder = folder
        self._settle = settle
        self._types = "".join(
            NODE_TYPE.format(
                name=offer.name,
                cores=offer.cores,
                gpus=offer.gpus,
                price=offer.price,
                slots=offer.slots,
                billing=billing,
            )
            for offer in offers
        )
        self._port = free_port()
        listen = f"{bracketed(_address(self.join_host))}:{free_port()}"
        self._join = JOIN.format(listen=listen, join=join) if by_tickets else flux.format(folder=folder)
        bootstrap = write_bootstrap(load_site(self._site_file("act")), folder / "state" / "flux")
        self.site = with_cluster_uuid(load_site(self._site_file("act")))
        if by_tickets:
            make_material(self.site, bootstrap.output)
        self._command = bootstrap.start_command
        self._head: psutil.Popen | None = None
        self._managers: list[ManagerProcess] = []
        self.witness = Witness(self.site.state_dir / "cloud")
        self.witness.start()

    def _site_file(self, mode: str) -> Path:
        file = self._folder / f"{mode}.ini"
        if not file.exists():
            site = SITE.format(
                folder=self._folder,
                port=self._port,
                settle=self._settle,
                mode=mode,
                join=self._join,
                head=_address(self.head_host),
                timing=self._timing,
            )
            for line, other in self._changes.items():
                assert line in site
                site = site.replace(line, other)
            file.write_text(f"{site}{self._policy}\n{self._types}", encoding="utf-8")
        return file

    # --- rank 0 ---

    def start_head(self) -> None:
        self._head = start([*_at(self.head_host), *self._command], self._folder / "head.log")
        try:
            eventually("rank 0 runs", lambda: " run " in self.flux("uptime", check=False), HEAD_WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self._folder / 'head.log').read_text(encoding='utf-8')}") from error

    def move_head(self, host: Host) -> None:
        """Do what doc/joining.md says for a rank 0 that gets another address. It starts there the next time."""
        assert self.head_host is not None
        table = self.site.flux.bootstrap_dir / "conf.d" / "flux.toml"
        for file in (self._site_file("act"), table):
            text = file.read_text(encoding="utf-8")
            assert self.head_host.address in text
            file.write_text(text.replace(self.head_host.address, host.address), encoding="utf-8")
        self.verb("rotate-cert")
        self.head_host = host

    def stop_head(self) -> None:
        """End rank 0 in good order, as systemd does."""
        if self._head is not None:
            self._head.send_signal(signal.SIGTERM)
            self._head.wait(END_WITHIN_S)
            self._head = None

    def kill_head(self) -> None:
        """Sudden death of rank 0 with all that it started, as of its machine."""
        assert self._head is not None
        processes = [self._head, *self._head.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # none must see another one end
        kill_all(processes)
        self._head = None

    @property
    def head(self) -> psutil.Popen:
        assert self._head is not None
        return self._head

    # --- managers ---

    def start_manager(
        self, *options: str, module: str = "nodemanager", mode: str = "act", program: str = ""
    ) -> ManagerProcess:
        """Start a manager: this version's by ``module``, or another version's by its ``program``."""
        log = self._folder / f"manager-{len(self._managers) + 1}.log"
        if self._network is not None and module == "nodemanager":
            module, options = "tests.live.in_network", (self._network.prefix, str(self._network.version), *options)
        command = [program] if program else [sys.executable, "-m", module]
        manager = ManagerProcess(start([*command, "--config", str(self._site_file(mode)), *options], log), log)
        self._managers.append(manager)
        return manager

    def start_observer(self) -> ManagerProcess:
        """One that only observes, with a state_dir of its own, at the same local cloud."""
        state = self._folder / "observer"
        state.mkdir()
        (state / "cloud").symlink_to(self.site.state_dir / "cloud")
        own = f"state_dir = observer\ncluster_uuid = {self.site.cluster_uuid}"
        text = self._site_file("observe").read_text(encoding="utf-8").replace("state_dir = state", own)
        text = text.replace("[Cloud]", f"bootstrap_dir = {self.site.flux.bootstrap_dir}\n[Cloud]")
        (self._folder / "observer.ini").write_text(text, encoding="utf-8")
        return self.start_manager(mode="observer")

    def start_join_service(self) -> ManagerProcess:
        log = self._folder / f"join-{len(self._managers) + 1}.log"
        command = [
            *_at(self.join_host),
            sys.executable,
            "-m",
            "nodemanager",
            "join-service",
            "--config",
            str(self._site_file("act")),
        ]
        service = ManagerProcess(start(command, log), log)
        self._managers.append(service)
        service.until_said("join_service_started")
        return service

    def start_verb(self, *arguments: str) -> psutil.Popen:
        """Start another verb; what it prints is read from its output."""
        command = [
            sys.executable,
            "-m",
            "nodemanager",
            *arguments,
            "--config",
            str(self._site_file("act")),
        ]
        return psutil.Popen(
            command, cwd=ROOT, env=without_flux(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def freeze(self, manager: ManagerProcess) -> None:
        """SIGSTOP, but not while it holds the local cloud's lock, for which all others would wait."""
        with self.witness.cloud_at_rest():
            manager.freeze()

    def restart_head_when_it_ends(self) -> None:
        """As a supervisor does."""
        assert self._head is not None
        self._head.wait(VERB_WITHIN_S)
        self.start_head()

    def verb(self, *arguments: str, status: int = 0) -> str:
        """Run another verb to its end; what it printed."""
        ran = subprocess.run(
            [sys.executable, "-m", "nodemanager", *arguments, "--config", str(self._site_file("act"))],
            check=False,
            capture_output=True,
            text=True,
            timeout=VERB_WITHIN_S,
            cwd=ROOT,
            env=without_flux(),
        )
        if ran.returncode != status:
            raise AssertionError(f"{arguments}: status {ran.returncode}: {ran.stderr}\n{self.said()}")
        return ran.stdout + ran.stderr

    def owner(self) -> Owner | None:
        """Who holds the name that lets one manager act."""
        with bindings.connection(self.site.flux.uri) as handle:
            return owner_of(handle, timeout_s=RPC_WITHIN_S)

    # --- what a user does ---

    def submit(
        self,
        *command: str,
        nodes: int = 1,
        requires: Mapping[str, Sequence[str]] | None = None,
        cores: int = 1,
        gpus: int = 0,
        after: int | None = None,
        held: bool = False,
    ) -> int:
        """Submit a job for whole nodes; its id.

        By the jobspec, for that takes some milliseconds: several must come within one settling.
        """
        slot = [{"type": "core", "count": cores}, *([{"type": "gpu", "count": gpus}] if gpus else [])]
        task = {"type": "slot", "count": 1, "label": "task", "with": slot}
        system = {"duration": 0, "cwd": "/", "environment": {"PATH": os.environ["PATH"]}}
        if requires is not None:
            system["constraints"] = requires
        if after is not None:
            system["dependencies"] = [{"scheme": "afterok", "value": str(after)}]
        jobspec = {
            "version": 1,
            "resources": [{"type": "node", "count": nodes, "exclusive": True, "with": [task]}],
            "tasks": [{"command": command, "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": system},
        }
        job = self.flux("job", "submit", f"--urgency={0 if held else 16}", given=json.dumps(jobspec))
        return int(self.flux("job", "id", "--to=dec", job))

    def jobs(self) -> dict[int, JobSeen]:
        """Every job that Flux remembers."""
        attributes = ["result", "t_submit", "t_run", "t_cleanup", "nodelist"]
        listed = self._ask("job-list.list", {"max_entries": EVERY_JOB, "attrs": attributes})["jobs"]
        return {
            job["id"]: JobSeen(
                RESULTS.get(job.get("result"), ""),
                job["t_submit"],
                job.get("t_run"),
                job.get("t_cleanup"),
                tuple(expand_hostlist(job.get("nodelist", ""))),
            )
            for job in listed
        }

    def result(self, job: int) -> str:
        seen = self.jobs().get(job)
        return seen.result if seen is not None else ""

    def flux(self, *command: str, given: str = "", check: bool = True) -> str:
        return run_flux(self.site.flux.uri, *command, given=given, check=check)

    # --- what is there ---

    def ranks(self) -> dict[str, FluxRank]:
        with self._reading() as port:
            return {rank.host: rank for rank in port.ranks()}

    def launches(self) -> tuple[Launch, ...]:
        with self._reading() as port:
            return port.launches()

    def unrecorded(self) -> list[str]:
        """Living nodes whose launch is not on record. Only to be asked while no manager runs."""
        on_record = {launch.id for launch in self.launches()}
        return [node.id for node in self.witness.living() if launch_of(node) not in on_record]

    def keys(self) -> tuple[str, ...]:
        """What the node manager keeps in the KVS."""
        with bindings.connection(self.site.flux.uri) as handle:
            return list_names(handle, "node-manager", timeout_s=RPC_WITHIN_S)

    def processes_of_nodes(self) -> list[psutil.Process]:
        """Inits, user-data and brokers of nodes: whatever names our folder and is neither rank 0 nor a manager."""
        ours = {
            process.pid for process in (self._head, *(manager.process for manager in self._managers)) if process
        }
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                # Those of rank 0 (its modules) are its children.
                if str(self._folder) in " ".join(process.cmdline()) and not ours & {process.pid, process.ppid()}:
                    found.append(process)
        return found

    def kill_node(self, slot: str) -> None:
        """Sudden death, and not by the cloud's doing: every process of the slot's node gets SIGKILL."""
        (node,) = (node for node in self.witness.living() if slot_of(node) == slot)
        assert kill_node(node)

    def what_is_left(self) -> str:
        """What a fleet of no nodes would not have; "" when there is nothing of it."""
        ranks = self.ranks().values()
        left = {
            "nodes": [node.id for node in self.witness.living()],
            "leases": [launch.id for launch in self.launches()],
            "drained": [rank.host for rank in ranks if rank.drain_reason is not None],
            "online": [rank.host for rank in ranks if rank.online],
            "processes": [process.pid for process in self.processes_of_nodes()],
        }
        return "; ".join(f"{what}: {items}" for what, items in left.items() if items)

    def eventually(self, what: str, holds: Callable[[], object], within_s: float = 40.0) -> None:
        """As ``eventually``; a failure shows what the managers said and what is left."""
        try:
            eventually(what, holds, within_s)
        except AssertionError as error:
            left = self.what_is_left()
            raise AssertionError(f"{error}\nleft: {left}\njobs: {self.jobs()}\n{self.said()}") from error

    def said(self) -> str:
        """The ends of the last managers' logs."""
        return "\n".join(manager.tail() for manager in self._managers[-SHOWN_MAX:])

    # --- between tests, and at the end ---

    def clear(self) -> None:
        """Take away what a test left, so that the next one finds rank 0 alone."""
        self.end_managers()
        self._destroy_nodes()
        self.flux("cancel", "--all", check=False)
        eventually("no job is active", lambda: self._ask("job-manager.stats-get")["active_jobs"] == 0)
        eventually("no rank is online", lambda: not any(rank.online for rank in self.ranks().values()))
        self.flux("job", "purge", "--force", "--num-limit=0")
        for rank in self.ranks().values():
            if rank.drain_reason is not None:
                self._ask("resource.undrain", {"targets": str(rank.rank)})
        self.flux("kvs", "unlink", "-Rf", "node-manager")

    def reap(self) -> None:
        """Leave no process behind, whatever happened."""
        self.witness.stop()
        self.end_managers()
        self._destroy_nodes()
        if self._head is not None:
            kill_all([*self._head.children(recursive=True), self._head])
            self._head = None
        kill_all(self.processes_of_nodes())

    def end_managers(self) -> None:
        for manager in self._managers:
            manager.kill()

    def _destroy_nodes(self) -> None:
        driver = self._driver()
        driver.ex_destroy_nodes(driver.list_nodes())

    # --- how ---

    def _driver(self) -> LocalNodeDriver:
        return LocalNodeDriver(self.site.state_dir / "cloud")

    @contextmanager
    def _reading(self) -> Iterator[RealFluxPort]:
        """The product's own port, of which only what changes nothing is called."""
        flux = RealFlux(self.site.flux.uri, self.site.cluster_uuid, MonotonicClock(), timeout_s=RPC_WITHIN_S)
        port = flux.port()
        try:
            yield port
        finally:
            port.close()

    def _ask(self, topic: str, payload: object = None) -> Any:
        with bindings.connection(self.site.flux.uri) as handle:
            return bindings.ask(handle, topic, payload, timeout_s=RPC_WITHIN_S)


def _address(host: Host | None) -> str:
    return host.address if host is not None else "127.0.0.1"


def _at(host: Host | None) -> tuple[str, ...]:
    return host.command if host is not None else ()


def kill_node(node: NodeRecord) -> bool:
    """Sudden death, as of a machine; False for a node that has ended, or has not begun."""
    processes = _processes_of(node)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()  # a machine dies at once: no broker must see its job die first, and start another
    kill_all(processes)
    return bool(processes)


def kill_broker(node: NodeRecord) -> bool:
    """Sudden death of its broker alone, which is started again; False where there is none."""
    brokers = []
    for process in _processes_of(node):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.cmdline()[:1] == ["broker"]:
                brokers.append(process)
    kill_all(brokers)
    return bool(brokers)


def _processes_of(node: NodeRecord) -> list[psutil.Process]:
    if node.init is None or not is_alive(node.init):
        return []
    try:
        init = psutil.Process(node.init.pid)
        return [init, *init.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def an_elastic_site(
    offers: Sequence[Offer],
    *,
    settle: str = "500ms",
    billing: str = "4s",
    by_tickets: bool = False,
    timing: str = "",
    policy: str = "",
    flux: str = "",
    changes: Mapping[str, str] = MappingProxyType({}),
    join: str = "",
    network: Network | None = None,
) -> Iterator[Elastic]:
    """A site whose rank 0 is up, with more of ``[Timing]``, ``[Policy]`` and ``[Flux]`` where those are given.

    ``changes``: lines of the site, with what they are instead.
    Skips the test where there is no Flux. Reaped at the end, come what may.
    """
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        elastic = Elastic(
            Path(folder),
            offers,
            settle,
            billing,
            by_tickets=by_tickets,
            timing=timing,
            policy=policy,
            flux=flux,
            changes=changes,
            join=join,
            network=network,
        )
        try:
            elastic.start_head()
            yield elastic
        finally:
            elastic.reap()
