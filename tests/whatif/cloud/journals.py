"""History files of a service, with the node lives that a test needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from nodemanager.core.nodes import LaunchId
from nodemanager.history.node_lives import NodeLife
from nodemanager.history.store.schema import migrate

BEGUN_AT = 1_700_000_000.0


def a_life(
    number: int,
    *,
    at_s: float = 0.0,
    boot_s: float | None = 80.0,
    up_s: float | None = 3600.0,
    outcome: str = "joined",
    why: str = "window_closes",
    node_type: str = "thin",
    found: bool = False,
) -> NodeLife:
    """A node that joined ``boot_s`` after its order and was up for ``up_s``; ``boot_s`` None: it never joined.

    One that never joined ends ``up_s`` after its order. ``up_s`` None: it stands.
    """
    requested_at = BEGUN_AT + at_s
    joined_at = None if boot_s is None else requested_at + boot_s
    return NodeLife(
        LaunchId(f"launch-{number:06d}"),
        slot=f"slot{number}",
        node_type=node_type,
        requested_at=requested_at,
        found=found,
        up_at=joined_at,
        joined_at=joined_at,
        ended_at=None if up_s is None else (joined_at or requested_at) + up_s,
        outcome=outcome,
        why=why,
    )


def a_journal(path: Path, lives: Iterable[NodeLife], stops: Iterable[tuple[str, float]] = ()) -> Path:
    """Write a history file. ``stops``: (type, seconds from the order to the observed end)."""
    connection = sqlite3.connect(path)
    migrate(connection)
    with connection:
        connection.executemany(
            "INSERT INTO lives VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(astuple, lives)
        )
        for number, (node_type, took_s) in enumerate(stops):
            told = (("decided", "DestroyNode", 0.0), ("decided", "DestroyNode", 5.0), ("node", "gone", took_s))
            connection.executemany(
                "INSERT INTO entries (at, kind, subject, what, code, figures, node_type)"
                " VALUES (?, ?, ?, ?, '', '{}', ?)",
                [
                    (BEGUN_AT + number + after_s, kind, f"end-{number}", what, node_type)
                    for kind, what, after_s in told
                ],
            )
    connection.close()
    return path
