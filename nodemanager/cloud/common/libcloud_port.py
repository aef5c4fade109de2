"""The cloud port over a libcloud driver.

It stores a node's identity in tags, converts libcloud's nodes to ``CloudNode``, and classifies errors by what to do
about them. A provider's port overrides three methods: how to create a node, where its tags are, why it ended.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError, ProviderError
from libcloud.compute.base import Node, NodeDriver
from libcloud.compute.types import NodeState
from requests.exceptions import InvalidHeader

from nodemanager.cloud.common.retry_after import parse_retry_after
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    Identity,
    Launch,
    LaunchId,
    Leftover,
    ProviderId,
    QuotaScope,
)
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

USER_DATA_MAX_BYTES = 16_384  # EC2's limit, the lowest of all providers
_DETAIL_MAX_CHARS = 500

UserDataSource = Callable[[Launch, NodeType], str]
BatchScript = Callable[[str], str]  # the user-data of the nodes of one plan, by its stamp

# EC2's error codes; the message reads "Code: text". The code is more specific than the HTTP status.
_KIND_BY_CODE: Mapping[str, FailureKind] = MappingProxyType(
    {
        "InsufficientInstanceCapacity": FailureKind.CAPACITY,
        "InsufficientCapacity": FailureKind.CAPACITY,
        "UnfulfillableCapacity": FailureKind.CAPACITY,
        "InsufficientHostCapacity": FailureKind.CAPACITY,
        "InsufficientReservedInstanceCapacity": FailureKind.CAPACITY,
        "InsufficientFreeAddressesInSubnet": FailureKind.CAPACITY,
        "InvalidPlacementGroup.InUse": FailureKind.TRANSIENT,
        "InvalidPlacementGroup.Unknown": FailureKind.TRANSIENT,  # deleted by a sweep, or just made
        "PlacementGroupLimitExceeded": FailureKind.QUOTA,
        "SpotMaxPriceTooLow": FailureKind.CAPACITY,
        "Unsupported": FailureKind.CAPACITY,  # this zone does not offer the type
        "InstanceLimitExceeded": FailureKind.QUOTA,
        "VcpuLimitExceeded": FailureKind.QUOTA,
        "MaxSpotInstanceCountExceeded": FailureKind.QUOTA,
        "VolumeLimitExceeded": FailureKind.QUOTA,
        "RequestLimitExceeded": FailureKind.THROTTLED,
        "Throttling": FailureKind.THROTTLED,
        "ThrottlingException": FailureKind.THROTTLED,
        "RequestThrottled": FailureKind.THROTTLED,
        "EC2ThrottledException": FailureKind.THROTTLED,
        "AuthFailure": FailureKind.CREDENTIALS,
        "UnauthorizedOperation": FailureKind.CREDENTIALS,
        "RequestExpired": FailureKind.CREDENTIALS,  # or this machine's clock is wrong
        "ExpiredToken": FailureKind.CREDENTIALS,
        "MissingAuthenticationToken": FailureKind.CREDENTIALS,
        "IncompleteSignature": FailureKind.CREDENTIALS,
        "InvalidClientTokenId": FailureKind.CREDENTIALS,
        "SignatureDoesNotMatch": FailureKind.CREDENTIALS,
        "OptInRequired": FailureKind.CREDENTIALS,
        "PendingVerification": FailureKind.CREDENTIALS,
        "Blocked": FailureKind.CREDENTIALS,
        "InvalidInstanceID.Malformed": FailureKind.GONE,
        "IdempotentParameterMismatch": FailureKind.AMBIGUOUS,  # the token made a node with other parameters
    }
)

# How far a quota reaches, by error code. EC2 counts vCPUs by family of types. If a quota is counted in cores, a
# smaller type may still fit. A quota that is not listed applies to the whole account.
_QUOTA_SCOPE_BY_CODE: Mapping[str, QuotaScope] = MappingProxyType(
    {
        "InstanceLimitExceeded": QuotaScope.TYPE,
        "VcpuLimitExceeded": QuotaScope.TYPE,
        "MaxSpotInstanceCountExceeded": QuotaScope.MARKET,
    }
)
_QUOTA_BY_SIZE = re.compile(r"cores?\b|v?cpus?\b|\bram\b|memory|\bgpus?\b", re.IGNORECASE)

# A node in any other state counts as running, because it exists and costs money.
_STATES: Mapping[str, CloudState] = MappingProxyType(
    {
        NodeState.PENDING.value: CloudState.PENDING,
        NodeState.STARTING.value: CloudState.PENDING,
        NodeState.STOPPING.value: CloudState.STOPPING,
        NodeState.TERMINATED.value: CloudState.TERMINATED,
        NodeState.ERROR.value: CloudState.FAILED,
    }
)


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


class LibcloudPort(ABC):
    """The cloud port of one account, region and cluster. The port and its driver serve one thread.

    ``user_data`` returns the script that a node runs at boot. It must return the same script for the same launch:
    providers compare the scripts when a create is repeated with the same token.
    """

    def __init__(
        self, driver: NodeDriver, cluster: str, cluster_uuid: str, user_data: UserDataSource, clock: Clock
    ) -> None:
        self._driver = driver
        self._cluster = cluster
        self._cluster_uuid = cluster_uuid
        self._user_data = user_data
        self._clock = clock

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        """Create the node of a launch. Raises :class:`CloudError`."""
        request = self._request(launch, node_type)
        with self._as_cloud_errors(creating=True):
            return self._cloud_node(self._create_node(request))

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Return every node that the driver lists. Raises :class:`CloudError`."""
        with self._as_cloud_errors():
            return tuple(self._cloud_node(node) for node in self._driver.list_nodes())

    def destroy(self, provider_id: ProviderId) -> None:
        """Destroy a node. A node that no longer exists is no error. Raises :class:`CloudError`."""
        accepted = True
        with self._ignoring_gone():
            accepted = self._driver.destroy_node(self._node_with_id(provider_id))
        if not accepted:
            raise CloudError(FailureKind.TRANSIENT, f"the provider refused to destroy {provider_id}")

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete nothing, and return nothing."""
        return ()  # for providers whose nodes leave nothing behind; the others override this

    @abstractmethod
    def _create_node(self, request: NodeRequest) -> Node:
        """Create the node by one call of the driver, which must set the tags in the same call."""

    def _tags(self, node: Node) -> Mapping[str, str]:
        """Return the tags of one of the driver's nodes."""
        return node.extra.get("tags") or {}

    def _died_because(self, node: Node) -> str:
        """Return the provider's reason for a node's end, "" while the node runs."""
        reason = node.extra.get("state_reason")
        return str(reason["message"]) if reason else ""

    def _request(self, launch: Launch, node_type: NodeType) -> NodeRequest:
        return node_request(launch, node_type, self._cluster, self._cluster_uuid, self._user_data)

    def _cloud_node(self, node: Node) -> CloudNode:
        return CloudNode(
            provider_id=ProviderId(str(node.id)),
            state=_STATES.get(str(node.state), CloudState.RUNNING),
            identity=identity_from_tags(self._tags(node)),
            created_at=node.created_at.timestamp() if node.created_at else None,
            addresses=(*node.public_ips, *node.private_ips),
            died_because=self._died_because(node),
            survivors=str(node.extra.get("survivors", "")),
            size=str(node.extra.get("instance_type") or ""),
        )

    def _node_with_id(self, provider_id: ProviderId) -> Node:
        """Return a libcloud node that holds only an id, for driver calls that need no more."""
        return Node(provider_id, "", NodeState.UNKNOWN, [], [], self._driver)

    @contextmanager
    def _as_cloud_errors(self, *, creating: bool = False) -> Iterator[None]:
        """Convert foreseen errors to :class:`CloudError`. Any other exception is a bug and passes through."""
        try:
            yield
        except (BaseHTTPError, LibcloudError, OSError) as error:
            raise classify(error, creating=creating, now_at=self._clock.wall_at()) from error

    @contextmanager
    def _ignoring_gone(self) -> Iterator[None]:
        """Let a deleting call succeed if its target no longer exists."""
        try:
            with self._as_cloud_errors():
                yield
        except CloudError as error:
            if error.kind is not FailureKind.GONE:
                raise


