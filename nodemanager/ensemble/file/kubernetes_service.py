"""The Kubernetes objects of the gRPC service that changes the sizes of all members of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PORT = 50051
SECRETS = "/etc/flux-node-manager-service"  # where the Secret is mounted; every user of the container may read it
PRIVATE = "/tmp/flux-node-manager/service"  # noqa: S108 - of the container's own file system
_RBAC = "rbac.authorization.k8s.io"
_USER = 1000

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Secrets:
    """The files of the service, as text, and the token of each member."""

    token: str
    certificate: str
    key: str
    token_of: Callable[[str], str]

    def __repr__(self) -> str:
        return "Secrets()"


@dataclass(frozen=True, slots=True)
class Service:
    """What the objects depend on. ``members``: the names of the MiniClusters. ``pods_max`` None is no limit."""

    ensemble: str
    namespace: str
    image: str
    members: Sequence[str]
    pods_max: int | None = None
    port: int = PORT
    pull_policy: str = ""

    @property
    def name(self) -> str:
        return f"{self.ensemble}-grpc"

    @property
    def address(self) -> str:
        return f"{self.name}.{self.namespace}.svc:{self.port}"


def service_objects(service: Service, secrets: Secrets) -> list[Object]:
    """The account that may change the members' sizes, and the service. Only the members' pods reach it."""
    may = {"apiGroups": ["flux-framework.org"], "resources": ["miniclusters"], "verbs": ["get", "patch"]}
    files = {"token": secrets.token, "tls.crt": secrets.certificate, "tls.key": secrets.key}
    metadata = {"name": service.name, "namespace": service.namespace}
    pods = {"app.kubernetes.io/name": service.name}
    port = {"name": "grpc", "port": service.port, "targetPort": "grpc"}
    return [
        *account(service.name, service.namespace, [{**may, "resourceNames": list(service.members)}]),
        secret(service.name, service.namespace, files),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": pods},
                "template": {"metadata": {"labels": pods}, "spec": _pod(service)},
            },
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": pods, "ports": [port]}},
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata,
            "spec": {
                "podSelector": {"matchLabels": pods},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [_pods_of(service.members)], "ports": [{"protocol": "TCP", "port": "grpc"}]}],
            },
        },
    ]


def _pods_of(members: Sequence[str]) -> Object:
    """The pods of MiniClusters. Each is an Indexed Job of the same name."""
    named = {"key": "job-name", "operator": "In", "values": list(members)}
    return {"podSelector": {"matchExpressions": [named]}}


def account(name: str, namespace: str, rules: Sequence[Object]) -> list[Object]:
    """A service account with a role of its own."""
    metadata = {"name": name, "namespace": namespace}
    role = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", **metadata}]
    rbac = {"apiVersion": f"{_RBAC}/v1"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**rbac, "kind": "Role", "metadata": metadata, "rules": list(rules)},
        {**rbac, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects},
    ]


def secret(name: str, namespace: str, files: dict[str, str]) -> Object:
    """A Secret with these files."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": files}


def copy_secrets(*files: str) -> str:
    """The command that copies files of a mounted Secret to where only the container's user may read them."""
    sources = " ".join(f"{SECRETS}/{file}" for file in files)
    return f"install -d -m 0700 {PRIVATE} && install -m 0600 {sources} {PRIVATE}/"


def _pod(service: Service) -> Object:
    serve = (
        f"exec flux-node-manager ensemble serve --listen 0.0.0.0:{service.port} --material {PRIVATE} "
        f"--namespace {service.namespace} --miniclusters {','.join(service.members)}"
    )
    if service.pods_max is not None:
        serve += f" --pods-max {service.pods_max}"
    probe: Object = {"tcpSocket": {"port": "grpc"}}
    container: Object = {
        "name": "grpc",
        "image": service.image,
        **({"imagePullPolicy": service.pull_policy} if service.pull_policy else {}),
        "command": ["sh", "-c", f"{copy_secrets('token', 'tls.crt', 'tls.key')} && {serve}"],
        "ports": [{"name": "grpc", "containerPort": service.port}],
        "readinessProbe": probe,
        "livenessProbe": {**probe, "periodSeconds": 30},
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "secret", "mountPath": SECRETS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the container's own file system
        ],
    }
    user: Object = {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER}
    return {
        "serviceAccountName": service.name,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "secret", "secret": {"secretName": service.name}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        ],
    }
