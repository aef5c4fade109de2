"""The running manager: the actors, the clock that ticks for them, and the process around them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pykka
import structlog

from nodemanager.actors.base import Fate
from nodemanager.actors.manager import Manager, Publication
from nodemanager.actors.messages import Mailbox, UsePolicy
from nodemanager.actors.ticker import Ticker, WakingMailbox
from nodemanager.config.load import load_site
from nodemanager.config.reload import needs_restart
from nodemanager.config.site import Burst, ConfigError, Site
from nodemanager.core.facts import FluxUnreachable, OperatorFact, PeersSeen, SteeringSeen, Tick
from nodemanager.delegation.view import DelegationView, peers_seen
from nodemanager.service.assembly.cluster import NotInitialised, with_cluster_uuid
from nodemanager.service.assembly.policy import policy_of
from nodemanager.service.assembly.ports import SitePorts
from nodemanager.service.assembly.wiring import A, spawn_in_thread, wire, wire_delegation
from nodemanager.service.systemd import Notifier
from nodemanager.web.api.control import ReloadRefused
from nodemanager.web.state.token import TokenError

if TYPE_CHECKING:
    from nodemanager.actors.delegation.delegator import DelegatorMessage
    from nodemanager.service.floors import Floors
    from nodemanager.service.outputs import Outputs

EXIT_OK = 0
EXIT_CRASHED = 70  # EX_SOFTWARE (sysexits.h): a bug; a restart is the recovery
GC_THRESHOLD = 20_000  # new objects before a garbage collection; Python's default of 700 is reached in a tick
SIGNALS_EVERY_S = 1.0
STOP_S = 1.0  # how long actors may take to end their calls before the process exits without them


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
        # Requests of the web reload, and the main thread reloads and keeps nodes: the last policy told must be the
        # one of the latest site and floor.
        self._site_lock = threading.Lock()
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

    def tell(self, fact: OperatorFact | SteeringSeen) -> None:
        """Send an operator's fact to the manager, or whether operators can send any."""
        if isinstance(fact, SteeringSeen) and not self._site.acts:
            return  # it changes nothing, so there is nothing to steer
        self._manager.tell(fact)

    def reload(self, by: str = "SIGHUP") -> dict[str, Any]:
        """Reload the site and use it from now on. ``by``: who asked, for the log.

        Raises ``ReloadRefused``, with nothing changed.
        """
        with self._site_lock:
            return self._reload(by)

    def _reload(self, by: str) -> dict[str, Any]:
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
        with self._site_lock:
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
    # A handler interrupts the main thread anywhere, so it only asks: the loop below reloads.
    reload_asked = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: reload_asked.set())
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
        if reload_asked.is_set():
            reload_asked.clear()
            _reload_or_log(service)
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
