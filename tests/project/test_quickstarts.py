"""The shell blocks of the README and the quick starts, run as they are printed.

Flux is a stand-in here, and EC2 is moto. tests/live/test_quickstarts.py runs the same blocks on a real Flux.
"""

from __future__ import annotations

import http.client
import os
import pty
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.contract.cloud_subjects import until
from tests.paths import CONFIG, ROOT
from tests.shell_blocks import ShellBlock, ini_blocks, shell_blocks

WITHIN_S = 60.0
README, LAPTOP, EC2 = "README.md", "doc/quickstart-laptop.md", "doc/quickstart-ec2.md"
OPENSTACK, EXISTING = "doc/quickstart-openstack.md", "doc/existing-instance.md"
PAGES = (README, LAPTOP, EC2, OPENSTACK, EXISTING)
TEN_LINES, FIVE_MINUTES = "A real Flux in ten lines", "With a real Flux"

# The blocks that no test of pytest runs: the file that runs them, and a line of it.
RUN_ELSEWHERE: Mapping[tuple[str, str, int], tuple[str, str]] = {
    # Half a minute each, and the demo's own process makes the environment that this test runs in.
    (README, "Try it", 1): (".ci/run", "\nbin/demo\n"),
    (LAPTOP, "Without Flux", 1): (".ci/run", "\nbin/demo\n"),
    # pip needs the network.
    (README, "Install it", 1): ("bin/package", 'blocks README.md "Install it"'),
    (EC2, "2. Install it next to rank 0", 1): ("bin/package", 'blocks doc/quickstart-ec2.md "2. Install it next'),
    # It needs a Nova.
    (OPENSTACK, "4. Write the site file", 1): (
        "tests/cli/new_site/test_new_site.py",
        '["init", "--provider", "openstack", "--output", str(file)]',
    ),
}
RUN_HERE = frozenset(
    {
        (README, "Try it", 2),
        (README, TEN_LINES, 1),
        (README, TEN_LINES, 2),
        (README, "Install it", 2),
        (README, "Operate it", 1),
        (README, "Understand it", 1),
        (LAPTOP, "Without Flux", 2),
        (LAPTOP, "Without Flux", 3),
        *((LAPTOP, FIVE_MINUTES, number) for number in (1, 2, 3, 4)),
        (EC2, "2. Install it next to rank 0", 2),
        (EC2, "3. Write the site file", 1),
        (EC2, "3. Write the site file", 2),
        (EC2, "4. Test the account with one node", 1),
        (EC2, "5. Start rank 0 and the join service", 1),
        (OPENSTACK, "3. Take the credentials from clouds.yaml", 1),
        (OPENSTACK, "5. Test the project with one node", 1),
        (EXISTING, "2. Add the slots", 1),
        (EXISTING, "2. Add the slots", 2),
    }
)

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
# With the stand-in for Flux, the service is one too.
SERVICE = """#!/bin/sh
case $1 in
    --config) echo claimed >&2; exec sleep 100 ;;
    *) {real} ;;
esac
"""
REAL = "PYTHONPATH={root} exec {python} -m nodemanager"


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder with a checkout in it, whose environment has stand-ins; ``replaced``: paths of the pages."""

    folder: Path
    replaced: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def programs(self) -> Path:
        return self.checkout / ".venv" / "bin"

    def put(self, name: str, script: str) -> None:
        (self.programs / name).write_text(script, encoding="utf-8")
        (self.programs / name).chmod(0o755)

    def script(self, blocks: Sequence[ShellBlock]) -> str:
        text = "".join(block.text for block in blocks)
        for path, replacement in self.replaced.items():
            text = text.replace(path, replacement)
        return text

    def command(self, blocks: Sequence[ShellBlock]) -> list[str]:
        return ["bash", "-e", "-c", self.script(blocks)]

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "TERM": "xterm",
            **self.variables,
        }

    def run(self, *blocks: ShellBlock) -> str:
        ran = subprocess.run(
            self.command(blocks),
            cwd=self.checkout,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert ran.returncode == 0, f"{', '.join(map(str, blocks))}: {ran.stdout}"
        return ran.stdout

    @contextmanager
    def serving(self, *blocks: ShellBlock) -> Iterator[subprocess.Popen[bytes]]:
        """Run blocks whose last line serves until Ctrl-C, which comes in the end."""
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                self.command(blocks),
                cwd=self.checkout,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(WITHIN_S) in {0, 128 + signal.SIGINT, -signal.SIGINT}, self.log()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WITHIN_S)

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")


@pytest.fixture
def shell() -> Iterator[Shell]:
    # The path of a socket may have 107 bytes, and a folder of pytest's may be longer.
    with tempfile.TemporaryDirectory(prefix="fnm-") as path:
        folder = Path(path)
        replaced = {
            "/tmp/elastic": f"{folder}/elastic",  # noqa: S108 - as the pages say
            **{f"/{it}/": f"{folder}/{it}/" for it in ("opt", "usr", "etc", "var")},
        }
        made = Shell(folder, replaced)
        made.programs.mkdir(parents=True)
        (made.checkout / "config").mkdir()
        for example in CONFIG.glob("*.ini"):
            (made.checkout / "config" / example.name).write_bytes(example.read_bytes())
        made.put("flux-node-manager", f'#!/bin/sh\n{_real()} "$@"\n')
        yield made


def _real() -> str:
    return REAL.format(root=shlex.quote(str(ROOT)), python=shlex.quote(sys.executable))


def block(page: str, heading: str, number: int) -> ShellBlock:
    assert (page, heading, number) in RUN_HERE
    return shell_blocks(page, heading)[number - 1]


def test_every_block_is_run() -> None:
    blocks = {(it.page, it.heading, it.number) for page in PAGES for it in shell_blocks(page)}
    assert blocks == RUN_HERE | RUN_ELSEWHERE.keys()
    for file, line in RUN_ELSEWHERE.values():
        assert line in (ROOT / file).read_text(encoding="utf-8"), file


@pytest.mark.parametrize("pages", [(README, README), (LAPTOP, LAPTOP), (README, LAPTOP)])
def test_the_blocks_can_be_followed_again(shell: Shell, pages: tuple[str, ...]) -> None:
    shell.put("flux", FLUX.format(here=shlex.quote(str(shell.folder))))
    shell.put("flux-node-manager", SERVICE.format(real=f'{_real()} "$@"'))
    for page in pages:
        numbers = (1, 2) if page == README else (1, 2, 3, 4)
        shell.run(*(block(page, TEN_LINES if page == README else FIVE_MINUTES, number) for number in numbers))
    first, second = (shell.folder / "brokers").read_text(encoding="utf-8").splitlines()
    assert first == second, "rank 0 starts again in the same place"


@pytest.mark.parametrize(("page", "heading"), [(README, TEN_LINES), (LAPTOP, FIVE_MINUTES)])
def test_the_blocks_do_not_wait_for_a_rank_0_that_cannot_start(shell: Shell, page: str, heading: str) -> None:
    """As when its port is taken: the reader sees its error, and the lines that follow go on to say the same."""
    broken = FLUX.replace(
        'broker) echo "$@" >>"$here/brokers"; echo $$ >"$here/rank0"; exec sleep 100', "broker) exit 1"
    )
    broken = broken.replace("    *) ;;", "    *) echo no instance >&2; exit 1 ;;")
    assert "sleep" not in broken
    shell.put("flux", broken.format(here=shlex.quote(str(shell.folder))))
    shell.put("flux-node-manager", SERVICE.format(real=f'{_real()} "$@"').replace("exec sleep 100", "exit 1"))
    with (shell.folder / "log").open("wb") as log:
        ran = subprocess.run(
            shell.command(shell_blocks(page, heading)),
            cwd=shell.checkout,
            env=shell.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=WITHIN_S,
            check=False,
        )
    assert ran.returncode != 0
    assert "No such process" in shell.log(), "as the page says"
    assert "no instance" in shell.log()


# --- the simulated cluster --------------------------------------------------------------------------------


def simulate(shell: Shell) -> int:
    """Let the example listen where nothing else does, and not decide faster than this machine can."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    file = shell.checkout / "config" / "embedded.ini"
    text = file.read_text(encoding="utf-8")
    assert "127.0.0.1:8080" in text
    file.write_text(text.replace("127.0.0.1:8080", f"127.0.0.1:{port}"), encoding="utf-8")
    return port