def node_request(
    launch: Launch, node_type: NodeType, cluster: str, cluster_uuid: str, user_data_of: UserDataSource
) -> NodeRequest:
    """Build the request for a launch's node. Raises :class:`CloudError` if the user-data is too large."""
    user_data = checked_user_data(user_data_of(launch, node_type), launch.slot)
    tags = {
        TAG_CLUSTER: cluster,
        TAG_CLUSTER_UUID: cluster_uuid,
        TAG_LAUNCH: launch.id,
        TAG_SLOT: launch.slot,
        TAG_TYPE: node_type.name,
    }
    if launch.made_from:
        tags[TAG_MADE_FROM] = launch.made_from
    name = f"{cluster}-{launch.slot}"
    return NodeRequest(name, node_type, launch.client_token, tags, user_data, launch.zone, launch.group)


def checked_user_data(user_data: str, whose: str) -> str:
    """Return the user-data. Raises :class:`CloudError` if it is too large."""
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


def classify(error: BaseHTTPError | LibcloudError | OSError, *, creating: bool, now_at: float) -> CloudError:
    """Convert a driver's exception to a :class:`CloudError`, whose kind says what to do about it.

    ``creating`` says whether the call was to create a node. An unclear failure of such a call is ``AMBIGUOUS``,
    because the node may exist. An unclear failure of any other call is ``TRANSIENT``, because it may be repeated.
    """
    if isinstance(error, InvalidHeader):
        # The request was never sent. The exception's text shows the header, which holds a key or a token: hide it.
        return CloudError(
            FailureKind.CREDENTIALS,
            "a key or token has characters that an HTTP header cannot hold, such as the CR of a file from Windows: "
            "enter it again",
        )
    detail = _error_text(error)
    unsure = FailureKind.AMBIGUOUS if creating else FailureKind.TRANSIENT
    kind = _kind_of_code(detail.partition(":")[0], creating=creating) or _kind_of_status(
        _status_of(error), unsure, creating=creating
    )
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    retry_after = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    return cloud_error(kind, detail, parse_retry_after(retry_after, now_at))


