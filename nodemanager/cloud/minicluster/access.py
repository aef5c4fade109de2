"""Where the API server is and who we are there: from a kubeconfig, or from the pod that the manager runs in.

A token in a file is read again for each request, because Kubernetes rotates it. A token of an exec plugin is kept
until it expires.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nodemanager.core.untrusted import read_json, read_yaml

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_TIMEOUT_S = 30.0
_RENEW_BEFORE_S = 60.0
_EXEC_KIND = "ExecCredential"


class AccessError(Exception):
    """There is no usable access. The message names the missing part, and where it is looked for."""


@dataclass(frozen=True)
class Access:
    """How to call one API server. ``namespace``: the default one; "" if none is given.

    ``token`` returns the current bearer token, "" without one. ``forget`` discards one that was refused.
    """

    server: str
    namespace: str = ""
    verify: str | bool = True  # the file of the authority's certificate
    client_certificate: tuple[str, str] | None = None  # the files of the certificate and its key
    proxy: str = ""
    token: Callable[[], str] = lambda: ""
    forget: Callable[[], None] = lambda: None
    # The folder of the files that a kubeconfig's data was written to; it lasts as long as this value.
    kept: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = IN_CLUSTER) -> Access:
    """The access of a pod's service account. Raises :class:`AccessError`."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise AccessError(
            "the manager does not run in a pod with a service account's token: give the key kubeconfig, or set "
            "automountServiceAccountToken: true in the pod"
        )
    token_file = folder / "token"
    namespace = folder / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "",
        verify=str(folder / "ca.crt"),
        token=lambda: _read_token(token_file),
    )


def from_kubeconfig(path: Path, now_at: Callable[[], float]) -> Access:
    """The access of a kubeconfig's current context. Raises :class:`AccessError`."""
    try:
        config = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: the kubeconfig cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise AccessError(f"{path}: this is no kubeconfig")
    context = _named(path, config, "contexts", "context", str(config.get("current-context") or ""))
    cluster = _named(path, config, "clusters", "cluster", str(context.get("cluster") or ""))
    user = _named(path, config, "users", "user", str(context.get("user") or "")) if context.get("user") else {}
    files = _Files(path)
    verify: str | bool = files.of(cluster, "certificate-authority") or True
    if cluster.get("insecure-skip-tls-verify"):
        verify = False
    certificate, key = files.of(user, "client-certificate"), files.of(user, "client-key")
    plugin = _ExecPlugin(path, user["exec"], now_at) if user.get("exec") else None
    if not cluster.get("server"):
        raise AccessError(f"{path}: the cluster of the current context has no server")
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        namespace=str(context.get("namespace") or ""),
        verify=verify,
        client_certificate=(certificate, key) if certificate and key else None,
        proxy=str(cluster.get("proxy-url") or ""),
        token=plugin.token if plugin is not None else _token_source(path, user),
        forget=plugin.forget if plugin is not None else lambda: None,
        kept=files.kept,
    )


def _named(path: Path, config: Mapping[str, Any], many: str, one: str, name: str) -> Mapping[str, Any]:
    for entry in config.get(many) or ():
        if entry.get("name") == name:
            return entry.get(one) or {}
    what = "the current-context" if many == "contexts" else f"the {one}"
    raise AccessError(f'{path}: {what} "{name}" is not listed under {many}')


def _token_source(path: Path, user: Mapping[str, Any]) -> Callable[[], str]:
    if user.get("tokenFile"):
        file = path.parent / str(user["tokenFile"])
        return lambda: _read_token(file)
    token = str(user.get("token") or "")
    return lambda: token


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"{file}: the token cannot be read: {error}") from error


class _Files:
    """Files that a kubeconfig names, or contains as data. Data is written to a private folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept: tempfile.TemporaryDirectory[str] | None = None

    def of(self, entry: Mapping[str, Any], key: str) -> str:
        """Return the file of a key; "" if the entry has none."""
        if entry.get(f"{key}-data"):
            self.kept = self.kept or tempfile.TemporaryDirectory(prefix="flux-node-manager-")
            file = Path(self.kept.name) / key
            try:
                file.write_bytes(base64.b64decode(str(entry[f"{key}-data"]), validate=True))
            except binascii.Error as error:
                raise AccessError(f"{self._path}: {key}-data is not base64: {error}") from error
            file.chmod(0o600)
            return str(file)
        return str(self._path.parent / str(entry[key])) if entry.get(key) else ""


class _ExecPlugin:
    """A program that prints a token (client.authentication.k8s.io, ``ExecCredential``)."""

    def __init__(self, path: Path, plugin: Mapping[str, Any], now_at: Callable[[], float]) -> None:
        self._path = path
        self._version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
        self._command = [str(plugin.get("command") or ""), *map(str, plugin.get("args") or ())]
        self._environment = {str(it.get("name")): str(it.get("value")) for it in plugin.get("env") or ()}
        self._now_at = now_at
        self._token = ""
        self._until_at = 0.0

    def token(self) -> str:
        if not self._token or self._now_at() >= self._until_at - _RENEW_BEFORE_S:
            status = self._run()
            self._token = str(status.get("token") or "")
            expires = status.get("expirationTimestamp")
            self._until_at = datetime.fromisoformat(str(expires)).timestamp() if expires else float("inf")
        return self._token

    def forget(self) -> None:
        self._token = ""

    def _run(self) -> Mapping[str, Any]:
        asked = {"apiVersion": self._version, "kind": _EXEC_KIND, "spec": {"interactive": False}}
        environment = {**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        try:
            ran = subprocess.run(  # noqa: S603 - the kubeconfig names the program
                self._command, env=environment, capture_output=True, text=True, timeout=EXEC_TIMEOUT_S, check=True
            )
            status = read_json(ran.stdout)["status"]
        except subprocess.CalledProcessError as error:
            raise AccessError(f"{self._path}: {self._command[0]} failed: {error.stderr.strip()}") from error
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            raise AccessError(f"{self._path}: {self._command[0]} gave no {_EXEC_KIND}: {error}") from error
        if not isinstance(status, dict) or not status.get("token"):
            raise AccessError(f"{self._path}: {self._command[0]} gave no token; certificates are not supported")
        return status
