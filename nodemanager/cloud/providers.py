"""The provider of a site's cloud: its ports, its watch, its warnings and its checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nodemanager.cloud.common.findings import Finding, refused
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import BatchScript, KeyFile, PortSettings, UserDataSource
from nodemanager.config.provider import provider_named
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudError, CloudWatch, unforeseen_as_cloud_error


def cloud_provider(name: str) -> CloudProvider:
    """Return a provider by its name in a site."""
    found = provider_named(name)
    if not isinstance(found, CloudProvider):
        raise TypeError(f"PROVIDER of {type(found).__module__} must be a CloudProvider")
    return found


def provider_of(site: Site) -> CloudProvider:
    """Return the provider of the site's cloud."""
    return cloud_provider(site.cloud.provider)


def cloud_factory(
    site: Site,
    user_data: UserDataSource,
    clock: Clock,
    size_service: Any = None,
    batch_script: BatchScript | None = None,
    key_file: KeyFile | None = None,
) -> CloudFactory:
    """Return a factory of ports for the site's cloud. Call it once for each thread: a port serves one thread.

    The parameters are the fields of :class:`PortSettings`. Raises :class:`CloudError`.
    """
    settings = replace(
        _settings(site, user_data, clock), size_service=size_service, batch_script=batch_script, key_file=key_file
    )
    return provider_of(site).ports(site, settings)


def _settings(site: Site, user_data: UserDataSource, clock: Clock) -> PortSettings:
    timeout_s = site.cloud.call_timeout_s
    return PortSettings(site.cluster, site.cluster_uuid, user_data, clock, timeout_s, site.needs_groups)


def cloud_watch(site: Site, clock: Clock) -> CloudWatch | None:
    """Return the watch on the site's cloud; None if its provider has none."""
    return provider_of(site).watch(site, clock)


def provider_warnings(site: Site, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return warnings about the site that only its provider's adapter can give, one sentence each."""
    return tuple(
        part.cloud_section.in_own_words(text)
        for part in site.by_cloud.values()
        for text in provider_of(part).warnings(part, environment)
    )


def check_creates(site: Site, user_data: UserDataSource, clock: Clock) -> Iterator[Finding]:
    """Ask an account whether it would give the site its nodes. Nothing is created or changed."""
    settings = _settings(site, user_data, clock)
    try:
        with unforeseen_as_cloud_error():
            yield from provider_of(site).check(site, settings)
    except CloudError as error:
        yield refused("creates", error)
