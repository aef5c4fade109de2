"""The state of ``top``: the rows shown, the row selected, and the effect of each key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

PAGE_ROWS = 10  # that PgUp and PgDn move


class Pane(StrEnum):
    """The lists on the screen, from top to bottom."""

    NODES = "nodes"
    JOBS = "waiting jobs"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a list. ``key``: its identity. ``kind`` and ``name``: what to explain; "" for nothing."""

    key: str
    cells: Sequence[str]
    style: str = ""
    kind: str = ""
    name: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Steer:
    """An order to the service: a verb, and a node's name or ""."""

    verb: str
    name: str = ""

    @property
    def text(self) -> str:
        return f"{self.verb} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class Explain:
    """A question: explain a job or node, as it was at a time if it is gone."""

    kind: str
    name: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Quit:
    """The end of ``top``."""


Command = Steer | Explain | Quit


@dataclass(frozen=True, slots=True)
class Screen:
    """What the terminal shows.

    ``status``: the status document, None before the first. ``page``: an explanation over the lists, and
    ``page_top`` its first visible line. ``asks``: an order that waits for "y". ``fault``: why nothing new comes.
    """

    status: Mapping[str, Any] | None = None
    rows: Mapping[Pane, Sequence[Row]] = field(default_factory=lambda: dict.fromkeys(Pane, ()))
    pane: Pane = Pane.NODES
    selected: Mapping[Pane, str] = field(default_factory=dict)
    page: Mapping[str, Any] | None = None
    page_top: int = 0
    asks: Steer | None = None
    helps: bool = False
    message: str = ""
    fault: str = ""

    def index(self, pane: Pane) -> int:
        """The place of the selected row. A row that is gone leaves the selection to the first."""
        keys = [row.key for row in self.rows[pane]]
        chosen = self.selected.get(pane)
        return keys.index(chosen) if chosen in keys else 0

    @property
    def row(self) -> Row | None:
        """The selected row of the pane in use."""
        rows = self.rows[self.pane]
        return rows[self.index(self.pane)] if rows else None


STEERING: Mapping[str, str] = {"h": "hold", "u": "release", "t": "retire"}
MOVES: Mapping[str, int] = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -PAGE_ROWS,
    "page down": PAGE_ROWS,
    "home": -(10**9),
    "end": 10**9,
}


def press(screen: Screen, key: str) -> tuple[Screen, Command | None]:
    """Return the screen after a key, and the action to take."""
    if screen.asks is not None:
        done = screen.asks if key in {"y", "Y"} else None
        return replace(screen, asks=None, message="" if done else "nothing done"), done
    if screen.helps:
        return replace(screen, helps=False), None
    if key in MOVES:
        return _moved(screen, MOVES[key]), None
    if screen.page is not None:
        return (replace(screen, page=None, page_top=0), None) if key in {"escape", "q", "enter"} else (screen, None)
    return _press_in_lists(replace(screen, message=""), key)


def _moved(screen: Screen, by: int) -> Screen:
    if screen.page is not None:
        return replace(screen, page_top=max(0, screen.page_top + by))
    rows = screen.rows[screen.pane]
    if not rows:
        return screen
    index = min(len(rows) - 1, max(0, screen.index(screen.pane) + by))
    return replace(screen, selected={**screen.selected, screen.pane: rows[index].key})


def _press_in_lists(screen: Screen, key: str) -> tuple[Screen, Command | None]:
    match key:
        case "q":
            return screen, Quit()
        case "?":
            return replace(screen, helps=True), None
        case "tab":
            panes = list(Pane)
            return replace(screen, pane=panes[(panes.index(screen.pane) + 1) % len(panes)]), None
        case "enter" if screen.row is not None and screen.row.kind:
            return screen, Explain(screen.row.kind, screen.row.name, screen.row.at)
        case "p" if screen.status is not None:
            return replace(screen, asks=Steer("resume" if screen.status["paused"] else "pause")), None
        case "h" | "u" | "t":
            if screen.row is None or screen.row.kind != "node":
                return replace(screen, message="select a node first: Tab changes the list, arrows the row"), None
            return replace(screen, asks=Steer(STEERING[key], screen.row.name)), None
    return screen, None
