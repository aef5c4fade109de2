"""Choose idle nodes to retire so that a limit admits the nodes of a job that waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, islice
from math import inf
from typing import NamedTuple

from nodemanager.core.jobs import ANYWHERE, JobId, Shape
from nodemanager.core.nodes import LEAVING, LaunchId, NodeState
from nodemanager.core.orders import HoldJobs, ReleaseJobs
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.records import HeldJob
from nodemanager.core.slots import Market, NodeType, SlotName, TypeName
from nodemanager.planner import why_not
from nodemanager.planner.backoff import count_ended_others, count_lacking, gangs_put_off, is_put_off, scopes_of
from nodemanager.planner.billing import price_per_hour
from nodemanager.planner.breakers import users_put_off
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.placement import Placement, StuckJob
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey, Hindrance
from nodemanager.planner.seating import pieces_of
from nodemanager.planner.serving import OnOffer
from nodemanager.planner.slot_types import TypeCounts
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.supply import Supply
from nodemanager.planner.why_not import may_buy


def make_room(
    snapshot: Snapshot,
    policy: Policy,
    placement: Placement,
    needed: Collection[SlotName],
    of_types: TypeCounts,
    ended: Collection[LaunchId] = (),
) -> tuple[JobId, frozenset[LaunchId]] | None:
    """The first job that a limit stops, and the idle nodes to retire for it; None if none are.

    The dearest nodes go first, no more than needed, and none on which the job itself would run. No node goes if all
    of them together would not be enough, or if the nodes that are already leaving suffice. Spares and nodes kept
    for ``nodes_min`` go too: the job's own nodes count in their place. ``ended``: leases that end now and make room
    at no cost.
    """
    if placement.at_limit is None:
        return None
    at_limit = placement.at_limit
    for way in _ways(at_limit, snapshot, policy, placement, needed):
        found = _make_room(at_limit, way, snapshot, policy, placement, of_types, ended)
        if found is not None:
            return (at_limit.job, found) if found else None
    return None


class _Way(NamedTuple):
    """A way to serve a job: these nodes stay, and so many of its pieces get new nodes of these types, in order."""

    kept: Collection[SlotName]
    pieces: int
    types: Sequence[NodeType]


def _ways(
    at_limit: StuckJob, snapshot: Snapshot, policy: Policy, placement: Placement, needed: Collection[SlotName]
) -> Iterator[_Way]:
    """The ways to try, the one that keeps most nodes first."""
    job, shape, obstacle = at_limit
    seats = {bin_.slot for bin_, _ in placement.seating.seats.get(job, ())}
    want, types = pieces_of(shape), list(why_not.by_preference(policy, shape))
    _, short = placement.seating.short.get(job, (None, want))
    yield _Way({*needed, *seats}, short, types)
    if obstacle.kind in (Hindrance.PROVIDER_FULL, Hindrance.SPOT_SHARE):
        return
    supply, memory = placement.supply, why_not.memory_per_piece(shape, placement.supply)
    # Small nodes, and those that the job would use itself, may fill the limit: fewer, larger ones serve it.
    yield _Way(needed, want, sorted(types, key=lambda it: -why_not.pieces_per_node(it, shape, memory)))
    # Dear nodes may fill the limit of the price: cheap ones serve it.
    cheapest = sorted(types, key=lambda it: supply.cheapest(it).price_per_hour)
    seated = _pieces_on_cheap_nodes(shape, cheapest, snapshot, policy, placement, needed)
    yield _Way({*needed, *seated}, max(0, want - sum(seated.values())), cheapest)


def _pieces_on_cheap_nodes(
    shape: Shape,
    types: Iterable[NodeType],
    snapshot: Snapshot,
    policy: Policy,
    placement: Placement,
    needed: Collection[SlotName],
) -> Mapping[SlotName, int]:
    """How many pieces of a job each idle node takes that costs no more than the cheapest one on sale for it."""
    supply = placement.supply
    on_sale = (it for it in types if _is_on_sale(it, shape, supply))
    first = next(on_sale, None)
    if first is None:
        return {}
    found: dict[SlotName, int] = {}
    for node in _known_nodes(snapshot):
        node_type, price = policy.types.get(node.launch.type_name), price_per_hour(node.launch, policy)
        if node_type is None or price > supply.cheapest(first).price_per_hour:
            continue
        if shape.constraint is not ANYWHERE and not supply.matches.suits(shape.constraint, node.launch.rank):
            continue
        if shape.one_zone and node.launch.zone != placement.zones.get(shape):
            continue
        pieces = why_not.pieces_per_node(node_type, shape)
        if pieces and _may_retire(node, snapshot, policy, needed):
            found[node.launch.slot] = pieces
    return found


def _is_on_sale(node_type: NodeType, shape: Shape, supply: Supply) -> bool:
    suits = why_not.pieces_per_node(node_type, shape) and may_buy(node_type, shape, supply)
    return bool(
        suits and node_type.name not in supply.blocked and supply.count_free_for(node_type, shape.constraint)
    )


def _known_nodes(snapshot: Snapshot) -> Iterator[Node]:
    """The nodes that are neither busy nor gone for long."""
    node_index = node_index_of(snapshot)
    return chain(node_index.to_check.values(), node_index.at_rest.values())


def _make_room(
    at_limit: StuckJob,
    way: _Way,
    snapshot: Snapshot,
    policy: Policy,
    placement: Placement,
    of_types: TypeCounts,
    ended: Collection[LaunchId],
) -> frozenset[LaunchId] | None:
    """The nodes that go for a way: none if enough are leaving; None if all of them are too few."""
    may_retire = (node for node in _known_nodes(snapshot) if _may_retire(node, snapshot, policy, way.kept))
    idle = [node for node in may_retire if _frees_room(node, at_limit, snapshot, policy)]
    idle.sort(key=lambda node: (-price_per_hour(node.launch, policy), node.launch.id))
    leaving = [
        node
        for node in node_index_of(snapshot).to_check.values()
        if _leaves(node, snapshot, ended) and _frees_room(node, at_limit, snapshot, policy)
    ]
    spot_max = inf
    while idle or leaving:
        lacks = _lacks(at_limit, way, snapshot, policy, placement, spot_max)
        if lacks is None or (lacks.nodes <= 0 and lacks.price <= 0):
            return None
        retiring = _retiring(lacks, idle, leaving, policy, of_types.copy())
        if retiring is None:
            return None
        spot_allowed = _spot_nodes_allowed(lacks, [*leaving, *retiring], placement)
        if lacks.spot <= spot_allowed:
            return frozenset(node.id for node in retiring)
        spot_max = spot_allowed  # fewer of them, and others instead
    return None


def _retiring(
    lacks: _Lack, idle: Sequence[Node], leaving: Sequence[Node], policy: Policy, of_types: TypeCounts
) -> list[Node] | None:
    """The first idle nodes whose end, with those that are leaving, makes enough room; None if all do not."""
    nodes = lacks.nodes - len(leaving)
    price = lacks.price - sum(price_per_hour(node.launch, policy) for node in leaving)
    retiring: list[Node] = []
    for node in idle:
        if nodes <= 0 and price <= 0:
            break
        if of_types.is_at_min(node.launch.type_name):
            continue  # the site keeps it for its type
        of_types.note(node.launch.type_name, -1, takes_jobs=True)
        retiring.append(node)
        nodes, price = nodes - 1, price - price_per_hour(node.launch, policy)
    return retiring if nodes <= 0 and price <= 0 else None


def _leaves(node: Node, snapshot: Snapshot, ended: Collection[LaunchId]) -> bool:
    return node.id in ended or (node.state in LEAVING and node.id not in snapshot.operator.steering.holds)


def _frees_room(node: Node, at_limit: StuckJob, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the end of the node makes room for the job, or may do so."""
    obstacle = at_limit.obstacle
    if obstacle.kind is Hindrance.SPOT_SHARE:
        bought = policy.type_as_bought(node.launch)
        return bought is not None and bought.market is Market.SPOT
    if obstacle.kind is not Hindrance.PROVIDER_FULL or obstacle.node_type is None:
        return True
    if (
        is_put_off(at_limit.shape, snapshot)
        and node.launch.type_name in snapshot.learned.gangs[at_limit.shape].types
    ):
        return False  # the job would use the node itself
    return _frees_room_for(policy.types[obstacle.node_type], node, snapshot, policy)


