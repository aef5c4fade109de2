"""``provider = gce``: the cloud port for Google Compute Engine.

Before a create, the port searches all zones for the launch's label. An instance's name is unique in its zone and
derived from the launch, so a repeated create makes no second node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.google import GoogleAuthError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.groups import KnownGroups, groups_if_allowed, unused_groups
from nodemanager.cloud.common.leftovers import LeftoverSweeper
from nodemanager.cloud.common.libcloud_port import (
    TAG_LAUNCH,
    TAG_SLOT,
    BatchScript,
    NodeRequest,
    UserDataSource,
    cloud_error,
)
from nodemanager.cloud.common.retrying_port import RetryingPort, Sleep
from nodemanager.cloud.common.transport import malformed_reply
from nodemanager.cloud.gce.driver import ApiError, GceDriver
from nodemanager.cloud.gce.identity_keys import KeyCourier
from nodemanager.cloud.gce.instances import (
    LABEL_CLUSTER,
    GcePlacement,
    batch_label,
    identity_by_name,
    instance_body,
    instance_name,
    launch_label,
    read_instance,
)
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    LaunchId,
    Leftover,
    ProviderId,
    group_prefix,
    stamp_of,
)
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import SlotName, TypeName

POLL_S = 1.0
GROUP_WAIT_MAX_S = 15.0  # for a placement policy to be ready
POLL_MAX_S = 30.0  # the port stops waiting for a longer insert; later lists show its instance

_PROVIDER_ID = re.compile(r"([a-z0-9-]+)/([a-z0-9-]+)", re.ASCII)
_CONFLICT = 409
_GROUP_READY = "READY"

_KIND_BY_CODE: Mapping[str, FailureKind] = MappingProxyType(
    {
        "ZONE_RESOURCE_POOL_EXHAUSTED": FailureKind.CAPACITY,
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": FailureKind.CAPACITY,
        "insufficientCapacity": FailureKind.CAPACITY,
        "VM_MIN_COUNT_NOT_REACHED": FailureKind.CAPACITY,  # of a bulk insert that names no other cause
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
        # A group that a sweep has just deleted, or whose nodes are just leaving.
        "resourceNotReady": FailureKind.TRANSIENT,
        "resourceInUseByAnotherResource": FailureKind.TRANSIENT,
    }
)


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
        needs_groups: bool = False,
        batch_script: BatchScript | None = None,
        keys: KeyCourier | None = None,
    ) -> None:
        """``needs_groups``: whether instances of any type are created in placement groups."""
        super().__init__(
            driver, cluster, cluster_uuid, user_data, clock, call_timeout_s=call_timeout_s, sleep=sleep
        )
        self.driver = driver
        self._placements = placements
        self._needs_groups = needs_groups
        self._batch_script = batch_script
        self._keys = keys
        self._groups = KnownGroups(self._make_group, _names_missing_group)
        self._sweeper = LeftoverSweeper()

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Return every instance with the cluster's label. Raises :class:`CloudError`."""
        nodes = super().list_nodes()
        if self._keys is not None:
            self._keys.bring_if_due()  # after the list: then Google answers
        return nodes

    def destroy(self, provider_id: ProviderId) -> None:
        """Delete an instance, given as ``ZONE/NAME``. One that no longer exists is no error."""
        zone_and_name = _PROVIDER_ID.fullmatch(provider_id)
        if zone_and_name is None:
            return  # no instance can have such an id
        with self._ignoring_gone():
            self.driver.delete(zone_and_name[1], zone_and_name[2])

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete the placement groups that two sweeps in a row found without instances, and return them."""
        return self._sweeper.sweep(self._leftovers(), self._remove)

    def _leftovers(self) -> frozenset[Leftover]:
        groups = groups_if_allowed(lambda: self._read_with_retries(self._list_groups), needed=self._needs_groups)
        return unused_groups(groups, self.list_nodes()) if groups else frozenset()

    def _list_groups(self) -> Mapping[str, str]:
        """Return the names of the cluster's placement groups by ``REGION/NAME``. They carry no labels."""
        try:
            found = [(str(it["region"]).rpartition("/")[2], str(it["name"])) for it in self.driver.policies()]
        except KeyError as error:
            raise malformed_reply("a resource policy lacks a required field", error) from error
        prefix = group_prefix(self._cluster_uuid)
        return {f"{region}/{name}": name for region, name in found if name.startswith(prefix)}

    def _remove(self, leftover: Leftover) -> None:
        region, _, name = leftover.provider_id.partition("/")
        with self._ignoring_gone():
            self.driver.delete_policy(region, name)

    def _make_group(self, group: str) -> str:
        """Make a compact placement policy, given as ``REGION/NAME``, unless it exists. Return its path."""
        region, _, name = group.partition("/")
        policy = {
            "name": name,
            "description": f"nodes of cluster {self._cluster} that are near each other",
            "groupPlacementPolicy": {"collocation": "COLLOCATED"},
        }
        waited_s = 0.0
        while (status := self._status_of_group(region, name)) != _GROUP_READY:
            if waited_s >= GROUP_WAIT_MAX_S:
                raise CloudError(
                    FailureKind.TRANSIENT, f"the placement policy {name} is {status or 'not there'} yet"
                )
            if not status:
                self._insert_group(region, policy)
            self._sleep(POLL_S)
            waited_s += POLL_S
        return f"projects/{self.driver.project}/regions/{region}/resourcePolicies/{name}"

    def _status_of_group(self, region: str, name: str) -> str:
        """Return the state of a placement policy, "" if it does not exist."""
        try:
            return str(self._read_with_retries(lambda: self.driver.policy(region, name)).get("status"))
        except CloudError as error:
            if error.kind is not FailureKind.GONE:
                raise
            return ""

    def _insert_group(self, region: str, policy: Mapping[str, Any]) -> None:
        try:
            with self._as_cloud_errors():
                self.driver.insert_policy(region, policy)
        except CloudError as error:
            if not isinstance(error.__cause__, ApiError) or error.__cause__.http_code != _CONFLICT:
                raise  # another thread has just made it

    def _fetch_nodes(self) -> Sequence[Node]:
        return self._labelled({LABEL_CLUSTER: self._cluster})

    def _labelled(self, labels: Mapping[str, str]) -> list[Node]:
        """Return the instances with at least one of the labels."""
        return [read_instance(found, self.driver) for found in self.driver.instances(labels)]

    def _create_node(self, request: NodeRequest) -> Node:
        started_s = self._clock.monotonic_s()
        launch = LaunchId(request.tags[TAG_LAUNCH])
        # An earlier call may have created it together with others of its plan.
        stamp = stamp_of(launch, SlotName(request.tags[TAG_SLOT]))
        labels = {**launch_label(launch), **batch_label(stamp)}
        for node in self._read_with_retries(lambda: self._labelled(labels)):
            if self._was_made_for(node, launch):
                return node
        zones = (request.zone,) if request.zone else self._placements[request.node_type.name].zones
        self._refuse_late_create(started_s)
        if request.group:
            return self._create_in_group(zones[0], request, launch, started_s)
        for zone in zones[:-1]:
            try:
                return self._create_in_zone(zone, request, launch)
            except CloudError as error:
                if error.kind is not FailureKind.CAPACITY:
                    raise  # try the next zone only after an error that proves nothing was created
                self._refuse_late_create(started_s)
        return self._create_in_zone(zones[-1], request, launch)

    def _create_in_group(self, zone: str, request: NodeRequest, launch: LaunchId, started_s: float) -> Node:
        def create(policy: str) -> Node:
            self._refuse_late_create(started_s)
            return self._create_in_zone(zone, request, launch, policy)

        return self._groups.create_in(f"{zone.rpartition('-')[0]}/{request.group}", create)

    def _create_in_zone(self, zone: str, request: NodeRequest, launch: LaunchId, policy: str = "") -> Node:
        name = instance_name(self._cluster, SlotName(request.tags[TAG_SLOT]), launch)
        placement = self._placements[request.node_type.name]
        labels = {LABEL_CLUSTER: self._cluster, **launch_label(launch)}
        try:
            with self._as_cloud_errors(creating=True):
                body = instance_body(zone, name, request, placement, labels, policy)
                operation = self.driver.insert(zone, body)
        except CloudError as error:
            taken = isinstance(error.__cause__, ApiError) and error.__cause__.http_code == _CONFLICT
            if not taken:
                raise
            found = self._instance_named(zone, name)
            if not self._was_made_for(found, launch):
                raise
            return found
        self._await_insert(zone, operation)
        try:
            return self._read_with_retries(lambda: read_instance(self.driver.instance(zone, name), self.driver))
        except CloudError:
            # The instance exists or will soon. The next list shows its details.
            extra = {"metadata": dict(request.tags)}
            return Node(f"{zone}/{name}", name, NodeState.PENDING, [], [], self.driver, extra=extra)

    def _instance_named(self, zone: str, name: str) -> Node:
        """Return the instance with this name. An earlier insert may have created it and lost the reply."""
        try:
            return self._read_with_retries(lambda: read_instance(self.driver.instance(zone, name), self.driver))
        except CloudError as error:
            raise _ambiguous(f"{zone} has an instance {name}, which cannot be read", error) from error

    def _await_insert(self, zone: str, operation: Mapping[str, Any]) -> bool:
        """Wait until an insert is done, ``POLL_MAX_S`` at most, and return whether it is.

        Raises its error, such as a lack of capacity.

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
        return bool(operation["status"] == "DONE")

    def _tags(self, node: Node) -> Mapping[str, str]:
        metadata: Mapping[str, str] = node.extra["metadata"]
        return metadata

    def _died_because(self, node: Node) -> str:
        return f"in state {node.extra['status']}: powered off or preempted" if node.state == NodeState.ERROR else ""

    def _cloud_node(self, node: Node) -> CloudNode:
        seen = replace(super()._cloud_node(node), group=self._group_in(node.extra.get("policies", ())))
        if seen.identity is None:
            seen = replace(seen, identity=identity_by_name(node.name, self._tags(node)))
        return replace(seen, state=CloudState.RUNNING) if seen.state is CloudState.TERMINATED else seen

    def _group_in(self, policies: Sequence[str]) -> str:
        """Return the cluster's placement group among the paths of resource policies, "" if there is none."""
        names, prefix = (path.rpartition("/")[2] for path in policies), group_prefix(self._cluster_uuid)
        return next((name for name in names if name.startswith(prefix)), "")

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        failed = super()._to_cloud_error(error, creating=creating)
        if isinstance(error, GoogleAuthError):
            return CloudError(FailureKind.CREDENTIALS, failed.detail)
        kind = _KIND_BY_CODE.get(str(error.code)) if isinstance(error, ApiError) else None
        return cloud_error(kind, failed.detail, failed.retry_after_s) if kind else failed


def _names_missing_group(error: CloudError) -> bool:
    return "/resourcePolicies/" in error.detail and error.kind in (FailureKind.CONFIG, FailureKind.GONE)


def _ambiguous(what: str, error: CloudError) -> CloudError:
    """Build the error of a create whose node may exist but cannot be read."""
    return CloudError(FailureKind.AMBIGUOUS, f"{what}: {error.detail}", error.retry_after_s)
