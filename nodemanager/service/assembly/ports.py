"""The ports of a site: to Flux, to its clouds, to the join service. Only the modules that it needs are imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodemanager.cloud.providers import cloud_factory, cloud_watch
from nodemanager.config.provider import GoogleToken
from nodemanager.config.site import DelegateTo, JoinMethod, Site
from nodemanager.config.text.settings import NEVER
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.nodes import FailureKind, Launch
from nodemanager.core.ports import Clock, CloudError, CloudPort, CloudWatch, FluxPort, FluxWatch, Info, JoinPort
from nodemanager.core.slots import CloudName, Misfit, TypeName

if TYPE_CHECKING:
    from nodemanager.cloud.common.request import BatchScript, UserDataSource
    from nodemanager.cloud.minicluster.port import SizeService
    from nodemanager.delegation.choose import Peer, Targets
    from nodemanager.delegation.ports import HomePort, PeerPort
    from nodemanager.flux.instance import RealFlux
    from nodemanager.join.identity.google_keys import GoogleKeys


@dataclass(frozen=True)
class DelegationPorts:
    """The ports of delegation, each with a thread of its own, and the peers that jobs may go to."""

    home: Callable[[], HomePort]
    peer: Callable[[Peer], PeerPort]
    targets: Targets


@dataclass(frozen=True)
class SitePorts:
    """The ports of one site. The factories are called once for each actor, because a port belongs to one thread."""

    clock: Clock
    flux: Callable[[], FluxPort]
    clouds: Mapping[CloudName, Callable[[], CloudPort]]  # at least one, in the order of the site
    watch: FluxWatch
    close: Callable[[], None]
    join: Callable[[], JoinPort] | None = None  # None if nodes join without a join service
    delegation: DelegationPorts | None = None  # None if the site delegates no jobs
    job_end: Callable[[JobId], JobEnd | None] | None = None  # reads from Flux how a job ended; None if it cannot
    cloud_watch: CloudWatch | None = None  # None if the provider tells no news


class SystemClock:
    """This machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_at(self) -> float:
        return time.time()


class NodesCannotJoin(Exception):
    """Nodes join by the site's join service, which lacks something. The message says what."""


def make_ports(
    site: Site, info: Info | None = None, floor: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
) -> SitePorts:
    """Make the ports that the site names. Only their modules are imported.

    ``info``: the answers to users who ask through Flux. ``floor``: the answer to ensembles that ask for nodes.
    Raises ``NodesCannotJoin``.
    """
    if site.flux.simulated:
        return _simulated_ports(site)
    # Flux's bindings are needed only for a real instance. Most of the memory of ``run`` is libraries, so each is
    # imported only where it is needed.
    from nodemanager.flux.instance import RealFlux  # noqa: PLC0415

    _open_run_folder(site)
    clock = SystemClock()
    flux = RealFlux(
        site.flux.uri,
        site.cluster_uuid,
        clock,
        folder=site.flux.bootstrap_dir,
        node_types=site.node_types,
        info=info,
        floor=floor,
        # A node that joins by ticket reports its hardware itself, before its broker starts.
        measures=site.flux.join is not JoinMethod.SERVICE and site.policy.misfit is not Misfit.ACCEPT,
        flub=site.flux.join is JoinMethod.FLUB,
        types_with_data=_types_with_data(site),
        early_release=site.policy.early_release,
    )
    watch = flux.watch(probe_s=site.timing.probe_s, relist_s=site.timing.relist_s)
    try:
        clouds = {name: _cloud_factory(part, clock) for name, part in site.by_cloud.items()}
        news = cloud_watch(site, clock)
    except CloudError as error:
        raise NodesCannotJoin(f"{site.path}: {error.detail}") from error
    join = _exchange(site) if site.flux.join is JoinMethod.SERVICE else None
    delegation = _delegation_ports(site, flux, clock) if site.delegates and site.acts else None
    return SitePorts(clock, flux.port, clouds, watch, flux.close, join, delegation, flux.job_end, news)


