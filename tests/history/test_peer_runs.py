"""What ran in other instances: in the history and in the report."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console

from nodemanager.cli import tables
from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import PeerName
from nodemanager.delegation.view import PeerRun
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.store import schema
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.writer import HistoryWriter
from tests.builders import WALL_AT
from tests.history.publications import a_moment

HOUR_S = 3600.0
UNTIL_AT = WALL_AT + 10 * HOUR_S
DAY_S = 86_400.0


def a_run(job: int, peer: str = "b", *, cores: int = 4, after_h: float = 1.0, hours: float = 2.0) -> PeerRun:
    began_at = WALL_AT + after_h * HOUR_S
    return PeerRun(
        JobId(job),
        PeerName(peer),
        JobId(100 + job),
        cores,
        began_at,
        began_at + hours * HOUR_S,
        Decimal("0.05") if peer == "b" else Decimal("0.2"),
    )


LOST = PeerRun(JobId(9), PeerName("c"), JobId(109), 0, None, WALL_AT + HOUR_S, Decimal("0.2"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / schema.HISTORY_FILE


def written(path: Path, *runs: PeerRun) -> HistoryReader:
    writer = HistoryWriter(path)
    writer.write([HistoryUpdate(a_moment(), (), (), (), (), {}, peer_runs=runs)])
    writer.close()
    return HistoryReader(path)


def by_peer(reader: HistoryReader, since_at: float = WALL_AT) -> list[tuple[str, int, int, float, float]]:
    rows = reader.report(since_at, UNTIL_AT)["by_peer"]
    return [(it["peer"], it["jobs"], it["lost"], round(it["core_hours"], 9), round(it["cost"], 9)) for it in rows]


def test_jobs_core_hours_and_cost_of_each_peer_add_up(path: Path) -> None:
    reader = written(path, a_run(1), a_run(2, cores=1, hours=0.5), a_run(3, "c", cores=16, hours=1))
    assert by_peer(reader) == [("c", 1, 0, 16.0, 3.2), ("b", 2, 0, 8.5, 0.425)]


def test_a_job_that_its_peer_lost_counts_and_nobody_knows_what_it_used(path: Path) -> None:
    assert by_peer(written(path, LOST)) == [("c", 1, 1, 0.0, 0.0)]


def test_a_run_that_is_told_twice_counts_once(path: Path) -> None:
    written(path, a_run(1))
    assert by_peer(written(path, a_run(1), a_run(2))) == [("b", 2, 0, 16.0, 0.8)]


def test_only_what_was_used_since_then_counts(path: Path) -> None:
    reader = written(path, a_run(1, after_h=1, hours=1), a_run(2, after_h=1, hours=3))
    assert by_peer(reader, WALL_AT + 3 * HOUR_S) == [("b", 1, 0, 4.0, 0.2)]


def test_a_history_of_an_earlier_version_goes_on_with_them(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for step in schema.MIGRATIONS[:-1]:
            connection.executescript(step)
        connection.execute(f"PRAGMA user_version = {schema.VERSION - 1}")
        connection.commit()
    assert by_peer(written(path, a_run(1))) == [("b", 1, 0, 8.0, 0.4)]


def test_they_are_kept_as_long_as_costs(path: Path) -> None:
    written(path, a_run(1))
    writer = HistoryWriter(path)
    much_later = a_moment(schema.SPEND_KEPT_S + DAY_S)
    writer.write([HistoryUpdate(much_later, (), (), (), (), {}, peer_runs=(a_run(2, after_h=1000),))])
    writer.close()
    assert by_peer(HistoryReader(path)) == [("b", 1, 0, 8.0, 0.4)]


def test_the_report_shows_them(path: Path) -> None:
    reader = written(path, a_run(1), LOST)
    console = Console(width=120, record=True, file=(path.parent / "shown").open("w"))
    console.print(tables.report(reader.report(WALL_AT, UNTIL_AT)))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    console.file.close()
    assert "by peer jobs ended lost core-hours cost there" in lines
    assert "b 1 0 8.00 0.40" in lines
    assert "c 1 1 0.00 0.00" in lines


def test_a_report_without_peers_has_no_such_table(path: Path) -> None:
    reader = written(path, a_run(1))
    assert "by peer" not in str(tables.report(reader.report(UNTIL_AT, UNTIL_AT)).renderables)
