"""The cloud port over a libcloud driver.

It stores a node's identity in tags, converts libcloud's nodes to ``CloudNode``, and classifies errors by what to do
about them. A provider's port overrides how to create a node, where its tags are, why it ended, and its error codes.

It retries reads. It never retries a create or a destroy: the planner decides about those.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError, ProviderError
from libcloud.compute.base import Node, NodeDriver
from libcloud.compute.types import NodeState
from requests.exceptions import InvalidHeader
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from nodemanager.cloud.common.leftovers import LeftoverSweeper, groups_if_allowed
from nodemanager.cloud.common.request import NodeRequest, PortSettings, identity_from_tags
from nodemanager.cloud.common.retry_after import parse_retry_after
from nodemanager.cloud.common.transport import MisconfiguredError
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    Launch,
    LaunchId,
    Leftover,
    ProviderId,
    QuotaScope,
)
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType

READ_TRIES = 3
READ_TRIES_S = 30.0  # no new try after this time
READ_PAUSE_MAX_S = 4.0

_DETAIL_MAX_CHARS = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """What a provider's error codes mean. A message reads "Code: text". A code is more specific than a HTTP status.

    ``scopes``: how far a quota reaches. If counted in cores, a smaller type may still fit. A quota that is not
    listed applies to the whole account. ``gone_suffix``: of every code for something that does not exist.
    """

    kinds: Mapping[str, FailureKind] = field(default_factory=dict)
    scopes: Mapping[str, QuotaScope] = field(default_factory=dict)
    gone_suffix: str = ""

    def kind_of(self, code: str, *, creating: bool) -> FailureKind | None:
        """Return the kind of an error; None for a code that is not listed."""
        kind = FailureKind.GONE if self.gone_suffix and code.endswith(self.gone_suffix) else self.kinds.get(code)
        # For a create, the missing thing is its image, network or key.
        return FailureKind.CONFIG if kind is FailureKind.GONE and creating else kind


NO_CODES = ErrorCodes()
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


class LibcloudPort(ABC):
    """The cloud port of one account, region and cluster. The port and its driver serve one thread."""

    codes = NO_CODES
    read_tries = READ_TRIES

    def __init__(self, driver: NodeDriver, settings: PortSettings) -> None:
        self._driver = driver
        self._settings = settings
        self._cluster = settings.cluster
        self._cluster_uuid = settings.cluster_uuid
        self._clock = settings.clock
        self._sweeper = LeftoverSweeper()

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        """Create the node of a launch. Raises :class:`CloudError`."""
        request = self._settings.request(launch, node_type)
        with self._as_cloud_errors(creating=True):
            return self._cloud_node(self._create_node(request))

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Return every node in the port's scope. Raises :class:`CloudError`."""
        return self._read_with_retries(lambda: tuple(self._cloud_node(node) for node in self._fetch_nodes()))

    def destroy(self, provider_id: ProviderId) -> None:
        """Destroy a node. A node that no longer exists is no error. Raises :class:`CloudError`."""
        accepted = True
        with self._ignoring_gone():
            accepted = self._driver.destroy_node(self._node_with_id(provider_id))
        if not accepted:
            raise CloudError(FailureKind.TRANSIENT, f"the provider refused to destroy {provider_id}")

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete the leftovers that two sweeps in a row found, and return them. Raises :class:`CloudError`."""
        return self._sweeper.sweep(self._leftovers(), self._remove)

    def _leftovers(self) -> frozenset[Leftover]:
        """Return this cluster's resources that belong to no node. List them before the nodes."""
        return frozenset()  # for providers whose nodes leave nothing behind

    def _remove(self, leftover: Leftover) -> None:
        """Delete one of them. One that no longer exists is no error."""
        raise NotImplementedError(leftover.kind)

    def _unless_forbidden(self, list_groups: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """Return the groups that ``list_groups`` finds. A site that needs none may lack the right to list them."""
        return groups_if_allowed(lambda: self._read_with_retries(list_groups), needed=self._settings.needs_groups)

    def _fetch_nodes(self) -> Sequence[Node]:
        """Return every node in the port's scope. Raises on an incomplete list."""
        return self._driver.list_nodes()

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

    def _was_made_for(self, node: Node, launch: LaunchId) -> bool:
        """Return whether the node's tags name this cluster and this launch."""
        identity = self._cloud_node(node).identity
        return identity is not None and (identity.cluster_uuid, identity.launch) == (self._cluster_uuid, launch)

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        """Classify a failure. A provider whose error codes are not all that tells overrides this."""
        return classify(error, creating=creating, now_at=self._clock.wall_at(), codes=self.codes)

    def _read_with_retries(self, call: Callable[[], T]) -> T:
        """Make a call that changes nothing. Retry transient failures, then raise the error of the last try."""

        def read_once() -> T:
            with self._as_cloud_errors():
                return call()

        retrying = Retrying(
            stop=stop_after_attempt(self.read_tries) | stop_after_delay(READ_TRIES_S),
            wait=wait_random_exponential(multiplier=0.5, max=READ_PAUSE_MAX_S),
            retry=retry_if_exception(_may_retry),
            sleep=self._settings.sleep,
            reraise=True,
        )
        return retrying(read_once)

    @contextmanager
    def _as_cloud_errors(self, *, creating: bool = False) -> Iterator[None]:
        """Convert foreseen errors to :class:`CloudError`. Any other exception is a bug and passes through."""
        try:
            yield
        except MisconfiguredError as error:
            raise CloudError(FailureKind.CONFIG, str(error.value)) from error
        except (BaseHTTPError, LibcloudError, OSError) as error:
            raise self._to_cloud_error(error, creating=creating) from error

    @contextmanager
    def _ignoring_gone(self) -> Iterator[None]:
        """Let a deleting call succeed if its target no longer exists."""
        try:
            with self._as_cloud_errors():
                yield
        except CloudError as error:
            if error.kind is not FailureKind.GONE:
                raise


def _may_retry(error: BaseException) -> bool:
    return isinstance(error, CloudError) and error.kind is FailureKind.TRANSIENT


def classify(
    error: BaseHTTPError | LibcloudError | OSError, *, creating: bool, now_at: float, codes: ErrorCodes = NO_CODES
) -> CloudError:
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
    kind = codes.kind_of(detail.partition(":")[0], creating=creating) or _kind_of_status(
        _status_of(error), unsure, creating=creating
    )
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    retry_after = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    return cloud_error(kind, detail, parse_retry_after(retry_after, now_at), codes.scopes)


@contextmanager
def reading(clock: Clock, codes: ErrorCodes = NO_CODES) -> Iterator[None]:
    """Raise the foreseen errors of calls that only read as :class:`CloudError`."""
    try:
        yield
    except (BaseHTTPError, LibcloudError, OSError) as error:
        raise classify(error, creating=False, now_at=clock.wall_at(), codes=codes) from error


def cloud_error(
    kind: FailureKind, detail: str, retry_after_s: float = 0.0, scopes: Mapping[str, QuotaScope] = NO_CODES.scopes
) -> CloudError:
    """Build a :class:`CloudError`. For a quota error, derive the quota's scope from the provider's text."""
    if kind is not FailureKind.QUOTA:
        return CloudError(kind, detail, retry_after_s)
    by_size = QuotaScope.TYPE if _QUOTA_BY_SIZE.search(detail.replace("_", " ")) else None
    return CloudError(kind, detail, retry_after_s, scopes.get(detail.partition(":")[0], by_size))


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
