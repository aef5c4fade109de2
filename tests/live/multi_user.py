"""A multi-user instance for tests: a manager, an owner and two guests.

It needs root, a user "flux" that owns the instance, flux-core with flux-security, a running munged, and a setuid
flux-imp (on PATH, at ``FLUX_IMP``, or where packages install it) whose ``allowed-users`` names "flux".
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from nodemanager.config.load import load_site
from nodemanager.flux.setup.bootstrap import start_command
from tests.live.instance import eventually, free_port, why_no_flux
from tests.live.manager_process import ManagerProcess
from tests.live.processes import END_WITHIN_S, kill_all, start, without_flux
from tests.paths import ROOT

OWNER = "flux"
GUESTS = ("fnm-guest1", "fnm-guest2")
NODE_WITHIN_S = 60.0
SERVICE = (sys.executable, "-m", "nodemanager")
IMP_PLACES = ("/usr/libexec/flux/flux-imp", "/usr/local/libexec/flux/flux-imp")
# For a job's shell. A shell that fails with an exception of the job would not make Flux drain the node.
EXPLAIN = """
import json, sys, flux
try:
    print(json.dumps(flux.Flux().rpc("node-manager-info.explain", {"id": sys.argv[1]}).get()))
except OSError as error:
    print(json.dumps({"error": str(error)}))
