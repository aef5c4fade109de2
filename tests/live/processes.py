"""The processes of a live test: outside any Flux that may enclose it, never outliving it, ended when it says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.paths import ROOT

END_WITHIN_S = 30.0


def without_flux() -> dict[str, str]:
    """Our environment, without what would lead into an instance that encloses us."""
    return {key: value for key, value in os.environ.items() if not key.startswith("FLUX_")}


def start(command: Sequence[str], log: Path) -> psutil.Popen:
    """Begin it in a session of its own; what it says is added to the log."""
    if shutil.which("setpriv"):  # should the tests be killed, it does not outlive them
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    with log.open("ab") as file:
        return psutil.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=without_flux(),
        )


def run_flux(uri: str, *command: str, given: str = "", check: bool = True) -> str:
    """Run a ``flux`` command in an instance to its end; what it printed. ``check``: fails when it failed."""
    ran = subprocess.run(
        ["flux", *command],
        input=given,
        check=False,
        capture_output=True,
        text=True,
        timeout=END_WITHIN_S,
        env=without_flux() | {"FLUX_URI": uri},
    )
    if check and ran.returncode != 0:
        raise AssertionError(f"flux {' '.join(command)}: {ran.stderr}")
    return ran.stdout.strip()


def kill_all(processes: Iterable[psutil.Process]) -> None:
    killed = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            killed.append(process)
    _, alive = psutil.wait_procs(killed, timeout=END_WITHIN_S)
    if alive:
        raise AssertionError(f"still there after SIGKILL: {alive}")
