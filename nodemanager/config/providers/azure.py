"""Check the keys of a site with ``provider = azure``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodemanager.config.providers import common
from nodemanager.config.providers.common import Nodes
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_NAME = "Azure"
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


def faults(document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
    """Find what the API would refuse later, at a create."""
    yield from common.missing_cloud_keys(
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
    yield from common.missing_node_keys(document, cloud, nodes, needed)
    yield from common.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, _NAME)
    yield from common.unsupported_spot(document, nodes, _NAME)
    yield from common.zero_prices(document, nodes)
    for section, settings in common.provider_sections(cloud, nodes):
        if settings.image and not _IMAGE.fullmatch(settings.image):
            yield document.fault(section, "image", f"{needed['image']} is needed")
        if settings.network and not _NETWORK.fullmatch(settings.network):
            yield document.fault(section, "network", f"{needed['network']} is needed")
        if len(settings.zones) > 1:
            yield document.fault(section, "zones", "give only one zone: a failed machine keeps its name")
    yield from common.credential_faults(document, (("tenant_id", "subscription_id", "client_id", "client_secret"),))
