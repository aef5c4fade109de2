"""The local cloud's memory: a directory that any process may open, under one lock.

    STATE/lock         flock(2), held over each call
    STATE/init         what each node runs first
    STATE/making/ID/   a node not yet, or no longer, in the world
    STATE/nodes/ID/    node.json, user-data (0700), console.log, phase, user-data.exit, root/
    STATE/logs/ID/     the folders of forgotten nodes, where they are kept

A folder comes to ``nodes/`` by one rename, its ``node.json`` inside, before any process of it exists. So one that
lacks it, or whose ``node.json`` cannot be read, is damage: it is said, never passed over as if there were no node.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from pydantic import TypeAdapter, ValidationError

from nodemanager.cloud.local.process import INIT_SCRIPT, LocalProcess

_LOCK_WAIT_S = 30.0
_LOCK_RETRY_S = 0.005


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What was asked for, as it was asked for."""

    name: str
    size: str
    image: str
    token: str  # "" for none
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node, as ``node.json`` holds it. Whether it runs is seen at its processes and its phase file.

    Nodes outlive the manager that wrote this: a field that is added needs a default.
    """

    id: str
    sequence: int
    order: CreateRequest
    created_at: float
    init: LocalProcess | None = None  # None until it was started
    ending: str = ""  # why its end began, as EC2 codes it
    terminated_at: float | None = None


class NodeUnreadableError(ValueError):
    """A node's folder does not say what node it is."""


class Store:
    """All nodes of one directory. Every method but :meth:`locked` is to be called under the lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.init = self.directory / "init"
        for name in ("nodes", "making", "logs"):
            # What a node is told at boot may be secret from other users of the machine.
            (self.directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.locked():
            if not self.init.exists() or self.init.read_text(encoding="utf-8") != INIT_SCRIPT:
                _replace_file(self.init, INIT_SCRIPT)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory's lock. Raises ``TimeoutError`` when another one holds it for too long."""
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait_for_lock(lock, self.directory / "lock")
            yield
        finally:
            os.close(lock)

    def folder(self, node_id: str) -> Path:
        return self.directory / "nodes" / node_id

    def read_all(self) -> list[NodeRecord]:
        """All nodes in the order of their creation. Raises :class:`NodeUnreadableError`."""
        records = [_read_record(folder) for folder in (self.directory / "nodes").iterdir()]
        return sorted(records, key=lambda record: record.sequence)

    def add(self, sequence: int, order: CreateRequest, user_data: str, created_at: float) -> NodeRecord:
        """Bring a new node into the world, without a process as yet."""
        # Unique on the machine, not only here: a process is found by the id it carries.
        record = NodeRecord(f"local-{sequence:06d}-{token_hex(4)}", sequence, order, created_at)
        making = self.directory / "making" / record.id
        (making / "root").mkdir(parents=True)
        script = os.open(making / "user-data", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(script, "w", encoding="utf-8") as file:
            file.write(user_data)
        _replace_file(making / "node.json", _RECORD_ADAPTER.dump_json(record).decode())
        making.rename(self.folder(record.id))
        return record

    def save(self, record: NodeRecord) -> NodeRecord:
        _replace_file(self.folder(record.id) / "node.json", _RECORD_ADAPTER.dump_json(record).decode())
        return record

    def phase(self, node_id: str) -> str:
        """What the node's init last said: "" (nothing yet), "running" or "failed"."""
        try:
            return (self.folder(node_id) / "phase").read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return ""

    def clear_tmp(self, node_id: str) -> None:
        """Take away what stood in the node's own ``/tmp``: a broker that was killed leaves its sockets there."""
        try:
            tmp = Path((self.folder(node_id) / "tmp").read_text(encoding="ascii").strip())
        except FileNotFoundError:
            return
        if tmp.name.startswith("fnm-node."):
            shutil.rmtree(tmp, ignore_errors=True)

    def forget(self, node_id: str, *, keep_logs: bool = False) -> None:
        """Take a node out of the world, at one stroke, and then its folder off the disk."""
        self.folder(node_id).rename(self.directory / ("logs" if keep_logs else "making") / node_id)
        for leftover in (self.directory / "making").iterdir():
            shutil.rmtree(leftover, ignore_errors=True)


def _wait_for_lock(lock: int, path: Path) -> None:
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"{path} is held by another process for more than {_LOCK_WAIT_S:g} s; find it with fuser"
                ) from None
            time.sleep(_LOCK_RETRY_S)


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
        raise NodeUnreadableError(f"{path} is that of {record.id}: put it where it belongs, or remove the folder")
    return record


def _why_invalid(error: OSError | ValidationError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'JSON'}: {e['msg']}" for e in error.errors())
    return str(error.strerror)


def _replace_file(path: Path, text: str) -> None:
    """Write a file so that it is read whole, as it was or as it is, also after the power went."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


_RECORD_ADAPTER = TypeAdapter(NodeRecord)
