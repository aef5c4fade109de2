"""Stores the local cloud's nodes in a directory. Any process may open it; one lock protects it.

    STATE/lock         flock(2), held during each call
    STATE/init         the script that each node runs first
    STATE/making/ID/   a node that is being created or deleted
    STATE/nodes/ID/    node.json, user-data (0700), console.log, phase, user-data.exit, root/
    STATE/logs/ID/     the folders of forgotten nodes, if the driver keeps them

A folder, with its ``node.json``, is moved to ``nodes/`` by one rename before any process of the node starts. So a
folder without a readable ``node.json`` is damaged. The store reports it and never treats it as "no node".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from pydantic import TypeAdapter, ValidationError

from nodemanager.cloud.common.files import held_lock, replace_file
from nodemanager.cloud.local.process import INIT_SCRIPT, LocalProcess


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The arguments of a create, unchanged."""

    name: str
    size: str
    image: str
    token: str  # "" for none
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as stored in ``node.json``. Its processes and its phase file show whether it runs.

    A node may outlive the manager that wrote its record, so every new field needs a default.
    """

    id: str
    sequence: int
    order: CreateRequest
    created_at: float
    init: LocalProcess | None = None  # None until the process starts
    ending: str = ""  # the cause of its end as an EC2 code; "" until it ends
    terminated_at: float | None = None


class NodeUnreadableError(ValueError):
    """A node's folder has no valid ``node.json``."""


class Store:
    """The nodes of one directory. Hold the lock (:meth:`locked`) while you call any other method."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.init = self.directory / "init"
        for name in ("nodes", "making", "logs"):
            # A node's user-data may hold secrets, so other users of the machine must not read it.
            (self.directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.locked():
            if not self.init.exists() or self.init.read_text(encoding="utf-8") != INIT_SCRIPT:
                replace_file(self.init, INIT_SCRIPT)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory's lock. Raises ``TimeoutError`` if another process holds it for too long."""
        with held_lock(self.directory / "lock"):
            yield

    def folder(self, node_id: str) -> Path:
        """Return the folder of a node."""
        return self.directory / "nodes" / node_id

    def read_all(self) -> list[NodeRecord]:
        """Return all nodes in order of creation. Raises :class:`NodeUnreadableError`."""
        records = [_read_record(folder) for folder in (self.directory / "nodes").iterdir()]
        return sorted(records, key=lambda record: record.sequence)

    def add(self, sequence: int, order: CreateRequest, user_data: str, created_at: float) -> NodeRecord:
        """Store a new node, which has no process yet."""
        # The id must be unique on the whole machine, because it identifies processes by their environment.
        record = NodeRecord(f"local-{sequence:06d}-{token_hex(4)}", sequence, order, created_at)
        making = self.directory / "making" / record.id
        (making / "root").mkdir(parents=True)
        script = os.open(making / "user-data", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(script, "w", encoding="utf-8") as file:
            file.write(user_data)
        replace_file(making / "node.json", _RECORD_ADAPTER.dump_json(record).decode())
        making.rename(self.folder(record.id))
        return record

    def save(self, record: NodeRecord) -> NodeRecord:
        """Write a node's record and return it."""
        replace_file(self.folder(record.id) / "node.json", _RECORD_ADAPTER.dump_json(record).decode())
        return record

    def phase(self, node_id: str) -> str:
        """Return the last phase that the node's init wrote: "" (none yet), "running" or "failed"."""
        try:
            return (self.folder(node_id) / "phase").read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return ""

    def clear_tmp(self, node_id: str) -> None:
        """Delete the node's own ``/tmp``, where a killed broker leaves its sockets."""
        if (tmp := self._tmp(node_id)) is not None:
            shutil.rmtree(tmp, ignore_errors=True)

    def sessions(self, node_id: str) -> frozenset[int]:
        """Return the sessions besides its init's in which the node has started brokers."""
        try:
            tmp = self._tmp(node_id)
            return frozenset(map(int, (tmp / "sessions").read_text().split())) if tmp is not None else frozenset()
        except (FileNotFoundError, ValueError):  # ValueError: it is being written
            return frozenset()

    def _tmp(self, node_id: str) -> Path | None:
        try:
            tmp = Path((self.folder(node_id) / "tmp").read_text(encoding="ascii").strip())
        except FileNotFoundError:
            return None
        return tmp if tmp.name.startswith("fnm-node.") else None

    def forget(self, node_id: str, *, keep_logs: bool = False) -> None:
        """Remove a node by one rename, then delete its folder. With ``keep_logs``, keep the folder in ``logs/``."""
        self.folder(node_id).rename(self.directory / ("logs" if keep_logs else "making") / node_id)
        for leftover in (self.directory / "making").iterdir():
            shutil.rmtree(leftover, ignore_errors=True)


def _read_record(folder: Path) -> NodeRecord:
    path = folder / "node.json"
    try:
        record = _RECORD_ADAPTER.validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValidationError) as error:
        raise NodeUnreadableError(
            f"{path} is unreadable ({_why_invalid(error)}): end the processes with FNM_NODE={folder.name} in their "
            "environment, then remove the folder"
        ) from error
    if record.id != folder.name:
        raise NodeUnreadableError(f"{path} belongs to {record.id}: move it to that node, or remove the folder")
    return record


def _why_invalid(error: OSError | ValidationError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'JSON'}: {e['msg']}" for e in error.errors())
    return str(error.strerror)


_RECORD_ADAPTER = TypeAdapter(NodeRecord)
