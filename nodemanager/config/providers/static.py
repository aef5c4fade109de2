"""Check the keys of a site with ``provider = static``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodemanager.config.providers import common
from nodemanager.config.providers.common import Nodes
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import TypeName

KEYS = ("wake", "sleep", "probe", "hosts")
_NAME = "provider = static"
_UNSUPPORTED = (
    "network", "zones", "subnets", "region", "endpoint", "security_groups", "key_name", "instance_profile",
    "auth_url", "microversion", "config_drive", "project", "resource_group", "ssh_public_key",
    "node_service_account", "nodes_per_call", "identity_certificate", "price_list", "sizes",
)  # fmt: skip
NODE = "{node}"  # in a command: the name of the host


def faults(document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
    """Find what makes a host impossible to wake or to put to sleep."""
    needed = {"wake": f"the command that wakes {NODE}", "sleep": f"the command that puts {NODE} to sleep"}
    yield from common.missing_cloud_keys(document, cloud, needed)
    for key in ("wake", "sleep", "probe"):
        command = getattr(cloud, key)
        if command and NODE not in command:
            yield document.fault("Cloud", key, f"{NODE} is needed in it: it becomes the name of the host")
    yield from common.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, _NAME)
    yield from common.unsupported_spot(document, nodes, _NAME)
    yield from common.credential_faults(document, ((),))
    for name, node in nodes.items():
        section = common.NODE + name
        if not node.hosts:
            yield document.fault(section, "hosts", 'must be given: the names of the hosts, such as "node[1-8]"')
        elif len(node.slots) > len(node.hosts):
            problem = f"{len(node.slots)} slots need as many hosts, and hosts has {len(node.hosts)}"
            yield document.fault(section, "slots", problem)


def hosts_named_twice(
    document: Document, head_host: str, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find hosts of two node types, each of which would wake the other's, and rank 0's, which must stay on."""
    taken = {head_host: "the host of rank 0 (head_host)"}
    for name, node in nodes.items():
        for host in node.hosts:
            if host in taken:
                problem = f'host "{host}" is already {taken[host]}: a host has one type'
                yield document.fault(common.NODE + name, "hosts", problem)
            taken.setdefault(host, f"one of [Node {name}]")
