"""``provider = local``: the cloud port whose nodes are processes on this machine."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from libcloud.common.exceptions import BaseHTTPError
from libcloud.compute.base import (
    Node,
    NodeAuthPassword,
    NodeAuthSSHKey,
    NodeDriver,
    NodeImage,
    NodeLocation,
    NodeSize,
)
from libcloud.compute.types import NodeState
from pydantic import TypeAdapter, ValidationError

from nodemanager.actors.user_names import user_name
from nodemanager.cloud.common.files import held_lock, replace_file
from nodemanager.cloud.common.libcloud_port import LibcloudPort
from nodemanager.cloud.common.request import NodeRequest, PortSettings
from nodemanager.cloud.ec2.errors import EC2_CODES
from nodemanager.cloud.local.faults import FaultBoard, Faults, FaultsUnreadableError
from nodemanager.cloud.local.process import (
    INIT_SCRIPT,
    ForeignProcess,
    LocalProcess,
    end_nodes,
    find_init,
    foreign_processes,
    is_alive,
    start,
)

_MIB = 2**20


class LocalCloud(LibcloudPort):
    """The cloud port of the nodes in ``directory``.

    To inject faults, set ``driver.faults`` or write ``directory/faults.json``.
    """

    codes = EC2_CODES
    read_tries = 1  # there is no network between

    def __init__(
        self,
        directory: Path,
        settings: PortSettings,
        *,
        boot_delay_s: float = 0.0,
        terminated_ttl_s: float = 60.0,
    ) -> None:
        self.driver = LocalNodeDriver(
            directory,
            wall_at=settings.clock.wall_at,
            faults=Faults(boot_delay_s=boot_delay_s),
            terminated_ttl_s=terminated_ttl_s,
        )
        super().__init__(self.driver, settings)

    def _create_node(self, request: NodeRequest) -> Node:
        node_type = request.node_type
        ram_mib = node_type.memory_bytes // _MIB
        price = float(node_type.price_per_hour)
        return self.driver.create_node(
            request.name,
            NodeSize(node_type.size, node_type.size, ram_mib, 0, 0, price, self.driver),
            NodeImage(node_type.image, node_type.image, self.driver),
            ex_userdata=request.user_data,
            ex_metadata=request.tags,
            ex_clienttoken=request.client_token,
        )


# --- A libcloud driver whose nodes are processes on this machine ------------------------------------------
#
# Each node has its own session and folder.
#
# It uses EC2's error codes and state reasons, so the same code classifies both. Nodes outlive the process that
# created them. Every process that opens the same directory sees the same nodes. A driver serves one thread, like
# every libcloud driver.


USER_SHUTDOWN = "Client.UserInitiatedShutdown"
BOOT_FAILURE = "Server.InternalError"
HOST_FAILURE = "Server.HostFailure"

_END_REASONS = {
    USER_SHUTDOWN: "destroyed on request",
    BOOT_FAILURE: "the node failed to boot",
    HOST_FAILURE: "the node's processes ended without being asked to",
}
# A node record without a process means that a manager was killed while it started the process. Until this time has
# passed, the process may still appear.
_START_WAIT_S = 30.0
_THROTTLED_S = 1
_RETRY_AFTER = {"retry-after": str(_THROTTLED_S)}


class LocalNodeDriver(NodeDriver):
    """Manages the nodes in ``state_dir``. ``faults`` and the file ``STATE/faults.json`` inject faults.

    A terminated node stays listed for ``terminated_ttl_s``, and a repeated create with its token returns it. Then
    the driver deletes its folder or, with ``keep_logs``, moves it to ``STATE/logs``.
    """

    type = "local"
    name = "Local processes"

    def __init__(
        self,
        state_dir: Path,
        *,
        wall_at: Callable[[], float] = time.time,
        faults: Faults | None = None,
        terminated_ttl_s: float = 60.0,
        keep_logs: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        # Do not call NodeDriver.__init__: it connects to a host.
        self.key = str(state_dir)
        self.faults = faults if faults is not None else Faults()
        self.store = Store(state_dir)
        self._fault_board = FaultBoard(self.store.directory / "faults.json", self.faults)
        self._wall_at = wall_at
        self._terminated_ttl_s = terminated_ttl_s
        self._keep_logs = keep_logs
        self._rng = rng or random.Random()
        self._survivors: Mapping[str, Sequence[ForeignProcess]] = {}  # of nodes that are to end, by node id

    def list_nodes(self) -> list[Node]:
        """Return every node in order of creation. Raises :class:`BaseHTTPError` if one is unreadable."""
        self._admit()
        with self._locked_store():
            return [self._libcloud_node(record) for record in self._observe()]

    def create_node(
        self,
        name: str,
        size: NodeSize,
        image: NodeImage,
        location: NodeLocation | None = None,  # noqa: ARG002 - there is only this machine
        auth: NodeAuthSSHKey | NodeAuthPassword | None = None,  # noqa: ARG002 - nobody logs in
        *,
        ex_userdata: str = "",
        ex_metadata: Mapping[str, str] | None = None,
        ex_clienttoken: str = "",
    ) -> Node:
        """Create a node that runs ``ex_userdata``, a script with a ``#!`` line, after it has booted.

        While a node is listed, alive or terminated, the same ``ex_clienttoken`` returns it again. ``ex_metadata``
        holds its tags. Raises :class:`BaseHTTPError` if the create is refused, and ``ConnectionError`` if the
        injected fault is a lost reply.
        """
        faults = self._admit()
        order = CreateRequest(name, size.id, image.id, ex_clienttoken, dict(ex_metadata or {}))
        with self._locked_store():
            records = self._observe()
            record = _find_by_token(records, ex_clienttoken)
            if record is None:
                _refuse_beyond_limits(records, faults)
                sequence = 1 + max((record.sequence for record in records), default=0)
                record = self._boot(self._add(sequence, order, ex_userdata), faults)
            if self._fault_board.count_down("lost_reply"):
                raise ConnectionError("the connection was closed before the reply came")
            return self._libcloud_node(record)

    def destroy_node(self, node: Node) -> bool:
        """Kill every process of the node. A node that no longer exists is no error."""
        return self.ex_destroy_nodes([node])

    def ex_destroy_nodes(self, nodes: Sequence[Node]) -> bool:
        """Destroy several nodes with one scan of the machine's processes."""
        self._admit()
        wanted = frozenset(node.id for node in nodes)
        with self._locked_store():
            for record in self.store.read_all():
                if record.id in wanted and not record.ending:
                    self.store.save(replace(record, ending=USER_SHUTDOWN))
            self._observe()
        return True

    def ex_console_output(self, node: Node) -> str:
        """Return the output of the node's user-data so far; "" if the node's folder was deleted."""
        try:
            return (self.store.folder(str(node.id)) / "console.log").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _admit(self) -> Faults:
        """Apply the injected latency and throttling to a call, and return the current faults."""
        with self._locked_store():
            faults = self._fault_board.current()
            throttled = self._fault_board.count_down("throttle")
        if faults.api_latency_s:
            time.sleep(faults.api_latency_s)
        if throttled:
            raise _refusal(503, "RequestLimitExceeded", "slow down", _RETRY_AFTER)
        return faults

    @contextmanager
    def _locked_store(self) -> Iterator[None]:
        """Hold the store's lock, and raise damage to its files as a provider's errors."""
        try:
            with self.store.locked():
                yield
        except NodeUnreadableError as error:
            raise _refusal(500, "InternalError", str(error)) from error
        except FaultsUnreadableError as error:
            raise _refusal(400, "InvalidParameterValue", str(error)) from error

    def _add(self, sequence: int, order: CreateRequest, user_data: str) -> NodeRecord:
        """Store a new node. Raise a refusal if the disk has no room for it: the node never existed."""
        try:
            return self.store.add(sequence, order, user_data, self._wall_at())
        except OSError as error:
            raise _refusal(500, "InsufficientInstanceCapacity", str(error)) from error

    def _boot(self, record: NodeRecord, faults: Faults) -> NodeRecord:
        """Start a node's init. If the machine cannot start another process, remove the node and raise."""
        draw = self._rng.random()
        fate = "fail" if draw < faults.p_boot_fail else "boot"
        if faults.p_boot_fail <= draw < faults.p_boot_fail + faults.p_boot_hang:
            fate = "hang"
        try:
            init = start(self.store.init, self.store.folder(record.id), record.id, float(faults.boot_delay_s), fate)
        except OSError as error:
            end_nodes({record.id: None})
            self.store.forget(record.id)
            raise _refusal(500, "InsufficientInstanceCapacity", str(error)) from error
        return self.store.save(replace(record, init=init))

    def _observe(self) -> list[NodeRecord]:
        """Update every node's record. Kill the nodes that must end, forget old ones, return the rest."""
        now_at = self._wall_at()
        records = [self._note_end(record, now_at) for record in self.store.read_all()]
        records = self._kill_ending(records, now_at)
        old = {record.id for record in records if self._is_old(record, now_at)}
        for node_id in old:
            self.store.forget(node_id, keep_logs=self._keep_logs)
        return [record for record in records if record.id not in old]

    def _note_end(self, record: NodeRecord, now_at: float) -> NodeRecord:
        """If a node's init has ended, mark the node as ending, so that its remaining processes are killed too."""
        if record.ending:
            return record
        if record.init is None:
            # Its creator was killed halfway. It cannot be still at work, because this process holds the lock.
            init = find_init(record.id)
            if init is not None:
                return self.store.save(replace(record, init=init))
            if now_at - record.created_at <= _START_WAIT_S:
                return record
        elif is_alive(record.init):
            return record
        failed = self.store.phase(record.id) == "failed"
        return self.store.save(replace(record, ending=BOOT_FAILURE if failed else HOST_FAILURE))

    def _is_old(self, record: NodeRecord, now_at: float) -> bool:
        return record.terminated_at is not None and now_at - record.terminated_at > self._terminated_ttl_s

    def _kill_ending(self, records: list[NodeRecord], now_at: float) -> list[NodeRecord]:
        """Kill the nodes that must end. A node counts as terminated only after its last process has ended.

        A process of another user, such as a guest's job, cannot be killed. The node ends when it has ended.
        """
        ending = {record.id: record.init for record in records if record.ending and record.terminated_at is None}
        if not ending:
            self._survivors = {}
            return records
        sessions = {node_id: self.store.sessions(node_id) for node_id in ending}
        living = end_nodes(ending)
        started = {node_id: init for node_id, init in ending.items() if init is not None}
        self._survivors = foreign_processes(started, sessions)
        ended = ending.keys() - living - self._survivors.keys()
        for node_id in ended:
            self.store.clear_tmp(node_id)
        return [
            self.store.save(replace(record, terminated_at=now_at)) if record.id in ended else record
            for record in records
        ]

    def _libcloud_node(self, record: NodeRecord) -> Node:
        status, state = self._status(record)
        return Node(
            id=record.id,
            name=record.order.name,
            state=state,
            public_ips=[],
            private_ips=["127.0.0.1"],
            driver=self,
            created_at=datetime.fromtimestamp(record.created_at, UTC),
            extra={
                "status": status,
                "state_reason": _state_reason(record.ending),
                "tags": dict(record.order.tags),
                "instance_type": record.order.size,
                "image_id": record.order.image,
                "client_token": record.order.token,
                "pid": record.init.pid if record.init else None,
                "folder": str(self.store.folder(record.id)),
                "survivors": _survivors_text(self._survivors.get(record.id, ())),
            },
        )

    def _status(self, record: NodeRecord) -> tuple[str, NodeState]:
        """Return the node's state in EC2's terms and in libcloud's."""
        if record.terminated_at is not None:
            return "terminated", NodeState.TERMINATED
        if record.ending:
            return "shutting-down", NodeState.STOPPING
        if self.store.phase(record.id) == "running":
            return "running", NodeState.RUNNING
        return "pending", NodeState.PENDING


