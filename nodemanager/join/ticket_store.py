"""Stores used tickets and nodes' reports in SQLite. The join service writes the file, the manager reads reports.

For a used ticket the store keeps the launch and a hash of the client's nonce, which grant no access. The mark is on
disk before the service answers.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodemanager.core.facts import JoinFact, NodeMeasured, NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId
from nodemanager.core.slots import Hardware
from nodemanager.core.untrusted import read_json

REPORTS_KEPT_MAX = 50  # for each launch
REPLAYS_KEPT_MAX = 10  # for each launch
DETAIL_MAX_CHARS = 2000
READ_MAX = 1000  # reports on one page
# More than any machine has. Limits are needed because a node type may be redeclared from a node's report, and then
# every core is laid out.
THREADS_MAX = 100_000
GPUS_MAX = 10_000
MEMORY_MAX_BYTES = 2**60
_HARDWARE_MAX = {"cores": THREADS_MAX, "threads": THREADS_MAX, "gpus": GPUS_MAX, "memory_bytes": MEMORY_MAX_BYTES}
_HARDWARE_BYTES_MAX = 16_384
_HARDWARE_ALLOWED = ", ".join(f"{name} (at most {most})" for name, most in _HARDWARE_MAX.items())
_MARK_MAX = 2**31 - 1
_BUSY_TIMEOUT_S = 5.0

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


Reports = tuple[tuple[int, JoinFact], ...]  # (id, report), oldest first


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A page of reports, oldest first, ``READ_MAX`` rows at most.

    ``store_mark`` identifies the store, so that a reader notices if another file has replaced it. ``last_id`` is
    the id up to which rows have been read. ``unreadable`` explains each row that is not a valid report.
    """

    store_mark: int
    last_id: int
    facts: tuple[JoinFact, ...]
    unreadable: tuple[str, ...]
    is_last: bool


class TicketStoreError(Exception):
    """The store's file cannot be opened, read or written."""


