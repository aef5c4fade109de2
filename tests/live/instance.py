"""A small elastic Flux instance on loopback: rank 0, and slots whose brokers a test starts, stops and kills."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from nodemanager.core.notation import parse_idset
from nodemanager.flux import bindings
from nodemanager.flux.handles import direct
from nodemanager.flux.parse.versions import (
    GPUS_IN_SCHED_SIMPLE,
    WAIT_STATUS_OF_EXCEPTION,
    named_broker,
    parse_version,
)
from tests.live.processes import kill_all, run_flux, start

SLOT_CORES = 2
WITHIN_S = 20.0
# In the order in which they are unloaded, and what the resource modules are loaded with.
FLUXION = ("sched-fluxion-qmanager", "sched-fluxion-feasibility", "sched-fluxion-resource")
# Prints the name of the slot in which it runs, in every version of flux-core.
SLOT_NAME = ("sh", "-c", "flux overlay lookup $(flux getattr rank)")
FLUXION_OPTIONS = dict.fromkeys(FLUXION[1:], ("load-allowlist=node,core,gpu",))


def why_no_flux() -> str:
    """Why no instance can be started here; "" if one can."""
    if shutil.which("flux") is None:
        return "no flux on PATH"
    try:
        direct.load()
    except bindings.BindingsMissing as missing:
        return str(missing)
    return ""


def flux_version() -> str:
    """The flux-core on PATH: "flux-core 0.88.0"."""
    said = subprocess.run(["flux", "--version"], check=True, capture_output=True, text=True).stdout
    return f"flux-core {said.split()[1]}"


def schedules_gpus() -> bool:
    """Whether the scheduler of the flux on PATH knows GPUs."""
    version = parse_version(flux_version())
    return version is None or version >= GPUS_IN_SCHED_SIMPLE


def carries_wait_status() -> bool:
    """Whether an exception of the flux on PATH can carry the wait status with which it ends a job."""
    version = parse_version(flux_version())
    return version is None or version >= WAIT_STATUS_OF_EXCEPTION


def eventually(what: str, holds: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait for a condition that other processes bring about; fail loudly when it does not come."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(0.02)


class LiveInstance:
    """Rank 0 and ``slots`` placeholders "slot1".. of ranks 1.., in a directory with a short path (sockets).

    ``fan_out``: of the tree of brokers; 0 if all slots are children of rank 0.
    """

    def __init__(self, directory: Path, slots: int = 3, fan_out: int = 0) -> None:
        self.directory = directory
        self.uri = f"local://{directory}/head.sock"
        self._directory = directory
        self._slots = slots
        self._fan_out = fan_out
        self._brokers: dict[str, psutil.Popen] = {}
        self._schedulers: tuple[str, ...] | None = None
        self._write_config()

    def _write_config(self) -> None:
        certificate = self._directory / "curve.cert"
        subprocess.run(["flux", "keygen", certificate], check=True, capture_output=True)
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        (self._directory / "state").mkdir()
        (self._directory / "conf.d").mkdir()
        (self._directory / "conf.d" / "flux.toml").write_text(
            f"""
            [bootstrap]
            curve_cert = "{certificate}"
            hosts = [
                {{ host = "head", bind = "{endpoint}", connect = "{endpoint}" }},
                {self._hosts()}
            ]
            {self._tree()}
            [resource]
            noverify = true
            exclude = "0"
            [[resource.config]]
            hosts = "head,slot[1-{self._slots}]"
            cores = "0-{SLOT_CORES - 1}"
            [kvs]
            checkpoint-period = "1s"
            [sched-fluxion-qmanager]
            queue-policy = "easy"
            """
        )

    def _hosts(self) -> str:
        if not self._fan_out:
            return f'{{ host = "slot[1-{self._slots}]" }},'
        # Any of them may be a parent, so each has an endpoint of its own.
        ports = free_ports(self._slots)
        places = (f"tcp://127.0.0.1:{port}" for port in ports)
        lines = (f'{{ host = "slot{n}", bind = "{it}", connect = "{it}" }},' for n, it in enumerate(places, 1))
        return "\n".join(lines)

    def _tree(self) -> str:
        return f'[tbon]\ntopo = "kary:{self._fan_out}"' if self._fan_out else ""

    # --- brokers ---

    def start_head(self) -> None:
        # Its rc2 is none: it runs until it is told to end, as a system instance does.
        settings = {"broker.quorum": "1", "broker.rc2_none": "1", "statedir": f"{self._directory}/state"}
        self._start_broker("head", settings | {"local-uri": self.uri})
        eventually("rank 0 answers", self._head_runs, 3 * WITHIN_S)

    def _head_runs(self) -> bool:
        return " run " in self._flux("uptime", check=False)

    def start_slot(self, rank: int) -> None:
        """Start the broker of a slot and wait until its rank is online."""
        self.begin_slot(rank)
        eventually(f"rank {rank} is online", lambda: rank in self.online())

    def begin_slot(self, rank: int) -> None:
        """Start the broker of a slot."""
        name = f"slot{rank}"
        self._start_broker(name, {"local-uri": f"local://{self._directory}/{name}.sock"})

    def _start_broker(self, name: str, settings: dict[str, str]) -> None:
        if (former := self._brokers.pop(name, None)) is not None:
            former.wait(WITHIN_S)
        rundir = self._directory / f"run-{name}"
        shutil.rmtree(rundir, ignore_errors=True)
        settings |= {"rundir": str(rundir)}
        begin, end = named_broker("flux", name, parse_version(flux_version()))
        command = [*begin, "-c", str(self._directory / "conf.d"), *end]
        command += [f"-S{key}={value}" for key, value in settings.items()]
        self._brokers[name] = start(command, self._directory / f"{name}.log")

    def broker(self, name: str) -> psutil.Process:
        return self._brokers[name]

    def stop_head(self) -> None:
        """End rank 0 in good order: the queue is kept in the statedir. Its followers end too."""
        self._signal("head", signal.SIGTERM)

    def kill_head(self) -> None:
        self._signal("head", signal.SIGKILL)

    def kill_slot(self, rank: int) -> None:
        self._signal(f"slot{rank}", signal.SIGKILL)

    def freeze_slot(self, rank: int) -> None:
        """Let a broker hang: connected, and silent."""
        self._brokers[f"slot{rank}"].send_signal(signal.SIGSTOP)

    def _signal(self, name: str, number: int) -> None:
        broker = self._brokers.pop(name)
        orphans = broker.children(recursive=True)
        broker.send_signal(number)
        try:
            broker.wait(WITHIN_S)
        finally:
            kill_all([*orphans, broker])

    def clear(self) -> None:
        """Take away what a test left: slots' brokers, jobs, the memory of jobs, drains."""
        for name in [name for name in self._brokers if name != "head"]:
            self._signal(name, signal.SIGKILL)
        self._flux("cancel", "--all", check=False)
        eventually("no slot is online", lambda: self.online() <= {0})
        eventually("no job is active", lambda: self._ask("job-manager.stats-get")["active_jobs"] == 0)
        self._flux("job", "purge", "--force", "--num-limit=0")
        for ranks in self._ask("resource.status")["drain"]:
            self._ask("resource.undrain", {"targets": ranks})

    def reap(self) -> None:
        """Leave no process of the instance behind."""
        brokers = list(self._brokers.values())
        self._brokers.clear()
        kill_all([child for broker in brokers if broker.is_running() for child in broker.children(recursive=True)])
        kill_all(brokers)

    # --- what a user does ---

    def submit(self, *options: str) -> int:
        """Submit ``sleep`` by ``flux submit`` options; the job's id."""
        job = self._flux("submit", *options, "sleep", "600")
        return int(self._flux("job", "id", "--to=dec", job))

    def run(self, *command: str) -> str:
        return self._flux(*command)

    def unload_scheduler(self) -> None:
        """Whichever there is: flux-core's own, or Fluxion with its three modules."""
        for module in self._scheduler():
            self._flux("module", "remove", module)

    def load_scheduler(self) -> None:
        """The one that was unloaded."""
        for module in reversed(self._scheduler()):
            self._flux("module", "load", module, *FLUXION_OPTIONS.get(module, ()))

    @property
    def has_fluxion(self) -> bool:
        return bool({*FLUXION} & {*self._scheduler()})

    def _scheduler(self) -> tuple[str, ...]:
        """Its modules, those that lean on others first."""
        if self._schedulers is None:
            loaded = {line.split()[0] for line in self._flux("module", "list").splitlines()}
            self._schedulers = tuple(it for it in ("sched-simple", *FLUXION) if it in loaded)
        return self._schedulers

    def online(self) -> frozenset[int]:
        return frozenset(parse_idset(self._ask("resource.status")["online"]))

    def _ask(self, topic: str, payload: object = None) -> Any:
        with bindings.connection(self.uri) as handle:
            return bindings.ask(handle, topic, payload, timeout_s=WITHIN_S)

    def _flux(self, *command: str, check: bool = True) -> str:
        return run_flux(self.uri, *command, check=check)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
