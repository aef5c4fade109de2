"""The messages between actors, and the typed mailboxes they are sent to.

Facts and orders are defined in ``core``. Here they become the unions that the type checker compares with each
actor's ``match``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nodemanager.core.facts import Fact, Tick
from nodemanager.core.orders import CloudOrder, DelegateJob, FluxOrder, ListCloud, PostRoster, SweepCloud
from nodemanager.planner.state.policy import Policy

M_contra = TypeVar("M_contra", contravariant=True)


class Mailbox(Protocol[M_contra]):
    """An address for messages of one type. A Pykka ``ActorRef`` has this form already."""

    def tell(self, message: M_contra) -> None: ...


@dataclass(frozen=True, slots=True)
class Begin:
    """The manager's first message: the actors that take its orders."""

    flux: Mailbox[FluxOrder]
    lister: Mailbox[ListCloud | SweepCloud]
    cloud: Sequence[Mailbox[CloudOrder]]
    join: Mailbox[PostRoster] | None = None  # None if nodes join without a join service
    delegator: Mailbox[DelegateJob] | None = None  # None if the site delegates no jobs


@dataclass(frozen=True, slots=True)
class UsePolicy:
    """The site was reloaded: decide by this policy from now on."""

    policy: Policy


ManagerMessage = Begin | Tick | UsePolicy | Fact
