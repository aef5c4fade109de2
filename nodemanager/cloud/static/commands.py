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
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError

NODE = "{node}"  # in a command: the name of the host
PROBES_AT_ONCE = 32
PROBE_TIMEOUT_LEAST_S = 1.0
_AWAKE, _ASLEEP = 0, 1  # exit statuses of a probe; after any other it is not known
_SHOWN = 300  # bytes at the end of what a failed command printed
_PRINTED_MAX = 16 * 2**20  # bytes; a command that prints more is killed before it fills the disk
_LOOK_S = 0.1  # between two looks at what a running command has printed
KILLED_WITHIN_S = 5.0  # a killed process that is still there hangs in the kernel, and runs no code any more
_MISCONFIGURED = (FileNotFoundError, PermissionError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. ``status`` is None if it was killed, and ``killed`` says why."""

    status: int | None
    said: str  # the end of what it printed
    killed: str = ""

    def describe(self, what: str, host: str) -> str:
        """Say how the command ended, for people."""
        end = f"{self.killed} and was killed" if self.status is None else f"exit status {self.status}"
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

    def run_probes(self, hosts: Sequence[str]) -> dict[str, Ran]:
        """Run the probe of each host, several at once."""
        if not hosts or not self.probe:
            return {}
        rounds = math.ceil(len(hosts) / PROBES_AT_ONCE)
        timeout_s = max(PROBE_TIMEOUT_LEAST_S, self.timeout_s / rounds)
        with ThreadPoolExecutor(min(len(hosts), PROBES_AT_ONCE), "probe") as pool:
            ran = pool.map(lambda host: self._run("probe", self.probe, host, timeout_s), hosts)
            return dict(zip(hosts, ran, strict=True))

    def probe_all(self, hosts: Sequence[str]) -> dict[str, bool]:
        """Ask which hosts are awake. A host that cannot be told is left out."""
        ran = self.run_probes(hosts)
        return {host: awake for host, it in ran.items() if (awake := told_awake(it)) is not None}

    def is_awake(self, host: str) -> bool | None:
        """Ask whether a host is awake. None if that is not known, or if there is no probe."""
        return self.probe_all([host]).get(host)

    def missing_programs(self) -> Iterator[str]:
        """Name the commands whose program is not there, one text each."""
        given = {"wake": self.wake, "sleep": self.sleep, "probe": self.probe}
        for key, command in given.items():
            program = next(iter(shlex.split(command)), "")
            places = [self.folder] if "/" in program else map(Path, os.get_exec_path())
            if program and not any(_may_run(place / program) for place in places):
                yield f"{key}: there is no program {program} here that may be run"

    def _run(self, key: str, command: str, host: str, timeout_s: float, given: str = "") -> Ran:
        """Run a command. Raises :class:`CloudError` if it cannot be started.

        It reads and prints to files: a process that it leaves behind, such as a daemon, would hold a pipe open.
        """
        words = [word.replace(NODE, host) for word in shlex.split(command)]
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as said:
            try:
                stdin.write(given.encode())
                stdin.seek(0)
                running = subprocess.Popen(  # noqa: S603 - the command is the site's own
                    words, cwd=self.folder, stdin=stdin, stdout=said, stderr=said, start_new_session=True
                )
            except OSError as error:
                kind = FailureKind.CONFIG if isinstance(error, _MISCONFIGURED) else FailureKind.TRANSIENT
                raise CloudError(kind, f"{key} = {command} cannot be run: {error}") from error
            killed = _wait_or_kill(running, said.fileno(), timeout_s)
            return Ran(None if killed else running.returncode, _end_of(said.fileno()), killed)


def told_awake(ran: Ran) -> bool | None:
    """What a probe says of its host. None: not known."""
    return {_AWAKE: True, _ASLEEP: False}.get(ran.status) if ran.status is not None else None


def _may_run(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)


def _wait_or_kill(running: subprocess.Popen[bytes], said: int, timeout_s: float) -> str:
    """Wait until a command ends. Kill it if it takes too long or prints too much; return why, "" if it ended."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            running.wait(max(0.0, min(_LOOK_S, left_s)))
            return ""
        if os.fstat(said).st_size > _PRINTED_MAX:
            why = f"printed more than {_PRINTED_MAX >> 20} MiB"
        elif left_s <= 0:
            why = "ran too long"
        else:
            continue
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            running.wait(KILLED_WITHIN_S)
        return why


def _end_of(file: int) -> str:
    size = os.fstat(file).st_size
    return os.pread(file, _SHOWN, max(0, size - _SHOWN)).decode(errors="replace").strip()


# Of ``call_timeout``: one call probes a host, wakes it and, if that fails, puts it to sleep.
_COMMAND_SHARE = 1 / 3


def commands_of(site: Site) -> HostCommands:
    """The commands of the site's own hosts."""
    cloud = site.cloud
    timeout_s = cloud.call_timeout_s * _COMMAND_SHARE
    return HostCommands(cloud.wake, cloud.sleep, cloud.probe, site.path.parent, timeout_s)
