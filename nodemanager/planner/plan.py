"""Decide what to do now, and why: ``plan(snapshot, policy)``. Read this first.

1. Ask the outside for what is missing: the claim, fresh lists, records to be written (``asks``).
2. Decide nothing on stale data, or while another manager acts (:func:`_why_standstill`).
3. Place the waiting jobs (``placement``): first on nodes that are up, as Flux's scheduler will seat them; then on
   nodes that can be kept or will soon be free; the rest on booting and new nodes, at the least cost. New nodes are
   bought only once the queue has settled.
4. Give each node its next step (``steps``). A draining node that is wanted again is undrained before anything
   is bought.

The same snapshot always gives the same plan, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LEAVING, USABLE, CallKind, LaunchId, NodeState, launch_id
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
from nodemanager.core.slots import CloudName, NodeType, SlotName, TypeName
from nodemanager.planner import slot_types, unsent_leases
from nodemanager.planner.asks import Ask, asks_now, sweeps_now
from nodemanager.planner.backoff.allowance import Allowance, retry_at_s
from nodemanager.planner.backoff.zones import group_of, zones_passed_over
from nodemanager.planner.closed_clouds import closed_clouds, stale_clouds, unsafe_clouds, why_stale
from nodemanager.planner.cost import fleet
from nodemanager.planner.cost.budget import budget_changes_s
from nodemanager.planner.cost.prepaid import prepaid_left
from nodemanager.planner.health.safe_mode import safe_mode_ends_s
from nodemanager.planner.limits.holds import hold_orders, may_hold
from nodemanager.planner.limits.make_room import make_room
from nodemanager.planner.limits.type_limits import TypeCounts, type_counts
from nodemanager.planner.limits.within_budget import place_within_budget
from nodemanager.planner.observe.operator import count_held, with_words
from nodemanager.planner.outcome import FleetNeeds, JobReasons, NodeReasons, Purchase, boot_delays, fleet_needs
from nodemanager.planner.peers.burst import Bursts, bursts, jobs_away, without_jobs
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.requeue import CopyOrder, copies_change_s, copy_orders, requeue_orders
from nodemanager.planner.spares import Purchaser, count_of_types, count_ready, count_usable, spare_purchases
from nodemanager.planner.stacked.growth import places_between
from nodemanager.planner.state.frozen import lazy_property, replace
from nodemanager.planner.state.node_index import calls_in_flight, node_index_of, with_node_index
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import QueueIndex, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.steps.busy import BUSY
from nodemanager.planner.steps.context import LeaseReview, NodeAction, StepContext
from nodemanager.planner.steps.fleet import FleetSteps, step_nodes
from nodemanager.planner.steps.leaving import order_nodes
from nodemanager.planner.strays import new_launch, stray_orders, strays_change_s
from nodemanager.planner.supply import free_room
from nodemanager.planner.supply.refill import dear_nodes
from nodemanager.planner.type_reasons import type_reasons, warnings
from nodemanager.planner.upkeep.consolidation import Emptying, plan_emptying
from nodemanager.planner.upkeep.turns import DueNode, UpkeepPlan, plan_giving_back, plan_upkeep

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
class Basis:
    """What a plan is made from, kept to explain it later. The jobs are placed on first use.

    While no job waits, a plan needs no placement, unless spares or ``nodes_min`` have to be bought.
    """

    snapshot: Snapshot
    policy: Policy
    price_per_hour: Decimal

    @lazy_property
    def placement(self) -> Placement:
        """Where each job runs."""
        return place_within_budget(self.snapshot, self.policy, self.price_per_hour)

    @lazy_property
    def needs(self) -> FleetNeeds:
        """The nodes that waiting jobs need, and those to buy for them."""
        return fleet_needs(self.snapshot.jobs, self.placement) if self.queue.batches else FleetNeeds()

    @lazy_property
    def queue(self) -> QueueIndex:
        """The waiting jobs."""
        return queue_index_of(self.snapshot.jobs, self.snapshot.indexes.queue)

    @lazy_property
    def purchaser(self) -> Purchaser:
        """Buys what no job needs, from what the jobs leave of the limits."""
        return Purchaser(self.placement.supply, self.placement, self.needs)

    @lazy_property
    def upkeep(self) -> tuple[UpkeepPlan, tuple[tuple[Purchase, Reason], ...]]:
        """What upkeep does now, and what it buys."""
        if self.policy.stacked:  # no single node of a stack can be replaced
            return plan_giving_back(self.snapshot, self.policy), ()
        if self.overspent is not None:
            return UpkeepPlan(), ()
        bought: list[Purchase] = []

        def can_buy(node_type: NodeType) -> bool:
            purchase = self.purchaser.buy(node_type)
            bought.extend([purchase] if purchase is not None else [])
            return purchase is not None

        made = plan_upkeep(self.snapshot, self.policy, lambda: self.needs.needed, can_buy)
        return made, tuple(zip(bought, (why for _, why in made.to_buy), strict=True))

    @lazy_property
    def emptying(self) -> Emptying:
        """Which nodes take no new job so that they empty."""
        if self.overspent is not None or self.policy.stacked or not self.policy.upkeep.consolidate:
            return Emptying()
        dear = dear_nodes(self.placement.supply)
        return plan_emptying(self.snapshot, self.policy, self.needs.needed, self.upkeep[0].leaving, dear)

    @property
    def overspent(self) -> Reason | None:
        """Why all nodes leave: the budget is spent."""
        return self.placement.overspent if self.policy.budgets else None


@dataclass(frozen=True)
class _Claims:
    """What the waiting jobs want of the nodes. ``ended``: leases that end now."""

    basis: Basis
    ended: Collection[LaunchId]

    @property
    def needed(self) -> Mapping[SlotName, tuple[JobId, ...]]:
        return self.basis.needs.needed

    @lazy_property
    def makes_room(self) -> tuple[JobId, frozenset[LaunchId]] | None:
        basis = self.basis
        if not basis.queue.batches:
            return None
        return make_room(basis.snapshot, basis.policy, basis.placement, self.needed, self.ended)

    @lazy_property
    def want_more(self) -> bool:
        basis = self.basis
        if not basis.queue.batches:
            return False
        placement = basis.placement
        return bool(basis.needs.purchases) or placement.stuck is not None or bool(placement.unserved)


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
    asks = asks_now(snapshot, policy)
    price = fleet.price_per_hour(snapshot, policy)
    stale, unsafe = stale_clouds(snapshot, policy), unsafe_clouds(snapshot, policy)
    stands_still = _why_standstill(snapshot, policy, stale, unsafe)
    if stands_still is not None:
        ends_s = safe_mode_ends_s(snapshot, policy)
        return Plan(asks, stands_still=stands_still, price_per_hour=price, again_at_s=ends_s)
    if (paused := snapshot.operator.steering.paused) is not None:
        reason = with_words(because(Code.PAUSED, by=paused.by, since_at=paused.at), paused)
        return Plan(asks, stands_still=reason, is_paused=True, price_per_hour=price)
    if closed := closed_clouds(snapshot, policy, stale, unsafe):
        snapshot = replace(snapshot, sources=replace(snapshot.sources, closed_clouds=closed))
    if not calls_in_flight(snapshot, CallKind.RECORD, CallKind.END_LEASE):
        if snapshot.slots.wish is not None:
            answer = slot_types.answer_wish(snapshot.slots.wish, snapshot, policy)
            return Plan(asks, actions=(answer,), price_per_hour=price)
        if (redeclared := slot_types.redeclare_type(snapshot, policy)) is not None:
            return Plan(asks, actions=(redeclared,), price_per_hour=price)
    quiet = is_settled(snapshot, policy)
    basis, bursting = _basis(snapshot, policy, price, quiet=quiet)
    settling = None if quiet else because(Code.SETTLING, settles_at_s=settles_at_s(snapshot, policy))
    steps = _step_nodes(basis, settling)
    boots = _boot_orders(basis, bursting) if quiet else ()
    reasons = {id_: step.reason for id_, step in steps.steps.items()}
    reasons |= {boot.launch.id: boot.reason for boot in boots}
    orders = [step.action for step in steps.steps.values() if step.action is not None]
    return Plan(
        asks=(*asks, *sweeps_now(snapshot, policy)),
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
        price_per_hour=price,
        again_at_s=min(
            steps.again_at_s,
            strays_change_s(snapshot, policy),
            copies_change_s(snapshot),
            _purchases_change_s(basis),
            basis.upkeep[0].again_at_s,
            basis.emptying.again_at_s,
            safe_mode_ends_s(snapshot, policy),
        ),
        calls_held=any(step.held for step in steps.steps.values()),
        due=basis.upkeep[0].due,
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


# --- standing still ---------------------------------------------------------------------------------------


def _why_standstill(
    snapshot: Snapshot, policy: Policy, stale: Mapping[CloudName, Reason], unsafe: Mapping[CloudName, Reason]
) -> Reason | None:
    """Why nothing may be decided now, apart from a pause; None if something may."""
    if not snapshot.sources.claimed:
        return because(
            Code.NOT_THE_ACTOR, why=snapshot.sources.claim.failure or "the instance has not been claimed yet"
        )
    if snapshot.slots.wish_due_s is not None:
        return because(Code.SLOTS_CHANGING)
    for name, source in (("queue", snapshot.sources.queue), ("flux", snapshot.sources.flux)):
        if (why := why_stale(name, source, snapshot, policy)) is not None:
            return why
    # One cloud that cannot be used stops nothing of the others.
    if len(stale) == len(policy.cloud_names):
        return next(iter(stale.values()))
    if snapshot.slots.mismatch is not None:
        return snapshot.slots.mismatch
    unusable = {**unsafe, **stale}
    return next(iter(unusable.values())) if len(unusable) == len(policy.cloud_names) else None


# --- settling ---------------------------------------------------------------------------------------------


def settles_at_s(snapshot: Snapshot, policy: Policy) -> float:
    """When the queue will have been quiet long enough to buy nodes for it, if nothing else happens.

    Two waits apply. The longer one (``settle_s``) gives jobs that are submitted together time to arrive. The short
    one (``quiet_s``) follows any change. It keeps a job from being counted as both waiting and running: its start
    is reported by the ranks and by the queue, a moment apart. Neither wait exceeds ``settle_max_s``.
    """
    quiet_s = snapshot.news.changed_s + policy.fixed.quiet_s
    if snapshot.news.newest_job_s is not None:
        quiet_s = max(quiet_s, snapshot.news.newest_job_s + policy.timing.settle_s)
    if snapshot.news.unsettled_s is not None:
        quiet_s = min(quiet_s, snapshot.news.unsettled_s + policy.timing.settle_max_s)
    return quiet_s


def is_settled(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it is time to buy: the queue is quiet, and the ranks were read since they last changed.

    The list of stopped queues must also be current. A queue may have been stopped while the instance was
    unreachable or had no scheduler, which hides it. So the list must be newer than that.
    """
    if (
        snapshot.sources.unreachable_s is not None
        and (snapshot.queues.asked_s or 0.0) < snapshot.sources.unreachable_s
    ):
        return False
    overdue = (
        snapshot.news.unsettled_s is not None
        and snapshot.now_s - snapshot.news.unsettled_s >= policy.timing.settle_max_s
    )
    looked = snapshot.news.look_due_since_s is None or overdue
    return looked and snapshot.now_s >= settles_at_s(snapshot, policy)


