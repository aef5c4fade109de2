"""What is to be done now, and why: ``plan(snapshot, policy)``. Read this first.

1. What must be asked of the outside is asked (:func:`_asks`).
2. On stale data, or while another manager acts, nothing is decided (:func:`_standstill`).
3. The waiting jobs are laid out (``layout``): on what is up, as the scheduler will seat them; on what can be kept,
   or will soon be free; what is short, on the nodes that come and on new ones, at the least cost. Those are bought,
   but only once the queue has settled.
4. Each node takes its next step (``steps``): one that drains and is wanted again is undrained before anything is
   bought.

The same snapshot always gives the same plan, in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import CallKind, FluxRank, Identity, Launch, LaunchId, NodeState
from nodemanager.core.orders import (
    BootNode,
    ChangeSlots,
    ClaimInstance,
    CordonNode,
    CreateNode,
    DestroyNode,
    EndLease,
    KeepSpend,
    KeepSteering,
    ListCloud,
    LookAtRanks,
    RecordLaunches,
    RefuseSlots,
    RequeueJob,
    SweepCloud,
)
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import SlotName, Tariff, TypeName
from nodemanager.planner import slot_types, unsent_leases
from nodemanager.planner.cost import budget
from nodemanager.planner.make_room import make_room
from nodemanager.planner.node_steps import BUSY, STATE_RANKING, NodeAction, StepContext, next_step
from nodemanager.planner.observe.backoff import Allowance
from nodemanager.planner.observe.operator import count_held, steered_nodes
from nodemanager.planner.observe.safe_mode import why_safe_mode
from nodemanager.planner.outcome import FleetNeeds, JobReasons, NodeReasons, Purchase, fleet_needs
from nodemanager.planner.placement import supply
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.placement.within_budget import place_within_budget
from nodemanager.planner.requeue import requeue_orders
from nodemanager.planner.spares import count_ready, count_usable, spare_purchases
from nodemanager.planner.state.frozen import replace, worked_out
from nodemanager.planner.state.node_index import calls_in_flight, node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot, Source, Stray
from nodemanager.planner.type_reasons import type_reasons, warnings

WHY_BOUGHT: Mapping[str, str] = {"demand": "demand", "nodes_min": "nodes_min", "spare": "spare"}

IN_TRANSITION = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST, NodeState.STOPPING)

Ask = ClaimInstance | LookAtRanks | ListCloud | SweepCloud | KeepSteering | KeepSpend
Action = BootNode | NodeAction | RequeueJob | ChangeSlots | RefuseSlots


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan was made from, for what is said of it beside what is ordered."""

    snapshot: Snapshot
    policy: Policy
    layout: Placement
    needs: FleetNeeds


