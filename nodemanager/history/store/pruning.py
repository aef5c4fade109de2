"""Which rows leave the history file: those kept long enough, and the oldest if the file is too large."""

from __future__ import annotations

import sqlite3

from nodemanager.history.cost_ledger import HOUR_S
from nodemanager.history.store.schema import ENTRIES_KEPT_S, JOBS_KEPT_S, SPEND_KEPT_S

# Each table, its column with a time, that column's unit in seconds, and how long its rows are kept.
TABLES = (
    ("entries", "at", 1.0, ENTRIES_KEPT_S),
    ("waits", "at", 1.0, ENTRIES_KEPT_S),
    ("fleet", "at", 1.0, ENTRIES_KEPT_S),
    ("lives", "requested_at", 1.0, SPEND_KEPT_S),
    ("jobs", "submitted_at", 1.0, JOBS_KEPT_S),
    ("peer_runs", "ended_at", 1.0, SPEND_KEPT_S),
    ("spend", "hour", HOUR_S, SPEND_KEPT_S),
    ("advised", "hour", HOUR_S, SPEND_KEPT_S),
)
THIN_TO = 0.9  # of the largest size, so that not every write deletes
STEP = 0.05  # of the time that the rows span, deleted in one transaction
STEP_MIN_S = 60.0
COMPACT_ABOVE = 1.25  # a file this much larger than its largest size is rewritten without its free pages


def delete_older(wall_at: float, connection: sqlite3.Connection) -> None:
    """Delete the rows that have been kept long enough."""
    with connection:
        for table, column, unit_s, kept_s in TABLES:
            _delete_before(connection, table, column, (wall_at - kept_s) / unit_s)


def thin(connection: sqlite3.Connection, size_max_bytes: int) -> float | None:
    """Delete the oldest rows if the file is too large. Return when the history begins now, or None if unchanged.

    Every transaction deletes a small part, so that the write-ahead log stays small too.
    """
    begins_at = None
    if _used_bytes(connection) > size_max_bytes:
        while _used_bytes(connection) > THIN_TO * size_max_bytes and (span := _span(connection)) is not None:
            oldest_at, newest_at = span
            least_at = oldest_at + max(STEP_MIN_S, STEP * (newest_at - oldest_at))
            with connection:
                deleted = [_delete_before(connection, *it[:2], least_at / it[2]) for it in TABLES]
                if not any(deleted):  # in a damaged file a time may be infinite
                    break
                connection.execute("UPDATE begun SET at = ? WHERE at < ?", (least_at, least_at))
            begins_at = least_at
    if _pragma(connection, "page_count") * _pragma(connection, "page_size") > COMPACT_ABOVE * size_max_bytes:
        connection.execute("VACUUM")
    return begins_at


def _delete_before(connection: sqlite3.Connection, table: str, column: str, least: float) -> int:
    return connection.execute(f"DELETE FROM {table} WHERE {column} < ?", (least,)).rowcount  # noqa: S608 - our own words


def _span(connection: sqlite3.Connection) -> tuple[float, float] | None:
    """The oldest and the newest time in any table; None if all are empty."""
    found = [
        value * unit_s
        for table, column, unit_s, _ in TABLES
        for value in connection.execute(f"SELECT MIN({column}), MAX({column}) FROM {table}").fetchone()  # noqa: S608
        if value is not None
    ]
    return (min(found), max(found)) if found else None


def _used_bytes(connection: sqlite3.Connection) -> int:
    used = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return used * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
