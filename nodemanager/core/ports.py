"""The outside, in our words: a clock, a cloud, a Flux instance.

Each method's docstring is the contract that ``tests/contract/`` holds every adapter to, real and simulated.
Whatever may go wrong outside is raised as :class:`CloudError` or :class:`FluxError`; anything else that an
adapter raises is a bug and ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nodemanager.core.facts import JoinFact, QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.jobs import JobId
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
from nodemanager.core.records import Spend, Steering
from nodemanager.core.slots import Hardware, NodeType, Rank, SlotName, SlotsWish, TypeName


class CloudError(Exception):
    """A cloud call that failed in a way that was foreseen."""

    def __init__(
        self, kind: FailureKind, detail: str, retry_after_s: float = 0.0, reach: QuotaScope | None = None
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.quota_scope = reach


class FluxError(Exception):
    """The instance refused, or did not answer in time."""


class NotTheActor(FluxError):
    """Another manager holds the name, or ours is no longer held: nothing may be changed."""


class JoinError(Exception):
    """What the join service is to know could not be handed over, or what it knows not be read."""


class SlotsUnchanged(FluxError):
    """A change of the slots was not made, and nothing of it is left: the wish may be answered with why."""


class NotRequeued(FluxError):
    """A job cannot be submitted once more, now or later."""


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Seconds that never jump: for timers."""
        ...

    def wall_at(self) -> float:
        """Seconds since the epoch: for bills and records."""
        ...


class Mandate(Protocol):
    """Whether we are still the one that acts. An object belongs to one thread."""

    def ensure_actor(self) -> None:
        """Return if the name is surely still held by us, by a look at the instance.

        Raises ``NotTheActor`` where it is not, and ``FluxError`` where that cannot be told.
        """
        ...


class CloudPort(Protocol):
    """One account, region and cluster at a provider. An object belongs to one thread."""

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        """Make one node that carries the launch's identity from its first moment.

        Repeated with the same launch it makes no second node where the provider has idempotency tokens.
        Raises ``CloudError``; of kind ``AMBIGUOUS`` whenever the node may exist all the same.
        """
        ...

    def list_nodes(self) -> tuple[CloudNode, ...]:
        """Every instance in our scope, whole, those lately terminated included where the provider shows them.

        Never empty by mistake: a reply that is foreign, cut or unreadable raises.
        """
        ...

    def destroy(self, provider_id: ProviderId) -> None:
        """Ask for the node's end. One that is gone already is no error. Accepted is not gone: list again."""
        ...

    def sweep(self) -> tuple[Leftover, ...]:
        """Delete what nodes of this cluster left behind (volumes, interfaces, addresses); give what was deleted.

        Only what carries the cluster's UUID, is in use by nothing, belongs to no node that is listed as standing,
        and was found so by the sweep before this one too: so the first sweep of an object deletes nothing.
        """
        ...


