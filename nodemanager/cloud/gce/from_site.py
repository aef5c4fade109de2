"""Google Compute Engine as a site has it: its ports, where its nodes are put."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from nodemanager.cloud.common.libcloud_port import UserData
from nodemanager.cloud.gce.credentials import METADATA_SERVICE, Granted, Tokens, by_key, of_this_instance
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.port import GceCloud, Placement
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def factory(site: Site, user_data: UserData, clock: Clock) -> Callable[[], CloudPort]:
    placements = placements_of(site)
    ask = login_of(site.secrets, os.environ, site.cloud.call_timeout_s)

    def port() -> CloudPort:
        driver = GceDriver(site.cloud.project, Tokens(ask, clock), timeout_s=site.cloud.call_timeout_s)
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


def login_of(secrets: Mapping[str, str], environment: Mapping[str, str], timeout_s: float) -> Callable[[], Granted]:
    """Where tokens come from: the site's key, else the instance (at ``GCE_METADATA_HOST``, as Google's tools)."""
    if "service_account" in secrets:
        return by_key(secrets["service_account"], secrets["key"], timeout=timeout_s)
    host = environment.get("GCE_METADATA_HOST")
    return of_this_instance(f"http://{host}" if host else METADATA_SERVICE)


def placements_of(site: Site) -> dict[TypeName, Placement]:
    cloud = site.cloud
    return {
        name: Placement(node.network or cloud.network, node.zones or cloud.zones)
        for name, node in site.nodes.items()
    }
