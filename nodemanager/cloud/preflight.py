"""Asks an account whether it would give the site its nodes. Nothing is created or changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nodemanager.cloud.common.findings import REMEDY_OF_QUOTA, Finding, Verdict, refused
from nodemanager.config.price_list import ec2_hardware
from nodemanager.config.site import Provider, Site
from nodemanager.core.nodes import CloudState, Launch, LaunchId
from nodemanager.core.ports import Clock, CloudError, unforeseen_as_cloud_error
from nodemanager.core.slots import NodeType, Rank, SlotName

if TYPE_CHECKING:
    from nodemanager.cloud.common.libcloud_port import UserDataSource
    from nodemanager.cloud.ec2.port import Ec2Cloud
    from nodemanager.cloud.ec2.quotas import CpuQuota
    from nodemanager.cloud.openstack.port import OpenStackCloud


def check_creates(site: Site, user_data: UserDataSource, clock: Clock) -> Iterator[Finding]:
    """Check images, sizes, networks, permissions and quotas, as far as the provider answers without a create."""
    try:
        with unforeseen_as_cloud_error():
            yield from _checks_of_provider(site, user_data, clock)
    except CloudError as error:
        yield refused("creates", error)


def _checks_of_provider(site: Site, user_data: UserDataSource, clock: Clock) -> Iterator[Finding]:
    match site.cloud.provider:
        case Provider.EC2:
            yield from _check_ec2(site, user_data, clock)
        case Provider.OPENSTACK:
            yield from _check_openstack(site, user_data, clock)
        case Provider.GCE:
            from nodemanager.cloud.gce.preflight import check_nodes  # noqa: PLC0415

            yield from check_nodes(site, clock)
        case Provider.AZURE:
            from nodemanager.cloud.azure.preflight import check_nodes  # noqa: PLC0415

            yield from check_nodes(site, clock)
        case Provider.STATIC:
            from nodemanager.cloud.static.preflight import check_hosts  # noqa: PLC0415

            yield from check_hosts(site)
        case _:
            return


def _check_ec2(site: Site, user_data: UserDataSource, clock: Clock) -> Iterator[Finding]:
    from nodemanager.cloud.ec2.from_site import ec2_cloud  # noqa: PLC0415

    port = ec2_cloud(site, user_data, clock)
    try:
        port.check_reads()
    except CloudError as error:
        yield refused("permissions", error)
    else:
        yield Finding("permissions", Verdict.OK, "to list nodes, their health, volumes, interfaces and addresses")
    knows_dry_runs = False
    for node_type in site.node_types:
        subject = f"nodes of {node_type.name}"
        try:
            for size in node_type.by_size():
                port.dry_run(_launch_of(size, clock), size)
            knows_dry_runs = True
        except CloudError as error:
            yield refused(subject, error)
            continue
        sizes = ", ".join(dict.fromkeys(size.size for size in node_type.by_size()))
        yield Finding(subject, Verdict.OK, f"EC2 would create {sizes} from {node_type.image} (a dry run)")
    if knows_dry_runs:
        yield _check_terminate(port)
    yield from _check_ec2_quotas(site, clock)


def _check_terminate(port: Ec2Cloud) -> Finding:
    """Ask whether an instance of the cluster might be terminated. Without one, the policy cannot be tried."""
    try:
        alive = [it for it in port.list_nodes() if it.state in (CloudState.PENDING, CloudState.RUNNING)]
        if not alive:
            text = "not tried, because the cluster has no instance. flux-node-manager cloud-test tries it"
            return Finding("termination", Verdict.OK, text)
        port.dry_terminate(alive[0].provider_id)
    except CloudError as error:
        return refused("termination", error)
    return Finding("termination", Verdict.OK, f"EC2 would terminate {alive[0].provider_id} (a dry run)")


def _check_ec2_quotas(site: Site, clock: Clock) -> Iterator[Finding]:
    """Compare each quota with the virtual CPUs that ``nodes_max`` nodes of its sizes have."""
    from nodemanager.cloud.ec2.from_site import ec2_quotas  # noqa: PLC0415

    try:
        quotas = ec2_quotas(site, clock)
    except CloudError as error:
        text = f"{_most_cores(site)} cores may run at once by nodes_max; the quotas cannot be read: {error.detail}"
        remedy = "Allow servicequotas:ListServiceQuotas, or compare that with Service Quotas yourself"
        yield Finding("quotas", Verdict.OK, text, remedy)
        return
    cpus = {name: it.cores for name, it in ec2_hardware().items()}
    short = False
    for quota in quotas:
        needed = sum(sorted(_cpus_per_slot(site, quota, cpus), reverse=True)[: site.limits.nodes_max])
        if needed > quota.cpus:
            short = True
            text = f"{needed} virtual CPUs may be needed, and {quota.cpus:g} may run: {quota.name}"
            yield Finding("quotas", Verdict.WARNING, text, REMEDY_OF_QUOTA)
    if not short:
        text = "they allow all nodes of nodes_max, if the account runs no other instances"
        yield Finding("quotas", Verdict.OK, text)


def _cpus_per_slot(site: Site, quota: CpuQuota, cpus: Mapping[str, int]) -> Iterator[int]:
    """The virtual CPUs that a node in each slot can have of those that the quota counts."""
    for node_type in site.node_types:
        counted = [
            cpus.get(it.size, 2 * it.cores) for it in node_type.by_size() if quota.counts(it.size, it.market)
        ]
        yield from [max(counted)] * len(node_type.slots) if counted else ()


def _check_openstack(site: Site, user_data: UserDataSource, clock: Clock) -> Iterator[Finding]:
    from nodemanager.cloud.openstack.from_site import openstack_cloud  # noqa: PLC0415

    port = openstack_cloud(site, user_data, clock)
    for node_type in site.node_types:
        subject = f"nodes of {node_type.name}"
        try:
            for size in node_type.by_size():
                port.look_up(_launch_of(size, clock), size)
        except CloudError as error:
            yield refused(subject, error)
        else:
            text = f"flavor {node_type.size}, image {node_type.image} and the network exist"
            yield Finding(subject, Verdict.OK, text)
    yield _check_limits(site, port)


def _check_limits(site: Site, port: OpenStackCloud) -> Finding:
    """Compare the project's limits with what all the nodes need. -1 means no limit."""
    try:
        limits = port.limits()
    except CloudError as error:
        return refused("quotas", error)
    short = []
    for what, limit, used, needed in (
        ("servers", "maxTotalInstances", "totalInstancesUsed", site.limits.nodes_max),
        ("cores", "maxTotalCores", "totalCoresUsed", _most_cores(site)),
    ):
        most, now = limits.get(limit), limits.get(used)
        if isinstance(most, int) and isinstance(now, int) and 0 <= most < now + needed:
            short.append(f"{needed} {what} may be needed, and {max(0, most - now)} of {most} are free")
    if short:
        return Finding("quotas", Verdict.WARNING, "; ".join(short), REMEDY_OF_QUOTA)
    return Finding("quotas", Verdict.OK, f"there is room for {site.limits.nodes_max} servers of these types")


def _most_cores(site: Site) -> int:
    """The cores of the ``nodes_max`` slots that have most of them."""
    cores = sorted((node_type.cores for node_type in site.node_types for _ in node_type.slots), reverse=True)
    return sum(cores[: site.limits.nodes_max])


def _launch_of(node_type: NodeType, clock: Clock) -> Launch:
    """A launch that is never created, in the first zone of the type."""
    name = f"check-{uuid.uuid4().hex[:12]}"
    zone = node_type.zones[0] if node_type.zones else ""
    return Launch(LaunchId(name), SlotName(name), Rank(0), node_type.name, name, clock.wall_at(), zone)
