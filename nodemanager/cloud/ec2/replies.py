"""Parses EC2's XML replies into values. Any other reply raises an error.

The shapes are those of the EC2 API version 2016-11-15. An empty list counts only if the reply is complete and of
the right kind: a manager that mistakes a malformed reply for "no nodes" buys the whole fleet again.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from xml.etree.ElementTree import Element

from libcloud.common.types import MalformedResponseError
from libcloud.compute.drivers.ec2 import NAMESPACE

from nodemanager.cloud.common.request import TAG_LAUNCH, batch_from_tags, identity_from_tags, identity_in_batch
from nodemanager.core.nodes import CloudNode, CloudState, LaunchId, Leftover, LeftoverKind, ProviderId
from nodemanager.core.slots import Market

_NS = f"{{{NAMESPACE}}}"
_SHOWN_MAX_CHARS = 200

# Built once, because parsing a list looks them up ten thousand times.
_ID, _STATE, _NAME, _TAGS, _KEY, _VALUE, _LAUNCH_TIME, _LIFECYCLE, _TYPE, _INDEX = (
    _NS + name
    for name in (
        "instanceId",
        "instanceState",
        "name",
        "tagSet",
        "key",
        "value",
        "launchTime",
        "instanceLifecycle",
        "instanceType",
        "amiLaunchIndex",
    )
)
_ADDRESSES = tuple(_NS + name for name in ("ipAddress", "privateIpAddress", "ipv6Address"))

# More than half of an instance's description is in these elements, and nothing here reads them. Parsing without
# them takes half the time. The text of a tag cannot match them, because XML writes its "<" as "&lt;".
_UNREAD_ELEMENTS = (b"networkInterfaceSet", b"blockDeviceMapping", b"metadataOptions", b"cpuOptions")

# An instance in any other state counts as running, because it exists and costs money. A stopped instance still
# costs its disks. Ours never stop: a shutdown terminates them.
_STATES: Mapping[str, CloudState] = MappingProxyType(
    {
        "pending": CloudState.PENDING,
        "running": CloudState.RUNNING,
        "shutting-down": CloudState.STOPPING,
        "terminated": CloudState.TERMINATED,
    }
)
_ALIVE = frozenset({"pending", "running"})

# The cause of an instance's end, by EC2's code.
_END_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "Client.UserInitiatedShutdown": "user",
        "Client.UserInitiatedHibernate": "user",
        "Client.InstanceInitiatedShutdown": "powered off from inside",
        "Server.SpotInstanceTermination": "spot reclaim",
        "Server.SpotInstanceShutdown": "spot reclaim",
        "Server.ScheduledStop": "host failure",
        "Server.InternalError": "host failure",
        "Server.InsufficientInstanceCapacity": "no capacity at launch",
        "Client.InstanceTerminated": "user",
        "Client.InternalError": "failed at launch",
        "Client.InvalidSnapshot.NotFound": "failed at launch",
        "Client.VolumeLimitExceeded": "failed at launch",
    }
)


def parse_xml(content: bytes) -> Element:
    """Return the root element of a reply. Raises :class:`MalformedResponseError` on truncated or invalid XML."""
    if b"<DescribeInstancesResponse" in content[:500]:
        content = _drop_unread(content)
    try:
        return ET.fromstring(content)  # noqa: S314 - the site's own endpoint; expat limits entity expansion
    except ET.ParseError as error:
        raise malformed_reply(f"it is truncated or not XML: {error}", content) from error


def _drop_unread(content: bytes) -> bytes:
    for name in _UNREAD_ELEMENTS:
        head, *parts = content.split(b"<%s>" % name)
        # If an end tag is missing, this drops the rest of the document, so the parser reports it as truncated.
        content = b"".join([head, *(part.partition(b"</%s>" % name)[2] for part in parts)])
    return content


def malformed_reply(why: str, content: bytes = b"") -> MalformedResponseError:
    """Build the error for a reply that EC2's API does not allow. ``why`` continues "the reply is not EC2's: "."""
    shown = content[:_SHOWN_MAX_CHARS].decode(errors="replace")
    return MalformedResponseError(f"the reply is not EC2's: {why}", body=shown)


def require_reply(root: Element, action: str) -> Element:
    """Return ``root`` if it is the reply to the action. Raises :class:`MalformedResponseError` if it is not."""
    expected = f"{_NS}{action}Response"
    if root.tag != expected:
        raise malformed_reply(f"its root is {root.tag}, not {expected}")
    return root


def set_in(root: Element, name: str) -> Element:
    """Return a list element of a reply. Raises :class:`MalformedResponseError` if it is missing."""
    found = root.find(_NS + name)
    if found is None:
        raise malformed_reply(f"it has no {name}")
    return found


def text_in(element: Element, path: str) -> str:
    """Return the text at ``path``, such as ``stateReason/code``; "" if it is missing."""
    return element.findtext("/".join(_NS + part for part in path.split("/"))) or ""


def error_text_in(content: bytes) -> str:
    """Return "Code: message" from an error reply in any namespace; "" if the reply has none."""
    try:
        root = ET.fromstring(content)  # noqa: S314 - as above
    except ET.ParseError:
        return ""
    texts = {element.tag.rpartition("}")[2]: (element.text or "").strip() for element in root.iter()}
    return f"{texts['Code']}: {texts.get('Message', '')}" if "Code" in texts else ""


