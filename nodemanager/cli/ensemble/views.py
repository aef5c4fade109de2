"""How ``ensemble run`` shows a run: a table that is kept up to date, lines, or lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nodemanager.cli.terminal import escape_document
from nodemanager.core.notation import escape_unprintable, format_fsd
from nodemanager.ensemble.deeds import Deed
from nodemanager.ensemble.events import counts_line, to_document, to_line
from nodemanager.ensemble.ports import RunRecord
from nodemanager.ensemble.session import Session

_LINES = 8  # of the latest events in the table
_ALWAYS = frozenset({"pending", "running", "success"})
_COLUMNS = ("submitting", "pending", "running", "success", "failed", "retried", "cancelled", "refused")


class JsonView:
    """One line of JSON for each event, and one at the end."""

    def __init__(self, name: str) -> None:
        self._name = name

    def opened(self, record: RunRecord, session: Session, *, resumed: bool) -> None:
        del session
        self._print({"event": "resumed" if resumed else "begun", "at": time.time(), "run": record.run})

    def happened(self, deed: Deed) -> None:
        self._print(to_document(deed, time.time()))

    def lost(self, why: str) -> None:
        self._print({"event": "lost", "at": time.time(), "text": why})

    def refresh(self, nodes_up: int | None) -> None:
        """Show nothing: only events are of interest."""

    def close(self, outcome: str, summary: Mapping[str, Any]) -> None:
        self._print({"event": "ended", "at": time.time(), "text": outcome, "summary": summary})

    def _print(self, document: Mapping[str, Any]) -> None:
        print(json.dumps({"ensemble": self._name, **document}), flush=True)


class LineView:
    """One line for each event that a person wants to see."""

    def __init__(self, name: str) -> None:
        self._name = name

    def opened(self, record: RunRecord, session: Session, *, resumed: bool) -> None:
        del session
        self._print(f"run {record.run} of {self._name} {'goes on' if resumed else 'begins'}")

    def happened(self, deed: Deed) -> None:
        if line := to_line(deed):
            self._print(line)

    def lost(self, why: str) -> None:
        self._print(f"{why}. Connecting again")

    def refresh(self, nodes_up: int | None) -> None:
        """Show nothing: only events are of interest."""

    def close(self, outcome: str, summary: Mapping[str, Any]) -> None:
        for group, counts in summary.get("groups", {}).items():
            self._print(f"{group}: {counts_line(counts)}")
        if outcome:
            self._print(outcome)

    def _print(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {escape_unprintable(line)}", flush=True)


class LiveView:
    """A table of groups and rules that is kept up to date, with the latest events below."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._session: Session | None = None
        self._nodes_up: int | None = None
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def opened(self, record: RunRecord, session: Session, *, resumed: bool) -> None:
        self._session = session
        self._say(f"run {record.run} {'goes on' if resumed else 'begins'}")

    def happened(self, deed: Deed) -> None:
        if line := to_line(deed):
            self._say(line)

    def lost(self, why: str) -> None:
        self._say(f"{why}. Connecting again")
        self.refresh(None)

    def refresh(self, nodes_up: int | None) -> None:
        self._nodes_up = nodes_up
        if self._session is not None:
            self._live.update(self._picture(self._session.summary()), refresh=True)

    def close(self, outcome: str, summary: Mapping[str, Any]) -> None:
        if outcome:
            self._say(outcome)
        if summary:
            self._live.update(self._picture(summary), refresh=True)
        self._live.stop()

    def _say(self, line: str) -> None:
        self._lines.append(f"{time.strftime('%H:%M:%S')} {escape_unprintable(line)}")

    def _picture(self, summary: Mapping[str, Any]) -> RenderableType:
        nodes = "" if self._nodes_up is None else f", {self._nodes_up} nodes online"
        floor = f", at least {summary['nodes_floor']} asked for" if summary["nodes_floor"] else ""
        title = Text(f"Ensemble {self._name}{nodes}{floor}", style="bold")
        return Group(title, groups_table(summary), rules_table(summary), Text("\n".join(self._lines)))


def make_view(name: str, console: Console, *, as_json: bool) -> JsonView | LineView | LiveView:
    """Choose the view: JSON if asked for, a table on a terminal, or else lines."""
    if as_json:
        return JsonView(name)
    return LiveView(name, console) if sys.stdout.isatty() else LineView(name)


def groups_table(summary: Mapping[str, Any]) -> Table:
    """Show the members of each group, and how long they wait and run on average."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("group", no_wrap=True)
    shown = [name for name in _COLUMNS if name in _ALWAYS or any(it[name] for it in summary["groups"].values())]
    for title in (*shown, "mean pending", "mean duration"):
        table.add_column(title, justify="right")
    means = summary["metrics"]["mean"]
    for group, counts in summary["groups"].items():
        spans = [means.get(f"{group}-{span}") for span in ("pending", "duration")]
        times = ["-" if mean is None else format_fsd(max(0.0, round(mean, 3))) for mean in spans]
        cells = [escape_document(group), *(str(counts[name] or "-") for name in shown), *times]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def rules_table(summary: Mapping[str, Any]) -> Table:
    """Show how often each rule has matched and run."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("rule")
    for title in ("matches", "skipped", "runs", "left"):
        table.add_column(title, justify="right")
    for state in summary["rules"]:
        figures = [str(state[name]) for name in ("matches", "skipped", "runs", "left")]
        table.add_row(*(Text(cell) for cell in (escape_document(state["rule"]), *figures)))
    return table
