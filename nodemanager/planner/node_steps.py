"""The next step of one node, by its state; and the reason, when it takes none as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemanager.core.drains import drain_text, hold_text, is_our_drain
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LaunchId, NodeState
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
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner import retirement
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.budget import waits_for_record
from nodemanager.planner.observe import hardware, operator
from nodemanager.planner.observe.backoff import Allowance
from nodemanager.planner.observe.node_health import (
    gets_no_work,
    hung_s,
    overdue_housekeeping_s,
    survives_kills,
    why_give_up,
    why_unfit,
)
from nodemanager.planner.observe.zones import block_on, block_reason
from nodemanager.planner.spares import takes_jobs
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import EVERYTHING, Node, Snapshot
from nodemanager.planner.unsent_leases import LeaseReview

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

BUSY = because("busy")
# Of a type that is only observed these are left as they are. What was begun with a node is ended.
LEFT_ALONE_IF_OBSERVED = (NodeState.BOOTING, NodeState.IDLE, NodeState.BUSY, NodeState.LOST)
BROKER_STOP_TRIES = 3  # how often a broker is asked to leave, before its machine is taken away all the same

# How long a scheduler gets to take in a drain. That of a rank 0 that stops hears of none, and each is answered.
REDRAIN_AFTER_S = 1.0


@dataclass(slots=True)
class StepContext:
    """What a node's step depends on beside the node. The counts change as nodes take their steps."""

    snapshot: Snapshot
    policy: Policy
    needed: Mapping[SlotName, tuple[JobId, ...]]  # where waiting jobs are laid out
    makes_room: tuple[JobId, frozenset[LaunchId]] | None  # a job that a limit keeps out, and who goes for it
    unsent: Mapping[LaunchId, LeaseReview]  # leases that no create is sent for now
    count_live: int  # nodes on the bill, those on their way out not counted
    count_usable: int  # nodes that take jobs, those about to be retired not counted
    count_ready: dict[
        TypeName, int
    ]  # of each type that has spares, those that no job needs: the spares are among them
    overspent: Reason | None  # the budget is spent
    allowance: Allowance  # by quotas and breakers
    creates_left: int  # by the rate bucket
    cloud_calls_left: int  # creates and destroys that may still be under way at once
    known_stop_times_s: dict[TypeName, tuple[float, float | None]] = field(
        default_factory=dict
    )  # of types asked for
    now_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.now_s = self.snapshot.now_s

    @property
    def all_blocked(self) -> bool:
        block = self.snapshot.blocks.get(EVERYTHING)
        return block is not None and block.until_s > self.now_s

    def stop_times_s(self, name: TypeName) -> tuple[float, float | None]:
        """How long before a window's end a node of the type is told to go, and the quickest stop that was seen."""
        if name not in self.known_stop_times_s:
            lead_s = timings.stop_lead_s(self.snapshot, name, self.policy)
            self.known_stop_times_s[name] = lead_s, timings.quickest_stop_s(self.snapshot, name)
        return self.known_stop_times_s[name]


class Step(NamedTuple):
    reason: Reason
    action: NodeAction | None = None


def next_step(node: Node, outlook: StepContext) -> Step:
    """What is done for the node now. One call at a time; one that failed is left alone a while."""
    if node.call is not None:
        return Step(because("call_in_flight", call=str(node.call.kind), deadline_s=node.call.deadline_s))
    if outlook.now_s < node.retry_s:
        return Step(because("retry_later", retry_s=node.retry_s, tries=node.tries))
    steered = operator.operator_step(node, outlook.snapshot.steering)
    if steered is not None:
        reason, action = steered
        waits = action is None and reason.code == "retired_by_operator"
        return _held_up(node, reason, outlook) if waits else Step(reason, action)
    if node.launch.type_name in outlook.policy.observed and _stands(node):
        return Step(because("only_observed", node_type=node.launch.type_name))
    return STEP_OF_STATE[node.state](node, outlook)


