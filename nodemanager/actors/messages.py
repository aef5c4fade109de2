"""Every message between actors, grouped by who receives it.

Facts and orders are values of their own rooms; here they become the unions that an actor's ``match`` is checked
against, and the typed addresses that they are told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nodemanager.core.facts import Fact, Tick
from nodemanager.core.orders import CloudOrder, FluxOrder, ListCloud, PostRoster, SweepCloud
from nodemanager.planner.state.policy import Policy

M_contra = TypeVar("M_contra", contravariant=True)


class Mailbox(Protocol[M_contra]):
    """An address that takes messages of one kind. A Pykka ``ActorRef`` is one as it is."""

    def tell(self, message: M_contra) -> None: ...


@dataclass(frozen=True, slots=True)
class Begin:
    """The brain's first message: whom it may give orders to."""

    flux: Mailbox[FluxOrder]
    lister: Mailbox[ListCloud | SweepCloud]
    cloud: Sequence[Mailbox[CloudOrder]]
    join: Mailbox[PostRoster] | None = None  # None where nodes join without a service


@dataclass(frozen=True, slots=True)
class UsePolicy:
    """The site was read anew: decide by this from now on."""

    policy: Policy


ManagerMessage = Begin | Tick | UsePolicy | Fact
