"""``provider = static``: own hosts, woken and put to sleep by commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nodemanager.cloud.common.findings import Finding
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.config import key_faults
from nodemanager.config.provider import Nodes
from nodemanager.config.site import Site
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_UNSUPPORTED = (
    "network", "zones", "subnets", "region", "endpoint", "security_groups", "key_name", "instance_profile",
    "auth_url", "microversion", "config_drive", "project", "resource_group", "ssh_public_key",
    "node_service_account", "nodes_per_call", "identity_certificate", "price_list", "sizes",
)  # fmt: skip


WAYS_TO_WAKE = ("ssh", "ipmi", "lan")


class Static(CloudProvider):
    """Own hosts."""

    name = "static"
    title = "provider = static"
    poweroff_effect = "a host that hears no manager leaves the instance; it stays on unless [Join] poweroff ends it"
    own_hosts = True
    gives_names_only = True
    # A host of the site's own may be up for other reasons: it leaves the instance, and stays up.
    join_defaults = MappingProxyType({"poweroff": "systemctl disable --now flux-node-join.service"})
    init_options = (
        ("--hosts", {"metavar": "HOSTS", "help": "static: the hosts, such as node[01-16]"}),
        ("--wake-by", {"choices": WAYS_TO_WAKE, "help": "static: how a host is woken (default: ssh)"}),
        ("--cores", {"metavar": "N", "help": "static: each host's cores (default: ask the hosts)"}),
        ("--memory", {"metavar": "SIZE", "help": "static: each host's memory, such as 64GiB"}),
        ("--gpus", {"metavar": "N", "help": "static: each host's GPUs (default: 0)"}),
        ("--price", {"metavar": "PRICE", "help": "static: the power of a host for an hour (default: 0)"}),
    )

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
        """Find what makes a host impossible to wake or to put to sleep."""
        from nodemanager.cloud.static.commands import NODE  # noqa: PLC0415

        needed = {"wake": f"the command that wakes {NODE}", "sleep": f"the command that puts {NODE} to sleep"}
        yield from key_faults.missing_cloud_keys(document, cloud, needed)
        for key in ("wake", "sleep", "probe"):
            command = getattr(cloud, key)
            if command and NODE not in command:
                yield document.fault("Cloud", key, f"{NODE} is needed in it: it becomes the name of the host")
        yield from key_faults.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, self.title)
        yield from key_faults.unsupported_spot(document, nodes, self.title)
        yield from key_faults.credential_faults(document, ((),))
        for name, node in nodes.items():
            section = key_faults.NODE + name
            if not node.hosts:
                yield document.fault(section, "hosts", 'must be given: the names of the hosts, such as "node[1-8]"')
            elif len(node.slots) > len(node.hosts):
                problem = f"{len(node.slots)} slots need as many hosts, and hosts has {len(node.hosts)}"
                yield document.fault(section, "slots", problem)

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.cloud.static.port import ports_of  # noqa: PLC0415

        return ports_of(site, settings)

    def warnings(self, site: Site, environment: Mapping[str, str]) -> Iterator[str]:
        from nodemanager.cloud.static.survey import host_warnings  # noqa: PLC0415

        del environment
        return host_warnings(site)

    def check(self, site: Site, settings: PortSettings) -> Iterator[Finding]:
        from nodemanager.cloud.static.survey import check_hosts  # noqa: PLC0415

        del settings
        return check_hosts(site)


PROVIDER = Static()