def _stands(node: Node) -> bool:
    """Whether nothing was begun with it: a drain of ours says so, also of one that is at work yet."""
    drained_by_us = node.rank is not None and node.rank.drain_reason == drain_text(node.id)
    return node.state in LEFT_ALONE_IF_OBSERVED and not drained_by_us


def _requested(node: Node, outlook: StepContext) -> Step:
    node_type = outlook.policy.types.get(node.launch.type_name)
    if not node.recorded:
        return Step(because("lease_to_record"), RecordLaunches((node.launch,)))
    if node.create_sent_s is not None:
        return Step(because("looked_for", absences=node.absences, since_s=node.known_s))
    if outlook.overspent is not None:
        return Step(outlook.overspent, EndLease(node.launch, outlook.overspent))
    if (weighed := outlook.unsent.get(node.id)) is not None:
        return Step(weighed.reason, EndLease(node.launch, weighed.reason) if weighed.ends else None)
    if node_type is None:
        return Step(because("unknown_type", node_type=node.launch.type_name))
    block = block_on(node_type, node.launch.zone, outlook.snapshot)
    if block is not None:
        # What holds up this type alone may not hold up another, so the slot is given back and chosen anew.
        obstacle = block_reason(block)
        return Step(obstacle, None if outlook.all_blocked else EndLease(node.launch, obstacle))
    if (none_left := outlook.allowance.why_none(node_type)) is not None:
        return Step(none_left, EndLease(node.launch, none_left))
    if outlook.creates_left <= 0:
        return Step(because("create_paced", creates_per_s=outlook.policy.creates_per_s))
    if outlook.cloud_calls_left <= 0:
        return Step(_too_many_calls(outlook))
    outlook.allowance.take(node_type)
    outlook.creates_left -= 1
    outlook.cloud_calls_left -= 1
    return Step(because("creating"), CreateNode(node.launch, node_type))


def _booting(node: Node, outlook: StepContext) -> Step:
    given_up = why_give_up(node, outlook.policy, outlook.now_s)
    if given_up is not None:
        return _drain(node, given_up)
    if outlook.overspent is not None:
        return _drain(node, outlook.overspent)
    waited_s = outlook.now_s - node.requested_s
    return Step(because("booting", waited_s=waited_s, boot_timeout_s=outlook.policy.boot_timeout_s))


def _lost(node: Node, outlook: StepContext) -> Step:
    given_up = why_give_up(node, outlook.policy, outlook.now_s)
    if given_up is not None and not (node.rank is not None and node.rank.allocated):
        return _drain(node, given_up)
    return Step(because("may_rejoin", away_s=outlook.now_s - node.since_s))


def _idle(node: Node, outlook: StepContext) -> Step:
    policy = outlook.policy
    # Most are sound and not drained, and then there is nothing to put right.
    if (_held(node) or not node.is_sound) and (put_right := _idle_amiss(node, outlook)) is not None:
        return put_right
    wanted = outlook.needed.get(node.launch.slot)
    if wanted is not None:
        return Step(because("wanted", jobs=job_names(wanted)))
    counts = takes_jobs(node, outlook.snapshot, policy)
    surplus = outlook.count_usable - policy.nodes_min if counts else 1  # one that takes none keeps up no number
    if outlook.overspent is not None and not _held(node):  # at once: nothing more is to begin there
        return _sent_away(node, outlook.overspent, outlook)
    if outlook.count_live > policy.nodes_max and surplus > 0 and _confirmed(node, policy):
        return _sent_away(
            node, because("above_nodes_max", nodes=outlook.count_live, nodes_max=policy.nodes_max), outlook
        )
    job, gives_way = outlook.makes_room if outlook.makes_room is not None else (None, ())
    if node.launch.id in gives_way and surplus > 0 and _confirmed(node, policy):
        return _sent_away(node, because("makes_room", job=str(job)), outlook)
    name = node.launch.type_name
    node_type = policy.types.get(name)
    spares = node_type.spares if node_type is not None and counts else 0
    spare = spares > 0 and outlook.count_ready.get(name, 0) <= spares
    lead_s, quickest_s = outlook.stop_times_s(name)
    goes, reason = retirement.should_retire(
        node, node_type, policy, outlook.now_s, surplus, spare, lead_s, quickest_s
    )
    if not goes:
        return Step(reason)
    if counts:
        outlook.count_ready[name] = outlook.count_ready.get(name, 0) - 1
    return _sent_away(node, reason, outlook)


