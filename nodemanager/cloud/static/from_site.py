"""Builds the port of own hosts from a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodemanager.cloud.common.libcloud_port import UserDataSource
from nodemanager.cloud.static.commands import HostCommands
from nodemanager.cloud.static.port import StaticHosts
from nodemanager.config.site import Site
from nodemanager.core.ports import Clock, CloudPort

# Of ``call_timeout``: one call probes a host, wakes it and, if that fails, puts it to sleep and probes it again.
_COMMAND_SHARE = 1 / 3


def static_factory(site: Site, user_data: UserDataSource, clock: Clock) -> Callable[[], CloudPort]:
    """Return a factory of ports. All of them share the file in the cloud's folder."""
    hosts = {name: node.hosts for name, node in site.nodes.items()}
    return lambda: StaticHosts(
        site.cloud_dir,
        lambda type_name: hosts.get(type_name, ()),
        _commands_of(site),
        site.cluster,
        site.cluster_uuid,
        user_data,
        clock,
        call_timeout_s=site.cloud.call_timeout_s,
    )


def command_warnings(site: Site) -> Iterator[str]:
    """Warn about commands whose program is not on this machine, one sentence each."""
    for problem in _commands_of(site).missing_programs():
        yield f"[Cloud] {problem}. No host can be used without it."


def _commands_of(site: Site) -> HostCommands:
    cloud = site.cloud
    timeout_s = cloud.call_timeout_s * _COMMAND_SHARE
    return HostCommands(cloud.wake, cloud.sleep, cloud.probe, site.path.parent, timeout_s)
