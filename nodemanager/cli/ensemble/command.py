"""Run, check and steer ensembles from the command line."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodemanager.cli.ensemble.manifests import manifests
from nodemanager.cli.ensemble.serve import member_nodes, serve, stop_signals
from nodemanager.cli.ensemble.views import groups_table, make_view, rules_table
from nodemanager.cli.parsing.exit_status import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_OF_SIGNAL,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from nodemanager.cli.terminal import make_console
from nodemanager.core.notation import escape_unprintable
from nodemanager.core.ports import FluxError
from nodemanager.core.reason_text import format_wall_time
from nodemanager.ensemble.events import counts_line
from nodemanager.ensemble.file.model import Ensemble
from nodemanager.ensemble.file.schema import EnsembleError, SchemaFault, Severity, read_ensemble
from nodemanager.ensemble.ports import NameTaken
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
