"""``provider = gce``: the cloud port for Google Compute Engine.

Before a create, the port searches all zones for the launch's label. An instance's name is unique in its zone and
derived from the launch, so a repeated create makes no second node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog
from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.google import GoogleAuthError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.leftovers import KnownGroups, unused_groups
from nodemanager.cloud.common.libcloud_port import LibcloudPort, cloud_error
from nodemanager.cloud.common.request import (
    TAG_LAUNCH,
    TAG_SLOT,
    KeyFile,
    NodeRequest,
    PortSettings,
    create_in_parts,
)
from nodemanager.cloud.common.transport import malformed_reply
from nodemanager.cloud.gce.credentials import (
    METADATA_SERVICE,
    CachedTokens,
    TokenGrant,
    instance_token_fetcher,
    key_token_fetcher,
)
from nodemanager.cloud.gce.driver import ApiError, GceDriver
from nodemanager.cloud.gce.instances import (
    LABEL_CLUSTER,
    GcePlacement,
    batch_label,
    bulk_body,
    identity_by_name,
    instance_body,
    instance_name,
    launch_label,
    read_instance,
    request_id,
)
from nodemanager.config.site import Site
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    Launch,
    LaunchId,
    Leftover,
    ProviderId,
    batch_of,
    group_prefix,
    stamp_of,
)
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, SlotName, TypeName

POLL_S = 1.0
GROUP_WAIT_MAX_S = 15.0  # for a placement policy to be ready
POLL_MAX_S = 30.0  # the port stops waiting for a longer insert; later lists show its instance
INSERTS_MAX = 12  # for one batch in one zone; enough to find how many of 500 instances a quota allows

_REFUSES_ALL = (FailureKind.THROTTLED, FailureKind.CREDENTIALS)  # a delete, and those after it
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


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch to create.

    ``request``: what its instances have in common. ``launches``: the launch of each, by the instance's name.
    ``made``: the nodes that exist so far.
    """

    request: NodeRequest
    label: Mapping[str, str]
    launches: Mapping[str, LaunchId]
    started_s: float
    made: dict[LaunchId, CloudNode] = field(default_factory=dict)

    def missing(self, names: Sequence[str] = ()) -> list[str]:
        """Return the names, of these or of all, that no node has yet."""
        return [name for name in names or self.launches if self.launches[name] not in self.made]