def size_service(site: Site) -> SizeService | None:
    """Return the service that changes the size of the site's MiniCluster; None if the manager does so itself.

    Raises :class:`CloudError`.
    """
    if not site.cloud.service:
        return None
    from nodemanager.web.grpc.sizes import connect_sizes  # noqa: PLC0415 - gRPC takes 20 MB

    return connect_sizes(site)


def _types_with_data(site: Site) -> list[TypeName]:
    """The node types that wait for the data of their jobs."""
    wanted = site.policy.wait_for_data
    return [it.name for it in site.node_types if wanted != NEVER and wanted in it.properties]


def _delegation_ports(site: Site, flux: RealFlux, clock: Clock) -> DelegationPorts:
    from nodemanager.flux.delegate.home import RealHome  # noqa: PLC0415
    from nodemanager.flux.delegate.peer import RealPeer  # noqa: PLC0415
    from nodemanager.flux.setup.existing import frobnicator_in_use  # noqa: PLC0415

    def make_peer(peer: Peer) -> PeerPort:
        return RealPeer(peer.name, peer.uri, site.cluster_uuid, clock)

    return DelegationPorts(
        lambda: RealHome(site.flux.uri, flux.claim, frobnicator_in_use(site)), make_peer, targets_of(site)
    )


def targets_of(site: Site) -> Targets:
    """Take from the site where jobs may go."""
    from nodemanager.delegation.choose import Peer, Targets  # noqa: PLC0415
    from nodemanager.delegation.jobs import PeerName  # noqa: PLC0415

    peers = tuple(
        Peer(PeerName(name), peer.uri, peer.price_per_core_hour, peer.jobs_max, peer.output_max_bytes)
        for name, peer in site.peers.items()
    )
    return Targets(peers, any_uri=site.policy.delegate_to is DelegateTo.ANY)


def _simulated_ports(site: Site) -> SitePorts:
    from nodemanager.simulation.embedded import start_embedded_world  # noqa: PLC0415

    simulated = start_embedded_world(site)
    return SitePorts(simulated.clock, simulated.flux_port, simulated.clouds, simulated.watch, simulated.close)


def _exchange(site: Site) -> Callable[[], JoinPort]:
    from nodemanager.join.exchange import ExchangePaths, FileExchange  # noqa: PLC0415

    return lambda: FileExchange(ExchangePaths(site.join.material_dir))


def _cloud_factory(site: Site, clock: Clock) -> Callable[[], CloudPort]:
    """Return the factory of ports for a site's only cloud. Raises :class:`CloudError` and ``NodesCannotJoin``."""
    user_data, batch_script = _user_data(site)
    return cloud_factory(site, user_data, clock, size_service(site), batch_script, _key_file(site, clock))


def _key_file(site: Site, clock: Clock) -> GoogleKeys | None:
    """Return where Google's keys belong; None if the join service needs none."""
    if not site.batches or not isinstance(site.rules.node_proof(site.cloud), GoogleToken):
        return None
    from nodemanager.join.identity.google_keys import GoogleKeys  # noqa: PLC0415

    return GoogleKeys(site.join.material_dir, clock.wall_at)


def _user_data(site: Site) -> tuple[UserDataSource, BatchScript | None]:
    """Return the functions that make the user-data, the script that a node runs at boot: of a node, of a batch."""
    if site.flux.join is JoinMethod.SERVICE:
        from nodemanager.join import user_data  # noqa: PLC0415

        try:
            scripts = user_data.JoinUserData(site)
        except user_data.UserDataError as error:
            raise NodesCannotJoin(str(error)) from error
        return lambda launch, _: scripts(launch.id), scripts.for_batch
    return lambda launch, _: _bootstrap_script(site, launch), None


def _open_run_folder(site: Site) -> None:
    from nodemanager.flux.setup import bootstrap  # noqa: PLC0415

    try:
        bootstrap.open_run_folder(site)
    except bootstrap.BootstrapError as error:
        raise NodesCannotJoin(str(error)) from error


def _bootstrap_script(site: Site, launch: Launch) -> str:
    from nodemanager.flux.setup import bootstrap, node_script  # noqa: PLC0415

    try:
        return node_script.user_data(site, launch.slot)
    except bootstrap.BootstrapError as error:
        raise CloudError(FailureKind.CONFIG, str(error)) from error
