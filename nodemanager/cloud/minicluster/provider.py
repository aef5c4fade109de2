"""``provider = minicluster``: pods of a MiniCluster of the Flux Operator."""

from __future__ import annotations

from collections.abc import Iterator

from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.config import key_faults
from nodemanager.config.provider import Nodes
from nodemanager.config.site import Site
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings
from nodemanager.core.ports import Clock, CloudWatch

_UNSUPPORTED = (
    "image", "network", "zones", "subnets", "region", "endpoint", "security_groups", "key_name", "instance_profile",
    "auth_url", "microversion", "config_drive", "project", "resource_group", "ssh_public_key",
    "node_service_account", "creates_per_s", "creates_burst", "nodes_per_call", "identity_certificate",
)  # fmt: skip


class MiniCluster(CloudProvider):
    """Pods of a MiniCluster."""

    name = "minicluster"
    title = "a MiniCluster"
    poweroff_effect = "a pod that ends is started again: only a smaller size removes it"
    shares_machines = True
    is_alone = True
    is_stack = True
    configures_nodes = "the operator configures the pods of a MiniCluster"

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
        """Find what the operator could not carry out later."""
        yield from key_faults.missing_cloud_keys(document, cloud, {"name": "the name of the MiniCluster"})
        yield from key_faults.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, self.title)
        yield from key_faults.unsupported_spot(document, nodes, self.title)
        yield from key_faults.credential_faults(document, ((),))
        for name, node in nodes.items():
            if node.max_age_s is not None:
                what = "no single pod of a MiniCluster can be replaced: remove the key"
                yield document.fault(key_faults.NODE + name, "max_age", what)
        for name in list(nodes)[1:]:
            yield document.fault(
                key_faults.NODE + name, "", "all pods of a MiniCluster are alike: give one [Node NAME]"
            )
        for name, node in nodes.items() if cloud.name else ():
            expected = tuple(f"{cloud.name}-{index}" for index in range(1, len(node.slots) + 1))
            if node.slots != expected:
                last = len(node.slots)
                what = f"the slots are the pods but the lead broker's, in order: {cloud.name}-[1-{last}] is needed"
                yield document.fault(key_faults.NODE + name, "slots", what)

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.cloud.minicluster.port import ports_of  # noqa: PLC0415

        return ports_of(site, settings)

    def watch(self, site: Site, clock: Clock) -> CloudWatch | None:
        from nodemanager.cloud.minicluster.watch import watch_of  # noqa: PLC0415

        return watch_of(site, clock)


PROVIDER = MiniCluster()