def _sent_away(node: Node, reason: Reason, outlook: StepContext) -> Step:
    """Drained, and not counted any more in what the steps after this one go by."""
    outlook.count_live -= 1
    outlook.count_usable -= takes_jobs(node, outlook.snapshot, outlook.policy)
    return _drain(node, reason)


def _idle_amiss(node: Node, outlook: StepContext) -> Step | None:
    """What is done with one that is drained, or that something is the matter with; None where it counts as idle."""
    if _carries_the_drain_of_another(node):
        reason = because("drained_for_another")
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    if _held(node):
        return None
    why = why_give_up(node, outlook.policy, outlook.now_s) or why_unfit(node, outlook.policy, outlook.now_s)
    return _sent_away(node, why, outlook) if why is not None else None


def _carries_the_drain_of_another(node: Node) -> bool:
    """Our drain of a node that stood on its rank before it: where Flux gives out the ranks, that may be."""
    reason = node.rank.drain_reason if node.rank is not None else None
    if reason is None or not is_our_drain(reason):
        return False
    # Behind the launch there may stand a note of why.
    return reason.split()[0] not in (drain_text(node.id), hold_text(node.id))


def _confirmed(node: Node, policy: Policy) -> bool:
    return node.idle_looks >= policy.idle_confirmations and not _held(node)


def _held(node: Node) -> bool:
    return node.rank is not None and node.rank.drain_reason is not None


def _busy(node: Node, outlook: StepContext) -> Step:
    if (why := why_unfit(node, outlook.policy, outlook.now_s)) is not None:
        # It takes no more jobs; what runs there goes on.
        return _held_up(node, why, outlook) if _held(node) else _cordon(node, why)
    if (hangs_s := hung_s(node, outlook.now_s)) is not None:
        return Step(because("hangs_at_work", node=node.launch.slot, hangs_s=hangs_s))
    if node.misfit is not None:
        return _cordon(node, node.misfit, hardware.drain_note(node.misfit))
    if outlook.overspent is not None and node.rank is not None:
        return _cordon(node, outlook.overspent)
    if node.rank is not None and node.rank.drain_reason == drain_text(node.id):
        reason = because("busy_yet_drained_by_us")
        return Step(reason, UndrainNode(node.id, node.launch.rank, reason))
    return Step(BUSY)


def _held_up(node: Node, why: Reason, outlook: StepContext) -> Step:
    """What runs there is waited for; but a housekeeping that lasts too long is told to end."""
    runs = node.rank is not None and node.rank.housekeeping_since_at is not None
    lasts_s = overdue_housekeeping_s(node, outlook.policy, outlook.now_s)
    if not runs or lasts_s is None or survives_kills(node):
        return Step(why)
    stuck = because("housekeeping_stuck", lasts_s=lasts_s, housekeeping_max_s=outlook.policy.housekeeping_max_s)
    return Step(stuck, KillHousekeeping(node.id, node.launch.rank, node.housekeeping_kills > 0, stuck))


def _cordon(node: Node, why: Reason, note: str = "") -> Step:
    """Nothing begins there any more; what runs there ends in its own time. Drained already, it needs no other."""
    text = f"{drain_text(node.id)} {note}".rstrip()
    return Step(why, None if _held(node) else CordonNode(node.id, node.launch.rank, text, why))


