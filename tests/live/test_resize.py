"""A longer table: rank 0 restarts, and with it come more slots, on a real Flux."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.elastic import VERB_WITHIN_S, Elastic, Offer, an_elastic_site
from tests.live.instance import schedules_gpus

# A node whose job was lost comes back idle. It stays until the next job is submitted, because its time is paid.
PAID = "10m"
OFFERS = (Offer("small", "0.10", "s[1-2]"), Offer("gpu", "1.00", "g1", gpus=1))


@pytest.fixture
def site() -> Iterator[Elastic]:
    with an_elastic_site(OFFERS, billing=PAID) as elastic:
        yield elastic


def test_twenty_pending_jobs_outlive_a_resize_and_run_on_the_new_slots(site: Elastic) -> None:
    jobs = [site.submit("true", requires={"properties": ["small"]}) for _ in range(20)]

    said = resized(site, "small=5", "gpu=2")

    assert "s[3-5] of type small, g2 of type gpu" in said
    assert "0 running jobs are lost, 20 waiting jobs stay" in said
    assert {job: seen.result for job, seen in site.jobs().items()} == dict.fromkeys(jobs, "")
    # New slots have the last ranks: those that there were keep theirs.
    assert {slot: (rank.rank, rank.type_name) for slot, rank in site.ranks().items()} == {
        "s1": (1, "small"),
        "s2": (2, "small"),
        "g1": (3, "gpu"),
        "s3": (4, "small"),
        "s4": (5, "small"),
        "s5": (6, "small"),
        "g2": (7, "gpu"),
    }
    site.start_manager()
    site.eventually("all have run", lambda: {site.result(job) for job in jobs} == {"COMPLETED"}, within_s=80.0)


def test_nodes_come_back_to_the_longer_table_and_the_manager_uses_it(site: Elastic) -> None:
    site.start_manager()
    job = site.submit("sleep", "600", requires={"properties": ["small"]})
    site.eventually("the job runs", lambda: site.jobs()[job].began_at is not None)
    before = site.launches()

    resized(site, "--force", "small=5", "gpu=2")

    site.eventually("its job has ended with rank 0", lambda: site.result(job))
    wide = site.submit("true", nodes=5, requires={"properties": ["small"]})
    site.eventually("the node has come back", lambda: site.ranks()["s1"].online)
    assert set(before) <= set(site.launches())
    site.eventually("a job on all five has run", lambda: site.result(wide) == "COMPLETED", within_s=80.0)
    pair = site.submit("true", nodes=2, gpus=int(schedules_gpus()), requires={"properties": ["gpu"]})
    site.eventually("a job on both GPU nodes has run", lambda: site.result(pair) == "COMPLETED", within_s=80.0)


@pytest.fixture
def by_tickets() -> Iterator[Elastic]:
    with an_elastic_site(OFFERS, billing=PAID, by_tickets=True) as elastic:
        elastic.start_join_service()
        yield elastic


def test_nodes_that_join_by_ticket_fetch_the_longer_table_and_come_back(by_tickets: Elastic) -> None:
    site = by_tickets
    manager = site.start_manager()
    job = site.submit("sleep", "600", requires={"properties": ["small"]})
    site.eventually("the job runs", lambda: site.jobs()[job].began_at is not None)
    before = site.launches()

    resized(site, "--force", "small=5", "gpu=2")

    wide = site.submit("true", nodes=5, requires={"properties": ["small"]})
    site.eventually("the node has come back", lambda: site.ranks()["s1"].online, within_s=60.0)
    assert set(before) <= set(site.launches())
    site.eventually("a job on all five has run", lambda: site.result(wide) == "COMPLETED", within_s=80.0)
    # More than twice where a broker was begun while rank 0 was not back yet.
    assert [said["node"] for said in manager.said("node_reported", phase="started")].count(before[0].id) >= 2


def resized(site: Elastic, *options: str) -> str:
    """Run the verb, while rank 0 has a supervisor; what it said."""
    counts = [option for option in options if option != "--force"]
    flags = ["--i-restart-it", *(option for option in options if option == "--force")]
    verb = site.start_verb("resize", *flags, "--slots", *counts)
    site.restart_head_when_it_ends()
    said, _ = verb.communicate(timeout=VERB_WITHIN_S)
    assert verb.returncode == 0, f"{said}\n{site.said()}"
    return str(said)


def test_while_a_job_runs_nothing_is_changed(site: Elastic) -> None:
    site.start_manager()
    job = site.submit("sleep", "600")
    site.eventually("the job runs", lambda: site.jobs()[job].began_at is not None)

    said = site.verb("resize", "--i-restart-it", "--slots", "small=5", status=1)
    assert "1 job runs and would be lost" in said

    assert site.result(job) == ""
    assert set(site.ranks()) == {"s1", "s2", "g1"}
    ended = site.submit("true")
    site.eventually("jobs are started as before", lambda: site.result(ended) == "COMPLETED")


def test_where_nobody_restarts_rank_0_it_is_left_alone(site: Elastic) -> None:
    assert "nothing is known to restart rank 0" in site.verb("resize", "--slots", "small=5", status=1)
    assert len(site.ranks()) == 3
    assert site.result(site.submit("true", requires={"properties": ["small"]})) == "", "rank 0 is up"