def _state_reason(ending: str) -> dict[str, str] | None:
    return {"code": ending, "message": f"{ending}: {_END_REASONS[ending]}"} if ending else None


def _survivors_text(survivors: Sequence[ForeignProcess]) -> str:
    """Name the processes that survive, and their users; "" if none does."""
    return ", ".join(f"process {it.pid} of user {user_name(it.uid)}" for it in survivors)


def _find_by_token(records: Sequence[NodeRecord], token: str) -> NodeRecord | None:
    return next((record for record in records if token and record.order.token == token), None)


def _refuse_beyond_limits(records: Sequence[NodeRecord], faults: Faults) -> None:
    living = sum(record.terminated_at is None for record in records)
    if faults.quota_max is not None and living >= faults.quota_max:
        raise _refusal(400, "InstanceLimitExceeded", f"{living} nodes exist, quota_max is {faults.quota_max}")
    if faults.nodes_max is not None and living >= faults.nodes_max:
        raise _refusal(
            500, "InsufficientInstanceCapacity", f"{living} nodes exist, nodes_max is {faults.nodes_max}"
        )


def _refusal(status: int, code: str, text: str, headers: dict[str, str] | None = None) -> BaseHTTPError:
    """Build an error like those of libcloud's EC2 driver: a status, and "Code: text" as the message."""
    return BaseHTTPError(status, f"{code}: {text}", headers)  # type: ignore[no-untyped-call]


