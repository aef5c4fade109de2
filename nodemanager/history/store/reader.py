"""Reads the history file: costs, reports, past reasons, ended jobs, nodes' lives. Any thread may use it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from nodemanager.history.cost_ledger import HOUR_S, JOB_USE, NOBODY
from nodemanager.history.fleet_samples import FleetSample
from nodemanager.history.node_lives import FAILED_OUTCOMES, NodeLife
from nodemanager.history.observe_savings import format_savings
from nodemanager.history.store.schema import ENTRIES_KEPT_S, SET_ASIDE_SUFFIX, SIZE_MAX_BYTES

DAY_S = 86_400.0
ENTRIES_MAX = 1000
CREATE_FAILED = "create_"  # how the outcomes of boots begin whose create failed
BUSY_S = 1.0

TEXT_COLUMNS = ("kind", "subject", "what", "code", "figures", "node_type")  # of the table ``entries``
SELECT_STOP_DURATIONS = """
    SELECT node_type,
        MIN(CASE WHEN kind = 'node' THEN at END) - MIN(CASE WHEN kind = 'decided' THEN at END) AS took_s
    FROM entries
    WHERE (kind = 'node' AND what IN ('gone', 'ended')) OR (kind = 'decided' AND what = 'DestroyNode')
    GROUP BY subject HAVING took_s >= 0 ORDER BY subject
