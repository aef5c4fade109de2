"""Nothing is lost and nothing runs twice, whatever is killed: on real instances."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodemanager.flux import bindings, kvs
from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually
from tests.live.killed_delegating import STEPS
from tests.live.manager_process import ManagerProcess

KILLED = -signal.SIGKILL
AWAY_S = 130.0


def _was_killed(manager: ManagerProcess) -> bool:
    return manager.status == KILLED


@pytest.fixture
def site() -> Iterator[Delegating]:
    with delegating() as running:
        yield running


@pytest.fixture(scope="module")
def steady() -> Iterator[Delegating]:
    with delegating() as running:
        yield running


@pytest.mark.parametrize("step", STEPS)
def test_a_manager_killed_at_any_step(steady: Delegating, step: str) -> None:
    """It is killed right before and right after it sends the step's request; each time the next one goes on."""
    for when in ("before", "after"):
        steady.manager.kill()
        name = f"{step}-{when}"
        job = steady.submit(*steady.counting(name, "echo said; sleep 1; exit 4"))
        killed = steady.elastic.start_manager(f"--kill={step}:{when}", module="tests.live.killed_delegating")
        eventually("the manager is killed", partial(_was_killed, killed), within_s=40)
        steady.start_manager()
        assert steady.ends(job) == ("F", "4")
        assert steady.runs(name) == 1
        assert steady.output(job).count("said") == 1
        eventually("no copy is left", lambda: not any(it[1] in {"S", "R"} for it in steady.copies()))


def test_a_manager_killed_with_jobs_in_every_state(site: Delegating) -> None:
    running = site.submit(*site.counting("running", "sleep 4; exit 7"))
    site.until(running, "R")
    blocker = site.b.submit("-n3", "sleep", "60")
    pending = site.submit("-n4", *site.counting("pending", "exit 8"))
    eventually("a copy waits", lambda: any(it[1] == "S" for it in site.copies()))
    site.manager.kill()
    late = site.submit(*site.counting("late", "exit 9"))
    site.b.flux("cancel", blocker)
    site.start_manager()
    assert site.ends(running) == ("F", "7")
    assert site.ends(pending) == ("F", "8")
    assert site.ends(late) == ("F", "9")
    assert [site.runs(name) for name in ("running", "pending", "late")] == [1, 4, 1]


def test_home_restarts_in_good_order(site: Delegating) -> None:
    running = site.submit(*site.counting("running", "sleep 12; exit 7"))
    site.until(running, "R")
    site.b.flux("queue", "stop", "--all")
    pending = site.submit(*site.counting("pending", "exit 8"))
    eventually("a copy waits", lambda: any(it[1] == "S" for it in site.copies()))
    site.elastic.stop_head()
    site.elastic.start_head()
    site.b.flux("queue", "start", "--all")
    assert site.ends(pending, 60) == ("F", "8")
    assert site.ends(running, 60) == ("F", "7")
    assert [site.runs(name) for name in ("running", "pending")] == [1, 1]


def test_home_is_killed(site: Delegating) -> None:
    """A job that waits survives. One that runs fails, as Flux cannot take it up, and so its copy is cancelled."""
    running = site.submit(*site.counting("running", "sleep 60"))
    site.until(running, "R")
    site.b.flux("queue", "stop", "--all")
    pending = site.submit(*site.counting("pending", "exit 8"))
    eventually("a copy waits", lambda: any(it[1] == "S" for it in site.copies()))
    site.until_checkpoint()
    site.elastic.kill_head()
    site.elastic.start_head()
    site.b.flux("queue", "start", "--all")
    assert site.ends(pending, 60) == ("F", "8")
    assert site.ends(running, 60)[0] in {"F", "CA"}
    eventually("no copy runs", lambda: not any(it[1] in {"S", "R"} for it in site.copies()))
    assert site.runs("pending") == 1


def test_a_peer_restarts_with_its_state(site: Delegating) -> None:
    site.b.flux("queue", "stop", "--all")
    pending = site.submit(*site.counting("pending", "exit 8"))
    eventually("a copy waits", lambda: any(it[1] == "S" for it in site.copies()))
    site.b.stop()
    site.manager.until_said("peer_lost", peer="b")
    site.b.start()
    site.b.flux("queue", "start", "--all")
    assert site.ends(pending, 60) == ("F", "8")
    assert site.runs("pending") == 1


