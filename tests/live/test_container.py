"""The container image: built, looked at, and run as a head and a manager that is killed, with a read-only root."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.live.image import SITE, STATE, UID, Builder, Image, processes_below, why_no_image
from tests.live.instance import eventually, free_port
from tests.live.processes import kill_all
from tests.paths import CONFIG, ROOT

LARGEST = 100_000_000
UP_WITHIN_S = 60.0
COMMAND_WITHIN_S = 120.0

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image of the Dockerfile. FNM_IMAGE_STORE names a folder that keeps layers for the next run."""
    if why_not := why_no_image():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        builder = Builder(Path(os.environ.get("FNM_IMAGE_STORE", folder)))
        try:
            yield builder.build()
        finally:
            builder.close()


def test_the_image_is_small_and_has_neither_pip_nor_compilers_nor_tests(image: Image) -> None:
    assert image.size_bytes < LARGEST, f"{image.size_bytes / 1e6:.0f} MB over its base"
    ours = image.root / "opt/flux-node-manager"
    names = {path.name for path in ours.glob("lib/python3*/site-packages/*")}
    assert "nodemanager" in names
    assert not names & {"pip", "setuptools", "pkg_resources", "pytest", "moto", "tests"}
    assert not list(ours.glob("lib/python3*/site-packages/libcloud/test"))
    assert not [name for name in ("gcc", "cc", "g++", "make") if (image.root / "usr/bin" / name).exists()]
    assert not list((image.root / "var/lib/apt/lists").glob("*Packages*"))


def test_the_image_says_what_it_is_and_runs_as_nobody_special(image: Image) -> None:
    labels = {key.removeprefix("org.opencontainers.image."): it for key, it in image.config["Labels"].items()}
    assert labels["title"] == "flux-node-manager"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == "1.2.3"
    assert image.config["User"] == f"{UID}:{UID}"
    assert image.config["Entrypoint"] == ["flux-node-manager"]


class Site:
    """A head and a manager on one machine, each in a container of its own, with the state in a shared volume."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.image = image
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        os.chown(self.state, UID, UID)
        self.site = folder / "site.ini"
        text = (CONFIG / "compose/site.ini").read_text(encoding="utf-8")
        # All containers share the machine's network here, so the head has no address of its own.
        text = text.replace("head_address = head", f"head_address = 127.0.0.1\nport = {free_port()}")
        self.site.write_text(text.replace("billing = per-minute", "billing = 20s"), encoding="utf-8")
        self.containers: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            made = subprocess.Popen(
                self.image.command(self.state, self.site, name, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.containers.append(made)
        return made

    def run(self, name: str, *command: str, check: bool = True) -> str:
        ran = subprocess.run(
            self.image.command(self.state, self.site, name, command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        if check:
            assert ran.returncode == 0, f"{command}: {ran.stderr}{self.log(name)}"
        return ran.stdout

    def in_head(self, *command: str) -> str:
        return self.run("head", "env", f"FLUX_URI=local://{STATE}/flux/run/local-0", *command)

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def is_healthy(self) -> bool:
        """The exit status of the image's own HEALTHCHECK command."""
        kind, *command = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        ran = subprocess.run(
            self.image.command(self.state, self.site, "manager", command),
            capture_output=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        return ran.returncode == 0

    def start_manager(self) -> subprocess.Popen[bytes]:
        return self.start("manager", *self.image.config["Entrypoint"], *self.image.config["Cmd"])

    def reap(self) -> None:
        for container in self.containers:
            with suppress(ProcessLookupError):
                os.killpg(container.pid, signal.SIGKILL)
            container.wait(COMMAND_WITHIN_S)
        kill_all(processes_below(self.image.root))


@pytest.fixture
def site(image: Image) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        made = Site(image, Path(folder))
        try:
            yield made
        finally:
            made.reap()


def words_of_head() -> Sequence[str]:
    """The command of compose.yaml's head."""
    lines = (CONFIG / "compose/compose.yaml").read_text(encoding="utf-8").split("  head:\n", 1)[1].splitlines()
    begin = lines.index("    command:") + 1
    words = [line.removeprefix("      - ") for line in lines[begin:] if line.startswith("      - -")]
    assert "-Shostname=head" in words
    return words


def test_a_job_runs_and_the_manager_is_killed_and_recovers(site: Site) -> None:
    told = site.run("init", "flux-node-manager", "init", "--config", SITE, "--output", f"{STATE}/flux")
    words = words_of_head()
    assert all(word in told for word in words), "compose starts rank 0 as init says"
    assert site.run("init", "sh", "-c", "touch /etc/x || echo read-only").strip() == "read-only"
    site.start("head", "flux", "broker", *words)
    # Not flux uptime: it wants the owner's name, and the stand-in has no user.
    eventually("rank 0 runs", lambda: site.run("head", "sh", "-c", SIZE, check=False).strip() == "5", UP_WITHIN_S)
    manager = site.start_manager()
    eventually("the manager is healthy", site.is_healthy, UP_WITHIN_S)
    site.in_head("flux", "run", "-N2", "hostname")
    assert len(site.in_head("flux", "kvs", "ls", "node-manager.leases").split()) == 2
    os.killpg(manager.pid, signal.SIGKILL)
    manager.wait(COMMAND_WITHIN_S)
    eventually("no manager is healthy", lambda: not site.is_healthy(), UP_WITHIN_S)
    site.start_manager()
    eventually("the next manager is healthy", site.is_healthy, UP_WITHIN_S)
    assert site.in_head("flux", "run", "-N2", "hostname").split() != []
    users = {user for it in processes_below(site.image.root) for user in user_of(it)}
    assert users == {UID}
    assert site.run("head", "flux-node-manager", "status", "--config", SITE).startswith("cluster   compose")


SIZE = f"FLUX_URI=local://{STATE}/flux/run/local-0 flux getattr size"


def user_of(process: psutil.Process) -> list[int]:
    """The user of a process of the container. What runs outside, and makes it, is root's."""
    with suppress(psutil.Error):
        if process.name() != "unshare":
            return [process.uids().real]
    return []


def test_the_ci_copies_what_the_dockerfile_copies() -> None:
    copied = [
        word
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{word}" for word in copied} <= set(allowed)
