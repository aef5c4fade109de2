"""Check the keys of a site with ``provider = minicluster``."""

from __future__ import annotations

from collections.abc import Iterator

from nodemanager.config.providers import common
from nodemanager.config.providers.common import Nodes
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_NAME = "a MiniCluster"
_UNSUPPORTED = (
    "image", "network", "zones", "subnets", "region", "endpoint", "security_groups", "key_name", "instance_profile",
    "auth_url", "microversion", "config_drive", "project", "resource_group", "ssh_public_key",
    "node_service_account", "creates_per_s", "creates_burst", "nodes_per_call", "identity_certificate",
)  # fmt: skip


def faults(document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
    """Find what the operator could not carry out later."""
    yield from common.missing_cloud_keys(document, cloud, {"name": "the name of the MiniCluster"})
    yield from common.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, _NAME)
    yield from common.unsupported_spot(document, nodes, _NAME)
    yield from common.credential_faults(document, ((),))
    for name, node in nodes.items():
        if node.max_age_s is not None:
            what = "no single pod of a MiniCluster can be replaced: remove the key"
            yield document.fault(common.NODE + name, "max_age", what)
    for name in list(nodes)[1:]:
        yield document.fault(common.NODE + name, "", "all pods of a MiniCluster are alike: give one [Node NAME]")
    for name, node in nodes.items() if cloud.name else ():
        expected = tuple(f"{cloud.name}-{index}" for index in range(1, len(node.slots) + 1))
        if node.slots != expected:
            last = len(node.slots)
            what = f"the slots are the pods but the lead broker's, in order: {cloud.name}-[1-{last}] is needed"
            yield document.fault(common.NODE + name, "slots", what)
