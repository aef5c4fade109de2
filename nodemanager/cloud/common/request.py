"""What a port is given, and what a node is created with: the port's settings, the node's tags and its user-data."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from nodemanager.core.nodes import Batch, CloudNode, FailureKind, Identity, Launch, LaunchId, batch_of
from nodemanager.core.notation import NotationError, compress_hostlist, expand_hostlist
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, SlotName, TypeName

TAG_CLUSTER = "fnm:cluster"
TAG_CLUSTER_UUID = "fnm:cluster-uuid"
TAG_LAUNCH = "fnm:launch"
TAG_SLOT = "fnm:slot"
TAG_TYPE = "fnm:type"
TAG_MADE_FROM = "fnm:made-from"  # nodes of earlier versions have none
# Instead of launch and slot, for nodes created by one call, which carry the same tags.
TAG_BATCH = "fnm:batch"
TAG_SLOTS = "fnm:slots"

# Of every provider's nodes, so that a site can change its provider. It is EC2's limit, the lowest of all.
USER_DATA_MAX_BYTES = 16_384
NAME_MAX_CHARS = 60  # a node's name becomes its host name
VALUE_MAX_CHARS = 256  # EC2's limit for one tag, the lowest
SLOTS_TAGS_MAX = 40  # of the 50 tags that a resource may have

UserDataSource = Callable[[Launch, NodeType], str]
BatchScript = Callable[[str], str]  # the user-data of the nodes of one plan, by its stamp
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Everything a provider needs to create the node of a launch. An empty ``zone`` lets the provider choose."""

    name: str
    node_type: NodeType
    client_token: str
    tags: Mapping[str, str]
    user_data: str
    zone: str = ""
    group: str = ""  # the placement group to create the node in; "": none


class KeyFile(Protocol):
    """Where the join service finds the keys with which Google signs identity tokens."""

    def is_due(self) -> bool:
        """Whether the keys should be fetched. Raises ``OSError``."""
        ...

    def post(self, keys: Any, cache_control: str) -> None:
        """Replace the keys. Raises ``ValueError`` if they are none, ``OSError``."""
        ...


@dataclass(frozen=True, slots=True)
class PortSettings:
    """What every port needs, whatever its provider.

    ``user_data`` returns the script that a node runs at boot. It must return the same script for the same launch:
    providers compare the scripts when a create is repeated with the same token. ``batch_script`` returns that of
    nodes that one call creates; None if the site's nodes are created one by one. ``needs_groups``: whether nodes of
    any type are created in placement groups. ``sleep`` waits between the tries of a read. ``key_file``: where
    Google's keys belong, if nodes prove their identity by them. ``size_service``: what ``[Cloud] service`` names,
    which changes the size of a MiniCluster.
    """

    cluster: str
    cluster_uuid: str
    user_data: UserDataSource
    clock: Clock
    call_timeout_s: float = 60.0
    needs_groups: bool = False
    batch_script: BatchScript | None = None
    sleep: Sleep = time.sleep
    key_file: KeyFile | None = None
    size_service: Any = None

    @property
    def cluster_tags(self) -> dict[str, str]:
        """The tags of everything that belongs to the cluster."""
        return {TAG_CLUSTER: self.cluster, TAG_CLUSTER_UUID: self.cluster_uuid}

    def script(self, launch: Launch, node_type: NodeType) -> str:
        """Return the user-data of a launch. Raises :class:`CloudError` if it is too large."""
        return _checked_user_data(self.user_data(launch, node_type), launch.slot)

    def request(self, launch: Launch, node_type: NodeType) -> NodeRequest:
        """Build the request for a launch's node. Raises :class:`CloudError` if the user-data is too large."""
        tags = {**self.cluster_tags, TAG_LAUNCH: launch.id, TAG_SLOT: launch.slot, TAG_TYPE: node_type.name}
        if launch.made_from:
            tags[TAG_MADE_FROM] = launch.made_from
        user_data = self.script(launch, node_type)
        name = f"{self.cluster}-{launch.slot}"
        return NodeRequest(name, node_type, launch.client_token, tags, user_data, launch.zone, launch.group)

    def batch_request(self, launches: Sequence[Launch], node_type: NodeType, client_token: str) -> NodeRequest:
        """Build the request for all nodes of a batch. Raises :class:`CloudError` if the user-data is too large."""
        if self.batch_script is None:
            raise ValueError("this site's nodes cannot be told apart, so each is created by itself")
        first, batch = launches[0], batch_of(launches)
        tags = tags_of_batch(batch, self.cluster, self.cluster_uuid, node_type.name, first.made_from)
        user_data = _checked_user_data(self.batch_script(batch.stamp), f"batch {batch.stamp}")
        name = f"{self.cluster}-{node_type.name}"
        return NodeRequest(name, node_type, client_token, tags, user_data, first.zone, first.group)

    def refuse_late_create(self, started_s: float) -> None:
        """Raise :class:`CloudError` if a create that began at ``started_s`` has timed out before it was sent.

        The caller no longer waits for it, and may already have recorded the node as absent.
        """
        if self.clock.monotonic_s() - started_s >= self.call_timeout_s:
            what = "the calls before the create took too long: no node was created"
            raise CloudError(FailureKind.TRANSIENT, what)


