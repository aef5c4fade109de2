"""The interfaces to the outside world: a clock, a cloud, a Flux instance, the join service.

Each method's docstring is a contract. ``tests/contract/`` checks every adapter against it, real and simulated.
Adapters raise :class:`CloudError` or :class:`FluxError` for outside failures. Any other exception of a cloud's
adapter counts as a failed call (:func:`unforeseen_as_cloud_error`). Of any other adapter it is a bug and ends the
process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nodemanager.core.facts import CloudChanged, JoinFact, QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.jobs import JobId, JobResult, NodeOrder
from nodemanager.core.nodes import (
    CloudNode,
    FailureKind,
    FluxRank,
    Launch,
    Leftover,
    ProviderId,
    QuotaScope,
    Roster,
)
from nodemanager.core.orders import CloudEffect
from nodemanager.core.records import HeldJob, Spend, Steering
from nodemanager.core.slots import Hardware, NodeType, Rank, SlotName, SlotsWish, TypeName


class CloudError(Exception):
    """A cloud call failed. ``foreseen``: in a way that the adapter knows."""

    foreseen = True

    def __init__(
        self, kind: FailureKind, detail: str, retry_after_s: float = 0.0, reach: QuotaScope | None = None
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.quota_scope = reach


class UnforeseenError(CloudError):
    """A cloud's adapter raised something else than :class:`CloudError`, which is the ``__cause__``."""

    foreseen = False


@contextmanager
def unforeseen_as_cloud_error(*, creating: bool = False) -> Iterator[None]:
    """Raise any exception of a cloud's adapter as :class:`CloudError`.

    What a provider answers is written by strangers, so an adapter may meet what its author did not foresee. That
    must not end the process, which also looks after the nodes of all other clouds. ``creating``: whether the call
    creates nodes. Then the error is ``AMBIGUOUS``, because the node may exist.
    """
    try:
        yield
    except CloudError:
        raise
    except Exception as error:
        kind = FailureKind.AMBIGUOUS if creating else FailureKind.TRANSIENT
        text = re.sub(r"\?\S+", "?...", f"{type(error).__name__}: {error}")  # the query of a URL may hold secrets
        raise UnforeseenError(kind, f"the answer was not understood: {text[:300]}") from error


@dataclass(frozen=True, slots=True)
class Info:
    """The answers to users of the instance, as JSON texts. Both are called in the thread of ``node-manager-info``.

    ``explain`` gets a job's id and the asking user's, who is None if it is the instance's owner. It raises
    ``LookupError`` if the user has no such job.
    """

    status: Callable[[], str] = lambda: "{}"
    explain: Callable[[str, int | None], str] = lambda job_id, _: _raise_no_job(job_id)


def _raise_no_job(job_id: str) -> str:
    raise LookupError(f"you have no job {job_id}")


class FluxError(Exception):
    """The instance refused a call, or did not answer in time."""


class NotTheActor(FluxError):
    """This manager does not hold the name, so it may change nothing."""


class JoinError(Exception):
    """The manager could not write to the join service's files, or not read its reports."""


class SlotsUnchanged(FluxError):
    """The slots were not changed, and nothing of the attempt is left, so the wish may be refused."""


class NotRequeued(FluxError):
    """A job cannot be submitted again, now or later."""


class Clock(Protocol):
    """The two clocks of the machine."""

    def monotonic_s(self) -> float:
        """Seconds that never jump, for timers."""
        ...

    def wall_at(self) -> float:
        """Seconds since the epoch, for bills and records."""
        ...


class Mandate(Protocol):
    """The right to change things, which one manager at a time has. An object belongs to one thread."""

    def ensure_actor(self) -> None:
        """Ask the instance, and return only if this manager certainly still holds the name.

        Raises ``NotTheActor`` if it does not, and ``FluxError`` if that is unknown.
        """
        ...


