"""``provider = azure``: the cloud port for Azure's virtual machines.

A machine's name is unique to its launch, so a repeated create finds the existing machine. A machine needs a network
interface, which is created first. Azure deletes the interface and the disk together with the machine. If a machine
was never created, its interface costs nothing, and a sweep deletes it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.azure.driver import AzureDriver
from nodemanager.cloud.common.leftovers import KnownGroups, unused_groups
from nodemanager.cloud.common.libcloud_port import ErrorCodes, LibcloudPort, cloud_error
from nodemanager.cloud.common.request import TAG_CLUSTER_UUID, TAG_LAUNCH, NodeRequest, PortSettings, unique_name
from nodemanager.cloud.common.transport import malformed_reply
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, LaunchId, Leftover, LeftoverKind, ProviderId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import TypeName

ADMIN_USER = "azureuser"
_INTERFACE_SUFFIX = "-nic"
_VALID_NAME = re.compile(r"\w[\w.-]{0,79}", re.ASCII)  # Azure's rule for names of machines and interfaces
_PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)

# The provisioning state, the only one that a list contains. It does not tell whether a machine is powered off, but
# a powered-off machine still costs money.
_STATES: Mapping[str, NodeState] = MappingProxyType(
    {"creating": NodeState.PENDING, "deleting": NodeState.STOPPING, "failed": NodeState.ERROR}
)

_KIND_BY_CODE: Mapping[str, FailureKind] = MappingProxyType(
    {
        "AllocationFailed": FailureKind.CAPACITY,
        "ZonalAllocationFailed": FailureKind.CAPACITY,
        "OverconstrainedAllocationRequest": FailureKind.CAPACITY,
        "OverconstrainedZonalAllocationRequest": FailureKind.CAPACITY,
        "SkuNotAvailable": FailureKind.CAPACITY,
        "SubnetIsFull": FailureKind.CAPACITY,
        "QuotaExceeded": FailureKind.QUOTA,
        "TooManyRequests": FailureKind.THROTTLED,
        "SubscriptionRequestsThrottled": FailureKind.THROTTLED,
        "ResourceNotFound": FailureKind.GONE,
    }
)


@dataclass(frozen=True, slots=True)
class AzurePlacement:
    """The network and the zone of a node type's machines. ``zone`` "" means no particular zone."""

    network: str  # "NETWORK/SUBNET", or the id of a subnet
    zone: str = ""


