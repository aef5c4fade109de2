"""Jobs whose users did not ask for a peer run at one if that is better: ``burst = peers``, on real instances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually


@contextmanager
def bursting() -> Iterator[Delegating]:
    # No boot was measured yet, so a new node is expected after boot_timeout, and a peer that is free now wins.
    with delegating(policy="burst = peers", peer_lines="price_per_core_hour = 0.01") as running:
        yield running


@pytest.fixture(scope="module")
def site() -> Iterator[Delegating]:
    with bursting() as running:
        yield running


@pytest.fixture
def without_nodes() -> Iterator[Delegating]:
    """A site of its own: no other test has bought a node there, which would run the job."""
    with bursting() as running:
        yield running


def submit(site: Delegating, *command: str) -> str:
    return site.flux("submit", *command)


def names(site: Delegating, job: str) -> list[str]:
    return [json.loads(line)["name"] for line in site.flux("job", "eventlog", "-fjson", job).splitlines()]


def one_is_served(site: Delegating, jobs: list[str]) -> bool:
    """Whether one is taken, or runs on a node that was bought in an earlier round."""
    return any({"delegate::take", "alloc"} & {*names(site, job)} for job in jobs)


def test_a_waiting_job_runs_at_the_peer_and_looks_as_if_it_ran_here(without_nodes: Delegating) -> None:
    site = without_nodes
    job = submit(site, *site.counting("plain", "echo said; exit 3"))
    assert site.ends(job) == ("F", "3")
    assert site.field(job, "nodelist") == "b"
    assert "said" in site.output(job)
    assert site.runs("plain") == 1
    assert not site.elastic.witness.living(), "no node was bought for it"
    assert site.field(job, "user.delegated").startswith("b ")
    seen = names(site, job)
    order = ["delegate::take", "urgency", "jobspec-update", "delegate::submit", "delegate::start", "alloc", "start"]
    assert [name for name in order if name in seen] == sorted(order, key=seen.index) == order
    (decision,) = [it for it in site.manager.said("taken") if it["job"].lstrip("fƒ") == job.lstrip("fƒ")]
    assert "new nodes: wait" in decision["why"]


def test_it_waits_there_while_the_peer_is_busy_and_its_user_may_cancel_it(site: Delegating) -> None:
    job = submit(site, "sleep", "60")
    site.until(job, "R")
    site.flux("cancel", job)
    assert site.ends(job)[0] == "CA"
    eventually("the copy is cancelled", lambda: not any(state in {"R", "S"} for _, state, _ in site.copies()))


def test_a_user_who_raises_its_urgency_does_not_start_it_here_too(site: Delegating) -> None:
    blocker = site.b.submit("-n4", "sleep", "8")
    job = submit(site, *site.counting("raised", "exit 4"))
    eventually(
        "it is taken, or a node is bought",
        lambda: "delegate::take" in names(site, job) or bool(site.elastic.witness.living()),
        60.0,
    )
    site.flux("job", "urgency", job, "31", check=False)
    site.b.flux("cancel", blocker)
    assert site.ends(job, 60.0) == ("F", "4")
    assert site.runs("raised") == 1


@pytest.mark.parametrize("rounds", [3])
def test_the_manager_is_killed_while_it_takes_jobs(site: Delegating, rounds: int) -> None:
    jobs = []
    for number in range(rounds):
        new = [submit(site, *site.counting(f"killed{number}-{it}", "sleep 1")) for it in range(4)]
        jobs += new
        eventually("one is served", partial(one_is_served, site, new), 60.0)
        site.manager.kill()
        site.start_manager()
    for index, job in enumerate(jobs):
        assert site.ends(job, 90.0) == ("CD", "0")
        assert site.runs(f"killed{index // 4}-{index % 4}") == 1


def test_a_job_that_the_peer_refuses_runs_here(site: Delegating) -> None:
    job = submit(site, "--requires=cpu", *site.counting("refused", "exit 6"))
    assert site.ends(job, 90.0) == ("F", "6")
    assert site.field(job, "nodelist").startswith("cpu")
    assert site.runs("refused") == 1
    assert "delegate::return" in names(site, job)
