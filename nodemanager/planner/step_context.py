"""What a node's step depends on, and what a step is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LaunchId
from nodemanager.core.orders import (
    CordonNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    KillHousekeeping,
    RecordLaunches,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, NodeType, Rank, SlotName, TypeName
from nodemanager.planner import billing, hardware, timings
from nodemanager.planner.backoff import Allowance
from nodemanager.planner.consolidation import Emptying
from nodemanager.planner.node_health import GivenUp, overdue_housekeeping_s, survives_kills, takes_jobs
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.slot_types import TypeCounts
from nodemanager.planner.snapshot import ALL_TYPES, Node, Scope, Snapshot, TimedNode
from nodemanager.planner.stack import Stack
from nodemanager.planner.timings import CreateCalls
from nodemanager.planner.upkeep import UpkeepPlan

NodeAction = (
    RecordLaunches
    | CreateNode
    | DrainNode
    | CordonNode
    | UndrainNode
    | StopBroker
    | KillHousekeeping
    | DestroyNode
    | EndLease
)


UNLIMITED = 1_000_000  # calls, if one call does for all nodes


class LeaseReview(NamedTuple):
    """Why a lease's create is not sent now. ``ends``: True if the lease ends, False if it only waits."""

    reason: Reason
    ends: bool = True


class JobClaims(Protocol):
    """What the waiting jobs want of the nodes. The jobs are placed when the first node's step depends on it."""

    @property
    def needed(self) -> Mapping[SlotName, tuple[JobId, ...]]:
        """Where waiting jobs are placed."""
        ...

    @property
    def makes_room(self) -> tuple[JobId, frozenset[LaunchId]] | None:
        """A job stopped by a limit, and the nodes that go for it."""
        ...

    @property
    def want_more(self) -> bool:
        """Whether jobs wait for nodes that do not exist yet."""
        ...


