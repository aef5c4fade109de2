"""Decide what to do now, and why: ``plan(snapshot, policy)``.

1. Ask the outside for missing facts: the claim, fresh lists, records to be written (``asks``).
2. Decide nothing on stale data, or while another manager acts (``planner.trust``).
3. Place the waiting jobs (``placement``): first on nodes that are up, as Flux's scheduler will seat them; then on
   nodes that can be kept or will soon be free; the rest on booting and new nodes, at the least cost. New nodes are
   bought only once the queue has settled.
4. Give each node its next step (``steps``). A draining node that is wanted again is undrained before anything
   is bought.

The same snapshot always gives the same plan, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.jobs import JobId, Unserved
from nodemanager.core.nodes import LEAVING, CallKind, LaunchId, NodeState, launch_id
from nodemanager.core.orders import (
    BootNode,
    ChangeSlots,
    ClaimInstance,
    CreateNode,
    DelegateJob,
    DestroyNode,
    EndLease,
    HoldJobs,
    KeepSpend,
    KeepSteering,
    ListCloud,
    LookAtRanks,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    SweepCloud,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.records import with_words
from nodemanager.core.slots import CloudName, TypeName
from nodemanager.planner import billing, free_room, leases, slot_types, spending
from nodemanager.planner.backoff import Allowance, group_of, retry_at_s, zones_passed_over
from nodemanager.planner.basis import Basis, Claims, spare_purchases
from nodemanager.planner.billing import prepaid_left
from nodemanager.planner.breakers import purchase_warnings, record_retry_s, why_no_purchases
from nodemanager.planner.budget import budget_changes_s
from nodemanager.planner.burst import Bursts, bursts, jobs_away, without_jobs
from nodemanager.planner.frozen import lazy_property, replace
from nodemanager.planner.leases import new_launch, stray_orders, strays_change_s
from nodemanager.planner.limits import hold_orders
from nodemanager.planner.node_health import count_ready, count_usable, counts_of_types
from nodemanager.planner.node_index import calls_in_flight, node_index_of, with_node_index
from nodemanager.planner.node_steps import BUSY, order_nodes
from nodemanager.planner.operator import count_held
from nodemanager.planner.placement import Purchase
from nodemanager.planner.policy import Policy
from nodemanager.planner.reasons import JobReasons, NodeReasons, boot_delays, figures_of_new, type_reasons, warnings
from nodemanager.planner.requeue import CopyOrder, copies_change_s, copy_orders, requeue_orders
from nodemanager.planner.snapshot import Snapshot, Source
from nodemanager.planner.stack import places_between
from nodemanager.planner.step_context import NodeAction, StepContext
from nodemanager.planner.steps import FleetSteps, step_nodes
from nodemanager.planner.timings import create_calls, create_credit
from nodemanager.planner.trust import (
    closed_clouds,
    is_settled,
    safe_mode_ends_s,
    settles_at_s,
    stale_clouds,
    unsafe_clouds,
    why_standstill,
)
from nodemanager.planner.upkeep import DueNode

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
    no_purchases: Reason | None = None  # why no node is bought, whatever the jobs need; None if one may be
    faults: tuple[Reason, ...] = ()  # warnings that hold even while nothing is decided
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
        if basis is not None and self.no_purchases is not None:
            return dict.fromkeys(basis.policy.types, self.no_purchases)
        return type_reasons(basis.policy, basis.placement, basis.needs) if basis is not None else {}

    @lazy_property
    def warnings(self) -> tuple[Reason, ...]:
        """What the site's administrator should fix."""
        basis = self.basis
        if basis is None:
            return self.faults
        return *self.faults, *warnings(basis.snapshot, basis.policy, basis.placement, basis.needs)

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
        case RecordLaunches():
            return None
        case _:
            nodes = (snapshot.nodes.get(id_) for id_ in action.launch_ids)
            return next((node.launch.type_name for node in nodes if node is not None), None)