class CloudPort(Protocol):
    """One account, region and cluster at a provider. An object belongs to one thread."""

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        """Create one node that carries the launch's identity from its first moment.

        Repeated with the same launch it creates no second node, if the provider has idempotency tokens.
        Raises ``CloudError``, of kind ``AMBIGUOUS`` whenever the node may exist despite the error.
        """
        ...

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """List every instance in our scope, including recently terminated ones if the provider shows them.

        The list is complete: a foreign, truncated or unreadable reply raises.
        """
        ...

    def destroy(self, provider_id: ProviderId) -> None:
        """Request termination. A node already gone is no error. Accepted does not mean gone: list again."""
        ...

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete volumes, interfaces and addresses that nodes of this cluster left behind; return what was deleted.

        A leftover carries the cluster's UUID, is unused, and belongs to no existing node. It is deleted only if the
        sweep before this one found it too, so an object's first sweep deletes nothing.
        """
        ...


@runtime_checkable
class SizedCloudPort(CloudPort, Protocol):
    """A provider that has only a number of nodes: the last one created is the first that can be destroyed."""

    def resize(self, orders: Sequence[CloudEffect]) -> Sequence[CloudNode | CloudError | None]:
        """Carry out several creates or destroys by one call; return the answer to each, in their order.

        A create is answered with its node, a destroy with None, a refused order with its error. A failure of the
        call as a whole raises ``CloudError``.
        """
        ...


@runtime_checkable
class BatchCloudPort(CloudPort, Protocol):
    """A provider that creates or destroys several nodes by one call."""

    def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode | CloudError]:
        """Create the nodes of launches of one plan that differ only in their slots; return the answer to each.

        If only some can be had, those are created, and the others are answered with a ``CloudError``. Each node
        carries its launch's identity from its first moment. Repeated with the same launches the call creates no
        second node, if the provider has idempotency tokens. A failure of the call as a whole raises ``CloudError``,
        of kind ``AMBIGUOUS`` whenever nodes may exist despite the error.
        """
        ...

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[CloudError | None]:
        """Request the termination of several nodes; return None for each one accepted or already gone.

        A node that cannot be terminated hinders no other. A failure of the call as a whole raises ``CloudError``.
        """
        ...


class CloudWatch(Protocol):
    """Tells when something changes at the provider, in threads of its own."""

    def start(self, listener: Callable[[CloudChanged], None]) -> None:
        """Start watching. The listener is called from the watch's threads."""
        ...

    def stop(self) -> None:
        """Stop watching. The listener may be called once more."""
        ...