def _spot_nodes_allowed(lacks: _Lack, ending: Sequence[Node], placement: Placement) -> int:
    """How many of the nodes to buy may be spot nodes once these nodes have ended, by ``spot_share_max``."""
    policy, (count, spot) = placement.supply.policy, placement.allocation.fleet
    share_max = policy.rules.spot_share_max
    if share_max >= 1.0:
        return lacks.spot
    types = (policy.type_as_bought(node.launch) for node in ending)
    spot -= sum(it is not None and it.market is Market.SPOT for it in types)
    return max(0, int(share_max * (count - len(ending) + lacks.bought) + 1e-9) - spot)


class _Lack(NamedTuple):
    """How many nodes must end for a job, and of what price per hour; how many are bought, and as spot nodes."""

    nodes: int
    price: Decimal = Decimal(0)
    bought: int = 0
    spot: int = 0


def _lacks(
    at_limit: StuckJob, way: _Way, snapshot: Snapshot, policy: Policy, placement: Placement, spot_max: float
) -> _Lack | None:
    """What must end for the job; None if that would not help. ``spot_max``: of the nodes that are bought for it."""
    job, shape, obstacle = at_limit
    if obstacle.kind is Hindrance.SPOT_SHARE:
        return _spot_nodes_above_share(job, shape, placement)
    if obstacle.kind is not Hindrance.PROVIDER_FULL or obstacle.node_type is None:
        return _shortfall(shape, way, policy, placement, spot_max)
    if is_put_off(shape, snapshot):
        gang = snapshot.learned.gangs[shape]
        return _Lack(count_lacking(gang, snapshot) - count_ended_others(gang, snapshot, policy))
    return _shortfall_at_provider(job, shape, policy.types[obstacle.node_type], placement)