@dataclass(frozen=True)
class Plan:
    """Orders in the order in which they are given, and a reason for every job and every node."""

    asks: tuple[Ask, ...] = ()
    actions: tuple[Action, ...] = ()
    jobs: Mapping[JobId, Reason] = field(default_factory=dict)
    nodes: Mapping[LaunchId, Reason] = field(default_factory=dict)
    would: tuple[Action, ...] = ()  # what is only said, of node types that are only observed
    stands_still: Reason | None = None  # why nothing is decided at all
    settled: bool = False
    price_per_hour: Decimal = Decimal(0)  # of all that is, or may be, on the bill
    basis: Basis | None = field(default=None, repr=False, compare=False)  # None where nothing was laid out

    @worked_out
    def types(self) -> Mapping[TypeName, Reason]:
        """Why each is bought, or not."""
        of = self.basis
        return type_reasons(of.policy, of.layout, of.needs) if of is not None else {}

    @worked_out
    def warnings(self) -> tuple[Reason, ...]:
        """What the site should mend."""
        of = self.basis
        return warnings(of.snapshot, of.policy, of.layout, of.needs) if of is not None else ()

    @property
    def decided(self) -> Mapping[LaunchId, Reason]:
        """The reasons of those nodes about which there was something to decide."""
        return self.nodes.decided if isinstance(self.nodes, NodeReasons) else self.nodes

    def count_by_reason(self) -> Mapping[str, int]:
        """How many jobs wait for which reason."""
        return self.jobs.count_by_reason() if isinstance(self.jobs, JobReasons) else {}


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide. Pure: all it knows is in its arguments."""
    made = _decided(snapshot, policy)
    if not policy.observed or made.stands_still is not None:
        return made
    # Jobs are served by the types that act alone; what would be done with all of them is another plan.
    said = _decided(snapshot, policy.acting_everywhere).actions
    begun = [it for it in made.actions if type_of_action(it, snapshot) in policy.observed]
    return replace(
        made, would=tuple(it for it in said if type_of_action(it, snapshot) in policy.observed and it not in begun)
    )


def type_of_action(action: Action, snapshot: Snapshot) -> TypeName | None:
    """The node type that an order is about; None where it is about several, or about a node that is not known."""
    match action:
        case BootNode(launch=launch) | CreateNode(launch=launch) | EndLease(launch=launch):
            return launch.type_name
        case DestroyNode(launch=None, provider_id=provider_id):
            stray = snapshot.strays.get(provider_id)
            return stray.node.identity.type_name if stray is not None and stray.node.identity is not None else None
        case RecordLaunches() | ChangeSlots() | RefuseSlots():
            return None
        case _:
            node = snapshot.nodes.get(action.launch) if action.launch is not None else None
            return node.launch.type_name if node is not None else None


def _decided(snapshot: Snapshot, policy: Policy) -> Plan:
    asks = _asks(snapshot, policy)
    price = supply.price_per_hour(snapshot, policy)
    stands_still = _standstill(snapshot, policy)
    if stands_still is not None:
        return Plan(asks, stands_still=stands_still, price_per_hour=price)
    if not calls_in_flight(snapshot, CallKind.RECORD, CallKind.END_LEASE):
        if snapshot.wish is not None:
            return Plan(
                asks, actions=(slot_types.answer_wish(snapshot.wish, snapshot, policy),), price_per_hour=price
            )
        if (redeclared := slot_types.redeclare_type(snapshot, policy)) is not None:
            return Plan(asks, actions=(redeclared,), price_per_hour=price)
    layout = place_within_budget(snapshot, policy, price)
    found = fleet_needs(snapshot.jobs, layout)
    quiet = is_settled(snapshot, policy)
    settling = None if quiet else because("settling", settles_at_s=settles_at_s(snapshot, policy))
    unsent = unsent_leases.review(snapshot, policy, price, layout, found, settling)
    steps, reasons = _steps(snapshot, policy, layout, found, unsent)
    boots = _boots(snapshot, policy, layout, found) if quiet else ()
    return Plan(
        asks=(*asks, *_sweeps(snapshot, policy)),
        actions=(*steps, *_strays(snapshot, policy), *requeue_orders(snapshot, policy), *boots),
        jobs=JobReasons(snapshot.jobs, layout, settling),
        nodes=NodeReasons(
            snapshot.nodes, {**reasons, **{boot.launch.id: boot.reason for boot in boots}}, rest=BUSY
        ),
        settled=quiet,
        price_per_hour=price,
        basis=Basis(snapshot, policy, layout, found),
    )


# --- asking -----------------------------------------------------------------------------------------------


def _asks(snapshot: Snapshot, policy: Policy) -> tuple[Ask, ...]:
    now_s = snapshot.now_s
    asks: list[Ask] = []
    if not snapshot.claimed and _may_ask(snapshot.claim, now_s):
        asks.append(ClaimInstance())
    stirred = snapshot.stirred_s is not None
    if _may_ask(snapshot.flux, now_s) and (stirred or _older_than(snapshot.flux, policy.probe_s, now_s)):
        asks.append(LookAtRanks())
    if _may_ask(snapshot.cloud, now_s) and _older_than(snapshot.cloud, _list_every_s(snapshot, policy), now_s):
        asks.append(ListCloud())
    unkept = snapshot.steering != snapshot.steering_on_record
    if unkept and snapshot.claimed and _may_ask(snapshot.steering_write, now_s):
        asks.append(KeepSteering(snapshot.steering))
    spend = budget.spend_to_write(snapshot, policy)
    if spend is not None and _may_ask(snapshot.spend_write, now_s):
        asks.append(KeepSpend(spend))
    return tuple(asks)


def _sweeps(snapshot: Snapshot, policy: Policy) -> tuple[SweepCloud, ...]:
    """Rarely, and never while another one acts: a sweep deletes."""
    due = snapshot.swept_s is None or snapshot.now_s - snapshot.swept_s >= policy.sweep_s
    return (SweepCloud(),) if due else ()


def _may_ask(source: Source, now_s: float) -> bool:
    return source.answer_due_s is None and now_s >= source.retry_s


def _older_than(source: Source, age_s: float, now_s: float) -> bool:
    return source.seen_s is None or now_s - source.seen_s >= age_s


def _list_every_s(snapshot: Snapshot, policy: Policy) -> float:
    """While something is on its way in or out the list is news; else it is a check."""
    roll = node_index_of(snapshot)
    moving = (
        any(roll.count_by_state.get(state) for state in IN_TRANSITION)
        or snapshot.strays
        or snapshot.doubted_lists
        or any(node.absences for node in roll.to_check.values())
    )
    return policy.probe_s if moving else policy.relist_s


def _standstill(snapshot: Snapshot, policy: Policy) -> Reason | None:
    if not snapshot.claimed:
        return because("not_the_actor", why=snapshot.claim.failure or "the instance has not been claimed yet")
    if snapshot.wish_due_s is not None:
        return because("slots_changing")
    limit_s = policy.stale_after_s
    for name, source in (("queue", snapshot.queue), ("flux", snapshot.flux), ("cloud", snapshot.cloud)):
        if source.seen_s is None:
            return because("not_seen_yet", source=name, failure=source.failure)
        age_s = snapshot.now_s - source.seen_s
        if age_s > limit_s:
            return because("stale", source=name, age_s=age_s, stale_after_s=limit_s, failure=source.failure)
    if snapshot.site_mismatch is not None:
        return snapshot.site_mismatch
    if (safe := why_safe_mode(snapshot, policy)) is not None:
        return safe
    paused = snapshot.steering.paused
    return because("paused", by=paused.by, since_at=paused.at) if paused is not None else None


# --- settling ---------------------------------------------------------------------------------------------


def settles_at_s(snapshot: Snapshot, policy: Policy) -> float:
    """When the queue will have been quiet long enough to buy for it, if nothing more comes.

    Two waits make it up: for more jobs that are submitted together, and the short one after any change, which
    keeps a job from counting both as waiting and as just begun (its start reaches us from the ranks and from the
    queue, one a moment after the other). Neither goes beyond ``settle_max_s``.
    """
    quiet_s = snapshot.changed_s + policy.quiet_s
    if snapshot.newest_job_s is not None:
        quiet_s = max(quiet_s, snapshot.newest_job_s + policy.settle_s)
    if snapshot.unsettled_s is not None:
        quiet_s = min(quiet_s, snapshot.unsettled_s + policy.settle_max_s)
    return quiet_s


def is_settled(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it is time to buy: the queue is quiet, and the ranks were looked at since they last stirred.

    And it is known which queues are stopped. Somebody may have stopped one while the instance was away, or while it
    had no scheduler, which hides it: so they are asked for since.
    """
    if snapshot.unreachable_s is not None and (snapshot.queues_asked_s or 0.0) < snapshot.unreachable_s:
        return False
    overdue = snapshot.unsettled_s is not None and snapshot.now_s - snapshot.unsettled_s >= policy.settle_max_s
    looked = snapshot.stirred_s is None or overdue
    return looked and snapshot.now_s >= settles_at_s(snapshot, policy)