# --- deciding ---------------------------------------------------------------------------------------------


def _step_nodes(basis: Basis, settling: Reason | None) -> FleetSteps:
    """Give each node that needs a decision its next step."""
    snapshot, policy, upkeep = basis.snapshot, basis.policy, basis.upkeep[0]
    unsent = _review_unsent(basis, settling)
    node_index = node_index_of(snapshot)
    leaving = sum(node_index.count_by_state.get(state, 0) for state in LEAVING)
    leaving -= count_held(snapshot, NodeState.DRAINING)
    ended = {id_ for id_, reviewed in unsent.items() if reviewed.ends}
    ended |= {node.id for node in unsent_leases.ending_leases(snapshot)}
    context = StepContext(
        snapshot=snapshot,
        policy=policy,
        jobs=_Claims(basis, ended),
        unsent=unsent,
        count_live=sum(node_index.count_by_type.values()) - leaving - len(ended),
        count_usable=count_usable(snapshot, policy),
        count_ready=count_ready(snapshot, policy, basis.needs.needed, ended) if policy.has_spares else {},
        overspent=basis.overspent,
        allowance=Allowance(snapshot, policy, sent_only=True),
        create_credit={it: fleet.create_credit(snapshot, policy, it) for it in policy.cloud_names},
        cloud_calls_left=_cloud_calls_left(snapshot, policy),
        upkeep=upkeep,
        emptying=basis.emptying,
        of_types=_counts_of_types(snapshot, policy, ended),
    )
    if policy.stacked:
        order_nodes(context)
    return step_nodes(context)


