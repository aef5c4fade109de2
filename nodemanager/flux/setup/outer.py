"""Nodes that are jobs of an outer Flux instance: ``provider = flux``, and the job that ``expand`` submits.

A node is a job with one task that runs a slot's user-data, a file of the job: the broker that joins the inner
instance. Cancelling the job terminates the node. The job's name contains the cluster, and its attribute
``user.node-manager`` the launch.

Payloads follow flux-core's modules ``job-list``, ``job-info`` and ``job-manager``. Jobspecs are RFC 25's, V1.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    Identity,
    Launch,
    LaunchId,
    Leftover,
    ProviderId,
)
from nodemanager.core.notation import expand_hostlist
from nodemanager.core.ports import Clock, CloudError, FluxError
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.core.untrusted import read_json
from nodemanager.flux.bindings import CallFailed, Handle, ask, connect
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, text_at, whole_at
from nodemanager.flux.submit import submit

USER_KEY = "node-manager"
SHOWN_AFTER_END_S = 600.0
_EVERY_JOB = 0
_ATTRIBUTES = ["name", "state", "t_submit", "nodelist", "exception_type", "exception_note"]
_SCRIPT = "user-data"
_PRIVATE_FILE = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR
_RUN, _CLEANUP, _INACTIVE = 16, 32, 64  # flux-core's job.h

UserData = Callable[[Launch, NodeType], str]


class OuterFlux:
    """``CloudPort`` on an outer instance; ``uri`` "" means the enclosing one. An object belongs to one thread."""

    def __init__(
        self,
        uri: str,
        cluster: str,
        cluster_uuid: str,
        user_data: UserData,
        clock: Clock,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        self._uri = uri
        self._cluster = cluster
        self._cluster_uuid = cluster_uuid
        self._user_data = user_data
        self._clock = clock
        self._timeout_s = timeout_s
        self._opened: Handle | None = None
        self._identities: dict[int, Identity | None] = {}

    # --- the port ---

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        # Flux has no idempotency tokens, so first search for a node of this launch.
        for node in self.list_nodes():
            if node.identity is not None and node.identity.launch == launch.id:
                return node
        identity = Identity(
            self._cluster, self._cluster_uuid, launch.id, launch.slot, launch.type_name, launch.made_from
        )
        jobspec = node_jobspec(identity, self._user_data(launch, node_type), node_type)
        with self._handle() as handle:
            try:
                job_id = submit(handle, jobspec, timeout_s=self._timeout_s)
            except CallFailed as failure:
                kind = FailureKind.CONFIG if failure.answered else FailureKind.AMBIGUOUS
                raise CloudError(kind, str(failure)) from failure
            self._identities[job_id] = identity
            try:
                # This waits until the list has the job, so that the next list will show it.
                request = {"id": job_id, "attrs": _ATTRIBUTES}
                listed = ask(handle, "job-list.list-id", request, timeout_s=self._timeout_s)["job"]
            except CallFailed as failure:
                raise CloudError(FailureKind.AMBIGUOUS, str(failure)) from failure
        return self._node(listed)

    def list_nodes(self) -> tuple[CloudNode, ...]:
        # Active jobs first: a job that ends between the two calls is then in both lists, and counts as ended.
        since = max(0.0, self._clock.wall_at() - SHOWN_AFTER_END_S)
        with self._handle() as handle:
            try:
                active = self._list_own_jobs(handle, {"states": ["pending", "running"]}, 0.0)
                ended = self._list_own_jobs(handle, {"states": ["inactive"]}, since)
                jobs = {**active, **ended}
                self._learn_identities(handle, jobs)
                nodes = tuple(self._node(jobs[job_id]) for job_id in sorted(jobs))
            except ValueError as fault:
                raise CloudError(
                    FailureKind.TRANSIENT, f"an answer of the outer instance cannot be read: {fault}"
                ) from fault
        self._identities = {job_id: self._identities[job_id] for job_id in jobs}
        return nodes

    def destroy(self, provider_id: ProviderId) -> None:
        if not (provider_id.isascii() and provider_id.isdecimal()):
            return  # no job ever had such an id
        payload = {"id": int(provider_id), "type": "cancel", "severity": 0, "note": "flux-node-manager"}
        with self._handle() as handle:
            try:
                ask(handle, "job-manager.raise", payload, timeout_s=self._timeout_s)
            except CallFailed as failure:
                # The job has ended, or never existed.
                if failure.errno not in {errno.EINVAL, errno.ENOENT}:
                    raise CloudError(FailureKind.TRANSIENT, str(failure)) from failure

    def sweep(self) -> tuple[Leftover, ...]:
        return ()  # a job leaves nothing behind

    # --- reading ---

    def _list_own_jobs(
        self, handle: Handle, states: Mapping[str, object], since: float
    ) -> dict[int, Mapping[str, Any]]:
        return _list_jobs(handle, job_name(self._cluster), states, since, timeout_s=self._timeout_s)

    def _learn_identities(self, handle: Handle, jobs: Mapping[int, object]) -> None:
        """Read the identity of each new job from its jobspec, which never changes."""
        for job_id in jobs.keys() - self._identities.keys():
            self._identities[job_id] = _identity_in(_read_jobspec(handle, job_id, timeout_s=self._timeout_s))

    def _node(self, job: Mapping[str, Any]) -> CloudNode:
        job_id, state = job["id"], whole_at(job.get("state"), "job.state")
        return CloudNode(
            provider_id=ProviderId(str(job_id)),
            state=_state(state),
            queued=state < _RUN,
            identity=self._identities[job_id],
            created_at=seconds_at(job.get("t_submit"), "job.t_submit"),
            addresses=tuple(expand_hostlist(job["nodelist"])) if job.get("nodelist") else (),
            died_because=_end_text(job) if state == _INACTIVE else "",
        )

    # --- the connection ---

    @contextmanager
    def _handle(self) -> Iterator[Handle]:
        try:
            if self._opened is None:
                self._opened = connect(self._uri)
        except FluxError as error:
            raise CloudError(FailureKind.TRANSIENT, str(error)) from error
        try:
            yield self._opened
        except CallFailed as failure:
            self._drop_handle(failure)
            raise CloudError(FailureKind.TRANSIENT, str(failure)) from failure
        except CloudError as error:
            if isinstance(error.__cause__, CallFailed):
                self._drop_handle(error.__cause__)
            raise

    def _drop_handle(self, failure: CallFailed) -> None:
        """Close the handle after any failure except a refusal; the next call connects again."""
        if not failure.answered and self._opened is not None:
            handle, self._opened = self._opened, None
            handle.close()


def _state(state: int) -> CloudState:
    if state < _RUN:
        return CloudState.PENDING
    return {_RUN: CloudState.RUNNING, _CLEANUP: CloudState.STOPPING}.get(state, CloudState.TERMINATED)


def _end_text(job: Mapping[str, Any]) -> str:
    return f"{job.get('exception_type', '')}: {job.get('exception_note', '')}".strip(": ") or "it ended"


# --- a job ------------------------------------------------------------------------------------------------


def job_name(cluster: str) -> str:
    """Return the name of the jobs that are a cluster's nodes."""
    return f"node-of-{cluster}"