# --- stores the local cloud's nodes in a directory --------------------------------------------------------
#
# Any process may open it; one lock protects it.
#
# STATE/lock flock(2), held during each call STATE/init the script that each node runs first STATE/making/ID/ a
# node that is being created or deleted STATE/nodes/ID/ node.json, user-data (0700), console.log, phase,
# user-data.exit, root/ STATE/logs/ID/ the folders of forgotten nodes, if the driver keeps them
#
# A folder, with its ``node.json``, is moved to ``nodes/`` by one rename before any process of the node starts. So
# a folder without a readable ``node.json`` is damaged. The store reports it and never treats it as "no node".


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
        self._is_prepared = False
        with suppress(OSError), self.locked():  # the next use tries again, and its error reaches the caller
            pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory's lock, and make the directory if it is not there yet.

        Raises ``OSError`` if the directory cannot be written, and ``TimeoutError`` if another process holds the
        lock for too long.
        """
        if not self._is_prepared:
            for name in ("nodes", "making", "logs"):
                # A node's user-data may hold secrets, so other users of the machine must not read it.
                (self.directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with held_lock(self.directory / "lock"):
            if not self._is_prepared:
                if not self.init.exists() or self.init.read_text(encoding="utf-8") != INIT_SCRIPT:
                    replace_file(self.init, INIT_SCRIPT)
                self._is_prepared = True
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
