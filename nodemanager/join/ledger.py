"""What the join service remembers, in SQLite: which tickets are used, and what nodes reported.

Of a used ticket it keeps the launch and a hash of the nonce that came with it: nothing that opens anything. A mark
is on disk before the answer leaves. The manager reads the reports from the same file, and writes nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from nodemanager.facts import JoinFact, NodeMeasured, NodeReported
from nodemanager.model import Hardware, JoinPhase, LaunchId

REPORTS_KEPT_MAX = 50  # of one launch
REPLAYS_KEPT_MAX = 10
DETAIL_MAX_CHARS = 2000
READ_MAX = 1000  # reports read at once
_BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS used (
    launch TEXT PRIMARY KEY, nonce_hash TEXT NOT NULL, source TEXT NOT NULL, used_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS reports (
    id INTEGER PRIMARY KEY AUTOINCREMENT, launch TEXT NOT NULL, phase TEXT NOT NULL, detail TEXT NOT NULL,
    reported_at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS reports_of_launch ON reports (launch, id);
"""


Reports = tuple[tuple[int, JoinFact], ...]  # each with its id, oldest first


class LedgerError(Exception):
    """The file cannot be opened, read or written now."""


class Ledger:
    """The service's own file. Used by one thread at a time. Every method raises :class:`LedgerError`."""

    def __init__(self, path: Path | str) -> None:
        try:
            if isinstance(path, Path):
                path.touch(0o600)
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"{path} cannot be used: {error}") from error
        try:
            # What was answered must be remembered after a power failure too.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            self._db.close()
            raise LedgerError(f"{path} cannot be used: {error}") from error

    def close(self) -> None:
        self._db.close()

    def use(self, launch: LaunchId, nonce_hash: str, source: str, now_at: float) -> str:
        """Mark a ticket as used; give the hash of the nonce that it was first used with, this one or another."""
        row = (launch, nonce_hash, source, now_at)
        try:
            self._db.execute("INSERT INTO used VALUES (?, ?, ?, ?) ON CONFLICT (launch) DO NOTHING", row)
        except sqlite3.Error as error:
            raise LedgerError(f"a ticket could not be marked as used: {error}") from error
        return self.user(launch) or nonce_hash

    def user(self, launch: LaunchId) -> str | None:
        """The hash of the nonce that the ticket was used with; None if it was not used."""
        try:
            found = self._db.execute("SELECT nonce_hash FROM used WHERE launch = ?", [launch]).fetchone()
        except sqlite3.Error as error:
            raise LedgerError(f"whether a ticket was used could not be read: {error}") from error
        return str(found[0]) if found is not None else None

    def report(self, report: NodeReported) -> None:
        """Keep a report for the manager. Only the latest of a launch are kept, and only so many replays of it."""
        row = (report.launch, report.phase, report.detail[:DETAIL_MAX_CHARS], report.reported_at)
        is_replay = report.phase is JoinPhase.REPLAYED
        kept_max = REPLAYS_KEPT_MAX if is_replay else REPORTS_KEPT_MAX
        try:
            if is_replay and self._count_replays(report.launch) >= kept_max:
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT INTO reports (launch, phase, detail, reported_at) VALUES (?, ?, ?, ?)", row)
            self._db.execute(
                "DELETE FROM reports WHERE launch = ?1 AND phase <> ?2 AND id NOT IN"
                " (SELECT id FROM reports WHERE launch = ?1 AND phase <> ?2 ORDER BY id DESC LIMIT ?3)",
                (report.launch, JoinPhase.REPLAYED, REPORTS_KEPT_MAX),
            )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise LedgerError(f"a report could not be kept: {error}") from error

    def _count_replays(self, launch: LaunchId) -> int:
        rows = self._db.execute(
            "SELECT count(*) FROM reports WHERE launch = ? AND phase = ?", (launch, JoinPhase.REPLAYED)
        )
        return int(rows.fetchone()[0])

    def forget(self, current: Iterable[LaunchId], before_at: float) -> None:
        """Drop what is older than a moment, and of no launch that is current."""
        try:
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS current (launch TEXT PRIMARY KEY)")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM current")
            self._db.executemany("INSERT OR IGNORE INTO current VALUES (?)", ([launch] for launch in current))
            for table, column in (("used", "used_at"), ("reports", "reported_at")):
                self._db.execute(
                    f"DELETE FROM {table} WHERE {column} < ? AND launch NOT IN (SELECT launch FROM current)",  # noqa: S608 - names of ours
                    [before_at],
                )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise LedgerError(f"old marks could not be dropped: {error}") from error

    def reports(self, after: int) -> Reports:
        """As :func:`read_reports`, of this very ledger."""
        return _reports(self._db, after)


def read_reports(path: Path, after: int) -> Reports:
    """Reports beyond an id, each with its own, oldest first; none where there is no file yet.

    Raises :class:`LedgerError`.
    """
    if not path.exists():
        return ()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as db:
            return _reports(db, after)
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error


def _reports(db: sqlite3.Connection, after: int) -> Reports:
    query = "SELECT id, launch, phase, detail, reported_at FROM reports WHERE id > ? ORDER BY id LIMIT ?"
    rows = db.execute(query, (after, READ_MAX)).fetchall()
    known = set(JoinPhase)
    return tuple(
        (id_, _fact(NodeReported(LaunchId(launch), JoinPhase(phase), detail, reported_at)))
        for id_, launch, phase, detail, reported_at in rows
        if phase in known
    )


def _fact(report: NodeReported) -> JoinFact:
    if report.phase is not JoinPhase.MEASURED:
        return report
    return NodeMeasured(report.launch, decoded_hardware(report.detail), report.reported_at)


def decoded_hardware(text: str) -> Hardware:
    """What a client says of its machine, as a JSON object of four whole numbers. Raises ``ValueError``."""
    read = json.loads(text)
    names = ("cores", "threads", "gpus", "memory_bytes")
    if not isinstance(read, dict) or any(type(read.get(name)) is not int or read[name] < 0 for name in names):
        raise ValueError(f"an object of whole numbers is needed: {', '.join(names)}")
    return Hardware(*(read[name] for name in names))
