"""The actors that call the cloud. Each owns its port, for a libcloud driver belongs to one thread."""

from __future__ import annotations

from typing import assert_never

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.facts import (
    CloudCallFailed,
    CloudFact,
    CloudListed,
    LeftoversRemoved,
    NodeCreated,
    NodeDestroyed,
)
from nodemanager.messages import Mailbox
from nodemanager.orders import CloudOrder, CreateNode, DestroyNode, ListCloud, SweepCloud
from nodemanager.ports import Clock, CloudError, CloudPort


class CloudWatcher(CrashOnlyActor):
    """Lists what stands at the provider, and sweeps up what nodes left there, when asked."""

    def __init__(self, port: CloudPort, clock: Clock, manager: Mailbox[CloudFact], fate: Fate) -> None:
        super().__init__(fate)
        self._port = port
        self._clock = clock
        self._manager = manager

    def on_receive(self, message: ListCloud | SweepCloud) -> None:
        match message:
            case ListCloud():
                self._list()
            case SweepCloud():
                self._sweep()
            case _:
                assert_never(message)

    def _sweep(self) -> None:
        try:
            removed = self._port.sweep()
        except CloudError as error:
            self._manager.tell(CloudCallFailed("sweep", None, error.kind, error.detail, error.retry_after_s))
        else:
            self._manager.tell(LeftoversRemoved(removed))

    def _list(self) -> None:
        started_s = self._clock.monotonic_s()
        try:
            nodes = self._port.list_nodes()
        except CloudError as error:
            self._manager.tell(CloudCallFailed("list", None, error.kind, error.detail, error.retry_after_s))
        else:
            self._manager.tell(CloudListed(started_s, nodes))


class CloudWorker(CrashOnlyActor):
    """Creates and destroys nodes, one call at a time."""

    def __init__(self, port: CloudPort, manager: Mailbox[CloudFact], fate: Fate) -> None:
        super().__init__(fate)
        self._port = port
        self._manager = manager

    def on_receive(self, message: CloudOrder) -> None:
        match message:
            case CreateNode():
                self._create(message)
            case DestroyNode():
                self._destroy(message)
            case _:
                assert_never(message)

    def _create(self, order: CreateNode) -> None:
        launch = order.launch.id
        try:
            node = self._port.create(order.launch, order.node_type)
        except CloudError as error:
            self._manager.tell(CloudCallFailed("create", launch, error.kind, error.detail, error.retry_after_s))
        else:
            self._manager.tell(NodeCreated(launch, node))

    def _destroy(self, order: DestroyNode) -> None:
        try:
            self._port.destroy(order.provider_id)
        except CloudError as error:
            self._manager.tell(
                CloudCallFailed("destroy", order.launch, error.kind, error.detail, error.retry_after_s)
            )
        else:
            self._manager.tell(NodeDestroyed(order.launch, order.provider_id))
