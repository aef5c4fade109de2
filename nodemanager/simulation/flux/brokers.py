"""The brokers of a simulated instance: the overlay, drains, and the RPC replies that show them.

Replies have the form of flux-core 0.88. The overlay knows of a join or leave at once. The resource module and the
scheduler learn of it 0.1 s later, together with everything else that happened meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodemanager.core.notation import compress_hostlist, format_idset
from nodemanager.simulation.flux.resource_set import RankResources, declared_resources, ranks_by_property
from nodemanager.simulation.flux.sched_simple import Pool
from nodemanager.simulation.time.world import Scheduled, World

GROUP_DELAY_S = 0.1  # flux-core's broker groups report joins and leaves in batches


class Overlay(StrEnum):
    """A rank's state in the overlay network (``overlay.health``)."""

    FULL = "full"
    PARTIAL = "partial"
    DEGRADED = "degraded"
    OFFLINE = "offline"
    LOST = "lost"


_ERRORS = {Overlay.OFFLINE: "administrative shutdown", Overlay.LOST: "lost connection"}


@dataclass(frozen=True, slots=True)
class ResourceEvent:
    """One event of the resource journal. ``resource-define`` carries R."""

    name: str
    timestamp: float
    context: Mapping[str, Any]
    R: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Broker:
    rank: int
    host: str
    overlay: Overlay = Overlay.OFFLINE
    since_s: float = 0.0
    error: str = ""
    online: bool = False  # as the resource module knows
    torpid: bool = False
    hung: bool = False  # connected, and answers nothing
    drained_at: float | None = None  # seconds since the epoch
    drain_reason: str | None = None  # None also if none was given

    @property
    def connected(self) -> bool:
        return self.overlay == Overlay.FULL