def refuse_late_create(clock: Clock, started_s: float, call_timeout_s: float) -> None:
    """Raise ``CloudError`` if the create has timed out before it was sent.

    The caller no longer waits for it, and may already have recorded the node as absent.
    """
    if clock.monotonic_s() - started_s >= call_timeout_s:
        raise CloudError(FailureKind.TRANSIENT, "the calls before the create took too long: no node was created")


@contextmanager
def reading(clock: Clock) -> Iterator[None]:
    """Raise the foreseen errors of calls that only read as :class:`CloudError`."""
    try:
        yield
    except (BaseHTTPError, LibcloudError, OSError) as error:
        raise classify(error, creating=False, now_at=clock.wall_at()) from error


def cloud_error(kind: FailureKind, detail: str, retry_after_s: float = 0.0) -> CloudError:
    """Build a :class:`CloudError`. For a quota error, derive the quota's scope from the provider's text."""
    if kind is not FailureKind.QUOTA:
        return CloudError(kind, detail, retry_after_s)
    by_size = QuotaScope.TYPE if _QUOTA_BY_SIZE.search(detail.replace("_", " ")) else None
    return CloudError(kind, detail, retry_after_s, _QUOTA_SCOPE_BY_CODE.get(detail.partition(":")[0], by_size))


def _kind_of_code(code: str, *, creating: bool) -> FailureKind | None:
    if code.endswith(".NotFound"):
        # For a create, the missing thing is its image, network or key.
        return FailureKind.CONFIG if creating else FailureKind.GONE
    return _KIND_BY_CODE.get(code)


def _kind_of_status(status: int | None, unsure: FailureKind, *, creating: bool) -> FailureKind:
    match status:
        case 401 | 403:
            return FailureKind.CREDENTIALS
        case 404:
            return FailureKind.CONFIG if creating else FailureKind.GONE
        case 429:
            return FailureKind.THROTTLED
        case 408 | 409:  # timeout; conflict with another call
            return unsure
        case int() if 400 <= status < 500:
            return FailureKind.CONFIG
        case _:
            return unsure


def _status_of(error: Exception) -> int | None:
    if isinstance(error, ProviderError):
        return error.http_code
    if isinstance(error, BaseHTTPError):
        return error.code if isinstance(error.code, int) else None
    return None


def _error_text(error: BaseHTTPError | LibcloudError | OSError) -> str:
    """Return the error's text without the query part of URLs, which may hold secrets such as the user-data."""
    if isinstance(error, BaseHTTPError):
        text = str(error.message or f"HTTP {error.code}")
    elif isinstance(error, LibcloudError):
        text = str(error.value)
    else:
        text = f"{type(error).__name__}: {error}"
    return re.sub(r"\?\S+", "?...", text)[:_DETAIL_MAX_CHARS]
