"""Asks the account, the instance and the join service of a site, and reports each as ok, warning or fault.

Nothing is created or changed. Each check waits at most as long as the site's own timeout for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import requests

from nodemanager.cli.prices import PriceComparison, PriceMatch
from nodemanager.cloud.common.findings import Finding, Verdict
from nodemanager.cloud.providers import provider_of
from nodemanager.config.site import JoinMethod, Site
from nodemanager.config.state_folder import STATE_DIR_EFFECT, why_not_writable
from nodemanager.config.text.settings import bracketed
from nodemanager.core.nodes import FailureKind
from nodemanager.core.notation import compress_hostlist, expand_hostlist
from nodemanager.core.ports import CloudError, CloudPort, FluxError, unforeseen_as_cloud_error
from nodemanager.flux import bindings, fluxion
from nodemanager.flux.parse.versions import why_too_old

CONNECT_WITHIN_S = 5.0
FLUX_WITHIN_S = 10.0
JOIN_REMEDY = "Start it with flux-node-manager join-service, and open the port to the nodes in the firewall"
RANK0_REMEDY = (
    "Nodes must reach rank 0 there: correct [Flux] head_address and port, or open the port in the firewall"
)


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
    check_creates: Callable[[], Iterator[Finding]],
    compared_prices: Sequence[PriceComparison],
) -> Iterator[Finding]:
    """Check the clock, the account, its nodes, the prices, the instance and the addresses, in this order."""
    yield from check_cloud(site, make_port, check_creates, compared_prices)
    yield from check_flux(site)


def check_cloud(
    site: Site,
    make_port: Callable[[], CloudPort],
    check_creates: Callable[[], Iterator[Finding]],
    compared_prices: Sequence[PriceComparison],
) -> Iterator[Finding]:
    """Check the clock, the account, its nodes and the prices of a site's only cloud."""
    provider = provider_of(site)
    if provider.is_simulated:
        yield Finding("account", Verdict.OK, "simulated, so there is none to ask")
    elif provider.own_hosts:
        yield from check_creates()  # there is no account
    else:
        yield from check_clock(site)
        yield (account := check_account(make_port))
        if account.verdict is Verdict.OK:
            yield from check_creates()
        if provider.has_prices:
            yield from check_prices(compared_prices)


def check_flux(site: Site) -> Iterator[Finding]:
    """Check the instance, and the addresses to which nodes connect."""
    if site.flux.simulated:
        yield Finding("instance", Verdict.OK, "simulated, so there is none to ask")
        return
    yield from check_instance(site)
    yield check_address(
        "rank 0", f"{bracketed(site.flux.head_address)}:{site.flux.port}", RANK0_REMEDY, Verdict.WARNING
    )
    if site.flux.join is JoinMethod.SERVICE:
        yield from (check_address("join service", it, JOIN_REMEDY) for it in site.join.addresses)


def check_state_dir(site: Site) -> Iterator[Finding]:
    """Write to ``state_dir``, as the service does. Run this as the service's user."""
    why = why_not_writable(site.state_dir)
    if not why:
        yield Finding("state_dir", Verdict.OK, f"{site.state_dir} can be written")
        return
    remedy = "Give it to the service's user, make room, or mount it writable"
    yield Finding("state_dir", Verdict.FAULT, f"{why}. {STATE_DIR_EFFECT}", remedy)


def check_account(make_port: Callable[[], CloudPort]) -> Finding:
    """List the cluster's instances, which proves the credentials, the region and the permission to list."""
    try:
        with unforeseen_as_cloud_error():
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
    """Connect to the instance, and compare its version, its owner and its hosts with the site."""
    try:
        with bindings.connection(site.flux.uri) as handle:
            size, version, owner, hosts = (
                _attribute(handle, name) for name in ("size", "version", "security.owner", "hostlist")
            )
            scheduler = [*check_scheduler(lambda topic: bindings.ask(handle, topic, {}, timeout_s=FLUX_WITHIN_S))]
    except bindings.BindingsMissing as error:
        yield Finding("instance", Verdict.FAULT, " ".join(str(error).split()))
        return
    except FluxError as error:
        remedy = (
            "Start rank 0: flux-node-manager start-command prints the command. Run this as the instance's owner"
        )
        yield Finding("instance", Verdict.FAULT, str(error), remedy)
        return
    too_old = why_too_old(version)
    verdict = Verdict.FAULT if too_old else Verdict.OK
    text = too_old or f"flux-core {version}, {size} ranks, at {site.flux.uri or 'FLUX_URI'}"
    yield Finding("instance", verdict, text)
    if not site.flux.uri.startswith("ssh://") and owner != str(os.getuid()):  # by ssh, the login counts
        yield Finding(
            "owner",
            Verdict.FAULT,
            f"the instance belongs to the user with id {owner}, and this is {os.getuid()}",
            "Run the service, and this check, as that user: no other user may drain a rank",
        )
    ranks = frozenset(expand_hostlist(hosts))
    yield check_slots(site, ranks)
    yield from check_own_hosts(site, ranks)
    yield from scheduler


