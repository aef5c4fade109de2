"""Home is killed and comes back without its latest events: no copy at the peer is lost or runs twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodemanager.flux import bindings, kvs
from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually


@pytest.fixture
def site() -> Iterator[Delegating]:
    with delegating(checkpoint="1h") as running:
        yield running


def checkpoint(site: Delegating) -> None:
    """Have home write its state to disk: a synchronous commit of Flux's KVS does."""
    with bindings.connection(site.elastic.site.flux.uri) as handle:
        kvs.commit(handle, {"test.checkpoint": "1"}, timeout_s=30.0)


def recorded(site: Delegating, job: str) -> int:
    """How often the manager has put a copy of a job on record."""
    return sum(it["job"].lstrip("fƒ") == job.lstrip("fƒ") for it in site.manager.said("delegated"))


@pytest.mark.parametrize("manager", ["goes on", "is killed too"])
def test_copies_whose_record_was_lost_are_adopted_and_those_of_lost_jobs_are_cancelled(
    site: Delegating, manager: str
) -> None:
    site.manager.kill()
    short = site.submit(*site.counting("short", "echo short said; exit 6"))
    long = site.submit(*site.counting("long", "echo long said; sleep 25; exit 5"))
    for job in (short, long):
        site.until(job, "D")
    checkpoint(site)
    site.start_manager()
    assert site.ends(short) == ("F", "6")
    site.until(long, "R")
    late = site.submit(*site.counting("late", "sleep 600"))
    site.until(late, "R")
    if manager == "is killed too":
        site.manager.kill()
    site.elastic.kill_head()
    site.elastic.start_head()
    assert late not in site.flux("jobs", "-ano", "{id}"), "home has lost it"
    if manager == "is killed too":
        for job in (short, long):
            assert "delegate::submit" not in site.flux("job", "eventlog", job), "home has lost it"
        site.start_manager()
    assert site.ends(short, 60) == ("F", "6")
    assert site.ends(long, 60) == ("F", "5")
    assert [site.runs(name) for name in ("short", "long", "late")] == [1, 1, 1]
    assert [site.output(job).count("said") for job in (short, long)] == [1, 1]
    eventually(
        "the copy of the lost job is cancelled", lambda: sorted(it[1] for it in site.copies()) == ["CA", "F", "F"]
    )
    site.manager.until_said("copy_without_a_job", peer="b")
    once_more = 1 if manager == "is killed too" else 2  # for each manager: its log begins with it
    assert [recorded(site, job) for job in (short, long)] == [once_more, once_more]
