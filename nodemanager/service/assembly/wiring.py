"""Starts the actors and connects them: in threads, or in the simulator's pump."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pykka

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.actors.flux import FluxWorker
from nodemanager.actors.join import JoinClerk
from nodemanager.actors.manager import Manager, Publication
from nodemanager.actors.messages import Begin, CloudActors, Mailbox, ManagerMessage
from nodemanager.core.orders import DelegateJob
from nodemanager.core.ports import Clock
from nodemanager.delegation.view import DelegationView
from nodemanager.planner.policy import Policy
from nodemanager.service.assembly.ports import DelegationPorts, SitePorts

if TYPE_CHECKING:
    from nodemanager.actors.delegation.delegator import DelegatorMessage

A = TypeVar("A", bound=CrashOnlyActor)


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
                for name, port in ports.clouds.items()
            },
            join=spawn(JoinClerk, ports.join(), manager, fate) if ports.join is not None else None,
            delegator=delegator,
        )
    )
    return manager


def wire_delegation(
    ports: DelegationPorts,
    cluster_uuid: str,
    clock: Clock,
    publish: Callable[[DelegationView], None],
    fate: Fate,
    spawn: Spawn = spawn_in_thread,
) -> Mailbox[DelegatorMessage]:
    """Start the delegator. Returns its mailbox, which needs ticks."""
    # Few sites delegate, and it has a tenth of all that the service loads.
    from nodemanager.actors.delegation.delegator import Delegator, StartDelegation  # noqa: PLC0415

    delegator: Mailbox[DelegatorMessage] = spawn(
        Delegator, ports.home(), ports.peer, ports.targets, cluster_uuid, clock, publish, fate
    )
    delegator.tell(StartDelegation(delegator))
    return delegator
