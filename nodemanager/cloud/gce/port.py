"""``provider = gce``: the cloud port for Google Compute Engine.

Before a create, the port searches all zones for the launch's label. An instance's name is unique in its zone and
derived from the launch, so a repeated create makes no second node. Labels allow no capitals and no dots, so the
identity of a node is in its metadata, and the labels serve only to find it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.google import GoogleAuthError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.libcloud_port import TAG_LAUNCH, NodeRequest, UserDataSource, cloud_error
from nodemanager.cloud.common.names import launch_digest, unique_name
from nodemanager.cloud.common.retrying_port import RetryingPort, Sleep
from nodemanager.cloud.common.transport import malformed_reply
from nodemanager.cloud.gce.driver import ApiError, GceDriver
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, LaunchId, ProviderId
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import Market, TypeName

LABEL_CLUSTER = "fnm-cluster"
LABEL_LAUNCH = "fnm-launch"

POLL_S = 1.0
POLL_MAX_S = 30.0  # the port stops waiting for a longer insert; later lists show its instance

_PROVIDER_ID = re.compile(r"([a-z0-9-]+)/([a-z0-9-]+)", re.ASCII)
_CONFLICT = 409
_PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)

_STATES: Mapping[str, NodeState] = MappingProxyType(
    {
        "PROVISIONING": NodeState.PENDING,
        "STAGING": NodeState.PENDING,
        "STOPPING": NodeState.STOPPING,
        # Powered off or preempted. Its disk still costs money, and it stays in the list until it is deleted.
        "TERMINATED": NodeState.ERROR,
        "STOPPED": NodeState.ERROR,
    }
)

_KIND_BY_CODE: Mapping[str, FailureKind] = MappingProxyType(
    {
        "ZONE_RESOURCE_POOL_EXHAUSTED": FailureKind.CAPACITY,
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": FailureKind.CAPACITY,
        "IP_SPACE_EXHAUSTED": FailureKind.CAPACITY,
        "QUOTA_EXCEEDED": FailureKind.QUOTA,
        "quotaExceeded": FailureKind.QUOTA,
        "limitExceeded": FailureKind.QUOTA,
        "rateLimitExceeded": FailureKind.THROTTLED,
        "userRateLimitExceeded": FailureKind.THROTTLED,
        "RATE_LIMIT_EXCEEDED": FailureKind.THROTTLED,
        "PERMISSIONS_ERROR": FailureKind.CREDENTIALS,
        "RESOURCE_NOT_FOUND": FailureKind.CONFIG,
        "INVALID_FIELD_VALUE": FailureKind.CONFIG,
        "INVALID_USAGE": FailureKind.CONFIG,
        "UNSUPPORTED_OPERATION": FailureKind.CONFIG,
        "CONDITION_NOT_MET": FailureKind.CONFIG,
    }
)


@dataclass(frozen=True, slots=True)
class GcePlacement:
    """The network and zones of a node type's instances."""

    network: str  # "global/networks/NAME" or "regions/REGION/subnetworks/NAME"
    zones: tuple[str, ...]  # tried in this order


