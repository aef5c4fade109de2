"""Seeds run in several processes."""

from __future__ import annotations

import subprocess
import sys

import psutil

WITHIN_S = 60.0  # on a busy machine; usually it takes less than one second


def test_no_seed_is_run_on_once_the_command_was_killed() -> None:
    chaos = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.command", "--seeds", "0-99999", "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    command = psutil.Process(chaos.pid)
    begun = command.children()
    while len(begun) < 3:  # two workers, and one process that tracks their shared resources
        assert chaos.poll() is None
        begun = command.children()
    chaos.kill()
    _, still_there = psutil.wait_procs(begun, timeout=WITHIN_S)
    chaos.communicate()
    assert not still_there