class GceCloud(LibcloudPort):
    """The cloud port of one project (:class:`nodemanager.core.ports.BatchCloudPort`).

    It sees only instances with the cluster's label.
    """

    def __init__(
        self,
        driver: GceDriver,
        settings: PortSettings,
        placements: Mapping[TypeName, GcePlacement],
    ) -> None:
        super().__init__(driver, settings)
        self.driver = driver
        self._placements = placements
        self._keys = (
            KeyCourier(driver, settings.key_file, settings.clock) if settings.key_file is not None else None
        )
        self._groups = KnownGroups(self._make_group, _names_missing_group)

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

    def _leftovers(self) -> frozenset[Leftover]:
        """Return the placement groups without instances."""
        groups = self._unless_forbidden(self._list_groups)
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
            self._settings.sleep(POLL_S)
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
        self._settings.refuse_late_create(started_s)
        if request.group:
            return self._create_in_group(zones[0], request, launch, started_s)
        for zone in zones[:-1]:
            try:
                return self._create_in_zone(zone, request, launch)
            except CloudError as error:
                if error.kind is not FailureKind.CAPACITY:
                    raise  # try the next zone only after an error that proves nothing was created
                self._settings.refuse_late_create(started_s)
        return self._create_in_zone(zones[-1], request, launch)

    def _create_in_group(self, zone: str, request: NodeRequest, launch: LaunchId, started_s: float) -> Node:
        def create(policy: str) -> Node:
            self._settings.refuse_late_create(started_s)
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
            self._settings.sleep(pause_s)
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

    # --- several instances by one call: ``bulkInsert`` ---
    #
    # All instances of a call have the same labels and metadata, which name their batch. Each has the name of its
    # launch. Sources: ``instances.bulkInsert`` in https://cloud.google.com/compute/docs/reference/rest/v1, and
    # "Troubleshooting bulk VM creation" in Google's documentation.

    def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode | CloudError]:
        """Create the nodes of a batch, or as many as the zones and the quota allow. Raises :class:`CloudError`.

        Usually that is one call. Another zone is tried for the nodes that the first one lacks. If a quota does not
        allow all of them, fewer are tried.
        """
        started_s = self._clock.monotonic_s()
        return create_in_parts(launches, lambda part: self._create_batch(self._batch(part, node_type, started_s)))

    def _create_batch(self, batch: _Batch) -> Sequence[CloudNode | CloudError]:
        batch.made.update(self._existing(batch))
        only, node_type = batch.request.zone, batch.request.node_type
        zones = (only,) if only else self._placements[node_type.name].zones
        why = CloudError(FailureKind.CAPACITY, "no zone is configured")
        for zone in zones:
            why = self._fill_from(zone, batch) or why
            if not batch.missing() or why.kind is not FailureKind.CAPACITY:
                break
        if not batch.made:
            raise why
        return [batch.made.get(launch, why) for launch in batch.launches.values()]

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[CloudError | None]:
        """Delete instances, each by a call of its own: the API has no call for several.

        After a refusal that would meet the others too, they are not tried. Raises it if it is the first answer.
        """
        answers: list[CloudError | None] = []
        for provider_id in provider_ids:
            try:
                self.destroy(provider_id)
                answers.append(None)
            except CloudError as error:
                if error.kind not in _REFUSES_ALL:
                    answers.append(error)
                elif not answers:
                    raise
                else:
                    return [*answers, *[error] * (len(provider_ids) - len(answers))]
        return answers

    def _batch(self, launches: Sequence[Launch], node_type: NodeType, started_s: float) -> _Batch:
        tokens = "\n".join(sorted(launch.client_token for launch in launches))
        request = self._settings.batch_request(launches, node_type, tokens)
        names = {instance_name(self._cluster, launch.slot, launch.id): launch.id for launch in launches}
        return _Batch(request, batch_label(batch_of(launches).stamp), names, started_s)

    def _existing(self, batch: _Batch) -> dict[LaunchId, CloudNode]:
        """Return the nodes of the batch that exist, in any zone."""
        wanted = set(batch.launches.values())
        nodes = self._read_with_retries(lambda: [self._cloud_node(node) for node in self._labelled(batch.label)])
        return {
            it.identity.launch: it
            for it in nodes
            if it.identity is not None
            and it.identity.cluster_uuid == self._cluster_uuid
            and it.identity.launch in wanted
        }

    def _fill_from(self, zone: str, batch: _Batch) -> CloudError | None:
        """Create the nodes that the batch still lacks. Return why some of them could not be created.

        Google refuses a request as a whole if it exceeds a quota. Then the next one asks for half as many.
        """
        why: CloudError | None = None
        size = len(batch.launches)
        for number in range(INSERTS_MAX):
            names = batch.missing()[:size]
            if not names:
                break
            try:
                self._insert(zone, names, batch, number)
            except CloudError as error:
                why = error
                size = len(names) // 2
                if error.kind is not FailureKind.QUOTA or not size:
                    break
        return why

    def _insert(self, zone: str, names: Sequence[str], batch: _Batch, number: int) -> None:
        """Make one bulk insert, and note the nodes that it created. Raises if it did not create all of them.

        ``number``: of this insert among those of the batch in this zone. A repeated batch makes the same ones.
        """
        placement = self._placements[batch.request.node_type.name]
        labels = {LABEL_CLUSTER: self._cluster, **batch.label}

        def insert(policy: str) -> tuple[bool, CloudError | None]:
            self._settings.refuse_late_create(batch.started_s)
            body = bulk_body(names, batch.request, placement, labels, policy)
            token = request_id(batch.request.client_token, zone, str(number))
            try:
                with self._as_cloud_errors(creating=True):
                    operation = self.driver.bulk_insert(zone, body, token)
                return self._await_insert(zone, operation), None
            except CloudError as error:
                if isinstance(error.__cause__, ApiError) and error.__cause__.finished:
                    return True, error  # some instances may exist all the same
                raise

        group = f"{zone.rpartition('-')[0]}/{batch.request.group}" if batch.request.group else ""
        is_done, failed = self._groups.create_in(group, insert)
        try:
            batch.made.update(self._existing(batch))
        except CloudError as error:
            if failed is not None:
                what = f"{failed.detail}; and the instances cannot be read: {error.detail}"
                raise CloudError(FailureKind.AMBIGUOUS, what, error.retry_after_s) from error
            is_done = False
        missing = batch.missing(names)
        if not is_done:  # they exist or will soon. The next list shows their details
            batch.made.update({batch.launches[name]: self._coming(zone, name, batch) for name in missing})
        elif failed is None and len(missing) == len(names):
            raise CloudError(FailureKind.AMBIGUOUS, f"{zone} has created instances, but no list shows them yet")
        elif missing:
            what = f"{zone} created {len(names) - len(missing)} of {len(names)} instances: it had no more"
            raise failed or CloudError(FailureKind.CAPACITY, what)

    def _coming(self, zone: str, name: str, batch: _Batch) -> CloudNode:
        extra = {"metadata": dict(batch.request.tags), "status": "PROVISIONING"}
        return self._cloud_node(Node(f"{zone}/{name}", name, NodeState.PENDING, [], [], self.driver, extra=extra))