class Brokers:
    """``head`` is rank 0, which is online and takes no jobs. ``on_pool_change`` is called when the pool changed."""

    def __init__(self, world: World, head: RankResources, pool: Pool, on_pool_change: Callable[[], None]) -> None:
        self.listeners: list[Callable[[ResourceEvent], None]] = []
        self.clock_skew_s = 0.0
        self._world = world
        self._head = head
        self._pool = pool
        self._on_pool_change = on_pool_change
        self._brokers = {entry.rank: _Broker(entry.rank, entry.host) for entry in pool.ranks.values()}
        self._head_since_s = 0.0
        self._head_status = Overlay.FULL
        self._batch: Scheduled | None = None
        self._note_head_status()

    def connected(self, rank: int) -> bool:
        return self._brokers[rank].connected

    # --- joins and leaves ---

    def join(self, rank: int) -> None:
        self._set_overlay(self._brokers[rank], Overlay.FULL)

    def leave(self, rank: int, *, lost: bool) -> None:
        self._set_overlay(self._brokers[rank], Overlay.LOST if lost else Overlay.OFFLINE)

    def stop(self) -> None:
        """Stop rank 0 in good order. All other ranks leave first; no reader is left to get their events."""
        if self._batch is not None:
            self._batch.cancel()
            self._batch = None
        for broker in self._brokers.values():
            broker.overlay, broker.online = Overlay.OFFLINE, False
            self._update_scheduler(broker)

    def start(self) -> None:
        """Start rank 0. No other rank is online yet; drains are kept."""
        now_s = self._world.now_s
        for broker in self._brokers.values():
            broker.since_s, broker.error, broker.torpid = now_s, "", False
        self._head_since_s = now_s
        self._note_head_status()
        ranks = format_idset([0, *self._brokers])
        hosts = [self._head.host, *(broker.host for broker in self._brokers.values())]
        self._post_event("restart", {"ranks": ranks, "online": "", "nodelist": compress_hostlist(hosts)})
        self.post_resource_define()
        self._post_event("online", {"idset": "0"})

    def post_resource_define(self) -> None:
        """Post the instance's R, as the resource module does when it is loaded."""
        self._post_event("resource-define", {"method": "configuration"}, self._declared_R())

    def add_rank(self, rank: int, host: str) -> None:
        """Add a placeholder rank, from the next start on."""
        self._brokers[rank] = _Broker(rank, host)

    def _set_overlay(self, broker: _Broker, overlay: Overlay) -> None:
        broker.overlay = overlay
        broker.since_s = self._world.now_s
        broker.error = _ERRORS.get(overlay, "")
        broker.hung = False
        self._note_head_status()
        if self._batch is None:
            self._batch = self._world.after(GROUP_DELAY_S, self._publish_batch)

    def _publish_batch(self) -> None:
        self._batch = None
        changed = [broker for broker in self._brokers.values() if broker.online != broker.connected]
        for broker in changed:
            broker.online = broker.connected
            self._update_scheduler(broker)
        for name, online in (("offline", False), ("online", True)):
            if ranks := [broker.rank for broker in changed if broker.online is online]:
                self._post_event(name, {"idset": format_idset(ranks)})
        self._on_pool_change()

    def _update_scheduler(self, broker: _Broker) -> None:
        """Tell the scheduler whether the rank takes jobs."""
        self._pool.set_up(broker.rank, up=broker.online and broker.drained_at is None)

    def _note_head_status(self) -> None:
        states = {broker.overlay for broker in self._brokers.values()}
        status = Overlay.FULL
        if Overlay.LOST in states:
            status = Overlay.DEGRADED
        elif Overlay.OFFLINE in states:
            status = Overlay.PARTIAL
        if status != self._head_status:
            self._head_status, self._head_since_s = status, self._world.now_s

    # --- drains ---

    def drain(self, rank: int, reason: str | None, replaces: str | None = None) -> None:
        """Drain a rank. A drained rank keeps its time, and also its reason unless that is ``replaces``."""
        broker = self._brokers[rank]
        overwrites = broker.drained_at is not None
        if overwrites and (replaces is None or broker.drain_reason != replaces):
            return
        if broker.drained_at is None:
            broker.drained_at = self._wall_at()
        broker.drain_reason = reason
        self._update_scheduler(broker)
        context: dict[str, Any] = {"idset": str(rank), "nodelist": broker.host}
        if reason is not None:
            context["reason"] = reason
        self._post_event("drain", {**context, "overwrite": int(overwrites)})

    def undrain(self, rank: int) -> None:
        broker = self._brokers[rank]
        if broker.drained_at is None:
            return
        broker.drained_at = broker.drain_reason = None
        self._update_scheduler(broker)
        self._post_event("undrain", {"idset": str(rank), "nodelist": broker.host, "overwrite": 0})
        self._on_pool_change()

    def drain_reason(self, rank: int) -> str | None:
        """The rank's drain reason: None if it is not drained, "" if it is drained without a reason."""
        broker = self._brokers[rank]
        return None if broker.drained_at is None else broker.drain_reason or ""

    def set_hung(self, rank: int, *, hung: bool) -> None:
        self._brokers[rank].hung = hung

    def hung(self, rank: int) -> bool:
        return self._brokers[rank].hung

    def set_torpid(self, rank: int, *, torpid: bool) -> None:
        self._brokers[rank].torpid = torpid

    # --- RPC replies ---

    def resource_status(self) -> dict[str, Any]:
        brokers = tuple(self._brokers.values())
        return {
            "R": self._declared_R(),
            "drain": self._drain_entries(),
            "online": format_idset([0, *(broker.rank for broker in brokers if broker.online)]),
            "offline": format_idset(broker.rank for broker in brokers if not broker.online),
            "exclude": "0",
            "torpid": format_idset(broker.rank for broker in brokers if broker.torpid),
        }

    def sched_resource_status(self) -> dict[str, Any]:
        return {"all": self._pool.all_R(), "allocated": self._pool.allocated_R(), "down": self._pool.down_R()}

    def overlay_health(self) -> dict[str, Any]:
        return {
            "rank": 0,
            "status": self._head_status.value,
            "duration": self._world.now_s - self._head_since_s,
            "children": [self._health(broker) for broker in self._brokers.values()],
        }

    def _health(self, broker: _Broker) -> dict[str, Any]:
        health: dict[str, Any] = {
            "rank": broker.rank,
            "status": broker.overlay.value,
            "duration": self._world.now_s - broker.since_s,
        }
        if broker.error:
            health["error"] = broker.error
        return health

    def _drain_entries(self) -> dict[str, Any]:
        """Group ranks by reason and second: ranks drained in the same (rounded) second share an entry."""
        ranks: dict[tuple[float, str | None], list[int]] = {}
        for broker in self._brokers.values():
            if broker.drained_at is not None:
                ranks.setdefault((float(round(broker.drained_at)), broker.drain_reason), []).append(broker.rank)
        return {
            format_idset(drained): {"timestamp": timestamp, "reason": reason or ""}
            for (timestamp, reason), drained in ranks.items()
        }

    def _declared_R(self) -> dict[str, Any]:  # noqa: N802 - R is the name of the format
        entries: Sequence[RankResources] = (self._head, *self._pool.ranks.values())
        declared = declared_resources(entries)
        declared["execution"]["nodelist"] = [compress_hostlist(entry.host for entry in entries)]
        if properties := ranks_by_property(entries):
            declared["execution"]["properties"] = properties
        return declared

    # --- the journal ---

    def _wall_at(self) -> float:
        return self._world.wall_at() + self.clock_skew_s

    def _post_event(
        self, name: str, context: Mapping[str, Any], resources: Mapping[str, Any] | None = None
    ) -> None:
        event = ResourceEvent(name, self._wall_at(), context, resources)
        for listener in self.listeners:
            listener(event)