class AzureCloud(LibcloudPort):
    """The cloud port of one resource group, which should contain only this manager's nodes."""

    codes = ErrorCodes(_KIND_BY_CODE)

    def __init__(
        self,
        driver: AzureDriver,
        settings: PortSettings,
        placements: Mapping[TypeName, AzurePlacement],
        *,
        location: str,
        ssh_public_key: str,
    ) -> None:
        super().__init__(driver, settings)
        self.driver = driver
        self._location = location
        self._ssh_public_key = ssh_public_key
        self._placements = placements
        self._groups = KnownGroups(self._make_group, _names_missing_group)

    def destroy(self, provider_id: ProviderId) -> None:
        """Delete the machine. Azure deletes its interface and its disk with it."""
        if not _VALID_NAME.fullmatch(provider_id):
            return  # no machine can have such a name
        with self._ignoring_gone():
            self.driver.delete_machine(provider_id)

    def _list_groups(self) -> Mapping[str, str]:
        """Return the names of the cluster's proximity placement groups."""
        ours = (it for it in self.driver.groups() if _tags_in(it).get(TAG_CLUSTER_UUID) == self._cluster_uuid)
        return {name: name for it in ours if (name := str(it.get("name", "")))}

    def _make_group(self, group: str) -> str:
        """Make a proximity placement group, unless it exists, and return its id."""
        body = {
            "location": self._location,
            "tags": self._settings.cluster_tags,
            "properties": {"proximityPlacementGroupType": "Standard"},
        }
        with self._as_cloud_errors():
            self.driver.put_group(group, body)
        return self.driver.group_id(group)

    def _leftovers(self) -> frozenset[Leftover]:
        """Return the groups that no machine is in, and the interfaces of launches that have no machine."""
        groups = self._unless_forbidden(self._list_groups)
        unused = unused_groups(groups, self.list_nodes()) if groups else frozenset()
        return self._read_with_retries(self._unused_interfaces) | unused

    def _unused_interfaces(self) -> frozenset[Leftover]:
        """Return this cluster's interfaces that no machine uses and whose launch has no machine.

        The interfaces are listed before the machines, because a machine may be created in between.
        """
        interfaces = self.driver.interfaces()
        machines = self.driver.machines()
        used = {interface.lower() for machine in machines for interface in _interfaces_of(machine)}
        live_launches = {str(_tags_in(machine).get(TAG_LAUNCH)) for machine in machines}
        return frozenset(
            Leftover(LeftoverKind.INTERFACE, ProviderId(str(interface.get("name"))), LaunchId(launch))
            for interface in interfaces
            if (launch := _launch_of(interface, self._cluster_uuid))
            and launch not in live_launches
            and str(interface.get("id")).lower() not in used
            and not _machine_of(interface)
        )

    def _remove(self, leftover: Leftover) -> None:
        delete = self.driver.delete_group if leftover.kind is LeftoverKind.GROUP else self.driver.delete_interface
        with self._ignoring_gone():
            delete(leftover.provider_id)

    def _fetch_nodes(self) -> Sequence[Node]:
        addresses = _addresses_by_interface(self.driver.interfaces())
        machines = self.driver.machines()
        return list(self._nodes_with_addresses(machines, addresses))

    def _nodes_with_addresses(
        self, machines: Sequence[dict[str, Any]], addresses: Mapping[str, list[str]]
    ) -> Iterator[Node]:
        for machine in machines:
            node = self._libcloud_node(machine)
            node.private_ips = [
                address for interface in _interfaces_of(machine) for address in addresses.get(interface.lower(), ())
            ]
            yield node

    def _create_node(self, request: NodeRequest) -> Node:
        started_s = self._clock.monotonic_s()
        launch = LaunchId(request.tags[TAG_LAUNCH])
        name = unique_name(request.name, launch)
        existing = self._find_existing(name, launch)
        if existing is not None:
            return existing
        self._settings.refuse_late_create(started_s)
        interface = name + _INTERFACE_SUFFIX
        self._put_interface(interface, request)

        def put(group_id: str) -> Node:
            self._settings.refuse_late_create(started_s)
            with self._as_cloud_errors(creating=True):
                body = self._machine_body(name, interface, request, group_id)
                return self._libcloud_node(self.driver.put_machine(name, body))

        try:
            return self._groups.create_in(request.group, put)
        except CloudError as error:
            if error.kind is not FailureKind.AMBIGUOUS:
                # Azure mostly reserves the interface for 180 s and refuses the delete. A later sweep deletes it.
                with suppress(CloudError), self._as_cloud_errors():
                    self.driver.delete_interface(interface)
            raise

    def _put_interface(self, name: str, request: NodeRequest) -> None:
        """Create or overwrite the interface. If its reply is lost, a repeated put or a sweep deals with it."""
        try:
            with self._as_cloud_errors():
                self.driver.put_interface(name, self._interface_body(request))
        except CloudError as error:
            if error.kind is FailureKind.GONE:  # the network or the resource group does not exist
                raise CloudError(FailureKind.CONFIG, error.detail) from error
            raise

    def _find_existing(self, name: str, launch: LaunchId) -> Node | None:
        try:
            found = self._read_with_retries(lambda: self._libcloud_node(self.driver.machine(name)))
        except CloudError as error:
            if error.kind is FailureKind.GONE:
                return None
            raise
        if not self._was_made_for(found, launch):
            # Never put over it: that would change a machine that is not ours.
            raise CloudError(FailureKind.CONFIG, f"the resource group has a different machine named {name}")
        return found

    def _interface_body(self, request: NodeRequest) -> dict[str, Any]:
        subnet = self.driver.subnet_id(self._placements[request.node_type.name].network)
        address = {"subnet": {"id": subnet}, "privateIPAllocationMethod": "Dynamic"}
        return {
            "location": self._location,
            "tags": dict(request.tags),
            "properties": {"ipConfigurations": [{"name": "main", "properties": address}]},
        }

    def _machine_body(self, name: str, interface: str, request: NodeRequest, group_id: str) -> dict[str, Any]:
        """``group_id``: of its proximity placement group, "" for none."""
        node_type = request.node_type
        zone = request.zone or self._placements[node_type.name].zone
        key = {"path": f"/home/{ADMIN_USER}/.ssh/authorized_keys", "keyData": self._ssh_public_key}
        body: dict[str, Any] = {
            "location": self._location,
            "tags": dict(request.tags),
            "properties": {
                "hardwareProfile": {"vmSize": node_type.size},
                "storageProfile": {
                    "imageReference": _image_reference(node_type.image),
                    "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
                },
                "osProfile": {
                    "computerName": name,
                    "adminUsername": ADMIN_USER,
                    "customData": base64.b64encode(request.user_data.encode()).decode("ascii"),
                    "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
                },
                "networkProfile": {
                    "networkInterfaces": [
                        {"id": self.driver.interface_id(interface), "properties": {"deleteOption": "Delete"}}
                    ]
                },
            },
        }
        if zone:
            body["zones"] = [zone]
        if group_id:
            body["properties"]["proximityPlacementGroup"] = {"id": group_id}
        return body

    def _libcloud_node(self, machine: dict[str, Any]) -> Node:
        """Convert a machine to libcloud's node without the extra calls that libcloud would make."""
        try:
            properties = machine["properties"]
            created = properties.get("timeCreated")
            return Node(
                machine["name"],
                machine["name"],
                _STATES.get(properties["provisioningState"].lower(), NodeState.RUNNING),
                [],
                [],
                self.driver,
                extra={
                    "tags": _tags_in(machine),
                    "instance_type": (properties.get("hardwareProfile") or {}).get("vmSize"),
                    "group": str((properties.get("proximityPlacementGroup") or {}).get("id") or ""),
                },
                created_at=datetime.fromisoformat(created) if created else None,
            )
        except _PARSE_ERRORS as error:
            raise malformed_reply(f"a machine lacks a required field ({error!r})", sorted(machine)) from error

    def _died_because(self, node: Node) -> str:
        return "its provisioning failed" if node.state == NodeState.ERROR else ""

    def _cloud_node(self, node: Node) -> CloudNode:
        # Azure's ids vary in case.
        group = str(node.extra.get("group", "")).rpartition("/")[2].lower()
        seen = replace(super()._cloud_node(node), group=group)
        # Finding the cause would take one call for each machine. Mostly it is a lack of capacity.
        return replace(seen, died_of=FailureKind.CAPACITY) if seen.state is CloudState.FAILED else seen

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        failed = super()._to_cloud_error(error, creating=creating)
        is_quota = failed.detail.partition(":")[0] == "OperationNotAllowed" and "quota" in failed.detail.lower()
        return cloud_error(FailureKind.QUOTA, failed.detail, failed.retry_after_s) if is_quota else failed


