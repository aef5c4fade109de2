"""The page about delegation, followed as printed, twice in the same folder: a local peer, and one by ssh."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.processes import without_flux
from tests.live.sshd import an_sshd
from tests.live.test_quickstarts import WITHIN_S, checkout, of_folder
from tests.shell_blocks import shell_blocks

__all__ = ["checkout"]  # the fixture


@pytest.fixture(params=["local", "ssh"])
def by_ssh(request: pytest.FixtureRequest) -> Iterator[tuple[int, str] | None]:
    """The port of a real sshd, and the program that is an ssh to it; None for the local peer of the page."""
    if request.param == "local":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fnm-ssh-") as name, an_sshd(Path(name)) as (port, script):
        ssh = Path(name) / "ssh"
        ssh.write_text(script)
        ssh.chmod(0o700)
        yield port, str(ssh)


@pytest.mark.timeout(600)
def test_it_can_be_followed_twice(checkout: Path, by_ssh: tuple[int, str] | None) -> None:
    script = "".join(block.text for block in shell_blocks("doc/delegation.md", "Try it on one machine"))
    script = script.replace("/tmp/elastic", f"{checkout}/elastic")  # noqa: S108 - as the page says
    environment = without_flux()
    if by_ssh is not None:
        port, environment["FLUX_SSH"] = by_ssh
        assert "uri = local://%s/b" in script
        script = script.replace("uri = local://%s/b", f"uri = ssh://localhost:{port}%s/b")
    for _ in range(2):
        output = checkout / "output"
        with output.open("wb") as file:
            ran = subprocess.run(
                ["bash", "-e", "-c", script],
                cwd=checkout,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=WITHIN_S,
                check=False,
            )
        shown = output.read_text(encoding="utf-8")
        assert ran.returncode == 0, shown
        assert re.search(r"^said at the peer$", shown, re.MULTILINE), shown
        assert re.search(r"^\S+ COMPLETED b b \S+: chosen for wait", shown, re.MULTILINE), shown
        assert re.search(r"^ *b +up", shown, re.MULTILINE), shown
        assert [it for it in of_folder(checkout) if "broker" in " ".join(it.cmdline())] == []