def answers(port: int) -> bool:
    with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/")
        reply = connection.getresponse()
        return reply.status == http.HTTPStatus.OK and b"<html" in reply.read()
    return False


def test_the_simulated_cluster_serves_its_dashboard_until_ctrl_c(shell: Shell) -> None:
    port = simulate(shell)
    with shell.serving(block(README, "Try it", 2)):
        until(lambda: answers(port), "the dashboard")
        assert "wanted" in shell.run(block(README, "Understand it", 1))


def test_the_simulated_cluster_of_the_quick_start_answers_in_another_terminal(shell: Shell) -> None:
    port = simulate(shell)
    heading = "Without Flux"
    with shell.serving(block(LAPTOP, heading, 2)):
        until(lambda: answers(port), "the dashboard")
        assert "embedded  (act)" in shell.run(block(LAPTOP, heading, 3))


def test_a_site_is_checked_run_and_asked(shell: Shell) -> None:
    example = (shell.checkout / "config" / "embedded.ini").read_text(encoding="utf-8")
    site = example.replace("../state", "state").replace("listen = 127.0.0.1:8080", "listen = unix")
    (shell.checkout / "site.ini").write_text(site, encoding="utf-8")
    with shell.serving(block(README, "Install it", 2)):
        until((shell.checkout / "state/embedded/web.sock").is_socket, "the service's socket")
        status, top = block(README, "Operate it", 1).text.splitlines(keepends=True)
        assert "embedded  (act)" in shell.run(ShellBlock(README, "Operate it", 1, status))
        assert "nodes" in on_terminal(shell, ShellBlock(README, "Operate it", 1, top))
    assert "good" in shell.log(), "check has run before the service"


