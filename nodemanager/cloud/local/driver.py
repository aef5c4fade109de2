"""A libcloud driver whose nodes are processes on this machine. Each node has its own session and folder.

It uses EC2's error codes and state reasons, so the same code classifies both. Nodes outlive the process that
created them. Every process that opens the same directory sees the same nodes. A driver serves one thread, like
every libcloud driver.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

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

from nodemanager.actors.user_names import user_name
from nodemanager.cloud.local.faults import FaultBoard, Faults, FaultsUnreadableError
from nodemanager.cloud.local.process import (
    ForeignProcess,
    end_nodes,
    find_init,
    foreign_processes,
    is_alive,
    start,
)
from nodemanager.cloud.local.store import CreateRequest, NodeRecord, NodeUnreadableError, Store

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
