"""Without flux-core's bindings the error says how to get them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOAD = "from nodemanager.flux import bindings\nbindings.load()"


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
    assert f"also looked in {site}" in shown


def _load(environment: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode != 0
    return ran.stderr