class FluxPort(Protocol):
    """One Flux instance, by request and response. An object belongs to one thread.

    Calls that change something (record, forget, keep_steering, keep_spend, drain, undrain, stop_broker,
    kill_housekeeping, requeue, start_copy, cancel_copy, show_on_jobs, repair, change_slots, refuse_slots) first
    check that this manager still holds the name, and raise ``NotTheActor`` if it does not.
    """

    def claim(self) -> None:
        """Take the name ``node-manager`` on rank 0 until the process ends. Already holding it is no error.

        Raises ``NotTheActor`` if another manager holds it.
        """
        ...

    def ensure_actor(self) -> None:
        """See :class:`Mandate`."""
        ...

    def launches(self) -> tuple[Launch, ...]:
        """Read the launches on record."""
        ...

    def record(self, launches: Sequence[Launch]) -> None:
        """Record launches, all or none, and return only when the record survives a crash of the instance.

        If another launch holds one of the slots, this raises ``FluxError`` and records nothing.
        """
        ...

    def forget(self, launch: Launch) -> None:
        """Remove a launch from the record. A launch that is not on record is no error."""
        ...

    def steering(self) -> Steering:
        """Read the operators' settings as last recorded; ``UNSTEERED`` if there is no record."""
        ...

    def keep_steering(self, steering: Steering) -> None:
        """Record all operators' settings; return only when the record survives a crash of the instance."""
        ...

    def spend(self) -> Spend:
        """Read the money spent as last recorded; ``NOTHING_SPENT`` if there is no record."""
        ...

    def keep_spend(self, spend: Spend) -> None:
        """Record all the money spent; return only when the record survives a crash of the instance."""
        ...

    def held_jobs(self) -> Mapping[JobId, HeldJob]:
        """Read which jobs the manager holds, as recorded."""
        ...

    def hold_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        """Record the jobs, then set their urgency to 0. A job that has ended is no error."""
        ...

    def release_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        """Set the urgency of the jobs as it was, then remove them from the record.

        A job that has started or ended is no error.
        """
        ...

    def ranks(self) -> tuple[FluxRank, ...]:
        """Look once at every rank but the leader.

        Ranks of the types that wait for data show which jobs ended there, since the lease on record began, whose
        data nobody has called safe. The end of a job may show a moment after its resources are free. If early
        releases count, a rank that a running instance holds whole and has given back (``given_back``) does not
        count as allocated, and has no free cores.
        """
        ...

    def node_order(self) -> NodeOrder | None:
        """Which node the scheduler gives to a job, as of the last look; None if that is not known."""
        ...

    def read_hardware(self) -> Mapping[Rank, Hardware]:
        """Read the hardware of machines whose ranks came online, as the last look showed; each is reported once.

        Returns some at a time, and the rest after the next look. Empty if this port does not measure.
        """
        ...

    def jobs_ended(self) -> int:
        """Count the ended jobs of all users that the instance remembers."""
        ...

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        """Show a text on each job, as ``user.nodes`` of ``flux jobs``; None removes it.

        It lasts until the instance restarts. A job that is no longer active is no error.
        """
        ...

    def drain(self, rank: Rank, reason: str, replaces: str | None = None) -> None:
        """Drain a rank, online or not. A rank that is already drained, by us or others, keeps its reason.

        The exception is a rank that is drained for exactly the reason ``replaces``: it gets the new reason.

        Looks show only the first word of a reason that begins with our mark.
        """
        ...

    def undrain(self, rank: Rank) -> None:
        """Undo our drain of a rank. A rank that is not drained is no error, and a drain by others stays."""
        ...

    def stop_broker(self, rank: Rank) -> None:
        """Tell the rank's broker to shut down cleanly. A broker that is offline is no error."""
        ...

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        """Send a signal to the rank's housekeeping. If none runs, that is no error."""
        ...

    def requeue(self, job: JobId) -> JobId:
        """Submit an active job again, held until ``start_copy``; return the new job's id.

        Each job names the other: the new one in ``node-manager.requeued-from``, the old one in a memo. Raises
        ``NotRequeued`` if the job cannot be submitted in its user's name.
        """
        ...

    def result(self, job: JobId) -> JobResult | None:
        """Read how a job ended; None if it is active."""
        ...

    def start_copy(self, job: JobId) -> None:
        """Take our hold off a copy, which may then start. A copy that has started or ended is no error."""
        ...

    def cancel_copy(self, job: JobId, why: str) -> None:
        """Cancel a copy that still waits for our hold. Flux shows ``why``. Any other job is left alone."""
        ...

    # --- the types of the slots ---

    def repair(self) -> bool:
        """Finish a change of the slots that was interrupted; return True if there was one.

        Call this after a claim and before anything else: until then the instance may have no scheduler.
        """
        ...

    def slots_wish(self) -> SlotsWish | None:
        """Read the unanswered wish to change the slots; None if there is none."""
        ...

    def change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        """Change the types of slots while jobs run, and answer the wish.

        On return the instance has its new resources and takes jobs. If a slot is online, allocated or leased, or
        the change cannot begin for another reason, this raises ``SlotsUnchanged`` and the wish stays unanswered.
        After any other ``FluxError`` the change may be half done; ``repair`` finishes it. What the wish
        ``promises`` for a type overrides the site for its slots from then on.
        """
        ...

    def refuse_slots(self, wish: SlotsWish, why: str) -> None:
        """Refuse a wish, with the reason. A wish already answered is no error."""
        ...


QueueListener = Callable[[QueueSeen | QueueProbed | RanksChanged], None]


class FluxWatch(Protocol):
    """Follows the instance's journals in a thread of its own, and calls the listener from there.

    It sends the complete queue first, then every change, and a probe when nothing happens. It sends the complete
    queue again at every relist and after every reconnection, and ``RanksChanged`` for events on ranks.
    """

    def start(self, listener: QueueListener, lost: Callable[[str], None]) -> None:
        """Start following. ``lost`` is called with the reason each time the connection is lost."""
        ...

    def stop(self) -> None:
        """Stop following. On return the listener is not called any more."""
        ...


class JoinPort(Protocol):
    """Exchanges messages between the manager and the join service. An object belongs to one thread."""

    def post(self, roster: Roster, wall_at: float) -> None:
        """Tell the service which launches hold a slot, and that a manager lives; all or nothing.

        Raises ``JoinError``.
        """
        ...

    def reports(self) -> tuple[JoinFact, ...]:
        """Read the reports that are new since the last call, oldest first. Raises ``JoinError``."""
        ...
