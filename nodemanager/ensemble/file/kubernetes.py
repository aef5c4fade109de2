"""Turn an ``Ensemble`` resource of ensemble-operator into the Kubernetes objects that run it without that operator.

Each member becomes a MiniCluster of the Flux Operator. Its lead broker runs the ensemble, and beside it a node
manager that changes the size of this MiniCluster: ``grow`` and ``shrink`` ask that manager.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nodemanager.ensemble.file.schema import EnsembleError, read_ensemble

GROUP = "ensemble.flux-framework.org"
VERSION = "v1alpha1"
KIND = "Ensemble"
FOLDER = "/etc/flux-node-manager"
SOCKET = "local:///mnt/flux/config/run/flux/local"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?", re.ASCII)

Object = dict[str, Any]


class ResourceError(Exception):
    """The resource cannot be turned into objects. The message says where and why."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the resource does not say. ``image``, ``cores``: "" and 0 take them from each member's container."""

    namespace: str = "default"
    image: str = ""
    cores: int = 0


def objects_of(resource: object, choices: Choices, uuid_of: Callable[[str], str]) -> list[Object]:
    """List the objects in the order in which they are applied.

    ``uuid_of``: a lasting UUID for the name of a MiniCluster. Raises :class:`ResourceError`.
    """
    found = _mapping(resource, "the file")
    if (found.get("apiVersion"), found.get("kind")) != (f"{GROUP}/{VERSION}", KIND):
        raise ResourceError(f"apiVersion: {GROUP}/{VERSION} and kind: {KIND} are needed")
    name = str(_mapping(found.get("metadata"), "metadata").get("name", ""))
    if not _NAME.fullmatch(name):
        raise ResourceError(f'metadata.name: "{name}": a name of "a-z", "0-9" and "-" is needed')
    members = _mapping(found.get("spec"), "spec").get("members")
    if not isinstance(members, list) or not members:
        raise ResourceError("spec.members: at least one member is needed")
    objects = _account(f"{name}-node-manager", choices.namespace)
    for index, member in enumerate(members):
        where = f"spec.members[{index}]"
        objects += _member(_mapping(member, where), where, f"{name}-{index}", name, choices, uuid_of)
    return objects


def _account(name: str, namespace: str) -> list[Object]:
    """The service account of all members, with the least role that their managers need."""
    rules = [
        {
            "apiGroups": ["flux-framework.org"],
            "resources": ["miniclusters"],
            "verbs": ["get", "list", "watch", "patch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
    ]
    metadata = {"name": name, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", **metadata}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**rbac, "kind": "Role", "metadata": metadata, "rules": rules},
        {**rbac, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects},
    ]


def _member(
    member: Mapping[str, Any], where: str, name: str, ensemble: str, choices: Choices, uuid_of: Callable[[str], str]
) -> list[Object]:
    text = member.get("ensemble")
    if not isinstance(text, str) or not text.strip():
        raise ResourceError(f"{where}.ensemble: the text of an ensemble.yaml is needed")
    try:
        read_ensemble(text)
    except EnsembleError as error:
        raise ResourceError(f"{where}.ensemble: {error}") from error
    place = f"{where}.minicluster.spec"
    spec = dict(_mapping(_mapping(member.get("minicluster"), f"{where}.minicluster").get("spec"), place))
    least, size, most = _sizes(spec, place)
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        raise ResourceError(f"{place}.containers: a container is needed")
    at = next((at for at, it in enumerate(containers) if isinstance(it, Mapping) and it.get("runFlux")), 0)
    container = dict(_mapping(containers[at], f"{place}.containers[{at}]"))
    container["image"] = choices.image or container.get("image") or ""
    if not container["image"]:
        raise ResourceError(f"{place}.containers[{at}].image: an image is needed, or --image")
    files = {"ensemble.yaml": text}
    commands = dict(container.get("commands") or {})
    if most > 1:
        cores, memory = _room(container, f"{place}.containers[{at}]", choices)
        files["site.ini"] = _SITE.format(
            name=name, uuid=uuid_of(name), namespace=choices.namespace, nodes=most - 1, cores=cores, memory=memory
        )
        manager = f"(while :; do flux-node-manager run --config {FOLDER}/site.ini; sleep 5; done) &"
        commands["brokerPre"] = "\n".join(filter(None, [commands.get("brokerPre"), manager]))
    volume = {"configMapName": name, "path": FOLDER, "items": {file: file for file in files}}
    container |= {
        "runFlux": True,
        "launcher": True,
        "command": f"flux-node-manager ensemble run {FOLDER}/ensemble.yaml --name {ensemble}",
        "volumes": {**(container.get("volumes") or {}), "ensemble": volume},
        "commands": commands,
    }
    pod = {**(spec.get("pod") or {})}
    pod |= {"serviceAccountName": f"{ensemble}-node-manager", "automountServiceAccountToken": True}
    spec |= {"size": size, "maxSize": most, "pod": pod}
    spec["containers"] = [*containers[:at], container, *containers[at + 1 :]]
    if least:
        spec["minSize"] = least
    metadata = {"name": name, "namespace": choices.namespace}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files},
        {"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": metadata, "spec": spec},
    ]


def _sizes(spec: Mapping[str, Any], place: str) -> tuple[int, int, int]:
    size = spec.get("size", 1)
    least, most = spec.get("minSize", 0), spec.get("maxSize") or size
    for key, value in (("size", size), ("minSize", least), ("maxSize", most)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ResourceError(f"{place}.{key}: a whole number is needed, not {value!r}")
    if not (1 <= size <= most and least <= size):
        raise ResourceError(f"{place}: 1 <= size, and minSize {least} <= size {size} <= maxSize {most} are needed")
    return least, size, most


def _room(container: Mapping[str, Any], place: str, choices: Choices) -> tuple[int, str]:
    """The cores and the memory of a pod, from the container's limits."""
    limits = (container.get("resources") or {}).get("limits") or {}
    cores = choices.cores or (int(str(limits["cpu"])) if str(limits.get("cpu", "")).isdecimal() else 0)
    if cores < 1:
        raise ResourceError(f"{place}.resources.limits.cpu: a whole number of cores is needed, or --cores")
    memory = str(limits.get("memory", "1Gi"))
    if re.fullmatch(r"[0-9]+[KMGT]i", memory) is None:
        raise ResourceError(f'{place}.resources.limits.memory: "{memory}": a size such as 8Gi is needed')
    return cores, f"{memory}B"


def _mapping(found: object, where: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise ResourceError(f"{where}: an object is needed")
    return found


_SITE = f"""\
[Site]
cluster = {{name}}
cluster_uuid = {{uuid}}
state_dir = /tmp/flux-node-manager
mode = act

[Flux]
uri = {SOCKET}

[Cloud]
provider = minicluster
name = {{name}}
namespace = {{namespace}}

[Limits]
nodes_max = {{nodes}}
price_per_hour_max = 1000000

[Policy]
idle_timeout = 1m

[Web]
listen = off

[Node pod]
slots = {{name}}-[1-{{nodes}}]
cores = {{cores}}
memory = {{memory}}
price_per_hour = 0
billing = per-second
"""
