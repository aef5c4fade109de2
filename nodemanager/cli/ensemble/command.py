"""Run, check and steer ensembles from the command line."""

from __future__ import annotations

import json
import re
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nodemanager.cli.ensemble.manifests import manifests
from nodemanager.cli.ensemble.serve import member_nodes, serve, stop_signals
from nodemanager.cli.parsing.exit_status import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_OF_SIGNAL,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from nodemanager.cli.terminal import escape_document, make_console
from nodemanager.core.notation import escape_unprintable, format_fsd
from nodemanager.core.ports import FluxError
from nodemanager.core.reason_text import format_wall_time
from nodemanager.ensemble.deeds import Deed
from nodemanager.ensemble.events import counts_line, to_document, to_line
from nodemanager.ensemble.file.model import Ensemble
from nodemanager.ensemble.file.schema import EnsembleError, SchemaFault, Severity, read_ensemble
from nodemanager.ensemble.ports import NameTaken, RunRecord
from nodemanager.ensemble.session import Session
from nodemanager.flux.bindings import BindingsMissing, connection
from nodemanager.flux.ensembles.alone import run_alone
from nodemanager.flux.ensembles.client import EnsembleClient, UnknownEnsemble
from nodemanager.flux.ensembles.runner import AnotherFile, Assignment
from nodemanager.web.grpc.material import MaterialUnusable
from nodemanager.web.grpc.messages import GrpcMissing
from nodemanager.web.listen import CannotListen

FILE_BYTES_MAX = 2**20
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class NameUnusable(Exception):
    """An ensemble cannot have that name. The message says which it can."""


def ensemble(chosen: Namespace) -> int:
    """Run one of the verbs of ``ensemble`` and return the exit status."""
    try:
        return _VERBS[chosen.ensemble_verb](chosen)
    except NameUnusable as error:
        status = EXIT_USAGE
        text = str(error)
    except UnknownEnsemble as error:
        status, text = EXIT_FAILED, str(error)
    except MaterialUnusable as error:
        status, text = EXIT_CONFIG, str(error)
    except (BindingsMissing, FluxError, GrpcMissing, CannotListen) as error:
        status, text = EXIT_UNAVAILABLE, str(error)
    print(*map(escape_unprintable, text.split("\n")), sep="\n", file=sys.stderr)
    return status


# --- files ------------------------------------------------------------------------------------------------


def _check(chosen: Namespace) -> int:
    path = Path(chosen.file)
    _, faults, found = _read(path)
    if chosen.json:
        print(json.dumps({"file": str(path), "faults": [_fault_document(fault) for fault in faults]}, indent=2))
    else:
        _print_faults(path, faults, sys.stdout)
    if found is None or any(fault.severity is Severity.UNKNOWN for fault in faults):
        return EXIT_CONFIG
    if not chosen.json:
        jobs = sum(jobs.count for jobs in found.sets)
        print(f"{path}: good; {len(found.groups)} groups, {jobs} jobs, {len(found.rules)} rules")
    return EXIT_OK


def _read(path: Path) -> tuple[str, tuple[SchemaFault, ...], Ensemble | None]:
    """Return the file's text, its faults, and the ensemble if it can run."""
    try:
        data = path.read_bytes()
        if len(data) > FILE_BYTES_MAX:
            return "", (SchemaFault(1, 1, Severity.ERROR, f"the file has more than {FILE_BYTES_MAX} bytes"),), None
        text = data.decode()
    except OSError as error:
        return "", (SchemaFault(1, 1, Severity.ERROR, f"the file cannot be read: {error.strerror}"),), None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return "", (SchemaFault(line, 1, Severity.ERROR, "the file is not UTF-8"),), None
    try:
        found, faults = read_ensemble(text)
    except EnsembleError as error:
        return text, error.faults, None
    return text, faults, found


def _print_faults(path: Path, faults: tuple[SchemaFault, ...], stream: Any) -> None:
    for fault in faults:
        print(escape_unprintable(f"{path}:{fault}"), file=stream)


