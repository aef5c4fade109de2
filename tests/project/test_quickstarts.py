"""The shell blocks of the README and the quick start, run as they are printed: twice, and one after the other.

``flux`` is a stand-in here, and so is the running service. ``init`` and ``start-command`` are real.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

PAGES = {
    "README": ("README.md", "## A real Flux in ten lines"),
    "quickstart": ("doc/quickstart-laptop.md", "## With a real Flux: five minutes"),
}
BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
WITHIN_S = 60.0

# Rank 0 is a process that "flux shutdown" ends; "flux uptime" says whether it is there.
FLUX = """#!/bin/sh
here={here}
case $1 in
    keygen) for last; do :; done; echo key >"$last" ;;
    broker) echo "$@" >>"$here/brokers"; echo $$ >"$here/rank0"; exec sleep 100 ;;
    uptime) kill -0 "$(cat "$here/rank0")" && echo " 12:00:00 run 1.0s" ;;
    shutdown) kill "$(cat "$here/rank0")"; rm "$here/rank0" ;;
    *) ;;
esac
"""
MANAGER = """#!/bin/sh
case $1 in
    --config) echo claimed >&2; exec sleep 100 ;;
    *) PYTHONPATH={root} exec {python} -m nodemanager "$@" ;;
esac
"""


def blocks(page: str) -> str:
    """All shell blocks of one section, without their indentation."""
    file, heading = PAGES[page]
    text = (ROOT / file).read_text(encoding="utf-8")
    section = text.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    found = [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in BLOCK.findall(section)]
    assert len(found) > 1, file
    return "".join(found)


@pytest.fixture
def shell() -> Iterator[Path]:
    """A folder with stand-ins on PATH, and the checkout's config folder."""
    # The path of a socket may have 107 bytes, and a folder of pytest's may be longer.
    with tempfile.TemporaryDirectory(prefix="fnm-") as path:
        folder = Path(path)
        programs = folder / "bin"
        programs.mkdir()
        here, root, python = (shlex.quote(str(it)) for it in (folder, ROOT, sys.executable))
        for name, script in (
            ("flux", FLUX.format(here=here)),
            ("flux-node-manager", MANAGER.format(root=root, python=python)),
        ):
            (programs / name).write_text(script, encoding="utf-8")
            (programs / name).chmod(0o755)
        (folder / "checkout").mkdir()
        (folder / "checkout" / "config").symlink_to(ROOT / "config")
        yield folder


@pytest.mark.parametrize("pages", [("README", "README"), ("quickstart", "quickstart"), ("README", "quickstart")])
def test_the_blocks_can_be_followed_again(shell: Path, pages: tuple[str, ...]) -> None:
    for page in pages:
        script = blocks(page).replace("/tmp/elastic", str(shell / "elastic"))  # noqa: S108 - as the pages say
        ran = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=shell / "checkout",
            env={"PATH": f"{shell / 'bin'}:/usr/bin:/bin", "HOME": str(shell)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert ran.returncode == 0, f"{page}: {ran.stdout}"
    first, second = (shell / "brokers").read_text(encoding="utf-8").splitlines()
    assert first == second, "rank 0 starts again in the same place"