class GceCloud(RetryingPort):
    """The cloud port of one project. It sees only instances with the cluster's label."""

    def __init__(
        self,
        driver: GceDriver,
        placements: Mapping[TypeName, GcePlacement],
        cluster: str,
        cluster_uuid: str,
        user_data: UserDataSource,
        clock: Clock,
        *,
        call_timeout_s: float = 60.0,
        sleep: Sleep = time.sleep,
    ) -> None:
        super().__init__(
            driver, cluster, cluster_uuid, user_data, clock, call_timeout_s=call_timeout_s, sleep=sleep
        )
        self.driver = driver
        self._placements = placements

    def destroy(self, provider_id: ProviderId) -> None:
        """Delete an instance, given as ``ZONE/NAME``. One that no longer exists is no error."""
        zone_and_name = _PROVIDER_ID.fullmatch(provider_id)
        if zone_and_name is None:
            return  # no instance can have such an id
        with self._ignoring_gone():
            self.driver.delete(zone_and_name[1], zone_and_name[2])

    def _fetch_nodes(self) -> Sequence[Node]:
        return [self._libcloud_node(found) for found in self.driver.instances(LABEL_CLUSTER, self._cluster)]

    def _create_node(self, request: NodeRequest) -> Node:
        started_s = self._clock.monotonic_s()
        launch = LaunchId(request.tags[TAG_LAUNCH])
        found = self._read_with_retries(
            lambda: [self._libcloud_node(it) for it in self.driver.instances(LABEL_LAUNCH, launch_digest(launch))]
        )
        for node in found:
            if self._was_made_for(node, launch):
                return node
        zones = (request.zone,) if request.zone else self._placements[request.node_type.name].zones
        self._refuse_late_create(started_s)
        for zone in zones[:-1]:
            try:
                return self._create_in_zone(zone, request, launch)
            except CloudError as error:
                if error.kind is not FailureKind.CAPACITY:
                    raise  # try the next zone only after an error that proves nothing was created
                self._refuse_late_create(started_s)
        return self._create_in_zone(zones[-1], request, launch)

    def _create_in_zone(self, zone: str, request: NodeRequest, launch: LaunchId) -> Node:
        name = unique_name(f"n-{request.name}", launch).lower()
        try:
            with self._as_cloud_errors(creating=True):
                operation = self.driver.insert(zone, self._instance_body(zone, name, request, launch))
        except CloudError as error:
            taken = isinstance(error.__cause__, ApiError) and error.__cause__.http_code == _CONFLICT
            if not taken:
                raise
            found = self._instance_named(zone, name)
            if self._tags(found).get(TAG_LAUNCH) != launch:
                raise
            return found
        self._await_insert(zone, operation)
        try:
            return self._read_with_retries(lambda: self._libcloud_node(self.driver.instance(zone, name)))
        except CloudError:
            # The instance exists or will soon. The next list shows its details.
            extra = {"metadata": dict(request.tags)}
            return Node(f"{zone}/{name}", name, NodeState.PENDING, [], [], self.driver, extra=extra)

    def _instance_named(self, zone: str, name: str) -> Node:
        """Return the instance with this name. An earlier insert may have created it and lost the reply."""
        try:
            return self._read_with_retries(lambda: self._libcloud_node(self.driver.instance(zone, name)))
        except CloudError as error:
            raise _ambiguous(f"{zone} has an instance {name}, which cannot be read", error) from error

    def _await_insert(self, zone: str, operation: Mapping[str, Any]) -> None:
        """Wait until an insert is done, ``POLL_MAX_S`` at most. Raises its error, such as a lack of capacity.

        Only an operation that ended with an error proves that nothing was created. If the operation cannot be read,
        the instance may exist all the same, so the error is ``AMBIGUOUS``.
        """
        polled_s, pause_s = 0.0, POLL_S
        while operation["status"] != "DONE" and polled_s < POLL_MAX_S:
            self._sleep(pause_s)
            polled_s += pause_s
            try:
                with self._as_cloud_errors(creating=True):
                    operation = self.driver.operation(zone, operation["name"])
                pause_s = POLL_S
            except CloudError as error:
                refused = error.__cause__
                if isinstance(refused, ApiError) and refused.finished:
                    raise
                if error.kind is not FailureKind.THROTTLED:
                    raise _ambiguous("the insert was accepted, but its operation cannot be read", error) from error
                pause_s = min(POLL_MAX_S, max(2 * pause_s, error.retry_after_s))

    def _instance_body(self, zone: str, name: str, request: NodeRequest, launch: LaunchId) -> dict[str, Any]:
        node_type = request.node_type
        network = self._placements[node_type.name].network
        items = {
            "startup-script": request.user_data,
            **{_metadata_key(tag): value for tag, value in request.tags.items()},
        }
        instance: dict[str, Any] = {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/{node_type.size}",
            "labels": {LABEL_CLUSTER: self._cluster, LABEL_LAUNCH: launch_digest(launch)},
            "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": node_type.image}}],
            "networkInterfaces": [{"subnetwork" if "/subnetworks/" in network else "network": network}],
        }
        if node_type.gpus:
            # An instance with GPUs cannot migrate to another host. Google requires the request to say so.
            instance["scheduling"] = {"onHostMaintenance": "TERMINATE"}
        if node_type.market is Market.SPOT:
            instance["scheduling"] = {
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "DELETE",
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
            }
        return instance

    def _libcloud_node(self, found: Mapping[str, Any]) -> Node:
        """Convert an instance to libcloud's node without the extra calls that libcloud would make."""
        try:
            zone = str(found["zone"]).rpartition("/")[2]
            interfaces = found.get("networkInterfaces") or []
            accesses = [access for interface in interfaces for access in interface.get("accessConfigs") or []]
            items = (found.get("metadata") or {}).get("items") or []
            return Node(
                f"{zone}/{found['name']}",
                found["name"],
                _STATES.get(found["status"], NodeState.RUNNING),
                [access["natIP"] for access in accesses if access.get("natIP")],
                [interface["networkIP"] for interface in interfaces if interface.get("networkIP")],
                self.driver,
                extra={
                    "metadata": {_tag_of_key(item["key"]): str(item.get("value", "")) for item in items},
                    "status": found["status"],
                    "instance_type": str(found.get("machineType") or "").rpartition("/")[2],
                },
                # libcloud would leave this empty and put the time into ``extra`` only.
                created_at=datetime.fromisoformat(found["creationTimestamp"]),
            )
        except _PARSE_ERRORS as error:
            raise malformed_reply(f"an instance lacks a required field ({error!r})", sorted(found)) from error

    def _tags(self, node: Node) -> Mapping[str, str]:
        metadata: Mapping[str, str] = node.extra["metadata"]
        return metadata

    def _died_because(self, node: Node) -> str:
        return f"in state {node.extra['status']}: powered off or preempted" if node.state == NodeState.ERROR else ""

    def _cloud_node(self, node: Node) -> CloudNode:
        seen = super()._cloud_node(node)
        return replace(seen, state=CloudState.RUNNING) if seen.state is CloudState.TERMINATED else seen

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        failed = super()._to_cloud_error(error, creating=creating)
        if isinstance(error, GoogleAuthError):
            return CloudError(FailureKind.CREDENTIALS, failed.detail)
        kind = _KIND_BY_CODE.get(str(error.code)) if isinstance(error, ApiError) else None
        return cloud_error(kind, failed.detail, failed.retry_after_s) if kind else failed


def _ambiguous(what: str, error: CloudError) -> CloudError:
    """Build the error of a create whose node may exist but cannot be read."""
    return CloudError(FailureKind.AMBIGUOUS, f"{what}: {error.detail}", error.retry_after_s)


def _metadata_key(tag: str) -> str:
    """Convert a tag to a metadata key, which allows no colon: ``fnm:slot`` becomes ``fnm-slot``."""
    return tag.replace(":", "-", 1)


def _tag_of_key(key: str) -> str:
    """Reverse :func:`_metadata_key`."""
    return key.replace("-", ":", 1) if key.startswith("fnm-") else key