@dataclass(slots=True)
class StepContext:
    """What a node's step depends on besides the node. The counts change as nodes take their steps."""

    snapshot: Snapshot
    policy: Policy
    jobs: JobClaims
    unsent: Mapping[LaunchId, LeaseReview]  # leases for which no create is sent now
    count_live: int  # billed nodes, without those that are leaving
    count_usable: int  # nodes that take jobs, without those about to be retired
    count_ready: dict[TypeName, int]  # by type with spares: nodes that no job needs, spares included
    overspent: Reason | None  # the budget of the whole site is spent
    overspent_clouds: Mapping[CloudName, Reason]  # the clouds whose own budget is spent
    allowance: Allowance  # by quotas and breakers
    create_credit: dict[CloudName, float]  # in each cloud's bucket
    create_calls: Mapping[CloudName, CreateCalls]
    cloud_calls_left: dict[CloudName, int]  # creates and destroys that may still be sent
    upkeep: UpkeepPlan  # which nodes are replaced
    emptying: Emptying  # which nodes take no new job so that they empty
    of_types: TypeCounts = field(default_factory=TypeCounts)  # of the types that have limits of their own
    gap: Rank | None = None  # the lowest slot without a node, if nodes come in the order of the slots
    stack: Stack | None = None  # the order in which nodes leave; None if any may leave
    known_stop_times: dict[TypeName, StopTimes] = field(default_factory=dict)
    now_s: float = field(init=False)  # and above the cache of ``stop_times``

    def __post_init__(self) -> None:
        self.now_s = self.snapshot.now_s

    def why_overspent(self, node: Node) -> Reason | None:
        """Why a node leaves because a budget is spent; None if it need not."""
        if self.overspent is not None or not self.overspent_clouds:
            return self.overspent
        return self.overspent_clouds.get(self.policy.cloud_of(node.launch))

    @property
    def all_blocked(self) -> bool:
        """Whether all types are blocked now."""
        return all(self._is_blocked(cloud) for cloud in self.policy.cloud_names)

    def _is_blocked(self, cloud: CloudName) -> bool:
        block = self.snapshot.learned.blocks.get(Scope(ALL_TYPES, cloud=cloud))
        return block is not None and block.until_s > self.now_s

    def makes_room_for(self, node: Node) -> JobId | None:
        """The job that a limit keeps from its nodes and for which this idle node goes; None if there is none."""
        job, retiring = self.jobs.makes_room if self.jobs.makes_room is not None else (None, frozenset())
        return job if node.id in retiring else None

    def takes_call(self, cloud: CloudName) -> bool:
        """Whether one more create or destroy may be sent to a cloud now; if so, it is counted."""
        if self.cloud_calls_left[cloud] <= 0:
            return False
        self.cloud_calls_left[cloud] -= 1
        return True

    def why_kept(self, node: Node) -> Reason | None:
        """Why the provider keeps the node now, whatever is decided; None if it can leave."""
        return self.stack.why_kept(node) if self.stack is not None else None

    def stop_times(self, name: TypeName) -> StopTimes:
        """How long stops of a node type take."""
        if name not in self.known_stop_times:
            lead_s = timings.stop_lead_s(self.snapshot, name, self.policy)
            self.known_stop_times[name] = StopTimes(lead_s, timings.quickest_stop_s(self.snapshot, name))
        return self.known_stop_times[name]

    def retirement_times(self) -> Iterator[Iterator[TimedNode]]:
        """For each type, its nodes at rest by the time at which they may be retired, the first one first.

        Types whose idle nodes stay are left out.
        """
        for name, resting in node_index_of(self.snapshot).resting.items():
            node_type = self.policy.types.get(name)
            if node_type is None:
                yield ((-inf, id_) for _, id_ in resting.idle_since)
            elif node_type.cloud in self.snapshot.closed_clouds:
                continue
            elif name not in self.policy.observed and not self._are_all_needed(node_type):
                lead_s, timeout_s = self.stop_times(name).lead_s, self.policy.idle_timeout_s(node_type)
                yield resting.by_time(node_type.billing, timeout_s, lead_s, self.now_s)

    def _are_all_needed(self, node_type: NodeType) -> bool:
        """Whether all idle nodes of a type are needed as spares, or for its ``nodes_min``."""
        if self.of_types.is_at_min(node_type.name):
            return True
        return 0 < node_type.spares >= self.count_ready.get(node_type.name, 0)


class Step(NamedTuple):
    """The next step of a node, if any, and its reason.

    ``again_at_s``: when the passing of time alone may change this; infinity if only news can. ``held``: a call for
    the node waits until another node's call has been answered.
    """

    reason: Reason
    action: NodeAction | None = None
    again_at_s: float = inf
    held: bool = False


# --- the orders that the steps of several states share: drain, keep, wait ---------------------------------


def is_drained(node: Node) -> bool:
    """Whether the node is drained, no matter who did it."""
    return node.rank is not None and node.rank.drain_reason is not None


def _drain(node: Node, reason: Reason, *, boot_failed: bool = False, for_operator: bool = False) -> Step:
    """Drain the node so that it can be stopped."""
    note = hardware.drain_note(reason) if reason == node.health.misfit else ""
    order = DrainNode(node.id, node.launch.rank, reason, note, boot_failed=boot_failed, for_operator=for_operator)
    return Step(reason, order)


def drain_again(node: Node, otherwise: Reason) -> Step:
    """Order a drain once more, for the reason for which the node leaves; ``otherwise`` if that is unknown."""
    return _drain(node, node.stop.retiring or otherwise, for_operator=node.stop.by_operator)


def cordon(node: Node, why: Reason, note: str = "") -> Step:
    """Drain a busy node: no new job starts, running jobs finish. Does nothing if it is drained already."""
    text = f"{drain_text(node.id)} {note}".rstrip()
    return Step(why, None if is_drained(node) else CordonNode(node.id, node.launch.rank, text, why))


