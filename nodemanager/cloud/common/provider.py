"""What each provider's folder declares: its rules for a site, its ports, its checks, how it writes a first site.

``PROVIDER`` of ``cloud/NAME/provider.py`` is an object of a subclass. That module imports its libraries inside
functions, because every process that reads a site imports it.
"""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from nodemanager.cloud.common.findings import Finding
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import Account, Questions
from nodemanager.config.provider import ProviderRules
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort, CloudWatch

CloudFactory = Callable[[], CloudPort]


class CloudProvider(ProviderRules):
    """One provider."""

    has_prices = True  # that ``check --online`` compares with a list

    # For ``init --provider``: its options that only this provider has, each with the arguments of ``add_argument``;
    # None if ``init`` cannot write a site for the provider. Then, what the site says of a node's price.
    init_options: Sequence[tuple[str, Mapping[str, Any]]] | None = None
    billing: Sequence[str] = ()
    worth_per_core: Decimal | None = None  # if nobody bills the site, and it must say itself what a node is worth

    @abstractmethod
    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        """Return a factory of ports for the site's cloud. Raises :class:`CloudError`."""

    def watch(self, site: Site, clock: Clock) -> CloudWatch | None:
        """Return the watch on the site's cloud; None if the provider tells no news. Raises :class:`CloudError`."""
        del site, clock
        return None

    def warnings(self, site: Site, environment: Mapping[str, str]) -> Iterable[str]:
        """Return warnings that need the provider's libraries or this machine, one sentence each."""
        del site, environment
        return ()

    def check(self, site: Site, settings: PortSettings) -> Iterable[Finding]:
        """Check images, sizes, networks, permissions and quotas, as far as the provider answers without a create.

        Raises :class:`CloudError`.
        """
        del site, settings
        return ()

    def clock_url(self, site: Site) -> str:
        """Return an address of the provider whose replies tell its time, without keys; "" if there is none."""
        del site
        return ""

    def account(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> Account:
        """Return the account that ``init --provider`` asks. Raises :class:`Unanswered`."""
        raise NotImplementedError