def _decide(snapshot: Snapshot, policy: Policy) -> Plan:
    """The plan for the types that act under this policy."""
    asks_only = Plan(
        asks_now(snapshot, policy),
        price_per_hour=billing.fleet_price_per_hour(snapshot, policy),
        no_purchases=why_no_purchases(snapshot),
        faults=tuple(purchase_warnings(snapshot)),
    )
    stale, unsafe = stale_clouds(snapshot, policy), unsafe_clouds(snapshot, policy)
    stands_still = why_standstill(snapshot, policy, stale, unsafe)
    if stands_still is not None:
        return replace(asks_only, stands_still=stands_still, again_at_s=safe_mode_ends_s(snapshot, policy))
    if (paused := snapshot.operator.steering.paused) is not None:
        reason = with_words(because(Code.PAUSED, by=paused.by, since_at=paused.at), paused)
        return replace(asks_only, stands_still=reason, is_paused=True)
    if closed := closed_clouds(snapshot, policy, stale, unsafe):
        snapshot = replace(snapshot, sources=replace(snapshot.sources, closed_clouds=closed))
    if snapshot.slots.wish is not None or snapshot.slots.to_promise:
        change = slot_types.order_for_slots(snapshot, policy)
        if change is not None:
            return replace(asks_only, actions=(change,))
    return _plan_fleet(snapshot, policy, asks_only)


def _plan_fleet(snapshot: Snapshot, policy: Policy, asks_only: Plan) -> Plan:
    """The plan with the step of each node, the purchases, and the orders for jobs."""
    quiet = is_settled(snapshot, policy)
    basis, bursting = _basis(snapshot, policy, asks_only.price_per_hour, quiet=quiet)
    not_yet = None if quiet else because(Code.SETTLING, settles_at_s=settles_at_s(snapshot, policy))
    not_bought = asks_only.no_purchases or not_yet
    steps = _step_nodes(basis, not_yet, asks_only.no_purchases)
    boots = boot_orders(basis, bursting) if not_bought is None else ()
    reasons = {id_: step.reason for id_, step in steps.steps.items()}
    reasons |= {boot.launch.id: boot.reason for boot in boots}
    orders = [step.action for step in steps.steps.values() if step.action is not None]
    return replace(
        asks_only,
        asks=(*asks_only.asks, *sweeps_now(snapshot, policy)),
        actions=(
            *orders,
            *stray_orders(snapshot, policy),
            *(requeue_orders(snapshot, policy) if node_index_of(snapshot).to_check else ()),
            *(copy_orders(snapshot) if basis.queue.copies else ()),
            *bursting.orders,
            *(hold_orders(snapshot, policy, basis.placement) if _may_hold(snapshot, policy) else ()),
            *boots,
        ),
        jobs=_job_reasons(basis, asks_only.no_purchases, not_yet),
        nodes=NodeReasons(snapshot.nodes, reasons, rest=BUSY, resting=steps.resting),
        settled=quiet,
        again_at_s=min(
            steps.again_at_s,
            strays_change_s(snapshot, policy),
            copies_change_s(snapshot) if snapshot.queues.copy_calls else inf,
            purchases_change_s(basis),
            basis.upkeep.again_at_s,
            basis.emptying.again_at_s,
            safe_mode_ends_s(snapshot, policy),
            record_retry_s(snapshot),
        ),
        calls_held=any(step.held for step in steps.steps.values()),
        due=basis.upkeep.due,
        basis=basis,
        bursts=bursting,
    )


