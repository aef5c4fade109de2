"""What is to be done: every order that the brain gives, as imperatives.

An order says all that its worker needs; nobody looks anything up. Those that a plan holds carry the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import Launch, LaunchId, ProviderId, Roster
from nodemanager.core.reasons import Reason
from nodemanager.core.records import Spend, Steering
from nodemanager.core.slots import NodeType, Rank, SlotName, SlotsWish, TypeName

# --- to Flux ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimInstance:
    """Hold the name that lets one manager act, and read the launches on record."""


@dataclass(frozen=True, slots=True)
class LookAtRanks:
    pass


@dataclass(frozen=True, slots=True)
class RecordLaunches:
    """Put the leases on record, and clear what drains of ours their slots still carry."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Let the rank take no more jobs, then look at it once more. ``note`` stands in Flux behind our mark."""

    launch: LaunchId
    rank: Rank
    reason: Reason
    note: str = ""


@dataclass(frozen=True, slots=True)
class CordonNode:
    """Let the rank take no new job, and leave what runs there alone. ``text`` is what Flux shows as the reason."""

    launch: LaunchId
    rank: Rank
    text: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class UndrainNode:
    launch: LaunchId
    rank: Rank
    reason: Reason


@dataclass(frozen=True, slots=True)
class StopBroker:
    """Let the broker leave the overlay in good order before its machine goes."""

    launch: LaunchId
    rank: Rank


@dataclass(frozen=True, slots=True)
class KillHousekeeping:
    """Have what runs on the rank after jobs end: what it holds is free then. No job is concerned.

    ``hard``: it was asked to already, and did not.
    """

    launch: LaunchId
    rank: Rank
    hard: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class RequeueJob:
    """Submit the job once more, to start if it does not end well. ``launch``: the node that is taken back."""

    job: JobId
    launch: LaunchId
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndLease:
    """The node is proven gone: undo our drain of the slot's rank and forget the launch."""

    launch: Launch
    reason: Reason


@dataclass(frozen=True, slots=True)
class KeepSteering:
    """Put what operators have set on record."""

    steering: Steering


@dataclass(frozen=True, slots=True)
class KeepSpend:
    """Put what was spent on record."""

    spend: Spend


@dataclass(frozen=True, slots=True)
class ShowOnJobs:
    """Show each job why it waits, where users look; None takes away what is shown."""

    texts: Mapping[JobId, str | None]


@dataclass(frozen=True, slots=True)
class ChangeSlots:
    """Divide the slots anew: each of ``moves`` becomes a slot of that type."""

    wish: SlotsWish
    moves: Mapping[SlotName, TypeName]
    reason: Reason


@dataclass(frozen=True, slots=True)
class RefuseSlots:
    """Answer a wish that cannot be fulfilled now."""

    wish: SlotsWish
    reason: Reason


# --- to the cloud -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListCloud:
    pass


@dataclass(frozen=True, slots=True)
class SweepCloud:
    """Delete what nodes of ours left behind. For who acts only."""


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Make the node of a launch that is on record."""

    launch: Launch
    node_type: NodeType


@dataclass(frozen=True, slots=True)
class DestroyNode:
    """``launch`` is None for an instance of ours that no launch owns."""

    launch: LaunchId | None
    provider_id: ProviderId
    reason: Reason


# --- to the join service ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PostRoster:
    """Let the join service know who holds a slot. Given at every plan; it is also our sign of life."""

    now_s: float
    wall_at: float
    roster: Roster


# --- in a plan --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BootNode:
    """Lease a slot and have its node made. ``serves``: the jobs it is bought for, at most ten of them."""

    launch: Launch
    serves: tuple[JobId, ...]
    reason: Reason


# --- given ------------------------------------------------------------------------------------------------

O_co = TypeVar("O_co", covariant=True)


@dataclass(frozen=True, slots=True)
class WithDeadline(Generic[O_co]):
    """An order that changes something, and until when it may be begun, by the monotonic clock.

    A process may be stopped, and woken when another manager has long taken over: whoever carries the order out
    compares the clock right before, and leaves undone what is late.
    """

    order: O_co
    start_before_s: float


FluxEffect = (
    RecordLaunches
    | DrainNode
    | CordonNode
    | UndrainNode
    | StopBroker
    | KillHousekeeping
    | RequeueJob
    | EndLease
    | ChangeSlots
    | RefuseSlots
)
FluxOrder = ClaimInstance | LookAtRanks | KeepSteering | KeepSpend | ShowOnJobs | WithDeadline[FluxEffect]
CloudEffect = CreateNode | DestroyNode
CloudOrder = WithDeadline[CloudEffect]
