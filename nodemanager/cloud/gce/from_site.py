"""Google Compute Engine as a site has it: its ports, where its nodes are put."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from nodemanager.cloud.common.libcloud_port import UserDataSource
from nodemanager.cloud.gce.credentials import (
    METADATA_SERVICE,
    CachedTokens,
    TokenGrant,
    instance_token_fetcher,
    key_token_fetcher,
)
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.port import GceCloud, GcePlacement
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def gce_factory(site: Site, user_data: UserDataSource, clock: Clock) -> Callable[[], CloudPort]:
    placements = placements_of(site)
    ask = token_fetcher(site.secrets, os.environ, site.cloud.call_timeout_s)

    def port() -> CloudPort:
        driver = GceDriver(site.cloud.project, CachedTokens(ask, clock), timeout_s=site.cloud.call_timeout_s)
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


def token_fetcher(
    secrets: Mapping[str, str], environment: Mapping[str, str], timeout_s: float
) -> Callable[[], TokenGrant]:
    """Where tokens come from: the site's key, else the instance (at ``GCE_METADATA_HOST``, as Google's tools)."""
    if "service_account" in secrets:
        return key_token_fetcher(secrets["service_account"], secrets["key"], timeout=timeout_s)
    host = environment.get("GCE_METADATA_HOST")
    return instance_token_fetcher(f"http://{host}" if host else METADATA_SERVICE)


def placements_of(site: Site) -> dict[TypeName, GcePlacement]:
    cloud = site.cloud
    return {
        name: GcePlacement(node.network or cloud.network, node.zones or cloud.zones)
        for name, node in site.nodes.items()
    }
