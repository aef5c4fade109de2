"""Builds EC2 ports from a site's configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from nodemanager.cloud.common.libcloud_port import BatchScript, UserDataSource
from nodemanager.cloud.ec2.credentials import KeySource, key_source
from nodemanager.cloud.ec2.driver import Ec2Driver, endpoint_of
from nodemanager.cloud.ec2.port import Ec2Cloud
from nodemanager.cloud.ec2.quotas import CpuQuota, read_cpu_quotas
from nodemanager.cloud.ec2.run_instances import Ec2Placement
from nodemanager.config.providers.ec2 import subnets_of
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort
from nodemanager.core.slots import TypeName


def ec2_factory(
    site: Site, user_data: UserDataSource, clock: Clock, batch_script: BatchScript | None = None
) -> Callable[[], CloudPort]:
    """Return a factory of ports. All ports share one source of keys, so a role's keys are fetched once."""
    keys = key_source(site.credentials, os.environ, clock)
    return lambda: _make_port(site, user_data, clock, keys, batch_script)


def ec2_cloud(site: Site, user_data: UserDataSource, clock: Clock) -> Ec2Cloud:
    """Return one port."""
    return _make_port(site, user_data, clock, key_source(site.credentials, os.environ, clock))


def ec2_quotas(site: Site, clock: Clock) -> tuple[CpuQuota, ...]:
    """Read the region's quotas on virtual CPUs. Raises :class:`CloudError`."""
    endpoint = endpoint_of(site.cloud.region, site.cloud.endpoint)
    keys = key_source(site.credentials, os.environ, clock)
    return read_cpu_quotas(endpoint, keys, clock, site.cloud.call_timeout_s)


def _make_port(
    site: Site, user_data: UserDataSource, clock: Clock, keys: KeySource, batch_script: BatchScript | None = None
) -> Ec2Cloud:
    timeout_s = site.cloud.call_timeout_s
    driver = Ec2Driver(endpoint_of(site.cloud.region, site.cloud.endpoint), keys, timeout_s=timeout_s)
    placements = placements_of(site)
    return Ec2Cloud(
        driver,
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        placements,
        call_timeout_s=timeout_s,
        needs_groups=site.needs_groups,
        batch_script=batch_script,
    )


def placements_of(site: Site) -> Mapping[TypeName, Ec2Placement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: Ec2Placement(
            subnets=subnets_of(node, cloud),
            security_groups=node.security_groups or cloud.security_groups,
            key_name=node.key_name or cloud.key_name,
            instance_profile=node.instance_profile or cloud.instance_profile,
        )
        for name, node in site.nodes.items()
    }
