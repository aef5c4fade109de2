"""The journal's tables, and how they came to be: ``PRAGMA user_version`` says how many steps a file has taken."""

from __future__ import annotations

import sqlite3

HISTORY_FILE = "journal.sqlite"  # in the site's state_dir
ENTRIES_KEPT_S = 35 * 86_400.0  # and the waits of jobs
JOBS_KEPT_S = 100 * 86_400.0
SPEND_KEPT_S = 400 * 86_400.0  # and lives
SET_ASIDE_SUFFIX = ".unusable-"  # follows the name of a file that could not be used; then when that was found

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE entries (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,           -- seconds since the epoch, as everywhere here
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        what TEXT NOT NULL,
        code TEXT NOT NULL,
        figures TEXT NOT NULL,      -- JSON
        node_type TEXT NOT NULL
    );
    CREATE INDEX entries_of_a_subject ON entries (subject, at);
    CREATE INDEX entries_by_time ON entries (at);
    CREATE TABLE lives (
        launch TEXT PRIMARY KEY,
        slot TEXT NOT NULL,
        node_type TEXT NOT NULL,
        requested_at REAL NOT NULL,
        found INTEGER NOT NULL,
        up_at REAL,
        joined_at REAL,
        first_job_at REAL,
        ended_at REAL,
        outcome TEXT NOT NULL,
        why TEXT NOT NULL,
        cost REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX lives_by_time ON lives (requested_at);
    CREATE TABLE spend (
        hour INTEGER NOT NULL,      -- since the epoch
        node_type TEXT NOT NULL,
        userid INTEGER NOT NULL,    -- -1: nobody's job
        queue TEXT NOT NULL,
        use TEXT NOT NULL,          -- job, or what else the node did
        cost REAL NOT NULL,
        node_s REAL NOT NULL,
        PRIMARY KEY (hour, node_type, userid, queue, use)
    ) WITHOUT ROWID;
    CREATE TABLE waits (
        job TEXT PRIMARY KEY,
        at REAL NOT NULL,           -- when it began
        wait_s REAL NOT NULL,
        userid INTEGER NOT NULL,
        queue TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX waits_by_time ON waits (at);
    """,
    """
    CREATE TABLE advised (
        hour INTEGER PRIMARY KEY,
        span_s REAL NOT NULL,
        cost REAL NOT NULL,         -- of the nodes that stood
        cost_advised REAL NOT NULL, -- had been done what was only said
        busy_touched INTEGER NOT NULL
    );
    ALTER TABLE waits ADD COLUMN advised_s REAL;
    """,
    """
    CREATE TABLE jobs (
        job TEXT PRIMARY KEY,
        submitted_at REAL NOT NULL,
        began_at REAL,              -- NULL: it ended before it could
        ended_at REAL NOT NULL,
        duration_s REAL NOT NULL,   -- asked for; 0 is unlimited
        userid INTEGER NOT NULL,
        queue TEXT NOT NULL,
        shape TEXT NOT NULL         -- JSON
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_time ON jobs (submitted_at);
    """,
    """
    CREATE TABLE begun (at REAL NOT NULL);  -- one row: of before that moment this file knows nothing
    INSERT INTO begun
        SELECT at FROM (
            SELECT MIN(at) AS at FROM (SELECT at FROM entries UNION ALL SELECT hour * 3600.0 FROM spend)
        ) WHERE at IS NOT NULL;
    """,
)
VERSION = len(MIGRATIONS)


class SchemaTooNew(Exception):
    """The file was written by a later program, and is not ours to change."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the tables of this program. Raises ``TooNew``."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise SchemaTooNew(f"it has version {version}, and this program knows {VERSION}")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")
