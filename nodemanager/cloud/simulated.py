"""``provider = simulated``: nodes exist only in memory, for a simulated Flux, which brings their cloud."""

from __future__ import annotations

from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.config.site import Site


class Simulated(CloudProvider):
    """Nodes in memory."""

    name = "simulated"
    poweroff_effect = "nodes are simulated and cost nothing"
    is_simulated = True
    has_groups = True

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        del site, settings
        # The config rejects this earlier: simulated nodes cannot join a real instance.
        raise ValueError("a simulated cloud has no nodes for a real Flux instance")


PROVIDER = Simulated()
