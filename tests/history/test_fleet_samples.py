"""The fleet over time: which of the paid cores jobs use, and what as many nodes, always on, would have cost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import JobState, RankAllocation
from nodemanager.core.nodes import NodeState
from nodemanager.history.fleet_samples import FleetSampler, sample_fleet
from nodemanager.history.store import schema
from nodemanager.history.store.reader import CoreHours, HistoryReader
from nodemanager.history.store.writer import HistoryWriter
from tests.builders import WALL_AT, a_job, a_node, a_policy, a_type
from tests.history.publications import a_moment, told

POLICY = a_policy(a_type("cpu", slots=4, cores=16, price="0.50"), a_type("big", slots=2, cores=64, price="2.00"))
HOUR_AT = WALL_AT // 3600 * 3600


def fleet(after_s: float, cpu: int, *, busy: int = 0, cores: int = 16, big: int = 0) -> Publication:
    """``busy`` of the ``cpu`` nodes run a job of ``cores`` cores each; a node that is gone costs nothing."""
    nodes, jobs = [a_node("cpu4", NodeState.GONE, POLICY)], []
    for number in range(1, cpu + 1):
        node = a_node(f"cpu{number}", NodeState.BUSY if number <= busy else NodeState.IDLE, POLICY)
        nodes.append(node)
        if number <= busy:
            held = (RankAllocation(node.launch.rank, cores, 0),)
            jobs.append(a_job(number, state=JobState.RUN, allocations=held))
    nodes += [a_node(f"big{number}", NodeState.BOOTING, POLICY) for number in range(1, big + 1)]
    return a_moment(after_s, nodes=nodes, jobs=jobs, policy=POLICY)


def written(folder: Path, *publications: Publication) -> HistoryReader:
    writer = HistoryWriter(folder / "journal.sqlite")
    writer.write(told(*publications))
    writer.close()
    return HistoryReader(writer.path)


def test_a_sample_counts_the_cores_of_nodes_that_cost_money_and_those_that_jobs_hold() -> None:
    sample = sample_fleet(fleet(0, 3, busy=2, cores=12, big=1))
    assert (sample.cores_used, sample.cores_paid) == (24, 3 * 16 + 64)
    assert sample.by_type == {"cpu": (3, 1.5), "big": (1, 2.0)}
    assert sample.by_state == {"busy": 2, "idle": 1, "booting": 1, "gone": 1}
    assert (sample.jobs_running, sample.jobs_waiting) == (2, 0)


def test_a_job_that_holds_more_than_the_site_says_uses_no_more_than_the_node() -> None:
    assert sample_fleet(fleet(0, 1, busy=1, cores=32)).cores_used == 16


def test_it_is_sampled_every_few_seconds_and_summed_up_every_minute() -> None:
    sampler = FleetSampler()
    took = [sampler.update(fleet(at_s, 1)) for at_s in (0, 2, 5, 30, 65)]
    assert [sample is not None for sample, _ in took] == [True, False, True, True, True]
    minutes = [minute for _, minute in took if minute is not None]
    assert [minute.at for minute in minutes][-1] == WALL_AT + 65
    assert sum(minute.span_s for minute in minutes) == 65


def test_the_cores_of_a_minute_are_means_over_its_time() -> None:
    sampler = FleetSampler()
    for at_s, busy in ((0, 2), (30, 0)):
        sampler.update(fleet(at_s, 2, busy=busy))
    _, minute = sampler.update(fleet(120, 2))
    assert minute is not None
    assert (minute.cores_used, minute.cores_paid, minute.span_s) == (32 * 30 / 120, 32, 120)


def test_nobody_knows_what_was_used_during_a_long_pause() -> None:
    sampler = FleetSampler()
    sampler.update(fleet(0, 2, busy=2))
    _, minute = sampler.update(fleet(3600, 2))
    assert minute is not None
    assert minute.span_s == 0


def test_the_utilisation_of_a_range_is_by_core_hours(tmp_path: Path) -> None:
    steps = [fleet(at_s, 2, busy=2 if at_s < 300 else 1) for at_s in range(0, 601, 60)]
    reader = written(tmp_path, *steps)
    hours = reader.core_hours(WALL_AT, WALL_AT + 600)
    assert hours.paid == pytest.approx(32 * 600 / 3600)
    assert hours.share == pytest.approx(0.75)
    assert reader.core_hours(WALL_AT - 9000, WALL_AT - 8000).share is None


def test_longer_steps_keep_the_last_counts_and_the_means_of_the_cores(tmp_path: Path) -> None:
    reader = written(tmp_path, *(fleet(at_s, 1 + at_s // 300, busy=1) for at_s in range(0, 601, 60)))
    whole = reader.fleet(WALL_AT, WALL_AT + 600, 1e9)
    assert len(whole) == 1
    assert whole[0].at == WALL_AT + 600
    assert whole[0].by_state == {"busy": 1, "idle": 2, "gone": 1}
    assert whole[0].cores_used == pytest.approx(16)
    assert whole[0].cores_paid == pytest.approx(1.5 * 16)
    assert [it.at - WALL_AT for it in reader.fleet(WALL_AT, WALL_AT + 600, 1.0)] == list(range(0, 601, 60))


def test_the_saving_is_against_as_many_nodes_as_there_were_at_once_always_on(tmp_path: Path) -> None:
    counts = ((0, 1, 0), (60, 3, 1), (120, 1, 2), (1800, 0, 0), (3600, 0, 0))
    reader = written(tmp_path, *(fleet(at_s, cpu, big=big) for at_s, cpu, big in counts))
    found = reader.always_on(WALL_AT, WALL_AT + 3600)
    assert found is not None
    assert found.nodes == {"cpu": 3, "big": 2}
    assert found.cost_always_on == pytest.approx(3 * 0.50 + 2 * 2.00)
    assert found.since_at == WALL_AT
    assert found.cost == reader.cost_since(WALL_AT) > 0
    assert reader.always_on(WALL_AT + 7200, WALL_AT + 9000) is None


def test_a_file_of_an_older_version_gets_the_fleet_and_is_read_without_it(tmp_path: Path) -> None:
    reader = written(tmp_path, fleet(0, 1))
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"DROP TABLE fleet; PRAGMA user_version = {schema.VERSION - 1};")
    assert reader.fleet(0.0, WALL_AT, 60.0) == []
    assert reader.core_hours(0.0, WALL_AT) == CoreHours(0.0, 0.0)
    assert reader.always_on(0.0, WALL_AT) is None
    written(tmp_path, fleet(0, 1))
    assert [it.at for it in reader.fleet(0.0, WALL_AT, 60.0)] == [WALL_AT]
