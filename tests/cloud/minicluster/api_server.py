"""A small Kubernetes API server on loopback, with the rules that a client can get wrong.

Objects have resource versions, and a stale one is a conflict (409). Custom resources take no strategic patch (415),
a JSON patch whose ``test`` fails is invalid (422), and so is a size that is no number. There are bearer tokens
(401) with roles (403), the scale subresource, pages, and watches with bookmarks that expire (410). kubectl and
lightkube speak with it too, which ``test_clients.py`` checks.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MINICLUSTERS = ("flux-framework.org", "v1alpha2", "miniclusters")
PODS = ("", "v1", "pods")
JOBS = ("batch", "v1", "jobs")
AUTOSCALERS = ("autoscaling", "v2", "horizontalpodautoscalers")
CONFIG_MAPS = ("", "v1", "configmaps")
KINDS = {
    MINICLUSTERS: "MiniCluster",
    PODS: "Pod",
    JOBS: "Job",
    AUTOSCALERS: "HorizontalPodAutoscaler",
    CONFIG_MAPS: "ConfigMap",
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
BOOKMARK_EVERY_S = 0.2
MANAGER_ROLE = frozenset(
    {
        *((MINICLUSTERS[0], "miniclusters", verb) for verb in ("get", "list", "watch", "patch")),
        *(("", "pods", verb) for verb in ("get", "list", "watch")),
        (AUTOSCALERS[0], AUTOSCALERS[2], "list"),
    }
)

Resource = tuple[str, str, str]  # group, version, plural
Key = tuple[Resource, str, str]  # and namespace, name
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>scale|status))?"
)


class Refused(Exception):
    """An answer that is no success, as a Status."""

    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.headers = code, reason, message, headers or {}


class LoseReply(Exception):
    """The call was carried out, and its answer is lost."""


@dataclass
class Faults:
    """What goes wrong until it is set back."""

    away: bool = False  # every connection is closed at once
    lose_replies: bool = False  # of changes, which are made
    throttle: bool = False


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    user: str
    content_type: str = ""
    body: Any = None
    at: float = field(default_factory=time.time)


@dataclass
class Store:
    """The objects, and the log of their changes, by which watches are served."""

    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    log: list[tuple[int, str, Key, dict[str, Any]]] = field(default_factory=list)
    compacted: int = 0  # changes up to this version are no longer in the log
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))

    def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        with self.changed:
            found = self.objects.get((resource, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{resource[2]}.{resource[0]} "{name}" not found'.replace(". ", " "))
            return copy.deepcopy(found)

    def list(self, resource: Resource, namespace: str) -> list[dict[str, Any]]:
        with self.changed:
            found = [(key, it) for key, it in self.objects.items() if key[:2] == (resource, namespace)]
            return [copy.deepcopy(it) for _, it in sorted(found, key=lambda entry: entry[0][2])]

    def put(self, resource: Resource, namespace: str, made: dict[str, Any]) -> dict[str, Any]:
        """Add or replace an object. A resource version that is not the current one is a conflict."""
        with self.changed:
            key = (resource, namespace, str(made["metadata"]["name"]))
            known = self.objects.get(key)
            stated = made["metadata"].get("resourceVersion")
            if known is not None and stated not in (None, known["metadata"]["resourceVersion"]):
                what = f'{resource[2]} "{key[2]}": the object has been modified; please apply your changes to it'
                raise Refused(409, "Conflict", f"Operation cannot be fulfilled on {what}")
            if known is not None and _without_version(known) == _without_version(made):
                return copy.deepcopy(known)
            group, version, _ = resource
            self.version += 1
            stored = copy.deepcopy(made)
            stored |= {"apiVersion": f"{group}/{version}".lstrip("/"), "kind": KINDS[resource]}
            stored["metadata"] |= {"namespace": namespace, "resourceVersion": str(self.version)}
            stored["metadata"].setdefault("uid", f"uid-{self.version}")
            stored["metadata"].setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            self._note("MODIFIED" if known is not None else "ADDED", key, stored)
            self.objects[key] = stored
            return copy.deepcopy(stored)

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        with self.changed:
            gone = self.objects.pop((resource, namespace, name), None)
            if gone is not None:
                self.version += 1
                gone["metadata"]["resourceVersion"] = str(self.version)
                self._note("DELETED", (resource, namespace, name), gone)

    def change(self, resource: Resource, namespace: str, name: str, edit: Callable[[dict[str, Any]], None]) -> None:
        """Change an object as a controller does: at once, whatever its version is."""
        with self.changed:
            found = self.get(resource, namespace, name)
            edit(found)
            self.put(resource, namespace, found)

    def compact(self) -> None:
        """Forget all changes: every watch from an earlier version expires."""
        with self.changed:
            self.log.clear()
            self.compacted = self.version
            self.changed.notify_all()

    def _note(self, kind: str, key: Key, stored: dict[str, Any]) -> None:
        self.log.append((self.version, kind, key, copy.deepcopy(stored)))
        self.changed.notify_all()


def _without_version(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = {**found, "metadata": {k: v for k, v in found["metadata"].items() if k != "resourceVersion"}}
    return {key: value for key, value in kept.items() if key not in ("apiVersion", "kind")}


class ApiServer:
    """The server. ``url`` is where it listens; ``tokens`` maps each valid token to its user and role."""

    def __init__(self) -> None:
        self.store = Store()
        self.faults = Faults()
        self.calls: list[Call] = []
        # A right is a group, a resource and a verb, and the name of an object if it is for that one only.
        self.tokens: dict[str, tuple[str, frozenset[tuple[str, ...]] | None]] = {"admin": ("admin", None)}
        self._stopped = threading.Event()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        with self.store.changed:
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def patches(self) -> list[Call]:
        """The changes that clients have asked for."""
        return [call for call in self.calls if call.method == "PATCH"]

    # --- answering ---

    def admit(self, token: str) -> ApiServer:
        if token not in self.tokens:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if self.faults.throttle:
            raise Refused(429, "TooManyRequests", "too many requests", {"Retry-After": "7"})
        return self

    def answer(self, call: Call, accept: str) -> tuple[int, dict[str, Any]] | Iterator[dict[str, Any]]:
        if (found := _PATH.fullmatch(call.path)) is None:
            return 200, _discovery(call.path)
        resource = (found["group"] or "", found["version"] or found["core"], found["plural"])
        if resource not in KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        namespace, name, sub = found["namespace"], found["name"], found["sub"]
        self._authorise(call, resource, namespace, name, sub)
        match call.method:
            case "GET" if name is None and call.query.get("watch") in ("1", "true"):
                return self._watch(resource, namespace, call.query, accept)
            case "GET" if name is None:
                return 200, self._list(resource, namespace, call.query)
            case "GET":
                stored = self.store.get(resource, namespace, name)
                return 200, _scale_of(stored) if sub == "scale" else stored
            case "PATCH":
                return 200, self._patch(call, resource, namespace, name, sub)
            case "PUT":
                return 200, self._replace(call, resource, namespace, name, sub)
            case "POST":
                _validate(resource, call.body)
                return 201, self.store.put(resource, namespace, call.body)
            case "DELETE":
                self.store.get(resource, namespace, name)
                self.store.delete(resource, namespace, name)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        raise Refused(405, "MethodNotAllowed", call.method)

    def _authorise(self, call: Call, resource: Resource, namespace: str, name: str | None, sub: str | None) -> None:
        _, role = next((it for it in self.tokens.values() if it[0] == call.user), ("", frozenset()))
        watching = call.query.get("watch") in ("1", "true")
        reading = "get" if name is not None else "watch" if watching else "list"
        verb = {"GET": reading, "PATCH": "patch", "PUT": "update", "POST": "create", "DELETE": "delete"}[
            call.method
        ]
        what = resource[2] + (f"/{sub}" if sub else "")
        right = (resource[0], what, verb)
        if role is not None and right not in role and (*right, name) not in role:
            raise Refused(
                403,
                "Forbidden",
                f'{what}.{resource[0]} "{name or ""}" is forbidden: User "{call.user}" cannot {verb} resource '
                f'"{what}" in API group "{resource[0]}" in the namespace "{namespace}"',
            )

    def _list(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> dict[str, Any]:
        items = [it for it in self.store.list(resource, namespace) if _selected(it, query)]
        start, limit = int(query.get("continue", "0")), int(query.get("limit", "0") or 0)
        page = items[start : start + limit] if limit else items[start:]
        metadata: dict[str, Any] = {"resourceVersion": str(self.store.version)}
        if limit and start + limit < len(items):
            metadata["continue"] = str(start + limit)
        group, version, _ = resource
        kind = f"{KINDS[resource]}List"
        return {"kind": kind, "apiVersion": f"{group}/{version}".lstrip("/"), "metadata": metadata, "items": page}

    def _patch(self, call: Call, resource: Resource, namespace: str, name: str, sub: str | None) -> dict[str, Any]:
        with self.store.changed:
            stored = self.store.get(resource, namespace, name)
            base = _scale_of(stored) if sub == "scale" else stored
            match call.content_type:
                case "application/merge-patch+json":
                    changed = _merge(base, call.body)
                case "application/json-patch+json":
                    changed = _apply_json_patch(base, call.body)
                case "application/strategic-merge-patch+json" if resource[0] in ("", "batch"):
                    changed = _merge(base, call.body)
                case other:
                    supported = "application/json-patch+json, application/merge-patch+json"
                    what = f"the body of the request was in an unknown format - accepted media types: {supported}"
                    raise Refused(415, "UnsupportedMediaType", f"{what}, not {other}")
            return self._keep(resource, namespace, stored, changed, sub)

    def _replace(
        self, call: Call, resource: Resource, namespace: str, name: str, sub: str | None
    ) -> dict[str, Any]:
        with self.store.changed:
            return self._keep(resource, namespace, self.store.get(resource, namespace, name), call.body, sub)

    def _keep(
        self, resource: Resource, namespace: str, stored: dict[str, Any], changed: dict[str, Any], sub: str | None
    ) -> dict[str, Any]:
        if sub == "scale":
            size = changed["spec"]["replicas"]
            kept = _merge(stored, {"spec": {"size": size}, "metadata": _only_version(changed["metadata"])})
        else:
            kept = {**changed, "status": stored["status"]} if "status" in stored else changed
        _validate(resource, kept)
        done = self.store.put(resource, namespace, kept)
        if self.faults.lose_replies:
            raise LoseReply
        return _scale_of(done) if sub == "scale" else done

    def _watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str], accept: str
    ) -> Iterator[dict[str, Any]]:
        since = int(query.get("resourceVersion") or 0)
        ends_s = time.monotonic() + float(query.get("timeoutSeconds", "60"))
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        metadata_only = "PartialObjectMetadata" in accept
        store = self.store
        while time.monotonic() < ends_s and not self._stopped.is_set() and not self.faults.away:
            with store.changed:
                if since and since < store.compacted:
                    message = f"too old resource version: {since} ({store.compacted})"
                    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": message}
                    yield {"type": "ERROR", "object": status}
                    return
                found = [it for it in store.log if it[0] > since and it[2][:2] == (resource, namespace)]
                if not found:
                    store.changed.wait(BOOKMARK_EVERY_S)
                    found = [it for it in store.log if it[0] > since and it[2][:2] == (resource, namespace)]
                current = store.version
            for version, kind, _, stored in found:
                since = version
                if _selected(stored, query):
                    yield {"type": kind, "object": _metadata_of(stored) if metadata_only else stored}
            if not found and bookmarks and current > since:
                since = current
                mark = {"kind": KINDS[resource], "metadata": {"resourceVersion": str(current)}}
                yield {"type": "BOOKMARK", "object": mark}


def _selected(found: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    labels = found["metadata"].get("labels") or {}
    for part in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = part.partition("=")
        if labels.get(key) != value:
            return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, value = part.partition("=")
        if key != "metadata.name" or found["metadata"]["name"] != value:
            return False
    return True


def _metadata_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"]}


def _only_version(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"resourceVersion": metadata["resourceVersion"]} if metadata.get("resourceVersion") else {}


def _scale_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "namespace", "resourceVersion", "uid", "creationTimestamp")
    status = stored.get("status") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: stored["metadata"][key] for key in names},
        "spec": {"replicas": stored["spec"].get("size", 1)},
        "status": {"replicas": status.get("size", 0), "selector": status.get("selector", "")},
    }


def _validate(resource: Resource, found: Mapping[str, Any]) -> None:
    if resource != MINICLUSTERS:
        return
    for name in ("size", "minSize", "maxSize"):
        value = found.get("spec", {}).get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            what = f'spec.{name}: Invalid value: "{value}": must be of type integer'
            raise Refused(422, "Invalid", f"MiniCluster.flux-framework.org is invalid: {what}")


def _merge(into: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    merged = dict(into) if isinstance(into, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _apply_json_patch(into: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """RFC 6902, without moves and copies."""
    changed = copy.deepcopy(into)
    for step in steps:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        holder: Any = changed
        for part in parents:
            holder = holder.get(part) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or (step["op"] in ("test", "remove") and last not in holder):
            raise Refused(422, "Invalid", f"the server rejected our request: {step['path']} does not exist")
        match step["op"]:
            case "test" if holder[last] != step["value"]:
                raise Refused(422, "Invalid", f"the server rejected our request: testing {step['path']} failed")
            case "add" | "replace":
                holder[last] = step["value"]
            case "remove":
                del holder[last]
    return changed


def _discovery(path: str) -> dict[str, Any]:
    """What clients read to find the resources."""
    groups = sorted({(group, version) for group, version, _ in KINDS if group})
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        entries = [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in groups
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}
    group_version = path.removeprefix("/apis/").removeprefix("/api/")
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": VERBS,
        }
        for (group, version, plural), kind in KINDS.items()
        if f"{group}/{version}".lstrip("/") == group_version
    ]
    if not resources:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    if group_version == "/".join(MINICLUSTERS[:2]):
        scale = {"name": "miniclusters/scale", "namespaced": True, "kind": "Scale", "verbs": ["get", "patch"]}
        resources.append({**scale, "group": "autoscaling", "version": "v1", "singularName": ""})
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        if self.api.faults.away:
            self.close_connection = True
            return
        super().handle_one_request()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        api, parts = self.api, urlsplit(self.path)
        if api.faults.away:
            self.close_connection = True
            return
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        user = api.tokens.get(token, ("", None))[0]
        body = json.loads(text) if text else None
        call = Call(self.command, parts.path, query, user, (self.headers.get("Content-Type") or ""), body)
        api.calls.append(call)
        try:
            answer = api.admit(token).answer(call, self.headers.get("Accept") or "")
        except Refused as refused:
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": refused.message,
                "reason": refused.reason,
                "code": refused.code,
            }
            self._send(refused.code, status, refused.headers)
        except LoseReply:
            self.close_connection = True
        else:
            if isinstance(answer, tuple):
                self._send(*answer)
            else:
                self._stream(answer)

    do_GET = do_PATCH = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def _send(self, code: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
