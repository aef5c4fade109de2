"""Orders: everything that the brain tells its workers to do, named in the imperative.

An order contains all that its worker needs, so no worker looks anything up. Orders in a plan carry their reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from nodemanager.core.jobs import JobId, NodeLoad
from nodemanager.core.nodes import CallKind, Launch, LaunchId, ProviderId, Roster, stamp_of
from nodemanager.core.notation import format_job_id
from nodemanager.core.reasons import Reason
from nodemanager.core.records import HeldJob, Spend, Steering
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, NodeType, Rank, SlotName, SlotsWish, TypeName

# --- what every order knows of itself ---------------------------------------------------------------------


class Order:
    """What the log, the history and the workers ask any order of a plan.

    ``call``: the kind of the call that a node waits for after this order; None if no node waits.
    """

    __slots__ = ()
    call: ClassVar[CallKind | None] = None

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def launch_ids(self) -> tuple[LaunchId, ...]:
        """The launches that it is about: none, one, or several."""
        return ()

    @property
    def subject(self) -> str:
        """What it is about, as the history has it: launches, a provider's id, or a job."""
        return ",".join(self.launch_ids)

    @property
    def only_job(self) -> JobId | None:
        """The job that it is about, if it is about a job alone. Not everybody may see jobs."""
        return None

    @property
    def subject_in_log(self) -> str:
        """What it is about, as the log has it. Slots are easier to read than launches."""
        return self.subject

    @property
    def why(self) -> Reason | None:
        """Its reason. A create has none of its own: that of the order to boot was given before it."""
        return getattr(self, "reason", None)


class _OfNode(Order):
    __slots__ = ()
    launch: LaunchId

    @property
    def launch_ids(self) -> tuple[LaunchId, ...]:
        return (self.launch,)


class _OfLaunch(Order):
    __slots__ = ()
    launch: Launch

    @property
    def launch_ids(self) -> tuple[LaunchId, ...]:
        return (self.launch.id,)

    @property
    def subject_in_log(self) -> str:
        return self.launch.slot


class _OfJob(Order):
    __slots__ = ()
    job: JobId

    @property
    def only_job(self) -> JobId:
        return self.job

    @property
    def subject_in_log(self) -> str:
        return format_job_id(self.job)


class _OfCopy(_OfJob):
    __slots__ = ()

    @property
    def subject(self) -> str:
        return str(self.job)


class _OfJobs(Order):
    __slots__ = ()
    jobs: Mapping[JobId, HeldJob]

    @property
    def subject_in_log(self) -> str:
        return ",".join(map(format_job_id, self.jobs))


# --- to Flux ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimInstance:
    """Take the name that lets one manager act, and read the launches on record."""


@dataclass(frozen=True, slots=True)
class LookAtRanks:
    """Look at all ranks, and at an unanswered wish to change the slots."""


@dataclass(frozen=True, slots=True)
class RecordLaunches(Order):
    """Record the leases, and clear the drains of ours and of Flux's own that their slots still carry."""

    call: ClassVar[CallKind] = CallKind.RECORD
    launches: tuple[Launch, ...]

    @property
    def launch_ids(self) -> tuple[LaunchId, ...]:
        return tuple(launch.id for launch in self.launches)

    @property
    def subject_in_log(self) -> str:
        return ",".join(launch.slot for launch in self.launches)


@dataclass(frozen=True, slots=True)
class DrainNode(_OfNode):
    """Drain the rank so that it takes no more jobs, then look at it again. Flux shows ``note`` after our mark.

    ``replaces``: the reason of Flux's own drain that ours replaces, if the rank still has it.
    """

    call: ClassVar[CallKind] = CallKind.DRAIN
    launch: LaunchId
    rank: Rank
    reason: Reason
    note: str = ""
    replaces: str | None = None
    boot_failed: bool = False  # which counts against the image of its type
    for_operator: bool = False  # who may release it again


