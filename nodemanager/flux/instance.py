"""A real Flux instance: its ports and its watch, which share one claim."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nodemanager.core.facts import QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.ports import Clock, FluxError, Info, QueueListener
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.flux import bindings
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.claim import Claim, Floor
from nodemanager.flux.link import Link, LinkSession
from nodemanager.flux.parse.eventlog import CAUGHT_UP, JOURNAL, read_job_end
from nodemanager.flux.parse.job_journal import JobQueue, changes_allocation
from nodemanager.flux.port import RealFluxPort


class RealFlux:
    """One manager's access to one instance.

    ``uri``: an argument of ``flux_open`` that leads to rank 0; ``""`` means the enclosing instance. ``folder``: its
    conf.d is rank 0's configuration. ``folder`` and ``node_types`` are needed to change the types of slots.
    ``info``: the answers to users of the instance who ask the service ``node-manager-info``. ``floor``: the answer
    to ensembles that ask for nodes.
    ``types_with_data``: looks show the jobs whose data may still be on nodes of these types.
    ``early_release``: looks show the ranks that running instances have given back.
    ``measures``: ports read the hardware of machines. ``flub``: Flux assigns the ranks.

    Raises ``BindingsMissing``, also if the instance runs another version. An unreachable instance raises only
    later, at the first call.
    """

    def __init__(
        self,
        uri: str,
        cluster_uuid: str,
        clock: Clock,
        *,
        folder: Path | None = None,
        node_types: Sequence[NodeType] = (),
        timeout_s: float = 5.0,
        info: Info | None = None,
        floor: Floor | None = None,
        measures: bool = False,
        flub: bool = False,
        types_with_data: Iterable[TypeName] = (),
        early_release: bool = False,
    ) -> None:
        with suppress(FluxError), bindings.connection(uri):
            pass  # every connection checks the version; a wrong one should fail before anything is started
        self._uri = uri
        self._cluster_uuid = cluster_uuid
        self._clock = clock
        self._timeout_s = timeout_s
        self._folder = folder
        self._node_types = tuple(node_types)
        self._measures = measures
        self._flub = flub
        self._types_with_data = frozenset(types_with_data)
        self._early_release = early_release
        self._claim = Claim(uri, timeout_s=timeout_s, info=info, floor=floor)
        self._one_job_end = threading.Lock()

    def port(self) -> RealFluxPort:
        """Make a port for one thread. Its first call opens the handle."""
        return RealFluxPort(
            self._uri,
            self._cluster_uuid,
            self._claim,
            folder=self._folder,
            node_types=self._node_types,
            timeout_s=self._timeout_s,
            measures=self._measures,
            flub=self._flub,
            types_with_data=self._types_with_data,
            early_release=self._early_release,
        )

    def watch(self, *, probe_s: float = 10.0, relist_s: float = 60.0) -> RealFluxWatch:
        """Make a watch with its own connection and thread."""
        return RealFluxWatch(self._uri, self._clock, probe_s=probe_s, relist_s=relist_s, timeout_s=self._timeout_s)

    @property
    def claim(self) -> Claim:
        """The hold on the name, for other ports that act on the instance."""
        return self._claim

    def job_end(self, job: JobId) -> JobEnd | None:
        """Read from Flux how a job ended; None if Flux does not say. Any thread may ask, one at a time."""
        if not self._one_job_end.acquire(timeout=self._timeout_s):
            return None
        try:
            with bindings.connection(self._uri) as handle:
                lookup = {"id": int(job), "keys": ["eventlog"], "flags": 0}
                answer = bindings.ask(handle, "job-info.lookup", lookup, timeout_s=self._timeout_s)
            return read_job_end(answer["eventlog"])
        except (FluxError, ValueError):
            return None
        finally:
            self._one_job_end.release()

    def close(self) -> None:
        """Release the name if it is held. The end of the process also releases it."""
        self._claim.release()


# --- follow the instance's journals, in a thread with its own handle and reactor --------------------------
#
# The job manager's journal (``job-manager.events-journal`` with ``full`` false) begins with all past events of
# every active job, the jobs in no particular order. One response ``{"id": -1, "events": []}`` ends this backlog;
# then each event arrives as it is posted. The resource journal ends its backlog with an empty list of events. No
# journal says whether a queue is stopped, so every listing and probe asks for that.


_RECONNECT_MAX_S = 5.0
# Each message holds one event; the events of one burst are published together.
_BATCH_S = 0.01
# While no scheduler is loaded, job-manager.queue-status shows every queue as stopped for this reason. That hides
# which queues an administrator stopped, so the watch asks again soon, until a scheduler is loaded.
_NO_SCHEDULER = "Scheduler is offline"
_ASK_AGAIN_S = 1.0


class RealFluxWatch:
    """``FluxWatch`` on a real instance. It can be started once."""

    def __init__(
        self, uri: str, clock: Clock, *, probe_s: float = 10.0, relist_s: float = 60.0, timeout_s: float = 5.0
    ) -> None:
        self._uri = uri
        self._clock = clock
        self._periods = _Periods(probe_s, relist_s, timeout_s)
        self._link: Link[None] | None = None

    def start(self, listener: QueueListener, lost: Callable[[str], None]) -> None:
        self._link = Link(
            "flux-watch",
            lambda: self._uri,
            lambda: _WatchSession(self._uri, self._clock, self._periods, listener),
            lambda failure: lost(str(failure)),
            reconnect_max_s=_RECONNECT_MAX_S,
        )
        self._link.start()

    def stop(self) -> None:
        """End the thread; then nothing more is published. Stopping again is no error."""
        if self._link is not None:
            self._link.stop()


@dataclass(frozen=True, slots=True)
class _Periods:
    probe_s: float
    relist_s: float
    timeout_s: float


@dataclass(slots=True)
class _QueueRound:
    """One round of questions about which queues are stopped."""

    started_s: float
    unanswered: int
    stopped: set[str] = field(default_factory=set)
    hidden: bool = False

    @property
    def seen(self) -> frozenset[str] | None:
        return None if self.hidden else frozenset(self.stopped)


class _WatchSession(LinkSession[None]):
    """One connection, until it is lost. It is ``synced`` once the complete queue was published."""

    def __init__(self, uri: str, clock: Clock, periods: _Periods, listener: QueueListener) -> None:
        super().__init__(periods.timeout_s)
        self.lost = f"the connection to {uri or 'the enclosing instance'} is lost"
        self.probe_s = periods.probe_s
        self._clock = clock
        self._periods = periods
        self._listener = listener
        # The queue, and what must arrive before it may be published as complete.
        self._queue = JobQueue()
        self._listing = True
        self._listing_started_s = 0.0
        self._caught_up = False
        self._queues_asked = False  # since the listing began
        self._queues_stopped: frozenset[str] | None = None
        # Changes that are not published yet.
        self._first_change_s: float | None = None
        self._ranks_changed = False
        self._resources_caught_up = False

    def begin(self) -> None:
        self._batch = self._reactor.every(_BATCH_S, self._publish_changes)
        self._reactor.every(self._periods.relist_s, self._relist).start()
        self._ask_again = self._reactor.every(_ASK_AGAIN_S, self.probe)
        self._reactor.subscribe("resource.journal", None, self._on_resource_events, self.fail)
        self._cancel_jobs = self._follow_jobs()

    # --- jobs ---

    def _relist(self) -> None:
        if not self._listing:
            self._cancel_jobs()
            self._cancel_jobs = self._follow_jobs()

    def _follow_jobs(self) -> Callable[[], None]:
        self._queue = JobQueue()
        self._listing = True
        self._listing_started_s = self._clock.monotonic_s()
        self._caught_up = False
        self._queues_asked = False
        self.probe()
        request = {"full": False}
        return self._reactor.subscribe(JOURNAL, request, self._on_job_events, self.fail)

    def _on_job_events(self, response: dict[str, Any]) -> None:
        if response["id"] in CAUGHT_UP:
            self._caught_up = True
            self._publish_complete_queue()
            return
        for event in response["events"]:
            self._queue.apply(
                response["id"],
                event["name"],
                event["timestamp"],
                event.get("context", {}),
                response.get("jobspec"),
                response.get("R"),
            )
            self._ranks_changed |= changes_allocation(event["name"])
        self._note_change()

    def _on_resource_events(self, response: dict[str, Any]) -> None:
        if not response["events"]:
            self._resources_caught_up = True
        if self._resources_caught_up:
            self._ranks_changed = True
            self._note_change()

    def _note_change(self) -> None:
        if self._first_change_s is None:
            self._first_change_s = self._clock.monotonic_s()
            self._batch.start()

    # --- publishing ---

    def _publish_complete_queue(self) -> None:
        if not self._caught_up or not self._queues_asked:
            return
        self._listing = False
        self.synced = True
        complete = self._queue.complete(self._listing_started_s)
        self._listener(replace(complete, queues_stopped=self._queues_stopped))
        self._ranks_changed = True
        self._publish_changes()

    def _publish_changes(self) -> None:
        """Send the listener all changes since the last call."""
        self._batch.stop()
        started_s, self._first_change_s = self._first_change_s, None
        if self._listing:
            return
        if started_s is not None:
            changes = self._queue.changes(started_s)
            if changes.jobs or changes.unreadable or changes.ended:
                self._listener(changes)
        if self._ranks_changed:
            self._ranks_changed = False
            self._listener(RanksChanged())

    # --- the probe: which queues are stopped ---

    def probe(self) -> None:
        started_s = self._clock.monotonic_s()
        self._ask("queue-list", {}, lambda answer: self._ask_queue_states(answer["queues"], started_s), self.fail)

    def _ask_queue_states(self, names: list[str], started_s: float) -> None:
        payloads: dict[str, dict[str, str]] = {name: {"name": name} for name in names} or {"": {}}
        look = _QueueRound(started_s, len(payloads))
        for name, payload in payloads.items():
            on_answer, on_failure = (
                partial(self._on_queue_status, look, name),
                partial(self._on_queue_failure, look),
            )
            self._ask("queue-status", payload, on_answer, on_failure)

    def _ask(
        self,
        method: str,
        payload: object,
        on_answer: Callable[[Any], None],
        on_failure: Callable[[CallFailed], None],
    ) -> None:
        topic, timeout_s = f"job-manager.{method}", self._periods.timeout_s
        self._reactor.request(topic, payload, on_answer, on_failure, timeout_s=timeout_s)

    def _on_queue_status(self, look: _QueueRound, name: str, status: dict[str, Any]) -> None:
        if not status["start"]:
            look.hidden |= status.get("stop_reason") == _NO_SCHEDULER
            look.stopped.add(name)
        self._on_answer(look)

    def _on_queue_failure(self, look: _QueueRound, failure: CallFailed) -> None:
        if failure.errno == errno.EINVAL:  # the queue was removed from the configuration since the listing
            self._on_answer(look)
        else:
            self.fail(failure)

    def _on_answer(self, look: _QueueRound) -> None:
        look.unanswered -= 1
        if look.unanswered:
            return
        was, self._queues_stopped = self._queues_stopped, look.seen
        self._queues_asked = True
        if look.hidden:
            self._ask_again.start()
        else:
            self._ask_again.stop()
        if self._listing:
            self._publish_complete_queue()
            return
        # Flux sends journal events and these answers in order, so publish the earlier events first.
        self._publish_changes()
        if self._queues_stopped != was or look.hidden:
            self._listener(QueueSeen(look.started_s, queues_stopped=self._queues_stopped))
        else:
            self._listener(QueueProbed(look.started_s))