def _counts_of_types(snapshot: Snapshot, policy: Policy, ended: Collection[LaunchId]) -> TypeCounts:
    """The nodes of the types that have limits of their own."""
    if not policy.limited_types:
        return TypeCounts()
    live = Counter(
        node.launch.type_name
        for node in snapshot.nodes.values()
        if node.may_be_billed and node.state not in LEAVING and node.id not in ended
    )
    return type_counts(policy.limited_types, count_of_types(snapshot, policy, USABLE), live)


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


def _review_unsent(basis: Basis, settling: Reason | None) -> Mapping[LaunchId, LeaseReview]:
    """The leases for which no create is sent now."""
    leases = unsent_leases.leases_without_create(basis.snapshot)
    if not leases:
        return {}
    return unsent_leases.review(
        leases,
        basis.snapshot,
        basis.policy,
        basis.price_per_hour,
        basis.placement,
        basis.needs,
        settling,
        basis.upkeep[0].awaited,
    )


def _job_reasons(basis: Basis, settling: Reason | None) -> Mapping[JobId, Reason]:
    """Why each waiting job waits."""
    snapshot = basis.snapshot
    if not (basis.queue.batches or basis.queue.withheld or snapshot.queues.unreadable):
        return {}
    delays = boot_delays(node_index_of(snapshot).to_check.values())
    return JobReasons(snapshot.jobs, lambda: basis.placement, settling, delays)


