"""A study ended by a signal leaves nothing behind, and its exit status names the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.whatif.sites import a_site

WITHIN_S = 60.0  # on a busy machine; usually it takes less than one second


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("number", "status", "to_all"),
    [
        (signal.SIGINT, 130, False),
        (signal.SIGINT, 130, True),  # a terminal sends it to the whole process group
        (signal.SIGTERM, 143, False),
        (signal.SIGKILL, -9, False),
    ],
)
def test_no_replay_outlives_the_study(tmp_path: Path, number: signal.Signals, status: int, *, to_all: bool) -> None:
    arguments = ["lublin:jobs=3000,procs=8", "--config", str(a_site(tmp_path).path), "--processes", "2"]
    study = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nodemanager",
            "simulate",
            *arguments,
            "--journal",
            str(tmp_path / "out.jsonl"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until_s = time.monotonic() + WITHIN_S
    while not ((tmp_path / "out.jsonl").exists() and (tmp_path / "out.jsonl").stat().st_size):
        assert time.monotonic() < until_s
        assert study.poll() is None
        time.sleep(0.05)
    begun = psutil.Process(study.pid).children(recursive=True)
    assert len(begun) >= 2
    (os.killpg if to_all else os.kill)(study.pid, number)
    _, said = study.communicate(timeout=WITHIN_S)
    assert study.returncode == status
    assert said == "" or (number == signal.SIGKILL and "Traceback" not in said)
    until_s = time.monotonic() + WITHIN_S
    while any(map(_lives, begun)):
        assert time.monotonic() < until_s
        time.sleep(0.05)
