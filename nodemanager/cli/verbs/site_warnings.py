"""The warnings about a site that several verbs print."""

from __future__ import annotations

import sys

from nodemanager.config.site import Site, site_warnings


def print_warnings(site: Site) -> None:
    """Print the warnings about a site that can be found without asking its account."""
    from nodemanager.cloud.providers import provider_warnings
    from nodemanager.flux.setup.bootstrap import guest_warnings

    for warning in (*site_warnings(site), *provider_warnings(site), *guest_warnings(site)):
        print(f"{site.path}: warning: {warning}", file=sys.stderr)
