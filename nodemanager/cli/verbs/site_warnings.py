"""The warnings about a site that several verbs print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodemanager.config.site import Site


def print_warnings(site: Site, *, by_init: bool = False) -> None:
    """Print the warnings about a site. ``by_init``: without those about what ``init`` writes."""
    for warning in warnings_of(site, by_init=by_init):
        print(f"{site.path}: warning: {warning}", file=sys.stderr)


def warnings_of(site: Site, *, by_init: bool = False) -> tuple[str, ...]:
    """The warnings about a site that can be found without asking its account."""
    from nodemanager.cloud.providers import provider_warnings
    from nodemanager.config.site import site_warnings
    from nodemanager.flux.setup.bootstrap import bootstrap_warnings, guest_warnings

    written = () if by_init else (*bootstrap_warnings(site), *_state_dir_warnings(site))
    return (*site_warnings(site), *provider_warnings(site), *guest_warnings(site), *written)


def _state_dir_warnings(site: Site) -> tuple[str, ...]:
    from nodemanager.config.state_folder import STATE_DIR_EFFECT, why_not_writable

    if not (why := why_not_writable(site.state_dir)):
        return ()
    return (f"[Site] state_dir: {why}. {STATE_DIR_EFFECT}",)