# --- instances --------------------------------------------------------------------------------------------


def nodes_in(reservation: Element) -> Iterator[CloudNode]:
    """Return the instances of a reservation, or of the reply to RunInstances."""
    return (node_from_instance(item) for item in set_in(reservation, "instancesSet"))


def node_from_instance(item: Element) -> CloudNode:
    """Convert an instance. Raises :class:`MalformedResponseError` if it has no id or state."""
    provider_id = item.findtext(_ID)
    states = item.find(_STATE)
    state = states.findtext(_NAME) if states is not None else None
    if not provider_id or not state:
        raise malformed_reply("it has an instance without an id or a state")
    spot = item.findtext(_LIFECYCLE) == "spot"
    tags = tags_in(item)
    return CloudNode(
        provider_id=ProviderId(provider_id),
        state=_STATES.get(state, CloudState.RUNNING),
        identity=identity_in_batch(tags, item.findtext(_INDEX) or "") or identity_from_tags(tags),
        created_at=_parse_time(item.findtext(_LAUNCH_TIME)),
        addresses=tuple(address for name in _ADDRESSES if (address := item.findtext(name))),
        died_because="" if state in _ALIVE else _end_reason(item),
        market=Market.SPOT if spot else Market.ON_DEMAND,
        size=item.findtext(_TYPE) or "",
        group=text_in(item, "placement/groupName"),
    )


def tags_in(item: Element) -> dict[str, str]:
    """Return the tags of an instance or another resource."""
    tags = item.find(_TAGS)
    if tags is None:
        return {}
    return {tag.findtext(_KEY) or "": tag.findtext(_VALUE) or "" for tag in tags}


def _parse_time(text: str | None) -> float | None:
    """Return seconds since the epoch, None if unreadable. EC2 writes UTC, so a missing zone means UTC."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _end_reason(item: Element) -> str:
    code = text_in(item, "stateReason/code")
    message = text_in(item, "stateReason/message") or text_in(item, "reason") or "EC2 gives no reason"
    cause = _END_CAUSES.get(code) or ("host failure" if code.startswith("Server.") else "unknown cause")
    return f"{cause}: {message}" if code in message else f"{cause}: {code}: {message}"


# --- leftovers ---------------------------------------------------------------------------------------------


def leftover_volumes(root: Element) -> Iterator[Leftover]:
    """Yield the volumes that no instance uses."""
    for item in set_in(root, "volumeSet"):
        if text_in(item, "status") == "available":
            yield from _tagged_leftover(LeftoverKind.VOLUME, text_in(item, "volumeId"), item)


def leftover_interfaces(root: Element) -> Iterator[Leftover]:
    """Yield the network interfaces that no instance uses."""
    for item in set_in(root, "networkInterfaceSet"):
        if text_in(item, "status") == "available":
            yield from _tagged_leftover(LeftoverKind.INTERFACE, text_in(item, "networkInterfaceId"), item)


def leftover_addresses(root: Element) -> Iterator[Leftover]:
    """Yield the Elastic IP addresses that no instance uses."""
    for item in set_in(root, "addressesSet"):
        if not text_in(item, "associationId") and not text_in(item, "instanceId"):
            yield from _tagged_leftover(LeftoverKind.ADDRESS, text_in(item, "allocationId"), item)


def placement_groups(root: Element) -> Iterator[str]:
    """Yield the names of the placement groups that are not being deleted."""
    for item in set_in(root, "placementGroupSet"):
        if text_in(item, "state") in ("available", "pending"):
            yield text_in(item, "groupName")


def _tagged_leftover(kind: LeftoverKind, provider_id: str, item: Element) -> Iterator[Leftover]:
    """Yield the leftover only if tags name its launch: without the launch, its node may still exist."""
    launch = owner_in(tags_in(item))
    if provider_id and launch:
        yield Leftover(kind, ProviderId(provider_id), launch)


def owner_in(tags: Mapping[str, str]) -> LaunchId | None:
    """Return the launch that an instance and what was created with it belong to.

    For all of a batch it is the batch's first launch: their tags do not tell them apart.
    """
    batch = batch_from_tags(tags)
    launch = batch.launch(0) if batch is not None else tags.get(TAG_LAUNCH)
    return LaunchId(launch) if launch else None


def living_owners(reservation: Element) -> Iterator[LaunchId]:
    """Yield the owner of each instance of a reservation that is not terminated."""
    for item in set_in(reservation, "instancesSet"):
        owner = owner_in(tags_in(item))
        if owner is not None and node_from_instance(item).state is not CloudState.TERMINATED:
            yield owner


# --- images -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume that an image defines."""

    device: str
    size_gib: str


def disks_of_image(root: Element) -> tuple[Disk, ...] | None:
    """Return the volumes that an image defines; None if the reply has no image."""
    for image in set_in(root, "imagesSet"):
        mapping = image.find(f"{_NS}blockDeviceMapping")
        items = () if mapping is None else tuple(mapping)
        return tuple(
            Disk(text_in(item, "deviceName"), text_in(item, "ebs/volumeSize"))
            for item in items
            if item.find(f"{_NS}ebs") is not None
        )
    return None
