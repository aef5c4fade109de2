"""Runs the commands of a site that wake a host, put it to sleep, and tell whether it is awake.

No shell reads them: the site's words are split once, and ``{node}`` in a word becomes the host's name.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodemanager.config.providers.static import NODE
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError

PROBES_AT_ONCE = 32
PROBE_TIMEOUT_LEAST_S = 1.0
_AWAKE, _ASLEEP = 0, 1  # exit statuses of a probe; after any other it is not known
_SHOWN = 300  # bytes at the end of what a failed command printed


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. ``status`` is None if it was killed because it took too long."""

    status: int | None
    said: str  # the end of what it printed

    def describe(self, what: str, host: str) -> str:
        """Say how the command ended, for people."""
        end = "ran too long and was killed" if self.status is None else f"exit status {self.status}"
        return f"{what} of {host}: {end}" + (f": {self.said}" if self.said else "")


@dataclass(frozen=True, slots=True)
class HostCommands:
    """A site's commands. ``folder``: where they run; ``timeout_s``: how long each may take."""

    wake: str
    sleep: str
    probe: str  # "": whether a host is awake is only known from the other two
    folder: Path
    timeout_s: float

    def run_wake(self, host: str, script: str) -> Ran:
        """Wake a host. The command reads the host's user-data from its standard input."""
        return self._run("wake", self.wake, host, self.timeout_s, script)

    def run_sleep(self, host: str) -> Ran:
        """Put a host to sleep."""
        return self._run("sleep", self.sleep, host, self.timeout_s)

    def probe_all(self, hosts: Sequence[str]) -> dict[str, bool]:
        """Ask which hosts are awake, several at once. A host that cannot be told is left out."""
        if not hosts or not self.probe:
            return {}
        rounds = math.ceil(len(hosts) / PROBES_AT_ONCE)
        timeout_s = max(PROBE_TIMEOUT_LEAST_S, self.timeout_s / rounds)
        with ThreadPoolExecutor(min(len(hosts), PROBES_AT_ONCE), "probe") as pool:
            ran = pool.map(lambda host: self._run("probe", self.probe, host, timeout_s), hosts)
            statuses = {host: it.status for host, it in zip(hosts, ran, strict=True)}
        return {host: status == _AWAKE for host, status in statuses.items() if status in (_AWAKE, _ASLEEP)}

    def missing_programs(self) -> Iterator[str]:
        """Name the commands whose program is not there, one text each."""
        given = {"wake": self.wake, "sleep": self.sleep, "probe": self.probe}
        for key, command in given.items():
            program = next(iter(shlex.split(command)), "")
            places = [self.folder] if "/" in program else map(Path, os.get_exec_path())
            if program and not any(os.access(place / program, os.X_OK) for place in places):
                yield f"{key}: there is no program {program} here that may be run"

    def _run(self, key: str, command: str, host: str, timeout_s: float, given: str = "") -> Ran:
        """Run a command. Raises :class:`CloudError` if it cannot be started.

        It reads and prints to files: a process that it leaves behind, such as a daemon, would hold a pipe open.
        """
        words = [word.replace(NODE, host) for word in shlex.split(command)]
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as said:
            stdin.write(given.encode())
            stdin.seek(0)
            try:
                running = subprocess.Popen(  # noqa: S603 - the command is the site's own
                    words, cwd=self.folder, stdin=stdin, stdout=said, stderr=said, start_new_session=True
                )
            except OSError as error:
                raise CloudError(FailureKind.CONFIG, f"{key} = {command} cannot be run: {error}") from error
            try:
                status = running.wait(timeout_s)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                return Ran(None, _end_of(said.fileno()))
            return Ran(status, _end_of(said.fileno()))


def _end_of(file: int) -> str:
    size = os.fstat(file).st_size
    return os.pread(file, _SHOWN, max(0, size - _SHOWN)).decode(errors="replace").strip()
