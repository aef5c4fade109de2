"""The running manager: chooses the site's ports, starts the actors, and connects them.

The simulator connects the same actors by the same :func:`wire`, with a ``spawn`` of its own.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pykka
import structlog

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.actors.delegation.delegator import Delegator, DelegatorMessage, StartDelegation
from nodemanager.actors.delegation.targets import Targets
from nodemanager.actors.flux import FluxWorker
from nodemanager.actors.join import JoinClerk
from nodemanager.actors.manager import Manager, Publication
from nodemanager.actors.messages import Begin, CloudActors, Mailbox, ManagerMessage, UsePolicy
from nodemanager.actors.ticker import Ticker, WakingMailbox
from nodemanager.cloud.providers import cloud_factory, cloud_watch
from nodemanager.config.reload import needs_restart
from nodemanager.config.site import (
    EC2_CREATE_CALLS_AT_ONCE,
    EC2_CREATE_CALLS_PER_S,
    Burst,
    ConfigError,
    DelegateTo,
    JoinMethod,
    Provider,
    Site,
    load_site,
    name_file,
    uuid_file,
)
from nodemanager.config.text.settings import NEVER, SectionSettings
from nodemanager.core.facts import FluxUnreachable, OperatorFact, PeersSeen, Tick
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.nodes import FailureKind, Launch
from nodemanager.core.orders import DelegateJob
from nodemanager.core.ports import Clock, CloudError, CloudPort, CloudWatch, FluxPort, FluxWatch, Info, JoinPort
from nodemanager.core.slots import CloudName, Misfit, TypeName
from nodemanager.core.upkeep.rules import Disruption, Schedule
from nodemanager.delegation.home_port import HomePort
from nodemanager.delegation.jobs import PeerName
from nodemanager.delegation.offers import peers_seen
from nodemanager.delegation.peer_port import Peer, PeerPort
from nodemanager.delegation.view import DelegationView
from nodemanager.planner.cost.spending import cloud_account
from nodemanager.planner.state.policy import (
    BLOCK_S,
    Calls,
    CloudRules,
    Fixed,
    Limits,
    Policy,
    Rules,
    Timing,
    Upkeep,
)
from nodemanager.service.systemd import Notifier
from nodemanager.web.api.control import ReloadRefused
from nodemanager.web.state.token import TokenError

if TYPE_CHECKING:
    from nodemanager.cloud.common.libcloud_port import BatchScript, UserDataSource
    from nodemanager.cloud.minicluster.port import SizeService
    from nodemanager.flux.instance import RealFlux
    from nodemanager.join.identity.google_keys import GoogleKeys
    from nodemanager.service.floors import Floors
    from nodemanager.service.outputs import Outputs

EXIT_OK = 0
EXIT_CRASHED = 70  # EX_SOFTWARE (sysexits.h): a bug; a restart is the recovery
GC_THRESHOLD = 20_000  # new objects before a garbage collection; Python's default of 700 is reached in a tick
SIGNALS_EVERY_S = 1.0
# How long a refused member of an ensemble waits before it asks for pods again: at first, and at most.
SHARED_AGAIN_S = 15.0
SHARED_AGAIN_S_MAX = 120.0
STOP_S = 1.0  # how long actors may take to end their calls before the process exits without them

A = TypeVar("A", bound=CrashOnlyActor)
_Group = TypeVar("_Group", Limits, Timing, Rules, Calls)


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
    cloud: Callable[[], CloudPort]  # the first cloud
    watch: FluxWatch
    close: Callable[[], None]
    join: Callable[[], JoinPort] | None = None  # None if nodes join without a join service
    delegation: DelegationPorts | None = None  # None if the site delegates no jobs
    job_end: Callable[[JobId], JobEnd | None] | None = None  # reads from Flux how a job ended; None if it cannot
    cloud_watch: CloudWatch | None = None  # None if the provider tells no news
    clouds: Mapping[CloudName, Callable[[], CloudPort]] = field(default_factory=dict)  # {}: there is only one


class SystemClock:
    """This machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_at(self) -> float:
        return time.time()


class Spawn(Protocol):
    """Starts an actor: in a thread, or in the simulator's pump."""

    def __call__(self, actor: type[A], /, *arguments: Any) -> Mailbox[Any]: ...


