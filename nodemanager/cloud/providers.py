"""Which adapter a site's ``provider`` means: one function each, which makes what makes its ports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import assert_never

from nodemanager.cloud.azure import AzureCloud
from nodemanager.cloud.azure import Placement as AzurePlacement
from nodemanager.cloud.azure_driver import AzureDriver
from nodemanager.cloud.ec2 import Ec2Cloud
from nodemanager.cloud.ec2_credentials import NOT_SUPPORTED, key_source, keys_given
from nodemanager.cloud.ec2_driver import Ec2Driver, endpoint_of
from nodemanager.cloud.ec2_launch import Placement as Ec2Placement
from nodemanager.cloud.gce import GceCloud
from nodemanager.cloud.gce import Placement as GcePlacement
from nodemanager.cloud.gce_driver import GceDriver
from nodemanager.cloud.libcloud_port import UserData
from nodemanager.cloud.local import LocalCloud
from nodemanager.cloud.openstack import OpenStackCloud
from nodemanager.cloud.openstack import Placement as OpenStackPlacement
from nodemanager.cloud.openstack_driver import Account as OpenStackAccount
from nodemanager.config import Provider, Site
from nodemanager.config_ec2 import subnets_of
from nodemanager.flux.outer import OuterFlux
from nodemanager.model import TypeName
from nodemanager.ports import Clock, CloudPort

CloudFactory = Callable[[], CloudPort]


def cloud_factory(site: Site, user_data: UserData, clock: Clock) -> CloudFactory:
    """What gives a port of the site's cloud, a new one at each call: a port belongs to one thread."""
    match site.cloud.provider:
        case Provider.LOCAL:
            return lambda: _local(site, user_data, clock)
        case Provider.EC2:
            return _ec2(site, user_data, clock)
        case Provider.OPENSTACK:
            return _openstack(site, user_data, clock)
        case Provider.GCE:
            return _gce(site, user_data, clock)
        case Provider.AZURE:
            return _azure(site, user_data, clock)
        case Provider.FLUX:
            return lambda: _outer_flux(site, user_data, clock)
        case Provider.SIMULATED:
            # Refused by the config: nodes that do not exist cannot join an instance that does.
            raise ValueError("a simulated cloud has no nodes for a real Flux instance")
        case _:
            assert_never(site.cloud.provider)


def cautions(site: Site, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What an operator should know of this provider with this site, a sentence each."""
    match site.cloud.provider:
        case Provider.EC2:
            return tuple(_ec2_cautions(site, environment))
        case _:
            return ()


def _local(site: Site, user_data: UserData, clock: Clock) -> CloudPort:
    return LocalCloud(
        site.state_dir / "cloud",
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        boot_delay_s=site.cloud.boot_delay_s,
    )


def _outer_flux(site: Site, user_data: UserData, clock: Clock) -> CloudPort:
    cloud = site.cloud
    return OuterFlux(
        cloud.outer_uri, site.cluster, site.cluster_uuid, user_data, clock, timeout_s=cloud.call_timeout_s
    )


# --- EC2 --------------------------------------------------------------------------------------------------


def _ec2(site: Site, user_data: UserData, clock: Clock) -> CloudFactory:
    keys = key_source(site.credentials, os.environ, clock)  # one for all ports: a role's keys are asked for once
    endpoint = endpoint_of(site.cloud.region, site.cloud.endpoint)
    placements = ec2_placements(site)

    def port() -> CloudPort:
        driver = Ec2Driver(endpoint, keys, timeout_s=site.cloud.call_timeout_s)
        return Ec2Cloud(driver, site.cluster, site.cluster_uuid, user_data, clock, placements)

    return port


def ec2_placements(site: Site) -> Mapping[TypeName, Ec2Placement]:
    """Where each node type's nodes are put: what its section says, else what ``[Cloud]`` says."""
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


def _ec2_cautions(site: Site, environment: Mapping[str, str]) -> Iterator[str]:
    if keys_given(site.credentials, environment) is not None:
        return
    named = [f"{name} ({what})" for name, what in NOT_SUPPORTED.items() if environment.get(name)]
    if named:
        yield (
            f"[Cloud Credentials] is empty, and {', '.join(named)} of the environment is not supported. The keys "
            "will be asked of the instance metadata service: give access_key_id and secret_access_key instead, "
            "unless this runs on an instance with a role."
        )
    else:
        yield (
            "[Cloud Credentials] is empty, and so is AWS_ACCESS_KEY_ID: the keys will be asked of the instance "
            "metadata service. That works on an EC2 instance that has a role; profiles, SSO, web identity and "
            "container credentials are not supported."
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
