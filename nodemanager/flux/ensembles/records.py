"""The KVS keys of ensembles, below ``node-manager.ensembles.NAME``.

``record`` is a JSON object, the last run of that name. ``logs.N`` has a line of JSON for each input of a run that
goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from nodemanager.core.ports import FluxError
from nodemanager.core.untrusted import read_json
from nodemanager.ensemble.ports import RunRecord
from nodemanager.flux import kvs
from nodemanager.flux.bindings import Future, Handle

FOLDER = "node-manager.ensembles"
_KNOWN = frozenset(field.name for field in fields(RunRecord))


def names(handle: Handle, *, timeout_s: float) -> tuple[str, ...]:
    """List the names that have a record."""
    return kvs.list_names(handle, FOLDER, timeout_s=timeout_s)


def read(handle: Handle, name: str, *, timeout_s: float) -> RunRecord | None:
    """Read a name's record; None if there is none. Raises ``FluxError``."""
    key = f"{FOLDER}.{name}.record"
    text = kvs.read(handle, [key], timeout_s=timeout_s).get(key)
    if text is None:
        return None
    try:
        stored = read_json(text)
        return RunRecord(**{field: value for field, value in stored.items() if field in _KNOWN})
    except (ValueError, TypeError, AttributeError) as error:
        raise FluxError(f"the KVS key {key} is damaged: {error}. To remove it: flux kvs unlink {key}") from error


def begin(handle: Handle, name: str, record: RunRecord, *, timeout_s: float) -> None:
    """Store the record of a new run, with an empty log. Returns when that is on disk."""
    _write(handle, name, record, {f"{FOLDER}.{name}.logs": None}, timeout_s)


def take_over(handle: Handle, name: str, record: RunRecord, *, timeout_s: float) -> RunRecord:
    """Store that another process drives the run, with a copy of its log. Returns the new record.

    What the last process has still under way goes into the old copy, which nobody reads.
    """
    ours = replace(record, starts=record.starts + 1)
    log = read_log(handle, name, record, timeout_s=timeout_s)
    changes = {_log_key(name, record): None, **({_log_key(name, ours): log} if log else {})}
    _write(handle, name, ours, changes, timeout_s)
    return ours


def finish(
    handle: Handle,
    name: str,
    record: RunRecord,
    outcome: str,
    at: float,
    summary: Mapping[str, Any],
    *,
    timeout_s: float,
) -> None:
    """Store that the run has ended, and remove its log. Returns when that is on disk."""
    ended = replace(record, outcome=outcome, ended_at=at, summary=summary)
    _write(handle, name, ended, {f"{FOLDER}.{name}.logs": None}, timeout_s)


def _write(handle: Handle, name: str, record: RunRecord, logs: Mapping[str, str | None], timeout_s: float) -> None:
    changes = {f"{FOLDER}.{name}.record": json.dumps(record.document()), **logs}
    kvs.commit(handle, changes, timeout_s=timeout_s)


def read_log(handle: Handle, name: str, record: RunRecord, *, timeout_s: float) -> str:
    """Read the log of a run that goes on; "" if nothing was logged yet."""
    key = _log_key(name, record)
    return kvs.read(handle, [key], timeout_s=timeout_s).get(key, "")


def send_log(handle: Handle, name: str, record: RunRecord, lines: str) -> Future:
    """Send lines to append to the log, and return the future of the answer."""
    return kvs.send_append(handle, _log_key(name, record), lines)


def _log_key(name: str, record: RunRecord) -> str:
    return f"{FOLDER}.{name}.logs.{record.starts}"
