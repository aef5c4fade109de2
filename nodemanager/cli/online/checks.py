"""Asks the account, the instance and the join service of a site, and reports each as ok, warning or fault.

Nothing is created or changed. Each check waits at most as long as the site's own timeout for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodemanager.cli.prices import PriceComparison, PriceMatch
from nodemanager.config.site import JoinMethod, Provider, Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError, CloudPort, FluxError
from nodemanager.flux import bindings

CONNECT_WITHIN_S = 5.0
FLUX_WITHIN_S = 10.0


class Verdict(StrEnum):
    """The result of one check. Only a fault keeps the service from working."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, the result, what was found, and what to do about it ("" if nothing)."""

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"{self.verdict:<8} {self.subject}: {self.text}{remedy}"


CLOUD_REMEDIES: Mapping[FailureKind, str] = {
    FailureKind.CREDENTIALS: "Correct [Cloud Credentials], the permissions (doc/clouds.md) or this machine's clock",
    FailureKind.CONFIG: "Correct [Cloud]: the provider does not know what it names",
    FailureKind.THROTTLED: "Try again in a minute. If it goes on, another program uses up the account's calls",
}
CLOUD_REMEDY = (
    "Look at the provider's status page, and whether this machine reaches its interface (proxy, firewall)"
)


def check_online(
    site: Site,
    make_port: Callable[[], CloudPort],
    compared_prices: Sequence[PriceComparison],
) -> Iterator[Finding]:
    """Check the account, the prices, the instance and the join service, in this order."""
    if site.cloud.provider is Provider.SIMULATED:
        yield Finding("account", Verdict.OK, "simulated, so there is none to ask")
    else:
        yield check_account(make_port)
        yield from check_prices(compared_prices)
    if site.flux.simulated:
        yield Finding("instance", Verdict.OK, "simulated, so there is none to ask")
        return
    yield from check_instance(site)
    if site.flux.join is JoinMethod.SERVICE:
        yield from map(check_address, site.join.addresses)


def check_account(make_port: Callable[[], CloudPort]) -> Finding:
    """List the cluster's instances, which proves the credentials, the region and the permission to list."""
    try:
        nodes = make_port().list_nodes()
    except CloudError as error:
        return Finding("account", Verdict.FAULT, error.detail, CLOUD_REMEDIES.get(error.kind, CLOUD_REMEDY))
    count = f"{len(nodes)} instances" if len(nodes) != 1 else "1 instance"
    return Finding("account", Verdict.OK, f"it answers; {count} of this cluster listed")


def check_prices(compared: Sequence[PriceComparison]) -> Iterator[Finding]:
    """Compare the site's prices with the bundled list. A size that no list has is no finding."""
    differ = [row for row in compared if row.match in (PriceMatch.DEARER, PriceMatch.CHEAPER)]
    for row in differ:
        yield Finding(
            f"price of {row.node_type}",
            Verdict.WARNING,
            f"{row.price_per_hour} in the site, {row.table_price_per_hour} in the list",
            f"Correct price_per_hour of [Node {row.node_type}], unless you have a price of your own",
        )
    if not differ:
        known = sum(1 for row in compared if row.match is PriceMatch.SAME)
        yield Finding("prices", Verdict.OK, f"{known} of {len(compared)} agree with the list; it lacks the others")


def check_instance(site: Site) -> Iterator[Finding]:
    """Connect to the instance, and compare its size with the site's slots."""
    try:
        with bindings.connection(site.flux.uri) as handle:
            size = int(_attribute(handle, "size"))
            version = _attribute(handle, "version")
    except bindings.BindingsMissing as error:
        yield Finding("instance", Verdict.FAULT, " ".join(str(error).split()))
        return
    except FluxError as error:
        remedy = (
            "Start rank 0: flux-node-manager start-command prints the command. Run this as the instance's owner"
        )
        yield Finding("instance", Verdict.FAULT, str(error), remedy)
        return
    yield Finding("instance", Verdict.OK, f"flux-core {version}, {size} ranks, at {site.flux.uri or 'FLUX_URI'}")
    slots = sum(len(node_type.slots) for node_type in site.node_types)
    if slots > size - 1:
        yield Finding(
            "slots",
            Verdict.FAULT,
            f"the site has {slots}, the instance has ranks for {size - 1}",
            "Run flux-node-manager resize, or remove slots from the site",
        )


def _attribute(handle: Any, name: str) -> str:
    return str(bindings.ask(handle, "attr.get", {"name": name}, timeout_s=FLUX_WITHIN_S)["value"])


def check_address(address: str) -> Finding:
    """Connect to one address of the join service, as a node does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN_S):
            return Finding("join service", Verdict.OK, f"{address} takes connections from this machine")
    except OSError as error:
        return Finding(
            "join service",
            Verdict.FAULT,
            f"{address}: {error.strerror or error}",
            "Start it with flux-node-manager join-service, and open the port to the nodes in the firewall",
        )
