"""A site that delegates: rank 0 and a manager as processes, and peers, which are instances of their own."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodemanager.flux import bindings
from tests.live import over_ssh
from tests.live.elastic import Elastic, Offer
from tests.live.instance import eventually, why_no_flux
from tests.live.manager_process import ManagerProcess
from tests.live.pair import SoloInstance
from tests.live.processes import run_flux, without_flux

OFFERS = (Offer("cpu", "1", "cpu[1-2]"),)
ENDED = {"CD", "F", "CA", "TO"}


class Delegating:
    """Home with one manager, and peers b, c..., all running."""

    def __init__(
        self,
        folder: Path,
        peers: tuple[str, ...],
        policy: str = "",
        peer_lines: str = "",
        scheme: str = "local://",
        ssh: str = over_ssh.SCRIPT,
        checkpoint: str = "1s",
    ) -> None:
        self.folder = folder
        self._ssh = ssh
        self._over_ssh = scheme.startswith("ssh")
        self.peers = {name: SoloInstance(folder, name) for name in peers}
        sections = "".join(
            f"\n[Peer {name}]\nuri = {scheme}{it.path}\n{peer_lines}\n" for name, it in self.peers.items()
        )
        self.elastic = Elastic(folder, OFFERS, policy=policy + sections)
        config = self.elastic.site.flux.bootstrap_dir / "conf.d" / "flux.toml"
        config.write_text(
            config.read_text().replace('checkpoint-period = "10s"', f'checkpoint-period = "{checkpoint}"')
        )
        # Else rank 0 would cancel running jobs when it ends in good order.
        self.elastic._command = ("env", "FLUX_DISABLE_JOB_CLEANUP=1", *self.elastic._command)
        self.manager: ManagerProcess

    def start(self) -> None:
        for peer in self.peers.values():
            peer.start()
        self.elastic.start_head()
        self.start_manager()

    def start_manager(self, *options: str, module: str = "nodemanager") -> ManagerProcess:
        if self._over_ssh:
            script = self.folder / "ssh"
            script.write_text(self._ssh)
            script.chmod(0o700)
            options, module = (f"--ssh={script}", *options), over_ssh.__name__
        self.manager = self.elastic.start_manager(*options, module=module)
        self.manager.until_said("delegation_ready")
        for name in self.peers:
            self.manager.until_said("peer_connected", peer=name)
        return self.manager

    def reap(self) -> None:
        for peer in self.peers.values():
            peer.reap()
        self.elastic.reap()

    @property
    def b(self) -> SoloInstance:
        return self.peers["b"]

    def until_checkpoint(self) -> None:
        """Wait until a kill of rank 0 at home loses nothing that has happened so far."""
        began_at = time.time()
        self.flux("kvs", "put", "test.changed=1")  # without a change there is no checkpoint
        with bindings.connection(self.elastic.site.flux.uri) as handle:
            question = {"key": "kvs-primary"}
            eventually(
                "a checkpoint",
                lambda: (
                    _checkpointed_at(bindings.ask(handle, "content.checkpoint-get", question, timeout_s=10.0))
                    > began_at
                ),
            )

    # --- jobs at home ---

    def flux(self, *command: str, check: bool = True) -> str:
        return run_flux(self.elastic.site.flux.uri, *command, check=check)

    def submit(self, *options: str, to: str = "b") -> str:
        return self.flux("submit", f"--dependency=delegate:{to}", *options)

    def field(self, job: str, field: str) -> str:
        return self.flux("jobs", "-no", f"{{{field}}}", job)

    def state(self, job: str) -> str:
        return self.field(job, "status_abbrev")

    def until(self, job: str, *states: str, within_s: float = 40.0) -> None:
        try:
            eventually(f"{job} is {states}", lambda: self.state(job) in states, within_s)
        except AssertionError as error:
            log = self.flux("job", "eventlog", job, check=False)
            there = {name: peer.flux("jobs", "-a", check=False) for name, peer in self.peers.items()}
            raise AssertionError(f"{error}\nis {self.state(job)}\n{log}\n{there}\n{self.manager.tail()}") from error

    def ends(self, job: str, within_s: float = 40.0) -> tuple[str, str]:
        """Wait for its end; its state and exit code."""
        self.until(job, *ENDED, within_s=within_s)
        return self.state(job), self.field(job, "returncode")

    def output(self, job: str) -> str:
        ran = subprocess.run(
            ["flux", "job", "attach", job],
            check=False,
            capture_output=True,
            text=True,
            env=without_flux() | {"FLUX_URI": self.elastic.site.flux.uri},
        )
        return ran.stdout + ran.stderr

    def copies(self, peer: str = "b") -> list[list[str]]:
        """Every job of a peer: its id, state and urgency."""
        listed = self.peers[peer].flux("jobs", "-ano", "{id.dec} {status_abbrev} {urgency}")
        return [line.split() for line in listed.splitlines()]

    def runs(self, name: str) -> int:
        """How often a job ran that adds a line to this file."""
        file = self.folder / name
        return len(file.read_text().splitlines()) if file.exists() else 0

    def counting(self, name: str, then: str = "true") -> tuple[str, ...]:
        """A command that adds a line to a file, and then does something."""
        return "sh", "-c", f"echo ran >>{self.folder / name}; {then}"


def _checkpointed_at(answer: Any) -> float:
    values = answer["value"]
    latest = values[0] if isinstance(values, list) else values
    return float(latest["timestamp"])


@contextmanager
def delegating(
    peers: tuple[str, ...] = ("b",),
    policy: str = "",
    peer_lines: str = "",
    scheme: str = "local://",
    ssh: str = over_ssh.SCRIPT,
    checkpoint: str = "1s",
) -> Iterator[Delegating]:
    """A running site; skips the test where there is no Flux."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        site = Delegating(Path(folder), peers, policy, peer_lines, scheme, ssh, checkpoint)
        try:
            site.start()
            yield site
        finally:
            site.reap()