def _boot_orders(basis: Basis, weighed: Bursts) -> tuple[BootNode, ...]:
    snapshot, policy, needs = basis.snapshot, basis.policy, basis.needs
    extra = policy.has_spares or policy.limits.nodes_min > 0 or bool(policy.limited_types)
    spares = spare_purchases(snapshot, policy, basis.purchaser, needs) if extra else []
    wanted = [
        *((purchase, _demand(purchase, weighed, basis)) for purchase in needs.purchases),
        *basis.upkeep[1],
        *spares,
    ]
    if not wanted:
        return ()
    if policy.stacked:
        wanted = _in_order(wanted, basis)
    # Quotas and breakers may allow fewer nodes than the placement asks for. The rest is not bought now.
    allowance = Allowance(snapshot, policy)
    prepaid = prepaid_left(snapshot, policy)
    return tuple(
        _boot_order(purchase, reason, snapshot, policy, prepaid)
        for purchase, reason in wanted
        if allowance.take(purchase.node_type)
    )


def _in_order(wanted: Sequence[tuple[Purchase, Reason]], basis: Basis) -> list[tuple[Purchase, Reason]]:
    """The purchases from the lowest slot up, and those of the slots between them."""
    placement = basis.placement
    by_slot = {purchase.place[0]: (purchase, reason) for purchase, reason in wanted}
    fills, reached = places_between(
        by_slot.keys(), placement.supply, placement.allocation.nodes_left, placement.price_left
    )
    highest = max(reached, key=lambda slot: by_slot[slot][0].place[1], default=None)
    found = [by_slot[slot] for slot in reached]
    if highest is not None:
        reason = because(Code.FILLS_A_GAP, node=highest)
        found += [(Purchase(place, node_type, "", (), 0), reason) for place, node_type in fills]
    return sorted(found, key=lambda it: it[0].place[1])


def _demand(purchase: Purchase, weighed: Bursts, basis: Basis) -> Reason:
    node_type, zone = purchase.node_type, purchase.zone
    reason = because(Code.DEMAND, node_type=node_type.name, job_count=purchase.job_count)
    if group := group_of(node_type, zone, basis.policy.cluster_uuid):
        reason = reason.with_figures(group=group)
        if passed_over := zones_passed_over(node_type, zone, basis.snapshot):
            reason = reason.with_figures(passed_over=passed_over)
    if not weighed.not_taken:
        return reason
    not_taken = next(filter(None, map(weighed.describe_not_taken, purchase.serves)), "")
    return reason.with_figures(not_taken=not_taken) if not_taken else reason


def _purchases_change_s(basis: Basis) -> float:
    """When time alone may change what is bought, or what is drained because the budget is spent."""
    snapshot, policy = basis.snapshot, basis.policy
    jobs_wait = bool(basis.queue.batches)
    room_s = free_room.room_changes_s(snapshot, policy, basis.queue) if jobs_wait else inf
    return min(retry_at_s(snapshot), room_s, budget_changes_s(snapshot, policy, jobs_wait))


def _boot_order(
    purchase: Purchase, reason: Reason, snapshot: Snapshot, policy: Policy, prepaid: dict[TypeName, int]
) -> BootNode:
    """``prepaid``: how many further nodes of each type cost nothing; updated."""
    slot = purchase.place[0]
    id_ = launch_id(slot, f"{int(snapshot.wall_at * 1000):x}")
    launch = new_launch(id_, slot, snapshot, purchase.node_type, snapshot.wall_at, policy, purchase.zone)
    if prepaid.get(launch.type_name, 0) > 0:
        prepaid[launch.type_name] -= 1
        launch = replace(launch, prepaid=True)
    return BootNode(launch, purchase.serves, reason, purchase.load)
