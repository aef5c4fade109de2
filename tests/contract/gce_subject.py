"""Google Compute Engine as a subject of the contract: the adapter over HTTP to a small simulated state.

Requests and replies have the forms that libcloud recorded. The behaviour follows the API's documentation: names are
unique, operations end, and an instance stops before it disappears.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.instances import LABEL_CLUSTER, GcePlacement
from nodemanager.cloud.gce.port import GceCloud
from nodemanager.core.nodes import ProviderId
from nodemanager.core.slots import TypeName
from tests.cloud.recorded import LOST, Call, Reply, of_libcloud, said
from tests.contract.cloud_subjects import CLUSTER, SystemClock, a_script
from tests.contract.recorded_subject import BOOTS_AFTER, FaultyService, Kept, RecordedSubject

_PROJECT = "/compute/v1/projects/lab"
_ZONE = "europe-west3-a"
_REGION = "europe-west3"
_POLICIES = re.compile(rf"{_PROJECT}/(aggregated|regions/{_REGION})/resourcePolicies(/(?P<name>.+))?")
_PATH = re.compile(
    rf"{_PROJECT}/(zones/{_ZONE}/)?(?P<what>instances|operations|aggregated/instances)(/(?P<name>.+))?"
)
_INSTANCE = of_libcloud("gce/zones_us-central1-a_instances_node-name")
_OPERATION = of_libcloud("gce/zones_us-central1-a_instances_post")
_EXHAUSTED = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no room"}


class GceService(FaultyService):
    """One zone of one project."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: dict[str, Kept] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.ends: list[dict[str, Any]] = []  # the results of the operations
        self.room: int | None = None  # for so many more instances; None: for any number
        self.bulk: dict[str, Reply] = {}  # the operations of bulk inserts, by the id of the request

    def answer(self, call: Call) -> Reply:
        asked = _PATH.fullmatch(call.path)
        if self.throttling:
            return self._refused(429, "rateLimitExceeded", Retry_After="7")
        if policy := _POLICIES.fullmatch(call.path):
            return self._about_policy(call, policy["name"])
        if asked is None:
            return self._refused(404, "notFound")
        match call.method, asked["what"]:
            case "GET", "aggregated/instances":
                return self._listed(call.query["filter"])
            case "GET", "operations":
                return said({**_OPERATION, "name": asked["name"], **self.ends[int(asked["name"])]})
            case "POST", "instances" if asked["name"] == "bulkInsert":
                return self._bulk_inserted(call)
            case "POST", "instances":
                return self._inserted(call.body)
        kept = self.kept.get(asked["name"])
        if kept is None:
            return self._refused(404, "notFound")
        if call.method == "GET":
            return said(kept.body)
        kept.leaves()
        kept.body["status"] = "STOPPING"
        return self._begun({"status": "DONE"})

    def _about_policy(self, call: Call, name: str | None) -> Reply:
        if call.method == "POST":
            if call.body["name"] in self.policies:
                return self._refused(409, "alreadyExists")
            assert call.body["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
            region = f"https://www.googleapis.com{_PROJECT}/regions/{_REGION}"
            self.policies[call.body["name"]] = {**call.body, "region": region, "status": "CREATING"}
            return self._begun({"status": "DONE"})
        if name is None:
            found: dict[str, Any] = {"regions/europe-west1": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
            found[f"regions/{_REGION}"] = {"resourcePolicies": list(self.policies.values())}
            return said({"id": "list", "items": found})
        if name not in self.policies:
            return self._refused(404, "notFound")
        if call.method == "GET":
            answer = said(self.policies[name])
            self.policies[name]["status"] = "READY"
            return answer
        if any(f"resourcePolicies/{name}" in path for path in self._paths_in_use()):
            return self._refused(400, "resourceInUseByAnotherResource")
        del self.policies[name]
        return self._begun({"status": "DONE"})

    def _paths_in_use(self) -> list[str]:
        return [path for kept in self.kept.values() for path in kept.body.get("resourcePolicies", [])]

    def _bulk_inserted(self, call: Call) -> Reply:
        """Create as many of the named instances as there is room for. The same id again starts nothing."""
        uuid.UUID(call.query["requestId"])
        if call.query["requestId"] in self.bulk:
            return self.bulk[call.query["requestId"]]
        if self.refusal is not None:
            return self._refused(*self.refusal)
        properties, names = call.body["instanceProperties"], call.body["perInstanceProperties"]
        assert int(call.body["count"]) == len(names)
        assert "/" not in properties["machineType"]
        region = f"projects/lab/regions/{_REGION}/resourcePolicies"
        policies = [f"{region}/{name}" for name in properties.get("resourcePolicies", [])]
        made = 0
        for name in names:
            body = {**properties, "name": name, **({"resourcePolicies": policies} if policies else {})}
            error = self._made_or_error(body)
            if isinstance(error, Reply):
                return error
            made += not error
        errors = [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": "no instance was created"}, _EXHAUSTED]
        begun = self._begun(
            {
                "status": "DONE",
                "operationType": "bulkInsert",
                **({"error": {"errors": errors}} if made < int(call.body["minCount"]) else {}),
            }
        )
        self.bulk[call.query["requestId"]] = begun
        return LOST if self.losing else begun

    def _inserted(self, body: dict[str, Any]) -> Reply:
        if body["name"] in self.kept:
            return self._refused(409, "alreadyExists")
        if self.refusal is not None:
            return self._refused(*self.refusal)
        error = self._made_or_error(body)
        if isinstance(error, Reply):
            return error
        begun = self._begun({"status": "DONE", **({"error": {"errors": [error]}} if error else {})})
        return LOST if self.losing else begun

    def _made_or_error(self, body: dict[str, Any]) -> Reply | dict[str, str]:
        """Create an instance. Return {}, the error with which its operation ends, or the refusal of the request."""
        for path in body.get("resourcePolicies", []):
            if self.policies.get(path.rpartition("/")[2], {}).get("status") != "READY":
                return self._refused(404, "notFound", f"The resource '{path}' was not found")
            assert path.startswith(f"projects/lab/regions/{_REGION}/")
            assert body["scheduling"]["onHostMaintenance"] == "TERMINATE"
        if self.room is not None:
            if not self.room:
                return _EXHAUSTED
            self.room -= 1
        number = len(self.kept)
        made = {"creationTimestamp": f"2026-11-21T10:{number // 60:02}:{number % 60:02}.000-08:00"}
        self.kept[body["name"]] = Kept({**_INSTANCE, **body, **made, "zone": _ZONE, "status": "PROVISIONING"})
        return {}

    def _begun(self, end: dict[str, Any]) -> Reply:
        self.ends.append({"kind": "compute#operation", **end})
        return said({**_OPERATION, "name": str(len(self.ends) - 1)})

    def _listed(self, query: str) -> Reply:
        asked = [re.fullmatch(r'\(?labels\.(\S+) = "([^"]*)"\)?', term) for term in query.split(" OR ")]
        labels = {it[1]: it[2] for it in asked if it is not None}
        assert len(labels) == len(asked), query
        for kept in self.kept.values():
            kept.listed += 1
            if kept.body["status"] == "PROVISIONING" and kept.listed > BOOTS_AFTER:
                kept.body["status"] = "RUNNING"
        self.kept = {
            name: kept for name, kept in self.kept.items() if kept.leaves_at is None or kept.listed < kept.leaves_at
        }
        found = [it.body for it in self.kept.values() if labels.items() & it.body["labels"].items()]
        return said({"id": "list", "items": {f"zones/{_ZONE}": {"instances": found}}})

    def _refused(self, status: int, reason: str, message: str = "no", **headers: str) -> Reply:
        error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
        return said({"error": error}, status, **headers)


class _AToken:
    access_token = "token"

    def forget(self) -> None:
        pass


class GceSubject(RecordedSubject[GceService]):
    port: GceCloud
    over_quota = (403, "quotaExceeded")
    has_groups = True

    def __init__(self) -> None:
        super().__init__(GceService)

    def a_port_of(self, cluster: str, cluster_uuid: str) -> GceCloud:
        driver = GceDriver("lab", _AToken(), endpoint=self.service.url)
        placements: Mapping[TypeName, GcePlacement] = defaultdict(
            lambda: GcePlacement("global/networks/default", (_ZONE,))
        )
        settings = PortSettings(
            cluster,
            cluster_uuid,
            a_script,
            SystemClock(),
            sleep=lambda _: None,
            batch_script=lambda batch: f"#!/bin/sh\n# {batch}\n",
        )
        return GceCloud(driver, settings, placements)

    def groups(self) -> Collection[str]:
        return self.service.policies

    def add_untagged(self) -> ProviderId:
        body = {"name": "stranger", "labels": {LABEL_CLUSTER: CLUSTER}, "metadata": {}}
        self.port.driver.insert(_ZONE, body)
        return ProviderId(f"{_ZONE}/stranger")

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        self.service.room = count
        yield
        self.service.room = None

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        with self.room_for(0):
            yield