def reprieve(node: Node, context: StepContext, reason: Reason) -> Step:
    """Undrain the node and keep it."""
    if context.stack is not None:
        context.stack.note_staying(node)
    context.count_live += 1
    context.count_usable += 1
    context.of_types.note(node.launch.type_name, 1, takes_jobs=True)
    return Step(reason, UndrainNode(node.id, node.launch.rank, reason))


def retire(node: Node, reason: Reason, context: StepContext) -> Step:
    """Drain the node, and stop counting it for the steps of the nodes after it."""
    if context.stack is not None:
        context.stack.note_leaving(node)
    takes = takes_jobs(node, context.snapshot, context.policy)
    context.count_live -= 1
    context.count_usable -= takes
    context.of_types.note(node.launch.type_name, -1, takes_jobs=takes)
    return _drain(node, reason)


def give_up(node: Node, given_up: GivenUp, context: StepContext) -> Step:
    """Drain a node that is not up."""
    if context.stack is not None:
        context.stack.note_leaving(node)
    return _drain(node, given_up.reason, boot_failed=given_up.boot_failed)


def wait_for_jobs(node: Node, why: Reason, context: StepContext) -> Step:
    """Wait for what runs there, but kill a housekeeping that lasts too long."""
    runs = node.rank is not None and node.rank.housekeeping_since_at is not None
    lasts_s = overdue_housekeeping_s(node, context.policy, context.now_s)
    if not runs or lasts_s is None or survives_kills(node):
        return Step(why)
    stuck = because(
        Code.HOUSEKEEPING_STUCK, lasts_s=lasts_s, housekeeping_max_s=context.policy.timing.housekeeping_max_s
    )
    return Step(stuck, KillHousekeeping(node.id, node.launch.rank, node.health.housekeeping_kills > 0, stuck))


def wait_for_answer(cloud: CloudName, context: StepContext) -> Step:
    """Wait until a call to the cloud is answered: too many are in flight."""
    most = context.policy.calls_of(cloud).calls_in_flight_max
    return Step(because(Code.CALLS_IN_FLIGHT_MAX, calls_in_flight_max=most), held=True)


def process_survives(node: Node) -> Reason | None:
    """Why the node does not end although it was told to, if a guest's process keeps it."""
    if node.cloud is None or not node.cloud.survivors:
        return None
    return because(Code.PROCESS_SURVIVES, detail=node.cloud.survivors)


def job_names(jobs: tuple[JobId, ...]) -> tuple[str, ...]:
    """The jobs' ids as text, for a reason."""
    return tuple(str(job) for job in jobs)


# --- decide which idle nodes are retired, when, and why the others stay -----------------------------------


class StopTimes(NamedTuple):
    """How long stops of a node type take, in seconds."""

    lead_s: float  # how long before a billing window's end a stop begins
    quickest_s: float | None = None  # the shortest stop measured; None if there is none


class Verdict(NamedTuple):
    """Whether an idle node is retired, and why, or why not. ``again_at_s``: when time alone may change that."""

    reason: Reason
    retires: bool = False
    again_at_s: float = inf