# --- deciding ---------------------------------------------------------------------------------------------


def _steps(
    snapshot: Snapshot,
    policy: Policy,
    layout: Placement,
    found: FleetNeeds,
    unsent: Mapping[LaunchId, unsent_leases.LeaseReview],
) -> tuple[list[NodeAction], dict[LaunchId, Reason]]:
    roll = node_index_of(snapshot)
    leaving = roll.count_by_state.get(NodeState.DRAINING, 0) + roll.count_by_state.get(NodeState.STOPPING, 0)
    leaving -= count_held(snapshot, NodeState.DRAINING)
    ended = {id_ for id_, weighed in unsent.items() if weighed.ends}
    ended |= {node.id for node in unsent_leases.ending_leases(snapshot)}
    outlook = StepContext(
        snapshot=snapshot,
        policy=policy,
        needed=found.needed,
        makes_room=make_room(snapshot, policy, layout, found.needed, ended),
        unsent=unsent,
        count_live=sum(roll.count_by_type.values()) - leaving - len(ended),
        count_usable=count_usable(snapshot, policy),
        count_ready=count_ready(snapshot, policy, found.needed, ended),
        overspent=layout.overspent,
        allowance=Allowance(snapshot, policy, sent_only=True),
        creates_left=int(supply.create_credit(snapshot, policy)),
        cloud_calls_left=policy.calls_in_flight_max - calls_in_flight(snapshot, CallKind.CREATE, CallKind.DESTROY),
    )
    actions: list[NodeAction] = []
    reasons: dict[LaunchId, Reason] = {}
    # With the budget spent, something is to be decided about those at work, too.
    to_decide = {**(roll.to_check if layout.overspent is None else snapshot.nodes), **steered_nodes(snapshot)}
    for node in sorted(to_decide.values(), key=lambda node: _turn(node, policy)):
        taken = next_step(node, outlook)
        reasons[node.launch.id] = taken.reason
        if taken.action is not None:
            actions.append(taken.action)
    return actions, reasons


def _turn(node: Node, policy: Policy) -> tuple[int, Decimal, LaunchId]:
    """Of those that may go, as they are idle, the dearest does first: fewer are kept, and the cheap ones."""
    node_type = policy.types.get(node.launch.type_name) if node.state is NodeState.IDLE else None
    return (
        STATE_RANKING[node.state],
        -node_type.price_per_hour if node_type is not None else Decimal(0),
        node.launch.id,
    )