def _may_retire(node: Node, snapshot: Snapshot, policy: Policy, kept: Collection[SlotName]) -> bool:
    if node.state is not NodeState.IDLE or node.launch.slot in kept or snapshot.steered(node):
        return False
    if snapshot.is_out_of_reach(node, policy):
        return False
    held = node.rank is not None and node.rank.drain_reason is not None
    return not held and node.launch.type_name not in policy.observed


def _frees_room_for(node_type: NodeType, node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the end of a node leaves room at the provider for one of a type, or may do so."""
    bought = policy.type_as_bought(node.launch)
    if bought is None or bought.cloud != node_type.cloud:
        return False
    quotas = (scope for scope in scopes_of(node_type) if scope in snapshot.learned.quotas)
    return all(scope in scopes_of(bought) for scope in quotas)


def _shortfall_at_provider(job: JobId, shape: Shape, node_type: NodeType, placement: Placement) -> _Lack | None:
    """How many more nodes of a type the job needs than the provider allows. None if the site allows too few."""
    supply, memory = placement.supply, why_not.memory_per_piece(shape, placement.supply)
    each = why_not.pieces_per_node(node_type, shape, memory)
    _, short = placement.seating.short.get(job, (None, pieces_of(shape)))
    nodes = -(-short // each) if each else 0
    if not nodes or supply.count_free_for(node_type, shape.constraint) < nodes:
        return None
    return _Lack(nodes - (supply.allowance().count_left(node_type) or 0))


def _spot_nodes_above_share(job: JobId, shape: Shape, placement: Placement) -> _Lack | None:
    """How many spot nodes must end before the job may get its own. Each one that ends allows another."""
    supply = placement.supply
    _, short = placement.seating.short.get(job, (None, pieces_of(shape)))
    for node_type in why_not.by_preference(supply.policy, shape):
        each = why_not.pieces_per_node(node_type, shape, why_not.memory_per_piece(shape, supply))
        if each and supply.spot_left(node_type) is not None and supply.count_free_for(node_type, shape.constraint):
            return _Lack(-(-short // each) - (supply.spot_share_left or 0))
    return None


def _shortfall(shape: Shape, way: _Way, policy: Policy, placement: Placement, spot_max: float) -> _Lack | None:
    """By how many nodes, and by what price per hour, the limits are too low for the job. None if slots are lacking.

    Counts the nodes that would be bought for it.
    """
    supply, memory = placement.supply, why_not.memory_per_piece(shape, placement.supply)
    free, coming = _left_for(shape, policy, placement)
    short, nodes, price, spot = way.pieces - coming, 0, Decimal(0), 0
    for node_type in way.types:
        each = why_not.pieces_per_node(node_type, shape, memory)
        if not each or short <= 0 or node_type.name in supply.blocked or not may_buy(node_type, shape, supply):
            continue
        suit = supply.count_free_for(node_type, shape.constraint)
        taken = min(free[node_type.name], suit, -(-short // each))
        if (spot_left := supply.spot_left(node_type)) is not None:
            taken = int(min(taken, spot_left, spot_max - spot))
            spot += taken
        short -= taken * each
        nodes += taken
        price += taken * supply.cheapest(node_type).price_per_hour
    if short > 0:
        return None
    return _Lack(nodes - placement.allocation.nodes_left, price - placement.price_left, nodes, spot)


def _left_for(shape: Shape, policy: Policy, placement: Placement) -> tuple[Counter[TypeName], int]:
    """How many nodes of each type other jobs leave to buy, and how many pieces of the job fit on booting nodes."""
    allocation, supply = placement.allocation, placement.supply
    if not allocation.offers:  # no other job needs any
        with_booting = not placement.limits.drain_all
        on_offer = OnOffer(supply.snapshot, policy, supply, [shape.constraint], with_booting)
        allocation = on_offer.empty_allocation(on_offer.offers)
    free: Counter[TypeName] = Counter()
    coming = 0
    for offer, left in zip(allocation.offers, allocation.separate_counts(), strict=True):
        if not offer.is_ordered:
            free[offer.node_type.name] += left
        elif offer.suits(shape):  # booting, and no job ahead needs it
            coming += left * why_not.pieces_per_node(offer.node_type, shape)
    return free, coming


# --- holds ------------------------------------------------------------------------------------------------
#
# Hold jobs that limits or a budget keep from being served for long, and release them when they can be served.
#
# In queue order such a job would keep every job behind it from starting. Flux's scheduler passes over a job of
# urgency 0. Only jobs that the record names as held by us are released. See :class:`Unserved`.


JOBS_PER_ORDER_MAX = 100
BEYOND = (Hindrance.BEYOND_LIMITS, Hindrance.BEYOND_SCHEDULE)


def hold_orders(snapshot: Snapshot, policy: Policy, placement: Placement) -> tuple[HoldJobs | ReleaseJobs, ...]:
    """The order to hold jobs or to release some, if one is needed and none is in flight."""
    write = snapshot.queues.hold_write
    if write.answer_due_s is not None or snapshot.now_s < write.retry_s:
        return ()
    unserved = dict(_jobs_to_hold(snapshot, policy, placement))
    new = (id_ for id_ in unserved if not snapshot.jobs[id_].held_by_us)
    if first := tuple(islice(new, JOBS_PER_ORDER_MAX)):
        jobs = {id_: HeldJob(snapshot.jobs[id_].urgency, snapshot.jobs[id_].priority) for id_ in first}
        return (HoldJobs(jobs, because(Code.JOBS_HELD, job_count=len(jobs), job=str(first[0]))),)
    served = sorted(id_ for id_ in snapshot.queues.held_jobs if id_ not in unserved)[:JOBS_PER_ORDER_MAX]
    if not served:
        return ()
    back = {id_: snapshot.queues.held_jobs[id_] for id_ in served}
    return (ReleaseJobs(back, because(Code.JOBS_RELEASED, job_count=len(back), job=str(served[0]))),)


def _jobs_to_hold(snapshot: Snapshot, policy: Policy, placement: Placement) -> Iterator[tuple[JobId, Reason]]:
    off, gangs = users_put_off(snapshot), gangs_put_off(snapshot)
    for key, ids in placement.demand.batches.items():
        if key.queue in snapshot.queues.stopped:
            continue  # the scheduler does not see it, so it holds up nobody
        if (held := _held_from(key, policy, placement, off, gangs)) is not None:
            begin, why = held
            yield from ((id_, why) for id_ in islice(ids, begin, None))


def _held_from(
    key: BatchKey,
    policy: Policy,
    placement: Placement,
    off: Mapping[int, Reason],
    gangs: Mapping[Shape, Reason],
) -> tuple[int, Reason] | None:
    """From which job of a batch on the jobs are held, and why; None if none is."""
    if key.userid in off and policy.holds(of_user=True):
        return 0, off[key.userid]
    if key.shape in gangs and policy.holds(of_user=True):
        return 0, gangs[key.shape]
    never = placement.refusals.infeasible.get((key.shape, key.span_s))
    if never is not None and never.kind in BEYOND and policy.holds(of_user=False):
        return 0, never.reason
    cut = placement.refusals.cuts.get(key)
    return (cut.count, cut.why) if cut is not None and policy.holds(of_user=cut.of_user) else None