def _draining(node: Node, outlook: StepContext) -> Step:
    wanted = outlook.needed.get(node.launch.slot)
    fit = not gets_no_work(node, outlook.policy, outlook.now_s)
    if wanted is not None and fit and not (outlook.policy.destroy_on_replay and node.replayed):
        return _reprieve(node, outlook, because("wanted_again", jobs=job_names(wanted)))
    if node.drained_s is None or node.rank is None:
        return _drain(node, node.retiring or because("drain_unanswered"))
    obstacle = retirement.second_look(node, node.rank)
    if obstacle is None:
        return _stop(node, outlook)
    if obstacle.code == "job_slipped_in" and node.rank.online and fit:
        return _reprieve(node, outlook, obstacle)
    if obstacle.code in ("still_schedulable", "not_drained") and outlook.now_s - node.drained_s >= REDRAIN_AFTER_S:
        return _drain(node, node.retiring or obstacle)
    return _held_up(node, obstacle, outlook)


def _stopping(node: Node, outlook: StepContext) -> Step:
    """Again and again until it is seen gone, unless somebody undrained it after the second look."""
    if node.rank is not None and node.rank.allocated:
        return _held_up(node, because("job_slipped_in"), outlook)
    if node.drained_s is None:
        # The claim was made anew since: another one may have kept the node meanwhile, and given it work.
        return _drain(node, node.retiring or because("drain_unanswered"))
    return _stop(node, outlook)


def _stop(node: Node, outlook: StepContext) -> Step:
    """Stop what nothing runs on: first its broker, then the machine."""
    reason = node.retiring or because("stopping")
    if node.rank is not None and node.rank.online and node.tries < BROKER_STOP_TRIES:
        if node.broker_told_s is None:
            return Step(reason, StopBroker(node.id, node.launch.rank))
        told_s = outlook.now_s - node.broker_told_s
        if told_s < outlook.policy.broker_stop_s:
            return Step(because("broker_stopping", told_s=told_s, broker_stop_s=outlook.policy.broker_stop_s))
    if node.cloud is None:
        return Step(because("nothing_to_destroy"))
    if outlook.cloud_calls_left <= 0:
        return Step(_too_many_calls(outlook))
    outlook.cloud_calls_left -= 1
    return Step(reason, DestroyNode(node.id, node.cloud.provider_id, reason))


def _too_many_calls(outlook: StepContext) -> Reason:
    return because("calls_in_flight_max", calls_in_flight_max=outlook.policy.calls_in_flight_max)


def _gone(node: Node, outlook: StepContext) -> Step:
    rank = outlook.snapshot.ranks.get(node.launch.rank)
    if node.cloud is not None and rank is not None and rank.online:
        # Its slot is free only when the overlay has noticed too.
        return _held_up(node, because("gone_yet_online"), outlook)
    if waits_for_record(node, outlook.snapshot):
        return Step(because("spend_to_record"))
    reason = because("gone")
    return Step(reason, EndLease(node.launch, reason))


def _drain(node: Node, reason: Reason) -> Step:
    note = hardware.drain_note(reason) if reason == node.misfit else ""
    return Step(reason, DrainNode(node.id, node.launch.rank, reason, note))


def _reprieve(node: Node, outlook: StepContext, reason: Reason) -> Step:
    outlook.count_live += 1
    outlook.count_usable += 1
    return Step(reason, UndrainNode(node.id, node.launch.rank, reason))


def job_names(jobs: tuple[JobId, ...]) -> tuple[str, ...]:
    return tuple(str(job) for job in jobs)


STEP_OF_STATE: Mapping[NodeState, Callable[[Node, StepContext], Step]] = {
    NodeState.REQUESTED: _requested,
    NodeState.BOOTING: _booting,
    NodeState.IDLE: _idle,
    NodeState.BUSY: _busy,
    NodeState.LOST: _lost,
    NodeState.DRAINING: _draining,
    NodeState.STOPPING: _stopping,
    NodeState.GONE: _gone,
}

# Undraining comes before anything is bought, and what ends a bill before what begins one.
STATE_ORDER = (
    NodeState.DRAINING,
    NodeState.BUSY,
    NodeState.GONE,
    NodeState.STOPPING,
    NodeState.LOST,
    NodeState.IDLE,
    NodeState.BOOTING,
    NodeState.REQUESTED,
)
STATE_RANKING: Mapping[NodeState, int] = {state: turn for turn, state in enumerate(STATE_ORDER)}
