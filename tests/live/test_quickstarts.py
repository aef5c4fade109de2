"""The README's ten lines, and then the quick start on a laptop in the same folder, as printed, on a real Flux."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.instance import free_port, why_no_flux
from tests.live.processes import kill_all, without_flux
from tests.paths import CONFIG, ROOT
from tests.shell_blocks import shell_blocks

WITHIN_S = 240.0  # the nodes' paid time, twice, and the start of two instances


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A folder with the example site, on a port of its own, and an environment that runs this checkout."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    # The path of a socket may have 107 bytes, and a folder of pytest's may be longer.
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        program = programs / "flux-node-manager"
        root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
        program.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {python} -m nodemanager "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        site = (CONFIG / "local.ini").read_text(encoding="utf-8")
        (folder / "config").mkdir()
        assert "port = 8050" in site
        site = site.replace("port = 8050", f"port = {free_port()}")
        (folder / "config" / "local.ini").write_text(site, encoding="utf-8")
        yield folder
        kill_all(of_folder(folder))


def of_folder(folder: Path) -> list[psutil.Process]:
    """The processes whose command line or working folder is below the folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
        if any(str(folder) in word for word in words):
            found.append(process)
    return found


def follow(page: str, heading: str, checkout: Path) -> str:
    """Run the blocks of a section in one shell, and return what they print."""
    script = "".join(block.text for block in shell_blocks(page, heading))
    output = checkout / "output"
    with output.open("wb") as file:
        ran = subprocess.run(
            ["bash", "-e", "-c", script.replace("/tmp/elastic", f"{checkout}/elastic")],  # noqa: S108 - as they say
            cwd=checkout,
            env=without_flux(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            timeout=WITHIN_S,
            check=False,
        )
    text = output.read_text(encoding="utf-8")
    assert ran.returncode == 0, text
    return text


@pytest.mark.timeout(600)
def test_the_readme_and_then_the_quick_start_can_be_followed(checkout: Path) -> None:
    shown = follow("README.md", "A real Flux in ten lines", checkout)
    # As the README shows it: two jobs that have run, on nodes that were not there before.
    assert re.search(r"sleep +CD +1 +1 +\S+ gpu1", shown), shown
    assert re.search(r"hostname +CD +3 +3 +\S+ cloud\[1-3\]", shown), shown
    assert re.search(r"down +1 +2 +0 cloud4", shown), shown
    assert not (checkout / "elastic/state/local/flux/run/local-0").exists(), "rank 0 has ended"
    shown = follow("doc/quickstart-laptop.md", "With a real Flux", checkout)
    assert len(re.findall(r" CD +\d", shown)) == 3, shown  # the queue of before, and one more
    assert shutil.which("flux") is not None
    assert [it for it in of_folder(checkout) if "broker" in " ".join(it.cmdline())] == []
