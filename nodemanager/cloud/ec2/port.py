"""``provider = ec2``: the cloud port for Amazon EC2 and for other servers with its query API."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from xml.etree.ElementTree import Element

import structlog
from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError

from nodemanager.cloud.common.leftovers import KnownGroups, LeftoverSweeper, groups_if_allowed, unused_groups
from nodemanager.cloud.common.request import TAG_CLUSTER, TAG_CLUSTER_UUID, PortSettings, create_in_parts
from nodemanager.cloud.ec2.credentials import key_source
from nodemanager.cloud.ec2.driver import Action, Ec2Driver, endpoint_of
from nodemanager.cloud.ec2.errors import classify_ec2
from nodemanager.cloud.ec2.replies import (
    Disk,
    disks_of_image,
    leftover_addresses,
    leftover_interfaces,
    leftover_volumes,
    living_owners,
    malformed_reply,
    nodes_in,
    placement_groups,
    set_in,
    text_in,
)
from nodemanager.cloud.ec2.run_instances import Ec2Placement, create_placement_group, run_instances
from nodemanager.config.provider import zones_of
from nodemanager.config.site import Site
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.nodes import (
    CloudNode,
    FailureKind,
    Launch,
    Leftover,
    LeftoverKind,
    ProviderId,
)
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, TypeName

# A throttled call does not say how long to wait. EC2's token buckets refill within some tens of seconds.
THROTTLED_WAIT_S = 2.0
THROTTLED_WAIT_MAX_S = 60.0

DESTROY_CALLS_MAX = 32  # for one list; enough to find one culprit among thousands

# The code with which EC2 refuses a dry run that would have succeeded.
_WOULD_SUCCEED = "DryRunOperation"

_GROUP_EXISTS = "InvalidPlacementGroup.Duplicate"
_GROUP_UNKNOWN = "InvalidPlacementGroup.Unknown"

_INSTANCE_ID = re.compile(r"i-[0-9a-f]+", re.ASCII)

# The call that deletes each kind of leftover, and the parameter that names the leftover.
_REMOVALS: Mapping[LeftoverKind, tuple[Action, str]] = {
    LeftoverKind.VOLUME: (Action.DELETE_VOLUME, "VolumeId"),
    LeftoverKind.INTERFACE: (Action.DELETE_NETWORK_INTERFACE, "NetworkInterfaceId"),
    LeftoverKind.ADDRESS: (Action.RELEASE_ADDRESS, "AllocationId"),
    LeftoverKind.GROUP: (Action.DELETE_PLACEMENT_GROUP, "GroupName"),
}


class Ec2Cloud:
    """The cloud port of one account, region and cluster (:class:`nodemanager.core.ports.BatchCloudPort`).

    It lists only instances tagged with the cluster's name, and never queries those of the account's other users.
    """

    def __init__(
        self, driver: Ec2Driver, settings: PortSettings, placements: Mapping[TypeName, Ec2Placement] | None = None
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._clock = settings.clock
        self._placements = placements or {}
        self._disks: dict[str, tuple[Disk, ...]] = {}
        self._sweeper = LeftoverSweeper()
        self._groups = KnownGroups(self._make_group, lambda error: error.detail.startswith(_GROUP_UNKNOWN))
        self._throttled_in_a_row = 0
        self._health = Ec2Health(driver, settings.clock)

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        """Create the node of a launch. Raises :class:`CloudError`."""
        started_s = self._clock.monotonic_s()
        parameters = self._parameters(launch, node_type)

        def run(_: str) -> CloudNode:
            self._settings.refuse_late_create(started_s)
            with self._as_cloud_errors(creating=True):
                made = list(nodes_in(self._driver.call(Action.RUN_INSTANCES, parameters)))
                if len(made) != 1:
                    raise malformed_reply(f"one instance was requested, and the reply has {len(made)}")
                return made[0]

        return self._groups.create_in(launch.group, run)

    def _make_group(self, group: str) -> str:
        """Make a placement group, unless it exists. Raises :class:`CloudError`."""
        wanted = create_placement_group(group, self._settings.cluster_tags)
        try:
            with self._as_cloud_errors():
                self._driver.call(Action.CREATE_PLACEMENT_GROUP, wanted)
        except CloudError as error:
            if not error.detail.startswith(_GROUP_EXISTS):
                raise
        return group

    def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode | CloudError]:
        """Create the nodes of a batch by one call, or as many as EC2 has. Raises :class:`CloudError`."""
        started_s = self._clock.monotonic_s()
        return create_in_parts(launches, lambda part: self._create_batch(part, node_type, started_s))

    def _create_batch(
        self, launches: Sequence[Launch], node_type: NodeType, started_s: float
    ) -> Sequence[CloudNode | CloudError]:
        parameters = self._batch_parameters(launches, node_type)

        def run(_: str) -> list[CloudNode]:
            self._settings.refuse_late_create(started_s)
            return self._run_batch(parameters, launches)

        created = {
            node.identity.launch: node for node in self._groups.create_in(launches[0].group, run) if node.identity
        }
        short = CloudError(
            FailureKind.CAPACITY, f"EC2 created {len(created)} of {len(launches)} instances: it had no more"
        )
        return [created.get(launch.id, short) for launch in launches]

    def _run_batch(self, parameters: Mapping[str, str], launches: Sequence[Launch]) -> list[CloudNode]:
        with self._as_cloud_errors(creating=True):
            made = list(nodes_in(self._driver.call(Action.RUN_INSTANCES, parameters)))
            known = {node.identity.launch for node in made if node.identity is not None}
            if not made or len(known) != len(made) or not known <= {launch.id for launch in launches}:
                raise malformed_reply(
                    f"{len(launches)} instances were requested, and the reply has {len(made)}, of which"
                    f" {len(known)} have an index of their own"
                )
        return made

    def dry_run(self, launch: Launch, node_type: NodeType) -> None:
        """Ask EC2 whether it would create the node of a launch. Raises :class:`CloudError` if it would not."""
        parameters = {**self._parameters(launch, node_type), "DryRun": "true"}
        try:
            with self._as_cloud_errors():
                self._driver.call(Action.RUN_INSTANCES, parameters)
        except CloudError as error:
            if not error.detail.startswith(_WOULD_SUCCEED):
                raise
        else:
            raise CloudError(FailureKind.CONFIG, "the server knows no dry run, and may have created a node")

    def dry_terminate(self, provider_id: ProviderId) -> None:
        """Ask EC2 whether it would terminate an instance. Raises :class:`CloudError` if it would not.

        Call it only after :meth:`dry_run`, which proves that the server knows dry runs.
        """
        try:
            with self._as_cloud_errors():
                self._driver.call(Action.TERMINATE_INSTANCES, {"InstanceId.1": provider_id, "DryRun": "true"})
        except CloudError as error:
            if not error.detail.startswith(_WOULD_SUCCEED):
                raise

    def check_reads(self) -> None:
        """Make every call that only reads, once. Raises :class:`CloudError` at the first that is refused."""
        with self._as_cloud_errors():
            self._driver.read(Action.DESCRIBE_INSTANCE_STATUS, {"MaxResults": "5"})
        self._leftovers()

    def _parameters(self, launch: Launch, node_type: NodeType) -> dict[str, str]:
        request = self._settings.request(launch, node_type)
        placement = self._placements.get(node_type.name, Ec2Placement())
        return run_instances(request, placement, self._disks_of(node_type.image))

    def _batch_parameters(self, launches: Sequence[Launch], node_type: NodeType) -> dict[str, str]:
        tokens = "\n".join(launch.client_token for launch in launches)
        request = self._settings.batch_request(launches, node_type, hashlib.sha256(tokens.encode()).hexdigest())
        placement = self._placements.get(node_type.name, Ec2Placement())
        return run_instances(request, placement, self._disks_of(node_type.image), len(launches))

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Return every instance tagged with the cluster's name. Raises :class:`CloudError`."""
        with self._as_cloud_errors():
            listed = [node for reservation in self._reservations() for node in nodes_in(reservation)]
        return tuple(self._with_health(listed))

    def _reservations(self) -> Iterator[Element]:
        for page in self._driver.pages(Action.DESCRIBE_INSTANCES, _tag_filter(TAG_CLUSTER, self._settings.cluster)):
            yield from set_in(page, "reservationSet")

    def _with_health(self, nodes: Iterable[CloudNode]) -> Iterator[CloudNode]:
        impaired = self._health.impaired()
        for node in nodes:
            yield replace(node, impaired=impaired[node.provider_id]) if node.provider_id in impaired else node

    def destroy(self, provider_id: ProviderId) -> None:
        """Terminate an instance. One that no longer exists is no error. Raises :class:`CloudError`."""
        if not _INSTANCE_ID.fullmatch(provider_id):
            return  # EC2 has no such instance and would reject the id
        with self._as_cloud_errors(gone_is_fine=True):
            reply = self._driver.call(Action.TERMINATE_INSTANCES, {"InstanceId.1": provider_id})
            if provider_id not in {text_in(item, "instanceId") for item in set_in(reply, "instancesSet")}:
                raise malformed_reply(f"it does not mention {provider_id}, which was to be terminated")

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[CloudError | None]:
        """Terminate instances by one call. Raises :class:`CloudError` if it fails for a reason common to all.

        EC2 refuses a whole list because of one instance in it. The halves of such a list are tried by themselves,
        in a limited number of calls.
        """
        answers: dict[ProviderId, CloudError | None] = {}
        lists = [[id_ for id_ in provider_ids if _INSTANCE_ID.fullmatch(id_)]]  # EC2 would reject any other id
        refused: CloudError | None = None
        for _ in range(DESTROY_CALLS_MAX):
            ids = lists.pop(0) if lists else []
            if not ids:
                break
            try:
                answers |= self._destroy_list(ids)
            except CloudError as error:
                if error.kind not in (FailureKind.GONE, FailureKind.CONFIG):
                    if not answers:
                        raise
                    return [
                        answers.get(id_, error) if _INSTANCE_ID.fullmatch(id_) else None for id_ in provider_ids
                    ]
                if len(ids) == 1:
                    answers[ids[0]] = None if error.kind is FailureKind.GONE else error
                else:
                    refused = error
                    lists += [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
        untried = dict.fromkeys((id_ for ids in lists for id_ in ids), refused)
        return [(answers | untried).get(id_) for id_ in provider_ids]

    def _destroy_list(self, ids: Sequence[ProviderId]) -> dict[ProviderId, CloudError | None]:
        with self._as_cloud_errors():
            asked = {f"InstanceId.{number}": id_ for number, id_ in enumerate(ids, start=1)}
            reply = self._driver.call(Action.TERMINATE_INSTANCES, asked)
            accepted = {text_in(item, "instanceId") for item in set_in(reply, "instancesSet")}
        missing = CloudError(FailureKind.TRANSIENT, "the reply does not mention this instance")
        return {id_: None if id_ in accepted else missing for id_ in ids}

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete the leftovers that two sweeps in a row found, and return them."""
        return self._sweeper.sweep(self._leftovers(), self._remove)

    def _leftovers(self) -> frozenset[Leftover]:
        """Return this cluster's resources that belong to no node.

        They are listed before the nodes. So if a node is created in between, its resources are not leftovers.
        """
        ours = _tag_filter(TAG_CLUSTER_UUID, self._settings.cluster_uuid)
        free = {**ours, "Filter.2.Name": "status", "Filter.2.Value.1": "available", "MaxResults": "500"}
        with self._as_cloud_errors():
            volumes = self._driver.pages(Action.DESCRIBE_VOLUMES, free)
            interfaces = self._driver.pages(Action.DESCRIBE_NETWORK_INTERFACES, free)
            left = {leftover for page in volumes for leftover in leftover_volumes(page)}
            left |= {leftover for page in interfaces for leftover in leftover_interfaces(page)}
            left |= set(leftover_addresses(self._driver.read(Action.DESCRIBE_ADDRESSES, ours)))
        groups = groups_if_allowed(lambda: self._list_groups(ours), needed=self._settings.needs_groups)
        if not left and not groups:
            return frozenset()
        with self._as_cloud_errors():
            reservations = list(self._reservations())
            live = {owner for reservation in reservations for owner in living_owners(reservation)}
            nodes = [node for reservation in reservations for node in nodes_in(reservation)]
        unused = frozenset(leftover for leftover in left if leftover.launch not in live)
        return unused | unused_groups(groups, nodes)

    def _list_groups(self, ours: Mapping[str, str]) -> Mapping[str, str]:
        with self._as_cloud_errors():
            found = placement_groups(self._driver.read(Action.DESCRIBE_PLACEMENT_GROUPS, ours))
            return {name: name for name in found}

    def _remove(self, leftover: Leftover) -> None:
        action, parameter = _REMOVALS[leftover.kind]
        with self._as_cloud_errors(gone_is_fine=True):
            self._driver.call(action, {parameter: leftover.provider_id})

    def _disks_of(self, image: str) -> tuple[Disk, ...]:
        """Return the volumes that an image defines. They are read once, because images do not change."""
        if image not in self._disks:
            disks = None
            with self._as_cloud_errors(gone_is_fine=True):
                disks = disks_of_image(self._driver.read(Action.DESCRIBE_IMAGES, {"ImageId.1": image}))
            if disks is None:
                raise CloudError(FailureKind.CONFIG, f"this account has no image {image} in this region")
            self._disks[image] = disks
        return self._disks[image]

    @contextmanager
    def _as_cloud_errors(self, *, creating: bool = False, gone_is_fine: bool = False) -> Iterator[None]:
        """Convert foreseen errors to :class:`CloudError`. Any other exception is a bug and passes through."""
        try:
            yield
        except (BaseHTTPError, LibcloudError, OSError) as error:
            failure = classify_ec2(error, creating=creating, now_at=self._clock.wall_at())
            if gone_is_fine and failure.kind is FailureKind.GONE:
                return
            raise self._with_throttle_wait(failure) from error
        self._throttled_in_a_row = 0

    def _with_throttle_wait(self, failure: CloudError) -> CloudError:
        """Add a wait to a throttled call if the provider named none. The wait doubles with each call in a row."""
        if failure.kind is not FailureKind.THROTTLED:
            return failure
        wait_s = min(THROTTLED_WAIT_MAX_S, THROTTLED_WAIT_S * 2.0 ** min(self._throttled_in_a_row, 10))
        self._throttled_in_a_row += 1
        return CloudError(failure.kind, failure.detail, failure.retry_after_s or wait_s)


def _tag_filter(tag: str, value: str) -> dict[str, str]:
    return {"Filter.1.Name": f"tag:{tag}", "Filter.1.Value.1": value}


# --- reads which running instances EC2 reports as unhealthy: failed status checks and scheduled events ----
#
# It queries only unhealthy instances, for all nodes together, once a minute at most. That takes three reads,
# regardless of the number of nodes. If the query fails, nodes are still listed, and the query is repeated less
# and less often.


HEALTH_EVERY_S = 60.0
HEALTH_EVERY_MAX_S = 960.0  # while it fails, because a query that hangs delays the list of nodes
_CHECKS = ("system", "instance")
# Each of these ends or interrupts the jobs on the instance.
_EVENTS = ("instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")
_EVENT_OVER = ("[Completed]", "[Canceled]")  # prefixes of the description of an event that is over


class Ec2Health:
    """Reads the health of one account and region.

    DescribeInstanceStatus cannot filter by tags, so the result includes instances of others.
    """

    def __init__(self, driver: Ec2Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._known: Mapping[ProviderId, str] = MappingProxyType({})
        self._asked_s: float | None = None
        self._every_s = HEALTH_EVERY_S
        self._failure = ""
        self._log: Any = structlog.get_logger()

    def impaired(self) -> Mapping[ProviderId, str]:
        """Return EC2's complaints about each unhealthy instance. If the query fails, return the last result."""
        now_s = self._clock.monotonic_s()
        if self._asked_s is None or now_s - self._asked_s >= self._every_s:
            self._asked_s = now_s
            try:
                self._known = self._fetch_impaired()
                self._failure = ""
                self._every_s = HEALTH_EVERY_S
            except (BaseHTTPError, LibcloudError, OSError) as error:
                self._every_s = min(HEALTH_EVERY_MAX_S, 2 * self._every_s)
                self._log_new_failure(classify_ec2(error, creating=False, now_at=0.0).detail)
        return self._known

    def _fetch_impaired(self) -> Mapping[ProviderId, str]:
        by_check = [{"Name": f"{check}-status.status", "Value.1": "impaired"} for check in _CHECKS]
        codes = {f"Value.{number}": code for number, code in enumerate(_EVENTS, start=1)}
        found: dict[ProviderId, str] = {}
        for query in (*by_check, {"Name": "event.code", **codes}):
            filters = {f"Filter.1.{name}": value for name, value in query.items()}
            for page in self._driver.pages(Action.DESCRIBE_INSTANCE_STATUS, filters):
                for item in set_in(page, "instanceStatusSet"):
                    if complaints := "; ".join(_complaints(item)):
                        found[ProviderId(text_in(item, "instanceId"))] = complaints
        return found

    def _log_new_failure(self, why: str) -> None:
        """Log a failure unless the previous one was the same."""
        if why != self._failure:
            self._log.warning("health_not_known", why=why, what="whether EC2 calls an instance unhealthy")
        self._failure = why


def _complaints(item: Element) -> Iterator[str]:
    for check in _CHECKS:
        if text_in(item, f"{check}Status/status") == "impaired":
            yield f"{check} status check failed"
    for event in item.iterfind("{*}eventsSet/{*}item"):
        code, description = text_in(event, "code"), text_in(event, "description")
        if code in _EVENTS and not description.startswith(_EVENT_OVER):
            yield f"{code} from {text_in(event, 'notBefore')}: {description}"


# --- the ports of a site ----------------------------------------------------------------------------------


def ports_of(site: Site, settings: PortSettings) -> Callable[[], Ec2Cloud]:
    """Return a factory of ports. All ports share one source of keys, so a role's keys are fetched once."""
    keys = key_source(site.credentials, os.environ, settings.clock)
    endpoint, timeout_s = endpoint_of(site.cloud.region, site.cloud.endpoint), settings.call_timeout_s
    placements = placements_of(site)
    return lambda: Ec2Cloud(Ec2Driver(endpoint, keys, timeout_s=timeout_s), settings, placements)


def placements_of(site: Site) -> Mapping[TypeName, Ec2Placement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: Ec2Placement(
            subnets=_subnets_of(node, cloud),
            security_groups=node.security_groups or cloud.security_groups,
            key_name=node.key_name or cloud.key_name,
            instance_profile=node.instance_profile or cloud.instance_profile,
        )
        for name, node in site.nodes.items()
    }


def _subnets_of(node: NodeSettings, cloud: CloudSettings) -> dict[str, str]:
    """Map each zone of a node type to its subnet; empty if the site gives no subnets."""
    subnets = dict(node.subnets or cloud.subnets)
    zones = zones_of(node) or zones_of(cloud)
    return {zone: subnets[zone] for zone in zones if zone in subnets}
