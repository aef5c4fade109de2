"""Builds Azure ports from a site's configuration."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.cloud.azure.driver import AzureDriver
from nodemanager.cloud.azure.port import AzureCloud, AzurePlacement
from nodemanager.cloud.common.libcloud_port import UserDataSource
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def azure_factory(site: Site, user_data: UserDataSource, clock: Clock) -> Callable[[], CloudPort]:
    """Return a factory of ports. Each port logs in on its own."""
    placements = placements_of(site)

    def port() -> CloudPort:
        return AzureCloud(
            azure_driver(site),
            site.cloud.region,
            site.cloud.ssh_public_key,
            placements,
            site.cluster,
            site.cluster_uuid,
            user_data,
            clock,
            call_timeout_s=site.cloud.call_timeout_s,
            needs_groups=site.needs_groups,
        )

    return port


def azure_driver(site: Site) -> AzureDriver:
    """Return a connection to the site's resource group."""
    secrets = site.secrets
    return AzureDriver(
        secrets["tenant_id"],
        secrets["subscription_id"],
        secrets["client_id"],
        secrets["client_secret"],
        site.cloud.resource_group,
        timeout_s=site.cloud.call_timeout_s,
    )


def placements_of(site: Site) -> dict[TypeName, AzurePlacement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: AzurePlacement(node.network or cloud.network, next(iter(node.zones or cloud.zones), ""))
        for name, node in site.nodes.items()
    }
