"""A MiniCluster and its pods as the API server shows them. Pure.

The operator keeps pods with the indexes 0 to ``spec.size - 1``. Index 0 is the lead broker and no node of ours. A
MiniCluster has no tags for single pods, so the launch of each index is an annotation of the MiniCluster. It is
written by the same PATCH as the size.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from nodemanager.core.nodes import CloudNode, CloudState, Identity, LaunchId, ProviderId, Tenure
from nodemanager.core.slots import SlotName, TypeName

GROUP = "flux-framework.org"
VERSION = "v1alpha2"
KIND = "MiniCluster"
ANNOTATION = "flux-node-manager"  # the prefix of our annotations
CLUSTER_KEY = f"{ANNOTATION}/cluster"  # its value: the cluster's name and UUID
WANTED_KEY = f"{ANNOTATION}/wanted"  # a size that the ensemble service has refused, and when
SHARE_KEY = f"{ANNOTATION}/share"  # the size to which the ensemble service wants it reduced
_INDEX_KEY = re.compile(rf"{ANNOTATION}/index-([0-9]+)")
_INDEX_LABELS = ("batch.kubernetes.io/job-completion-index", "job-index")
_FAILING = (
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "CreateContainerConfigError",
    "InvalidImageName",
)


class Owner(StrEnum):
    """Who else may change ``spec.size``."""

    US = "us"  # nobody: indexes that others added are adopted, and leave when they are idle
    SHARED = "shared"  # others too: the indexes that they added are never removed


class UnreadableObject(ValueError):
    """An object lacks a field or has one of another type. The message names it."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What the annotation of an index records."""

    launch: LaunchId
    type_name: TypeName
    created_at: float


@dataclass(frozen=True, slots=True)
class MiniCluster:
    """A MiniCluster. ``size_shown``: what the operator has carried out; None before its first reconcile."""

    name: str
    resource_version: str
    size: int
    size_min: int = 1
    size_max: int | None = None
    size_shown: int | None = None
    cluster: str = ""
    cluster_uuid: str = ""
    launched: Mapping[int, Launched] = field(default_factory=dict)
    why_unusable: str = ""  # why its size cannot be changed; "" if it can
    highest_of_others: int = 0  # the highest index below ``size`` that has no annotation
    wanted: str = ""  # the value of ``WANTED_KEY``; "" without it
    finished: bool = False  # its job has ended, so no pod of it runs any more
    share: str = ""  # the value of ``SHARE_KEY``; "" without it


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a MiniCluster."""

    index: int
    phase: str
    leaving: bool = False
    created_at: float | None = None
    address: str = ""
    unschedulable: str = ""  # the scheduler's words
    failing: str = ""  # why its containers do not run


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose nodes a port shows and creates. ``type_name``: the one node type of the site."""

    cluster: str
    cluster_uuid: str
    type_name: TypeName
    owner: Owner = Owner.US


# --- reading ----------------------------------------------------------------------------------------------


