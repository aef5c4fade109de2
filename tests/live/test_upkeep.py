"""Upkeep on a real Flux with a local cloud: a new image rolls through a busy fleet, and a schedule has an edge."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nodemanager.core.drains import emptying_text
from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.test_operate import UNTIL, verb

NODES = 6
DISRUPTION_MAX = 2
EDGE_WITHIN_S = 180.0


@pytest.fixture
def fleet() -> Iterator[Elastic]:
    offers = [Offer("cpu", "0.40", "cpu[1-9]")]
    with an_elastic_site(offers, policy=f"[Disruption]\nmax = {DISRUPTION_MAX}") as elastic:
        yield elastic


def change_site(elastic: Elastic, old: str, new: str) -> None:
    """Change the site file, and have the service reload it."""
    text = elastic.site.path.read_text(encoding="utf-8")
    assert old in text
    elastic.site.path.write_text(text.replace(old, new, 1), encoding="utf-8")
    verb(elastic, "reload")


def kept_off(elastic: Elastic) -> list[str]:
    """The nodes at work that take no more jobs. An idle node leaves anyway, and nobody waits for that."""
    return [slot for slot, rank in elastic.ranks().items() if rank.drain_reason is not None and rank.allocated]


def makes(elastic: Elastic) -> set[str]:
    return {launch.made_from for launch in elastic.launches()}


def test_a_new_image_rolls_through_six_busy_nodes_and_no_job_ends_early(fleet: Elastic, tmp_path: Path) -> None:
    fleet.start_manager().until_said("claimed")
    ends = [tmp_path / f"end-{number}" for number in range(NODES)]
    jobs = [fleet.submit("sh", "-c", UNTIL, "sh", str(end)) for end in ends]
    fleet.eventually("all run", lambda: all(fleet.jobs()[job].began_at is not None for job in jobs), 90.0)
    old = makes(fleet)
    assert len(old) == 1

    change_site(fleet, "provider = local\n", "provider = local\nimage = hardened-2\n")
    fleet.eventually("all six are due", lambda: len(verb(fleet, "status")["due"]) == NODES)
    fleet.eventually("the first are drained", lambda: kept_off(fleet))
    most = 0
    for job, end in zip(jobs, ends, strict=True):
        most = max(most, len(kept_off(fleet)))
        assert fleet.jobs()[job].result == ""  # no job was ended
        end.touch()
        fleet.eventually("it ends by itself", lambda job=job: fleet.result(job) == "COMPLETED")  # type: ignore[misc]
    assert 0 < most <= DISRUPTION_MAX
    fleet.eventually("no old node is left", lambda: not old & makes(fleet), 90.0)

    again = fleet.submit("true")
    fleet.eventually("a new job runs on a new node", lambda: fleet.result(again) == "COMPLETED", 90.0)
    assert not old & makes(fleet)
    fleet.eventually("nothing is left", lambda: not fleet.what_is_left(), 90.0)


@pytest.mark.parametrize(("types", "nodes_min"), [("", 1), ("node_types = cpu\n", 0)], ids=["fleet", "one-type"])
def test_a_schedule_keeps_a_node_from_its_edge_on(fleet: Elastic, types: str, nodes_min: int) -> None:
    """``nodes_min`` of the whole fleet, or of one node type, which leaves that of the fleet at 0."""
    fleet.start_manager().until_said("claimed")
    opens = (datetime.now(UTC) + timedelta(seconds=75)).replace(second=0, microsecond=0)
    closes = opens + timedelta(minutes=1)
    when = f"Mon-Sun {opens:%H:%M}-{closes:%H:%M} UTC"
    change_site(fleet, "[Disruption]", f"[Schedule soon]\nwhen = {when}\n{types}nodes_min = 1\n[Disruption]")

    def seen() -> Any:
        return verb(fleet, "status")["limits"]["nodes_min"], len(fleet.launches())

    fleet.eventually(
        "the window opens, and a node is bought without a job", lambda: seen() == (nodes_min, 1), EDGE_WITHIN_S
    )
    assert datetime.now(UTC) >= opens
    fleet.eventually("the window closes, and the node leaves", lambda: seen() == (0, 0), EDGE_WITHIN_S)
    assert datetime.now(UTC) >= closes


@pytest.fixture
def half_empty() -> Iterator[Elastic]:
    """Three nodes of two cores, on each of which one core works."""
    with an_elastic_site(
        [Offer("cpu", "0.40", "cpu[1-3]")], billing="1s", policy="consolidate = yes\n[Disruption]\nmax = 1"
    ) as elastic:
        elastic.start_manager().until_said("claimed")
        jobs = [elastic.flux("submit", "-n1", "-t10m", "sleep", "600") for _ in range(6)]

        def where() -> list[list[str]]:
            return [line.split() for line in elastic.flux("jobs", "-no", "{id} {nodelist}", *jobs).splitlines()]

        elastic.eventually("all run", lambda: all(len(it) == 2 for it in where()), 90.0)
        for job in {slot: job for job, slot in where()}.values():
            elastic.flux("cancel", job)
        yield elastic


def test_a_node_takes_no_new_job_until_it_is_empty_and_goes(half_empty: Elastic) -> None:
    def emptying() -> list[str]:
        ranks = half_empty.ranks()
        return [it.slot for it in half_empty.launches() if ranks[it.slot].drain_reason == emptying_text(it.id)]

    half_empty.eventually("one node empties", lambda: len(emptying()) == 1, 90.0)
    (slot,) = emptying()
    (job,) = half_empty.flux("jobs", "-no", "{id}", f"--include={slot}").split()
    another = half_empty.flux("submit", "-n1", "-t10m", "sleep", "600")
    half_empty.eventually("a new job runs elsewhere", lambda: half_empty.flux("jobs", "-no", "{nodelist}", another))
    assert half_empty.flux("jobs", "-no", "{nodelist}", another) != slot
    assert emptying() == [slot]  # the manager knows its own mark again
    half_empty.flux("cancel", job)
    half_empty.eventually("it goes", lambda: slot not in [it.slot for it in half_empty.launches()], 60.0)
    assert len(half_empty.flux("jobs", "-no", "{id}").split()) == 3
