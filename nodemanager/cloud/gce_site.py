"""Google Compute Engine as a site has it: its ports, where its nodes are put."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.cloud.gce import GceCloud, Placement
from nodemanager.cloud.gce_driver import GceDriver
from nodemanager.cloud.libcloud_port import UserData
from nodemanager.config import Site
from nodemanager.model import TypeName
from nodemanager.ports import Clock, CloudPort


def factory(site: Site, user_data: UserData, clock: Clock) -> Callable[[], CloudPort]:
    placements = placements_of(site)
    given = site.secrets

    def port() -> CloudPort:
        driver = GceDriver(
            site.cloud.project,
            given.get("service_account", ""),
            given.get("key", ""),
            timeout_s=site.cloud.call_timeout_s,
        )
        return GceCloud(
            driver,
            placements,
            site.cluster,
            site.cluster_uuid,
            user_data,
            clock,
            call_timeout_s=site.cloud.call_timeout_s,
        )

    return port


def placements_of(site: Site) -> dict[TypeName, Placement]:
    cloud = site.cloud
    return {
        name: Placement(node.network or cloud.network, node.zones or cloud.zones)
        for name, node in site.nodes.items()
    }
