"""``provider = azure``: machines of a resource group."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nodemanager.cloud.common.findings import Finding
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import Account, Questions
from nodemanager.config import key_faults
from nodemanager.config.provider import Nodes
from nodemanager.config.site import Site
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_UNSUPPORTED = (
    "security_groups",
    "key_name",
    "auth_url",
    "microversion",
    "config_drive",
    "project",
    "node_service_account",
)
_IMAGE = re.compile(r"[^:/]+:[^:/]+:[^:/]+:[^:/]+|/subscriptions/\S+/images/\S+")
_NETWORK = re.compile(r"[^/\s,]+/[^/\s,]+|/subscriptions/\S+/subnets/\S+")


class Azure(CloudProvider):
    """Machines of a resource group."""

    name = "azure"
    title = "Azure"
    poweroff_effect = "a node that powers itself off still costs money until a manager destroys it"
    has_account = True
    has_groups = True
    notice = "azure"
    billing = ("# Azure bills by the second.", "billing = per-second")
    init_options = (
        ("--resource-group", {"metavar": "NAME", "help": "azure: a group that holds only nodes"}),
        ("--ssh-key", {"metavar": "FILE", "help": "azure: a public key (default: yours in ~/.ssh)"}),
    )

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
        """Find what the API would refuse later, at a create."""
        yield from key_faults.missing_cloud_keys(
            document,
            cloud,
            {
                "region": 'a location such as "westeurope"',
                "resource_group": "a group for the nodes only, in which they are created",
                "ssh_public_key": "Azure creates no Linux machine without a key or password for logins",
            },
        )
        needed = {
            "image": '"PUBLISHER:OFFER:SKU:VERSION", or the id of your own image',
            "network": '"NETWORK/SUBNET" in the resource group, or the id of a subnet',
        }
        yield from key_faults.missing_node_keys(document, cloud, nodes, needed)
        yield from key_faults.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, self.title)
        yield from key_faults.unsupported_spot(document, nodes, self.title)
        yield from key_faults.zero_prices(document, nodes)
        for section, settings in key_faults.provider_sections(cloud, nodes):
            if settings.image and not _IMAGE.fullmatch(settings.image):
                yield document.fault(section, "image", f"{needed['image']} is needed")
            if settings.network and not _NETWORK.fullmatch(settings.network):
                yield document.fault(section, "network", f"{needed['network']} is needed")
            if len(settings.zones) > 1:
                yield document.fault(section, "zones", "give only one zone: a failed machine keeps its name")
        yield from key_faults.credential_faults(
            document, (("tenant_id", "subscription_id", "client_id", "client_secret"),)
        )

    def listed_prices(self, size: str, memory_bytes: int, listed: Mapping[str, Any]) -> Mapping[str, object]:
        del memory_bytes
        # Listed as standardd4sv3 for Standard_D4s_v3.
        prices: Mapping[str, object] = listed["azure_linux"].get(size.lower().replace("_", ""), {})
        return prices

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.cloud.azure.port import ports_of  # noqa: PLC0415

        return ports_of(site, settings)

    def check(self, site: Site, settings: PortSettings) -> Iterator[Finding]:
        from nodemanager.cloud.azure.account import check_nodes  # noqa: PLC0415

        return check_nodes(site, settings.clock)

    def clock_url(self, site: Site) -> str:
        del site
        return "https://management.azure.com/"

    def account(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> Account:
        from nodemanager.cloud.azure.account import AzureAccount  # noqa: PLC0415

        return AzureAccount(chosen, questions, environment)


PROVIDER = Azure()
