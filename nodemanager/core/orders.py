"""Orders: everything that the brain tells its workers to do, named in the imperative.

An order contains all that its worker needs, so no worker looks anything up. Orders in a plan carry their reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from nodemanager.core.jobs import JobId, NodeLoad
from nodemanager.core.nodes import Launch, LaunchId, ProviderId, Roster, stamp_of
from nodemanager.core.reasons import Reason
from nodemanager.core.records import HeldJob, Spend, Steering
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, NodeType, Rank, SlotName, SlotsWish, TypeName

# --- to Flux ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimInstance:
    """Take the name that lets one manager act, and read the launches on record."""


@dataclass(frozen=True, slots=True)
class LookAtRanks:
    """Look at all ranks, and at an unanswered wish to change the slots."""


@dataclass(frozen=True, slots=True)
class RecordLaunches:
    """Record the leases, and clear the drains of ours and of Flux's own that their slots still carry."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Drain the rank so that it takes no more jobs, then look at it again. Flux shows ``note`` after our mark.

    ``replaces``: the reason of Flux's own drain that ours replaces, if the rank still has it.
    """

    launch: LaunchId
    rank: Rank
    reason: Reason
    note: str = ""
    replaces: str | None = None
    boot_failed: bool = False  # which counts against the image of its type
    for_operator: bool = False  # who may release it again


@dataclass(frozen=True, slots=True)
class CordonNode:
    """Drain the rank so that no new job starts, and leave running jobs alone. Flux shows ``text`` as the reason."""

    launch: LaunchId
    rank: Rank
    text: str
    reason: Reason
    for_operator: bool = False


@dataclass(frozen=True, slots=True)
class UndrainNode:
    """Undo our drain of the node's rank."""

    launch: LaunchId
    rank: Rank
    reason: Reason


@dataclass(frozen=True, slots=True)
class StopBroker:
    """Let the broker leave the overlay cleanly before its machine is terminated."""

    launch: LaunchId
    rank: Rank


@dataclass(frozen=True, slots=True)
class KillHousekeeping:
    """Kill the housekeeping on the rank, which frees the resources it holds. No job is affected.

    ``hard``: an earlier signal did not end it.
    """

    launch: LaunchId
    rank: Rank
    hard: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class RequeueJob:
    """Submit the job again, held until the first one has ended. ``launch``: the node that is taken back."""

    job: JobId
    launch: LaunchId
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Read how ``original`` ended. ``job``: its copy, which waits for that."""

    job: JobId
    original: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class StartCopy:
    """Take our hold off the copy of a job that failed."""

    job: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class CancelCopy:
    """Cancel the copy of a job that needs none. Flux shows the reason to its user."""

    job: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndLease:
    """Undo our drain of the slot's rank and forget the launch: the node is proven gone."""

    launch: Launch
    reason: Reason


@dataclass(frozen=True, slots=True)
class HoldJobs:
    """Record that we hold these jobs, then set their urgency to 0."""

    jobs: Mapping[JobId, HeldJob]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReleaseJobs:
    """Give jobs that we hold their urgency again, then forget them."""

    jobs: Mapping[JobId, HeldJob]
    reason: Reason


@dataclass(frozen=True, slots=True)
class DelegateJob:
    """Run a waiting job at a peer, although its user did not ask for that. ``urgency``: the one that it has."""

    job: JobId
    peer: str
    urgency: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class KeepSteering:
    """Record the operators' settings."""

    steering: Steering


@dataclass(frozen=True, slots=True)
class KeepSpend:
    """Record the money spent."""

    spend: Spend


@dataclass(frozen=True, slots=True)
class ShowOnJobs:
    """Show users why each job waits. None removes a job's text."""

    texts: Mapping[JobId, str | None]


@dataclass(frozen=True, slots=True)
class ChangeSlots:
    """Change the type of each slot in ``moves``."""

    wish: SlotsWish
    moves: Mapping[SlotName, TypeName]
    reason: Reason


@dataclass(frozen=True, slots=True)
class RefuseSlots:
    """Refuse a wish to change the slots, with the reason."""

    wish: SlotsWish
    reason: Reason


# --- to the cloud -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListCloud:
    """List all instances at the provider of a cloud."""

    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class SweepCloud:
    """Delete what nodes of ours left behind in a cloud. Only the acting manager may."""

    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Create the node of a launch that is on record."""

    launch: Launch
    node_type: NodeType


def key_of_call(order: CreateNode) -> Hashable:
    """What creates have in common that one call can carry out. They differ only in their slots."""
    launch, node_type = order.launch, order.node_type
    stamp = stamp_of(launch.id, launch.slot)
    if not stamp:
        return launch.id  # it is created by itself
    made_of = (node_type.name, node_type.size, node_type.market, node_type.image, launch.made_from)
    return stamp, *made_of, launch.zone, launch.group


@dataclass(frozen=True, slots=True)
class DestroyNode:
    """Terminate a node. ``launch`` is None for an instance of ours that has no launch."""

    launch: LaunchId | None
    provider_id: ProviderId
    reason: Reason
    cloud: CloudName = DEFAULT_CLOUD


@dataclass(frozen=True, slots=True)
class Together:
    """Orders that one call carries out.

    At a provider that has only a number of nodes (``SizedCloudPort``) they are any; at one that takes batches
    (``BatchCloudPort``) they are creates of one plan that differ only in their slots, or destroys.
    """

    orders: tuple[CreateNode | DestroyNode, ...]


# --- to the join service ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PostRoster:
    """Tell the join service which launches hold a slot. Sent with every plan, so it also shows that we live."""

    now_s: float
    wall_at: float
    roster: Roster


# --- in a plan --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BootNode:
    """Lease a slot and create its node. ``serves``: the first ten jobs it is bought for. ``load``: all of them."""

    launch: Launch
    serves: tuple[JobId, ...]
    reason: Reason
    load: NodeLoad = ()


# --- with a deadline --------------------------------------------------------------------------------------

O_co = TypeVar("O_co", covariant=True)


@dataclass(frozen=True, slots=True)
class WithDeadline(Generic[O_co]):
    """An order that changes something, and the monotonic moment before which it must be started.

    A stopped process may wake up long after another manager has taken over. So the worker checks the clock right
    before it acts, and drops an order that is late.
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
    | ReadResult
    | StartCopy
    | CancelCopy
    | HoldJobs
    | ReleaseJobs
    | EndLease
    | ChangeSlots
    | RefuseSlots
)
FluxOrder = ClaimInstance | LookAtRanks | KeepSteering | KeepSpend | ShowOnJobs | WithDeadline[FluxEffect]
CloudEffect = CreateNode | DestroyNode
CloudOrder = WithDeadline[CloudEffect | Together]