@dataclass(frozen=True, slots=True)
class CordonNode(_OfNode):
    """Drain the rank so that no new job starts, and leave running jobs alone. Flux shows ``text`` as the reason."""

    call: ClassVar[CallKind] = CallKind.DRAIN
    launch: LaunchId
    rank: Rank
    text: str
    reason: Reason
    for_operator: bool = False


@dataclass(frozen=True, slots=True)
class UndrainNode(_OfNode):
    """Undo our drain of the node's rank."""

    call: ClassVar[CallKind] = CallKind.UNDRAIN
    launch: LaunchId
    rank: Rank
    reason: Reason


@dataclass(frozen=True, slots=True)
class StopBroker(_OfNode):
    """Let the broker leave the overlay cleanly before its machine is terminated."""

    call: ClassVar[CallKind] = CallKind.STOP_BROKER
    launch: LaunchId
    rank: Rank


@dataclass(frozen=True, slots=True)
class KillHousekeeping(_OfNode):
    """Kill the housekeeping on the rank, which frees the resources it holds. No job is affected.

    ``hard``: an earlier signal did not end it.
    """

    call: ClassVar[CallKind] = CallKind.KILL_HOUSEKEEPING
    launch: LaunchId
    rank: Rank
    hard: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class RequeueJob(_OfNode):
    """Submit the job again, held until the first one has ended. ``launch``: the node that is taken back."""

    job: JobId
    launch: LaunchId
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReadResult(_OfCopy):
    """Read how ``original`` ended. ``job``: its copy, which waits for that."""

    job: JobId
    original: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class StartCopy(_OfCopy):
    """Take our hold off the copy of a job that failed."""

    job: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class CancelCopy(_OfCopy):
    """Cancel the copy of a job that needs none. Flux shows the reason to its user."""

    job: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndLease(_OfLaunch):
    """Undo our drain of the slot's rank and forget the launch: the node is proven gone."""

    call: ClassVar[CallKind] = CallKind.END_LEASE
    launch: Launch
    reason: Reason


@dataclass(frozen=True, slots=True)
class HoldJobs(_OfJobs):
    """Record that we hold these jobs, then set their urgency to 0."""

    jobs: Mapping[JobId, HeldJob]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReleaseJobs(_OfJobs):
    """Give jobs that we hold their urgency again, then forget them."""

    jobs: Mapping[JobId, HeldJob]
    reason: Reason


@dataclass(frozen=True, slots=True)
class DelegateJob(_OfJob):
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
class ChangeSlots(Order):
    """Change the type of each slot in ``moves``."""

    wish: SlotsWish
    moves: Mapping[SlotName, TypeName]
    reason: Reason

    @property
    def subject_in_log(self) -> str:
        return ",".join(f"{slot}={name}" for slot, name in self.moves.items())


@dataclass(frozen=True, slots=True)
class RefuseSlots(Order):
    """Refuse a wish to change the slots, with the reason."""

    wish: SlotsWish
    reason: Reason

    @property
    def subject_in_log(self) -> str:
        return ",".join(f"{name}={count}" for name, count in self.wish.counts.items())


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
class CreateNode(_OfLaunch):
    """Create the node of a launch that is on record."""

    call: ClassVar[CallKind] = CallKind.CREATE
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
class DestroyNode(Order):
    """Terminate a node. ``launch`` is None for an instance of ours that has no launch."""

    call: ClassVar[CallKind] = CallKind.DESTROY
    launch: LaunchId | None
    provider_id: ProviderId
    reason: Reason
    cloud: CloudName = DEFAULT_CLOUD

    @property
    def launch_ids(self) -> tuple[LaunchId, ...]:
        return (self.launch,) if self.launch is not None else ()

    @property
    def subject(self) -> str:
        return self.launch or self.provider_id

    @property
    def subject_in_log(self) -> str:
        return self.provider_id


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
class BootNode(_OfLaunch):
    """Lease a slot. A later plan creates its node, once the lease is on record.

    ``serves``: the first ten jobs it is bought for. ``load``: all of them.
    """

    call: ClassVar[CallKind] = CallKind.RECORD
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
