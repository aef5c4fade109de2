"""The simulated instance's journals, read by the real parser and passed to a listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nodemanager.core.facts import QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.ports import FluxError, QueueListener
from nodemanager.flux.parse.job_journal import JobQueue, changes_allocation
from nodemanager.simulation.flux.brokers import ResourceEvent
from nodemanager.simulation.flux.instance import JournalFollower, SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.time.world import Scheduled

BATCH_S = 0.01

RECONNECT_S = 1.0
PROBE_HIDDEN_S = 1.0  # asks which queues are stopped, while no scheduler is there to tell


class SimulatedFluxWatch:
    """:class:`nodemanager.core.ports.FluxWatch`. The thread that moves the world's clock calls the listener.

    That thread holds the world's lock: a listener must not wait for another thread.
    """

    def __init__(self, flux: SimulatedFlux, *, probe_s: float = 10.0, relist_s: float = 60.0) -> None:
        self._flux = flux
        self._world = flux.world
        self._probe_s = probe_s
        self._relist_s = relist_s
        self._queue = JobQueue()
        self._timers: dict[Callable[[], None], Scheduled] = {}
        self._unfollow: Callable[[], None] | None = None
        self._ranks_changed = False
        self._queues_stopped: frozenset[str] | None = frozenset()
        self._stopped = True

    def start(self, listener: QueueListener, lost: Callable[[str], None]) -> None:
        with self._world.lock:
            self._listener = listener
            self._lost = lost
            self._stopped = False
            self._later(0.0, self._connect)

    def stop(self) -> None:
        with self._world.lock:
            self._stopped = True
            self._disconnect()

    # --- the connection ---

    def _connect(self) -> None:
        try:
            self._unfollow = self._flux.follow(
                JournalFollower(self._on_job_event, self._on_resource_event, self._on_lost)
            )
        except FluxError as failure:
            self._lost(str(failure))
            self._later(RECONNECT_S, self._connect)
            return
        self._queue = JobQueue()
        for event in self._flux.active_events():
            self._apply(event)
        self._deliver_whole_queue()
        self._probe_later()

    def _on_lost(self, why: str) -> None:
        self._disconnect()
        self._lost(why)
        self._later(RECONNECT_S, self._connect)

    def _disconnect(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    # --- events of the journals ---

    def _on_job_event(self, event: JobEvent) -> None:
        self._apply(event)
        self._ranks_changed = self._ranks_changed or changes_allocation(event.name)
        self._deliver_soon()

    def _apply(self, event: JobEvent) -> None:
        self._queue.apply(event.job_id, event.name, event.timestamp, event.context, event.jobspec, event.R)

    def _on_resource_event(self, _event: ResourceEvent) -> None:
        self._ranks_changed = True
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._deliver not in self._timers:
            self._later(BATCH_S, self._deliver)

    # --- messages to the listener ---

    def _deliver(self) -> None:
        changes = self._queue.changes(self._world.now_s)
        if changes.jobs or changes.unreadable or changes.ended:
            self._listener(changes)
        if self._ranks_changed:
            self._ranks_changed = False
            self._listener(RanksChanged())

    def _deliver_whole_queue(self) -> None:
        """Send the whole queue. There is no need to read the journal again: this one never drops an event."""
        self._queues_stopped = self._flux.queues_stopped()
        complete = self._queue.complete(self._world.now_s)
        self._listener(replace(complete, queues_stopped=self._queues_stopped))
        self._ranks_changed = False
        self._listener(RanksChanged())
        self._later(self._relist_s, self._deliver_whole_queue)

    def _probe(self) -> None:
        now_s, stopped = self._world.now_s, self._flux.queues_stopped()
        if stopped != self._queues_stopped or stopped is None:
            self._queues_stopped = stopped
            self._deliver()
            self._listener(QueueSeen(now_s, queues_stopped=stopped))
        else:
            self._listener(QueueProbed(now_s))
        self._probe_later()

    def _probe_later(self) -> None:
        hidden = self._queues_stopped is None
        self._later(min(PROBE_HIDDEN_S, self._probe_s) if hidden else self._probe_s, self._probe)

    def _later(self, delay_s: float, step: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.pop(step, None)
            if not self._stopped:
                step()

        self._timers[step] = self._world.after(delay_s, run)