def _names_missing_group(error: CloudError) -> bool:
    return "/resourcePolicies/" in error.detail and error.kind in (FailureKind.CONFIG, FailureKind.GONE)


def _ambiguous(what: str, error: CloudError) -> CloudError:
    """Build the error of a create whose node may exist but cannot be read."""
    return CloudError(FailureKind.AMBIGUOUS, f"{what}: {error.detail}", error.retry_after_s)


# --- fetches the keys with which Google signs identity tokens ---------------------------------------------
#
# The join service needs them, and talks to nobody.


FETCH_EVERY_S = 60.0  # at most, also if the join service asks more often


class KeyCourier:
    """Brings the keys whenever they are due. Serves one thread. A failure is logged and tried again later."""

    def __init__(self, driver: GceDriver, file: KeyFile, clock: Clock) -> None:
        self._driver = driver
        self._file = file
        self._clock = clock
        self._next_s = clock.monotonic_s()
        self._log: Any = structlog.get_logger()

    def bring_if_due(self) -> None:
        """Fetch the keys if they are due and were not fetched within the last minute."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        try:
            if not self._file.is_due():
                return
            self._file.post(*self._driver.identity_keys())
        except (BaseHTTPError, LibcloudError, OSError, ValueError) as error:
            self._log.error("identity_keys_missing", why=str(error))
        self._next_s = now_s + FETCH_EVERY_S


# --- the ports of a site ----------------------------------------------------------------------------------


def ports_of(site: Site, settings: PortSettings) -> Callable[[], GceCloud]:
    """Return a factory of ports. Each port keeps a token of its own."""
    placements = placements_of(site)
    fetch_token = token_fetcher(site.secrets, os.environ, site.cloud.call_timeout_s)
    return lambda: GceCloud(_driver(site, fetch_token, settings.clock), settings, placements)


def gce_driver(site: Site, clock: Clock) -> GceDriver:
    """Return a connection to the site's project."""
    return _driver(site, token_fetcher(site.secrets, os.environ, site.cloud.call_timeout_s), clock)


def _driver(site: Site, fetch_token: Callable[[], TokenGrant], clock: Clock) -> GceDriver:
    return GceDriver(site.cloud.project, CachedTokens(fetch_token, clock), timeout_s=site.cloud.call_timeout_s)


def token_fetcher(
    secrets: Mapping[str, str], environment: Mapping[str, str], timeout_s: float
) -> Callable[[], TokenGrant]:
    """Return a function that fetches tokens with the site's key, or else from the instance's metadata service.

    Like Google's tools, it finds that service at ``GCE_METADATA_HOST`` if the variable is set.
    """
    if "service_account" in secrets:
        return key_token_fetcher(secrets["service_account"], secrets["key"], timeout=timeout_s)
    host = environment.get("GCE_METADATA_HOST")
    return instance_token_fetcher(f"http://{host}" if host else METADATA_SERVICE)


def placements_of(site: Site) -> dict[TypeName, GcePlacement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: GcePlacement(node.network or cloud.network, node.zones or cloud.zones, cloud.node_service_account)
        for name, node in site.nodes.items()
    }
