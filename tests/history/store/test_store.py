"""The history file: whatever happens to it, the service goes on and logs the fault."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nodemanager.core.facts import CloudCallFailed
from nodemanager.core.jobs import HasProperty, JobState, RankAllocation, Shape
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.slots import Rank
from nodemanager.history.ended_jobs import EndedJob
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryThread, HistoryUpdate
from nodemanager.history.store import pruning, rows, schema, writer
from nodemanager.history.store import reader as reader_module
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.history.store.rows import Rows
from nodemanager.history.store.shapes import shape_from_json
from nodemanager.history.store.writer import HistoryWriter
from tests.builders import WALL_AT, a_job, a_node
from tests.contract.cloud_subjects import until
from tests.history.publications import a_moment, told

STOP_S = 10.0
FAILED = CloudCallFailed("create", None, FailureKind.QUOTA, "enough")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write every batch at once."""
    monkeypatch.setattr(writer, "FLUSH_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite"


def a_story() -> list[HistoryUpdate]:
    """A job waits, a node boots, the job runs on it and ends, and the node is terminated."""
    waiting = a_job(7, submitted_at=WALL_AT - 60, userid=0, queue="batch")
    runs = replace(waiting, state=JobState.RUN, allocations=(RankAllocation(Rank(1), 4, 0),))
    return told(
        a_moment(jobs=[waiting]),
        a_moment(10, nodes=[a_node("cloud1", NodeState.BOOTING)], jobs=[waiting], facts=[FAILED]),
        a_moment(100, nodes=[a_node("cloud1", NodeState.BUSY)], jobs=[runs]),
        a_moment(460, nodes=[a_node("cloud1", NodeState.IDLE)]),
        a_moment(500),
    )


def write(path: Path, *stories: list[HistoryUpdate], between: Callable[[], None] = lambda: None) -> HistoryWriter:
    """Write each story with the same writer, and do something in between."""
    journal = HistoryWriter(path)
    for number, story in enumerate(stories):
        if number:
            between()
        for happened in story:
            journal.write([happened])
    journal.close()
    return journal


# --- reading ----------------------------------------------------------------------------------------------


@pytest.fixture
def reader(path: Path) -> HistoryReader:
    write(path, a_story())
    return HistoryReader(path)


def test_a_reason_of_the_past_is_found(reader: HistoryReader) -> None:
    said = reader.reason_at("7", WALL_AT + 5)
    assert said is not None
    assert (said["code"], said["at"]) == ("node_ordered", WALL_AT)
    assert reader.reason_at("7", WALL_AT - 1) is None
    assert reader.launch_of_node("cloud1", WALL_AT + 50) == "cloud1-1"
    assert reader.launch_of_node("cloud1", WALL_AT + 10_000_000) == "cloud1-1", "after its end too"
    assert reader.launch_of_node("cloud1", WALL_AT - 10_000) is None
    assert reader.launch_of_node("i-cloud1-1", WALL_AT + 50) == "cloud1-1", "by the provider's id too"


@pytest.mark.parametrize(
    ("subject", "after_s", "what", "code"),
    [
        ("7", 15, "waits", "node_coming"),
        ("7", 105, "began", ""),
        ("7", 480, "ended", ""),
        ("cloud1-1", 470, "idle", "paid_time_left"),
        ("cloud1-1", 510, "ended", ""),
    ],
)
def test_a_reason_stands_until_its_job_begins_or_it_ends(
    reader: HistoryReader, subject: str, after_s: float, what: str, code: str
) -> None:
    said = reader.reason_at(subject, WALL_AT + after_s)
    assert said is not None
    assert (said["what"], said["code"]) == (what, code)


@pytest.mark.parametrize(
    ("after_s", "kind", "what", "code"),
    [
        (5, "because", "waits", "node_ordered"),
        (15, "standstill", "begins", "not_the_actor"),
        (25, "because", "waits", "node_ordered"),
    ],
)
def test_a_reason_stands_no_more_while_decisions_stand_still(
    path: Path, after_s: float, kind: str, what: str, code: str
) -> None:
    waiting = a_job(7)
    moments = [a_moment(jobs=[waiting]), a_moment(10, jobs=[waiting], claimed=False), a_moment(20, jobs=[waiting])]
    write(path, told(*moments))
    said = HistoryReader(path).reason_at("7", WALL_AT + after_s)
    assert said is not None
    assert (said["kind"], said["what"], said["code"]) == (kind, what, code)


def test_after_a_standstill_an_unrecorded_reason_no_longer_applies(path: Path) -> None:
    """The job moved out of the head of the queue, so its reasons are no longer recorded."""
    moments = [a_moment(jobs=[a_job(7)]), a_moment(10, claimed=False), a_moment(20)]
    happened = told(*moments)
    forgotten = replace(
        happened[1], events=tuple(it for it in happened[1].events if it.kind == "standstill")
    )  # its end was not seen
    write(path, [happened[0], forgotten, happened[2]])
    said = HistoryReader(path).reason_at("7", WALL_AT + 25)
    assert said is not None
    assert (said["kind"], said["what"], said["code"]) == ("standstill", "ends", "")


def test_entries_are_read_by_subject_kind_and_time(reader: HistoryReader) -> None:
    assert [it["what"] for it in reader.events(subject="cloud1-1", kinds=["node"])] == [
        "booting",
        "busy",
        "idle",
        "ended",
    ]
    assert [it["figures"]["detail"] for it in reader.events(kinds=["failed"])] == ["enough"]
    assert reader.events(since_at=WALL_AT + 10_000) == []


def test_a_report_adds_up(reader: HistoryReader) -> None:
    report = reader.report(WALL_AT - 3600, WALL_AT + 3600)
    by_use = {row["use"]: row["cost"] for row in report["by_use"]}
    assert report["cost"] == pytest.approx(sum(by_use.values()))
    assert report["waste"] == pytest.approx(report["cost"] - by_use["job"])
    assert by_use["job"] == pytest.approx(0.40 * 360 / 3600)
    assert [row["queue"] for row in report["by_queue"]] == ["batch"]
    assert [row["userid"] for row in report["by_user"]] == [0]
    assert report["waits"] == {"jobs": 1, "median_s": 160.0, "p95_s": 160.0}
    assert [(row["outcome"], row["count"]) for row in report["boots"]] == [("joined", 1)]
    assert [(row["operation"], row["kind"], row["count"]) for row in report["failures"]] == [("create", "quota", 1)]


def test_spend_is_told_from_a_moment_on(reader: HistoryReader) -> None:
    assert reader.cost_since(WALL_AT - 3600) > 0
    assert reader.cost_since(WALL_AT + 86_400) == 0


def test_a_report_says_from_when_on_each_of_its_sums_is(reader: HistoryReader) -> None:
    """Costs are kept by the hour. Events are kept for fewer days than costs."""
    report = reader.report(WALL_AT + 30, WALL_AT + 60)
    assert report["cost_since_at"] == (WALL_AT + 30) // 3600 * 3600
    assert report["entries_since_at"] == WALL_AT + 30
    long = reader.report(WALL_AT - 90 * 86_400, WALL_AT)
    assert long["entries_since_at"] == WALL_AT - schema.ENTRIES_KEPT_S


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_of_the_nearest_rank_as_many_values_are_not_above_as_are_asked_for(
    values: list[float], part: float
) -> None:
    ordered = sorted(values)
    found = reader_module.quantile(ordered, part)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= part * len(ordered)
    below = sum(value < found for value in ordered)
    assert below < part * len(ordered) or below == 0


@pytest.mark.parametrize(("count", "part", "rank"), [(2, 0.5, 1), (4, 0.5, 2), (20, 0.95, 19), (100, 0.95, 95)])
def test_a_quantile_is_the_nearest_rank(count: int, part: float, rank: int) -> None:
    assert reader_module.quantile(range(1, count + 1), part) == rank


def test_an_empty_span_has_a_report_too(reader: HistoryReader) -> None:
    assert reader.report(WALL_AT + 86_400, WALL_AT + 90_000)["cost"] == 0


# --- faults of the file -----------------------------------------------------------------------------------


def test_the_file_is_its_owner_s_and_knows_its_version(path: Path) -> None:
    write(path, a_story())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_of_a_life_that_changes_several_times_before_it_is_written_the_latest_is_kept(path: Path) -> None:
    journal = HistoryWriter(path)
    journal.write(a_story())
    journal.close()
    (life,) = HistoryReader(path).lives(1e9)
    assert (life.outcome, life.ended_at) == ("joined", WALL_AT + 500)


def test_a_second_start_goes_on_where_the_first_ended(path: Path) -> None:
    write(path, a_story())
    count = len(HistoryReader(path).events())
    write(path, a_story())
    assert len(HistoryReader(path).events()) == 2 * count


def test_of_a_simulated_site_the_history_of_an_earlier_run_is_moved_aside(path: Path) -> None:
    """Simulated time begins again, so yesterday's run would be in today's bill."""
    for kept in range(3):  # also a third time, when something was moved before
        journal = HistoryWriter(path, begins_anew=True)
        journal.start()
        assert not path.exists(), "before the first row"
        journal.stop(STOP_S)
        write(path, *[a_story()] * (kept + 1))
    first = len(HistoryReader(path).events()) // 3
    earlier = path.with_name(f"{path.name}.before")
    assert len(HistoryReader(earlier).events()) == 2 * first, "of the run before, and not of all"


def test_a_simulated_run_never_adds_to_the_history_of_one_that_still_runs(path: Path) -> None:
    running, second = HistoryWriter(path), HistoryWriter(path, begins_anew=True)
    running.write(a_story()[:3])
    second.write(a_story())
    assert second.failure
    running.close()
    second.write(a_story())
    second.close()
    write(path.with_name("once"), a_story())
    assert len(HistoryReader(path).events()) == len(HistoryReader(path.with_name("once")).events()) * 2
    assert HistoryReader(path.with_name(f"{path.name}.before")).events()


def test_one_that_is_deleted_while_it_is_written_begins_anew_with_a_message(path: Path) -> None:
    with capture_logs() as logs:
        write(path, a_story(), a_story(), between=path.unlink)
    assert HistoryReader(path).events()
    assert [log["event"] for log in logs] == ["journal_gone"]


@pytest.mark.parametrize(
    "spoilt", ["figures = ''", "figures = '\ufffd{'", "at = 'x'", "what = x'ff00'", "subject = x'07'"]
)
def test_of_one_that_is_spoilt_where_sqlite_takes_no_notice_the_others_are_told(path: Path, spoilt: str) -> None:
    write(path, a_story())
    whole = HistoryReader(path).events()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE entries SET {spoilt} WHERE id = 3")  # noqa: S608 - our own words
    with capture_logs() as logs:
        assert HistoryReader(path).events() == whole[:2] + whole[3:]
    assert [(log["event"], log["entries"]) for log in logs] == [("journal_entries_spoilt", 1)]


def test_what_was_last_said_of_a_subject_is_not_told_from_an_older_entry_where_it_is_spoilt(path: Path) -> None:
    write(path, a_story())
    told = HistoryReader(path).reason_at("7", WALL_AT + 1e6)
    assert told is not None
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET figures = '' WHERE subject = ? AND at = ?", ("7", told["at"]))
    with pytest.raises(HistoryUnreadable, match=r"of 7 before .* figures"):
        HistoryReader(path).reason_at("7", WALL_AT + 1e6)


def _told_of(story: list[HistoryUpdate]) -> list[HistoryEvent]:
    return [entry for happened in story for entry in happened.events]


@pytest.mark.parametrize(
    "rubbish", [b"this is no database, and never was one" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_one_that_is_corrupt_is_moved_aside_with_a_message(path: Path, rubbish: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(rubbish)
    with capture_logs() as logs:
        journal = write(path, a_story())
    assert "journal_moved_aside" in [log["event"] for log in logs]
    (aside,) = path.parent.glob("journal.sqlite.unusable-*")
    assert aside.read_bytes() == rubbish
    assert (journal.lost, journal.failure) == (0, "")
    assert len(HistoryReader(path).events()) == len(_told_of(a_story())), "what met with it stands in the new one"


def test_one_that_is_begun_anew_says_when_it_begins_and_what_was_set_aside(path: Path) -> None:
    """Without that, a report would look complete."""

    def scribble() -> None:
        for file in path.parent.glob(f"{path.name}*"):
            file.write_bytes(b"rubbish" * 4000)

    story = a_story()
    write(path, story[:3], story[3:], between=scribble)
    reader = HistoryReader(path)
    (aside,) = path.parent.glob("*.unusable-*")
    begun_at = WALL_AT + 460
    assert (reader.begins_at(), reader.set_aside_files()) == (begun_at, [aside.name])
    whole = reader.report(WALL_AT, WALL_AT + 600)
    assert (whole["begins_at"], whole["set_aside"]) == (begun_at, [aside.name])
    later = reader.report(begun_at, WALL_AT + 600)
    assert (later["begins_at"], later["set_aside"]) == (None, []), "all of that span is known"


def test_one_that_was_written_before_it_knew_when_it_began_is_told_it_by_what_stands_there(path: Path) -> None:
    write(path, a_story())
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE begun; PRAGMA user_version = 3;")
    write(path, a_story())
    begins_at = HistoryReader(path).begins_at()
    assert begins_at == WALL_AT // 3600 * 3600, "spend is kept by the hour"


def test_one_that_was_written_before_it_kept_provider_ids_is_read_and_continued(path: Path) -> None:
    write(path, a_story())
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE peer_runs; DROP TABLE charged; ALTER TABLE lives DROP COLUMN size;"
            " ALTER TABLE lives DROP COLUMN cloud; ALTER TABLE lives DROP COLUMN provider_id;"
            " ALTER TABLE spend DROP COLUMN misused;"
            " DROP TABLE fleet; PRAGMA user_version = 4;"
        )
    (old,) = HistoryReader(path).lives(1e9)
    assert (old.launch, old.provider_id) == ("cloud1-1", "")
    write(path, a_story()[:1])
    assert HistoryReader(path).launch_of_node("i-cloud1-1", WALL_AT + 50) is None, "nobody knows it"
    write(path, a_story())
    assert HistoryReader(path).launch_of_node("i-cloud1-1", WALL_AT + 50) == "cloud1-1"
    assert not list(path.parent.glob("*.unusable-*"))


def test_it_says_until_when_costs_are_charged(path: Path) -> None:
    assert HistoryReader(path).charged_until_at() == 0.0
    node = a_node("cloud1", NodeState.IDLE)
    write(path, told(a_moment(nodes=[node]), a_moment(600, nodes=[node])))
    assert HistoryReader(path).charged_until_at() == WALL_AT + 600
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE charged; ALTER TABLE spend DROP COLUMN misused; DROP TABLE fleet; PRAGMA user_version = 8;"
        )
    end_of_the_hour_at = ((WALL_AT + 600) // 3600 + 1) * 3600
    assert HistoryReader(path).charged_until_at() == end_of_the_hour_at, "an older version wrote it"


def test_what_is_let_go_does_not_change_when_it_began(path: Path) -> None:
    write(path, a_story())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM entries")
    write(path, a_story()[:1])
    assert HistoryReader(path).begins_at() == WALL_AT


def test_one_that_breaks_while_it_is_written_is_moved_aside(path: Path) -> None:
    def scribble() -> None:
        for file in path.parent.glob("journal.sqlite*"):
            file.write_bytes(os.urandom(20_000))

    with capture_logs() as logs:
        journal = write(path, a_story(), a_story(), a_story(), between=scribble)
    assert journal.failure == ""
    assert {"journal_moved_aside", "journal_gone"} & {log["event"] for log in logs}
    assert HistoryReader(path).events()


def test_one_that_is_spoilt_where_nothing_is_written_next_is_moved_aside_at_the_start(path: Path) -> None:
    write(path, *[a_story()] * 40)
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\xff" * 4096)
    with capture_logs() as logs:
        journal = write(path, a_story())
    assert "journal_moved_aside" in [log["event"] for log in logs]
    assert (journal.lost, journal.failure) == (0, "")
    assert len(HistoryReader(path).events()) == len(_told_of(a_story()))


def test_one_of_a_later_program_is_moved_aside_unchanged(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        connection.commit()
    with capture_logs() as logs:
        write(path, a_story())
    assert any("version" in log.get("why", "") for log in logs if log["event"] == "journal_moved_aside")
    assert HistoryReader(path).events()


class Fillable(HistoryWriter):
    """A writer whose disk can be full."""

    full = True

    def _open(self) -> sqlite3.Connection:
        if self.full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super()._open()


def written_once_there_is_room(
    path: Path, story: list[HistoryUpdate]
) -> tuple[Fillable, list[MutableMapping[str, Any]]]:
    """Write the story while the disk is full. Returns the writer and its log."""
    journal = Fillable(path)
    with capture_logs() as logs:
        for happened in story:
            journal.write([happened])
        journal.full = False
        journal.write([])
    return journal, list(logs)


def test_what_a_full_disk_does_not_take_is_held_and_written_later_in_its_order(path: Path) -> None:
    story = a_story()
    write(path.with_name("whole.sqlite"), story)
    journal, logs = written_once_there_is_room(path, story)
    assert [log["event"] for log in logs] == ["journal_not_written", "journal_written_again"]
    assert (journal.lost, journal.failure) == (0, "")
    kept, wanted = HistoryReader(path), HistoryReader(path.with_name("whole.sqlite"))
    assert kept.events() == wanted.events()
    assert kept.report(0, 1) == wanted.report(0, 1)
    journal.write([])
    assert kept.events() == wanted.events(), "nothing is held any more"
    journal.close()


def test_what_is_too_much_to_hold_is_left_out_the_oldest_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = a_story()
    monkeypatch.setattr(writer, "HELD_MAX", Rows.from_updates(story[-1:]).count)
    journal, logs = written_once_there_is_room(path, story)
    assert logs[-1]["lost"] == journal.lost == len(story) - 1
    assert [it["what"] for it in HistoryReader(path).events()] == [it.what for it in story[-1].events]
    journal.close()


def test_what_no_file_takes_is_left_out_and_does_not_come_again(path: Path) -> None:
    """A row that breaks one file would break every new file too."""
    story = a_story()
    told = next(happened for happened in story if happened.events)
    bad = replace(told, events=(replace(told.events[0], what=object()),))  # type: ignore[arg-type]
    journal = HistoryWriter(path)
    journal.write([bad])
    assert (journal.lost, len([*path.parent.glob("*.unusable-*")])) == (1, 0), "the file is whole"
    journal.write(story)
    assert journal.failure == ""
    assert len(HistoryReader(path).events()) == len(_told_of(story))
    journal.close()


def test_a_full_disk_that_is_freed_while_nothing_happens_is_written_to_by_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(writer, "FLUSH_S", 0.0)
    journal = Fillable(path)
    journal.start()
    for happened in a_story():
        journal.take_in(happened)
    until(lambda: bool(journal.failure), "it met with the full disk")
    journal.full = False
    until(lambda: not journal.failure, "it was written")
    journal.stop(10.0)
    assert len(HistoryReader(path).events()) == len(_told_of(a_story()))


@pytest.fixture
def file_size_limit() -> Iterator[Callable[[int], None]]:
    """Limits the size of a file in bytes: for SQLite that is like a nearly full disk."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size_bytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_disk_with_room_for_what_is_written_and_none_for_letting_go_of_the_old_has_it_written_once(
    path: Path, file_size_limit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = a_story()
    write(path.with_name("whole.sqlite"), story)
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        schema.migrate(connection)
        old = [(WALL_AT - 40 * 86_400, "because", str(i), "waits", "", " " * 300, "") for i in range(10_000)]
        connection.executemany(rows.INSERT_EVENT, old)
        connection.commit()
    journal = HistoryWriter(path)
    monkeypatch.setattr(writer, "PRUNE_AGAIN_S", 0.0)
    file_size_limit(500_000)
    with capture_logs() as logs:
        for happened in story:
            journal.write([happened])
    assert [log["event"] for log in logs] == ["journal_not_pruned"], "once, and nothing was held"
    assert (journal.lost, journal.failure) == (0, "")
    kept, wanted = HistoryReader(path), HistoryReader(path.with_name("whole.sqlite"))
    assert kept.events(since_at=WALL_AT) == wanted.events()
    assert kept.report(WALL_AT, WALL_AT + 1e4) == wanted.report(WALL_AT, WALL_AT + 1e4)
    file_size_limit(100_000_000)
    journal.write(story[-1:])
    assert len(kept.events(limit=20_000)) == len(wanted.events()) + len(story[-1].events), "and the old is gone"
    journal.close()


def test_what_is_still_held_at_the_end_is_said_to_be_lost(path: Path) -> None:
    journal = Fillable(path)
    with capture_logs() as logs:
        journal.start()
        for happened in a_story():
            journal.take_in(happened)
        journal.stop(10.0)
    assert [log["event"] for log in logs] == ["journal_not_written", "journal_lost"]
    assert logs[-1]["publications"] == sum(happened.has_rows for happened in a_story())


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with capture_logs() as logs:
        journal = write(tmp_path / "file" / "journal.sqlite", a_story())
    assert [log["event"] for log in logs] == ["journal_not_written"]
    assert "File exists" in journal.failure or "Not a directory" in journal.failure


def test_what_is_old_is_let_go(path: Path) -> None:
    write(path, a_story())
    (last,) = a_story()[-1:]
    far = replace(last.newest, snapshot=replace(last.newest.snapshot, wall_at=WALL_AT + 1e8))
    later = [replace(last, newest=far)]
    write(path, later)
    assert all(it["at"] > WALL_AT + 400 for it in HistoryReader(path).events())


@pytest.mark.parametrize("content", [None, b"rubbish" * 1000])
def test_an_unreadable_history_is_reported(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    with pytest.raises(HistoryUnreadable, match=r"journal\.sqlite"):
        HistoryReader(path).report(0, 1)


# --- two services -----------------------------------------------------------------------------------------


def _written(story: list[HistoryUpdate], journal: HistoryWriter) -> list[str]:
    """Write a story. Returns the log."""
    with capture_logs() as logs:
        for happened in story:
            journal.write([happened])
    return [log["event"] for log in logs]


def test_an_observer_never_writes_the_history_of_an_acting_manager(path: Path) -> None:
    acting, observer = HistoryWriter(path), HistoryWriter(path, succeeds=False)
    story = a_story()
    acting.write(story)
    before = HistoryReader(path).events()
    assert _written(story, observer) == ["journal_not_written"], "once"
    assert "state_dir of its own" in observer.failure
    acting.close()  # it is restarted
    assert _written(story, observer) == []
    assert HistoryReader(path).events() == before
    observer.close()


def test_one_that_waits_to_act_writes_from_when_it_does(path: Path) -> None:
    first, second = HistoryWriter(path), HistoryWriter(path)
    story, waiting = a_story(), told(*(a_moment(after_s, claimed=False) for after_s in (0, 10)))
    first.write(story)
    before = HistoryReader(path).events()
    with capture_logs() as logs:
        second.write(waiting)
        second.write(waiting)
    assert [(it["event"], it["log_level"]) for it in logs] == [("journal_left_to_another", "info")]
    first.close()
    second.write([])
    assert HistoryReader(path).events() == before, "of that time the first has told"
    _written(story, second)
    assert len(HistoryReader(path).events()) == 2 * len(before)
    second.close()


def test_a_manager_that_took_over_writes_once_the_hung_one_releases_the_lock(path: Path) -> None:
    hangs, acts = HistoryWriter(path), HistoryWriter(path)
    hangs.write([])
    hangs.write(a_story()[:1])
    before = HistoryReader(path).events()
    assert _written(a_story(), acts) == ["journal_not_written"]
    hangs.close()
    acts.write([])
    assert len(HistoryReader(path).events()) == len(before) + len(_told_of(a_story()))
    acts.close()


# --- damaged anywhere -------------------------------------------------------------------------------------


def damage(whole: bytes, seed: int) -> bytes:
    """The file with some bytes changed anywhere or in its schema, a page of noise, or its end cut off."""
    dice, content = random.Random(seed), bytearray(whole)
    match seed % 4:
        case 0 | 1:
            for _ in range(dice.randint(1, 8)):
                content[dice.randrange(len(content) if seed % 4 else 4096)] = dice.randrange(256)
        case 2:
            at = dice.randrange(len(content) - 4096)
            content[at : at + 4096] = dice.randbytes(4096)
        case _:
            del content[dice.randrange(len(content)) :]
    return bytes(content)


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """A folder in memory, if the machine has one: a thousand files are each waited for on a disk."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def test_of_a_thousand_damaged_files_none_stops_the_writer_and_each_is_written_or_replaced(
    quick_folder: Path,
) -> None:
    path = quick_folder / "journal.sqlite"
    write(path, a_story())
    whole = path.read_bytes()
    newest = a_story()[:1]
    moved = 0
    for seed in range(1000):
        damaged = quick_folder / str(seed) / "journal.sqlite"
        damaged.parent.mkdir()
        damaged.write_bytes(damage(whole, seed))
        with capture_logs():
            journal = write(damaged, newest)
        assert (journal.failure, journal.lost) == ("", 0), f"seed {seed}"
        moved += len(HistoryReader(damaged).set_aside_files())
        said = HistoryReader(damaged).reason_at("7", 9e9)
        assert said is not None, f"seed {seed}: the new rows are not there"
        assert said["code"] == "node_ordered", f"seed {seed}"
        shutil.rmtree(damaged.parent)
    assert 500 < moved < 1000, "most damage is noticed, and what harms nobody is left alone"


def test_a_schema_that_is_no_text_does_not_end_the_thread(path: Path) -> None:
    write(path, a_story())
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE lives", b"CREATE TABLE l\xffves"))
    with pytest.raises(HistoryUnreadable):
        HistoryReader(path).report(0.0, WALL_AT)
    journal = HistoryWriter(path)
    journal.start()
    for happened in a_story():
        journal.take_in(happened)
    journal.stop(STOP_S)
    assert (journal.failure, journal.lost) == ("", 0)
    assert len(HistoryReader(path).events()) == len(_told_of(a_story()))


def test_a_bug_in_the_writer_s_own_code_is_logged_and_costs_one_batch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_life_row", lambda _: 1 / 0)
    journal = HistoryWriter(path)
    assert _written(a_story()[1:2], journal) == ["journal_not_written"]
    assert (journal.lost, journal.failure) == (1, "ZeroDivisionError: division by zero")
    monkeypatch.undo()
    assert _written(a_story(), journal) == ["journal_written_again"]
    journal.close()


# --- its size ---------------------------------------------------------------------------------------------


def test_one_event_and_one_job_take_only_so_much_whatever_a_user_submits(path: Path) -> None:
    huge = a_job(7, shape=Shape(1, 1, constraint=HasProperty("x" * 1_000_000)))
    lots = replace(a_story()[0].events[0], figures={"a": "y" * 100_000, "b": ("z" * 9999,) * 9999, "count": 3})
    ended = EndedJob(huge.id, WALL_AT, WALL_AT, WALL_AT + 1, 60.0, 0, "", huge.shape)
    write(path, [replace(a_story()[0], events=(lots,), ended_jobs=(ended,))])
    reader = HistoryReader(path)
    (event,), (job,) = reader.events(), reader.jobs()
    assert event["figures"]["count"] == 3
    assert event["figures"]["b"][-1] == "and 9991 more"
    assert len(json.dumps(event["figures"])) <= rows.FIGURES_MAX
    assert len(job["shape"]) <= rows.SHAPE_MAX
    with pytest.raises(
        ValueError, match="left_out"
    ):  # a replay counts it as unreadable, and does not run it anywhere
        shape_from_json(json.loads(job["shape"]))


def a_long_story(hours: int, events: int = 20) -> list[HistoryUpdate]:
    """Many events an hour, each of a kilobyte."""
    told_now = a_story()[0]
    return [
        replace(
            told_now,
            events=tuple(
                replace(told_now.events[0], at=WALL_AT + 3600.0 * hour, figures={"detail": "d" * 1000})
                for _ in range(events)
            ),
        )
        for hour in range(hours)
    ]


def test_one_that_is_too_large_loses_its_oldest_rows_and_says_so(path: Path) -> None:
    size_max = 1_000_000
    journal = HistoryWriter(path, size_max_bytes=size_max)
    with capture_logs() as logs:
        for happened in a_long_story(hours=200):
            journal.write([happened])
            assert path.stat().st_size <= pruning.COMPACT_ABOVE * size_max
    journal.close()
    reader = HistoryReader(path)
    begins_at = reader.begins_at()
    kept = reader.events(limit=10_000)
    assert begins_at is not None
    assert WALL_AT + 3600 * 140 < begins_at <= kept[0]["at"], "only the oldest left"
    assert kept[-1]["at"] == WALL_AT + 3600 * 199
    assert "journal_thinned" in [log["event"] for log in logs]
    assert reader.report(WALL_AT, WALL_AT + 3600 * 200)["begins_at"] == begins_at
    assert 0.8 * size_max < reader.size_bytes() < 1.5 * size_max + writer.WAL_KEPT_BYTES


def test_one_that_is_larger_than_a_smaller_limit_shrinks(path: Path) -> None:
    write(path, a_long_story(hours=100))
    before = path.stat().st_size
    journal = HistoryWriter(path, size_max_bytes=500_000)
    journal.write(a_long_story(hours=1))
    journal.close()
    assert path.stat().st_size <= pruning.COMPACT_ABOVE * 500_000 < before


def test_times_that_a_damaged_file_has_made_infinite_do_not_keep_the_writer(path: Path) -> None:
    write(path, a_long_story(hours=50))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET at = 9e999")
    journal = HistoryWriter(path, size_max_bytes=100_000)
    journal.write(a_long_story(hours=1))
    assert journal.failure == ""
    journal.close()


# --- the threads ------------------------------------------------------------------------------------------


def test_what_is_published_reaches_the_file_by_the_time_the_service_has_stopped(path: Path) -> None:
    journal = HistoryWriter(path)
    chronicle = HistoryThread([journal.take_in])
    journal.start()
    chronicle.start()
    for happened in a_story():
        chronicle.publish(happened.newest)
    chronicle.stop(STOP_S)
    journal.stop(STOP_S)
    assert HistoryReader(path).events(kinds=["decided"])[0]["what"] == "BootNode"
    assert (chronicle.dropped, journal.lost) == (0, 0)


def test_a_slow_history_thread_drops_publications_and_never_blocks() -> None:
    chronicle = HistoryThread([])
    moment = a_moment()
    for _ in range(600):
        chronicle.publish(moment)
    assert chronicle.dropped == 100