def read_minicluster(found: Mapping[str, Any]) -> MiniCluster:
    """Read a MiniCluster. Raises :class:`UnreadableObject`."""
    metadata, spec = _mapping(found, "metadata"), _mapping(found, "spec")
    status = found.get("status") or {}
    annotations = metadata.get("annotations") or {}
    cluster, _, cluster_uuid = str(annotations.get(CLUSTER_KEY, "")).partition(" ")
    size, launched = _whole(spec, "size", 1), dict(_read_launched(annotations))
    size_max = _whole(spec, "maxSize", 0) or status.get("maximumSize") or None
    return MiniCluster(
        name=str(metadata.get("name", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        size=size,
        size_min=max(1, _whole(spec, "minSize", 0)),
        size_max=int(size_max) if size_max is not None else None,
        size_shown=_whole(status, "size", 0) if "size" in status else None,
        cluster=cluster,
        cluster_uuid=cluster_uuid,
        launched=launched,
        why_unusable=_why_unusable(metadata, spec, status),
        highest_of_others=max((it for it in range(1, size) if it not in launched), default=0),
        finished=_is_finished(status),
        wanted=str(annotations.get(WANTED_KEY, "")),
        share=str(annotations.get(SHARE_KEY, "")),
    )


def _is_finished(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or []
    return any(it.get("type") == "JobFinished" and it.get("status") == "True" for it in conditions)


def _why_unusable(metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    if _is_finished(status):
        return "its job has finished, and Kubernetes changes a finished job no more: set spec.interactive"
    bursting = _mapping(spec, "flux").get("bursting") or {} if spec.get("flux") else {}
    if bursting.get("leadBroker") or bursting.get("clusters") or bursting.get("hostlist"):
        return "it uses spec.flux.bursting, with which an index is not a rank"
    size, least, most = _whole(spec, "size", 1), _whole(spec, "minSize", 0), _whole(spec, "maxSize", 0)
    if most and most < max(size, least):
        what = "minSize" if most < least else "size"
        return f"the operator ignores it: spec.maxSize {most} is below spec.{what} {max(size, least)}"
    if least > size:
        return f"the operator ignores it: spec.size {size} is below spec.minSize {least}"
    return ""


def _read_launched(annotations: Mapping[str, Any]) -> Iterable[tuple[int, Launched]]:
    for key, value in annotations.items():
        parts = str(value).split(" ")
        if (match := _INDEX_KEY.fullmatch(key)) is None or len(parts) != 3:
            continue
        launch, type_name, created = parts
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", created):
            yield int(match[1]), Launched(LaunchId(launch), TypeName(type_name), float(created))


def read_pods(found: Iterable[Mapping[str, Any]]) -> Mapping[int, Pod]:
    """Read the pods by index. Of several with one index, the one that stays is taken."""
    pods: dict[int, Pod] = {}
    for item in found:
        pod = _read_pod(item)
        if pod is not None and (pod.index not in pods or pods[pod.index].leaving):
            pods[pod.index] = pod
    return pods


def _read_pod(item: Mapping[str, Any]) -> Pod | None:
    """Read a pod; None if it has ended or has no index. Raises :class:`UnreadableObject`."""
    metadata, status = _mapping(item, "metadata"), item.get("status") or {}
    marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    index = next((marks[key] for key in _INDEX_LABELS if key in marks), None)
    phase = str(status.get("phase", "Pending"))
    if index is None or not str(index).isdecimal() or phase in ("Succeeded", "Failed"):
        return None
    conditions = status.get("conditions") or []
    unschedulable = next(
        (
            str(it.get("message", ""))
            for it in conditions
            if it.get("type") == "PodScheduled" and it.get("reason") == "Unschedulable"
        ),
        "",
    )
    waits = [(it.get("state") or {}).get("waiting") or {} for it in _containers(status)]
    failing = next((it for it in waits if it.get("reason") in _FAILING), {})
    return Pod(
        index=int(index),
        phase=phase,
        leaving=bool(metadata.get("deletionTimestamp")),
        created_at=_moment(metadata.get("creationTimestamp")),
        address=str(status.get("podIP") or ""),
        unschedulable=unschedulable,
        failing=f"{failing['reason']}: {failing.get('message', '')}".rstrip(": ") if failing else "",
    )


def _containers(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _mapping(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found.get(key)
    if not isinstance(value, Mapping):
        raise UnreadableObject(f"{key}: an object is needed, not {value!r}")
    return value


def _whole(found: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = found.get(key, otherwise)
    if not isinstance(value, int):
        raise UnreadableObject(f"{key}: a whole number is needed, not {value!r}")
    return value


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


# --- the nodes --------------------------------------------------------------------------------------------


def cloud_nodes(
    found: MiniCluster, pods: Mapping[int, Pod], scope: Scope, long_gone: Container[int] = ()
) -> tuple[CloudNode, ...]:
    """The nodes from index 1, in order.

    An index below ``spec.size`` is a node, with or without a pod: the operator will make one. An index above is one
    until its pod is gone and the operator shows the smaller size; then it is terminated while its annotation lasts.
    ``long_gone``: indexes above whose pod is gone for so long that the operator must have lost its status update.
    """
    top = max([found.size - 1, *pods, *found.launched])
    nodes = (_cloud_node(it, found, pods.get(it), scope, long_gone=it in long_gone) for it in range(1, top + 1))
    return tuple(node for node in nodes if node is not None)


def _cloud_node(
    index: int, found: MiniCluster, pod: Pod | None, scope: Scope, *, long_gone: bool
) -> CloudNode | None:
    identity = identity_of(index, found, scope)
    launched = found.launched.get(index)
    state = _state(index, found, pod, long_gone=long_gone)
    if state is CloudState.TERMINATED and launched is None:
        return None
    created_at = launched.created_at if launched is not None else pod.created_at if pod is not None else None
    return CloudNode(
        provider_id=provider_id(
            found.name, index, launched.launch if launched else found_launch(found.name, index)
        ),
        state=state,
        identity=identity,
        created_at=created_at,
        addresses=(pod.address,) if pod is not None and pod.address else (),
        died_because="the size was reduced" if state is CloudState.TERMINATED else "",
        impaired=pod.failing if pod is not None and state is CloudState.RUNNING else "",
        note=(pod.failing or pod.unschedulable) if pod is not None and state is CloudState.PENDING else "",
        tenure=Tenure(fixed=_why_fixed(index, found, scope), owed=_why_owed(index, found)),
    )


def _why_owed(index: int, found: MiniCluster) -> str:
    if not found.share.isdecimal() or not int(found.share) <= index < found.size:
        return ""
    return f"the fair share of {found.name} is {found.share} pods"


def _why_fixed(index: int, found: MiniCluster, scope: Scope) -> str:
    if index < min(found.size_min, found.size):
        return f"spec.minSize is {found.size_min}"
    if scope.owner is Owner.SHARED:
        above = found.highest_of_others
        if above > index:
            return f"index {above} above it belongs to others"
    return ""


def _state(index: int, found: MiniCluster, pod: Pod | None, *, long_gone: bool) -> CloudState:
    if index < found.size:
        runs = pod is not None and not pod.leaving and pod.phase == "Running"
        return CloudState.RUNNING if runs else CloudState.PENDING
    carried_out = found.size_shown is None or found.size_shown <= index or long_gone
    return CloudState.TERMINATED if carried_out and pod is None else CloudState.STOPPING


def identity_of(index: int, found: MiniCluster, scope: Scope) -> Identity | None:
    """Whose node an index is. An index without annotation is ours if nobody else may change the size."""
    slot = slot_name(found.name, index)
    launched = found.launched.get(index)
    if launched is not None:
        return Identity(found.cluster, found.cluster_uuid, launched.launch, slot, launched.type_name)
    if scope.owner is Owner.SHARED or found.cluster_uuid not in ("", scope.cluster_uuid):
        return None
    return Identity(scope.cluster, scope.cluster_uuid, found_launch(found.name, index), slot, scope.type_name)


def slot_name(name: str, index: int) -> SlotName:
    """The host name of an index's pod, which is its slot."""
    return SlotName(f"{name}-{index}")


def index_of(slot: str, name: str) -> int | None:
    """The index of a slot; None if it is none of this MiniCluster's, or the lead broker's."""
    match = re.fullmatch(re.escape(name) + r"-([1-9][0-9]*)", slot, re.ASCII)
    return int(match[1]) if match is not None else None


def found_launch(name: str, index: int) -> LaunchId:
    """The launch of an index that somebody else added."""
    return LaunchId(f"{name}-{index}-found")


def provider_id(name: str, index: int, launch: LaunchId) -> ProviderId:
    """The id of a node. It has the launch in it, because an index returns after it left."""
    return ProviderId(f"{name}-{index}/{launch}")