@dataclass(frozen=True, slots=True)
class ActorAddress:
    """The mailbox of an actor in a thread. Messages to a dead actor are ignored: the process is about to exit."""

    actor: pykka.ActorRef[Any]

    def tell(self, message: Any) -> None:
        with suppress(pykka.ActorDeadError):
            self.actor.tell(message)


def spawn_in_thread(actor: type[A], /, *arguments: Any) -> Mailbox[Any]:
    """Start an actor in a thread of its own."""
    return ActorAddress(actor.start(*arguments))


def wire(
    ports: SitePorts,
    policy: Policy,
    acts: bool,
    publish: Callable[[Publication], None],
    fate: Fate,
    spawn: Spawn = spawn_in_thread,
    delegator: Mailbox[DelegateJob] | None = None,
) -> Mailbox[ManagerMessage]:
    """Start the actors and connect them. They wait for the first tick. Returns the manager's mailbox."""
    manager: Mailbox[ManagerMessage] = spawn(Manager, policy, acts, publish, fate)
    manager.tell(
        Begin(
            flux=spawn(FluxWorker, ports.flux(), ports.clock, manager, acts, fate),
            clouds={
                name: CloudActors(
                    spawn(CloudWatcher, port(), ports.clock, manager, fate, name),
                    [
                        spawn(CloudWorker, port(), ports.flux(), ports.clock, manager, fate)
                        for _ in range(policy.calls_of(name).calls_in_flight_max)
                    ],
                )
                for name, port in (ports.clouds or {policy.cloud_names[0]: ports.cloud}).items()
            },
            join=spawn(JoinClerk, ports.join(), manager, fate) if ports.join is not None else None,
            delegator=delegator,
        )
    )
    return manager


def policy_of(site: Site) -> Policy:
    """Take from the site what the planner needs. A manager that never acts reports all types alike."""
    return Policy(
        cluster=site.cluster,
        cluster_uuid=site.cluster_uuid,
        node_types=site.node_types,
        limits=_settings(Limits, site.limits),
        timing=_settings(Timing, site.timing),
        rules=_settings(Rules, site.policy),
        calls=_calls(site),
        upkeep=_upkeep(site),
        budgets=_budgets(site),
        observed=site.observed_types if site.acts else frozenset(),
        bursts=site.policy.burst is Burst.PEERS and bool(site.peers),
        destroy_on_replay=site.join.destroy_on_replay,
        stacked=site.cloud.provider is Provider.MINICLUSTER,
        fixed=_fixed(site),
        clouds={
            name: CloudRules(_calls(part), part.cloud.nodes_max, part.cloud.price_per_hour_max)
            for name, part in site.by_cloud.items()
        },
    )


def _fixed(site: Site) -> Fixed:
    if not site.cloud.service:
        return Fixed()
    # Pods that other members give back are free within seconds, or when their jobs end. The service forgets a wish
    # that is not repeated within five minutes.
    return Fixed(block_s={**BLOCK_S, FailureKind.QUOTA: SHARED_AGAIN_S}, probe_s_max=SHARED_AGAIN_S_MAX)


def _budgets(site: Site) -> dict[tuple[str, str], Decimal]:
    """The budgets of the site, its users, queues and clouds, by owner and period."""
    of_clouds = {
        (cloud_account(name), period): limit
        for name, part in site.by_cloud.items()
        for period, limit in (("day", part.cloud.per_day), ("month", part.cloud.per_month))
        if limit is not None
    }
    return {**site.budget.limits, **of_clouds}


def _calls(site: Site) -> Calls:
    cloud = site.cloud
    return Calls(
        cloud.call_timeout_s,
        cloud.calls_in_flight_max,
        *site.create_rate,
        nodes_per_create=cloud.nodes_per_call if site.batches else 1,
        create_calls_per_s=EC2_CREATE_CALLS_PER_S,
        create_calls_burst=EC2_CREATE_CALLS_AT_ONCE if site.batches else None,
        nodes_per_destroy=cloud.nodes_per_call if cloud.provider is Provider.EC2 else 1,
    )


