"""Builds MiniCluster ports and their watch from a site's configuration."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.cloud.minicluster.access import Access, AccessError, from_kubeconfig, in_cluster
from nodemanager.cloud.minicluster.client import Client
from nodemanager.cloud.minicluster.objects import Owner, Scope
from nodemanager.cloud.minicluster.port import MiniClusterCloud, SizeService
from nodemanager.cloud.minicluster.watch import MiniClusterWatch
from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError, CloudPort, CloudWatch


def minicluster_factory(site: Site, clock: Clock, service: SizeService | None = None) -> Callable[[], CloudPort]:
    """Return a factory of ports. ``service`` changes the size for them.

    Raises :class:`CloudError` if there is no access to an API server.
    """
    access, namespace = _access(site, clock)
    scope = Scope(site.cluster, site.cluster_uuid, site.node_types[0].name, Owner(site.cloud.owner))
    timeout_s = site.cloud.call_timeout_s
    return lambda: MiniClusterCloud(
        Client(access, clock, timeout_s=timeout_s),
        namespace,
        site.cloud.name,
        scope,
        clock,
        call_timeout_s=timeout_s,
        service=service,
    )


def minicluster_watch(site: Site, clock: Clock) -> CloudWatch:
    """Return the watch of the site's MiniCluster. Raises :class:`CloudError`."""
    access, namespace = _access(site, clock)
    return MiniClusterWatch(
        lambda: Client(access, clock, timeout_s=site.cloud.call_timeout_s), namespace, site.cloud.name
    )


def _access(site: Site, clock: Clock) -> tuple[Access, str]:
    kubeconfig = site.cloud.kubeconfig
    try:
        access = from_kubeconfig(kubeconfig, clock.wall_at) if kubeconfig is not None else in_cluster()
    except AccessError as error:
        raise CloudError(FailureKind.CREDENTIALS, str(error)) from error
    return access, site.cloud.namespace or access.namespace or "default"
