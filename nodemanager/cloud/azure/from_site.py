"""Azure as a site has it: its ports, where its nodes are put."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.cloud.azure.driver import AzureDriver
from nodemanager.cloud.azure.port import AzureCloud, AzurePlacement
from nodemanager.cloud.common.libcloud_port import UserDataSource
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def azure_factory(site: Site, user_data: UserDataSource, clock: Clock) -> Callable[[], CloudPort]:
    placements = placements_of(site)
    given = site.secrets

    def port() -> CloudPort:
        driver = AzureDriver(
            given["tenant_id"],
            given["subscription_id"],
            given["client_id"],
            given["client_secret"],
            site.cloud.resource_group,
            timeout_s=site.cloud.call_timeout_s,
        )
        return AzureCloud(
            driver,
            site.cloud.region,
            site.cloud.ssh_public_key,
            placements,
            site.cluster,
            site.cluster_uuid,
            user_data,
            clock,
            call_timeout_s=site.cloud.call_timeout_s,
        )

    return port


def placements_of(site: Site) -> dict[TypeName, AzurePlacement]:
    cloud = site.cloud
    return {
        name: AzurePlacement(node.network or cloud.network, next(iter(node.zones or cloud.zones), ""))
        for name, node in site.nodes.items()
    }
