"""Runs the production actors in virtual time, without threads: the pump delivers their messages one by one.

An unstarted Pykka actor is an ordinary object, so the pump calls its ``on_receive`` itself. Each message travels
for a random time, drawn from the seed. Messages to one actor keep their order, as in its real inbox. A worker makes
its call when its order arrives, so the order's travel and the answer's travel together make a slow call. A run
depends on the world's seed and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from nodemanager.actors.base import CrashOnlyActor
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.actors.delegation.delegator import Delegator
from nodemanager.actors.flux import FluxWorker
from nodemanager.actors.join import JoinClerk
from nodemanager.actors.manager import Manager
from nodemanager.actors.messages import Mailbox
from nodemanager.core.facts import Tick
from nodemanager.simulation.time.world import Scheduled, World

A = TypeVar("A", bound=CrashOnlyActor)

Range = tuple[float, float]

# How long a message travels to an actor of each class, in seconds.
TRAVEL_S: Mapping[type[CrashOnlyActor], Range] = MappingProxyType(
    {
        Manager: (0.0, 0.05),
        FluxWorker: (0.001, 0.2),
        CloudWatcher: (0.05, 2.0),
        CloudWorker: (0.05, 5.0),
        JoinClerk: (0.0, 0.05),
        Delegator: (0.0, 0.05),
    }
)


class Killed(BaseException):
    """SIGKILL during a call. Only the code that delivers messages may catch it."""


@dataclass
class Inbox:
    """An actor's address in the pump. ``alive`` is false after its process was killed."""

    world: World
    actor: CrashOnlyActor
    travel_s: Range
    draw: Callable[[float, float], float]
    alive: bool = True
    frozen_until_s: float = 0.0  # its process is stopped (SIGSTOP) until then
    _last_arrival_s: float = 0.0
    _backlog: list[Any] = field(default_factory=list)  # came while it was frozen
    on_fact: Callable[[], None] | None = None  # called after each message other than ``Tick``
    on_killed: Callable[[], None] | None = None

    def tell(self, message: Any) -> None:
        if not self.alive:
            return
        at_s = max(self._last_arrival_s, self.world.now_s + self.draw(*self.travel_s))
        self._last_arrival_s = at_s
        self.world.at(at_s, lambda: self._deliver(message))

    def _deliver(self, message: Any) -> None:
        if not self.alive:
            return
        if self._backlog or self.frozen_until_s > self.world.now_s:
            self._backlog.append(message)
            if len(self._backlog) == 1:
                self.world.at(self.frozen_until_s, self._thaw)
            return
        self._handle(message)

    def _thaw(self) -> None:
        """Deliver what came while the process was stopped, in its order, unless it is stopped still."""
        if self.frozen_until_s > self.world.now_s:
            self.world.at(self.frozen_until_s, self._thaw)
            return
        backlog, self._backlog = self._backlog, []
        for message in backlog:
            if self.alive:
                self._handle(message)

    def _handle(self, message: Any) -> None:
        try:
            self.actor.on_receive(message)
        except Killed:
            if self.on_killed is not None:
                self.on_killed()
            return
        if self.on_fact is not None and not isinstance(message, Tick):
            self.on_fact()


@dataclass
class Pump:
    """One process of the service in a world: it can be spawned, ticked, frozen and killed at any moment.

    While nothing happens, the time between two ticks doubles up to ``idle_tick_s``. With None it stays ``tick_s``.
    """

    world: World
    name: str = "manager"
    travel_s: Mapping[type[CrashOnlyActor], Range] = field(default_factory=lambda: TRAVEL_S)
    tick_s: float = 0.25
    idle_tick_s: float | None = None
    inboxes: list[Inbox] = field(default_factory=list)
    alive: bool = True
    on_killed: Callable[[], None] | None = None  # called when a call raised ``Killed``
    _frozen_until_s: float = 0.0

    def spawn(self, actor: type[A], /, *arguments: Any) -> Mailbox[Any]:
        """Make an actor without a thread, from the same class and arguments as in production."""
        draws = self.world.draws_for(f"{self.name}/{actor.__name__}/{len(self.inboxes)}")
        inbox = Inbox(self.world, actor(*arguments), self.travel_s[actor], draws.uniform)
        inbox.on_killed = self.on_killed
        self.inboxes.append(inbox)
        return inbox

    def start_ticks(self, manager: Mailbox[Tick], clock: Any) -> None:
        """Send ticks until the process is killed, as the ticker's thread does."""
        due: Scheduled
        wait_s = self.tick_s

        def tell() -> None:
            nonlocal due, wait_s
            if self._frozen_until_s > self.world.now_s:
                due = self.world.after(self._frozen_until_s - self.world.now_s, tell)
            elif self.alive:
                manager.tell(Tick(clock.monotonic_s(), clock.wall_at()))
                due = self.world.after(wait_s, tell)
                wait_s = min(2.0 * wait_s, self.idle_tick_s or self.tick_s)

        def hurry() -> None:
            nonlocal due, wait_s
            if wait_s > self.tick_s and due.at_s > self.world.now_s + self.tick_s:
                due.cancel()
                due = self.world.after(self.tick_s, tell)
            wait_s = self.tick_s

        tell()
        if self.idle_tick_s is not None and isinstance(manager, Inbox):
            manager.on_fact = hurry

    def freeze_until(self, until_s: float) -> None:
        """SIGSTOP until ``until_s``. Messages sent meanwhile are delivered then, in order."""
        self._frozen_until_s = max(self._frozen_until_s, until_s)
        for inbox in self.inboxes:
            inbox.frozen_until_s = self._frozen_until_s

    def kill(self, on_the_wire: Callable[[], bool]) -> None:
        """SIGKILL. No more messages are delivered, except that a cloud call ``on_the_wire`` may still be made."""
        self.alive = False
        for inbox in self.inboxes:
            reaches_the_cloud = isinstance(inbox.actor, CloudWorker) and on_the_wire()
            inbox.alive = reaches_the_cloud
