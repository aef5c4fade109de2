"""``provider = openstack``: servers of a project."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from decimal import Decimal

from nodemanager.cloud.common.findings import Finding
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import Account, Questions
from nodemanager.config import key_faults
from nodemanager.config.provider import Nodes
from nodemanager.config.site import Site
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

MICROVERSION_LEAST = (2, 52)  # needed for tags in a create; since 2.37 networks must be named

_UNSUPPORTED = (
    "project",
    "node_service_account",
    "resource_group",
    "ssh_public_key",
    "nodes_per_call",
    "identity_certificate",
)
_USER = ("username", "password", "project")
_APPLICATION_CREDENTIAL = ("application_credential_id", "application_credential_secret")
_DOMAINS = ("user_domain", "project_domain_id")


class OpenStack(CloudProvider):
    """Servers of a project."""

    name = "openstack"
    title = "OpenStack"
    poweroff_effect = "a node that powers itself off (SHUTOFF) may still cost money until a manager destroys it"
    has_account = True
    has_groups = True
    billing = ("billing = per-minute",)
    # OpenStack bills nobody by itself. Prices in proportion to cores let the manager prefer small nodes.
    worth_per_core = Decimal("0.05")
    init_options = ()

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
        """Find what Nova would refuse later, at a create."""
        yield from key_faults.missing_cloud_keys(
            document, cloud, {"auth_url": 'the identity service, such as "https://cloud.example:5000/v3"'}
        )
        needed = {
            "image": "an image, by id or name",
            "network": "networks, by id or name; separate several by commas",
        }
        yield from key_faults.missing_node_keys(document, cloud, nodes, needed)
        yield from key_faults.unsupported_spot(document, nodes, self.title)
        yield from key_faults.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, self.title)
        major, _, minor = cloud.microversion.partition(".")
        if (int(major), int(minor)) < MICROVERSION_LEAST:
            yield document.fault(
                "Cloud",
                "microversion",
                "2.52 or later is needed: older versions cannot tag a server at its creation",
            )
        yield from key_faults.credential_faults(document, (_USER, _APPLICATION_CREDENTIAL), optional=_DOMAINS)
        for section, settings in key_faults.provider_sections(cloud, nodes):
            if len(settings.zones) > 1:
                yield document.fault(
                    section, "zones", "give only one zone: a full zone is reported too late to try the next one"
                )

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.cloud.openstack.port import ports_of  # noqa: PLC0415

        return ports_of(site, settings)

    def check(self, site: Site, settings: PortSettings) -> Iterator[Finding]:
        from nodemanager.cloud.openstack.account import check_nodes  # noqa: PLC0415

        return check_nodes(site, settings)

    def clock_url(self, site: Site) -> str:
        return site.cloud.auth_url

    def account(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> Account:
        from nodemanager.cloud.openstack.account import OpenStackAccount  # noqa: PLC0415

        return OpenStackAccount(chosen, questions, environment)


PROVIDER = OpenStack()