def _upkeep(site: Site) -> Upkeep:
    whole = site.disruption.disruption
    of_type = {
        name: Disruption(
            *(node.disruption_max if node.disruption_max is not None else (None, 1.0)),
            node.disruption_windows if node.disruption_windows is not None else whole.windows,
        )
        for name, node in site.nodes.items()
        if node.disruption_max is not None or node.disruption_windows is not None
    }
    schedules = tuple(
        Schedule(
            name,
            schedule.when,
            schedule.node_types,
            schedule.nodes_min,
            schedule.nodes_max,
            schedule.price_per_hour_max,
            schedule.spares,
            schedule.idle_timeout_s,
        )
        for name, schedule in site.schedules.items()
    )
    policy = site.policy
    return Upkeep(
        drift=policy.drift,
        disruption=whole,
        of_type=of_type,
        consolidate=policy.consolidate,
        consolidate_gain=policy.consolidate_gain,
        schedules=schedules,
        wait_for_data=policy.wait_for_data,
        data_max_s=policy.data_max_s,
    )


def _settings(group: type[_Group], section: SectionSettings) -> _Group:
    """The group's settings, which have the same names in the section of the site."""
    return group(**{it.name: getattr(section, it.name) for it in fields(group)})


class NotInitialised(Exception):
    """The site has no cluster UUID, which tells our nodes from others."""


def with_cluster_uuid(site: Site) -> Site:
    """Return the site with a cluster UUID. A simulated site's UUID comes from its seed, a real one's from ``init``.

    Raises ``NotInitialised``.
    """
    if site.cluster_uuid:
        return site
    if site.flux.simulated:
        return replace(site, cluster_uuid=str(uuid.UUID(int=site.simulation.seed)))
    raise NotInitialised(
        f"{site.path}: cluster {site.cluster} has no UUID: run flux-node-manager init, or give the cluster_uuid of"
        f" the instance under [Site] (it is kept in {uuid_file(site.state_dir)})"
    )


def record_cluster_name(site: Site) -> None:
    """Record the cluster's name before the first node carries it, so that a later change of name is noticed."""
    if site.flux.simulated or name_file(site.state_dir).exists():
        return
    try:
        site.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=site.state_dir, prefix=".cluster-name.") as draft:
            draft.write(site.cluster + "\n")
            draft.flush()
            with suppress(FileExistsError):  # another process has just recorded it
                os.link(draft.name, name_file(site.state_dir))  # whole or not at all
    except OSError as error:
        log: Any = structlog.get_logger()
        log.warning("cluster_name_not_kept", file=str(name_file(site.state_dir)), why=error.strerror)


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
        leader_runs_jobs=site.cloud.provider is Provider.MINICLUSTER,
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
    first = next(iter(clouds.values()))
    return SitePorts(clock, flux.port, first, watch, flux.close, join, delegation, flux.job_end, news, clouds)


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
    peers = tuple(
        Peer(PeerName(name), peer.uri, peer.price_per_core_hour, peer.jobs_max, peer.output_max_bytes)
        for name, peer in site.peers.items()
    )
    return Targets(peers, any_uri=site.policy.delegate_to is DelegateTo.ANY)


def _simulated_ports(site: Site) -> SitePorts:
    from nodemanager.simulation.embedded import start_embedded_world  # noqa: PLC0415

    simulated = start_embedded_world(site)
    return SitePorts(
        simulated.clock,
        simulated.flux_port,
        simulated.cloud_port,
        simulated.watch,
        simulated.close,
        clouds=simulated.clouds,
    )


def _exchange(site: Site) -> Callable[[], JoinPort]:
    from nodemanager.join.exchange import ExchangePaths, FileExchange  # noqa: PLC0415

    return lambda: FileExchange(ExchangePaths(site.join.material_dir))


def _cloud_factory(site: Site, clock: Clock) -> Callable[[], CloudPort]:
    """Return the factory of ports for a site's only cloud. Raises :class:`CloudError` and ``NodesCannotJoin``."""
    user_data, batch_script = _user_data(site)
    return cloud_factory(site, user_data, clock, size_service(site), batch_script, _key_file(site, clock))


def _key_file(site: Site, clock: Clock) -> GoogleKeys | None:
    """Return where Google's keys belong; None if the join service needs none."""
    if site.cloud.provider is not Provider.GCE or not site.batches:
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


def wire_delegation(
    ports: DelegationPorts,
    cluster_uuid: str,
    clock: Clock,
    publish: Callable[[DelegationView], None],
    fate: Fate,
    spawn: Spawn = spawn_in_thread,
) -> Mailbox[DelegatorMessage]:
    """Start the delegator. Returns its mailbox, which needs ticks."""
    delegator: Mailbox[DelegatorMessage] = spawn(
        Delegator, ports.home(), ports.peer, ports.targets, cluster_uuid, clock, publish, fate
    )
    delegator.tell(StartDelegation(delegator))
    return delegator


