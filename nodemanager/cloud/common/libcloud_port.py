"""The cloud port over a libcloud driver: identities as tags, nodes as our values, errors by what to do about them.

What differs between providers is in three methods: how a node is made, where its tags are, why it ended.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import MappingProxyType

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError, ProviderError
from libcloud.compute.base import Node, NodeDriver
from libcloud.compute.types import NodeState
from requests.exceptions import InvalidHeader

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

USER_DATA_MAX_BYTES = 16_384  # what EC2 takes, the least of all providers
RETRY_AFTER_MAX_S = 300.0
_DETAIL_MAX_CHARS = 500

UserDataSource = Callable[[Launch, NodeType], str]

# Codes as EC2 has them, "Code: text" in the message. A code says more than the status it came with.
_KIND_BY_CODE: Mapping[str, FailureKind] = MappingProxyType(
    {
        "InsufficientInstanceCapacity": FailureKind.CAPACITY,
        "InsufficientCapacity": FailureKind.CAPACITY,
        "UnfulfillableCapacity": FailureKind.CAPACITY,
        "InsufficientHostCapacity": FailureKind.CAPACITY,
        "InsufficientReservedInstanceCapacity": FailureKind.CAPACITY,
        "InsufficientFreeAddressesInSubnet": FailureKind.CAPACITY,
        "SpotMaxPriceTooLow": FailureKind.CAPACITY,
        "Unsupported": FailureKind.CAPACITY,  # not this type in this zone
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
        "IdempotentParameterMismatch": FailureKind.AMBIGUOUS,  # the token made a node, another one than this
    }
)

# How far a quota reaches, by what the provider says. vCPUs are counted by family of types, and a smaller type may
# still be within one that is counted in cores; of what is not listed the account may have no more.
_REACH_BY_CODE: Mapping[str, QuotaScope] = MappingProxyType(
    {
        "InstanceLimitExceeded": QuotaScope.TYPE,
        "VcpuLimitExceeded": QuotaScope.TYPE,
        "MaxSpotInstanceCountExceeded": QuotaScope.MARKET,
    }
)
_QUOTA_BY_SIZE = re.compile(r"cores?\b|v?cpus?\b|\bram\b|memory|\bgpus?\b", re.IGNORECASE)

# A state that is not listed here means: it exists, and it costs.
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
    """All that a provider needs to make the node of a launch."""

    name: str
    node_type: NodeType
    client_token: str
    tags: Mapping[str, str]
    user_data: str
    zone: str = ""  # "" leaves it to the provider


class LibcloudPort(ABC):
    """One account, region and cluster, through a driver that belongs to the same thread as this object.

    ``user_data`` gives the script that a node runs at boot; the same launch must be given the same one, since
    providers compare it when a token comes again.
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
        request = self._request(launch, node_type)
        with self._as_cloud_errors(creating=True):
            return self._cloud_node(self._create_node(request))

    def list_nodes(self) -> tuple[CloudNode, ...]:
        with self._as_cloud_errors():
            return tuple(self._cloud_node(node) for node in self._driver.list_nodes())

    def destroy(self, provider_id: ProviderId) -> None:
        accepted = True
        with self._ignoring_gone():
            accepted = self._driver.destroy_node(self._node_with_id(provider_id))
        if not accepted:
            raise CloudError(FailureKind.TRANSIENT, f"the provider did not accept to destroy {provider_id}")

    def sweep(self) -> tuple[Leftover, ...]:
        return ()  # a node that leaves nothing behind: for the others there is more to ask

    @abstractmethod
    def _create_node(self, request: NodeRequest) -> Node:
        """Have the node made by one call of the driver, its tags on it from its first moment."""

    def _tags(self, node: Node) -> Mapping[str, str]:
        """The tags of a node that the driver gave."""
        return node.extra.get("tags") or {}

    def _died_because(self, node: Node) -> str:
        """The provider's words for a node's end, "" while it lives."""
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
        )

    def _node_with_id(self, provider_id: ProviderId) -> Node:
        """A node that the driver needs to know by its id only."""
        return Node(provider_id, "", NodeState.UNKNOWN, [], [], self._driver)

    @contextmanager
    def _as_cloud_errors(self, *, creating: bool = False) -> Iterator[None]:
        """Turn what may go wrong outside into :class:`CloudError`. Anything else is a bug, and passes."""
        try:
            yield
        except (BaseHTTPError, LibcloudError, OSError) as error:
            raise classify(error, creating=creating, now_at=self._clock.wall_at()) from error

    @contextmanager
    def _ignoring_gone(self) -> Iterator[None]:
        """For a call that puts an end to something: what is not there any more has it."""
        try:
            with self._as_cloud_errors():
                yield
        except CloudError as error:
            if error.kind is not FailureKind.GONE:
                raise