"""
ENDS_BEFORE_THE_BARRIER = "os.exit (3)\n"
SITE = """
[Site]
cluster = guests
state_dir = state
mode = act
[Flux]
uri = local://{folder}/state/flux/run/local-0
head_address = 127.0.0.1
port = {port}
{join}
[Cloud]
provider = local
[Limits]
nodes_max = 2
price_per_hour_max = 10
[Timing]
settle = 500ms
probe = 1s
relist = 2s
boot_timeout = 40s
create_grace = 3s
absences = 2
rejoin_timeout = 8s
[Policy]
idle_timeout = {idle_timeout}
stop_lead = 1s
foreign_drain_after = 1s
{policy}
{budget}
[Node cloud]
cores = 2
memory = 1GiB
price_per_hour = 0.1
billing = 1s
slots = cloud1
[Node other]
cores = 2
memory = 1GiB
price_per_hour = 0.2
billing = 1s
properties = other
slots = other1
"""
JOIN = """join = service
[Join]
listen = 127.0.0.1:{port}
renew = 500ms
requests_per_s = 1000
"""
INSTANCE = """
[access]
allow-guest-user = true
allow-root-owner = false
[exec]
imp = "{imp}"
"""


def find_imp() -> str:
    places = (os.environ.get("FLUX_IMP", ""), shutil.which("flux-imp") or "", *IMP_PLACES)
    return next((place for place in places if place and Path(place).is_file()), "")


def why_not_multi_user() -> str:
    """Why no multi-user instance can be started here; "" if one can."""
    if why := why_no_flux():
        return why
    if os.getuid() != 0:
        return "only root makes users and starts processes as others"
    if not (imp := find_imp()):
        return "no flux-imp"
    if not Path(imp).stat().st_mode & stat.S_ISUID:
        return f"{imp} is not setuid"
    if shutil.which("useradd") is None or shutil.which("setpriv") is None:
        return "no useradd or no setpriv"
    try:
        pwd.getpwnam(OWNER)
    except KeyError:
        return f"no user {OWNER}"
    munge = subprocess.run(["sh", "-c", "munge -n | unmunge"], capture_output=True, check=False)
    return "munge does not work" if munge.returncode != 0 else ""


def as_user(name: str, command: Sequence[str], *, reads_all: bool = False) -> list[str]:
    """The command, to be run as a user. ``reads_all``: the Python of these tests may be readable by root only."""
    capability = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"] if reads_all else []
    user = pwd.getpwnam(name)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *capability, *command]


class MultiUserSite:
    """A site whose instance is owned by "flux", with two guests, rank 0 and a manager."""

    def __init__(self, folder: Path, *, by_tickets: bool, idle_timeout: str, budget: str, policy: str) -> None:
        self.folder = folder
        join = JOIN.format(port=free_port()) if by_tickets else ""
        text = SITE.format(
            folder=folder, port=free_port(), join=join, idle_timeout=idle_timeout, budget=budget, policy=policy
        )
        (folder / "site.ini").write_text(text, encoding="utf-8")
        (folder / "initrc.lua").write_text(ENDS_BEFORE_THE_BARRIER, encoding="utf-8")
        self._own()
        self._started: list[psutil.Popen] = []
        self.managers: list[ManagerProcess] = []
        self.said_by_init = self.verb("init", "--output", str(folder / "state" / "flux"))
        guests = folder / "state" / "flux" / "conf.d" / "guests.toml"
        guests.write_text(INSTANCE.format(imp=find_imp()), encoding="utf-8")
        self._own()
        (folder / "state").chmod(0o700)
        self.warnings = self.verb("check")
        (folder / "state").chmod(0o711)
        self.site = load_site(folder / "site.ini")
        self.uri = self.site.flux.uri

    def _own(self) -> None:
        shutil.chown(self.folder, OWNER)
        for path in self.folder.rglob("*"):
            shutil.chown(path, OWNER)

    def verb(self, *arguments: str) -> str:
        command = [*SERVICE, *arguments, *self._config]
        ran = subprocess.run(
            as_user(OWNER, command, reads_all=True),
            check=False,
            capture_output=True,
            text=True,
            timeout=NODE_WITHIN_S,
            cwd=ROOT,
            env=without_flux(),
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout + ran.stderr

    def start(self) -> None:
        """Start rank 0, the join service if there is one, and a manager."""
        self._start("head", start_command(self.site, self.folder / "state" / "flux"))
        eventually("rank 0 runs", lambda: " run " in self.flux(OWNER, "uptime", check=False))
        if str(self.site.flux.join) == "service":
            self._start("join", [*SERVICE, "join-service", *self._config])
        self.start_manager()

    def start_manager(self) -> None:
        """Start a manager and wait until it may act."""
        name = f"manager-{len(self.managers) + 1}"
        process = self._start(name, [*SERVICE, *self._config])
        self.managers.append(ManagerProcess(process, self.folder / f"{name}.log"))
        self.manager.until_said("claimed")

    @property
    def manager(self) -> ManagerProcess:
        return self.managers[-1]

    @property
    def _config(self) -> list[str]:
        return ["--config", str(self.folder / "site.ini")]

    def _start(self, name: str, command: Sequence[str]) -> psutil.Popen:
        process = start(as_user(OWNER, command, reads_all=True), self.folder / f"{name}.log")
        self._started.append(process)
        return process

    def flux(self, user: str, *command: str, check: bool = True, given: str | None = None) -> str:
        ran = subprocess.run(
            as_user(user, ["flux", *command]),
            check=False,
            input=given,
            capture_output=True,
            text=True,
            timeout=NODE_WITHIN_S,
            cwd="/",
            env=without_flux() | {"FLUX_URI": self.uri, "HOME": "/"},
        )
        if check and ran.returncode != 0:
            raise AssertionError(f"{user}: flux {' '.join(command)}: {ran.stdout}{ran.stderr}\n{self.logs()}")
        return ran.stdout.strip()

    def status_of(self, user: str, *command: str) -> int:
        """Run a command as a user; its exit status."""
        ran = subprocess.run(
            as_user(user, command),
            check=False,
            capture_output=True,
            timeout=NODE_WITHIN_S,
            cwd="/",
            env=without_flux() | {"FLUX_URI": self.uri, "HOME": "/"},
        )
        return ran.returncode

    def drains(self) -> dict[str, str]:
        """The drain reasons by slot."""
        lines = self.flux(OWNER, "resource", "drain", "-no", "{nodelist}\t{reason}").splitlines()
        return {slot: reason for slot, _, reason in (line.partition("\t") for line in lines)}

    def drains_by_flux_because_of(self, job: str) -> bool:
        """Whether a node that Flux drained on account of a job is retired."""
        ordered = self.manager.said("decided", because="drained_by_flux", order="DrainNode")
        return any(job in it["because"] for it in ordered)

    def explain(self, user: str, job: str) -> dict[str, object]:
        """What the manager tells a user of a job, through Flux; the error if it refuses."""
        ran = self.flux(user, "python", "-c", EXPLAIN, job)
        answer: dict[str, object] = json.loads(ran)
        return answer

    def held_on_record(self) -> list[str]:
        return self.flux(OWNER, "kvs", "ls", "-1", "node-manager.held-jobs", check=False).split()

    def online(self) -> list[str]:
        return self.flux(OWNER, "resource", "list", "-no", "{nodelist}", "--states=free,allocated").split()

    def processes_of(self, user: str, name: str) -> list[psutil.Process]:
        """The user's processes whose command line begins with a name."""
        uid, found = pwd.getpwnam(user).pw_uid, []
        for process in psutil.process_iter():
            try:
                if process.uids().real == uid and process.cmdline()[:1] == [name]:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def reason_of(self, slot: str) -> str:
        """The code of a node's reason; "" if the slot has no node."""
        nodes = json.loads(self.verb("nodes", "--json"))["nodes"]
        return next((str((it["reason"] or {}).get("code")) for it in nodes if it["slot"] == slot), "")

    def status(self) -> dict[str, object]:
        nodes: dict[str, object] = json.loads(self.verb("status", "--json"))["nodes"]
        return nodes

    def eventually(self, what: str, holds: object) -> None:
        try:
            eventually(what, holds, NODE_WITHIN_S)  # type: ignore[arg-type]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}" for log in self.folder.glob("*.log")
        )

    def reap(self) -> None:
        """End everything: the manager first, so that it boots no more nodes, and rank 0 before its nodes."""
        for process in reversed(self._started):
            if process.poll() is None:
                process.terminate() if process is not self._started[0] else process.kill()
            process.wait(END_WITHIN_S)
        kill_all([it for it in psutil.process_iter() if self._is_ours(it)])
        for own_tmp in (self.folder / "state" / "cloud").rglob("tmp"):  # of a node, outside of our folder
            if own_tmp.is_file():
                shutil.rmtree(own_tmp.read_text(encoding="utf-8").strip(), ignore_errors=True)

    def _is_ours(self, process: psutil.Process) -> bool:
        """Whether it belongs to the instance: everything that the owner and the guests run here does."""
        try:
            uid = process.uids().real
            if uid in {pwd.getpwnam(name).pw_uid for name in GUESTS}:
                return True
            environment = process.environ() if uid else {}
            return str(self.folder) in " ".join([*process.cmdline(), *environment.values()])
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return False


@pytest.fixture(scope="module")
def guests() -> Iterator[dict[str, int]]:
    """Two users made for these tests, with their uids."""
    if why := why_not_multi_user():
        pytest.skip(why)
    made = []
    try:
        for name in GUESTS:
            subprocess.run(["useradd", "--system", "--no-create-home", name], check=True, capture_output=True)
            made.append(name)
        yield {name: pwd.getpwnam(name).pw_uid for name in made}
    finally:
        for name in made:
            subprocess.run(["userdel", name], check=False, capture_output=True)


@pytest.fixture
def site(request: pytest.FixtureRequest, guests: dict[str, int]) -> Iterator[MultiUserSite]:
    del guests
    usual = {"by_tickets": False, "idle_timeout": "1s", "budget": "", "policy": ""}
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        multi_user = MultiUserSite(Path(directory), **{**usual, **getattr(request, "param", {})})
        try:
            multi_user.start()
            yield multi_user
        finally:
            multi_user.reap()
