"""A multi-user instance: guests' jobs on nodes that the manager boots, and the drains that a guest can cause.

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

from nodemanager.config.site import load_site
from nodemanager.core.drains import is_drain_by_flux
from nodemanager.flux.setup.bootstrap import start_command
from tests.live.instance import eventually, free_port, why_no_flux
from tests.live.manager_process import ManagerProcess
from tests.live.processes import END_WITHIN_S, kill_all, start, without_flux
from tests.paths import ROOT

OWNER = "flux"
GUESTS = ("fnm-guest1", "fnm-guest2")
NODE_WITHIN_S = 60.0
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

    def __init__(self, folder: Path, *, by_tickets: bool, idle_timeout: str, budget: str) -> None:
        self.folder = folder
        join = JOIN.format(port=free_port()) if by_tickets else ""
        text = SITE.format(folder=folder, port=free_port(), join=join, idle_timeout=idle_timeout, budget=budget)
        (folder / "site.ini").write_text(text, encoding="utf-8")
        (folder / "initrc.lua").write_text(ENDS_BEFORE_THE_BARRIER, encoding="utf-8")
        self._own()
        self._started: list[psutil.Popen] = []
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
        command = [sys.executable, "-m", "nodemanager", *arguments, "--config", str(self.folder / "site.ini")]
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
        self._start("head", start_command(self.site, self.folder / "state" / "flux"))
        eventually("rank 0 runs", lambda: " run " in self.flux(OWNER, "uptime", check=False))
        service = [sys.executable, "-m", "nodemanager"]
        config = ["--config", str(self.folder / "site.ini")]
        if str(self.site.flux.join) == "service":
            self._start("join", [*service, "join-service", *config])
        manager = self._start("manager", [*service, *config])
        self.manager = ManagerProcess(manager, self.folder / "manager.log")
        self.manager.until_said("claimed")

    def _start(self, name: str, command: Sequence[str]) -> psutil.Popen:
        process = start(as_user(OWNER, command, reads_all=True), self.folder / f"{name}.log")
        self._started.append(process)
        return process

    def flux(self, user: str, *command: str, check: bool = True) -> str:
        ran = subprocess.run(
            as_user(user, ["flux", *command]),
            check=False,
            capture_output=True,
            text=True,
            timeout=NODE_WITHIN_S,
            cwd="/",
            env=without_flux() | {"FLUX_URI": self.uri, "HOME": "/"},
        )
        if check and ran.returncode != 0:
            raise AssertionError(f"{user}: flux {' '.join(command)}: {ran.stdout}{ran.stderr}\n{self.logs()}")
        return ran.stdout.strip()

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
    options = {"by_tickets": False, "idle_timeout": "1s", "budget": "", **getattr(request, "param", {})}
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        multi_user = MultiUserSite(Path(directory), **options)
        try:
            multi_user.start()
            yield multi_user
        finally:
            multi_user.reap()


@pytest.mark.parametrize("site", [{"by_tickets": False}, {"by_tickets": True}], indirect=True)
def test_jobs_of_guests_and_of_the_owner_run_under_their_own_uids_on_nodes_that_are_booted_for_them(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    assert f"chmod o+x {site.folder}/state" in site.warnings
    for name, uid in {**guests, OWNER: pwd.getpwnam(OWNER).pw_uid}.items():
        ran = site.flux(name, "run", "-N1", "sh", "-c", "id -u; flux getattr hostname").split()
        assert ran == [str(uid), "cloud1"]
    assert not any(is_drain_by_flux(reason) for reason in site.drains().values())
    site.eventually("the node leaves", lambda: site.online() == [])


def test_nodes_that_a_guest_made_flux_drain_leave_and_their_slots_serve_the_next_job(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    ((first, _), (second, uid)) = guests.items()
    # A job of one shell has no barrier.
    site.flux(first, "submit", "-N2", f"--setopt=initrc={site.folder}/initrc.lua", "true")
    site.eventually(
        "drained nodes are retired",
        lambda: site.manager.said("decided", because="drained_by_flux", order="DrainNode"),
    )
    assert (
        "terminated before first barrier" in site.manager.said("decided", because="drained_by_flux")[0]["because"]
    )
    assert site.flux(second, "run", "-N2", "id", "-u").split() == [str(uid)] * 2
    assert not any(is_drain_by_flux(reason) for reason in site.drains().values())


@pytest.mark.parametrize("site", [{"idle_timeout": "1h"}], indirect=True)
def test_a_node_that_a_person_drained_stays_and_is_counted(site: MultiUserSite, guests: dict[str, int]) -> None:
    name, uid = next(iter(guests.items()))
    assert site.flux(name, "run", "-N1", "id", "-u") == str(uid)
    site.flux(OWNER, "resource", "drain", "cloud1", "broken fan")
    held = {"flux": {"count": 0, "price_per_hour": 0.0}, "person": {"count": 1, "price_per_hour": 0.1}}
    site.eventually("it is counted", lambda: site.status()["drained"] == held)
    assert site.flux(name, "run", "-N1", "--requires=other", "id", "-u") == str(
        uid
    )  # meanwhile another type serves
    assert site.drains() == {"cloud1": "broken fan"}


@pytest.mark.parametrize("site", [{"budget": "[Budget]\nuser_per_day = 0.5"}], indirect=True)
def test_a_guest_s_job_beyond_the_guest_s_budget_is_held_and_the_other_guest_is_served(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    ((first, _), (second, uid)) = guests.items()
    job = site.flux(first, "submit", "-N1", "-t", "10h", "true")  # a dollar
    assert site.flux(second, "run", "-N1", "-t", "1m", "id", "-u") == str(uid)

    def seen(what: str) -> str:
        return site.flux(OWNER, "jobs", "-no", what, job)

    site.eventually("it is held", lambda: seen("{urgency}") == "0")
    site.eventually("its memo says why", lambda: "held (urgency 0) until then" in seen("{user.nodes}"))
    assert f"user {first}" in seen("{user.nodes}")
    for user in (first, OWNER):
        assert site.explain(user, job)["reason"]["code"] == "budget_of_account"  # type: ignore[index]
    assert "you have no active job" in str(site.explain(second, job)["error"])
    text = (site.folder / "site.ini").read_text(encoding="utf-8").replace("user_per_day = 0.5", "user_per_day = 5")
    (site.folder / "site.ini").write_text(text, encoding="utf-8")
    site.verb("reload")
    site.eventually("it is released and runs", lambda: seen("{result}") == "COMPLETED")
    keys = site.flux(OWNER, "kvs", "dir", "node-manager", check=False)
    site.eventually("nothing is recorded", lambda: "held-jobs" not in keys or not site.held_on_record())


def test_after_three_of_a_guest_s_jobs_have_drained_a_node_the_next_is_held_and_the_other_guest_is_served(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    ((first, _), (second, uid)) = guests.items()
    for _ in range(3):
        bad = site.flux(first, "submit", "-N2", f"--setopt=initrc={site.folder}/initrc.lua", "true")
        site.eventually(f"{bad} has drained a node", lambda bad=bad: site.drains_by_flux_because_of(bad))
        site.eventually("the nodes leave", lambda: site.online() == [])
    job = site.flux(first, "submit", "-N1", "true")
    assert site.flux(second, "run", "-N1", "id", "-u").split() == [str(uid)]
    site.eventually("it is held", lambda: site.flux(OWNER, "jobs", "-no", "{urgency}", job) == "0")
    assert "made Flux drain nodes" in site.flux(OWNER, "jobs", "-no", "{user.nodes}", job)


@pytest.mark.parametrize("site", [{"by_tickets": False}, {"by_tickets": True}], indirect=True)
def test_no_job_begins_beside_a_guest_s_process_that_has_survived_its_broker(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    ((first, _), (second, uid)) = guests.items()
    site.flux(first, "submit", "-N1", "sleep", "7777")
    site.eventually("the job runs", lambda: site.processes_of(first, "sleep"))
    (task,) = site.processes_of(first, "sleep")
    next(it for it in task.parents() if it.name().startswith("flux-broker")).kill()
    site.eventually("the node is told to end", lambda: site.reason_of("cloud1") == "process_survives")
    assert f"process {task.pid} of user {first}" in site.verb("explain", "node", "cloud1")
    ran = site.flux(second, "run", "-N1", "sh", "-c", "id -u; flux overlay lookup $(flux getattr rank)")
    assert ran.split() == [str(uid), "other1"]
    assert task.is_running()
    task.kill()
    site.eventually("the node is gone", lambda: site.reason_of("cloud1") == "")
    site.flux(second, "submit", "-N2", "true")
    site.eventually("its slot serves again", lambda: "cloud1" in ",".join(site.online()))
