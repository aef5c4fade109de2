"""Which adapter a site's ``provider`` means: one function each, which makes what makes its ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from nodemanager.cloud.azure import AzureCloud
from nodemanager.cloud.azure import Placement as AzurePlacement
from nodemanager.cloud.azure_driver import AzureDriver
from nodemanager.cloud.gce import GceCloud
from nodemanager.cloud.gce import Placement as GcePlacement
from nodemanager.cloud.gce_driver import GceDriver
from nodemanager.cloud.libcloud_port import UserData
from nodemanager.cloud.local import LocalCloud
from nodemanager.cloud.openstack import OpenStackCloud
from nodemanager.cloud.openstack import Placement as OpenStackPlacement
from nodemanager.cloud.openstack_driver import Account as OpenStackAccount
from nodemanager.config import Provider, Site
from nodemanager.model import TypeName
from nodemanager.ports import Clock, CloudPort

CloudFactory = Callable[[], CloudPort]


def cloud_factory(site: Site, user_data: UserData, clock: Clock) -> CloudFactory:
    """What gives a port of the site's cloud, a new one at each call: a port belongs to one thread."""
    match site.cloud.provider:
        case Provider.LOCAL:
            return lambda: _local(site, user_data, clock)
        case Provider.OPENSTACK:
            return _openstack(site, user_data, clock)
        case Provider.GCE:
            return _gce(site, user_data, clock)
        case Provider.AZURE:
            return _azure(site, user_data, clock)
        case Provider.SIMULATED:
            # Refused by the config: nodes that do not exist cannot join an instance that does.
            raise ValueError("a simulated cloud has no nodes for a real Flux instance")
        case _:
            assert_never(site.cloud.provider)


def _local(site: Site, user_data: UserData, clock: Clock) -> CloudPort:
    return LocalCloud(
        site.state_dir / "cloud",
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        boot_delay_s=site.cloud.boot_delay_s,
    )


# --- OpenStack --------------------------------------------------------------------------------------------


def _openstack(site: Site, user_data: UserData, clock: Clock) -> CloudFactory:
    account, placements = openstack_account(site), openstack_placements(site)
    return lambda: OpenStackCloud(
        account,
        placements,
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        call_timeout_s=site.cloud.call_timeout_s,
    )


def openstack_account(site: Site) -> OpenStackAccount:
    cloud = site.cloud
    given = {key: secret.get_secret_value() for key, secret in site.credentials.items()}
    application_credential = "application_credential_id" in given
    return OpenStackAccount(
        auth_url=cloud.auth_url,
        user=given["application_credential_id" if application_credential else "username"],
        secret=given["application_credential_secret" if application_credential else "password"],
        application_credential=application_credential,
        project=given.get("project", ""),
        user_domain=given.get("user_domain", "Default"),
        project_domain_id=given.get("project_domain_id", "default"),
        region=cloud.region,
        microversion=cloud.microversion,
    )


def openstack_placements(site: Site) -> dict[TypeName, OpenStackPlacement]:
    """What each node type's servers get: what its section says, else what ``[Cloud]`` says."""
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


# --- Google Compute Engine --------------------------------------------------------------------------------


def _gce(site: Site, user_data: UserData, clock: Clock) -> CloudFactory:
    placements = gce_placements(site)
    given = {key: secret.get_secret_value() for key, secret in site.credentials.items()}

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


def gce_placements(site: Site) -> dict[TypeName, GcePlacement]:
    cloud = site.cloud
    return {
        name: GcePlacement(node.network or cloud.network, node.zones or cloud.zones)
        for name, node in site.nodes.items()
    }


# --- Azure ------------------------------------------------------------------------------------------------


def _azure(site: Site, user_data: UserData, clock: Clock) -> CloudFactory:
    placements = azure_placements(site)
    given = {key: secret.get_secret_value() for key, secret in site.credentials.items()}

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


def azure_placements(site: Site) -> dict[TypeName, AzurePlacement]:
    cloud = site.cloud
    return {
        name: AzurePlacement(node.network or cloud.network, next(iter(node.zones or cloud.zones), ""))
        for name, node in site.nodes.items()
    }
