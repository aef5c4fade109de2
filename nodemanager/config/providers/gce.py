"""Check the keys of a site with ``provider = gce``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodemanager.config.providers import common
from nodemanager.config.providers.common import Nodes
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_NAME = "Google Compute Engine"
_UNSUPPORTED = (
    "region", "security_groups", "key_name", "auth_url", "microversion", "config_drive", "resource_group",
    "ssh_public_key", "identity_certificate",
)  # fmt: skip
_ACCOUNT = re.compile(r"[a-z0-9.-]+@[a-z0-9.-]+", re.ASCII)
_IMAGE = re.compile(r"(projects/[a-z0-9.:-]+/)?global/images/(family/)?[a-z0-9-]+", re.ASCII)
_NETWORK = re.compile(
    r"(projects/[a-z0-9.:-]+/)?(global/networks|regions/[a-z0-9-]+/subnetworks)/[a-z0-9-]+", re.ASCII
)


def faults(document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
    """Find what the API would refuse later, at a create."""
    yield from common.missing_cloud_keys(document, cloud, {"project": "the project's id"})
    needed = {
        "image": 'an image such as "projects/debian-cloud/global/images/family/debian-12"',
        "network": 'a network such as "global/networks/default" or "regions/REGION/subnetworks/NAME"',
        "zones": 'a zone such as "europe-west3-a"; several are tried in order',
    }
    yield from common.missing_node_keys(document, cloud, nodes, needed)
    yield from common.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, _NAME)
    yield from common.zero_prices(document, nodes)
    for section, settings in common.provider_sections(cloud, nodes):
        if settings.image and not _IMAGE.fullmatch(settings.image):
            yield document.fault(section, "image", f"{needed['image']} is needed")
        if settings.network and not _NETWORK.fullmatch(settings.network):
            yield document.fault(section, "network", f"{needed['network']} is needed")
    if cloud.node_service_account and not _ACCOUNT.fullmatch(cloud.node_service_account):
        needed_here = 'a mail address such as "nodes@PROJECT.iam.gserviceaccount.com" is needed'
        yield document.fault("Cloud", "node_service_account", needed_here)
    # Without credentials, the manager uses those of the instance on which it runs.
    yield from common.credential_faults(document, ((), ("service_account", "key")))
    entries = {key.removesuffix("_file") for key in document.section("Cloud Credentials").entries}
    if len(entries & {"service_account", "key"}) == 1:
        yield document.fault("Cloud Credentials", "", "service_account and key must be given together, or neither")