def ignore_publication(published: Publication) -> None:
    """Ignore a publication: a ``publish`` for a service without outputs."""


def ignore_delegation(view: DelegationView) -> None:
    """Ignore the view of delegation: a ``publish_delegation`` for a service without outputs."""


def ignore_site(site: Site) -> None:
    """Ignore a reloaded site: a ``reload_outputs`` for a service without outputs."""


@dataclass(frozen=True, slots=True)
class TickedMailboxes:
    """The mailboxes that the ticker tells the time."""

    manager: Mailbox[Tick]
    delegator: Mailbox[Tick]

    def tell(self, message: Tick) -> None:
        self.manager.tell(message)
        self.delegator.tell(message)


class Service:
    """The running manager: its actors, the ticker and the watch on Flux."""

    def __init__(
        self,
        site: Site,
        ports: SitePorts,
        publish: Callable[[Publication], None] = ignore_publication,
        publish_delegation: Callable[[DelegationView], None] = ignore_delegation,
        reload_outputs: Callable[[Site], None] = ignore_site,
    ) -> None:
        self.fate = Fate()
        self._reload_outputs = reload_outputs
        self._site = site
        self._floor = 0
        self._ports = ports
        self._news = threading.Event()
        self._publish_delegation = publish_delegation
        self._peers_told: PeersSeen | None = None
        delegator: Mailbox[DelegatorMessage] | None = None
        if ports.delegation is not None:
            delegator = wire_delegation(
                ports.delegation, site.cluster_uuid, ports.clock, self._take_delegation, self.fate
            )
        self._manager = wire(ports, policy_of(site), site.acts, publish, self.fate, self._spawn, delegator)
        ticked: Mailbox[Tick] = self._manager
        if delegator is not None:
            ticked = TickedMailboxes(self._manager, delegator)
        self._ticker = Ticker(ports.clock, ticked, self._news)

    def _take_delegation(self, view: DelegationView) -> None:
        """Show the view, and tell the manager what the peers offer if it may send jobs to them."""
        self._publish_delegation(view)
        if self._site.policy.burst is Burst.PEERS:
            seen = peers_seen(view, os.getuid())
            if seen != self._peers_told:
                self._peers_told = seen
                self._manager.tell(seen)

    def _spawn(self, actor: type[A], /, *arguments: Any) -> Mailbox[Any]:
        address = spawn_in_thread(actor, *arguments)
        return WakingMailbox(address, self._news) if actor is Manager else address

    def start(self) -> None:
        """Start the watch and the ticker."""
        # The manager needs the time before the first fact, to date it.
        self._manager.tell(Tick(self._ports.clock.monotonic_s(), self._ports.clock.wall_at()))
        self._ports.watch.start(self._manager.tell, self._report_flux_lost)
        if self._ports.cloud_watch is not None:
            self._ports.cloud_watch.start(self._manager.tell)
        self._ticker.start()

    def stop(self) -> None:
        """Stop the threads; wait at most ``STOP_S``. A call that hangs ends with the process: it is on record."""
        self._ticker.stop()
        self._ports.watch.stop()
        if self._ports.cloud_watch is not None:
            self._ports.cloud_watch.stop()
        deadline_s = time.monotonic() + STOP_S
        actors = pykka.ActorRegistry.get_all()
        for actor in actors:
            actor.stop(block=False)
        for actor in actors:
            actor.actor_stopped.wait(max(0.0, deadline_s - time.monotonic()))
        self._ports.close()

    # --- steering ---

    @property
    def site(self) -> Site:
        """The site as last loaded."""
        return self._site

    def tell(self, fact: OperatorFact) -> None:
        """Send an operator's fact to the manager."""
        self._manager.tell(fact)

    def reload(self, by: str = "SIGHUP") -> dict[str, Any]:
        """Reload the site and use it from now on. ``by``: who asked, for the log.

        Raises ``ReloadRefused``, with nothing changed.
        """
        try:
            site = with_cluster_uuid(load_site(self._site.path))
        except (ConfigError, NotInitialised) as error:
            raise ReloadRefused(str(error)) from error
        if changed := needs_restart(self._site, site):
            raise ReloadRefused(
                f"{site.path}: changing these needs a restart: {', '.join(changed)}; nothing is changed"
            )
        try:
            self._reload_outputs(site)
        except TokenError as error:
            raise ReloadRefused(str(error)) from error
        self._site = site
        self._use_policy()
        structlog.get_logger().info("reloaded", path=str(site.path), by=by)
        return {"path": str(site.path), "reloaded": True}

    def keep_nodes(self, floor: int) -> None:
        """Keep at least so many nodes for ensembles, as ``nodes_min`` does for the site."""
        if floor != self._floor:
            self._floor = floor
            structlog.get_logger().info("ensembles_keep_nodes", nodes=floor)
            self._use_policy()

    def _use_policy(self) -> None:
        policy = policy_of(self._site)
        limits = replace(policy.limits, nodes_min=max(policy.limits.nodes_min, self._floor))
        upkeep = replace(policy.upkeep, nodes_min_of_ensembles=self._floor)
        self._manager.tell(UsePolicy(replace(policy, limits=limits, upkeep=upkeep)))

    def _report_flux_lost(self, why: str) -> None:
        self._manager.tell(FluxUnreachable(self._ports.clock.monotonic_s(), why))


