"""Turn an ``Ensemble`` resource of ensemble-operator into the Kubernetes objects that run it without that operator.

Each member becomes a MiniCluster of the Flux Operator. Its lead broker runs the ensemble, and beside it a node
manager: ``grow`` and ``shrink`` ask that manager, which drains pods before they leave. One gRPC service changes the
sizes of all members for their managers, and shares ``spec.maxSize`` pods among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodemanager.ensemble.file.kubernetes_service import (
    PORT,
    PRIVATE,
    SECRETS,
    Secrets,
    Service,
    account,
    copy_secrets,
    secret,
    service_objects,
)
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


@dataclass(frozen=True, slots=True)
class _Member:
    """One member as the resource gives it. ``spec``: of its MiniCluster; ``at``: the container that runs Flux."""

    name: str
    text: str
    spec: Mapping[str, Any]
    container: Mapping[str, Any]
    at: int
    sizes: tuple[int, int, int]
    where: str

    @property
    def grows(self) -> bool:
        return self.sizes[2] > 1


def objects_of(
    resource: object, choices: Choices, uuid_of: Callable[[str], str], secrets_of: Callable[[str], Secrets]
) -> list[Object]:
    """List the objects in the order in which they are applied.

    ``uuid_of``: a lasting UUID for the name of a MiniCluster. ``secrets_of``: the lasting secrets of an ensemble's
    service; not called if no member can grow. Raises :class:`ResourceError`.
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
    found_members = [
        _read_member(
            _mapping(member, f"spec.members[{index}]"), f"spec.members[{index}]", f"{name}-{index}", choices
        )
        for index, member in enumerate(members)
    ]
    growing = [member for member in found_members if member.grows]
    if not growing:
        return [it for member in found_members for it in _objects(member, name, choices, None, uuid_of)]
    service = _service(_mapping(found["spec"], "spec"), name, growing, choices)
    _check_total(service.pods_max, found_members)
    secrets = secrets_of(name)
    objects = account(f"{name}-node-manager", choices.namespace, _READS) + service_objects(service, secrets)
    for member in growing:
        files = {"token": secrets.token_of(member.name), "tls.crt": secrets.certificate}
        objects.append(secret(member.name, choices.namespace, files))
    return objects + [it for member in found_members for it in _objects(member, name, choices, service, uuid_of)]


# What a node manager reads. It changes nothing itself.
_READS = (
    {"apiGroups": ["flux-framework.org"], "resources": ["miniclusters"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
)


def _service(spec: Mapping[str, Any], name: str, growing: Sequence[_Member], choices: Choices) -> Service:
    sidecar = _mapping(spec.get("sidecar") or {}, "spec.sidecar")
    port = str(sidecar.get("port", PORT))
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ResourceError(f'spec.sidecar.port: "{port}": a port is needed')
    pods_max = spec.get("maxSize")
    if pods_max is not None and (not isinstance(pods_max, int) or isinstance(pods_max, bool)):
        raise ResourceError(f"spec.maxSize: a whole number of pods is needed, not {pods_max!r}")
    return Service(
        ensemble=name,
        namespace=choices.namespace,
        image=str(growing[0].container["image"]),
        members=[member.name for member in growing],
        pods_max=pods_max,
        port=int(port),
        pull_policy=str(sidecar.get("imagePullPolicy") or ""),
    )


def _check_total(pods_max: int | None, members: Sequence[_Member]) -> None:
    first = sum(member.sizes[1] for member in members if member.grows)
    if pods_max is not None and pods_max < first:
        raise ResourceError(f"spec.maxSize: {pods_max} is less than the {first} pods with which the members begin")


def _read_member(member: Mapping[str, Any], where: str, name: str, choices: Choices) -> _Member:
    text = member.get("ensemble")
    if not isinstance(text, str) or not text.strip():
        raise ResourceError(f"{where}.ensemble: the text of an ensemble.yaml is needed")
    try:
        read_ensemble(text)
    except EnsembleError as error:
        raise ResourceError(f"{where}.ensemble: {error}") from error
    place = f"{where}.minicluster.spec"
    spec = _mapping(_mapping(member.get("minicluster"), f"{where}.minicluster").get("spec"), place)
    sizes = _sizes(spec, place)
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        raise ResourceError(f"{place}.containers: a container is needed")
    at = next((at for at, it in enumerate(containers) if isinstance(it, Mapping) and it.get("runFlux")), 0)
    container = dict(_mapping(containers[at], f"{place}.containers[{at}]"))
    container["image"] = choices.image or container.get("image") or ""
    if not container["image"]:
        raise ResourceError(f"{place}.containers[{at}].image: an image is needed, or --image")
    return _Member(name, text, spec, container, at, sizes, f"{place}.containers[{at}]")


def _objects(
    member: _Member, ensemble: str, choices: Choices, service: Service | None, uuid_of: Callable[[str], str]
) -> list[Object]:
    """The files of a member, and its MiniCluster."""
    least, size, most = member.sizes
    files = {"ensemble.yaml": member.text}
    commands = dict(member.container.get("commands") or {})
    volumes = dict(member.container.get("volumes") or {})
    spec = {**member.spec, "size": size, "maxSize": most}
    if least:
        spec["minSize"] = least
    if service is not None and member.grows:
        cores, memory = _room(member.container, member.where, choices)
        files["site.ini"] = _SITE.format(
            name=member.name,
            uuid=uuid_of(member.name),
            namespace=choices.namespace,
            service=service.address,
            nodes=most - 1,
            cores=cores,
            memory=memory,
        )
        manager = f"(while :; do flux-node-manager run --config {FOLDER}/site.ini; sleep 5; done) &"
        before = [commands.get("brokerPre"), copy_secrets("token", "tls.crt"), manager]
        commands["brokerPre"] = "\n".join(filter(None, before))
        volumes["service"] = {"secretName": member.name, "path": SECRETS}
        pod = {"serviceAccountName": f"{ensemble}-node-manager", "automountServiceAccountToken": True}
        spec["pod"] = {**(member.spec.get("pod") or {}), **pod}
    volumes["ensemble"] = {"configMapName": member.name, "path": FOLDER, "items": {file: file for file in files}}
    container = {
        **member.container,
        "runFlux": True,
        "launcher": True,
        "command": f"flux-node-manager ensemble run {FOLDER}/ensemble.yaml --name {ensemble}",
        "volumes": volumes,
        "commands": commands,
    }
    containers = member.spec["containers"]
    spec["containers"] = [*containers[: member.at], container, *containers[member.at + 1 :]]
    metadata = {"name": member.name, "namespace": choices.namespace}
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
service = {{service}}
service_material = {PRIVATE}

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
