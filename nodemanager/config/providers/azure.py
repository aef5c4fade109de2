"""What ``provider = azure`` needs of a site, and what does not go together there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodemanager.config.providers import common
from nodemanager.config.providers.common import Nodes
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_NAME = "Azure"
_OTHERS = ("security_groups", "key_name", "auth_url", "microversion", "config_drive", "project")
_IMAGE = re.compile(r"[^:/]+:[^:/]+:[^:/]+:[^:/]+|/subscriptions/\S+/images/\S+")
_NETWORK = re.compile(r"[^/\s,]+/[^/\s,]+|/subscriptions/\S+/subnets/\S+")


def faults(document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
    """All that the API would refuse later, at a create, as far as it can be known before."""
    yield from common.missing_cloud_keys(
        document,
        cloud,
        {
            "region": 'a location such as "westeurope"',
            "resource_group": "the one in which nodes are made, and nothing else",
            "ssh_public_key": "Azure makes no Linux machine without a key or a password to log in by",
        },
    )
    needed = {
        "image": '"PUBLISHER:OFFER:SKU:VERSION", or the id of an image of your own',
        "network": '"NETWORK/SUBNET" in the resource group, or the id of a subnet',
    }
    yield from common.missing_node_keys(document, cloud, nodes, needed)
    yield from common.unsupported_keys(document, cloud, nodes, _OTHERS, _NAME)
    yield from common.unsupported_spot(document, nodes, _NAME)
    yield from common.zero_prices(document, nodes)
    for section, settings in common.provider_sections(cloud, nodes):
        if settings.image and not _IMAGE.fullmatch(settings.image):
            yield document.fault(section, "image", needed["image"])
        if settings.network and not _NETWORK.fullmatch(settings.network):
            yield document.fault(section, "network", needed["network"])
        if len(settings.zones) > 1:
            yield document.fault(section, "zones", "one at the most: a failed machine keeps its name")
    yield from common.credential_faults(document, (("tenant_id", "subscription_id", "client_id", "client_secret"),))
