"""Asks a project of an OpenStack cloud what it offers, and whether it would give a site its nodes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping

from nodemanager.cloud.common.findings import REMEDY_OF_QUOTA, Finding, Verdict, most_cores, refused, try_sizes
from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import (
    CALL_TIMEOUT_S,
    DEFAULT_CLUSTER,
    NODE_PORTS,
    Account,
    OfferedImage,
    OfferedNetwork,
    OfferedSize,
    Questions,
    Survey,
    Unanswered,
)
from nodemanager.cloud.openstack.driver import Login, NovaDriver
from nodemanager.cloud.openstack.port import OpenStackCloud, ports_of
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudError

_DOMAINS = {"user_domain": "OS_USER_DOMAIN_NAME", "project_domain_id": "OS_PROJECT_DOMAIN_ID"}
_SECRETS = {"password", "application_credential_secret"}
_MIB = 2**20
# https://docs.openstack.org/nova/latest/configuration/extra-specs.html
_DEVICES = "pci_passthrough:alias"
_VIRTUAL_GPUS = re.compile(r"resources[^:]*:VGPU")


class OpenStackAccount(Account):
    """Keys come from the environment, as the openrc file of a project sets them."""

    keys_remedy = "Correct the OS_ variables: source the openrc file of your project again"
    missing_image = OfferedImage("flux-node", "")

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        del questions
        self._cluster = chosen.cluster or DEFAULT_CLUSTER
        self._group = "default"
        self._environment = environment
        self._region = chosen.region or environment.get("OS_REGION_NAME", "")
        needed = ("OS_AUTH_URL", *self._credential_variables().values())
        missing = [name for name in needed if not environment.get(name)]
        if missing:
            raise Unanswered(f"{', '.join(missing)} must be set: source the openrc file of your project first")

    def _credential_variables(self) -> dict[str, str]:
        """The variable of each key of ``[Cloud Credentials]``."""
        if self._environment.get("OS_APPLICATION_CREDENTIAL_ID"):
            names = ("application_credential_id", "application_credential_secret")
            return {name: f"OS_{name.upper()}" for name in names}
        return {"username": "OS_USERNAME", "password": "OS_PASSWORD", "project": "OS_PROJECT_NAME"}

    def credentials(self) -> dict[str, str]:
        variables = self._credential_variables()
        secrets = {key: f"${{{variables[key]}}}" for key in variables.keys() & _SECRETS}
        return self._values() | secrets

    def _values(self) -> dict[str, str]:
        """The keys of ``[Cloud Credentials]`` with their secrets."""
        values = {key: self._environment[name] for key, name in self._credential_variables().items()}
        if "password" in values:
            values |= {key: value for key, name in _DOMAINS.items() if (value := self._environment.get(name))}
        return values

    def survey(self, clock: Clock) -> Survey:
        login = Login.from_credentials(self._environment["OS_AUTH_URL"], self._region, self._values())
        survey = survey_project(NovaDriver(login, CALL_TIMEOUT_S), self._region, clock)
        ours = f"flux-{self._cluster}"
        if ours in survey.security_groups:
            self._group = ours
        return survey

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        keys = {"auth_url": self._environment["OS_AUTH_URL"]}
        if self._region:
            keys["region"] = self._region
        return keys | {"image": image.id, "network": network.id, "security_groups": self._group}

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        del network
        group = f"flux-{cluster}"
        yield f"openstack security group create {group}"
        for port in NODE_PORTS:
            yield (
                f"openstack security group rule create {group} --protocol tcp --dst-port {port} "
                f"--remote-group {group}"
            )


def survey_project(driver: NovaDriver, region: str, clock: Clock) -> Survey:
    """Read one region. Raises :class:`CloudError`. OpenStack knows no prices."""
    with reading(clock):
        return Survey(
            region,
            (),
            tuple(driver.zones()),
            tuple(sorted(_images(driver), key=lambda image: image.created, reverse=True)),
            tuple(OfferedNetwork(it["id"], it.get("name") or "") for it in driver.networks()),
            tuple(_sizes(driver)),
            tuple(sorted({str(it.get("name")) for it in driver.security_groups()})),
        )


def _images(driver: NovaDriver) -> Iterator[OfferedImage]:
    for item in driver.images():
        yield OfferedImage(item["id"], item.get("name") or "", item.get("created_at") or "")


def _sizes(driver: NovaDriver) -> Iterator[OfferedSize]:
    """Every flavor. Its extra specs tell virtual GPUs, and devices under names that each site chooses itself."""
    for item in driver.flavors():
        specs = driver.extra_specs(str(item.get("id")))
        devices = specs.get(_DEVICES, "")
        yield OfferedSize(
            str(item.get("name")),
            int(item.get("vcpus") or 0),
            sum(
                int(number) for key, number in specs.items() if _VIRTUAL_GPUS.fullmatch(key) and number.isdecimal()
            ),
            int(item.get("ram") or 0) * _MIB,
            None,
            note=f"{_DEVICES} = {devices}" if devices else "",
        )


# --- looks up what a create would name, and the limits ----------------------------------------------------


def check_nodes(site: Site, settings: PortSettings) -> Iterator[Finding]:
    """Look up what a create of each node type would name, then compare the project's limits."""
    port = ports_of(site, settings)()
    for node_type in site.node_types:
        text = f"flavor {node_type.size}, image {node_type.image} and the network exist"
        yield try_sizes(node_type, port.look_up, text, settings.clock)
    yield _check_limits(site, port)


def _check_limits(site: Site, port: OpenStackCloud) -> Finding:
    """Compare the project's limits with what all the nodes need. -1 means no limit."""
    try:
        limits = port.limits()
    except CloudError as error:
        return refused("quotas", error)
    short = []
    for what, limit, used, needed in (
        ("servers", "maxTotalInstances", "totalInstancesUsed", site.limits.nodes_max),
        ("cores", "maxTotalCores", "totalCoresUsed", most_cores(site)),
    ):
        most, now = limits.get(limit), limits.get(used)
        if isinstance(most, int) and isinstance(now, int) and 0 <= most < now + needed:
            short.append(f"{needed} {what} may be needed, and {max(0, most - now)} of {most} are free")
    if short:
        return Finding("quotas", Verdict.WARNING, "; ".join(short), REMEDY_OF_QUOTA)
    return Finding("quotas", Verdict.OK, f"there is room for {site.limits.nodes_max} servers of these types")
