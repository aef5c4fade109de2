"""``provider = local``: nodes are processes on this machine."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.config.site import Site


class Local(CloudProvider):
    """Processes on this machine."""

    name = "local"
    poweroff_effect = "a node that powers itself off is gone: it consists only of processes"
    is_this_machine = True
    shares_machines = True
    ends_with_script = True
    has_prices = False
    # A node shares this machine with others and with the manager: it may touch no files or processes of theirs.
    join_defaults = MappingProxyType(
        {
            "node_dir": Path("flux-node-join"),
            "hosts_file": Path("hosts"),
            "poweroff": 'kill -KILL "$FLUX_NODE_JOIN_PARENT"',
            "systemd": False,
        }
    )

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.cloud.local.port import LocalCloud  # noqa: PLC0415

        return lambda: LocalCloud(site.cloud_dir, settings, boot_delay_s=site.cloud.boot_delay_s)


PROVIDER = Local()
