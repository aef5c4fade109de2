"""The container images: built, looked at, and run with a read-only root.

One runs as a head and a manager that is killed. The other has no flux-core, and reaches an instance by ssh.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront
from tests.live.image import SITE, STATE, UID, Builder, Image, processes_below, why_no_image
from tests.live.instance import LiveInstance, eventually, free_port
from tests.live.processes import kill_all
from tests.live.sshd import an_sshd
from tests.paths import CONFIG, ROOT

LARGEST = 100_000_000
LARGEST_WITHOUT_FLUX = 150_000_000  # Python comes on top
NAMELESS = 4242  # as --user or compose's user may set it: the image has no entry for it
UP_WITHIN_S = 60.0
COMMAND_WITHIN_S = 120.0

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """FNM_IMAGE_STORE names a folder that keeps layers for the next run."""
    if why_not := why_no_image():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        made = Builder(Path(os.environ.get("FNM_IMAGE_STORE", folder)))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def image(builder: Builder) -> Image:
    """The image of the Dockerfile on flux-core's."""
    return builder.build()


def test_the_image_is_small_and_has_neither_pip_nor_compilers_nor_tests(image: Image) -> None:
    print(f"{image.size_bytes / 1e6:.0f} MB over its base")
    assert image.size_bytes < LARGEST
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
    """Containers of one image on one machine, as one user, with the state in a shared volume."""

    def __init__(self, image: Image, folder: Path, text: str, uid: int) -> None:
        self.image = image
        self.folder = folder
        self.uid = uid
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        os.chown(self.state, uid, uid)
        self.site = folder / "site.ini"
        self.site.write_text(text, encoding="utf-8")
        self.containers: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            made = subprocess.Popen(
                self.image.command(self.state, self.site, name, command, self.uid),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.containers.append(made)
        return made

    def run(self, name: str, *command: str, check: bool = True) -> str:
        ran = subprocess.run(
            self.image.command(self.state, self.site, name, command, self.uid),
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
            self.image.command(self.state, self.site, "manager", command, self.uid),
            capture_output=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        return ran.returncode == 0

    def start_manager(self, *variables: str) -> subprocess.Popen[bytes]:
        command = (*self.image.config["Entrypoint"], *self.image.config["Cmd"])
        return self.start("manager", "env", *variables, *command)

    def reap(self) -> None:
        for container in self.containers:
            with suppress(ProcessLookupError):
                os.killpg(container.pid, signal.SIGKILL)
            container.wait(COMMAND_WITHIN_S)
        kill_all(processes_below(self.image.root))


@contextmanager
def a_site(image: Image, text: str, uid: int) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        made = Site(image, Path(folder), text, uid)
        try:
            yield made
        finally:
            made.reap()


@pytest.fixture
def site(image: Image) -> Iterator[Site]:
    """compose's, as a user whose id the image does not know."""
    text = (CONFIG / "compose/site.ini").read_text(encoding="utf-8")
    # All containers share the machine's network here, so the head has no address of its own.
    text = text.replace("head_address = head", f"head_address = 127.0.0.1\nport = {free_port()}")
    with a_site(image, text.replace("billing = per-minute", "billing = 20s"), NAMELESS) as made:
        yield made


def words_of_head() -> Sequence[str]:
    """The command of compose.yaml's head."""
    lines = (CONFIG / "compose/compose.yaml").read_text(encoding="utf-8").split("  head:\n", 1)[1].splitlines()
    begin = lines.index("    command:") + 1
    words = [line.removeprefix("      - ") for line in lines[begin:] if line.startswith("      - -")]
    assert "-Shostname=head" in words
    return words


def health_of_head() -> Sequence[str]:
    """The command by which compose.yaml's head is asked for its health."""
    lines = (CONFIG / "compose/compose.yaml").read_text(encoding="utf-8").splitlines()
    [words] = [line.partition("[CMD, ")[2].rstrip("]") for line in lines if "test: [CMD, flux" in line]
    return words.split(", ")


def test_a_job_runs_and_the_manager_is_killed_and_recovers(site: Site) -> None:
    told = site.run("init", "flux-node-manager", "init", "--config", SITE, "--output", f"{STATE}/flux")
    words = words_of_head()
    assert all(word in told for word in words), "compose starts rank 0 as init says"
    assert site.run("init", "sh", "-c", "touch /etc/x || echo read-only").strip() == "read-only"
    site.start("head", "flux", "broker", *words)
    is_well = f"FLUX_URI=local://{STATE}/flux/run/local-0 {shlex.join(health_of_head())} >&2 && echo well"
    eventually("rank 0 runs", lambda: "well" in site.run("head", "sh", "-c", is_well, check=False), UP_WITHIN_S)
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
    assert users == {NAMELESS}
    assert site.run("head", "flux-node-manager", "status", "--config", SITE).startswith("cluster   compose")


def user_of(process: psutil.Process) -> list[int]:
    """The user of a process of the container. What runs outside, and makes it, is root's."""
    with suppress(psutil.Error):
        if process.name() != "unshare":
            return [process.uids().real]
    return []


ELSEWHERE = """
[Site]
cluster = elsewhere
cluster_uuid = 33333333-3333-4333-8333-333333333333
state_dir = {state}
mode = act
[Flux]
uri = ssh://root@127.0.0.1:{port}{socket}
head_address = 127.0.0.1
join = image
[Cloud]
provider = ec2
region = {region}
endpoint = {endpoint}
image = {image}
[Limits]
nodes_max = 3
price_per_hour_max = 1
[Timing]
settle = 500ms
[Node slot]
size = t3.micro
cores = 2
memory = 1GiB
price_per_hour = 0.1
billing = per-second
slots = slot[1-3]
"""


@pytest.fixture
def flux_elsewhere() -> Iterator[LiveInstance]:
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        made = LiveInstance(Path(folder))
        try:
            made.start_head()
            yield made
        finally:
            made.reap()


def test_without_flux_core_it_drives_an_instance_by_ssh(builder: Builder, flux_elsewhere: LiveInstance) -> None:
    image = builder.build_without_flux()
    print(f"without flux-core: {image.size_bytes / 1e6:.0f} MB over Debian")
    assert image.size_bytes < LARGEST_WITHOUT_FLUX
    front = MotoFront()
    with tempfile.TemporaryDirectory(prefix="fnm-") as keys, an_sshd(Path(keys)) as (port, _):
        socket = flux_elsewhere.uri.removeprefix("local://")
        endpoint = {"region": REGION, "endpoint": front.url, "image": IMAGE}
        text = ELSEWHERE.format(state=STATE, port=port, socket=socket, **endpoint)
        with a_site(image, text, UID) as site:
            flux_is = site.run("manager", "sh", "-c", "command -v flux || echo none")
            assert flux_is.strip() == "none"
            for name in ("user", "known_hosts"):
                kept = site.state / name
                kept.touch(0o600)
                # The container has no list of hosts.
                kept.write_text((Path(keys) / name).read_text().replace("localhost", "127.0.0.1"))
                os.chown(kept, UID, UID)
            ssh = f"ssh -F none -i {STATE}/user -o UserKnownHostsFile={STATE}/known_hosts"
            (access, secret), *_ = SECRETS.items()
            variables = (f"FLUX_SSH={ssh}", f"AWS_ACCESS_KEY_ID={access}", f"AWS_SECRET_ACCESS_KEY={secret}")
            checked = site.run(
                *("manager", "env", *variables, "flux-node-manager", "check", "--online", "--config", SITE),
                check=False,
            )
            [found] = [line for line in checked.splitlines() if " instance: " in line]
            assert found.startswith("ok"), found
            assert found.endswith(f"at ssh://root@127.0.0.1:{port}{socket}")
            assert " owner: " not in checked, "who logs in there owns the instance"
            site.start_manager(*variables)
            eventually("the manager is healthy", site.is_healthy, UP_WITHIN_S)
            flux_elsewhere.submit("-N2")
            eventually("two nodes are created", lambda: len(front.standing()) == 2, UP_WITHIN_S)
            assert flux_elsewhere.run("kvs", "ls", "node-manager.leases").split() == ["slot1", "slot2"]
    front.close()


def test_the_ci_copies_what_the_dockerfile_copies() -> None:
    copied = [
        word
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{word}" for word in copied} <= set(allowed)
