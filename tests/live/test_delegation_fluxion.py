"""A peer whose scheduler is Fluxion: what it says about itself is read, and delegated jobs run there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually

LIMIT_S = 300


@pytest.fixture(scope="module")
def site() -> Iterator[Delegating]:
    with delegating() as running:
        if "sched-fluxion-qmanager" not in running.b.flux("module", "list"):
            pytest.skip("the scheduler of this flux is not Fluxion")
        yield running


def load(site: Delegating) -> dict[str, Any]:
    """The peer, as ``peers`` shows it."""
    (peer,) = json.loads(site.elastic.verb("peers", "--json"))["peers"]
    assert peer["reachable"]
    found: dict[str, Any] = peer["load"]
    return found


def until(site: Delegating, **figures: object) -> dict[str, Any]:
    """Wait until it shows these figures; the manager asks the peer every 5 s."""
    eventually(f"{figures}", lambda: figures.items() <= load(site).items())
    return load(site)


def test_its_nodes_and_its_scheduler(site: Delegating) -> None:
    until(site, scheduler="fluxion", nodes=1, nodes_free=1, cores=4, cores_free=4, waiting=0, wait_s=0.0)


def test_a_delegated_job_runs_there(site: Delegating) -> None:
    for target in ("b", "any"):
        job = site.submit(*site.counting(f"to-{target}", "echo said; exit 3"), to=target)
        assert site.ends(job) == ("F", "3")
        assert site.field(job, "nodelist") == "b"
        assert site.output(job).count("said") == 1
        assert site.runs(f"to-{target}") == 1


def test_a_job_that_never_fits_fails_with_its_words_and_is_not_submitted(site: Delegating) -> None:
    before = len(site.copies())
    job = site.submit("-N9", "true")
    assert site.ends(job)[0] == "F"
    assert "unsatisfiable" in site.field(job, "exception.note").lower()
    assert len(site.copies()) == before


def test_its_backlog_is_its_lists_of_waiting_jobs_and_its_wait_is_when_the_last_of_them_begins(
    site: Delegating,
) -> None:
    blocker = site.b.submit("-n4", f"-t{LIMIT_S}s", "sleep", "600")
    site.b.until(blocker, "R")
    waiting = [site.b.submit("-n4", f"-t{LIMIT_S}s", "sleep", "600") for _ in range(3)]
    busy = until(site, waiting=3, running=1, cores_free=0)
    # Its policy "easy" reserves a time for the first waiting job only.
    assert busy["wait_s"] is not None
    assert 0 < busy["wait_s"] <= LIMIT_S
    for job in (*waiting, blocker):
        site.b.flux("cancel", job)
    until(site, waiting=0, running=0, cores_free=4, wait_s=0.0)


def test_a_delegated_job_waits_there_and_is_cancelled(site: Delegating) -> None:
    blocker = site.b.submit("-n4", "sleep", "600")
    site.b.until(blocker, "R")
    waiting, job = site.submit("true"), site.submit("sleep", "600")
    eventually("both wait", lambda: sum(it[1] == "S" for it in site.copies()) == 2)
    site.flux("cancel", job)
    assert site.ends(job)[0] == "CA"
    site.b.flux("cancel", blocker)
    assert site.ends(waiting) == ("CD", "0")
    eventually("none is left", lambda: not any(it[1] in {"S", "R"} for it in site.copies()))
