"""Builds Compute Engine ports from a site's configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from nodemanager.cloud.common.libcloud_port import BatchScript, UserDataSource
from nodemanager.cloud.gce.credentials import (
    METADATA_SERVICE,
    CachedTokens,
    TokenGrant,
    instance_token_fetcher,
    key_token_fetcher,
)
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.identity_keys import KeyCourier, KeyFile
from nodemanager.cloud.gce.instances import GcePlacement
from nodemanager.cloud.gce.port import GceBatchCloud
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def gce_factory(
    site: Site,
    user_data: UserDataSource,
    clock: Clock,
    batch_script: BatchScript | None = None,
    key_file: KeyFile | None = None,
) -> Callable[[], CloudPort]:
    """Return a factory of ports. Each port keeps a token of its own.

    ``key_file``: where the port that lists the nodes puts the keys that prove their identities.
    """
    placements = placements_of(site)
    fetch_token = token_fetcher(site.secrets, os.environ, site.cloud.call_timeout_s)

    def port() -> CloudPort:
        driver = _driver(site, fetch_token, clock)
        return GceBatchCloud(
            driver,
            placements,
            site.cluster,
            site.cluster_uuid,
            user_data,
            clock,
            call_timeout_s=site.cloud.call_timeout_s,
            needs_groups=site.needs_groups,
            batch_script=batch_script,
            keys=KeyCourier(driver, key_file, clock) if key_file is not None else None,
        )

    return port


def gce_driver(site: Site, clock: Clock) -> GceDriver:
    """Return a connection to the site's project."""
    return _driver(site, token_fetcher(site.secrets, os.environ, site.cloud.call_timeout_s), clock)


def _driver(site: Site, fetch_token: Callable[[], TokenGrant], clock: Clock) -> GceDriver:
    return GceDriver(site.cloud.project, CachedTokens(fetch_token, clock), timeout_s=site.cloud.call_timeout_s)


def token_fetcher(
    secrets: Mapping[str, str], environment: Mapping[str, str], timeout_s: float
) -> Callable[[], TokenGrant]:
    """Return a function that fetches tokens with the site's key, or else from the instance's metadata service.

    Like Google's tools, it finds that service at ``GCE_METADATA_HOST`` if the variable is set.
    """
    if "service_account" in secrets:
        return key_token_fetcher(secrets["service_account"], secrets["key"], timeout=timeout_s)
    host = environment.get("GCE_METADATA_HOST")
    return instance_token_fetcher(f"http://{host}" if host else METADATA_SERVICE)


def placements_of(site: Site) -> dict[TypeName, GcePlacement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: GcePlacement(node.network or cloud.network, node.zones or cloud.zones, cloud.node_service_account)
        for name, node in site.nodes.items()
    }
