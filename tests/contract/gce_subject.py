"""Google Compute Engine as a subject of the contract: the adapter over HTTP, a small state behind it.

What is asked and answered is of the forms that libcloud recorded; how it comes about (a name that is taken, an
operation that ends, an instance that stops before it goes) is as the API's pages tell it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nodemanager.cloud.gce import LABEL_CLUSTER, GceCloud, Placement
from nodemanager.cloud.gce_driver import GceDriver
from nodemanager.model import Identity, ProviderId, TypeName
from tests.cloud.recorded import LOST, Call, Reply, Service, a_service, of_libcloud, said
from tests.contract.cloud_subjects import (
    CLUSTER,
    CLUSTER_UUID,
    CloudSubject,
    SystemClock,
    a_launch,
    a_script,
    a_type,
    until,
)

_PROJECT = "/compute/v1/projects/lab"
_ZONE = "europe-west3-a"
_PATH = re.compile(
    rf"{_PROJECT}/(zones/{_ZONE}/)?(?P<what>instances|operations|aggregated/instances)(/(?P<name>.+))?"
)
_INSTANCE = of_libcloud("gce/zones_us-central1-a_instances_node-name")
_OPERATION = of_libcloud("gce/zones_us-central1-a_instances_post")
_BOOTS_AFTER = 2  # lists
_GOES_AFTER = 2


@dataclass
class _Kept:
    body: dict[str, Any]
    listed: int = 0
    leaves_at: int | None = None


class GceService(Service):
    """One zone of one project."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: dict[str, _Kept] = {}
        self.ends: list[dict[str, Any]] = []  # how each operation ends
        self.losing = self.throttling = False
        self.refusal: tuple[int, str] | None = None
        self.room = True

    def answer(self, call: Call) -> Reply:
        asked = _PATH.fullmatch(call.path)
        if self.throttling:
            return self._refused(429, "rateLimitExceeded", Retry_After="7")
        if asked is None:
            return self._refused(404, "notFound")
        match call.method, asked["what"]:
            case "GET", "aggregated/instances":
                return self._listed(call.query["filter"])
            case "GET", "operations":
                return said({**_OPERATION, "name": asked["name"], **self.ends[int(asked["name"])]})
            case "POST", "instances":
                return self._inserted(call.body)
        kept = self.kept.get(asked["name"])
        if kept is None:
            return self._refused(404, "notFound")
        if call.method == "GET":
            return said(kept.body)
        if kept.leaves_at is None:
            kept.leaves_at = kept.listed + _GOES_AFTER
        kept.body["status"] = "STOPPING"
        return self._begun({"status": "DONE"})

    def _inserted(self, body: dict[str, Any]) -> Reply:
        if body["name"] in self.kept:
            return self._refused(409, "alreadyExists")
        if self.refusal is not None:
            return self._refused(*self.refusal)
        if not self.room:
            exhausted = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no room"}
            return self._begun({"status": "DONE", "error": {"errors": [exhausted]}})
        number = len(self.ends)
        made = {"creationTimestamp": f"2026-11-21T10:{number // 60:02}:{number % 60:02}.000-08:00"}
        self.kept[body["name"]] = _Kept({**_INSTANCE, **body, **made, "zone": _ZONE, "status": "PROVISIONING"})
        begun = self._begun({"status": "DONE"})
        return LOST if self.losing else begun

    def _begun(self, end: dict[str, Any]) -> Reply:
        self.ends.append({"kind": "compute#operation", **end})
        return said({**_OPERATION, "name": str(len(self.ends) - 1)})

    def _listed(self, query: str) -> Reply:
        asked = re.fullmatch(r'labels\.(?P<label>\S+) = "(?P<value>.*)"', query)
        assert asked is not None, query
        for kept in self.kept.values():
            kept.listed += 1
            if kept.body["status"] == "PROVISIONING" and kept.listed > _BOOTS_AFTER:
                kept.body["status"] = "RUNNING"
        self.kept = {
            name: kept for name, kept in self.kept.items() if kept.leaves_at is None or kept.listed < kept.leaves_at
        }
        found = [it.body for it in self.kept.values() if it.body["labels"].get(asked["label"]) == asked["value"]]
        return said({"id": "list", "items": {f"zones/{_ZONE}": {"instances": found}}})

    def _refused(self, status: int, reason: str, **headers: str) -> Reply:
        return said({"error": {"code": status, "message": "no", "errors": [{"reason": reason}]}}, status, **headers)


class _AToken:
    access_token = "token"

    def forget(self) -> None:
        pass


def _a_cloud(service: GceService, cluster: str, cluster_uuid: str) -> GceCloud:
    driver = GceDriver("lab", _AToken(), endpoint=service.url)
    placements: Mapping[TypeName, Placement] = defaultdict(lambda: Placement("global/networks/default", (_ZONE,)))
    return GceCloud(driver, placements, cluster, cluster_uuid, a_script, SystemClock(), sleep=lambda _: None)


class GceSubject(CloudSubject):
    port: GceCloud
    remembers_the_dead = False

    def __init__(self) -> None:
        self._open = ExitStack()
        self.service = self._open.enter_context(a_service(GceService))
        self.port = self.another_port()

    def another_port(self) -> GceCloud:
        return _a_cloud(self.service, CLUSTER, CLUSTER_UUID)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until(reached, what)

    def close(self) -> None:
        self._open.close()

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            body = {"name": "stranger", "labels": {LABEL_CLUSTER: CLUSTER}, "metadata": {}}
            self.port.driver.insert(_ZONE, body)
            return ProviderId(f"{_ZONE}/stranger")
        theirs = _a_cloud(self.service, identity.cluster, identity.cluster_uuid)
        launch = a_launch("theirs", identity.slot, identity.type_name)
        return theirs.create(launch, a_type(identity.type_name)).provider_id

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        self.service.losing = True
        yield
        self.service.losing = False

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        self.service.room = False
        yield
        self.service.room = True

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        self.service.refusal = (403, "quotaExceeded")
        yield
        self.service.refusal = None

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.service.throttling = True
        yield
        self.service.throttling = False
