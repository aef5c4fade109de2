"""Azure as a subject of the contract: the adapter over HTTP to a small simulated state.

Requests and replies have the forms that libcloud recorded. The behaviour follows Azure's documentation: an
interface is deleted with its machine, and is reserved for a while after a refused create.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from nodemanager.cloud.azure.driver import AzureDriver
from nodemanager.cloud.azure.port import AzureCloud, AzurePlacement
from nodemanager.cloud.common.request import PortSettings
from nodemanager.core.nodes import CloudNode, Launch, ProviderId
from nodemanager.core.slots import NodeType
from tests.cloud.recorded import LOST, Call, Reply, of_libcloud, said
from tests.contract.cloud_subjects import SystemClock, a_script
from tests.contract.recorded_subject import BOOTS_AFTER, FaultyService, Kept, RecordedSubject

_GROUP = "/subscriptions/sub/resourceGroups/nodes/providers"
_PATH = re.compile(
    rf"{_GROUP}/(?P<kind>Microsoft\.Compute/virtualMachines|Microsoft\.Network/networkInterfaces"
    r"|Microsoft\.Compute/proximityPlacementGroups)(/(?P<name>.+))?"
)
_GROUPS = "Microsoft.Compute/proximityPlacementGroups"
_MACHINES, _INTERFACES = "Microsoft.Compute/virtualMachines", "Microsoft.Network/networkInterfaces"
_TOKEN = of_libcloud("azure_arm/_77777777_7777_7777_7777_777777777777_oauth2_token")


class _Machine(Kept):
    @property
    def interface(self) -> str:
        (interface,) = self.body["properties"]["networkProfile"]["networkInterfaces"]
        return str(interface["id"]).rpartition("/")[2]


class AzureService(FaultyService):
    """One resource group."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.machines: dict[str, _Machine] = {}
        self.interfaces: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.reserved: set[str] = set()  # interfaces of refused machines

    def answer(self, call: Call) -> Reply:
        asked = _PATH.fullmatch(call.path)
        if asked is None:
            return said({**_TOKEN, "expires_on": str(int(time.time()) + 3600)})
        if self.throttling:
            return self._refused(429, "TooManyRequests", Retry_After="7")
        name = asked["name"] or ""
        if asked["kind"] == _GROUPS:
            return self._about_group(call, name)
        return self._about_machine(call, asked["kind"], name)

    def _about_machine(self, call: Call, asked_kind: str, name: str) -> Reply:
        match call.method, asked_kind:
            case "GET", kind if not name:
                return said({"value": self._machines() if kind == _MACHINES else list(self.interfaces.values())})
            case "GET", "Microsoft.Compute/virtualMachines" if name in self.machines:
                return said(self.machines[name].body)
            case "PUT", "Microsoft.Compute/virtualMachines":
                return self._put_machine(name, call.path, call.body)
            case "PUT", _:
                self.interfaces[name] = {**call.body, "name": name, "id": call.path}
                return said(self.interfaces[name], 201)
            case "DELETE", "Microsoft.Compute/virtualMachines" if name in self.machines:
                kept = self.machines[name]
                kept.body["properties"]["provisioningState"] = "Deleting"
                kept.leaves()
                return Reply(202)
            case "DELETE", "Microsoft.Network/networkInterfaces" if name in self.interfaces:
                if name in self.reserved:
                    return self._refused(400, "NicReservedForAnotherVm")
                del self.interfaces[name]
                return Reply(202)
        return self._refused(404, "ResourceNotFound")

    def _about_group(self, call: Call, name: str) -> Reply:
        if not name:
            return said({"value": list(self.groups.values())})
        if call.method == "PUT":
            assert call.body["properties"]["proximityPlacementGroupType"] == "Standard"
            self.groups[name] = {**call.body, "name": name, "id": call.path.upper()}
            return said(self.groups[name], 201)
        if name not in self.groups:
            return self._refused(404, "ResourceNotFound")
        if name in {self._group_of(kept.body) for kept in self.machines.values()}:
            return self._refused(409, "InUseProximityPlacementGroupCannotBeDeleted")
        del self.groups[name]
        return Reply(200)

    @staticmethod
    def _group_of(machine: dict[str, Any]) -> str:
        return str(machine["properties"].get("proximityPlacementGroup", {}).get("id", "")).rpartition("/")[2]

    def _put_machine(self, name: str, path: str, body: dict[str, Any]) -> Reply:
        if (group := self._group_of(body)) and group not in self.groups:
            return self._refused(404, "NotFound", f"Resource {_GROUP}/{_GROUPS}/{group} not found.")
        made = {"provisioningState": "Creating", "timeCreated": f"2026-11-21T10:36:{len(self.machines):02}+00:00"}
        kept = _Machine({**body, "name": name, "id": path, "properties": {**body["properties"], **made}})
        if self.refusal is not None:
            self.reserved.add(kept.interface)
            return self._refused(*self.refusal)
        self.machines[name] = kept
        self.interfaces[kept.interface]["properties"]["virtualMachine"] = {"id": path}
        return LOST if self.losing else said(kept.body, 201)

    def _machines(self) -> list[dict[str, Any]]:
        for name, kept in list(self.machines.items()):
            kept.listed += 1
            properties = kept.body["properties"]
            if properties["provisioningState"] == "Creating" and kept.listed > BOOTS_AFTER:
                properties["provisioningState"] = "Succeeded"
            if kept.leaves_at is not None and kept.listed >= kept.leaves_at:
                del self.machines[name], self.interfaces[kept.interface]
        return [kept.body for kept in self.machines.values()]

    def _refused(self, status: int, code: str, message: str = "no", **headers: str) -> Reply:
        return said({"error": {"code": code, "message": message}}, status, **headers)


class _OfAnyImage(AzureCloud):
    """Replaces the image, because the contract's types name other providers' images."""

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        return super().create(launch, replace(node_type, image="debian:debian-12:12:latest"))


class AzureSubject(RecordedSubject[AzureService]):
    port: AzureCloud
    over_quota = (409, "QuotaExceeded")
    has_groups = True

    def __init__(self) -> None:
        super().__init__(AzureService)

    def a_port_of(self, cluster: str, cluster_uuid: str) -> AzureCloud:
        driver = AzureDriver("tenant", "sub", "client", "not-a-secret", "nodes", endpoint=self.service.url)
        return _OfAnyImage(
            driver,
            PortSettings(cluster, cluster_uuid, a_script, SystemClock(), sleep=lambda _: None),
            defaultdict(lambda: AzurePlacement("net/subnet")),
            location="westeurope",
            ssh_public_key="ssh-ed25519 AAAA",
        )

    def groups(self) -> Collection[str]:
        return self.service.groups

    def add_untagged(self) -> ProviderId:
        body = {"tags": {}, "properties": {"networkProfile": {"networkInterfaces": [{"id": "x/of-others"}]}}}
        self.service.interfaces["of-others"] = {"name": "of-others", "id": "x/of-others", "properties": {}}
        self.service.interfaces["of-others"]["properties"]["ipConfigurations"] = []
        self.port.driver.put_machine("stranger", body)
        return ProviderId("stranger")

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        with self.refusing((409, "AllocationFailed")):
            yield