def _fault_document(fault: SchemaFault) -> dict[str, Any]:
    return {"line": fault.line, "column": fault.column, "severity": str(fault.severity), "text": fault.text}


# --- running ----------------------------------------------------------------------------------------------


def _run(chosen: Namespace) -> int:
    path = Path(chosen.file)
    text, faults, found = _read(path)
    _print_faults(path, faults, sys.stderr)
    if found is None:
        return EXIT_CONFIG
    name = _name(chosen.name or path.stem, may_clean=not chosen.name)
    assignment = Assignment(name, str(path.absolute()), text, found, str(Path.cwd()), until_done=chosen.until_done)
    view = make_view(name, make_console(), as_json=chosen.json)
    closing = f"the process stops. To end the run too: flux-node-manager ensemble stop {name}"
    summary: Mapping[str, Any] = {}
    try:
        with stop_signals() as (stop_asked, received), member_nodes(chosen, name) as nodes:
            outcome, summary = run_alone(chosen.uri or "", assignment, view, stop_asked, nodes)
        closing = outcome or closing
    except (NameTaken, AnotherFile) as error:
        outcome, closing = "", str(error)
    except FluxError as error:
        closing = str(error) if chosen.json else ""  # people read it on standard error
        raise
    finally:
        view.close(closing, summary)
    if received:
        return EXIT_OF_SIGNAL + received[0]
    return EXIT_OK if outcome else EXIT_FAILED


def _name(name: str, *, may_clean: bool) -> str:
    cleaned = _NOT_IN_A_NAME.sub("-", name).strip("-")
    if not cleaned or (cleaned != name and not may_clean):
        raise NameUnusable(f'"{name}" cannot name an ensemble: use letters, digits, - and _')
    return cleaned


# --- asking and stopping ----------------------------------------------------------------------------------


def _status(chosen: Namespace) -> int:
    if chosen.ensemble is None:
        return _list(chosen)
    name = _name(chosen.ensemble, may_clean=False)
    with _instance(chosen) as runs:
        document = runs.status(name)
    if chosen.json:
        print(json.dumps(document, indent=2))
        return EXIT_OK
    print(_sentence(document))
    if summary := document["summary"]:
        make_console(soft_wrap=not sys.stdout.isatty()).print(groups_table(summary), rules_table(summary))
    return EXIT_OK


def _list(chosen: Namespace) -> int:
    with _instance(chosen) as runs:
        documents = [runs.status(name) for name in runs.names()]
    if chosen.json:
        print(json.dumps(documents, indent=2))
    else:
        print(*(_sentence(document) for document in documents) if documents else ["no ensembles"], sep="\n")
    return EXIT_OK


def _sentence(document: Mapping[str, Any]) -> str:
    ended_at = document["ended_at"]
    state = document["state"] + (f" at {format_wall_time(ended_at)}" if ended_at else "")
    groups = document["summary"].get("groups", {}) if ended_at else {}
    counts = "".join(f"; {group}: {counts_line(it)}" for group, it in groups.items())
    return escape_unprintable(f"{document['name']}: {state}, {document['file']}, run {document['run']}{counts}")


def _stop(chosen: Namespace) -> int:
    name = _name(chosen.ensemble, may_clean=False)
    with _instance(chosen) as runs:
        print(runs.stop(name))
    return EXIT_OK


@contextmanager
def _instance(chosen: Namespace) -> Iterator[EnsembleClient]:
    with connection(chosen.uri or "") as handle:
        yield EnsembleClient(handle)


_VERBS: Mapping[str, Callable[[Namespace], int]] = {
    "check": _check,
    "run": _run,
    "status": _status,
    "stop": _stop,
    "list": _list,
    "serve": serve,
    "manifests": manifests,
}


# --- how ``ensemble run`` shows a run: a table that is kept up to date, lines, or lines of JSON -----------


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