def _may_hold(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether any job may have to be held or released. If not, no placement is needed to know it."""
    learned = snapshot.learned
    may = policy.rules.unserved is Unserved.HOLD or policy.budgets or learned.drain_streaks or learned.gangs
    return bool(may or snapshot.queues.held_jobs)


def _basis(snapshot: Snapshot, policy: Policy, price: Decimal, *, quiet: bool) -> tuple[Basis, Bursts]:
    """What the plan is made from, and the jobs to send to peers, which then ask for no nodes here."""
    away = jobs_away(snapshot) if policy.bursts or snapshot.peers.ordered else {}
    basis = Basis(without_jobs(snapshot, away) if away else snapshot, policy, price)
    if not (policy.bursts and quiet and basis.queue.batches):
        return basis, Bursts()
    weighed = bursts(basis.snapshot, policy, basis.placement)
    if not weighed.orders:
        return basis, weighed
    leaving = {order.job: order.reason for order in weighed.orders}
    return Basis(without_jobs(basis.snapshot, leaving), policy, price), weighed


def _step_nodes(basis: Basis, settling: Reason | None, no_purchases: Reason | None) -> FleetSteps:
    """Give each node that needs a decision its next step."""
    snapshot, policy, upkeep = basis.snapshot, basis.policy, basis.upkeep
    unsent = leases.review(basis, settling, no_purchases)
    node_index = node_index_of(snapshot)
    leaving = sum(node_index.count_by_state.get(state, 0) for state in LEAVING)
    leaving -= count_held(snapshot, NodeState.DRAINING) if snapshot.operator.steering.holds else 0
    ended = {id_ for id_, reviewed in unsent.items() if reviewed.ends}
    ended |= {node.id for node in leases.ending_leases(snapshot)}
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


def _job_reasons(basis: Basis, no_purchases: Reason | None, settling: Reason | None) -> Mapping[JobId, Reason]:
    """Why each waiting job waits."""
    snapshot = basis.snapshot
    if not (basis.queue.batches or basis.queue.withheld or snapshot.queues.unreadable):
        return {}
    delays = boot_delays(node_index_of(snapshot).to_check.values())
    return JobReasons(
        snapshot.jobs, lambda: basis.placement, no_purchases or settling, delays, is_fault=no_purchases is not None
    )


# --- the orders to create nodes: for jobs, to replace others, and as spares -------------------------------


def boot_orders(basis: Basis, weighed: Bursts) -> tuple[BootNode, ...]:
    """The orders for nodes that are bought now, in their order. ``weighed``: the jobs weighed against the peers."""
    snapshot, policy, needs = basis.snapshot, basis.policy, basis.needs
    extra = policy.has_spares or policy.limits.nodes_min > 0 or bool(policy.limited_types)
    spares = spare_purchases(snapshot, policy, basis.purchaser, needs) if extra else []
    wanted = [
        *((purchase, _demand(purchase, weighed, basis)) for purchase in needs.purchases),
        *basis.upkeep_purchases,
        *spares,
    ]
    if not wanted:
        return ()
    if policy.stacked:
        wanted = _in_order(wanted, basis)
    # Quotas and breakers may allow fewer nodes than the placement asks for. The rest is not bought now.
    allowance = basis.placement.supply.allowance()
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
    for shape, span_s, _, _ in purchase.load:
        if shape.near is not None and (near := figures_of_new(shape, span_s, node_type, basis.placement)):
            reason = reason.with_figures(**near)
            break
    if not weighed.not_taken:
        return reason
    not_taken = next(filter(None, map(weighed.describe_not_taken, purchase.serves)), "")
    return reason.with_figures(not_taken=not_taken) if not_taken else reason


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


def purchases_change_s(basis: Basis) -> float:
    """When time alone may change the purchases, or the drains because the budget is spent."""
    snapshot, policy = basis.snapshot, basis.policy
    jobs_wait = bool(basis.queue.batches)
    room_s = free_room.room_changes_s(snapshot, policy, basis.queue) if jobs_wait else inf
    budget_s = budget_changes_s(snapshot, policy, jobs_wait) if policy.budgets else inf
    return min(retry_at_s(snapshot), room_s, budget_s)


# --- what to ask the outside, and when: the claim, fresh lists, and records to be written -----------------
#
# A source is asked again only after its answer, its deadline or its retry time.


IN_TRANSITION = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST, NodeState.STOPPING)

CLAIM, LOOK = ClaimInstance(), LookAtRanks()

Ask = ClaimInstance | LookAtRanks | ListCloud | SweepCloud | KeepSteering | KeepSpend


def asks_now(snapshot: Snapshot, policy: Policy) -> tuple[Ask, ...]:
    """What to ask now, in this order."""
    return tuple(ask for ask, due_s in _due_times(snapshot, policy) if due_s <= snapshot.now_s)


def sweeps_now(snapshot: Snapshot, policy: Policy) -> tuple[SweepCloud, ...]:
    """The sweeps for leftovers that are due. Never while another manager acts: a sweep deletes."""
    return tuple(
        SweepCloud(name)
        for name in policy.cloud_names
        if name not in snapshot.closed_clouds and _sweep_due_s(name, snapshot, policy) <= snapshot.now_s
    )


def next_ask_s(snapshot: Snapshot, policy: Policy) -> float:
    """When the next ask is due, or the deadline of one passes; infinity if neither is known."""
    writes = snapshot.operator.steering_write, snapshot.spending.write, snapshot.queues.hold_write
    clouds = (account.source for account in snapshot.accounts.values())
    answers = (snapshot.sources.claim, snapshot.sources.flux, *clouds, *writes)
    moments = [due_s for _, due_s in _due_times(snapshot, policy)]
    moments += [source.answer_due_s for source in answers if source.answer_due_s is not None]
    moments += [_sweep_due_s(name, snapshot, policy) for name in policy.cloud_names]
    moments.append(snapshot.queues.hold_write.retry_s)
    return min((at_s for at_s in moments if at_s > snapshot.now_s), default=inf)


def _due_times(snapshot: Snapshot, policy: Policy) -> Iterator[tuple[Ask, float]]:
    """Everything that is to be asked, and when."""
    if not snapshot.sources.claimed:
        yield CLAIM, _not_before(-inf, snapshot.sources.claim)
    look_s = (
        -inf
        if snapshot.news.look_due_since_s is not None
        else _stale_at_s(snapshot.sources.flux, policy.timing.probe_s)
    )
    yield LOOK, _not_before(look_s, snapshot.sources.flux)
    list_every_s = _list_every_s(snapshot, policy)
    for name in policy.cloud_names:
        cloud = snapshot.account_of(name).source
        list_s = -inf if cloud.news_s is not None else _stale_at_s(cloud, list_every_s)
        yield ListCloud(name), _not_before(list_s, cloud)
    if snapshot.sources.claimed and snapshot.operator.steering != snapshot.operator.steering_on_record:
        yield KeepSteering(snapshot.operator.steering), _not_before(-inf, snapshot.operator.steering_write)
    spend_s = spending.write_spend_at_s(snapshot, policy) if policy.budgets else None
    if spend_s is not None:
        yield KeepSpend(spending.current_spend(snapshot)), _not_before(spend_s, snapshot.spending.write)


def _sweep_due_s(cloud: CloudName, snapshot: Snapshot, policy: Policy) -> float:
    swept_s = snapshot.account_of(cloud).swept_s
    return -inf if swept_s is None else swept_s + policy.timing.sweep_s


def _not_before(due_s: float, source: Source) -> float:
    """When a source may be asked that is to be asked at ``due_s``; infinity while its answer is awaited."""
    return max(due_s, source.retry_s) if source.answer_due_s is None else inf


def _stale_at_s(source: Source, age_s: float) -> float:
    return -inf if source.seen_s is None else source.seen_s + age_s


def _list_every_s(snapshot: Snapshot, policy: Policy) -> float:
    """How often to list the cloud: often while nodes boot or stop, else only now and then as a check."""
    node_index = node_index_of(snapshot)
    moving = (
        any(node_index.count_by_state.get(state) for state in IN_TRANSITION)
        or any(account.strays or account.doubted_lists for account in snapshot.accounts.values())
        or any(node.listing.absences for node in node_index.to_check.values())
    )
    return policy.timing.probe_s if moving else policy.timing.relist_s
