"""Tests that a node's processes are found at every moment of their lives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nodemanager.cloud.local import process
from nodemanager.cloud.local.process import INIT_SCRIPT, LocalProcess, end_nodes, find_init, start

NODE = "local-000001-test"


@pytest.fixture
def init(tmp_path: Path) -> Iterator[LocalProcess]:
    (tmp_path / "root").mkdir()
    (tmp_path / "init").write_text(INIT_SCRIPT, encoding="utf-8")
    init = start(tmp_path / "init", tmp_path, NODE, 0.0, "hang")
    yield init
    with suppress(ProcessLookupError):
        os.killpg(init.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(init.pid, 0)


def test_init_that_has_not_left_execve_yet_is_found(init: LocalProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    read = process._read_proc
    reads = 0
    assert find_init(NODE) == init  # it has left execve in truth, so what follows does not depend on its speed

    def in_execve_at_first(path: str) -> bytes | None:
        """Answer as the kernel does between the new memory and the new environment of execve."""
        nonlocal reads
        reads += path == f"/proc/{init.pid}/environ"
        return b"" if path == f"/proc/{init.pid}/environ" and reads <= 2 else read(path)

    monkeypatch.setattr(process, "_read_proc", in_execve_at_first)
    monkeypatch.setattr(process._Stat, "is_in_exec", property(lambda _: reads <= 2))
    assert find_init(NODE) == init


def test_process_with_an_empty_environment_belongs_to_no_node() -> None:
    bare = os.posix_spawn("/bin/sleep", ["sleep", "3600"], {})
    try:
        assert process._node_id_of(bare) == ""
    finally:
        os.kill(bare, signal.SIGKILL)
        os.waitpid(bare, 0)


def test_node_with_a_process_born_in_the_last_round_is_told(
    init: LocalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = process._stat_of(os.getpid())
    assert this is not None
    newborn = LocalProcess(os.getpid(), this.start_tick, init.boot_id)
    scans = [[(init, NODE)]] * process._ROUNDS_MAX + [[(newborn, NODE)]]
    monkeypatch.setattr(process, "_living_processes", lambda _: scans.pop(0))
    assert end_nodes({NODE: init}) == {NODE}