def node_request(
    launch: Launch, node_type: NodeType, cluster: str, cluster_uuid: str, user_data_of: UserDataSource
) -> NodeRequest:
    """What is to be made for a launch. Raises :class:`CloudError` where its user-data is more than is taken."""
    user_data = user_data_of(launch, node_type)
    size_bytes = len(user_data.encode())
    if size_bytes > USER_DATA_MAX_BYTES:
        raise CloudError(
            FailureKind.CONFIG,
            f"the user-data of {launch.slot} has {size_bytes} bytes; providers take {USER_DATA_MAX_BYTES}",
        )
    tags = {
        TAG_CLUSTER: cluster,
        TAG_CLUSTER_UUID: cluster_uuid,
        TAG_LAUNCH: launch.id,
        TAG_SLOT: launch.slot,
        TAG_TYPE: node_type.name,
    }
    return NodeRequest(f"{cluster}-{launch.slot}", node_type, launch.client_token, tags, user_data, launch.zone)


def identity_from_tags(tags: Mapping[str, str]) -> Identity | None:
    """Who a node is by its tags; None unless it carries all five."""
    if not {TAG_CLUSTER, TAG_CLUSTER_UUID, TAG_LAUNCH, TAG_SLOT, TAG_TYPE} <= tags.keys():
        return None
    return Identity(
        cluster=tags[TAG_CLUSTER],
        cluster_uuid=tags[TAG_CLUSTER_UUID],
        launch=LaunchId(tags[TAG_LAUNCH]),
        slot=SlotName(tags[TAG_SLOT]),
        type_name=TypeName(tags[TAG_TYPE]),
    )


def classify(error: BaseHTTPError | LibcloudError | OSError, *, creating: bool, now_at: float) -> CloudError:
    """What a driver raised, as what there is to do about it.

    ``creating``: whether the call was to make a node. Then whatever does not prove that none was made is
    ``AMBIGUOUS``; for all other calls it is ``TRANSIENT``, since they may be repeated.
    """
    if isinstance(error, InvalidHeader):
        # It was never sent. The error shows the header, and what is odd in one of ours is a key or a token.
        return CloudError(
            FailureKind.CREDENTIALS,
            "a key or token has characters that no HTTP header takes, such as the CR of a file from Windows: "
            "write it anew",
        )
    detail = _error_text(error)
    unsure = FailureKind.AMBIGUOUS if creating else FailureKind.TRANSIENT
    kind = _kind_of_code(detail.partition(":")[0], creating=creating) or _kind_of_status(
        _status_of(error), unsure, creating=creating
    )
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    asked = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    return cloud_error(kind, detail, parse_retry_after(asked, now_at))


def refuse_late_create(clock: Clock, started_s: float, call_timeout_s: float) -> None:
    """Refuse to begin a create that nobody waits for any more: its node may be given up as absent by now."""
    if clock.monotonic_s() - started_s >= call_timeout_s:
        raise CloudError(FailureKind.TRANSIENT, "what comes before the create took too long: nothing was made")


def cloud_error(kind: FailureKind, detail: str, retry_after_s: float = 0.0) -> CloudError:
    """The failure; for want of quota with how far that reaches, as far as the provider's words tell."""
    if kind is not FailureKind.QUOTA:
        return CloudError(kind, detail, retry_after_s)
    by_size = QuotaScope.TYPE if _QUOTA_BY_SIZE.search(detail.replace("_", " ")) else None
    return CloudError(kind, detail, retry_after_s, _REACH_BY_CODE.get(detail.partition(":")[0], by_size))


def parse_retry_after(header: str, now_at: float) -> float:
    """The wait that a Retry-After asks for (RFC 9110, 10.2.3), in [0, 300] s; 0 if it cannot be read."""
    text = header.strip()
    if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text):
        wait_s = float(text)
    else:
        try:
            wait_s = parsedate_to_datetime(text).timestamp() - now_at
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, wait_s), RETRY_AFTER_MAX_S)


def _kind_of_code(code: str, *, creating: bool) -> FailureKind | None:
    if code.endswith(".NotFound"):
        # What a create does not find is its image, network or key.
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
        case 408 | 409:  # timed out; met with another call
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
    """The error in its own words, without what a URL may carry: requests to EC2 hold the user-data there."""
    if isinstance(error, BaseHTTPError):
        said = str(error.message or f"HTTP {error.code}")
    elif isinstance(error, LibcloudError):
        said = str(error.value)
    else:
        said = f"{type(error).__name__}: {error}"
    return re.sub(r"\?\S+", "?...", said)[:_DETAIL_MAX_CHARS]