def check_scheduler(ask: Callable[[str], object]) -> Iterator[Finding]:
    """Look at how Fluxion queues and places jobs. Nothing is yielded if it is not the scheduler."""
    modules = ask("module.list")
    if not fluxion.is_loaded(modules):
        return
    policy = fluxion.match_policy(ask(fluxion.PARAMS))
    verdict = Verdict.OK if fluxion.is_followed(policy) else Verdict.WARNING
    yield Finding("scheduler", verdict, f"Fluxion, match policy {policy}: {fluxion.planned_by(policy)}")
    if queues := fluxion.queues_that_deny(modules, ask("config.get")):
        text = f"jobs cannot wait for nodes in {', '.join(queues)}"
        yield Finding("queues", Verdict.WARNING, text, fluxion.QUEUES_REMEDY)


def check_slots(site: Site, hosts: Collection[str]) -> Finding:
    """Compare the site's slots with the hosts that the instance has ranks for."""
    slots = [slot for node_type in site.node_types for slot in node_type.slots]
    missing = [name for name in slots if name not in hosts]
    if not missing:
        return Finding("slots", Verdict.OK, f"the instance has a rank for each of the {len(slots)}")
    return Finding(
        "slots",
        Verdict.FAULT,
        f"the instance has no rank for {len(missing)} of the {len(slots)}: {compress_hostlist(missing)}",
        "Run flux-node-manager resize, or remove them from the site",
    )


def check_own_hosts(site: Site, ranks: Collection[str]) -> Iterator[Finding]:
    """Compare the site's own hosts with the instance's ranks. Nothing is yielded for a site without such hosts."""
    hosts = [host for node in site.nodes.values() for host in node.hosts]
    slots = {slot for node_type in site.node_types for slot in node_type.slots}
    if ours := [host for host in hosts if host in ranks and host not in slots]:
        text = f"the instance has ranks on hosts that the manager may put to sleep: {compress_hostlist(ours)}"
        yield Finding("own hosts", Verdict.FAULT, text, "Remove them from hosts, or from the instance")
    elif hosts:
        yield Finding("own hosts", Verdict.OK, f"none of the {len(hosts)} is a rank of the instance already")


def _attribute(handle: Any, name: str) -> str:
    return str(bindings.ask(handle, "attr.get", {"name": name}, timeout_s=FLUX_WITHIN_S)["value"])


def check_address(subject: str, address: str, remedy: str, if_closed: Verdict = Verdict.FAULT) -> Finding:
    """Connect to an address that nodes connect to."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN_S):
            return Finding(subject, Verdict.OK, f"{address} takes connections from this machine")
    except OSError as error:
        return Finding(subject, if_closed, f"{address}: {error.strerror or error}", remedy)


# --- compares this machine's clock with the provider's, whose replies carry the time ----------------------


WITHIN_S = 10.0
# EC2 refuses a call that was signed more than five minutes before or after its own time. A proxy may delay a reply.
WARN_FROM_S = 30.0
FAULT_FROM_S = 240.0
REMEDY = "Let an NTP client set this machine's clock (timedatectl set-ntp true)"


def check_clock(site: Site) -> Iterator[Finding]:
    """Ask the provider for its time, without keys. Nothing is yielded for a provider that is this machine."""
    url = provider_of(site).clock_url(site)
    if not url:
        return
    try:
        before_at = time.time()
        with requests.head(url, timeout=WITHIN_S, allow_redirects=False) as reply:
            sent = reply.headers.get("Date", "")
        after_at = time.time()
        their_at = parsedate_to_datetime(sent).timestamp()
    except (requests.RequestException, ValueError, TypeError) as error:
        # The check of the account tells more.
        yield Finding("clock", Verdict.WARNING, f"{url} did not tell its time: {error}")
        return
    yield compare_clocks(before_at, their_at, after_at)


def compare_clocks(before_at: float, their_at: float, after_at: float) -> Finding:
    """``their_at``: whole seconds, as HTTP sends them, at some time between the other two."""
    off_s = max(0.0, their_at - after_at, before_at - (their_at + 1.0))
    if off_s < WARN_FROM_S:
        return Finding("clock", Verdict.OK, "it agrees with the provider's")
    verdict = Verdict.FAULT if off_s >= FAULT_FROM_S else Verdict.WARNING
    direction = "behind" if their_at > after_at else "ahead of"
    return Finding("clock", verdict, f"it is {off_s:.0f} s {direction} the provider's", REMEDY)
