"""The rows that updates of the history add to the tables of its file."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from nodemanager.core.jobs import ANYWHERE
from nodemanager.core.reason_codes import Figure
from nodemanager.delegation.view import PeerRun
from nodemanager.history.cost_ledger import CostKey, CostSum
from nodemanager.history.ended_jobs import EndedJob
from nodemanager.history.events import HistoryEvent
from nodemanager.history.fleet_samples import FleetSample
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.node_lives import NodeLife
from nodemanager.history.observe_savings import ObserveSavings
from nodemanager.history.store.shapes import shape_to_json

Row = tuple[object, ...]

FIGURES_MAX = 4096  # characters of one event's figures
TEXT_MAX, ITEMS_MAX = 200, 8  # of a text or list in figures that are too long
SHAPE_MAX = 16_384  # characters of one job's shape
LEFT_OUT = ["left_out"]  # a constraint that was too long; no reader takes it for one

INSERT_EVENT = (
    "INSERT INTO entries (at, kind, subject, what, code, figures, node_type) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
INSERT_LIFE = "INSERT OR REPLACE INTO lives VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_COST = (
    "INSERT INTO spend VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET cost = cost + excluded.cost, node_s = node_s + excluded.node_s, misused = misused + excluded.misused"
)
ADD_SAVINGS = (
    "INSERT INTO advised VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET span_s = span_s + excluded.span_s,"
    " cost = cost + excluded.cost, cost_advised = cost_advised + excluded.cost_advised,"
    " busy_touched = busy_touched + excluded.busy_touched"
)
INSERT_WAIT = "INSERT OR REPLACE INTO waits VALUES (?, ?, ?, ?, ?, ?)"
INSERT_FLEET = "INSERT OR REPLACE INTO fleet VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_JOB = "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_PEER_RUN = "INSERT OR REPLACE INTO peer_runs VALUES (?, ?, ?, ?, ?, ?, ?)"
SET_CHARGED = "INSERT OR REPLACE INTO charged VALUES (0, ?)"
INSERT_BEGUN = "INSERT INTO begun SELECT ? WHERE NOT EXISTS (SELECT 1 FROM begun)"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of some updates. It keeps no reference to them, so their snapshots can be freed.

    ``by_statement``: each SQL statement with its rows. ``begins_at``, ``wall_at``: wall-clock times of the oldest
    and the newest record.
    """

    by_statement: tuple[tuple[str, Sequence[Row]], ...]
    publications: int
    begins_at: float
    wall_at: float

    @classmethod
    def from_updates(cls, updates: Sequence[HistoryUpdate]) -> Rows:
        """Make the rows of at least one update."""
        events = [event for update in updates for event in update.events]
        lives = {now.launch: now for update in updates for _, now in update.life_changes}
        savings = [update.savings for update in updates if update.savings is not None]
        of_each = (
            (INSERT_EVENT, [_event_row(it) for it in events]),
            (INSERT_LIFE, [_life_row(it) for it in lives.values()]),
            (ADD_COST, list(_cost_rows(updates))),
            (SET_CHARGED, [(updates[-1].charged_until_at,)] if isfinite(updates[-1].charged_until_at) else []),
            (ADD_SAVINGS, [(it.hour, it.span_s, it.cost, it.cost_advised, it.busy_touched) for it in savings]),
            (INSERT_WAIT, list(_wait_rows(events, savings))),
            (INSERT_JOB, [_job_row(job) for update in updates for job in update.ended_jobs]),
            (INSERT_FLEET, [_fleet_row(it.minute) for it in updates if it.minute is not None]),
            (INSERT_PEER_RUN, [_peer_run_row(run) for update in updates for run in update.peer_runs]),
        )
        begins_at = min([updates[0].newest.snapshot.wall_at, *(it.at for it in events)])
        return cls(of_each, len(updates), begins_at, updates[-1].newest.snapshot.wall_at)

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(len(rows) for _, rows in self.by_statement)

    def insert(self, connection: sqlite3.Connection) -> None:
        """Write the rows. The caller commits."""
        connection.execute(INSERT_BEGUN, (self.begins_at,))
        for statement, rows in self.by_statement:
            connection.executemany(statement, rows)


def _event_row(event: HistoryEvent) -> Row:
    figures = _figures_to_json(event.figures)
    return event.at, event.kind, event.subject, event.what, event.code, figures, event.node_type


def _peer_run_row(run: PeerRun) -> Row:
    job, remote, price = str(int(run.job)), str(int(run.remote)), float(run.price_per_core_hour)
    return job, run.peer, remote, run.cores, run.started_at, run.ended_at, price


def _fleet_row(minute: FleetSample) -> Row:
    return (
        minute.at,
        json.dumps(minute.by_state, separators=(",", ":")),
        json.dumps(minute.by_type, separators=(",", ":")),
        minute.jobs_waiting,
        minute.jobs_running,
        minute.price_per_hour,
        minute.cores_used,
        minute.cores_paid,
        minute.span_s,
    )


def _figures_to_json(figures: Mapping[str, Figure]) -> str:
    """Write figures in at most ``FIGURES_MAX`` characters: whole, or else with long texts and lists cut."""
    for shown in (figures, {name: _cut(value) for name, value in figures.items()}):
        written = json.dumps(shown, default=str)
        if len(written) <= FIGURES_MAX:
            return written
    return json.dumps({name: value for name, value in figures.items() if isinstance(value, int | float)})


def _cut(value: Figure) -> Figure:
    match value:
        case str() if len(value) > TEXT_MAX:
            return f"{value[:TEXT_MAX]}..."
        case tuple() if len(value) > ITEMS_MAX:
            return (*(item[:TEXT_MAX] for item in value[:ITEMS_MAX]), f"and {len(value) - ITEMS_MAX} more")
        case _:
            return value


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
        life.provider_id,
        life.size,
        life.cloud,
    )


def _job_row(job: EndedJob) -> Row:
    shape = json.dumps(shape_to_json(job.shape), separators=(",", ":"))
    if len(shape) > SHAPE_MAX:
        without = shape_to_json(replace(job.shape, constraint=ANYWHERE))
        shape = json.dumps({**without, "constraint": LEFT_OUT}, separators=(",", ":"))
    times = job.submitted_at, job.began_at, job.ended_at, job.duration_s
    return str(job.id), *times, job.userid, job.queue, shape


def _cost_rows(updates: Sequence[HistoryUpdate]) -> Iterable[Row]:
    sums: defaultdict[CostKey, CostSum] = defaultdict(CostSum)
    for update in updates:
        for key, cost_sum in update.costs.items():
            sums[key].cost += cost_sum.cost
            sums[key].node_s += cost_sum.node_s
            sums[key].misused += cost_sum.misused
    for key, total in sums.items():
        yield (
            key.hour,
            key.node_type,
            key.userid,
            key.queue,
            key.use,
            key.cloud,
            total.cost,
            total.node_s,
            total.misused,
        )


def _wait_rows(events: list[HistoryEvent], savings: list[ObserveSavings]) -> Iterable[Row]:
    waits = {str(job): wait for it in savings for job, wait in it.waits.items()}
    for event in events:
        if event.kind == "job" and event.what == "began":
            yield (
                event.subject,
                event.at,
                event.figures["wait_s"],
                event.figures["user"],
                event.figures["queue"],
                waits[event.subject].advised_s if event.subject in waits else None,
            )