class FluxPort(Protocol):
    """One Flux instance, by calls that are answered. An object belongs to one thread.

    Those that change something (record, forget, keep_steering, keep_spend, drain, undrain, stop_broker,
    kill_housekeeping, show_on_jobs, repair, change_slots, refuse_slots) first make sure that the name is still
    held, and raise ``NotTheActor`` if it is not.
    """

    def claim(self) -> None:
        """Hold the name ``node-manager`` on rank 0 until the process ends. Held already, it is no error.

        Raises ``NotTheActor`` when another one holds it.
        """
        ...

    def ensure_actor(self) -> None:
        """As in :class:`Mandate`."""
        ...

    def launches(self) -> tuple[Launch, ...]:
        """The launches on record."""
        ...

    def record(self, launches: Sequence[Launch]) -> None:
        """Put launches on record, all or none, and return only when that survives a crash of the instance.

        A slot that another launch holds raises ``FluxError`` and nothing is recorded.
        """
        ...

    def forget(self, launch: Launch) -> None:
        """Take a launch off the record. One that is not there is no error."""
        ...

    def steering(self) -> Steering:
        """What operators have set, as it was last kept; nothing set where nothing was."""
        ...

    def keep_steering(self, steering: Steering) -> None:
        """Put what operators have set on record, whole; return only when that survives a crash of the instance."""
        ...

    def spend(self) -> Spend:
        """What was spent, as it was last kept; nothing where nothing was."""
        ...

    def keep_spend(self, spend: Spend) -> None:
        """Put what was spent on record, whole; return only when that survives a crash of the instance."""
        ...

    def ranks(self) -> tuple[FluxRank, ...]:
        """One look at every rank but the leader."""
        ...

    def read_hardware(self) -> Mapping[Rank, Hardware]:
        """What the machines really have whose ranks came online as the last look showed; each is told once.

        Some at a time, the rest after the next look. Empty where that is not to be asked.
        """
        ...

    def jobs_ended(self) -> int:
        """How many jobs that have ended the instance remembers, of all users."""
        ...

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        """Show a text on each job, as ``user.nodes`` of ``flux jobs``; None takes it away.

        It lasts until the instance restarts. A job that is not active any more is no error.
        """
        ...

    def drain(self, rank: Rank, reason: str) -> None:
        """Let a rank, online or not, take no new job. Drained already, by us or others, it keeps its reason.

        Of a reason that begins with our mark, looks show the first word.
        """
        ...

    def undrain(self, rank: Rank) -> None:
        """Let it take jobs again. One that is not drained is no error, and one that others drained stays so."""
        ...

    def stop_broker(self, rank: Rank) -> None:
        """Tell the rank's broker to end in good order. One that is offline is no error."""
        ...

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        """Send a signal to what runs on the rank after jobs. Where nothing does, it is no error."""
        ...

    def requeue(self, job: JobId) -> JobId:
        """Submit an active job once more, to start only if this one does not end well; the new one's id.

        Each names the other: the new one in ``node-manager.requeued-from``, the old one by a memo. Raises
        ``NotRequeued`` for one that cannot be submitted in its user's name.
        """
        ...

    # --- the division of the slots ---

    def repair(self) -> bool:
        """End a change of the slots that was begun and not ended; True if there was one.

        To be called after a claim and before anything else: until then the instance may have no scheduler.
        """
        ...

    def slots_wish(self) -> SlotsWish | None:
        """What somebody wishes of the division of the slots and has no answer to yet."""
        ...

    def change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        """Give slots other types, jobs running, and answer the wish.

        On return the instance has its new resources and takes jobs. A slot that is online, allocated or leased
        raises ``SlotsUnchanged``, and so does whatever else keeps it from being begun; the wish stands. After
        another ``FluxError`` the change may be half done: ``repair`` ends it. What the wish ``promises`` of a type
        holds for its slots from then on, whatever the site says of it.
        """
        ...

    def refuse_slots(self, wish: SlotsWish, why: str) -> None:
        """Answer a wish with why it is not fulfilled. One that is answered already is no error."""
        ...


QueueListener = Callable[[QueueSeen | QueueProbed | RanksChanged], None]


class FluxWatch(Protocol):
    """The instance's journals, pushed. It runs in a thread of its own and calls the listener from there.

    First the complete queue, then every change; a probe when nothing happens; the complete queue again at
    every relist and after every reconnection. ``RanksStirred`` for whatever concerns ranks.
    """

    def start(self, listener: QueueListener, lost: Callable[[str], None]) -> None: ...

    def stop(self) -> None: ...


class JoinPort(Protocol):
    """What the manager and the join service leave for each other. An object belongs to one thread."""

    def post(self, roster: Roster, wall_at: float) -> None:
        """Let the service know who holds a slot, and that a manager lives. Whole or not at all.

        Raises ``JoinError``.
        """
        ...

    def reports(self) -> tuple[JoinFact, ...]:
        """What was reported since this object was last asked, oldest first. Raises ``JoinError``."""
        ...