class TicketStore:
    """The service's side of the store, for one thread at a time. Every method raises :class:`TicketStoreError`."""

    def __init__(self, path: Path | str) -> None:
        try:
            if isinstance(path, Path):
                path.touch(0o600)
            self._db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise TicketStoreError(f"{path} cannot be used: {error}") from error
        try:
            # A mark must survive a power failure, because its answer may have been sent.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            (mark,) = self._db.execute("PRAGMA user_version").fetchone()
            if not mark:  # a new store: readers tell it from other stores by this random mark
                self._db.execute(f"PRAGMA user_version = {1 + secrets.randbelow(_MARK_MAX)}")
        except sqlite3.Error as error:
            self._db.close()
            raise TicketStoreError(f"{path} cannot be used: {error}") from error
        self._has_failed = False

    @contextmanager
    def one_commit(self) -> Iterator[None]:
        """Write all that is written within by one commit: the disk is waited for once.

        If a write or the commit fails, nothing is written, and it raises :class:`TicketStoreError` at the end.
        """
        self._has_failed = False
        try:
            with self._transaction("BEGIN"):
                yield
                if self._has_failed:
                    raise TicketStoreError("a mark or a report could not be stored")
        except sqlite3.Error as error:
            raise TicketStoreError(f"marks and reports could not be stored: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def mark_used(self, launch: LaunchId, nonce_hash: str, source: str, now_at: float) -> str:
        """Mark a ticket as used. Return the hash of the nonce that it was first used with: this one or another."""
        row = (launch, nonce_hash, source, now_at)
        try:
            self._db.execute("INSERT INTO used VALUES (?, ?, ?, ?) ON CONFLICT (launch) DO NOTHING", row)
        except sqlite3.Error as error:
            raise self._failure("a ticket could not be marked as used", error) from error
        return self.nonce_hash_of(launch) or nonce_hash

    def nonce_hash_of(self, launch: LaunchId) -> str | None:
        """Return the hash of the nonce that the launch's ticket was used with; None if it is unused."""
        try:
            row = self._db.execute("SELECT nonce_hash FROM used WHERE launch = ?", [launch]).fetchone()
        except sqlite3.Error as error:
            raise self._failure("the use of a ticket cannot be read", error) from error
        return str(row[0]) if row is not None else None

    def keep_report(self, report: NodeReported) -> None:
        """Store a report for the manager. For each launch, keep the latest reports and the first few replays."""
        row = (report.launch, report.phase, report.detail[:DETAIL_MAX_CHARS], report.reported_at)
        is_replay = report.phase is JoinPhase.REPLAYED
        kept_max = REPLAYS_KEPT_MAX if is_replay else REPORTS_KEPT_MAX
        try:
            if is_replay and self._count_replays(report.launch) >= kept_max:
                return
            with self._transaction():
                self._db.execute(
                    "INSERT INTO reports (launch, phase, detail, reported_at) VALUES (?, ?, ?, ?)", row
                )
                self._db.execute(
                    "DELETE FROM reports WHERE launch = ?1 AND phase <> ?2 AND id NOT IN"
                    " (SELECT id FROM reports WHERE launch = ?1 AND phase <> ?2 ORDER BY id DESC LIMIT ?3)",
                    (report.launch, JoinPhase.REPLAYED, REPORTS_KEPT_MAX),
                )
        except sqlite3.Error as error:
            raise self._failure("a report could not be stored", error) from error

    def _failure(self, what: str, error: sqlite3.Error) -> TicketStoreError:
        """Note that a statement failed, and return the error to raise."""
        self._has_failed = True
        return TicketStoreError(f"{what}: {error}")

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        """Carry out the statements within as a whole: by themselves, or as a part of the transaction under way."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute(begin)
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _count_replays(self, launch: LaunchId) -> int:
        rows = self._db.execute(
            "SELECT count(*) FROM reports WHERE launch = ? AND phase = ?", (launch, JoinPhase.REPLAYED)
        )
        return int(rows.fetchone()[0])

    def forget(self, current: Iterable[LaunchId], before_at: float) -> None:
        """Delete marks and reports from before a time, except those of current launches."""
        try:
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS current (launch TEXT PRIMARY KEY)")
            with self._transaction():
                self._db.execute("DELETE FROM current")
                self._db.executemany("INSERT OR IGNORE INTO current VALUES (?)", ([launch] for launch in current))
                for table, column in (("used", "used_at"), ("reports", "reported_at")):
                    self._db.execute(
                        f"DELETE FROM {table} WHERE {column} < ? AND launch NOT IN (SELECT launch FROM current)",  # noqa: S608 - our own names
                        [before_at],
                    )
        except sqlite3.Error as error:
            raise TicketStoreError(f"old marks could not be deleted: {error}") from error

    def reports(self, after: int) -> Reports:
        """Return the reports after an id, oldest first."""
        return tuple((id_, fact) for id_, fact in _read_rows(self._db, after) if not isinstance(fact, str))


def read_page(path: Path, store_mark: int, last_id: int) -> ReportPage | None:
    """Read the reports after ``last_id``, for the manager. None if there is no store yet.

    If the store's mark is not ``store_mark``, another store has replaced it, and reading starts from its beginning.
    Raises :class:`TicketStoreError`.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)) as db:
            db.execute("BEGIN")  # one consistent view for all reads
            mark = int(db.execute("PRAGMA user_version").fetchone()[0])
            newest = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'reports'").fetchone()
            # A store restored from a backup has the same mark, but its newest id is below the last one read.
            continues = mark == store_mark and (newest[0] if newest is not None else 0) >= last_id
            rows = _read_rows(db, last_id if continues else 0)
    except sqlite3.Error as error:
        raise TicketStoreError(f"{path} cannot be read: {error}") from error
    return ReportPage(
        store_mark=mark,
        last_id=rows[-1][0] if rows else (last_id if continues else 0),
        facts=tuple(fact for _, fact in rows if not isinstance(fact, str)),
        unreadable=tuple(fact for _, fact in rows if isinstance(fact, str)),
        is_last=len(rows) < READ_MAX,
    )


def _read_rows(db: sqlite3.Connection, after: int) -> list[tuple[int, JoinFact | str]]:
    """Return the rows after an id as (id, fact). An invalid row has an explanation instead of the fact."""
    query = "SELECT id, launch, phase, detail, reported_at FROM reports WHERE id > ? ORDER BY id LIMIT ?"
    return [(row[0], _fact_from_row(*row)) for row in db.execute(query, (after, READ_MAX))]


def _fact_from_row(id_: int, launch: str, phase: str, detail: str, reported_at: float) -> JoinFact | str:
    try:
        report = NodeReported(LaunchId(launch), JoinPhase(phase), detail, reported_at)
        if report.phase is not JoinPhase.MEASURED:
            return report
        return NodeMeasured(report.launch, decode_hardware(detail), reported_at)
    except ValueError as fault:
        return f"report {id_} of {launch}: {fault}"


# --- the hardware of a machine ----------------------------------------------------------------------------


def encode_hardware(hardware: Hardware) -> str:
    """Return the JSON that :func:`decode_hardware` reads, without any other keys."""
    return json.dumps(asdict(hardware))


def decode_hardware(text: str) -> Hardware:
    """Parse a client's report about its machine, a JSON object of four whole numbers. Raises ``ValueError``."""
    document = read_json(text, size_max=_HARDWARE_BYTES_MAX)
    if not isinstance(document, dict) or not all(
        _is_count(document.get(name), most) for name, most in _HARDWARE_MAX.items()
    ):
        raise ValueError(f"it must be an object of whole numbers: {_HARDWARE_ALLOWED}")
    hardware = Hardware(*(document[name] for name in _HARDWARE_MAX))
    if hardware.cores > hardware.threads:
        raise ValueError("it has more cores than threads, but each core has at least one thread")
    return hardware


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