def on_terminal(shell: Shell, block: ShellBlock) -> str:
    """Run a block on a terminal of its own, and press q as soon as it shows something."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        shell.command([block]),
        cwd=shell.checkout,
        env=shell.environment() | {"LINES": "24", "COLUMNS": "80"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        with suppress(OSError):  # EIO: the program has closed its end
            while read := os.read(ours, 65536):
                if b"nodes" not in shown and b"nodes" in shown + read:
                    os.write(ours, b"q")
                shown += read
        assert process.wait(WITHIN_S) == 0, shown.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode(errors="replace")


# --- EC2 --------------------------------------------------------------------------------------------------


def test_the_units_files_are_where_the_page_copies_them_from(shell: Shell) -> None:
    """systemd's two programs are stand-ins: tests/project/test_units.py runs the real ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["data-files"]["share/flux-node-manager/systemd"]
    share = shell.folder / "opt/flux-node-manager/share/flux-node-manager/systemd"
    share.mkdir(parents=True)
    for file in (found for pattern in patterns for found in ROOT.glob(pattern)):
        (share / file.name).write_bytes(file.read_bytes())
    for name in ("sysusers.d", "tmpfiles.d"):
        (shell.folder / "usr/lib" / name).mkdir(parents=True)
    for name in ("systemd-sysusers", "systemd-tmpfiles"):
        shell.put(name, f'#!/bin/sh\necho "$0 $*" >>{shell.folder}/called\n')
    shell.run(block(EC2, "2. Install it next to rank 0", 2))
    called = (shell.folder / "called").read_text(encoding="utf-8").split()
    assert [Path(it).name for it in called] == ["systemd-sysusers", "systemd-tmpfiles", "--create"]
    for name in ("sysusers", "tmpfiles"):
        copied = shell.folder / f"usr/lib/{name}.d/flux-node-manager.conf"
        assert copied.read_bytes() == (CONFIG / f"systemd/flux-node-manager.{name}").read_bytes()


