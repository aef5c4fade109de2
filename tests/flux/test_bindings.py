"""Without flux-core's bindings, or with those of another version, the error says how to get the right ones."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

import pytest

from nodemanager.flux import bindings
from nodemanager.flux.handles import far_side
from tests.paths import ROOT

CONNECT = "from nodemanager.flux import bindings\nbindings.connect('local:///nowhere')\nprint('connected')"
LOAD = "from nodemanager.flux.handles import direct\ndirect.load()"


def test_without_bindings_and_without_flux_the_error_says_what_to_do(tmp_path: Path) -> None:
    shown = _load({"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)})
    assert "BindingsMissing: flux-core's Python bindings cannot be imported" in shown
    assert "PYTHONPATH" in shown
    assert "flux python" in shown


def test_bindings_of_another_python_are_named_with_their_folder(tmp_path: Path) -> None:
    site = tmp_path / "python3.6"
    (site / "flux").mkdir(parents=True)
    (site / "flux" / "__init__.py").write_text("import _flux._core\n")
    flux = tmp_path / "flux"
    flux.write_text(f'#!/bin/sh\necho "{site}"\n')
    flux.chmod(0o755)
    shown = _load({"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)})
    assert "No module named '_flux'" in shown
    assert f"also searched {site}" in shown


# The part of flux-core's bindings that a connection needs.
FLUX = """
class Answer:
    handle = "of a future"
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def wait_for(self, timeout_s): return self
    def get_str(self): return '{"value": "0.88.0", "flags": 0}'

class Flux:
    def __init__(self, uri): pass
    def __exit__(self, *_): print("closed")
    def rpc(self, topic, payload, rank, flags): return Answer()
"""
CORE = """
class ffi:
    string = staticmethod(lambda text: text)

class lib:
    flux_core_version_string = staticmethod(lambda: b"VERSION")
"""


def _bindings_of(version: str, folder: Path) -> None:
    (folder / "flux").mkdir()
    (folder / "_flux").mkdir()
    (folder / "flux" / "__init__.py").write_text(FLUX)
    for name in ("constants", "future", "kvs"):
        (folder / "flux" / f"{name}.py").write_text("FLUX_RPC_STREAMING = 4")
    (folder / "_flux" / "_core.py").write_text(CORE.replace("VERSION", version))


def test_an_instance_of_the_same_version_is_connected_to(tmp_path: Path) -> None:
    _bindings_of("0.88.0", tmp_path)
    ran = _run(CONNECT, {"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert (ran.returncode, ran.stdout) == (0, "connected\n"), ran.stderr


def test_an_instance_of_another_version_is_refused_by_name_and_its_handle_closed(tmp_path: Path) -> None:
    _bindings_of("0.87.0", tmp_path)
    ran = _run(CONNECT, {"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert ran.stdout == "closed\n"
    assert f"VersionsDiffer: flux-core's Python bindings have version 0.87.0 ({tmp_path}" in ran.stderr
    assert "but local:///nowhere runs flux-core 0.88.0" in ran.stderr


def test_the_service_does_not_start_with_bindings_of_another_version(tmp_path: Path) -> None:
    _bindings_of("0.87.0", tmp_path)
    site = tmp_path / "site.ini"
    uuid = "cluster_uuid = 00000000-0000-0000-0000-000000000001"
    text = (ROOT / "config" / "local.ini").read_text().replace("../state", str(tmp_path))
    site.write_text(text.replace("[Flux]", f"{uuid}\n[Flux]"))
    ran = subprocess.run(
        [sys.executable, "-m", "nodemanager", "--config", str(site)],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 69, ran.stderr
    assert "runs flux-core 0.88.0. Run flux-node-manager with the bindings of flux-core 0.88.0" in ran.stderr
    assert "Traceback" not in ran.stderr


def _load(environment: dict[str, str]) -> str:
    ran = _run(LOAD, environment)
    assert ran.returncode != 0
    return ran.stderr


def _run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


# --- calls ------------------------------------------------------------------------------------------------


@dataclass
class Hanging:
    """A connection to an instance that never answers, and a clock that counts the waiting time."""

    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def rpc(self, topic: str, payload: object, rank: int) -> Self:
        del topic, payload, rank
        return self

    rpc_text = rpc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait(self, timeout_s: float) -> Self:
        assert timeout_s > 0.0, "Flux waits for ever"
        self.now_s += timeout_s
        raise OSError(errno.ETIMEDOUT, "Connection timed out")


def test_ranks_that_hang_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = Hanging()
    handle = cast("bindings.Handle", hanging)
    monkeypatch.setattr(bindings, "time", hanging)
    assert bindings.ask_texts(handle, "resource.topo-get", range(16), timeout_s=5.0) == {}
    assert hanging.now_s < 106.0
    assert bindings.ask_each(handle, "attr.get", {}, range(16), timeout_s=5.0) == {}
    assert hanging.now_s < 112.0


def test_a_call_on_a_connection_that_is_being_lost_fails() -> None:
    """The bindings then return a future without a handle, and raise nothing."""
    with pytest.raises(OSError, match="the connection is lost"):
        far_side.checked(SimpleNamespace(handle=None))


@pytest.mark.parametrize(
    ("rank", "named"), [(bindings.LEADER, "resource.status: "), (3, "resource.status on rank 3: ")]
)
def test_a_call_that_failed_names_the_rank_unless_it_is_the_leader(
    monkeypatch: pytest.MonkeyPatch, rank: int, named: str
) -> None:
    hanging = Hanging()
    monkeypatch.setattr(bindings, "time", hanging)
    with pytest.raises(bindings.CallFailed) as failed:
        bindings.ask(cast("bindings.Handle", hanging), "resource.status", rank=rank, timeout_s=1.0)
    assert str(failed.value).startswith(named)
