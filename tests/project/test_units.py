"""The systemd units, as systemd reads them, without one running."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

FOLDER = ROOT / "config" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
SAFE_ENOUGH = 1.5  # of 10, less is safer; the admin guide names what it is
# Keys of systemd 254, which older ones ignore; that no man page and no program of ours is installed here.
HARMLESS = ("RestartSteps", "RestartMaxDelaySec", "is not executable", "failed with code 16")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd; on Debian: apt-get install systemd"
)


def ran(*command: str | Path) -> str:
    done = subprocess.run([*command], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_the_unit_bounds_memory_and_tasks(unit: Path) -> None:
    """So that whoever makes one service grow cannot take the head's memory from the instance."""
    text = unit.read_text(encoding="utf-8")
    assert re.search(r"^MemoryMax=\d+[MG]$", text, re.MULTILINE)
    assert re.search(r"^TasksMax=\d+$", text, re.MULTILINE)


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_systemd_understands_the_unit(unit: Path) -> None:
    said = ran("systemd-analyze", "verify", unit).splitlines()
    assert [line for line in said if unit.stem in line and not any(known in line for known in HARMLESS)] == []


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_the_unit_is_as_safe_as_the_admin_guide_says(unit: Path) -> None:
    said = ran("systemd-analyze", "security", "--offline=true", unit)
    score = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    assert score is not None, said
    assert float(score[1]) < SAFE_ENOUGH
    guide = (ROOT / "doc" / "admin.md").read_text(encoding="utf-8")
    named = re.search(r"rates each of the two units ([0-9.]+) \(of 10, lower is better; systemd (\d+)\)", guide)
    assert named is not None
    if re.search(rf"systemd {named[2]}\b", ran("systemd-analyze", "--version")):
        assert score[1] == named[1]


@needs_systemd
def test_the_folders_and_the_user_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    said = ran("systemd-sysusers", f"--root={tmp_path}", FOLDER / "flux-node-manager.sysusers")
    assert "flux:" in (tmp_path / "etc" / "passwd").read_text(), said
    ran("systemd-tmpfiles", "--create", f"--root={tmp_path}", FOLDER / "flux-node-manager.tmpfiles")
    made = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777)
        for path in (tmp_path / "etc" / "flux-node-manager", tmp_path / "var" / "lib" / "flux-node-manager")
    }
    assert made == {"etc/flux-node-manager": "0o750", "var/lib/flux-node-manager": "0o700"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_a_dead_one_does_not_stay_dead(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    for line in ("StartLimitIntervalSec=0", "Restart=always", "RestartSteps=8", "RestartMaxDelaySec=2min"):
        assert line in text.splitlines()