def test_a_peer_is_killed_and_comes_back_with_its_state(site: Delegating) -> None:
    """The copy that ran fails there, as Flux cannot take it up again, and so does its job, in the same way."""
    running = site.submit(*site.counting("running", "sleep 600"))
    site.until(running, "R")
    site.b.flux("queue", "stop", "--all")
    pending = site.submit(*site.counting("pending", "exit 8"))
    eventually("a copy waits", lambda: any(it[1:] == ["S", "16"] for it in site.copies()))
    with bindings.connection(site.b.uri) as handle:
        kvs.commit(handle, {"test.checkpoint": "1"}, timeout_s=30.0)
    site.b.kill()
    site.manager.until_said("peer_lost", peer="b")
    site.b.start()
    site.b.flux("queue", "start", "--all")
    assert site.ends(pending, 60) == ("F", "8")
    assert site.ends(running, 60)[0] == "F"
    assert site.field(running, "exception.type") == "exec"
    assert site.field(running, "exception.note").startswith("remote: b: ")
    assert [site.runs(name) for name in ("running", "pending")] == [1, 1]


def test_a_peer_that_is_away_for_minutes(site: Delegating) -> None:
    """A job there ends meanwhile, another one is submitted here. Nothing is given up."""
    running = site.submit(*site.counting("running", "echo said; sleep 30; exit 7"))
    site.until(running, "R")
    site.b.freeze()
    until_s = time.monotonic() + AWAY_S
    late = site.submit(*site.counting("late", "exit 9"))
    site.manager.until_said("peer_lost", peer="b")
    eventually("minutes have passed", lambda: time.monotonic() > until_s, AWAY_S + 10)
    assert [site.state(job) for job in (running, late)] == ["R", "D"]
    site.b.thaw()
    assert site.ends(running, 60) == ("F", "7")
    assert site.ends(late, 60) == ("F", "9")
    assert [site.runs(name) for name in ("running", "late")] == [1, 1]
    assert site.output(running).count("said") == 1


def test_a_peer_that_lost_its_state_fails_the_job(site: Delegating) -> None:
    running = site.submit(*site.counting("running", "sleep 60"))
    site.until(running, "R")
    site.b.kill()
    site.b.forget_everything()
    site.b.start()
    assert site.ends(running, 60)[0] == "F"
    assert "lost its state" in site.field(running, "exception.note")
    assert site.runs("running") == 1


def test_a_job_cancelled_while_its_peer_is_away(site: Delegating) -> None:
    job = site.submit(*site.counting("job", "sleep 60"))
    site.until(job, "R")
    site.b.freeze()
    site.manager.until_said("peer_lost", peer="b")
    site.flux("cancel", job)
    site.until(job, "CA")
    site.b.thaw()
    eventually("its copy is cancelled", lambda: not any(it[1] == "R" for it in site.copies()), within_s=60)


def test_a_peer_that_hangs_keeps_no_other_job_waiting() -> None:
    with delegating(("b", "c")) as site:
        site.b.freeze()
        stuck = site.submit("true", to="b")
        job = site.submit("sh", "-c", "exit 5", to="c")
        assert site.ends(job) == ("F", "5")
        assert site.ends(site.submit("sh", "-c", "exit 6", to="any"), 60) == ("F", "6")
        assert site.state(stuck) == "D"
        site.b.thaw()
        assert site.ends(stuck, 60) == ("CD", "0")


def test_a_peer_that_hangs_while_it_is_opened_keeps_no_other_job_waiting() -> None:
    """Its socket takes the connection, and nobody ever says anything."""
    with delegating(("b", "c")) as site:
        site.manager.kill()
        site.b.freeze()
        site.manager = site.elastic.start_manager()
        site.manager.until_said("peer_connected", peer="c")
        stuck = site.submit(*site.counting("stuck", "exit 4"), to="b")
        for target, code in (("c", "5"), ("any", "6")):
            assert site.ends(site.submit("sh", "-c", f"exit {code}", to=target)) == ("F", code)
        assert site.state(stuck) == "D"
        assert not site.manager.said("peer_connected", peer="b")
        assert "b" in site.elastic.verb("peers")
        site.b.thaw()
        assert site.ends(stuck, 60) == ("F", "4")
        assert site.runs("stuck") == 1


