"""A cloud port that retries reads. It never retries a create or a destroy: the planner decides about those."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node, NodeDriver
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from nodemanager.cloud.common.libcloud_port import LibcloudPort, UserDataSource, classify, refuse_late_create
from nodemanager.cloud.common.transport import MisconfiguredError
from nodemanager.core.nodes import CloudNode, FailureKind, LaunchId
from nodemanager.core.ports import Clock, CloudError

READ_TRIES = 3
READ_TRIES_S = 30.0  # no new try after this time
READ_PAUSE_MAX_S = 4.0

Sleep = Callable[[float], None]
T = TypeVar("T")


class RetryingPort(LibcloudPort):
    """A libcloud port that retries reads a few times and lets each provider classify its own errors."""

    def __init__(
        self,
        driver: NodeDriver,
        cluster: str,
        cluster_uuid: str,
        user_data: UserDataSource,
        clock: Clock,
        *,
        call_timeout_s: float,
        sleep: Sleep = time.sleep,
    ) -> None:
        super().__init__(driver, cluster, cluster_uuid, user_data, clock)
        self._call_timeout_s = call_timeout_s
        self._sleep = sleep

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Return every node in the port's scope. Raises :class:`CloudError`."""
        return self._read_with_retries(lambda: tuple(self._cloud_node(node) for node in self._fetch_nodes()))

    @abstractmethod
    def _fetch_nodes(self) -> Sequence[Node]:
        """Return every node in the port's scope. Raises on an incomplete list."""

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        """Classify a failure. A provider with error codes of its own overrides this."""
        return classify(error, creating=creating, now_at=self._clock.wall_at())

    def _read_with_retries(self, call: Callable[[], T]) -> T:
        """Make a call that changes nothing. Retry transient failures, then raise the error of the last try."""

        def read_once() -> T:
            with self._as_cloud_errors():
                return call()

        retrying = Retrying(
            stop=stop_after_attempt(READ_TRIES) | stop_after_delay(READ_TRIES_S),
            wait=wait_random_exponential(multiplier=0.5, max=READ_PAUSE_MAX_S),
            retry=retry_if_exception(_may_retry),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(read_once)

    def _was_made_for(self, node: Node, launch: LaunchId) -> bool:
        """Return whether the node's tags name this cluster and this launch."""
        identity = self._cloud_node(node).identity
        return identity is not None and (identity.cluster_uuid, identity.launch) == (self._cluster_uuid, launch)

    def _refuse_late_create(self, started_s: float) -> None:
        refuse_late_create(self._clock, started_s, self._call_timeout_s)

    @contextmanager
    def _as_cloud_errors(self, *, creating: bool = False) -> Iterator[None]:
        try:
            yield
        except MisconfiguredError as error:
            raise CloudError(FailureKind.CONFIG, str(error.value)) from error
        except (BaseHTTPError, LibcloudError, OSError) as error:
            raise self._to_cloud_error(error, creating=creating) from error


def _may_retry(error: BaseException) -> bool:
    return isinstance(error, CloudError) and error.kind is FailureKind.TRANSIENT