def _boots(snapshot: Snapshot, policy: Policy, layout: Placement, found: FleetNeeds) -> tuple[BootNode, ...]:
    spares = spare_purchases(snapshot, policy, layout, found)
    # What quotas and breakers leave is less than the layout asks for: what is beyond it is had no more at the next.
    allowance = Allowance(snapshot, policy)
    return tuple(
        _boot(purchase, why, snapshot, policy)
        for purchase, why in (*((purchase, "demand") for purchase in found.purchases), *spares)
        if allowance.take(purchase.node_type)
    )


def _boot(purchase: Purchase, why: str, snapshot: Snapshot, policy: Policy) -> BootNode:
    slot = purchase.place[0]
    launch_id = LaunchId(f"{slot}-{int(snapshot.wall_at * 1000):x}")
    launch = _launch(launch_id, slot, snapshot, policy, snapshot.wall_at, purchase.zone)
    return BootNode(
        launch,
        purchase.serves,
        because(WHY_BOUGHT[why], node_type=purchase.node_type.name, jobs=purchase.job_count),
    )


def _strays(snapshot: Snapshot, policy: Policy) -> list[RecordLaunches | CordonNode | DestroyNode]:
    """Nodes of ours that no launch owns: taken back where their slot is free, else destroyed in the end.

    One that a job could begin on is drained before that, and looked at once more.
    """
    ownerless = sorted(supply.ownerless_strays(snapshot), key=lambda stray: stray.node.provider_id)
    leased = {node.launch.slot for node in snapshot.nodes.values()} if ownerless else set()
    actions: list[RecordLaunches | CordonNode | DestroyNode] = []
    for stray in ownerless:
        launch = _lease_of(stray, snapshot, policy)
        waited_s = snapshot.now_s - stray.since_s
        if launch is not None and launch.slot not in leased:
            leased.add(launch.slot)
            actions.append(RecordLaunches((launch,)))
        elif _may_go(stray, leased, snapshot, policy):
            reason = because("orphan", waited_s=waited_s, orphan_grace_s=policy.orphan_grace_s)
            up = _rank_up(stray, snapshot)
            if up is not None and up[1].schedulable and up[0].slot not in leased:
                actions.append(CordonNode(up[0].launch, up[1].rank, drain_text(up[0].launch), reason))
            else:
                actions.append(DestroyNode(None, stray.node.provider_id, reason))
    return actions


def _rank_up(stray: Stray, snapshot: Snapshot) -> tuple[Identity, FluxRank] | None:
    """The rank that may be its own, where that is up."""
    identity = stray.node.identity
    rank_id = snapshot.rank_of_slot.get(identity.slot) if identity is not None else None
    rank = snapshot.ranks.get(rank_id) if rank_id is not None else None
    return (identity, rank) if identity is not None and rank is not None and rank.online else None


def _may_go(stray: Stray, leased: Collection[SlotName], snapshot: Snapshot, policy: Policy) -> bool:
    """Nobody missed it for long enough, no job runs on the rank that may be its own, and nobody holds that."""
    identity = stray.node.identity
    if identity is not None and identity.type_name in policy.observed:
        return False
    if (up := _rank_up(stray, snapshot)) is not None:
        known, rank = up
        ours = known.slot in leased or rank.drain_reason in (None, drain_text(known.launch))
        if rank.allocated or not ours:
            return False
    waited_s = snapshot.now_s - stray.since_s
    return waited_s >= policy.orphan_grace_s and snapshot.now_s >= stray.destroy_after_s


def _lease_of(stray: Stray, snapshot: Snapshot, policy: Policy) -> Launch | None:
    """The launch that a stray's tags tell of; None where there is no such slot."""
    identity = stray.node.identity
    if identity is None or identity.slot not in snapshot.rank_of_slot or identity.slot not in policy.type_of_slot:
        return None
    if policy.type_of_slot[identity.slot].name != identity.type_name:
        return None  # the slot has changed its type since: this node is not what R says stands there
    created_at = stray.node.created_at if stray.node.created_at is not None else snapshot.wall_at
    return _launch(identity.launch, identity.slot, snapshot, policy, created_at)


def _launch(
    id_: LaunchId, slot: SlotName, snapshot: Snapshot, policy: Policy, requested_at: float, zone: str = ""
) -> Launch:
    node_type = policy.type_of_slot[slot]
    return Launch(
        id=id_,
        slot=slot,
        rank=snapshot.rank_of_slot[slot],
        type_name=node_type.name,
        # Makes the create idempotent: the same for the same launch, at most 64 characters of ASCII.
        client_token=f"{policy.cluster_uuid[:8]}-{id_[-55:]}",
        requested_at=requested_at,
        zone=zone,
        tariff=Tariff(node_type.price_per_hour, node_type.billing),
    )
