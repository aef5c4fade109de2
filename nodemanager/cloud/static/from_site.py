"""Builds the port of own hosts from a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodemanager.cloud.common.libcloud_port import UserDataSource
from nodemanager.cloud.static.commands import HostCommands
from nodemanager.cloud.static.port import StaticHosts
from nodemanager.config.site import Site
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.ports import Clock, CloudPort

# Of ``call_timeout``: one call probes a host, wakes it and, if that fails, puts it to sleep.
_COMMAND_SHARE = 1 / 3


def static_factory(site: Site, user_data: UserDataSource, clock: Clock) -> Callable[[], CloudPort]:
    """Return a factory of ports. All of them share the file in the cloud's folder."""
    hosts = {name: node.hosts for name, node in site.nodes.items()}
    return lambda: StaticHosts(
        site.cloud_dir,
        lambda type_name: hosts.get(type_name, ()),
        commands_of(site),
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        call_timeout_s=site.cloud.call_timeout_s,
    )


def host_warnings(site: Site) -> Iterator[str]:
    """Warn about missing programs, and about slots with the names of hosts, one sentence each."""
    for problem in commands_of(site).missing_programs():
        yield f"[Cloud] {problem}. No host can be used without it."
    hosts = {host for node in site.nodes.values() for host in node.hosts}
    for name, node in site.nodes.items():
        if same := [slot for slot in node.slots if slot in hosts]:
            yield (
                f"[Node {name}] slots {compress_hostlist(same)} have the names of hosts, but any host can serve "
                f"any slot: {site.join.hosts_file} of the nodes would then give them other addresses. Rename them."
            )


def commands_of(site: Site) -> HostCommands:
    """The commands of the site's own hosts."""
    cloud = site.cloud
    timeout_s = cloud.call_timeout_s * _COMMAND_SHARE
    return HostCommands(cloud.wake, cloud.sleep, cloud.probe, site.path.parent, timeout_s)
