"""The tables of the history file, as a list of migrations. ``PRAGMA user_version`` counts those already applied."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache

HISTORY_FILE = "journal.sqlite"  # in the site's state_dir
ENTRIES_KEPT_S = 35 * 86_400.0  # and the waits of jobs, and the fleet over time
JOBS_KEPT_S = 100 * 86_400.0
SPEND_KEPT_S = 400 * 86_400.0  # and lives
SIZE_MAX_BYTES = 1 << 30  # of the file, unless the site says otherwise
EARLIER_RUN_SUFFIX = ".before"  # appended to the name of the file of the last simulated run
SET_ASIDE_SUFFIX = ".unusable-"  # appended, with the time in seconds, to the name of an unusable file

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
        userid INTEGER NOT NULL,    -- -1: no job
        queue TEXT NOT NULL,
        use TEXT NOT NULL,          -- job, boot, idle, stop or unused
        cost REAL NOT NULL,
        node_s REAL NOT NULL,
        PRIMARY KEY (hour, node_type, userid, queue, use)
    ) WITHOUT ROWID;
    CREATE TABLE waits (
        job TEXT PRIMARY KEY,
        at REAL NOT NULL,           -- when it started
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
        cost REAL NOT NULL,         -- of the actual nodes
        cost_advised REAL NOT NULL, -- if the decisions of observe mode had been carried out
        busy_touched INTEGER NOT NULL
    );
    ALTER TABLE waits ADD COLUMN advised_s REAL;
    """,
    """
    CREATE TABLE jobs (
        job TEXT PRIMARY KEY,
        submitted_at REAL NOT NULL,
        began_at REAL,              -- NULL: it ended without starting
        ended_at REAL NOT NULL,
        duration_s REAL NOT NULL,   -- the time limit; 0 is unlimited
        userid INTEGER NOT NULL,
        queue TEXT NOT NULL,
        shape TEXT NOT NULL         -- JSON
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_time ON jobs (submitted_at);
    """,
    """
    CREATE TABLE begun (at REAL NOT NULL);  -- one row: when the history begins
    INSERT INTO begun
        SELECT at FROM (
            SELECT MIN(at) AS at FROM (SELECT at FROM entries UNION ALL SELECT hour * 3600.0 FROM spend)
        ) WHERE at IS NOT NULL;
    """,
    """
    ALTER TABLE lives ADD COLUMN provider_id TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE lives ADD COLUMN size TEXT NOT NULL DEFAULT '';
    """,
    """
    CREATE TABLE peer_runs (        -- jobs of ours that ran in another instance
        job TEXT NOT NULL,
        peer TEXT NOT NULL,
        remote TEXT NOT NULL,       -- its id there
        cores INTEGER NOT NULL,
        started_at REAL,            -- NULL: the peer lost its state, so nobody knows how long it ran
        ended_at REAL NOT NULL,
        price_per_core_hour REAL NOT NULL,
        PRIMARY KEY (job, peer, remote)
    ) WITHOUT ROWID;
    CREATE INDEX peer_runs_by_time ON peer_runs (ended_at);
    """,
    """
    ALTER TABLE lives ADD COLUMN cloud TEXT NOT NULL DEFAULT '';
    CREATE TABLE spend_by_cloud (
        hour INTEGER NOT NULL,
        node_type TEXT NOT NULL,
        userid INTEGER NOT NULL,
        queue TEXT NOT NULL,
        use TEXT NOT NULL,
        cloud TEXT NOT NULL,        -- '': a version wrote it that did not keep it
        cost REAL NOT NULL,
        node_s REAL NOT NULL,
        PRIMARY KEY (hour, node_type, userid, queue, use, cloud)
    ) WITHOUT ROWID;
    INSERT INTO spend_by_cloud SELECT hour, node_type, userid, queue, use, '', cost, node_s FROM spend;
    DROP TABLE spend;
    ALTER TABLE spend_by_cloud RENAME TO spend;
    """,
    """
    CREATE TABLE charged (          -- one row: until when the costs are charged
        only INTEGER PRIMARY KEY CHECK (only = 0),
        until_at REAL NOT NULL
    );
    INSERT INTO charged SELECT 0, MAX(hour) * 3600.0 + 3600.0 FROM spend HAVING MAX(hour) IS NOT NULL;
    """,
    # The part of the cost that nodes with GPUs cost while they ran only jobs without GPUs.
    """
    ALTER TABLE spend ADD COLUMN misused REAL NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE fleet (            -- about one row a minute
        at REAL PRIMARY KEY,
        by_state TEXT NOT NULL,     -- JSON: nodes by state
        by_type TEXT NOT NULL,      -- JSON: by type, the nodes that are charged for and their price per hour
        jobs_waiting INTEGER NOT NULL,
        jobs_running INTEGER NOT NULL,
        price_per_hour REAL NOT NULL,
        cores_used REAL NOT NULL,   -- means over span_s
        cores_paid REAL NOT NULL,
        span_s REAL NOT NULL
    ) WITHOUT ROWID;
    """,
)
VERSION = len(MIGRATIONS)


class SchemaTooNew(Exception):
    """A later version of the program wrote the file, so this one must not change it."""


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the migrations that a file lacks. Raises ``SchemaTooNew``."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise SchemaTooNew(f"it has version {version}; this program knows versions up to {VERSION}")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")


COLUMNS = """
    SELECT tables.name, columns.name, columns.type, columns."notnull", columns.pk
    FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type = 'table' ORDER BY tables.name, columns.cid
"""


def check_schema(connection: sqlite3.Connection) -> None:
    """Raise ``DatabaseError`` if the tables or their encoding are not what the migrations made of an empty file."""
    if _describe(connection) != _expected():
        raise sqlite3.DatabaseError("its tables are not those of a history")


@cache
def _expected() -> list[object]:
    with closing(sqlite3.connect(":memory:")) as empty:
        migrate(empty)
        return _describe(empty)


def _describe(connection: sqlite3.Connection) -> list[object]:
    return [connection.execute(query).fetchall() for query in (COLUMNS, "PRAGMA encoding")]
