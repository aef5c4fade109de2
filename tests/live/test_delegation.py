"""A job submitted here runs in another instance, and looks as if it ran here: on real instances."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.live.delegating import Delegating, delegating
from tests.live.instance import carries_wait_status, eventually


@pytest.fixture(scope="module")
def site() -> Iterator[Delegating]:
    with delegating(policy="delegate_to = any") as running:
        yield running


def cores_allocated(site: Delegating) -> int:
    lines = site.flux("resource", "list", "-no", "{state} {ncores}", "--states=allocated").splitlines()
    return sum(int(line.split()[1]) for line in lines)


@pytest.mark.smoke
def test_its_exit_code_its_output_and_its_node(site: Delegating) -> None:
    job = site.submit("sh", "-c", "echo to stdout; echo to stderr >&2; exit 3")
    assert site.ends(job) == ("F", "3")
    assert site.field(job, "nodelist") == "b"
    assert "to stdout" in site.output(job)
    (copy,) = [
        it for it in site.copies() if it[0] == site.flux("job", "eventlog", job).split("jobid=")[1].split()[0]
    ]
    assert copy[1] == "F"
    assert site.field(job, "user.delegated").startswith("b ")
    assert not site.elastic.witness.living(), "no node was bought for it"


def test_it_is_pending_and_running_as_its_copy_and_takes_no_core_here(site: Delegating) -> None:
    blocker = site.b.submit("-n4", "sleep", "60")
    job = site.submit("sleep", "60")
    eventually("there is a copy", lambda: any(state == "S" for _, state, _ in site.copies()))
    assert site.state(job) == "D"
    site.b.flux("cancel", blocker)
    site.until(job, "R")
    assert cores_allocated(site) == 0
    site.flux("cancel", job)
    assert site.ends(job)[0] == "CA"
    eventually("the copy is cancelled", lambda: not any(state in {"R", "S"} for _, state, _ in site.copies()))


def test_it_succeeds(site: Delegating) -> None:
    assert site.ends(site.submit("true")) == ("CD", "0")


def test_it_waits_for_the_begin_time_of_its_user(site: Delegating) -> None:
    begins_at = time.time() + 3.0
    job = site.flux("submit", "--begin-time=+3s", "--dependency=delegate:b", "true")
    assert site.ends(job) == ("CD", "0")
    assert float(site.field(job, "t_run")) >= begins_at


def test_flux_run_returns_the_exit_code(site: Delegating) -> None:
    ran = site.flux("run", "--dependency=delegate:b", "sh", "-c", "echo here; exit 5", check=False)
    assert "here" in ran


def test_a_signal(site: Delegating) -> None:
    assert site.ends(site.submit("sh", "-c", "kill -SEGV $$")) == ("F", "139")


def test_a_time_limit(site: Delegating) -> None:
    job = site.submit("-t", "1s", "sleep", "60")
    by_alarm, by_termination = "142", "143"
    assert site.ends(job) == ("TO", by_alarm if carries_wait_status() else by_termination)


@pytest.mark.smoke
def test_cancelled_there(site: Delegating) -> None:
    job = site.submit("sleep", "60")
    site.until(job, "R")
    running = next(it[0] for it in site.copies() if it[1] == "R")
    site.b.flux("cancel", "-m", "maintenance", running)
    assert site.ends(job)[0] == "CA"
    assert "remote: b: maintenance" in site.field(job, "exception.note")


def test_output_while_it_runs(site: Delegating) -> None:
    job = site.submit("sh", "-c", "echo first; sleep 60")
    site.until(job, "R")
    eventually(
        "its first line is here",
        lambda: (
            "first"
            in site.flux(
                "kvs",
                "get",
                "--raw",
                f"--namespace=job-{site.flux('job', 'id', '--to=dec', job)}",
                "output",
                check=False,
            )
        ),
    )
    site.flux("cancel", job)
    site.ends(job)


def test_urgency_and_hold_go_along(site: Delegating) -> None:
    blocker = site.b.submit("-n4", "sleep", "60")
    job = site.submit("true")
    eventually("released", lambda: any(it[1:] == ["S", "16"] for it in site.copies()))
    site.flux("job", "urgency", job, "20")
    eventually("more urgent", lambda: any(it[1:] == ["S", "20"] for it in site.copies()))
    site.flux("job", "urgency", job, "hold")
    eventually("held", lambda: any(it[1:] == ["S", "0"] for it in site.copies()))
    site.b.flux("cancel", blocker)
    site.flux("job", "urgency", job, "default")
    assert site.ends(job) == ("CD", "0")


def test_a_longer_time_limit_goes_along(site: Delegating) -> None:
    job = site.submit("-t", "30s", "sleep", "60")
    site.until(job, "R")
    site.flux("update", job, "duration=2s")
    assert site.ends(job)[0] == "TO"


def test_a_job_that_never_fits_fails_with_the_peer_s_words(site: Delegating) -> None:
    before = len(site.copies())
    job = site.submit("-N9", "true")
    assert site.ends(job)[0] == "F"
    assert "unsatisfiable" in site.field(job, "exception.note")
    assert len(site.copies()) == before


def test_an_unknown_peer(site: Delegating) -> None:
    job = site.submit("true", to="nowhere")
    assert site.ends(job)[0] == "F"
    assert "there is no [Peer nowhere]" in site.field(job, "exception.note")


def test_a_uri(site: Delegating) -> None:
    job = site.submit("sh", "-c", "exit 6", to=site.b.uri)
    assert site.ends(job) == ("F", "6")


def test_any_peer(site: Delegating) -> None:
    job = site.submit("sh", "-c", "exit 7", to="any")
    assert site.ends(job) == ("F", "7")
    assert site.field(job, "nodelist") == "b", "not any"


def test_its_other_dependencies_come_first(site: Delegating) -> None:
    first = site.submit("sh", "-c", "sleep 1; exit 0")
    job = site.flux("submit", f"--dependency=afterok:{first}", "--dependency=delegate:b", "true")
    assert site.ends(job) == ("CD", "0")
    ended, began = site.field(first, "t_inactive"), site.field(job, "t_run")
    assert float(began) > float(ended)


def test_the_verbs_know_it(site: Delegating) -> None:
    job = site.submit("sleep", "60")
    site.until(job, "R")
    decimal = site.flux("job", "id", "--to=dec", job)
    eventually("it is explained", lambda: "runs at b as" in site.elastic.verb("explain", "job", decimal))
    assert "flux job kill" in site.elastic.verb("explain", "job", decimal)
    peers = json.loads(site.elastic.verb("peers", "--json"))
    peer = peers["peers"][0]
    assert (peer["name"], peer["reachable"], peer["jobs"] > 0) == ("b", True, True)
    assert peer["load"]["scheduler"] == "sched-simple"
    assert "sched-simple" in site.elastic.verb("peers")
    assert "peer_connected" in site.elastic.verb("events")
    assert "good" in site.elastic.verb("check")
    site.flux("cancel", job)
    assert site.ends(job)[0] == "CA"


def test_output_is_cut_at_the_limit() -> None:
    with delegating(peer_lines="output_max = 20KiB") as small:
        job = small.submit("sh", "-c", "for i in $(seq 4000); do echo line $i of many; done")
        assert small.ends(job) == ("CD", "0")
        text = small.output(job)
        assert "line 1 of many" in text
        assert "line 4000 of many" not in text