def should_retire(
    node: Node,
    node_type: NodeType | None,
    policy: Policy,
    now_s: float,
    surplus: int,
    kept: Reason | None = None,
    stop_times: StopTimes | None = None,
    waits: bool = True,
) -> Verdict:
    """Whether to retire an idle node that no waiting job would use.

    ``surplus``: how many nodes there are beyond ``nodes_min``. ``kept``: why its type needs the node.
    ``waits``: whether it waits for ``idle_timeout``. Paid time is used up in any case.
    """
    if node.rank is not None and node.rank.drain_reason is not None:
        return Verdict(because(Code.HELD_BY_DRAIN, drain_reason=node.rank.drain_reason))
    times = stop_times if stop_times is not None else StopTimes(policy.rules.stop_lead_s)
    if node.seen.idle_looks < policy.rules.idle_confirmations:
        why = because(Code.IDLE_UNCONFIRMED, looks=node.seen.idle_looks, needs=policy.rules.idle_confirmations)
        next_look_s = now_s + policy.timing.probe_s
        if node.seen.idle_looks + 1 < policy.rules.idle_confirmations:
            return Verdict(why, again_at_s=next_look_s)  # its time must not pass while it is not confirmed
        return Verdict(why, again_at_s=_goes_at_s(node, node_type, policy, next_look_s, now_s, times))
    if surplus <= 0:
        return Verdict(because(Code.NODES_MIN, nodes_min=policy.limits.nodes_min))
    if kept is not None:
        return Verdict(kept)
    if node_type is None:
        return Verdict(because(Code.UNKNOWN_TYPE, node_type=node.launch.type_name), retires=True)
    idle_s = _idle_s(node, now_s)
    if node.launch.prepaid and node_type.prepaid:
        return Verdict(because(Code.PREPAID, node_type=node_type.name, prepaid=node_type.prepaid))
    timeout_s = policy.idle_timeout_s(node_type)
    if waits and node_type.billing.window_s <= timeout_s and idle_s < timeout_s:
        why = because(Code.IDLE_NOT_LONG, idle_s=idle_s, idle_timeout_s=timeout_s)
        return Verdict(why, again_at_s=_goes_at_s(node, node_type, policy, now_s, now_s, times))
    return _judge_paid_time(node, node_type, policy, now_s, times)


def _judge_paid_time(node: Node, node_type: NodeType, policy: Policy, now_s: float, times: StopTimes) -> Verdict:
    """Whether to retire a node that has been idle for long enough, by the end of its paid time.

    It is retired at the last safe moment of its paid window, ``lead_s`` before the end. If even the quickest stop
    would end after this window, the node is kept for the next one, which is paid anyway: once, and only if windows
    are longer than ``idle_timeout_s`` and than such a stop. A shorter window never has time for one.
    """
    rule = node_type.billing
    left_s = billing.window_left_s(rule, billing.age_s(node, now_s))
    figures: Figures = {"idle_s": _idle_s(node, now_s), "window_left_s": left_s, "stop_lead_s": times.lead_s}
    if left_s > times.lead_s:
        return Verdict(because(Code.PAID_TIME_LEFT, **figures), again_at_s=now_s + left_s - times.lead_s)
    stop_s = min(times.quickest_s, times.lead_s) if times.quickest_s is not None else inf
    may_wait = rule.window_s > max(stop_s, policy.idle_timeout_s(node_type), _idle_s(node, now_s))
    # Measured stops may be one interval too long, because only the next list shows a stop. Decisions may be late
    # too.
    if may_wait and times.quickest_s is not None and left_s < stop_s - policy.timing.probe_s:
        goes_in_s = left_s + max(0.0, rule.window_s - times.lead_s)
        why = because(Code.NEXT_WINDOW_BEGINS, **figures)
        why = why.with_figures(quickest_stop_s=times.quickest_s, goes_in_s=goes_in_s)
        return Verdict(why, again_at_s=now_s + goes_in_s)
    return Verdict(because(Code.WINDOW_CLOSES, **figures), retires=True)


def _idle_s(node: Node, now_s: float) -> float:
    return now_s - (node.seen.idle_since_s if node.seen.idle_since_s is not None else now_s)


def _goes_at_s(
    node: Node, node_type: NodeType | None, policy: Policy, at_s: float, now_s: float, times: StopTimes
) -> float:
    """The earliest time, not before ``at_s``, at which an idle node may go by its idle time and its paid window."""
    if node_type is None:
        return at_s
    rule = node_type.billing
    if rule.window_s <= policy.idle_timeout_s(node_type):
        idle_since_s = node.seen.idle_since_s if node.seen.idle_since_s is not None else now_s
        at_s = max(at_s, idle_since_s + policy.idle_timeout_s(node_type))
    left_s = billing.window_left_s(rule, billing.age_s(node, at_s))
    return at_s + max(0.0, left_s - times.lead_s)