def _checked_user_data(user_data: str, whose: str) -> str:
    size_bytes = len(user_data.encode())
    if size_bytes > USER_DATA_MAX_BYTES:
        raise CloudError(
            FailureKind.CONFIG,
            f"the user-data of {whose} has {size_bytes} bytes; providers accept {USER_DATA_MAX_BYTES}",
        )
    return user_data


def identity_from_tags(tags: Mapping[str, str]) -> Identity | None:
    """Return a node's identity from its tags, or None unless it carries all five that every node has."""
    if not {TAG_CLUSTER, TAG_CLUSTER_UUID, TAG_LAUNCH, TAG_SLOT, TAG_TYPE} <= tags.keys():
        return None
    return Identity(
        cluster=tags[TAG_CLUSTER],
        cluster_uuid=tags[TAG_CLUSTER_UUID],
        launch=LaunchId(tags[TAG_LAUNCH]),
        slot=SlotName(tags[TAG_SLOT]),
        type_name=TypeName(tags[TAG_TYPE]),
        made_from=tags.get(TAG_MADE_FROM, ""),
    )


def launch_digest(launch: LaunchId) -> str:
    """Return 32 hexadecimal digits that identify a launch, for places that restrict the characters of an id."""
    return hashlib.sha256(launch.encode()).hexdigest()[:32]


def unique_name(name: str, launch: LaunchId) -> str:
    """Return a name such as ``ada-node-1-9d1b9e22``: letters, digits and "-", with no "-" at either end."""
    valid = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")
    return f"{valid[: NAME_MAX_CHARS - 9].strip('-')}-{launch_digest(launch)[:8]}"


# --- the tags of a batch: all instances that one call creates carry the same ones -------------------------
#
# They name the whole batch. An instance's index in its batch picks its slot from the tags. EC2 numbers the
# instances of a call from 0 (``amiLaunchIndex``). On Compute Engine an instance's name tells its index.


def fits_tags(batch: Batch) -> bool:
    """Return whether tags can hold the names of the batch's slots."""
    return len(compress_hostlist(batch.slots)) <= SLOTS_TAGS_MAX * VALUE_MAX_CHARS


def create_in_parts(
    launches: Sequence[Launch], create: Callable[[Sequence[Launch]], Sequence[CloudNode | CloudError]]
) -> Sequence[CloudNode | CloudError]:
    """Create a batch by one call of ``create``; by one for each half if tags cannot hold the names of its slots.

    The second half is not created if the first one fails. Raises :class:`CloudError`.
    """
    if fits_tags(batch_of(launches)):
        return create(launches)
    middle = len(launches) // 2
    first = create_in_parts(launches[:middle], create)
    try:
        return [*first, *create_in_parts(launches[middle:], create)]
    except CloudError as error:
        return [*first, *(error for _ in launches[middle:])]


def tags_of_batch(
    batch: Batch, cluster: str, cluster_uuid: str, type_name: TypeName, made_from: str
) -> dict[str, str]:
    """Return the tags of every instance of a batch."""
    slots = compress_hostlist(batch.slots)
    pieces = [slots[start : start + VALUE_MAX_CHARS] for start in range(0, len(slots), VALUE_MAX_CHARS)]
    tags = {TAG_CLUSTER: cluster, TAG_CLUSTER_UUID: cluster_uuid, TAG_TYPE: type_name, TAG_BATCH: batch.stamp}
    tags |= {_slots_tag(number): piece for number, piece in enumerate(pieces)}
    return {**tags, TAG_MADE_FROM: made_from} if made_from else tags


def _slots_tag(number: int) -> str:
    return f"{TAG_SLOTS}-{number + 1}" if number else TAG_SLOTS


def batch_from_tags(tags: Mapping[str, str]) -> Batch | None:
    """Return the batch that an instance's tags name; None if it was created by itself, or by others."""
    stamp = tags.get(TAG_BATCH)
    if not stamp or TAG_SLOTS not in tags:
        return None
    names = (_slots_tag(number) for number in range(SLOTS_TAGS_MAX))
    try:
        return Batch(stamp, _expand("".join(tags.get(name, "") for name in names)))
    except NotationError:
        return None


@lru_cache(maxsize=256)
def _expand(slots: str) -> tuple[SlotName, ...]:
    return tuple(map(SlotName, expand_hostlist(slots)))  # the same for each of a thousand instances in a list


def identity_in_batch(tags: Mapping[str, str], index: str) -> Identity | None:
    """Return the identity of a batch's instance. ``index``: its number among the instances of its call."""
    batch = batch_from_tags(tags)
    if batch is None or not {TAG_CLUSTER, TAG_CLUSTER_UUID, TAG_TYPE} <= tags.keys():
        return None
    if not (index.isascii() and index.isdecimal()) or int(index) >= len(batch.slots):
        return None
    return Identity(
        cluster=tags[TAG_CLUSTER],
        cluster_uuid=tags[TAG_CLUSTER_UUID],
        launch=batch.launch(int(index)),
        slot=batch.slots[int(index)],
        type_name=TypeName(tags[TAG_TYPE]),
        made_from=tags.get(TAG_MADE_FROM, ""),
    )
