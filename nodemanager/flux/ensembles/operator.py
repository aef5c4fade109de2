"""The members of the gRPC service on one Flux instance: its node manager keeps their nodes.

What each member was granted is stored in the KVS, ``node-manager.asked``, because members of ensemble-python say
only how many nodes more they want. The manager itself forgets a number that is not repeated
(``doc/decisions/0022``), so the service repeats all of them.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from nodemanager.config.text.settings import ENSEMBLE_NAME
from nodemanager.core.ports import FluxError
from nodemanager.core.untrusted import read_json
from nodemanager.ensemble.operator import ChangeDenied, ChangeFailed, SizeChange
from nodemanager.flux import kvs
from nodemanager.flux.bindings import BindingsMissing, CallFailed, Handle, ask, ask_all, connection
from nodemanager.flux.claim import SERVICE
from nodemanager.flux.ensembles.nodes import NO_MANAGER
from nodemanager.flux.ensembles.runner import service_name
from nodemanager.flux.parse.json_fields import object_at, whole_at
from nodemanager.flux.parse.resources import count_free

KEY = "node-manager.asked"
TIMEOUT_S = 10.0
SILENCE_S = 3600.0  # the nodes of a member that was not heard of for so long are let go
HEARD_EVERY_S = 300.0  # how often it is stored that a member was heard of
MEMBERS_MAX = 1000
QUEUE_STATES = ("new", "depend", "priority", "sched", "run", "cleanup", "inactive")


class InstanceMembers:
    """:class:`nodemanager.ensemble.operator.MembersPort` for one instance; ``uri`` "" is the enclosing one."""

    def __init__(self, uri: str, wall_at: Callable[[], float] = time.time) -> None:
        self._uri = uri
        self._wall_at = wall_at
        self._lock = threading.Lock()

    def resize(self, change: SizeChange) -> int:
        with self._lock, self._instance() as handle:
            asked = _read(handle)
            nodes = change.applied_to(asked.get(change.name, _NOTHING)["nodes"])
            if nodes and change.name not in asked and len(asked) >= MEMBERS_MAX:
                raise ChangeDenied(f"{MEMBERS_MAX} members keep nodes already")
            if why := _keep(handle, change.name, nodes):
                raise ChangeDenied(why)
            _write(handle, {**asked, change.name: {"nodes": nodes, "at": self._wall_at()}})
            return nodes

    def status(self, name: str) -> Mapping[str, Any]:
        with self._instance() as handle:
            answers = ask_all(
                handle, {"sched.resource-status": None, "job-list.job-stats": None}, timeout_s=TIMEOUT_S
            )
            try:
                states = object_at(
                    object_at(answers["job-list.job-stats"], "answer").get("job_states"), "job_states"
                )
                queue = {state: whole_at(states.get(state, 0), f"job_states.{state}") for state in QUEUE_STATES}
                nodes = count_free(answers["sched.resource-status"])
            except ValueError as fault:
                raise ChangeFailed(f"the answer of the instance cannot be read: {fault}") from fault
            asked = self._hear(handle, name)
            return {
                "nodes": nodes,
                "queue": queue,
                "size": {"size": nodes["node_up_count"], "asked": asked, **_limits(handle, name)},
                "metrics": _ensemble(handle, name).get("metrics", {}),
            }

    def keep(self) -> None:
        try:
            with self._lock, self._instance() as handle:
                self._keep_all(handle)
        except ChangeFailed as fault:
            structlog.get_logger().warning("ensemble_members_not_kept", why=str(fault))

    def _keep_all(self, handle: Handle) -> None:
        log: Any = structlog.get_logger()
        asked = _read(handle)
        silent = {name for name, it in asked.items() if self._wall_at() > it["at"] + SILENCE_S}
        for name, it in asked.items():
            nodes = 0 if name in silent else it["nodes"]
            if why := _keep(handle, name, nodes):
                log.warning("ensemble_member_not_kept", ensemble=name, nodes=nodes, why=why)
            elif name in silent:
                log.info("ensemble_member_silent", ensemble=name, nodes=it["nodes"])
        if silent:
            _write(handle, {name: it for name, it in asked.items() if name not in silent})

    def _hear(self, handle: Handle, name: str) -> int:
        """Note that a member lives. Returns the nodes that are kept for it."""
        with self._lock:
            asked = _read(handle)
            if name not in asked:
                return 0
            nodes, now_at = int(asked[name]["nodes"]), self._wall_at()
            if not 0 <= now_at - asked[name]["at"] < HEARD_EVERY_S:
                _write(handle, {**asked, name: {"nodes": nodes, "at": now_at}})
            return nodes

    @contextmanager
    def _instance(self) -> Iterator[Handle]:
        """Connect for one request: it may run in any thread, and the instance may have restarted."""
        try:
            with connection(self._uri) as handle:
                yield handle
        except (BindingsMissing, FluxError) as error:
            raise ChangeFailed(str(error)) from error


_NOTHING: Mapping[str, Any] = {"nodes": 0, "at": 0.0}


def _read(handle: Handle) -> dict[str, dict[str, Any]]:
    text = kvs.read(handle, [KEY], timeout_s=TIMEOUT_S).get(KEY, "{}")
    try:
        return {name: {"nodes": int(it["nodes"]), "at": float(it["at"])} for name, it in read_json(text).items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise FluxError(f"the KVS key {KEY} is damaged: {error}. To remove it: flux kvs unlink {KEY}") from error


def _write(handle: Handle, asked: Mapping[str, Mapping[str, Any]]) -> None:
    kept = {name: it for name, it in asked.items() if it["nodes"]}
    kvs.commit(handle, {KEY: json.dumps(kept) if kept else None}, timeout_s=TIMEOUT_S)


def _keep(handle: Handle, name: str, nodes: int) -> str:
    """Ask the manager to keep nodes. Returns why it does not; "" if it does."""
    try:
        answer = ask(handle, f"{SERVICE}.floor", {"ensemble": name, "nodes": nodes}, timeout_s=TIMEOUT_S)
    except CallFailed as failure:
        if failure.errno == errno.ENOSYS:
            return NO_MANAGER
        raise
    return str(answer.get("why", ""))


def _limits(handle: Handle, name: str) -> dict[str, Any]:
    """Ask the manager what it keeps for a member and how many nodes it may have; nothing if there is no manager."""
    try:
        answer = ask(handle, f"{SERVICE}.floor", {"ensemble": name}, timeout_s=TIMEOUT_S)
    except CallFailed as failure:
        if failure.errno == errno.ENOSYS:
            return {}
        raise
    return {key: answer[key] for key in ("kept", "min", "max") if key in answer}


def _ensemble(handle: Handle, name: str) -> Mapping[str, Any]:
    """Ask the process that runs an ensemble of this name here for its state; nothing if there is none."""
    if not ENSEMBLE_NAME.fullmatch(name):
        return {}
    try:
        answer = ask(handle, f"{service_name(name)}.status", timeout_s=TIMEOUT_S)
    except CallFailed as failure:
        if failure.errno == errno.ENOSYS:
            return {}
        raise
    return answer if isinstance(answer, Mapping) else {}