class Companion(Protocol):
    """Something with threads of its own that runs while the service does."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stop within about a second."""
        ...


def serve(
    site: Site,
    ports: SitePorts,
    outputs: Outputs,
    floors: Floors | None = None,
    companions: Sequence[Companion] = (),
) -> int:
    """Run the service in the foreground until SIGTERM, SIGINT or a bug. Returns the exit status.

    ``companions`` are started after the actors, and stopped before them.
    """
    log: Any = structlog.get_logger()
    systemd = Notifier()

    def publish_and_notify(published: Publication) -> None:
        outputs.publish(published)
        systemd.notify_decision(_status_line(service.site, published))

    service = Service(site, ports, publish_and_notify, outputs.publish_delegation, outputs.reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.fate.ended.set())
    signal.signal(signal.SIGHUP, lambda *_: _reload_or_log(service))
    # A bug in any other thread (the watch, the ticker) ends the process too.
    threading.excepthook = lambda failed: service.fate.crash(failed.exc_value or RuntimeError(str(failed.thread)))
    log.info("started", cluster=site.cluster, cluster_uuid=site.cluster_uuid, mode=site.mode_text)
    outputs.start(service, ports.job_end)
    freeze_startup_objects()
    service.start()
    for companion in companions:
        companion.start()
    # The kernel may deliver a signal to another thread. Python then handles it only after this wait has ended.
    while not service.fate.ended.wait(SIGNALS_EVERY_S):
        if floors is not None:
            floors.nodes_max = service.site.limits.nodes_max
            floors.lapse()
            if (latest := outputs.board.latest) is not None:
                fleet = latest.published
                floors.count_costs(time.time(), fleet.plan.price_per_hour, len(fleet.snapshot.nodes))
            outputs.board.nodes_kept = floors.shares()
            outputs.board.node_claims = floors.claims()
            service.keep_nodes(floors.total)
    systemd.notify_stopping()
    for companion in companions:
        companion.stop()
    service.stop()
    outputs.stop(STOP_S)
    if service.fate.crashed is not None:
        log.critical("crashed", error=repr(service.fate.crashed), exc_info=service.fate.crashed)
        return EXIT_CRASHED
    log.info("stopped")
    return EXIT_OK


def freeze_startup_objects() -> None:
    """Exempt all present objects from garbage collection: they live until the process ends.

    They far outnumber the objects of a fleet, and traversing them made some ticks several times as long as others.
    Later objects are mostly freed by reference counting. Only reference cycles need collections, so these are made
    rare: each one traverses a queue of thousands of jobs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _reload_or_log(service: Service) -> None:
    try:
        service.reload()
    except ReloadRefused as error:
        structlog.get_logger().error("reload_refused", why=str(error))


def _status_line(site: Site, published: Publication) -> str:
    """Return one line for ``systemctl status``. It changes only if the service's state does."""
    stands_still = published.plan.stands_still
    if stands_still is not None:
        return f"decides nothing: {stands_still.code}"
    nodes, jobs = len(published.snapshot.nodes), len(published.plan.jobs)
    return f"mode {site.mode_text}; nodes: {nodes}; waiting jobs: {jobs}"