def test_a_site_on_ec2_is_checked_tried_and_initialised(shell: Shell) -> None:
    pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")
    from tests.cloud.ec2.moto_front import IMAGE, SECRETS, MotoFront  # noqa: PLC0415

    shell.put("flux", FLUX.format(here=shlex.quote(str(shell.folder))))
    moto = MotoFront()
    try:
        [(key, secret)] = SECRETS.items()
        shell.variables.update(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
        shell.replaced["--region us-east-1"] = f"--region us-east-1 --endpoint {moto.url}"
        (shell.folder / "etc/flux-node-manager").mkdir(parents=True)
        (shell.folder / "var/lib/flux-node-manager").mkdir(parents=True, mode=0o700)
        assert "flux-lab" in shell.run(block(EC2, "3. Write the site file", 1))
        # What a reader does: the account has no image of its own.
        file = shell.folder / "etc/flux-node-manager/site.ini"
        site = file.read_text(encoding="utf-8").replace("ami-00000000", IMAGE)
        file.write_text(site.replace("/var/", f"{shell.folder}/var/"), encoding="utf-8")
        assert "good; 2 node types" in shell.run(block(EC2, "3. Write the site file", 2))
        assert "passed" in shell.run(block(EC2, "4. Test the account with one node", 1))
        assert len(moto.instances()) == 1
        assert moto.standing() == []
        told = shell.run(block(EC2, "5. Start rank 0 and the join service", 1))
        assert "flux broker" in told
        assert "flux-node-manager join-service" in told
    finally:
        moto.close()


# --- OpenStack --------------------------------------------------------------------------------------------

CLOUDS_YAML = """
clouds:
  openstack:
    auth_type: v3applicationcredential
    auth:
      auth_url: https://cloud.example:5000/v3
      application_credential_id: id-1
      application_credential_secret: it's "secret" $HOME
    region_name: RegionOne
  other:
    auth: {auth_url: "https://other.example"}
"""


def test_the_variables_of_init_come_from_clouds_yaml(shell: Shell) -> None:
    file = shell.folder / ".config" / "openstack" / "clouds.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(CLOUDS_YAML, encoding="utf-8")
    python = shell.folder / "opt" / "flux-node-manager" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    taken = block(OPENSTACK, "3. Take the credentials from clouds.yaml", 1)
    shown = shell.run(taken, ShellBlock(OPENSTACK, "", 0, "env | grep ^OS_ | sort\n"))
    assert shown.splitlines() == [
        "OS_APPLICATION_CREDENTIAL_ID=id-1",
        'OS_APPLICATION_CREDENTIAL_SECRET=it\'s "secret" $HOME',
        "OS_AUTH_URL=https://cloud.example:5000/v3",
        "OS_REGION_NAME=RegionOne",
    ]


def test_a_site_on_openstack_is_checked_and_tried(shell: Shell) -> None:
    """The page's commands, with local nodes in place of servers."""
    folder = shell.folder / "etc" / "flux-node-manager"
    folder.mkdir(parents=True)
    site = (CONFIG / "local.ini").read_text(encoding="utf-8").replace("../state", f"{shell.folder}/state")
    (folder / "site.ini").write_text(site, encoding="utf-8")
    (shell.folder / "state").mkdir(mode=0o700)
    said = shell.run(block(OPENSTACK, "5. Test the project with one node", 1))
    assert "good; 2 node types" in said
    assert "passed" in said


# --- an existing instance ---------------------------------------------------------------------------------

SYSTEM_INSTANCE = """
[bootstrap]
curve_cert = "{folder}/etc/flux/system/curve.cert"
default_port = 8050
hosts = [ {{ host = "head" }}, {{ host = "n[1-2]" }} ]

[tbon]
topo = "kary:0"

[resource]
exclude = "0"

[[resource.config]]
hosts = "head"
cores = "0-1"

[[resource.config]]
hosts = "n[1-2]"
cores = "0-3"
"""
PATCH = shutil.which("patch")


@pytest.mark.skipif(PATCH is None, reason="no patch; on Debian: apt-get install patch")
def test_an_existing_instance_gets_slots_and_the_keys_of_the_join_service(shell: Shell) -> None:
    conf = shell.folder / "etc" / "flux" / "system" / "conf.d"
    conf.mkdir(parents=True)
    (conf / "system.toml").write_text(SYSTEM_INSTANCE.format(folder=shell.folder), encoding="utf-8")
    (conf.parent / "curve.cert").write_text("key", encoding="utf-8")
    (conf.parent / "curve.cert").chmod(0o600)
    shell.put("flux", '#!/bin/sh\necho "flux-core 0.88.0"\n')
    (keys,) = ini_blocks((ROOT / EXISTING).read_text(encoding="utf-8"), "[Flux]")
    site = (CONFIG / "ec2.ini").read_text(encoding="utf-8")
    ours = keys.replace("/etc/", f"{shell.folder}/etc/")
    begins, ends = site.index("[Flux]"), site.index("[Cloud]")
    site = (site[:begins] + ours + "\n" + site[ends:]).replace("/var/", f"{shell.folder}/var/")
    file = shell.folder / "etc" / "flux-node-manager" / "site.ini"
    file.parent.mkdir()
    file.write_text(site, encoding="utf-8")
    (shell.folder / "var/lib/flux-node-manager").mkdir(parents=True, mode=0o700)
    shell.run(block(EXISTING, "2. Add the slots", 1))
    assert "noverify" not in (conf / "system.toml").read_text(encoding="utf-8"), "nothing is changed yet"
    assert "good; 3 node types" in shell.run(block(EXISTING, "2. Add the slots", 2))
    changed = tomllib.loads((conf / "system.toml").read_text(encoding="utf-8"))
    assert [it["host"] for it in changed["bootstrap"]["hosts"]][:2] == ["head", "n[1-2]"]
    assert len(changed["bootstrap"]["hosts"]) == 5
    assert changed["resource"]["noverify"] is True
    assert (shell.folder / "var/lib/flux-node-manager/join/site.key").exists()