def _addresses_by_interface(interfaces: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the addresses of each interface by its id in lower case, because Azure's ids vary in case."""
    found: dict[str, list[str]] = {}
    for interface in interfaces:
        try:
            found[interface["id"].lower()] = [
                configuration["properties"]["privateIPAddress"]
                for configuration in interface["properties"]["ipConfigurations"]
                if configuration["properties"].get("privateIPAddress")
            ]
        except _PARSE_ERRORS as error:
            raise malformed_reply(f"an interface lacks a required field ({error!r})", sorted(interface)) from error
    return found


def _interfaces_of(machine: Mapping[str, Any]) -> list[str]:
    try:
        return [str(it["id"]) for it in machine["properties"]["networkProfile"]["networkInterfaces"]]
    except _PARSE_ERRORS as error:
        raise malformed_reply(f"a machine lacks a required field ({error!r})", sorted(machine)) from error


def _tags_in(found: Mapping[str, Any]) -> Mapping[str, str]:
    tags = found.get("tags")
    return tags if isinstance(tags, dict) else {}


def _launch_of(interface: Mapping[str, Any], cluster_uuid: str) -> str:
    """Return the launch that an interface of this cluster was created for; "" for any other interface."""
    tags = _tags_in(interface)
    return str(tags.get(TAG_LAUNCH, "")) if tags.get(TAG_CLUSTER_UUID) == cluster_uuid else ""


def _machine_of(interface: Mapping[str, Any]) -> object:
    return (interface.get("properties") or {}).get("virtualMachine")


def _names_missing_group(error: CloudError) -> bool:
    return "/proximityplacementgroups/" in error.detail.lower() and error.kind is FailureKind.CONFIG


def _image_reference(image: str) -> dict[str, str]:
    if image.startswith("/"):
        return {"id": image}
    publisher, offer, sku, version = image.split(":")
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": version}


# --- the ports of a site ----------------------------------------------------------------------------------


def ports_of(site: Site, settings: PortSettings) -> Callable[[], AzureCloud]:
    """Return a factory of ports. Each port logs in on its own."""
    placements, cloud = placements_of(site), site.cloud
    return lambda: AzureCloud(
        azure_driver(site), settings, placements, location=cloud.region, ssh_public_key=cloud.ssh_public_key
    )


def azure_driver(site: Site) -> AzureDriver:
    """Return a connection to the site's resource group."""
    secrets = site.secrets
    return AzureDriver(
        secrets["tenant_id"],
        secrets["subscription_id"],
        secrets["client_id"],
        secrets["client_secret"],
        site.cloud.resource_group,
        timeout_s=site.cloud.call_timeout_s,
    )


def placements_of(site: Site) -> dict[TypeName, AzurePlacement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: AzurePlacement(node.network or cloud.network, next(iter(node.zones or cloud.zones), ""))
        for name, node in site.nodes.items()
    }
