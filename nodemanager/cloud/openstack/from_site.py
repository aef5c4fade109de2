"""Builds OpenStack ports from a site's configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from nodemanager.cloud.common.libcloud_port import UserDataSource
from nodemanager.cloud.openstack.driver import OpenStackAccount
from nodemanager.cloud.openstack.port import OpenStackCloud, OpenStackPlacement
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def openstack_factory(site: Site, user_data: UserDataSource, clock: Clock) -> Callable[[], CloudPort]:
    """Return a factory of ports. Each port logs in on its own."""
    making_group = threading.Lock()
    return lambda: openstack_cloud(site, user_data, clock, making_group)


def openstack_cloud(
    site: Site, user_data: UserDataSource, clock: Clock, making_group: threading.Lock | None = None
) -> OpenStackCloud:
    """Return one port. Ports that work at the same time share ``making_group``."""
    return OpenStackCloud(
        account_of(site),
        placements_of(site),
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        call_timeout_s=site.cloud.call_timeout_s,
        needs_groups=site.needs_groups,
        making_group=making_group,
    )


def account_of(site: Site) -> OpenStackAccount:
    """Return the login in the site's credentials."""
    account = OpenStackAccount.from_credentials(site.cloud.auth_url, site.cloud.region, site.secrets)
    return replace(account, microversion=site.cloud.microversion)


def placements_of(site: Site) -> dict[TypeName, OpenStackPlacement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: OpenStackPlacement(
            networks=tuple((node.network or cloud.network).split(",")),
            security_groups=node.security_groups or cloud.security_groups,
            key_name=node.key_name or cloud.key_name,
            config_drive=cloud.config_drive,
        )
        for name, node in site.nodes.items()
    }
