"""The cloud port whose nodes are the pods of one MiniCluster.

Every change is one PATCH of ``spec.size`` and of the annotations that record the launches. It carries the resource
version of the object as it was read: if somebody else has changed it since, the PATCH is refused, and made again on
the new state. That the PATCH succeeded says nothing: the operator may ignore it. Only ``status.size`` and the
pods, which ``list_nodes`` reads, show what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Protocol
from urllib.parse import quote

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.minicluster.access import Access, AccessError, from_kubeconfig, in_cluster
from nodemanager.cloud.minicluster.client import Client, Conflict
from nodemanager.cloud.minicluster.objects import (
    GROUP,
    KIND,
    VERSION,
    Launched,
    MiniCluster,
    Owner,
    Scope,
    UnreadableObject,
    cloud_nodes,
    read_minicluster,
    read_pods,
)
from nodemanager.cloud.minicluster.resize import Allowance, Answer, Resize, resize
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudNode, FailureKind, Launch, Leftover, ProviderId
from nodemanager.core.orders import CloudEffect, CreateNode, DestroyNode
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import NodeType

LONG_GONE_S = 60.0  # how long a pod must be gone before an operator counts that still shows the larger size
TRIES = 5  # of a PATCH that others' changes refuse


class SizeDenied(Exception):
    """The service that shares pods allows a smaller size only."""

    def __init__(self, allowed: Allowance) -> None:
        super().__init__(allowed.why)
        self.allowed = allowed


class SizeService(Protocol):
    """A service that changes the size for us, because pods are shared among several MiniClusters."""

    def change(self, found: MiniCluster, change: Resize) -> None:
        """Change it. Raises :class:`SizeDenied`, :class:`Conflict`, and :class:`CloudError`."""
        ...


class Paths:
    """The paths of one MiniCluster's objects at the API server."""

    def __init__(self, namespace: str, name: str) -> None:
        within = f"namespaces/{quote(namespace, safe='')}"
        self.miniclusters = f"/apis/{GROUP}/{VERSION}/{within}/miniclusters"
        self.minicluster = f"{self.miniclusters}/{quote(name, safe='')}"
        self.pods = f"/api/v1/{within}/pods"
        self.autoscalers = f"/apis/autoscaling/v2/{within}/horizontalpodautoscalers"


