"""What nodes with GPUs cost while nobody used their GPUs: in the history, in ``report`` and in ``check``."""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from nodemanager.cli import tables
from nodemanager.cli.verbs.check import check
from nodemanager.config.load import load_site
from nodemanager.core.jobs import Job, JobState, RankAllocation, Shape
from nodemanager.core.nodes import NodeState
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.store import schema
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.planner.policy import Policy
from tests.builders import NOW_S, WALL_AT, a_job, a_node, a_policy, a_type
from tests.history.publications import a_moment, told
from tests.paths import CONFIG

GPU_SITE = a_policy(a_type("gpu", cores=8, gpus=2, price="1.00"))
CPU_SITE = a_policy(a_type("gpu", cores=8, price="1.00"))
SINCE_S = 3600.0


def a_job_with(gpus: int, *, cores: int = 2, asks: int = 0, number: int = 1) -> Job:
    node = a_node("gpu1", NodeState.BUSY, GPU_SITE)
    holds = (RankAllocation(node.launch.rank, cores, gpus),)
    shape = Shape(slots=1, cores_per_slot=cores, gpus_per_slot=asks)
    return replace(a_job(number, shape=shape), state=JobState.RUN, allocations=holds, userid=1000)


def six_minutes(*jobs: Job, policy: Policy = GPU_SITE) -> list[HistoryUpdate]:
    node = a_node("gpu1", NodeState.BUSY if jobs else NodeState.IDLE, policy)
    return told(*(a_moment(at_s, nodes=[node], jobs=jobs, policy=policy) for at_s in (0, 360)))


def misused(*updates: HistoryUpdate) -> float:
    return sum(it.misused for update in updates for it in update.costs.values())


def test_all_that_a_gpu_node_cost_counts_while_only_jobs_without_gpus_ran() -> None:
    assert misused(*six_minutes(a_job_with(0))) == pytest.approx(0.10)


@pytest.mark.parametrize(
    ("jobs", "policy"),
    [
        ((a_job_with(1, asks=1),), GPU_SITE),
        ((a_job_with(1),), GPU_SITE),  # it did not ask for the GPUs, but holds them
        ((a_job_with(0), a_job_with(1, asks=1, number=2)), GPU_SITE),
        ((), GPU_SITE),  # idle: nobody used the cores either
        ((a_job_with(0),), CPU_SITE),
    ],
)
def test_nothing_counts_if_a_job_has_gpus_or_no_job_runs_or_the_node_has_no_gpus(
    jobs: tuple[Job, ...], policy: Policy
) -> None:
    story = six_minutes(*jobs, policy=policy)
    assert sum(it.cost for update in story for it in update.costs.values()) == pytest.approx(0.10)
    assert misused(*story) == 0.0


def test_time_without_a_manager_counts_from_when_the_job_began() -> None:
    node = a_node("gpu1", NodeState.BUSY, GPU_SITE, billed_from_s=NOW_S - 7200, requested_s=NOW_S - 7200)
    job = replace(a_job_with(0), began_at=WALL_AT // 3600 * 3600)
    story = told(a_moment(nodes=[node], jobs=[job], policy=GPU_SITE), charged_until_at=0.0)
    assert misused(*story) == pytest.approx(1.00 * (WALL_AT % 3600) / 3600)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / schema.HISTORY_FILE


def write(path: Path, updates: list[HistoryUpdate]) -> HistoryReader:
    writer = HistoryWriter(path)
    writer.write(updates)
    writer.close()
    return HistoryReader(path)


def shown(reader: HistoryReader) -> str:
    console = Console(width=120)
    document = reader.report(WALL_AT, WALL_AT + SINCE_S)
    document["by_user"] = []  # their names come from the service
    with console.capture() as capture:
        console.print(tables.report(document))
    return capture.get()


SENTENCE = "gpu nodes cost 0.10 while they ran only jobs without GPUs"


def test_the_report_says_it_in_one_sentence(path: Path) -> None:
    assert SENTENCE in shown(write(path, six_minutes(a_job_with(0))))


def test_the_report_says_nothing_if_the_gpus_were_used(path: Path) -> None:
    assert "GPUs" not in shown(write(path, six_minutes(a_job_with(1, asks=1))))


def test_a_file_of_an_older_version_is_read_and_continued(path: Path) -> None:
    reader = write(path, six_minutes(a_job_with(0)))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "ALTER TABLE spend DROP COLUMN misused; DROP TABLE fleet; PRAGMA user_version = 9;"
        )
    assert "GPUs" not in shown(reader)
    assert SENTENCE in shown(write(path, six_minutes(a_job_with(0)))), "what was before is not known"
    assert reader.report(WALL_AT, WALL_AT + SINCE_S)["cost"] == pytest.approx(0.20)
    assert not list(path.parent.glob("*.unusable-*"))


def notes_of_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    site = tmp_path / "site.ini"
    # As many nodes as slots, so that check has nothing to say about that.
    site.write_text((CONFIG / "embedded.ini").read_text().replace("nodes_max = 8", "nodes_max = 10"))
    loaded = replace(load_site(site), state_dir=tmp_path)
    check(loaded, argparse.Namespace(online=False, json=False))
    return [it.removeprefix(f"{site}: note: ") for it in capsys.readouterr().out.splitlines() if "note:" in it]


def test_check_says_it_of_the_last_month(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: WALL_AT + 29 * 86_400)
    assert notes_of_check(tmp_path, capsys) == [], "there is no history yet"
    write(path, six_minutes(a_job_with(0)))
    assert notes_of_check(tmp_path, capsys) == [f"in the last 30 days {SENTENCE}"]
    monkeypatch.setattr("time.time", lambda: WALL_AT + 31 * 86_400)
    assert notes_of_check(tmp_path, capsys) == []


def test_check_says_that_it_cannot_read_the_history(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("not a history, and longer than the header of one would be. " * 4)
    (note,) = notes_of_check(tmp_path, capsys)
    assert note.startswith(f"what nodes with GPUs cost is not known: {path}: ")
