"""The actors that call the cloud. Each owns its own port, because a libcloud driver belongs to one thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, assert_never

import structlog

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.messages import Mailbox
from nodemanager.core.facts import (
    CloudCallFailed,
    CloudFact,
    CloudListed,
    LeftoversRemoved,
    NodeCreated,
    NodeDestroyed,
    OrderLapsed,
)
from nodemanager.core.nodes import CloudNode
from nodemanager.core.orders import (
    CloudEffect,
    CloudOrder,
    CreateNode,
    DestroyNode,
    ListCloud,
    SweepCloud,
    Together,
)
from nodemanager.core.ports import (
    BatchCloudPort,
    Clock,
    CloudError,
    CloudPort,
    FluxError,
    Mandate,
    SizedCloudPort,
    unforeseen_as_cloud_error,
)
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName

REPEATED_AT = (10, 100, 1_000, 10_000, 100_000)  # the counts at which a repeated error is logged once more


class _UnforeseenLog:
    """Logs each unforeseen error of an adapter with its traceback when it first occurs, and then counts it."""

    def __init__(self) -> None:
        self._log: Any = structlog.get_logger()
        self._count: Counter[tuple[str, str]] = Counter()

    def note(self, operation: str, error: CloudError, cloud: CloudName) -> None:
        """Log the error if it was not foreseen."""
        if error.foreseen:
            return
        kind = operation, type(error.__cause__).__name__
        self._count[kind] += 1
        if self._count[kind] == 1:
            self._log.error("cloud_call_not_understood", cloud=cloud, operation=operation, exc_info=error)
        elif self._count[kind] in REPEATED_AT:
            self._log.warning(
                "cloud_call_not_understood", cloud=cloud, operation=operation, times=self._count[kind]
            )


class CloudWatcher(CrashOnlyActor):
    """Lists the nodes of one cloud and sweeps up resources that nodes left behind, each when ordered to."""

    def __init__(
        self,
        port: CloudPort,
        clock: Clock,
        manager: Mailbox[CloudFact],
        fate: Fate,
        cloud: CloudName = DEFAULT_CLOUD,
    ) -> None:
        super().__init__(fate)
        self._port = port
        self._clock = clock
        self._manager = manager
        self._cloud = cloud
        self._unforeseen = _UnforeseenLog()

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
            with unforeseen_as_cloud_error():
                removed = self._port.sweep()
        except CloudError as error:
            self._tell_failed("sweep", error)
        else:
            self._manager.tell(LeftoversRemoved(removed, self._cloud))

    def _list(self) -> None:
        started_s = self._clock.monotonic_s()
        try:
            with unforeseen_as_cloud_error():
                nodes = self._port.list_nodes()
        except CloudError as error:
            self._tell_failed("list", error)
        else:
            self._manager.tell(CloudListed(started_s, nodes, self._cloud))

    def _tell_failed(self, operation: str, error: CloudError) -> None:
        self._unforeseen.note(operation, error, self._cloud)
        self._manager.tell(
            CloudCallFailed(
                operation,
                None,
                error.kind,
                error.detail,
                error.retry_after_s,
                cloud=self._cloud,
                foreseen=error.foreseen,
            )
        )


class CloudWorker(CrashOnlyActor):
    """Creates and destroys nodes, one call at a time. A call may concern several nodes.

    Right before each call it checks that this manager still acts and that the order has not expired. So a process
    that was suspended, and resumed after another manager took over, does nothing more. It may still be suspended
    between the check and the call. The node created then carries the tags of its launch, and the other manager
    finds it by them.
    """

    def __init__(
        self, port: CloudPort, mandate: Mandate, clock: Clock, manager: Mailbox[CloudFact], fate: Fate
    ) -> None:
        super().__init__(fate)
        self._port = port
        self._mandate = mandate
        self._clock = clock
        self._manager = manager
        self._unforeseen = _UnforeseenLog()

    def on_receive(self, message: CloudOrder) -> None:
        order = message.order
        orders = order.orders if isinstance(order, Together) else (order,)
        if (why := self._reason_not_to_act(message.start_before_s)) is not None:
            for it in orders:
                self._manager.tell(_lapsed_fact(it, why))
            return
        match order:
            case Together():
                self._carry_out(orders)
            case CreateNode():
                self._create(order)
            case DestroyNode():
                self._destroy(order)
            case _:
                assert_never(order)

    def _reason_not_to_act(self, start_before_s: float) -> str | None:
        try:
            self._mandate.ensure_actor()
        except FluxError as error:
            return str(error)
        # Checked last, to keep the time between this check and the call as short as possible.
        late_s = self._clock.monotonic_s() - start_before_s
        return f"{late_s:.1f} s too late" if late_s > 0 else None

    def _carry_out(self, orders: Sequence[CloudEffect]) -> None:
        """Carry out several orders by one call. If it fails as a whole, all of them have failed."""
        creates = any(isinstance(order, CreateNode) for order in orders)
        try:
            with unforeseen_as_cloud_error(creating=creates):
                answers = self._call_once(orders)
                facts = [_fact_of_answer(*pair) for pair in zip(orders, answers, strict=True)]
        except CloudError as error:
            self._note(orders[0], error)
            facts = [_fact_of_answer(order, error) for order in orders]
        for fact in facts:
            self._manager.tell(fact)

    def _call_once(self, orders: Sequence[CloudEffect]) -> Sequence[CloudNode | CloudError | None]:
        port = self._port
        if isinstance(port, SizedCloudPort):
            return port.resize(orders)
        creates = [order for order in orders if isinstance(order, CreateNode)]
        destroys = [order for order in orders if isinstance(order, DestroyNode)]
        if not isinstance(port, BatchCloudPort) or (creates and destroys):
            raise TypeError(f"{type(port).__name__} cannot carry out these orders by one call")
        if creates:
            return port.create_many([order.launch for order in creates], creates[0].node_type)
        return port.destroy_many([order.provider_id for order in destroys])

    def _create(self, order: CreateNode) -> None:
        try:
            with unforeseen_as_cloud_error(creating=True):
                fact = _fact_of_answer(order, self._port.create(order.launch, order.node_type))
        except CloudError as error:
            self._note(order, error)
            fact = _fact_of_answer(order, error)
        self._manager.tell(fact)

    def _destroy(self, order: DestroyNode) -> None:
        answer: CloudError | None = None
        try:
            with unforeseen_as_cloud_error():
                self._port.destroy(order.provider_id)
        except CloudError as error:
            self._note(order, error)
            answer = error
        self._manager.tell(_fact_of_answer(order, answer))

    def _note(self, order: CloudEffect, error: CloudError) -> None:
        if isinstance(order, CreateNode):
            self._unforeseen.note("create", error, order.launch.cloud)
        else:
            self._unforeseen.note("destroy", error, order.cloud)


def _fact_of_answer(order: CloudEffect, answer: CloudNode | CloudError | None) -> CloudFact:
    """The fact that tells the answer to an order."""
    match order, answer:
        case CreateNode(launch=launch), CloudError() as error:
            return CloudCallFailed(
                "create",
                launch.id,
                error.kind,
                error.detail,
                error.retry_after_s,
                error.quota_scope,
                cloud=launch.cloud,
                foreseen=error.foreseen,
            )
        case CreateNode(launch=launch), CloudNode() as node:
            return NodeCreated(launch.id, node, launch.cloud)
        case DestroyNode(launch=launch_id, provider_id=id_, cloud=cloud), CloudError() as error:
            return CloudCallFailed(
                "destroy",
                launch_id,
                error.kind,
                error.detail,
                error.retry_after_s,
                provider_id=id_,
                cloud=cloud,
                foreseen=error.foreseen,
            )
        case DestroyNode(launch=launch_id, provider_id=id_, cloud=cloud), None:
            return NodeDestroyed(launch_id, id_, cloud)
    raise TypeError(f"{answer} is no answer to {order}")


def _lapsed_fact(order: CloudEffect, why: str) -> OrderLapsed:
    match order:
        case CreateNode(launch=launch):
            return OrderLapsed("CreateNode", (launch.id,), None, why)
        case DestroyNode(launch=launch_id, provider_id=provider_id):
            return OrderLapsed("DestroyNode", (launch_id,) if launch_id is not None else (), provider_id, why)
        case _:
            assert_never(order)
