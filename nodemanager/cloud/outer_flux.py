"""``provider = flux``: nodes are jobs of an outer instance."""

from __future__ import annotations

from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.config.site import Site


class OuterInstance(CloudProvider):
    """Jobs of an outer instance."""

    name = "flux"
    poweroff_effect = "a node that powers itself off is gone: its job ends with its broker"
    gives_names_only = True
    shares_session = True
    ends_with_script = True
    is_alone = True

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.flux.setup.outer import OuterFlux  # noqa: PLC0415

        return lambda: OuterFlux(
            site.cloud.outer_uri,
            settings.cluster,
            settings.cluster_uuid,
            settings.user_data,
            settings.clock,
            timeout_s=settings.call_timeout_s,
        )


PROVIDER = OuterInstance()