"""


class HistoryUnreadable(Exception):
    """The history file is missing or cannot be read."""


@dataclass(frozen=True, slots=True)
class CoreHours:
    """The core-hours of nodes that are charged for, and those of them that running jobs held."""

    used: float
    paid: float

    @property
    def share(self) -> float | None:
        """The utilisation, from 0 to 1; None if no core was paid for."""
        return self.used / self.paid if self.paid > 0 else None


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """How many jobs began, and how long they waited, in seconds. None if there were none."""

    jobs: int
    median_s: float | None
    p95_s: float | None


@dataclass(slots=True)
class BootFigures:
    """The boots of a node type. ``median_s``, ``p95_s``: from the request until the node joined.

    ``failures``: the boots that ended without a join, by outcome. Boots that were given up as no longer needed
    are none.
    """

    joined: int = 0
    median_s: float | None = None
    p95_s: float | None = None
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlwaysOn:
    """What the nodes cost since a time, and what as many as there were at once would have cost, always on.

    ``nodes``: the most nodes at once of each type. ``cost_always_on``: their price for the whole time.
    """

    since_at: float
    cost: float
    cost_always_on: float
    nodes: Mapping[str, int]


class HistoryReader:
    """Reads one history file, opened read-only for each query. Queries raise ``HistoryUnreadable``.

    ``size_max_bytes``: the largest size that its writer keeps it to.
    """

    def __init__(self, path: Path, size_max_bytes: int = SIZE_MAX_BYTES) -> None:
        self._path = path
        self.size_max_bytes = size_max_bytes

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        except sqlite3.Error as error:
            raise HistoryUnreadable(f"{self._path}: {error}") from error
        connection.row_factory = sqlite3.Row
        connection.text_factory = _decode_text
        try:
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a damaged schema
            raise HistoryUnreadable(f"{self._path}: {error}") from error
        finally:
            connection.close()

    def _rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._connected() as connection:
            return [dict(row) for row in connection.execute(query, values)]

    # --- where the history begins ---

    def begins_at(self) -> float | None:
        """The time at which the history begins; None if nothing has been written yet."""
        rows = self._rows("SELECT MIN(at) AS at FROM begun")
        found = rows[0]["at"]
        return found if isinstance(found, float) else None

    def set_aside_files(self) -> list[str]:
        """The names of earlier files in the same folder that could not be used, the oldest first."""
        return sorted(it.name for it in self._path.parent.glob(f"{self._path.name}{SET_ASIDE_SUFFIX}*"))

    def size_bytes(self) -> int:
        """The size of the file, and of SQLite's own files beside it. 0 if there is none yet."""
        total = 0
        for ending in ("", "-wal", "-shm"):
            with suppress(OSError):
                total += self._path.with_name(self._path.name + ending).stat().st_size
        return total

    # --- events ---

    def events(
        self, *, since_at: float = 0.0, subject: str = "", kinds: Sequence[str] = (), limit: int = ENTRIES_MAX
    ) -> list[dict[str, Any]]:
        """Return the latest events, oldest first. ``subject``: a launch, a job's id, or "type NAME".

        Events damaged in a way that SQLite does not notice are skipped and logged.
        """
        conditions = ["at >= ?"]
        values: list[object] = [since_at]
        if subject:
            conditions.append("subject = ?")
            values.append(subject)
        if kinds:
            conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
            values += kinds
        rows = self._rows(
            f"SELECT at, kind, subject, what, code, figures, node_type FROM entries"  # noqa: S608 - our own words
            f" WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?",
            *values,
            limit,
        )
        whole: list[dict[str, Any]] = []
        for row in reversed(rows):
            with suppress(_CorruptEventError):
                whole.append(_parse_event(row))
        if len(whole) < len(rows):
            structlog.get_logger().warning(
                "journal_entries_spoilt", path=str(self._path), entries=len(rows) - len(whole)
            )
        return whole

    def reason_at(self, subject: str, at: float) -> dict[str, Any] | None:
        """Return the last event with a reason for a subject before a time; None if there is none.

        Its ``code`` is "" if no reason applied any longer: the job had started, the job or node had ended (``what``
        says which), or decisions had stood still since. If they still did, the standstill's event is returned.
        """
        event = self._last_event(
            subject, at, "(code != '' OR kind = 'job' OR (kind = 'node' AND what = 'ended'))", f"of {subject}"
        )
        if event is None or not event["code"]:
            return event
        still = self._last_event("", at, "kind = 'standstill' AND what = 'begins'", "of what stood still")
        if still is None or still["id"] < event["id"]:
            return event
        ended = self._last_event("", at, "kind = 'standstill' AND what = 'ends'", "of what stood still")
        return {**ended, "code": ""} if ended is not None and ended["id"] > still["id"] else still

    def _last_event(self, subject: str, at: float, condition: str, what: str) -> dict[str, Any] | None:
        rows = self._rows(
            "SELECT at, kind, subject, what, code, figures, node_type, id FROM entries"  # noqa: S608 - our own words
            f" WHERE subject = ? AND at <= ? AND {condition} ORDER BY id DESC LIMIT 1",
            subject,
            at,
        )
        try:
            return _parse_event(rows[0]) if rows else None
        except _CorruptEventError as fault:  # an older one would be a wrong answer
            raise HistoryUnreadable(f"{self._path}: the last event {what} before {at}: {fault}") from fault

    def launch_of_node(self, name: str, at: float) -> str | None:
        """The launch that had a slot or a provider's id at a time, or had it last before that time."""
        rows = self._rows(
            "SELECT launch FROM lives WHERE ? IN (slot, provider_id) AND requested_at <= ?"
            " ORDER BY requested_at DESC LIMIT 1",
            name,
            at,
        )
        return str(rows[0]["launch"]) if rows else None

    # --- jobs ---

    def jobs(self, until_at: float = math.inf, since_at: float = 0.0) -> Iterator[sqlite3.Row]:
        """Yield the jobs that were submitted since a time and had ended by another, in order of submission.

        There may be very many.
        """
        query = "SELECT * FROM jobs WHERE ended_at <= ? AND submitted_at >= ? ORDER BY submitted_at, job"
        with self._connected() as connection:
            yield from connection.execute(query, (until_at, since_at))

    def ended_job(self, job_id: int) -> tuple[float | None, float] | None:
        """When an ended job began (None: nobody saw it begin) and ended; None if it is not recorded."""
        rows = self._rows("SELECT began_at, ended_at FROM jobs WHERE job = ?", str(job_id))
        return (rows[0]["began_at"], rows[0]["ended_at"]) if rows else None

    def last_job_ended_at(self) -> float:
        """When the last recorded job ended; 0 if there is none."""
        (row,) = self._rows("SELECT MAX(ended_at) AS last_at FROM jobs")
        return float(row["last_at"] or 0.0)

    def count_jobs(self, since_at: float = 0.0) -> int:
        """The number of recorded jobs that were submitted since a time."""
        (row,) = self._rows("SELECT COUNT(*) AS count FROM jobs WHERE submitted_at >= ?", since_at)
        return int(row["count"])

    def submission_of_latest(self, count: int) -> float:
        """When the first of the ``count`` latest jobs was submitted; 0 if there are not so many."""
        query = "SELECT submitted_at FROM jobs ORDER BY submitted_at DESC LIMIT 1 OFFSET ?"
        rows = self._rows(query, count - 1)
        return float(rows[0]["submitted_at"]) if rows else 0.0

    # --- nodes' lives ---

    def lives(self, within_s: float) -> Iterator[NodeLife]:
        """Yield the lives of nodes requested at most ``within_s`` before the latest one, in order of request."""
        with self._connected() as connection:
            for row in connection.execute(
                "SELECT * FROM lives WHERE requested_at >= (SELECT MAX(requested_at) FROM lives) - ?"
                " ORDER BY requested_at, launch",
                (within_s,),
            ):
                yield NodeLife(**{**dict(row), "found": bool(row["found"])})

    def stop_durations(self) -> list[tuple[str, float]]:
        """Return for each ended node its type and the seconds from the order to destroy it until it was gone."""
        rows = self._rows(SELECT_STOP_DURATIONS)
        return [(row["node_type"], row["took_s"]) for row in rows]

    # --- cost ---

    def cost_since(self, since_at: float) -> float:
        """The cost since the beginning of the hour of ``since_at``; an estimate."""
        rows = self._rows("SELECT SUM(cost) AS cost FROM spend WHERE hour >= ?", int(since_at // HOUR_S))
        return float(rows[0]["cost"] or 0.0)

    def charged_until_at(self) -> float:
        """Until when the costs of nodes are on record, as seconds since the epoch; 0 if none are."""
        with suppress(HistoryUnreadable):
            known = self._rows("SELECT 1 FROM sqlite_master WHERE name = 'charged'")
            last_hour = "SELECT (MAX(hour) + 1) * 3600.0 AS until_at FROM spend"  # a version that did not keep it
            for row in self._rows("SELECT until_at FROM charged" if known else last_hour):
                return float(row["until_at"] or 0.0)
        return 0.0

    def cost_by_day(self, since_at: float) -> list[dict[str, Any]]:
        """The cost of each day (UTC) since that of ``since_at``: one row for each type, user, queue, use and cloud.

        The cloud is "" in records of versions that did not keep it.
        """
        cloud = "cloud" if self._knows("cloud") else "''"
        return self._rows(
            f"SELECT hour / 24 * 86400.0 AS day_at, node_type, userid, queue, use, {cloud} AS cloud,"  # noqa: S608
            " SUM(cost) AS cost FROM spend"
            f" WHERE hour >= ? GROUP BY hour / 24, node_type, userid, queue, use, {cloud} ORDER BY hour / 24",
            int(since_at // DAY_S) * 24,
        )

    def misused(self, since_at: float) -> list[dict[str, Any]]:
        """What nodes with GPUs cost while they ran only jobs without GPUs, by type, the dearest first."""
        if not self._knows("misused"):
            return []
        return self._rows(
            "SELECT node_type, SUM(misused) AS cost FROM spend WHERE hour >= ?"
            " GROUP BY node_type HAVING SUM(misused) > 0 ORDER BY SUM(misused) DESC, node_type",
            int(since_at // HOUR_S),
        )

    def _knows(self, column: str) -> bool:
        """Whether the file's costs have a column. A manager of an older version may still write it."""
        return bool(self._rows("SELECT 1 FROM pragma_table_info('spend') WHERE name = ?", column))

    # --- the fleet over time ---

    def fleet(self, since_at: float, until_at: float, step_s: float) -> list[FleetSample]:
        """The fleet over time, oldest first: of each ``step_s`` the last sample, with the means of the cores."""
        if not self._has_fleet():
            return []
        rows = self._rows(
            "SELECT MAX(at) AS at, by_state, by_type, jobs_waiting, jobs_running, price_per_hour,"
            " COALESCE(SUM(cores_used * span_s) / SUM(span_s), cores_used) AS cores_used,"
            " COALESCE(SUM(cores_paid * span_s) / SUM(span_s), cores_paid) AS cores_paid,"
            " SUM(span_s) AS span_s FROM fleet WHERE at >= ? AND at <= ?"
            " GROUP BY CAST(at / ? AS INTEGER) ORDER BY at",
            since_at,
            until_at,
            step_s,
        )
        try:
            return [_parse_sample(row) for row in rows]
        except (ValueError, TypeError, AttributeError) as fault:
            raise HistoryUnreadable(f"{self._path}: a sample of the fleet is damaged: {fault}") from fault

    def core_hours(self, since_at: float, until_at: float) -> CoreHours:
        """The core-hours that the nodes cost, and those of them that jobs used."""
        rows = (
            self._rows(
                "SELECT COALESCE(SUM(cores_used * span_s) / 3600.0, 0.0) AS used,"
                " COALESCE(SUM(cores_paid * span_s) / 3600.0, 0.0) AS paid FROM fleet WHERE at >= ? AND at <= ?",
                since_at,
                until_at,
            )
            if self._has_fleet()
            else [{"used": 0.0, "paid": 0.0}]
        )
        return CoreHours(**rows[0])

    def always_on(self, since_at: float, until_at: float) -> AlwaysOn | None:
        """Compare the cost with that of as many nodes of each type as there were at once, always on.

        Costs are kept by the hour, so both begin with the hour of ``since_at``, or where the fleet was first
        recorded. None if it was not.
        """
        if not self._has_fleet():
            return None
        hour_at = since_at // HOUR_S * HOUR_S
        (row,) = self._rows("SELECT MIN(at) AS at FROM fleet WHERE at >= ? AND at <= ?", hour_at, until_at)
        if row["at"] is None:
            return None
        from_at = float(row["at"])
        peaks = self._rows(
            "SELECT key AS node_type, MAX(json_extract(value, '$[0]')) AS nodes,"
            " MAX(json_extract(value, '$[1]')) AS price_per_hour FROM fleet, json_each(fleet.by_type)"
            " WHERE at >= ? AND at <= ? GROUP BY key ORDER BY key",
            from_at,
            until_at,
        )
        hours = (until_at - from_at) / HOUR_S
        return AlwaysOn(
            from_at,
            self.cost_since(from_at),
            sum(it["price_per_hour"] for it in peaks) * hours,
            {it["node_type"]: it["nodes"] for it in peaks},
        )

    def _has_fleet(self) -> bool:
        """Whether the file has the fleet over time. A manager of an older version may still write it."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = 'fleet'"))

    # --- the report ---

    def report(self, since_at: float, until_at: float) -> dict[str, Any]:
        """Return cost by type, user, queue, use and cloud; jobs by peer; waits; boots; failures; decisions.

        ``misused``: what nodes with GPUs cost while they ran only jobs without GPUs.
        ``begins_at``: set only if the history begins after ``since_at``; ``set_aside``: the files that may have
        what was before. ``cost_since_at``: costs are kept by the hour, so their sums begin with the hour of
        ``since_at``. ``entries_since_at``: waits, failures and decisions are kept less long, and begin here.
        """
        begins_at = self.begins_at()
        begins_late = begins_at is not None and begins_at > since_at
        hour = int(since_at // HOUR_S)
        total = self._sums("use", hour)
        cost = sum(row["cost"] for row in total)
        waste = sum(row["cost"] for row in total if row["use"] != JOB_USE)
        return {
            "since_at": since_at,
            "until_at": until_at,
            "begins_at": begins_at if begins_late else None,
            "set_aside": self.set_aside_files() if begins_late else [],
            "cost": cost,
            "cost_since_at": float(hour * HOUR_S),
            "entries_since_at": max(since_at, until_at - ENTRIES_KEPT_S),
            "waste": waste,
            "node_hours": sum(row["node_hours"] for row in total),
            "by_use": total,
            "by_type": self._sums("node_type", hour),
            "by_user": self._sums("userid", hour, f"AND userid != {NOBODY}"),
            "by_queue": self._sums("queue", hour, f"AND use = '{JOB_USE}'"),
            "by_cloud": self._clouds(since_at, hour),
            "misused": self.misused(since_at),
            "by_peer": self._peers(since_at),
            "waits": asdict(self.waits(since_at)),
            "observed": self._observed(since_at),
            "boots": self._boots(since_at),
            "failures": self._rows(
                "SELECT what AS operation, code AS kind, COUNT(*) AS count, MAX(at) AS last_at FROM entries"
                " WHERE kind = 'failed' AND at >= ? GROUP BY what, code ORDER BY count DESC",
                since_at,
            ),
            "decisions": self._rows(
                "SELECT kind, what AS order_, code AS reason, COUNT(*) AS count FROM entries"
                " WHERE kind IN ('decided', 'would') AND at >= ? GROUP BY kind, what, code ORDER BY count DESC",
                since_at,
            ),
        }

    def _sums(self, column: str, hour: int, condition: str = "") -> list[dict[str, Any]]:
        return self._rows(
            f"SELECT {column}, SUM(cost) AS cost, SUM(node_s) / 3600.0 AS node_hours FROM spend"  # noqa: S608
            f" WHERE hour >= ? {condition} GROUP BY {column} ORDER BY cost DESC",
            hour,
        )

    def _clouds(self, since_at: float, hour: int) -> list[dict[str, Any]]:
        """What each cloud cost, and how the boots there ended: nodes that joined, and those that failed to.

        A create that was refused is no boot. The cloud is "" in records of versions that did not keep it.
        """
        if not self._knows("cloud"):
            return []
        nothing = {"cost": 0.0, "node_hours": 0.0, "booted": 0, "boots_failed": 0}
        found: dict[str, dict[str, Any]] = {}
        marks = ", ".join("?" * len(FAILED_OUTCOMES))
        boots = self._rows(
            "SELECT cloud, SUM(outcome = 'joined') AS booted,"  # noqa: S608 - our own words
            f" SUM(outcome IN ({marks})) AS boots_failed FROM lives WHERE requested_at >= ? GROUP BY cloud",
            *FAILED_OUTCOMES,
            since_at,
        )
        for row in (*self._sums("cloud", hour), *boots):
            found[row["cloud"]] = {"cloud": row["cloud"], **nothing, **found.get(row["cloud"], {}), **row}
        return sorted(found.values(), key=lambda row: (-row["cost"], row["cloud"]))

    def _peers(self, since_at: float) -> list[dict[str, Any]]:
        """The jobs that ended at each peer, what they used since ``since_at``, and that at the peer's price.

        ``lost``: the jobs of which the peer knew nothing any more, so that nobody knows what they used.
        """
        return self._rows(
            "SELECT peer, COUNT(*) AS jobs, SUM(started_at IS NULL) AS lost, COALESCE(SUM(core_s), 0.0) / 3600.0"
            " AS core_hours, COALESCE(SUM(core_s * price_per_core_hour), 0.0) / 3600.0 AS cost FROM ("
            "SELECT *, cores * MAX(0.0, ended_at - MAX(started_at, ?)) AS core_s FROM peer_runs WHERE ended_at >= ?"
            ") GROUP BY peer ORDER BY cost DESC, peer",
            since_at,
            since_at,
        )

    def waits(self, since_at: float) -> WaitFigures:
        """How long the jobs waited that began since a time."""
        (row,) = self._rows("SELECT COUNT(*) AS jobs FROM waits WHERE at >= ?", since_at)
        jobs = int(row["jobs"])
        return WaitFigures(jobs, self._wait_s(since_at, jobs, 0.5), self._wait_s(since_at, jobs, 0.95))

    def _wait_s(self, since_at: float, jobs: int, part: float) -> float | None:
        """The quantile ``part`` of the waits, sorted by SQLite: there may be millions."""
        query = "SELECT wait_s FROM waits WHERE at >= ? ORDER BY wait_s LIMIT 1 OFFSET ?"
        rows = self._rows(query, since_at, _place(jobs, part))
        return rows[0]["wait_s"] if rows else None

    def _observed(self, since_at: float) -> Mapping[str, Any] | None:
        """What the decisions of observe mode would have changed; None if all decisions were carried out."""
        (row,) = self._rows(
            "SELECT SUM(span_s) AS span_s, SUM(cost) AS cost, SUM(cost_advised) AS cost_advised,"
            " SUM(busy_touched) AS busy_touched FROM advised WHERE hour >= ?",
            int(since_at // HOUR_S),
        )
        if row["span_s"] is None:
            return None
        waits = self._rows("SELECT wait_s, advised_s FROM waits WHERE at >= ? AND advised_s IS NOT NULL", since_at)
        p95_s = quantile(sorted(it["wait_s"] for it in waits), 0.95)
        p95_advised_s = quantile(sorted(it["advised_s"] for it in waits), 0.95)
        longer_s = p95_advised_s - p95_s if p95_s is not None and p95_advised_s is not None else None
        return {
            **row,
            "jobs": len(waits),
            "p95_s": p95_s,
            "p95_advised_s": p95_advised_s,
            "text": format_savings(
                row["span_s"], row["cost"], row["cost_advised"], row["busy_touched"], p95_longer_s=longer_s
            ),
        }

    def boots_by_type(self, since_at: float) -> dict[str, BootFigures]:
        """The boots that began since a time, by node type."""
        found: dict[str, BootFigures] = {}
        for row in self._boots(since_at):
            outcome, figures = row["outcome"], found.setdefault(row["node_type"], BootFigures())
            if outcome == "joined":
                figures.joined, figures.median_s, figures.p95_s = row["count"], row["median_s"], row["p95_s"]
            elif outcome in FAILED_OUTCOMES or outcome.startswith(CREATE_FAILED):
                figures.failures[outcome] = row["count"]
        return found

    def _boots(self, since_at: float) -> list[dict[str, Any]]:
        rows = self._rows(
            "SELECT node_type, outcome, joined_at - requested_at AS took_s, found FROM lives"
            " WHERE requested_at >= ? AND outcome != ''",
            since_at,
        )
        groups: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            took = groups.setdefault((row["node_type"], row["outcome"]), [])
            took.append(row["took_s"] if row["took_s"] is not None and not row["found"] else -1.0)
        return [
            {
                "node_type": node_type,
                "outcome": outcome,
                "count": len(took),
                "median_s": quantile(sorted(it for it in took if it >= 0), 0.5),
                "p95_s": quantile(sorted(it for it in took if it >= 0), 0.95),
            }
            for (node_type, outcome), took in sorted(groups.items())
        ]


def _decode_text(found: bytes) -> str:
    return found.decode(errors="replace")


def _parse_sample(row: Mapping[str, Any]) -> FleetSample:
    by_state, by_type = json.loads(row["by_state"]), json.loads(row["by_type"])
    return FleetSample(
        **{
            **row,
            "by_state": {str(state): int(count) for state, count in by_state.items()},
            "by_type": {str(name): (int(count), float(price)) for name, (count, price) in by_type.items()},
        }
    )


class _CorruptEventError(Exception):
    """An event is damaged; the message says how."""


def _parse_event(entry: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(entry["at"], float) or not all(isinstance(entry[name], str) for name in TEXT_COLUMNS):
        raise _CorruptEventError("it is damaged")
    try:
        figures = json.loads(entry["figures"]).items()
    except (ValueError, AttributeError) as fault:
        raise _CorruptEventError(f"its figures are damaged: {fault}") from fault
    # Figures are tuples; JSON has only lists.
    return {**entry, "figures": {name: tuple(it) if isinstance(it, list) else it for name, it in figures}}


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The quantile ``part`` of values in ascending order, by the nearest rank. None if there are no values."""
    return ordered[_place(len(ordered), part)] if ordered else None


def _place(count: int, part: float) -> int:
    return max(0, math.ceil(part * count) - 1)
