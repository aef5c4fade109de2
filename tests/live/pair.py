"""Independent instances of one broker each, as delegation needs them: home, and peers."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import psutil

from nodemanager.flux.delegate.setup import flux_delegate_path
from tests.live.instance import WITHIN_S, eventually
from tests.live.processes import kill_all, run_flux, start

SETUP = f"""
[ingest.frobnicator]
plugins = ["defaults", "constraints", "{flux_delegate_path()}"]
[job-manager]
plugins = [{{ load = "alloc-bypass.so" }}]
"""


class SoloInstance:
    """One broker with a state directory. ``extra`` is added to its configuration."""

    def __init__(self, directory: Path, name: str, cores: int = 4, extra: str = "", **environment: str) -> None:
        self.directory = directory / name
        self.name = name
        self.path = self.directory / "sock"
        self.uri = f"local://{self.path}"
        self._environment = environment
        self._broker: psutil.Popen | None = None
        for folder in ("conf.d", "state"):
            (self.directory / folder).mkdir(parents=True)
        (self.directory / "conf.d" / "flux.toml").write_text(
            f"""
            [resource]
            noverify = true
            [[resource.config]]
            hosts = "{name}"
            cores = "0-{cores - 1}"
            [kvs]
            checkpoint-period = "1s"
            [sched-fluxion-qmanager]
            queue-policy = "easy"
            {extra}
            """
        )

    def start(self) -> None:
        rundir = self.directory / "run"
        shutil.rmtree(rundir, ignore_errors=True)
        settings = {
            "broker.rc2_none": "1",
            "statedir": f"{self.directory}/state",
            "local-uri": self.uri,
            "hostname": self.name,
            "rundir": str(rundir),
        }
        command = ["env", *(f"{key}={value}" for key, value in self._environment.items())]
        command += ["flux", "broker", "-c", str(self.directory / "conf.d")]
        command += [f"-S{key}={value}" for key, value in settings.items()]
        self._broker = start(command, self.directory / "broker.log")
        eventually(f"{self.name} runs", lambda: " run " in self.flux("uptime", check=False))

    def flux(self, *command: str, check: bool = True) -> str:
        return run_flux(self.uri, *command, check=check)

    def stop(self) -> None:
        """End it in good order: the queue is kept."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        assert self._broker is not None
        self._broker.suspend()

    def thaw(self) -> None:
        assert self._broker is not None
        self._broker.resume()

    def forget_everything(self) -> None:
        """Lose the state of a broker that is down."""
        shutil.rmtree(self.directory / "state")
        (self.directory / "state").mkdir()

    def _signal(self, number: int) -> None:
        assert self._broker is not None
        broker, self._broker = self._broker, None
        inside = broker.children(recursive=True)
        broker.send_signal(number)
        try:
            broker.wait(WITHIN_S)
        finally:
            kill_all([*inside, broker])

    def reap(self) -> None:
        if self._broker is not None and self._broker.is_running():
            if self._broker.status() == psutil.STATUS_STOPPED:
                self._broker.resume()
            kill_all([*self._broker.children(recursive=True), self._broker])
        self._broker = None

    # --- jobs ---

    def submit(self, *options: str) -> str:
        return self.flux("submit", *options)

    def state(self, job: str) -> str:
        return self.flux("jobs", "-no", "{status_abbrev}", job)

    def field(self, job: str, field: str) -> str:
        return self.flux("jobs", "-no", f"{{{field}}}", job)

    def until(self, job: str, state: str) -> None:
        eventually(f"{job} is {state}", lambda: self.state(job) == state)
