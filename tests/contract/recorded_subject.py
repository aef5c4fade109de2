"""The common part of subjects whose provider is a small state behind HTTP, in the forms that libcloud recorded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nodemanager.core.nodes import Identity, ProviderId
from nodemanager.core.ports import CloudPort
from tests.cloud.recorded import Service, a_service
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, CloudSubject, a_node_of, until

BOOTS_AFTER = 2  # lists
GOES_AFTER = 2


@dataclass
class Kept:
    """A node at the provider, how often it was listed, and at which list it disappears."""

    body: dict[str, Any]
    listed: int = 0
    leaves_at: int | None = None

    def leaves(self) -> None:
        if self.leaves_at is None:
            self.leaves_at = self.listed + GOES_AFTER


class FaultyService(Service):
    """A service with faults. ``losing``: creates succeed without an answer. ``refusal``: the answer to creates."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.losing = self.throttling = False
        self.refusal: tuple[int, str] | None = None


S = TypeVar("S", bound=FaultyService)


class RecordedSubject(CloudSubject, Generic[S]):
    remembers_the_dead = False
    over_quota: tuple[int, str]  # the provider's refusal

    def __init__(self, kind: type[S]) -> None:
        self._open = ExitStack()
        self.service = self._open.enter_context(a_service(kind))
        self.port = self.another_port()

    @abstractmethod
    def a_port_of(self, cluster: str, cluster_uuid: str) -> CloudPort:
        """Return a port of any cluster at this service."""

    @abstractmethod
    def add_untagged(self) -> ProviderId:
        """Add a node without tags."""

    def another_port(self) -> CloudPort:
        return self.a_port_of(CLUSTER, CLUSTER_UUID)

    def port_of(self, cluster_uuid: str) -> CloudPort:
        return self.a_port_of(CLUSTER, cluster_uuid)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until(reached, what)

    def close(self) -> None:
        self._open.close()

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            return self.add_untagged()
        return a_node_of(self.a_port_of(identity.cluster, identity.cluster_uuid), identity)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        self.service.losing = True
        yield
        self.service.losing = False

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        with self.refusing(self.over_quota):
            yield

    @contextmanager
    def refusing(self, refusal: tuple[int, str]) -> Iterator[None]:
        self.service.refusal = refusal
        yield
        self.service.refusal = None

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.service.throttling = True
        yield
        self.service.throttling = False
