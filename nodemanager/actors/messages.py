"""The messages between actors, and the typed mailboxes they are sent to.

Facts and orders are defined in ``core``. Here they become the unions that the type checker compares with each
actor's ``match``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nodemanager.core.facts import Fact, Tick
from nodemanager.core.orders import CloudOrder, DelegateJob, FluxOrder, ListCloud, PostRoster, SweepCloud
from nodemanager.core.slots import CloudName
from nodemanager.planner.policy import Policy

M_contra = TypeVar("M_contra", contravariant=True)


class Mailbox(Protocol[M_contra]):
    """An address for messages of one type. A Pykka ``ActorRef`` has this form already."""

    def tell(self, message: M_contra) -> None: ...


@dataclass(frozen=True, slots=True)
class CloudActors:
    """The actors that call one cloud."""

    lister: Mailbox[ListCloud | SweepCloud]
    workers: Sequence[Mailbox[CloudOrder]]


@dataclass(frozen=True, slots=True)
class Begin:
    """The manager's first message: the actors that take its orders."""

    flux: Mailbox[FluxOrder]
    clouds: Mapping[CloudName, CloudActors]
    join: Mailbox[PostRoster] | None = None  # None if nodes join without a join service
    delegator: Mailbox[DelegateJob] | None = None  # None if the site delegates no jobs


@dataclass(frozen=True, slots=True)
class UsePolicy:
    """The site was reloaded: decide by this policy from now on."""

    policy: Policy


ManagerMessage = Begin | Tick | UsePolicy | Fact
