"""A multi-user instance: guests' jobs on nodes that the manager boots, and the drains that a guest can cause."""

from __future__ import annotations

import json
import pwd
import shutil
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random

import pytest

from nodemanager.core.drains import is_drain_by_flux
from nodemanager.simulation.odd_jobspecs import NAMED, odd_jobspec, plain_jobspec, replaced
from tests.live.multi_user import OWNER, MultiUserSite, guests, site
from tests.live.test_odd_jobspecs import COUNT
from tests.paths import ROOT

__all__ = ["guests", "site"]  # the fixtures

RPC = "import flux, json, sys; print(flux.Flux().rpc(sys.argv[1], json.loads(sys.argv[2])).get())"
# What a guest must not be able to do. JOB is another guest's waiting job, RANK the rank of a node.
ATTACKS: Mapping[str, Sequence[str]] = {
    "take the manager's name": ("python", "-c", RPC, "service.add", '{"service": "node-manager"}'),
    "take the name of its answers": ("python", "-c", RPC, "service.add", '{"service": "node-manager-info"}'),
    "ask who acts": ("python", "-c", RPC, "node-manager.owner", "{}"),
    "ask for nodes": ("python", "-c", RPC, "node-manager.floor", '{"ensemble": "x", "nodes": 9}'),
    "read the jobs of others": ("python", "-c", RPC, "node-manager-info.explain", '{"id": "JOB"}'),
    "drain with the manager's mark": ("resource", "drain", "RANK", "flux-node-manager:cloud1-1"),
    "undrain": ("resource", "undrain", "RANK"),
    "write the manager's record": ("kvs", "put", "node-manager.leases.other1=x"),
    "delete the manager's record": ("kvs", "unlink", "-R", "node-manager"),
    "write a memo on another's job": ("job", "memo", "JOB", "nodes=x"),
    "cancel another's job": ("cancel", "JOB"),
    "change the urgency of another's job": ("job", "urgency", "JOB", "31"),
    "stop a queue": ("queue", "stop", "--all"),
    "disconnect a node": ("overlay", "disconnect", "RANK"),
    "run a command on a node": ("exec", "-r", "RANK", "true"),
    "remove the scheduler": ("module", "remove", "sched-simple"),
    "change the configuration": ("config", "reload"),
    "raise its own job": ("submit", "--urgency=31", "true"),
    "stop the instance": ("shutdown",),
}
# The batch script of a guest. It ends when the test says so.
GIVES_BACK = """\
#!/bin/sh
cd {root}
PYTHONPATH={root}:{packages} flux python -m nodemanager release-idle > {folder}/told 2>&1
echo $? > {folder}/status
until [ -e {folder}/end ]; do sleep 0.1; done
flux run -N1 id -u > {folder}/ran 2>&1 || exit 99
exit 7
"""
PACKAGES = sysconfig.get_path("purelib")
FILES = (
    "state/cluster-uuid",
    "state/flux/curve.cert",
    "state/token",
    "state/journal.sqlite",
    "state/cloud/nodes",
)


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


def test_odd_jobspecs_of_a_guest_stop_no_job_of_another(site: MultiUserSite, guests: dict[str, int]) -> None:
    """FNM_ODD_JOBSPECS says how many."""
    hostile, other = guests
    draws = Random("guest")
    named = [json.dumps(replaced(plain_jobspec(), place, value)) for place, value in NAMED]
    urgencies = ("--urgency=0", "--urgency=1")  # the other guest's job comes first
    taken = [
        site.flux(hostile, "job", "submit", draws.choice(urgencies), check=False, given=jobspec)
        for jobspec in (*named, *odd_jobspecs(draws))
    ]
    assert any(taken)
    probe = site.flux(other, "submit", "id", "-u")
    site.eventually("it has run", lambda: site.flux(other, "jobs", "-no", "{result}", probe) == "COMPLETED")
    site.manager.kill()
    site.start_manager()
    site.flux(hostile, "cancel", "--all", check=False)
    again = site.flux(other, "submit", "id", "-u")
    site.eventually("it has run too", lambda: site.flux(other, "jobs", "-no", "{result}", again) == "COMPLETED")


def odd_jobspecs(draws: Random) -> Iterator[str]:
    for _ in range(COUNT):
        with suppress(ValueError):
            yield json.dumps(odd_jobspec(draws))


@pytest.mark.parametrize("site", [{"policy": "early_release = yes"}], indirect=True)
def test_a_guest_s_batch_job_gives_a_node_back_and_ends_with_its_own_exit_code(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    """The owner of the job is not the owner of the instance, and cannot read what the manager knows."""
    name = next(iter(guests))
    folder = site.folder / "batch"
    folder.mkdir()
    (folder / "batch.sh").write_text(GIVES_BACK.format(folder=folder, root=ROOT, packages=PACKAGES))
    (folder / "batch.sh").chmod(0o755)
    shutil.chown(folder, name)
    job = site.flux(name, "batch", "-N2", "--exclusive", f"--output={folder}/out", f"{folder}/batch.sh")
    site.eventually("it has given back", (folder / "status").exists)
    told = (folder / "told").read_text()
    assert ((folder / "status").read_text().strip(), "given back: rank 2 " in told) == ("0", True), told
    site.eventually("the node is gone", lambda: site.reason_of("other1") == "")
    assert site.manager.said("decided", because="node_given_back")
    assert site.flux(OWNER, "jobs", "-no", "{state}", job) == "RUN"
    (folder / "end").touch()
    site.eventually("it has ended", lambda: site.flux(OWNER, "jobs", "-no", "{returncode}", job) == "7")
    assert (folder / "ran").read_text().strip() == str(guests[name])  # the rest of the instance still ran jobs
    assert site.flux(name, "run", "-N2", "--exclusive", "id", "-u").split() == [str(guests[name])] * 2


# By the month: late in a day, not much of the job would count for that day.
@pytest.mark.parametrize("site", [{"budget": "[Budget]\nuser_per_month = 0.5"}], indirect=True)
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
    text = (
        (site.folder / "site.ini").read_text(encoding="utf-8").replace("user_per_month = 0.5", "user_per_month = 5")
    )
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


@pytest.mark.parametrize(
    "site", [{"budget": "[Budget]\nuser_per_month = 0.5", "idle_timeout": "1h"}], indirect=True
)
def test_what_a_guest_must_not_do_is_refused_and_changes_nothing(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    (guest, other) = guests
    site.flux(other, "run", "-N1", "true")
    job = site.flux(other, "submit", "-N1", "-t", "10h", "--requires=other", "true")  # beyond the budget
    site.eventually("it is held", lambda: site.flux(OWNER, "jobs", "-no", "{urgency}", job) == "0")
    before = site.flux(OWNER, "kvs", "dir", "-R", "node-manager"), site.drains(), site.online()

    rank = site.flux(OWNER, "overlay", "lookup", "cloud1")
    done = []
    for what, command in ATTACKS.items():
        words = [it.replace("JOB", job).replace("RANK", rank) for it in command]
        if site.status_of(guest, "flux", *words) == 0:
            done.append(what)
    assert done == []
    assert [it for it in FILES if site.status_of(guest, "cat", str(site.folder / it)) == 0] == []

    assert (site.flux(OWNER, "kvs", "dir", "-R", "node-manager"), site.drains(), site.online()) == before
    assert site.flux(OWNER, "jobs", "-no", "{urgency}", job) == "0"
    assert site.manager.status is None
    assert site.flux(other, "run", "-N1", "id", "-u") == str(guests[other])
