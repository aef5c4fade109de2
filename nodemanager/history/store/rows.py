"""What publications come to in the journal's tables."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodemanager.history.cost_ledger import CostKey, CostSum
from nodemanager.history.ended_jobs import EndedJob
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.node_lives import NodeLife
from nodemanager.history.observe_savings import ObserveSavings
from nodemanager.history.store.shapes import shape_to_json

Row = tuple[object, ...]

INSERT_EVENT = (
    "INSERT INTO entries (at, kind, subject, what, code, figures, node_type) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
INSERT_LIFE = "INSERT OR REPLACE INTO lives VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_COST = (
    "INSERT INTO spend VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET cost = cost + excluded.cost, node_s = node_s + excluded.node_s"
)
ADD_SAVINGS = (
    "INSERT INTO advised VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET span_s = span_s + excluded.span_s,"
    " cost = cost + excluded.cost, cost_advised = cost_advised + excluded.cost_advised,"
    " busy_touched = busy_touched + excluded.busy_touched"
)
INSERT_WAIT = "INSERT OR REPLACE INTO waits VALUES (?, ?, ?, ?, ?, ?)"
INSERT_JOB = "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_BEGUN = "INSERT INTO begun SELECT ? WHERE NOT EXISTS (SELECT 1 FROM begun)"


@dataclass(frozen=True, slots=True)
class Rows:
    """What is inserted for some publications. It keeps none of them, nor their snapshots, alive.

    ``of_each``: by statement. ``begins_at``, ``wall_at``: the times of the oldest and the newest that it tells of.
    """

    by_statement: tuple[tuple[str, Sequence[Row]], ...]
    publications: int
    begins_at: float
    wall_at: float

    @classmethod
    def from_updates(cls, batch: Sequence[HistoryUpdate]) -> Rows:
        """From one publication at the least."""
        entries = [entry for happened in batch for entry in happened.events]
        lives = {now.launch: now for happened in batch for _, now in happened.life_changes}
        advised = [happened.savings for happened in batch if happened.savings is not None]
        of_each = (
            (INSERT_EVENT, [_event_row(it) for it in entries]),
            (INSERT_LIFE, [_life_row(it) for it in lives.values()]),
            (ADD_COST, list(_cost_rows(batch))),
            (ADD_SAVINGS, [(it.hour, it.span_s, it.cost, it.cost_advised, it.busy_touched) for it in advised]),
            (INSERT_WAIT, list(_wait_rows(entries, advised))),
            (INSERT_JOB, [_job_row(job) for happened in batch for job in happened.ended_jobs]),
        )
        begins_at = min([batch[0].newest.snapshot.wall_at, *(it.at for it in entries)])
        return cls(of_each, len(batch), begins_at, batch[-1].newest.snapshot.wall_at)

    @property
    def count(self) -> int:
        return sum(len(rows) for _, rows in self.by_statement)

    def insert(self, connection: sqlite3.Connection) -> None:
        connection.execute(INSERT_BEGUN, (self.begins_at,))
        for statement, rows in self.by_statement:
            connection.executemany(statement, rows)


def _event_row(entry: HistoryEvent) -> Row:
    figures = json.dumps(entry.figures, default=str)
    return entry.at, entry.kind, entry.subject, entry.what, entry.code, figures, entry.node_type


def _life_row(life: NodeLife) -> Row:
    return (
        life.launch,
        life.slot,
        life.node_type,
        life.requested_at,
        int(life.found),
        life.up_at,
        life.joined_at,
        life.first_job_at,
        life.ended_at,
        life.outcome,
        life.why,
        life.cost,
    )


def _job_row(job: EndedJob) -> Row:
    shape = json.dumps(shape_to_json(job.shape), separators=(",", ":"))
    times = job.submitted_at, job.began_at, job.ended_at, job.duration_s
    return str(job.id), *times, job.userid, job.queue, shape


def _cost_rows(batch: Sequence[HistoryUpdate]) -> Iterable[Row]:
    sums: defaultdict[CostKey, CostSum] = defaultdict(CostSum)
    for happened in batch:
        for account, spent in happened.costs.items():
            sums[account].cost += spent.cost
            sums[account].node_s += spent.node_s
    for account, total in sums.items():
        yield (
            account.hour,
            account.node_type,
            account.userid,
            account.queue,
            account.use,
            total.cost,
            total.node_s,
        )


def _wait_rows(entries: list[HistoryEvent], advised: list[ObserveSavings]) -> Iterable[Row]:
    waits = {str(job): wait for it in advised for job, wait in it.waits.items()}
    for entry in entries:
        if entry.kind == "job" and entry.what == "began":
            yield (
                entry.subject,
                entry.at,
                entry.figures["wait_s"],
                entry.figures["user"],
                entry.figures["queue"],
                waits[entry.subject].advised_s if entry.subject in waits else None,
            )