def test_a_refusal_makes_way_for_the_next_peer() -> None:
    """Peer b takes no jobs while its queue is disabled, and refuses the submission."""
    with delegating(("b", "c")) as site:
        site.b.flux("queue", "disable", "--message=maintenance", "--all")
        job = site.submit("sh", "-c", "exit 6", to="any")
        assert site.ends(job) == ("F", "6")
        assert site.field(job, "nodelist") == "c"
        assert not site.copies("b")


def test_two_managers(site: Delegating) -> None:
    """The first is suspended; the second cannot act while the name is held. Once it is gone the second goes on."""
    second = site.elastic.start_manager()
    second.until_said("delegation_stopped")
    job = site.submit(*site.counting("job", "sleep 3; exit 4"))
    site.until(job, "R")
    site.manager.kill()
    second.until_said("delegation_ready")
    assert site.ends(job, 60) == ("F", "4")
    assert site.runs("job") == 1


def test_a_copy_of_a_lost_job_never_starts_if_it_was_held(site: Delegating) -> None:
    """A copy that no job at home knows is held, so it is cancelled."""
    jobspec = Path(site.folder / "copy.json")
    text = site.b.flux("submit", "--dry-run", *site.counting("orphan"))
    uuid = site.elastic.site.cluster_uuid
    jobspec.write_text(
        text.replace('"system": {', f'"system": {{"node-manager": {{"delegated-from": "{uuid}/5/1.0"}}, ', 1)
    )
    site.b.flux("job", "submit", "--urgency=0", str(jobspec))
    eventually("it is cancelled", lambda: [it[1] for it in site.copies()] == ["CA"])
    assert site.runs("orphan") == 0


def test_both_sides_accounting_agrees(site: Delegating) -> None:
    """Job by job: state, exit code or signal, exception, and when it began."""
    commands = ("exit 0", "exit 3", "kill -SEGV $$", "kill -TERM $$", "sleep 600")
    jobs = [site.submit("-t", "4s", "sh", "-c", command) for command in commands]
    cancelled = site.submit("sleep", "600")
    site.until(cancelled, "R")
    site.flux("cancel", cancelled)
    fields = "{status_abbrev} {returncode} {exception.type}"
    shown = []
    for job in (*jobs, cancelled):
        site.ends(job)
        events = events_of(site.flux, job)
        remote = str(events["delegate::submit"]["context"]["jobid"])
        there = site.b.flux("jobs", "-ano", fields, remote)
        here = site.flux("jobs", "-ano", fields, job)
        # A job that is cancelled here ends at once, by signal 15; its shell there ends as a shell does.
        assert here == (there.replace("143", "-15") if job == cancelled else there)
        began_at = events_of(site.b.flux, remote)["start"]["timestamp"]
        assert events["delegate::start"]["context"]["timestamp"] == began_at
        shown.append(there.split()[0])
    assert shown == ["CD", "F", "F", "F", "TO", "CA"]


def events_of(flux: Callable[..., str], job: str) -> dict[str, Any]:
    """The latest event of each name."""
    return {it["name"]: it for it in map(json.loads, flux("job", "eventlog", "-fjson", job).splitlines())}


def test_both_sides_agree_on_many_jobs(site: Delegating) -> None:
    """A thousand at once, with one restart of the manager among them."""
    site.flux("submit", "--cc=1-1000", "--quiet", "--dependency=delegate:b", *site.counting("many"))
    eventually("some have ended", lambda: site.runs("many") > 100, within_s=120)
    site.manager.kill()
    site.start_manager()
    eventually("all have ended", lambda: not site.flux("jobs", "-no", "{id}"), within_s=240)
    ended = site.flux("jobs", "-ano", "{status_abbrev}", "--count=0").splitlines()
    assert ended == ["CD"] * 1000
    assert site.runs("many") == 1000
    there = site.b.flux("jobs", "-ano", "{status_abbrev}", "--count=0").splitlines()
    assert sorted(it for it in there if it != "CA") == ["CD"] * 1000, (
        "a copy that was not put on record is cancelled"
    )
