"""Decide what to do now, and why: ``plan(snapshot, policy)``. Read this first.

1. Ask the outside for missing facts: the claim, fresh lists, records to be written (``asks``).
2. Decide nothing on stale data, or while another manager acts (``health/standstill``).
3. Place the waiting jobs (``placement``): first on nodes that are up, as Flux's scheduler will seat them; then on
   nodes that can be kept or will soon be free; the rest on booting and new nodes, at the least cost. New nodes are
   bought only once the queue has settled.
4. Give each node its next step (``steps``). A draining node that is wanted again is undrained before anything
   is bought.

The same snapshot always gives the same plan, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LEAVING, CallKind, LaunchId, NodeState
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    CreateNode,
    DelegateJob,
    DestroyNode,
    EndLease,
    HoldJobs,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    StartCopy,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, TypeName
from nodemanager.planner import slot_types, unsent_leases
from nodemanager.planner.asks import Ask, asks_now, sweeps_now
from nodemanager.planner.backoff.allowance import Allowance
from nodemanager.planner.basis import Basis, Claims
from nodemanager.planner.boot_orders import boot_orders, purchases_change_s
from nodemanager.planner.cost import fleet
from nodemanager.planner.cost.create_calls import create_calls, create_credit
from nodemanager.planner.explain.job_reasons import JobReasons, boot_delays
from nodemanager.planner.explain.node_reasons import NodeReasons
from nodemanager.planner.explain.type_reasons import type_reasons, warnings
from nodemanager.planner.health.safe_mode import safe_mode_ends_s
from nodemanager.planner.health.settling import is_settled, settles_at_s
from nodemanager.planner.health.standstill import closed_clouds, stale_clouds, unsafe_clouds, why_standstill
from nodemanager.planner.limits.holds import hold_orders, may_hold
from nodemanager.planner.observe.operator import count_held, with_words
from nodemanager.planner.peers.burst import Bursts, bursts, jobs_away, without_jobs
from nodemanager.planner.requeue import CopyOrder, copies_change_s, copy_orders, requeue_orders
from nodemanager.planner.state.frozen import lazy_property, replace
from nodemanager.planner.state.node_index import calls_in_flight, node_index_of, with_node_index
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.steps.busy import BUSY
from nodemanager.planner.steps.context import NodeAction, StepContext
from nodemanager.planner.steps.fleet import FleetSteps, step_nodes
from nodemanager.planner.steps.leaving import order_nodes
from nodemanager.planner.steps.taking_jobs import count_ready, count_usable, counts_of_types
from nodemanager.planner.strays import stray_orders, strays_change_s
from nodemanager.planner.upkeep.turns import DueNode

Action = (
    BootNode
    | NodeAction
    | RequeueJob
    | CopyOrder
    | DelegateJob
    | HoldJobs
    | ReleaseJobs
    | ChangeSlots
    | RefuseSlots
)


@dataclass(frozen=True)
class Plan:
    """The orders, in the order in which they are given, and a reason for every job and every node."""

    asks: tuple[Ask, ...] = ()
    actions: tuple[Action, ...] = ()
    jobs: Mapping[JobId, Reason] = field(default_factory=dict)
    nodes: Mapping[LaunchId, Reason] = field(default_factory=dict)
    would: tuple[Action, ...] = ()  # for observed node types: reported, never carried out
    stands_still: Reason | None = None  # why nothing is decided; None if something may be
    is_paused: bool = False  # it stands still only because an operator paused it
    settled: bool = False
    price_per_hour: Decimal = Decimal(0)  # of every node that is, or may be, billed
    again_at_s: float = inf  # when the passing of time alone may change a decision
    calls_held: bool = False  # a call waits until another one has been answered
    due: Mapping[LaunchId, DueNode] = field(default_factory=dict)  # nodes to be replaced
    basis: Basis | None = field(default=None, repr=False, compare=False)  # None if no job was placed
    # The jobs weighed against the peers. Their figures change all the time, so they are no part of a job's reason.
    bursts: Bursts = field(default_factory=Bursts, repr=False, compare=False)

    @lazy_property
    def types(self) -> Mapping[TypeName, Reason]:
        """Why each node type is bought, or not."""
        basis = self.basis
        return type_reasons(basis.policy, basis.placement, basis.needs) if basis is not None else {}

    @lazy_property
    def warnings(self) -> tuple[Reason, ...]:
        """What the site's administrator should fix."""
        basis = self.basis
        return warnings(basis.snapshot, basis.policy, basis.placement, basis.needs) if basis is not None else ()

    @property
    def decided(self) -> Mapping[LaunchId, Reason]:
        """The reasons of the nodes that needed a decision: all except those that are simply busy."""
        return self.nodes.decided if isinstance(self.nodes, NodeReasons) else self.nodes

    def count_by_reason(self) -> Mapping[str, int]:
        """Count the waiting jobs by the code of their reason."""
        return self.jobs.count_by_reason() if isinstance(self.jobs, JobReasons) else {}


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide what to do. Pure: all it knows is in its arguments."""
    snapshot = with_node_index(snapshot)
    acting = _decide(snapshot, policy)
    if not policy.observed or acting.stands_still is not None:
        return acting
    # Only the acting types serve jobs. What all types together would do is a second, separate plan.
    if_all_acted = _decide(snapshot, policy.acting_everywhere)
    ordered = [action for action in acting.actions if type_of_action(action, snapshot) in policy.observed]
    return replace(
        acting,
        would=tuple(
            action
            for action in if_all_acted.actions
            if type_of_action(action, snapshot) in policy.observed and action not in ordered
        ),
        again_at_s=min(acting.again_at_s, if_all_acted.again_at_s),
    )


def type_of_action(action: Action, snapshot: Snapshot) -> TypeName | None:
    """The node type that an order concerns; None if it concerns several types or an unknown node."""
    match action:
        case BootNode(launch=launch) | CreateNode(launch=launch) | EndLease(launch=launch):
            return launch.type_name
        case DestroyNode(launch=None, provider_id=provider_id, cloud=cloud):
            stray = snapshot.account_of(cloud).strays.get(provider_id)
            return stray.node.identity.type_name if stray is not None and stray.node.identity is not None else None
        case RecordLaunches() | ChangeSlots() | RefuseSlots() | HoldJobs() | ReleaseJobs() | DelegateJob():
            return None
        case ReadResult() | StartCopy() | CancelCopy():
            return None
        case _:
            node = snapshot.nodes.get(action.launch) if action.launch is not None else None
            return node.launch.type_name if node is not None else None


def _decide(snapshot: Snapshot, policy: Policy) -> Plan:
    """The plan for the types that act under this policy."""
    asks_only = Plan(asks_now(snapshot, policy), price_per_hour=fleet.price_per_hour(snapshot, policy))
    stale, unsafe = stale_clouds(snapshot, policy), unsafe_clouds(snapshot, policy)
    stands_still = why_standstill(snapshot, policy, stale, unsafe)
    if stands_still is not None:
        return replace(asks_only, stands_still=stands_still, again_at_s=safe_mode_ends_s(snapshot, policy))
    if (paused := snapshot.operator.steering.paused) is not None:
        reason = with_words(because(Code.PAUSED, by=paused.by, since_at=paused.at), paused)
        return replace(asks_only, stands_still=reason, is_paused=True)
    if closed := closed_clouds(snapshot, policy, stale, unsafe):
        snapshot = replace(snapshot, sources=replace(snapshot.sources, closed_clouds=closed))
    if (change := slot_types.order_for_slots(snapshot, policy)) is not None:
        return replace(asks_only, actions=(change,))
    return _plan_fleet(snapshot, policy, asks_only)


def _plan_fleet(snapshot: Snapshot, policy: Policy, asks_only: Plan) -> Plan:
    """The plan with the step of each node, the purchases, and the orders for jobs."""
    quiet = is_settled(snapshot, policy)
    basis, bursting = _basis(snapshot, policy, asks_only.price_per_hour, quiet=quiet)
    settling = None if quiet else because(Code.SETTLING, settles_at_s=settles_at_s(snapshot, policy))
    steps = _step_nodes(basis, settling)
    boots = boot_orders(basis, bursting) if quiet else ()
    reasons = {id_: step.reason for id_, step in steps.steps.items()}
    reasons |= {boot.launch.id: boot.reason for boot in boots}
    orders = [step.action for step in steps.steps.values() if step.action is not None]
    return replace(
        asks_only,
        asks=(*asks_only.asks, *sweeps_now(snapshot, policy)),
        actions=(
            *orders,
            *stray_orders(snapshot, policy),
            *requeue_orders(snapshot, policy),
            *copy_orders(snapshot),
            *bursting.orders,
            *(hold_orders(snapshot, policy, basis.placement) if may_hold(snapshot, policy) else ()),
            *boots,
        ),
        jobs=_job_reasons(basis, settling),
        nodes=NodeReasons(snapshot.nodes, reasons, rest=BUSY, resting=steps.resting),
        settled=quiet,
        again_at_s=min(
            steps.again_at_s,
            strays_change_s(snapshot, policy),
            copies_change_s(snapshot),
            purchases_change_s(basis),
            basis.upkeep.again_at_s,
            basis.emptying.again_at_s,
            safe_mode_ends_s(snapshot, policy),
        ),
        calls_held=any(step.held for step in steps.steps.values()),
        due=basis.upkeep.due,
        basis=basis,
        bursts=bursting,
    )


def _basis(snapshot: Snapshot, policy: Policy, price: Decimal, *, quiet: bool) -> tuple[Basis, Bursts]:
    """What the plan is made from, and the jobs to send to peers, which then ask for no nodes here."""
    away = jobs_away(snapshot) if policy.bursts or snapshot.peers.ordered else {}
    basis = Basis(without_jobs(snapshot, away), policy, price)
    if not (policy.bursts and quiet and basis.queue.batches):
        return basis, Bursts()
    weighed = bursts(basis.snapshot, policy, basis.placement)
    if not weighed.orders:
        return basis, weighed
    leaving = {order.job: order.reason for order in weighed.orders}
    return Basis(without_jobs(basis.snapshot, leaving), policy, price), weighed


def _step_nodes(basis: Basis, settling: Reason | None) -> FleetSteps:
    """Give each node that needs a decision its next step."""
    snapshot, policy, upkeep = basis.snapshot, basis.policy, basis.upkeep
    unsent = unsent_leases.review(basis, settling)
    node_index = node_index_of(snapshot)
    leaving = sum(node_index.count_by_state.get(state, 0) for state in LEAVING)
    leaving -= count_held(snapshot, NodeState.DRAINING)
    ended = {id_ for id_, reviewed in unsent.items() if reviewed.ends}
    ended |= {node.id for node in unsent_leases.ending_leases(snapshot)}
    context = StepContext(
        snapshot=snapshot,
        policy=policy,
        jobs=Claims(basis, ended),
        unsent=unsent,
        count_live=sum(node_index.count_by_type.values()) - leaving - len(ended),
        count_usable=count_usable(snapshot, policy),
        count_ready=count_ready(snapshot, policy, basis.needs.needed, ended) if policy.has_spares else {},
        overspent=basis.overspent,
        overspent_clouds=basis.placement.limits.overspent_clouds if policy.budgets else {},
        allowance=Allowance(snapshot, policy, sent_only=True),
        create_credit={it: create_credit(snapshot, policy, it) for it in policy.cloud_names},
        create_calls={it: create_calls(snapshot, policy, it) for it in policy.cloud_names},
        cloud_calls_left=_cloud_calls_left(snapshot, policy),
        upkeep=upkeep,
        emptying=basis.emptying,
        of_types=counts_of_types(snapshot, policy, ended),
    )
    if policy.stacked:
        order_nodes(context)
    return step_nodes(context)


def _cloud_calls_left(snapshot: Snapshot, policy: Policy) -> dict[CloudName, int]:
    """How many more nodes of each cloud may be created, or destroyed if that takes a call for each."""
    calls = {cloud: policy.calls_of(cloud) for cloud in policy.cloud_names}
    left = {cloud: it.calls_in_flight_max * it.nodes_per_create for cloud, it in calls.items()}
    for node in calls_in_flight(snapshot, CallKind.CREATE, CallKind.DESTROY):
        cloud = policy.cloud_of(node.launch)
        creates = node.call is not None and node.call.kind is CallKind.CREATE
        if cloud in left and (creates or calls[cloud].nodes_per_destroy == 1):
            left[cloud] -= 1
    return left


def _job_reasons(basis: Basis, settling: Reason | None) -> Mapping[JobId, Reason]:
    """Why each waiting job waits."""
    snapshot = basis.snapshot
    if not (basis.queue.batches or basis.queue.withheld or snapshot.queues.unreadable):
        return {}
    delays = boot_delays(node_index_of(snapshot).to_check.values())
    return JobReasons(snapshot.jobs, lambda: basis.placement, settling, delays)