def _tags(identity: Identity) -> dict[str, str]:
    return {
        "cluster": identity.cluster,
        "cluster_uuid": identity.cluster_uuid,
        "launch": identity.launch,
        "slot": identity.slot,
        "type": identity.type_name,
        "made_from": identity.made_from,
    }


def _identity_in(jobspec: Mapping[str, Any]) -> Identity | None:
    """Read the node's tags; None if the job has none, or unreadable ones: it belongs to somebody else."""
    tags = jobspec.get("attributes", {}).get("user", {}).get(USER_KEY)
    try:
        read = {
            key: text_at(object_at(tags, USER_KEY).get(key), key)
            for key in ("cluster", "cluster_uuid", "launch", "slot", "type")
        }
        made_from = text_at(object_at(tags, USER_KEY).get("made_from", ""), "made_from")
    except ValueError:
        return None
    return Identity(
        read["cluster"],
        read["cluster_uuid"],
        LaunchId(read["launch"]),
        SlotName(read["slot"]),
        TypeName(read["type"]),
        made_from,
    )


def node_jobspec(identity: Identity, script: str, node_type: NodeType) -> dict[str, Any]:
    """Make the jobspec of a node. The script is a file: it may contain a ticket, and every user sees arguments."""
    command = ["/bin/sh", f"{{{{tmpdir}}}}/{_SCRIPT}"]  # the job's tmpdir, which only its user may enter
    user = {USER_KEY: _tags(identity)}
    return jobspec_of(job_name(identity.cluster), command, 1, node_type, user=user, files={_SCRIPT: script})


def jobspec_of(
    name: str,
    command: Sequence[str],
    nodes: int,
    node_type: NodeType,
    *,
    user: Mapping[str, object],
    files: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Make a jobspec with one task per node, the node type's cores and GPUs, and no time limit.

    ``files``: texts by name, which Flux puts into the job's ``tmpdir`` (RFC 37).
    """
    units = [{"type": "core", "count": node_type.cores}]
    units += [{"type": "gpu", "count": node_type.gpus}] if node_type.gpus else []
    slot = {"type": "slot", "count": 1, "label": "broker", "with": units}
    system: dict[str, Any] = {"duration": 0, "cwd": "/", "environment": {}, "job": {"name": name}}
    if files:
        system["files"] = {
            path: {"mode": _PRIVATE_FILE, "encoding": "utf-8", "data": text} for path, text in files.items()
        }
    return {
        "version": 1,
        "resources": [{"type": "node", "count": nodes, "with": [slot]}],
        "tasks": [{"command": list(command), "slot": "broker", "count": {"per_slot": 1}}],
        "attributes": {"system": system, "user": dict(user)},
    }


def slots_of_jobs(handle: Handle, name: str, *, timeout_s: float) -> frozenset[SlotName]:
    """Read the slots that the active jobs with this name declare as theirs."""
    slots: set[SlotName] = set()
    for job_id in _list_jobs(handle, name, {"states": ["pending", "running"]}, 0.0, timeout_s=timeout_s):
        user = _read_jobspec(handle, job_id, timeout_s=timeout_s)["attributes"].get("user", {})
        slots.update(SlotName(slot) for slot in user.get(USER_KEY, {}).get("slots", ()))
    return frozenset(slots)


def _list_jobs(
    handle: Handle, name: str, states: Mapping[str, object], since: float, *, timeout_s: float
) -> dict[int, Mapping[str, Any]]:
    request = {
        "max_entries": _EVERY_JOB,
        "attrs": _ATTRIBUTES,
        "since": since,
        "constraint": {"and": [{"name": [name]}, states]},
    }
    reply = object_at(ask(handle, "job-list.list", request, timeout_s=timeout_s), "job-list.list")
    jobs = list_at(reply.get("jobs"), "job-list.list.jobs")
    return {whole_at(object_at(job, "job").get("id"), "job.id"): job for job in jobs}


def _read_jobspec(handle: Handle, job_id: int, *, timeout_s: float) -> dict[str, Any]:
    request = {"id": job_id, "keys": ["jobspec"], "flags": 0}
    jobspec: dict[str, Any] = read_json(ask(handle, "job-info.lookup", request, timeout_s=timeout_s)["jobspec"])
    return jobspec
