"""Selects the adapter for a site's ``provider``.

Only the selected adapter is imported, because each one imports libraries of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, assert_never

from nodemanager.config.site import Provider, Site
from nodemanager.core.ports import Clock, CloudPort, CloudWatch

if TYPE_CHECKING:
    from nodemanager.cloud.common.libcloud_port import BatchScript, UserDataSource
    from nodemanager.cloud.gce.identity_keys import KeyFile
    from nodemanager.cloud.minicluster.port import SizeService

CloudFactory = Callable[[], CloudPort]


def cloud_factory(
    site: Site,
    user_data: UserDataSource,
    clock: Clock,
    size_service: SizeService | None = None,
    batch_script: BatchScript | None = None,
    key_file: KeyFile | None = None,
) -> CloudFactory:
    """Return a factory of ports for the site's cloud. Call it once for each thread: a port serves one thread.

    ``size_service``: what ``[Cloud] service`` names. ``batch_script``: the user-data of nodes that one call
    creates; None if the site's nodes are created one by one. ``key_file``: where Google's keys for them belong.
    """
    match site.cloud.provider:
        case Provider.LOCAL:
            return _local_factory(site, user_data, clock)
        case Provider.EC2:
            # libcloud imports it to compute fingerprints of key pairs. We never make key pairs.
            with _import_blocked("cryptography"):
                from nodemanager.cloud.ec2.from_site import ec2_factory  # noqa: PLC0415

            return ec2_factory(site, user_data, clock, batch_script)
        case Provider.OPENSTACK:
            from nodemanager.cloud.openstack.from_site import openstack_factory  # noqa: PLC0415

            return openstack_factory(site, user_data, clock)
        case Provider.GCE:
            from nodemanager.cloud.gce.from_site import gce_factory  # noqa: PLC0415

            return gce_factory(site, user_data, clock, batch_script, key_file)
        case Provider.AZURE:
            from nodemanager.cloud.azure.from_site import azure_factory  # noqa: PLC0415

            return azure_factory(site, user_data, clock)
        case Provider.MINICLUSTER:
            from nodemanager.cloud.minicluster.from_site import minicluster_factory  # noqa: PLC0415

            return minicluster_factory(site, clock, size_service)
        case Provider.STATIC:
            from nodemanager.cloud.static.from_site import static_factory  # noqa: PLC0415

            return static_factory(site, user_data, clock)
        case Provider.FLUX:
            return _outer_flux_factory(site, user_data, clock)
        case Provider.SIMULATED:
            # The config rejects this earlier: simulated nodes cannot join a real instance.
            raise ValueError("a simulated cloud has no nodes for a real Flux instance")
        case _:
            assert_never(site.cloud.provider)


def cloud_watch(site: Site, clock: Clock) -> CloudWatch | None:
    """Return the watch on the site's cloud; None if its provider has none."""
    if site.cloud.provider is not Provider.MINICLUSTER:
        return None
    from nodemanager.cloud.minicluster.from_site import minicluster_watch  # noqa: PLC0415

    return minicluster_watch(site, clock)


def provider_warnings(site: Site, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return warnings about the site that only its provider's adapter can give, one sentence each."""
    return tuple(
        part.cloud_section.in_own_words(text)
        for part in site.by_cloud.values()
        for text in _warnings_of(part, environment)
    )


def _warnings_of(site: Site, environment: Mapping[str, str]) -> tuple[str, ...]:
    match site.cloud.provider:
        case Provider.EC2:
            from nodemanager.cloud.ec2 import credentials  # noqa: PLC0415

            return tuple(credentials.credential_warnings(site.credentials, environment))
        case Provider.STATIC:
            from nodemanager.cloud.static.from_site import host_warnings  # noqa: PLC0415

            return tuple(host_warnings(site))
        case _:
            return ()


@contextmanager
def _import_blocked(module: str) -> Iterator[None]:
    """Make a module look uninstalled while other modules import it optionally. Saves 7 MB of memory."""
    if module in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[module] = None  # makes Python raise ModuleNotFoundError on import
    try:
        yield
    finally:
        del modules[module]


def _local_factory(site: Site, user_data: UserDataSource, clock: Clock) -> CloudFactory:
    from nodemanager.cloud.local.port import LocalCloud  # noqa: PLC0415

    return lambda: LocalCloud(
        site.cloud_dir,
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        boot_delay_s=site.cloud.boot_delay_s,
    )


def _outer_flux_factory(site: Site, user_data: UserDataSource, clock: Clock) -> CloudFactory:
    from nodemanager.flux.setup.outer import OuterFlux  # noqa: PLC0415

    cloud = site.cloud
    return lambda: OuterFlux(
        cloud.outer_uri, site.cluster, site.cluster_uuid, user_data, clock, timeout_s=cloud.call_timeout_s
    )