class MiniClusterCloud:
    """One MiniCluster as a provider (:class:`nodemanager.core.ports.SizedCloudPort`)."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        scope: Scope,
        clock: Clock,
        *,
        call_timeout_s: float = 60.0,
        service: SizeService | None = None,
    ) -> None:
        self._client = client
        self._service = service
        self._namespace = namespace
        self._name = name
        self._paths = Paths(namespace, name)
        self._scope = scope
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._gone_s: dict[int, float] = {}  # by index above the size: since when lists show no pod of it

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        """Add the next index. Raises :class:`CloudError`, also if the slot is not the next one."""
        answer = self.resize([CreateNode(launch, node_type)])[0]
        if not isinstance(answer, CloudNode):
            raise answer or CloudError(FailureKind.AMBIGUOUS, f"{launch.slot} is not listed")
        return answer

    def destroy(self, provider_id: ProviderId) -> None:
        """Remove the highest index. Raises :class:`CloudError`, also if a higher one stays."""
        reason = because(Code.STOPPING)
        answer = self.resize([DestroyNode(None, provider_id, reason)])[0]
        if isinstance(answer, CloudError):
            raise answer

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Return the nodes in the order of their indexes. Raises :class:`CloudError`."""
        # The pods first: a pod that appears after this look belongs to an index that the size below includes.
        pods = self._client.list(self._paths.pods, labelSelector=f"job-name={self._name}")
        found = self._read()
        try:
            by_index = read_pods(pods)
            return cloud_nodes(found, by_index, self._scope, self._long_gone(found, by_index))
        except UnreadableObject as error:
            raise CloudError(FailureKind.TRANSIENT, f"a pod of MiniCluster {self._name}: {error}") from error

    def _long_gone(self, found: MiniCluster, pods: Container[int]) -> frozenset[int]:
        """Return the indexes above the size that have had no pod for long.

        The operator ignores errors of its status updates, so it may show the larger size for ever.
        """
        now_s = self._clock.monotonic_s()
        gone = [index for index in found.launched if index >= found.size and index not in pods]
        self._gone_s = {index: self._gone_s.get(index, now_s) for index in gone}
        return frozenset(index for index, since_s in self._gone_s.items() if now_s - since_s >= LONG_GONE_S)

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete nothing: pods leave nothing behind."""
        return ()

    def resize(self, orders: Sequence[CloudEffect]) -> Sequence[Answer]:
        """Carry out all orders by one PATCH. Raises :class:`CloudError` if the call fails as a whole."""
        started_s = self._clock.monotonic_s()
        allowed: Allowance | None = None
        for _ in range(TRIES):
            found = self._read()
            if found.why_unusable:
                raise CloudError(FailureKind.CONFIG, f"MiniCluster {self._name}: {found.why_unusable}")
            launched = {
                at: Launched(order.launch.id, order.node_type.name, order.launch.requested_at)
                for at, order in enumerate(orders)
                if isinstance(order, CreateNode)
            }
            change = resize(found, orders, self._scope, launched, allowed)
            if change.patch is not None:
                self._refuse_autoscaler()
                if self._clock.monotonic_s() - started_s >= self._call_timeout_s:
                    raise CloudError(
                        FailureKind.TRANSIENT, "reading the MiniCluster took too long: it is unchanged"
                    )
                try:
                    found = self._change(found, change)
                except Conflict:
                    continue
                except SizeDenied as denied:
                    allowed = denied.allowed
                    continue
            return [change.refused.get(at) or self._answer(order, found) for at, order in enumerate(orders)]
        raise CloudError(FailureKind.TRANSIENT, f"MiniCluster {self._name} changed {TRIES} times during the call")

    def _change(self, found: MiniCluster, change: Resize) -> MiniCluster:
        """Make the change, and return the new state."""
        if self._service is not None:
            self._service.change(found, change)
            return self._read()
        try:
            return read_minicluster(self._client.patch(self._paths.minicluster, change.patch or {}))
        except UnreadableObject as error:
            raise CloudError(FailureKind.AMBIGUOUS, f"MiniCluster {self._name}: {error}") from error

    def _answer(self, order: CloudEffect, found: MiniCluster) -> Answer:
        if isinstance(order, DestroyNode):
            return None
        # No pod is looked up: a new node is pending, and the next list shows more.
        for node in cloud_nodes(found, {}, self._scope):
            if node.identity is not None and node.identity.launch == order.launch.id:
                return node
        return CloudError(FailureKind.AMBIGUOUS, f"{order.launch.slot} was added, but the annotation is missing")

    def _read(self) -> MiniCluster:
        try:
            found = read_minicluster(self._client.get(self._paths.minicluster))
        except UnreadableObject as error:
            raise CloudError(FailureKind.CONFIG, f"MiniCluster {self._name} cannot be read: {error}") from error
        # Without the service, nobody removes what it has once written there.
        return found if self._service is not None else replace(found, share="")

    def _refuse_autoscaler(self) -> None:
        """Raise :class:`CloudError` if a HorizontalPodAutoscaler changes the size too."""
        for item in self._client.list(self._paths.autoscalers):
            target = (item.get("spec") or {}).get("scaleTargetRef") or {}
            if (target.get("kind"), target.get("name")) == (KIND, self._name):
                name = (item.get("metadata") or {}).get("name")
                raise CloudError(
                    FailureKind.CONFIG,
                    f"HorizontalPodAutoscaler {name} in namespace {self._namespace} scales MiniCluster "
                    f"{self._name} too: delete it, or write mode = observe",
                )


# --- the ports of a site ----------------------------------------------------------------------------------


def ports_of(site: Site, settings: PortSettings) -> Callable[[], MiniClusterCloud]:
    """Return a factory of ports. Raises :class:`CloudError` if there is no access to an API server."""
    access, namespace = access_of(site, settings.clock)
    scope = Scope(site.cluster, site.cluster_uuid, site.node_types[0].name, Owner(site.cloud.owner))
    timeout_s, service = settings.call_timeout_s, settings.size_service
    return lambda: MiniClusterCloud(
        Client(access, settings.clock, timeout_s=timeout_s),
        namespace,
        site.cloud.name,
        scope,
        settings.clock,
        call_timeout_s=timeout_s,
        service=service,
    )


def access_of(site: Site, clock: Clock) -> tuple[Access, str]:
    """Return the access to the API server, and the namespace. Raises :class:`CloudError`."""
    kubeconfig = site.cloud.kubeconfig
    try:
        access = from_kubeconfig(kubeconfig, clock.wall_at) if kubeconfig is not None else in_cluster()
    except AccessError as error:
        raise CloudError(FailureKind.CREDENTIALS, str(error)) from error
    return access, site.cloud.namespace or access.namespace or "default"
