"""The files that the manager and the join service exchange, on a real disk."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nodemanager.core.facts import NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId, RosterEntry
from nodemanager.core.ports import JoinError
from nodemanager.core.slots import SlotName
from nodemanager.join.exchange import (
    ExchangePaths,
    FileExchange,
    RosterFile,
    RosterUnreadableError,
    decode_roster,
    encode_roster,
)
from nodemanager.join.ticket_store import READ_MAX, REPORTS_KEPT_MAX, TicketStore
from tests.join.admission import entry

entries = st.builds(
    RosterEntry,
    st.text(min_size=1).map(LaunchId),
    st.text(min_size=1).map(SlotName),
    st.floats(0, 1e12),
    st.booleans(),
    st.booleans(),
    st.lists(st.text(), max_size=3).map(tuple),
)


@given(st.lists(entries, max_size=4).map(tuple), st.floats(0, 1e12))
def test_a_roster_is_read_as_it_was_written(roster: tuple[RosterEntry, ...], wall_at: float) -> None:
    assert decode_roster(encode_roster(roster, wall_at)) == (roster, wall_at)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text() | st.sampled_from(["[]", "{}", '{"version": 2}', '{"version": 1, "entries": [[1]], "written_at": 0}'])
)
def test_what_is_no_roster_is_refused_and_never_taken_for_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "roster.json"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(RosterUnreadableError, match="is a manager running"):
        RosterFile(file, lambda: 0.0, lambda: 0.0).current()


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.wall_at = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.wall_at


def test_the_age_of_a_sign_of_life_counts_without_the_wall_clock(tmp_path: Path) -> None:
    clock, folder = Clock(), ExchangePaths(tmp_path)
    exchange = FileExchange(folder)
    exchange.post((entry(),), 900.0)
    roster = RosterFile(folder.roster, clock.monotonic_s, clock.wall)
    assert roster.current() == ((entry(),), 100.0)  # it is older than the reader
    exchange.post((), 5000.0)
    clock.now_s, clock.wall_at = 10.0, 9999.0
    assert roster.current() == ((), 0.0)
    clock.now_s, clock.wall_at = 25.0, 0.0  # the wall clock jumps back
    assert roster.current() == ((), 15.0)


def test_only_its_owner_reads_what_is_exchanged(tmp_path: Path) -> None:
    folder = ExchangePaths(tmp_path)
    FileExchange(folder).post((), 0.0)
    TicketStore(folder.ledger)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (folder.roster, folder.ledger)} == {0o600}


def test_each_report_is_read_once_and_a_new_manager_reads_them_all(tmp_path: Path) -> None:
    folder = ExchangePaths(tmp_path)
    exchange = FileExchange(folder)
    assert exchange.reports() == ()  # no service has run yet
    ledger = TicketStore(folder.ledger)
    reports = [NodeReported(LaunchId("a"), JoinPhase.ENDED, str(number), 0.0) for number in range(3)]
    for report in reports[:2]:
        ledger.keep_report(report)
    assert exchange.reports() == tuple(reports[:2])
    ledger.keep_report(reports[2])
    assert exchange.reports() == (reports[2],)
    assert FileExchange(folder).reports() == tuple(reports)


def test_more_reports_than_are_read_at_once_are_all_read(tmp_path: Path) -> None:
    folder = ExchangePaths(tmp_path)
    ledger = TicketStore(folder.ledger)
    launches = READ_MAX // REPORTS_KEPT_MAX + 1
    for launch in range(launches):
        for _ in range(REPORTS_KEPT_MAX + 5):  # the oldest five of each are dropped
            ledger.keep_report(NodeReported(LaunchId(str(launch)), JoinPhase.ENDED, "", 0.0))
    assert len(FileExchange(folder).reports()) == launches * REPORTS_KEPT_MAX


def test_an_invalid_row_is_logged_and_hides_no_other(tmp_path: Path) -> None:
    folder = ExchangePaths(tmp_path)
    ledger = TicketStore(folder.ledger)
    ended = NodeReported(LaunchId("a"), JoinPhase.ENDED, "", 0.0)
    ledger.keep_report(
        NodeReported(LaunchId("a"), JoinPhase.MEASURED, '{"cores": 2', 0.0)
    )  # truncated as earlier versions did
    ledger.keep_report(ended)
    with closing(sqlite3.connect(folder.ledger)) as another:
        row = ("a", "of a later version", "", 0.0)
        another.execute("INSERT INTO reports (launch, phase, detail, reported_at) VALUES (?, ?, ?, ?)", row)
        another.commit()
    with capture_logs() as logged:
        exchange = FileExchange(folder)
        assert exchange.reports() == (ended,)
        assert exchange.reports() == ()
    assert [line["event"] for line in logged] == ["report_unreadable"] * 2
    assert "report 1 of a" in logged[0]["why"]


@pytest.mark.parametrize("reports", [1, 5])
def test_a_ledger_that_takes_the_place_of_another_is_read_from_its_start(tmp_path: Path, reports: int) -> None:
    folder = ExchangePaths(tmp_path)
    exchange = FileExchange(folder)
    for launch, count in (("before", 3), ("after", reports)):
        for file in tmp_path.glob("ledger*"):
            file.unlink()
        ledger = TicketStore(folder.ledger)
        said = [NodeReported(LaunchId(launch), JoinPhase.ENDED, str(number), 0.0) for number in range(count)]
        for report in said:
            ledger.keep_report(report)
        assert exchange.reports() == tuple(said)
        ledger.close()


def test_a_ledger_that_was_put_back_to_what_it_was_loses_nothing_that_comes_next(tmp_path: Path) -> None:
    folder = ExchangePaths(tmp_path)
    exchange = FileExchange(folder)
    first, second, third = (NodeReported(LaunchId("a"), JoinPhase.ENDED, text, 0.0) for text in "123")
    ledger = TicketStore(folder.ledger)
    ledger.keep_report(first)
    ledger.close()
    kept = folder.ledger.read_bytes()
    for report in (second, third):
        ledger = TicketStore(folder.ledger)
        ledger.keep_report(report)
        exchange.reports()
        ledger.close()
    folder.ledger.write_bytes(kept)
    assert exchange.reports() == (first,)
    ledger = TicketStore(folder.ledger)
    ledger.keep_report(second)
    assert exchange.reports() == (second,)


def test_a_damaged_ledger_or_folder_raises_a_join_error(tmp_path: Path) -> None:
    folder = ExchangePaths(tmp_path)
    folder.ledger.write_text("no database, though it is long enough to be taken for one" * 50)
    with pytest.raises(JoinError, match=r"ledger\.sqlite"):
        FileExchange(folder).reports()
    with pytest.raises(JoinError, match="cannot be written"):
        FileExchange(ExchangePaths(tmp_path / "nowhere")).post((), 0.0)
