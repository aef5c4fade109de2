"""Explain why a job can never get its nodes: not even from a fleet without other jobs.

A fleet that serves it is usually found at once, from the cheapest nodes. Only if these do not do, the least number
of nodes and the least price of all fleets are compared with the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from nodemanager.core.jobs import ANYWHERE, Constraint, Shape
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, Market, NodeType, OnlyFor, TypeName
from nodemanager.planner.backoff import block_on, is_put_off, note_granted, put_off, zones_of
from nodemanager.planner.billing import fleet_price_per_hour, nodes_max_of_type
from nodemanager.planner.policy import CloudRules, Policy, with_limits_of
from nodemanager.planner.ranks_and_queue import Hindrance, Obstacle
from nodemanager.planner.seating import pieces_of, pieces_that_fit, slots_per_piece
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.spending import PERIODS, WHOLE_SITE, cloud_account
from nodemanager.planner.supply import Supply, current_supply

NOT_ENOUGH = "no schedule allows enough within a week"
SHAPES_CACHED = 2**15  # how many shapes the feasibility cache keeps
PASSING = (Hindrance.UNAVAILABLE, Hindrance.PROVIDER_FULL, Hindrance.SPOT_SHARE)
Budgets = Mapping[tuple[str, str], Decimal]  # by owner and period


def why_never_known(shape: Shape, supply: Supply) -> Obstacle | None:
    """The same as :func:`why_never`, from a cache."""
    known = supply.feasibility.obstacle_of
    try:
        return known[shape]
    except KeyError:
        if len(known) >= SHAPES_CACHED:
            known.clear()
        why = known[shape] = _unless_scheduled(why_never(shape, supply), shape, supply)
        return why


def _unless_scheduled(why: Obstacle | None, shape: Shape, supply: Supply) -> Obstacle | None:
    """Why a job can never run; or, if only the limits of a schedule forbid its nodes, that it waits for its end."""
    if why is None or why.kind is not Hindrance.BEYOND_LIMITS:
        return why
    for from_at, policy in supply.limits_ahead:
        if why_never(shape, replace(supply, policy=policy)) is None:
            return Obstacle(Hindrance.BEYOND_SCHEDULE, because(Code.BEYOND_SCHEDULE, until_at=from_at))
    return why


def may_buy(node_type: NodeType, shape: Shape, supply: Supply) -> bool:
    """Whether nodes of a type are bought for the job, by ``only_for``.

    By default a type with GPUs is bought for a job without GPUs only if the other types could never serve the job.
    """
    if shape.gpus_per_slot or not node_type.is_reserved:
        return True
    if node_type.only_for is OnlyFor.GPU:
        return False
    known = supply.feasibility.fits_no_other
    if shape not in known:
        if len(known) >= SHAPES_CACHED:
            known.clear()
        known[shape] = _fits_no_other(shape, supply)
    return known[shape]


def _fits_no_other(shape: Shape, supply: Supply) -> bool:
    """Whether no types but reserved ones could ever serve the job: not by the site's own limits either.

    If only a schedule closes the others, the job waits for its end.
    """
    observed, share_max = supply.policy.observed, supply.policy.rules.spot_share_max

    def may_use(node_type: NodeType) -> bool:
        is_for_all = not node_type.is_reserved and node_type.name not in observed
        if share_max < 1.0 and all(it.market is Market.SPOT for it in node_type.by_size()):
            return False  # whether any is ever bought depends on the nodes of other jobs
        return is_for_all and node_type.cores >= slots_per_piece(shape) * shape.cores_per_slot

    def fits_none(policy: Policy) -> bool:
        return _why_never(shape, replace(supply, policy=policy), {}, may_use, own_nodes=False) is not None

    policy, site = supply.policy, supply.policy.unscheduled
    return fits_none(policy) and (site is None or fits_none(with_limits_of(site, policy)))


def why_unserved(shape: Shape, want: int, supply: Supply, left: LeftToBuy) -> Obstacle:
    """Why a job gets no nodes now (``infeasibility.why_not_now``), or that a budget never pays for them.

    Such a job is not given up: nodes that are idle by chance may serve it, and then fewer must be bought.
    """
    found = why_not_now(shape, want, supply, left, lambda it: may_buy(it, shape, supply))
    if found.kind not in PASSING or not supply.policy.budgets:
        return found
    if why_never_known(shape, supply) is not None:
        return found
    return why_never(shape, supply, with_budgets=True) or found


def why_never(shape: Shape, supply: Supply, *, with_budgets: bool = False) -> Obstacle | None:
    """Why even a fleet without other jobs could not serve the job; None if it could, as far as the limits tell.

    ``with_budgets``: as if all its nodes were to be bought at once within the budgets.
    """
    budgets = supply.policy.budgets if with_budgets else {}
    why = _why_never(shape, supply, budgets, lambda it: shape.gpus_per_slot > 0 or it.only_for is not OnlyFor.GPU)
    if why is None or shape.gpus_per_slot or why.kind is not Hindrance.NO_SLOT_FITS:
        return why
    closed = tuple(it.name for it in supply.policy.node_types if it.only_for is OnlyFor.GPU)
    if closed and _why_never(shape, supply, budgets, lambda _: True) is None:
        return Obstacle(Hindrance.BEYOND_LIMITS, because(Code.ONLY_FOR_GPU_JOBS, node_types=closed))
    return why


def may_serve(shape: Shape, supply: Supply, nodes: Mapping[TypeName, int]) -> bool:
    """Whether so many nodes of each type could serve the job, within the limits of the supply's policy."""
    return _why_never(shape, supply, {}, lambda it: it.name in nodes, at_most=nodes) is None


def _why_never(
    shape: Shape,
    supply: Supply,
    budgets: Budgets,
    may_use: Callable[[NodeType], bool],
    *,
    own_nodes: bool = True,
    at_most: Mapping[TypeName, int] | None = None,
) -> Obstacle | None:
    """The same with some of the types only, and with or without the instance's own nodes.

    ``budgets``: the nodes are bought at once within these. ``at_most``: no more nodes of each type than these.
    """
    want = pieces_of(shape) - (_pieces_on_own_nodes(shape, supply) if own_nodes else 0)
    if want <= 0:
        return None
    policy, left, nodes, price = supply.policy, want, 0, Decimal(0)
    if any(map(policy.has_limits, policy.clouds)):
        beyond = _why_beyond_clouds(list(_candidates(shape, want, supply, budgets, may_use, at_most)), want, policy)
        if beyond is not None:
            return Obstacle(Hindrance.BEYOND_LIMITS, beyond)
    for it in _candidates(shape, want, supply, budgets, may_use, at_most):
        if left <= 0:
            break
        taken = min(it.most, -(-left // it.each))
        left, nodes, price = left - taken * it.each, nodes + taken, price + it.price_of(taken)
    if left <= 0 and _why_beyond(nodes, price, nodes, Fraction(price), policy, budgets) is None:
        return None
    return _why_no_fleet(
        shape, want, list(_candidates(shape, want, supply, budgets, may_use, at_most)), policy, budgets
    )


@dataclass(frozen=True, slots=True)
class _Lot:
    """Nodes of one price. ``each``: how many pieces of the job one of them takes."""

    each: int
    count: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A type that suits a job. ``most``: how many nodes its own limits and its cloud's ever allow."""

    node_type: NodeType
    each: int  # how many pieces a node takes
    slots: int
    most: int
    why_no_more: Reason | None  # None: there are no more slots

    def price_of(self, count: int) -> Decimal:
        """What so many nodes cost per hour. Prepaid ones cost nothing."""
        return max(0, count - self.node_type.prepaid) * self.node_type.price_per_hour

    def lots(self) -> Iterator[_Lot]:
        """Its nodes: the prepaid ones, then the others."""
        prepaid = min(self.node_type.prepaid, self.most)
        yield _Lot(self.each, prepaid, Decimal(0))
        yield _Lot(self.each, self.most - prepaid, self.node_type.price_per_hour)


def _candidates(
    shape: Shape,
    want: int,
    supply: Supply,
    budgets: Budgets,
    may_use: Callable[[NodeType], bool],
    at_most: Mapping[TypeName, int] | None,
) -> Iterator[_Candidate]:
    """The types that suit the job, in the order of preference."""
    memory = memory_per_piece(shape, supply)
    for node_type in filter(may_use, by_preference(supply.policy, shape)):
        each = pieces_per_node(node_type, shape, memory)
        slots = supply.count_slots_for(node_type, shape.constraint) if each else 0
        if at_most is not None:
            slots = min(slots, at_most[node_type.name])
        if slots:
            ceilings = _ceilings(node_type, -(-want // each), supply.policy, budgets)
            most, why = min(ceilings, key=lambda it: it[0], default=(slots, None))
            yield _Candidate(node_type, each, slots, min(most, slots), why if most < slots else None)


def _ceilings(node_type: NodeType, needed: int, policy: Policy, budgets: Budgets) -> Iterator[tuple[int, Reason]]:
    """How many nodes of a type each of its own limits, and of its cloud's, ever allows. ``needed``: for the job."""
    if (most := nodes_max_of_type(node_type)) is not None:
        # If a schedule allows enough at another time, the job is told when instead (``_unless_scheduled``).
        yield most, type_limit(node_type, max(1, needed - most)).with_figures(ends=NOT_ENOUGH)
    cloud, price = node_type.cloud, node_type.price_per_hour

    def paid_by(amount: Decimal) -> int:
        return int(amount // price) + node_type.prepaid

    def beyond(why: str) -> Reason:
        return because(Code.BEYOND_CLOUD, cloud=cloud, node_type=node_type.name, node_count=needed, why=why)

    if (rules := policy.clouds.get(cloud)) is not None and rules.nodes_max is not None:
        yield rules.nodes_max, beyond(f"its nodes_max is {rules.nodes_max}")
    if rules is not None and rules.price_per_hour_max is not None and price:
        most = paid_by(rules.price_per_hour_max)
        yield most, beyond(f"its price_per_hour_max of {rules.price_per_hour_max} pays for {most}")
    for period in PERIODS if budgets and price else ():
        if (budget := budgets.get((cloud_account(cloud), period))) is not None:
            cost = max(0, needed - node_type.prepaid) * price
            yield paid_by(budget), _beyond_budget(f"the cloud {cloud}", period, budget, needed, cost)


def _why_beyond_clouds(candidates: Sequence[_Candidate], want: int, policy: Policy) -> Reason | None:
    """Why the limits of clouds forbid every fleet for the job, because its types in one cloud share them."""
    of_cloud: dict[CloudName, list[_Candidate]] = {}
    for it in candidates:
        of_cloud.setdefault(it.node_type.cloud, []).append(it)
    pieces, all_types, why = 0, 0, None
    for cloud, those in of_cloud.items():
        lots, rules = [lot for it in those for lot in it.lots()], policy.clouds.get(cloud, CloudRules())
        in_all = sum(lot.each * lot.count for lot in lots)
        bounds = [(in_all, "")]
        if rules.nodes_max is not None:
            bounds.append((_pieces_within(lots, rules.nodes_max, None), f"its nodes_max is {rules.nodes_max}"))
        if (most := rules.price_per_hour_max) is not None:
            bounds.append((_pieces_within(lots, None, most), f"its price_per_hour_max of {most} pays for too few"))
        least, text = min(bounds, key=lambda it: it[0])
        pieces, all_types = pieces + least, all_types + in_all
        if text and why is None:
            first, needed = those[0], -(-want // those[0].each)
            name = first.node_type.name
            why = because(Code.BEYOND_CLOUD, cloud=cloud, node_type=name, node_count=needed, why=text)
    return why if pieces < want <= all_types else None


def _pieces_within(lots: Sequence[_Lot], nodes: int | None, price: Decimal | None) -> int:
    """At most how many pieces so many nodes take, or nodes at this price per hour in all (and parts of a node)."""
    if nodes is not None:
        pieces = 0
        for lot in sorted(lots, key=lambda it: -it.each):
            taken = min(lot.count, nodes)
            pieces, nodes = pieces + taken * lot.each, nodes - taken
        return pieces
    left, parts = Fraction(price or 0), Fraction(0)
    for lot in sorted(lots, key=lambda it: it.price / it.each):
        count = min(Fraction(lot.count), left / Fraction(lot.price)) if lot.price else Fraction(lot.count)
        parts, left = parts + count * lot.each, left - count * Fraction(lot.price)
    return int(parts)


def _beyond_budget(account: str, period: str, budget: Decimal, nodes: int, price: Decimal) -> Reason:
    """A node that is bought counts for at least an hour (``planner.budget``), so no period pays for these nodes."""
    return because(
        Code.BEYOND_BUDGET, account=account, period=period, budget=budget, node_count=nodes, price_per_hour=price
    )


def _why_no_fleet(
    shape: Shape, want: int, candidates: Sequence[_Candidate], policy: Policy, budgets: Budgets
) -> Obstacle | None:
    """Why no fleet of these types serves the job. None if that is not certain."""
    if not candidates:
        return Obstacle(Hindrance.NO_SLOT_FITS, why_no_type_fits(shape, policy))
    short = want - sum(it.slots * it.each for it in candidates)
    if short > 0:
        slots = sum(it.slots for it in candidates)
        return Obstacle(Hindrance.NO_SLOT_FITS, because(Code.TOO_FEW_SLOTS, slots=slots, short=short))
    if sum(it.most * it.each for it in candidates) < want:
        why = next(it.why_no_more for it in candidates if it.why_no_more is not None)
        return Obstacle(Hindrance.BEYOND_LIMITS, why)
    lots = [lot for it in candidates for lot in it.lots()]
    fewest, price_of_fewest, _ = _fill(sorted(lots, key=lambda it: (-it.each, it.price)), want)
    nodes, price, least = _fill(sorted(lots, key=lambda it: it.price / it.each), want)
    # So many nodes cost at least this, whatever they can take.
    _, cheapest, _ = _fill(sorted((replace(it, each=1) for it in lots), key=lambda it: it.price), fewest)
    least = max(least, Fraction(cheapest))
    if fewest > policy.limits.nodes_max:
        nodes, price = fewest, price_of_fewest
    beyond = _why_beyond(nodes, price, fewest, least, policy, budgets)
    return Obstacle(Hindrance.BEYOND_LIMITS, beyond) if beyond is not None else None


def _fill(lots: Sequence[_Lot], want: int) -> tuple[int, Decimal, Fraction]:
    """Take nodes in this order: how many, what they cost, and the same if a part of the last one could be had."""
    nodes, price, least = 0, Decimal(0), Fraction(0)
    for lot in lots:
        taken = min(lot.count, -(-want // lot.each))
        nodes, price = nodes + taken, price + taken * lot.price
        least += Fraction(lot.price) * min(Fraction(lot.count), Fraction(want, lot.each))
        want -= taken * lot.each
        if want <= 0:
            break
    return nodes, price, least


def _why_beyond(
    nodes: int, price: Decimal, fewest: int, least: Fraction, policy: Policy, budgets: Budgets
) -> Reason | None:
    """Why the limits and the budget of the site forbid all fleets of at least so many nodes and this price.

    ``nodes``, ``price``: of the best one, for people.
    """
    limits = policy.limits
    if fewest > limits.nodes_max or least > limits.price_per_hour_max:
        return because(
            Code.BEYOND_LIMITS,
            node_count=nodes,
            nodes_max=limits.nodes_max,
            price_per_hour=price,
            price_per_hour_max=limits.price_per_hour_max,
        )
    for period in PERIODS:
        budget = budgets.get((WHOLE_SITE, period))
        if budget is not None and least > budget:
            return _beyond_budget("the site", period, budget, nodes, price)
    return None


def _pieces_on_own_nodes(shape: Shape, supply: Supply) -> int:
    """How many pieces of a job fit on nodes of the instance that are no slots of the site."""
    constrained = shape.constraint is not ANYWHERE
    return sum(
        pieces_in(rank.cores, rank.gpus, shape)
        for rank in supply.own_ranks
        if not constrained or supply.matches.suits(shape.constraint, rank.rank)
    )


# --- explain why a job gets no nodes now, with what may still be bought -----------------------------------
#
# ``never`` explains why it never does.


def by_preference(policy: Policy, shape: Shape) -> Iterator[NodeType]:
    """The node types, the cheapest first; types that are too small for what the job asks for come last.

    They are found one by one: of a long price list most jobs need only the first.
    """
    cores, gpus = (slots_per_piece(shape) * it for it in (shape.cores_per_slot, shape.gpus_per_slot))
    too_small = []
    for node_type in policy.types_by_price:
        if node_type.cores < cores or node_type.gpus < gpus:
            too_small.append(node_type)
        else:
            yield node_type
    yield from too_small


def memory_per_piece(shape: Shape, supply: Supply) -> int:
    """The memory that a node bought for the job must have for each piece; 0 if the site's slots never have so much.

    Flux ignores memory and starts the job wherever its cores fit, so it must not wait for memory that does not
    exist.
    """
    wanted = shape.memory_bytes_per_slot * slots_per_piece(shape)
    if not wanted:
        return 0
    short = pieces_of(shape)
    for node_type in supply.policy.node_types:
        is_closed = node_type.only_for is OnlyFor.GPU and not shape.gpus_per_slot
        if node_type.memory_bytes >= wanted and not is_closed:
            each = pieces_per_node(node_type, shape, wanted)
            short -= each * supply.count_slots_for(node_type, shape.constraint) if each else 0
            if short <= 0:
                return wanted
    return 0


NO_MORE = "no schedule allows more within a week"


@dataclass(frozen=True, slots=True)
class LeftToBuy:
    """What may still be bought after the purchases for the jobs ahead."""

    free: Mapping[TypeName, int]  # slots, by type
    nodes: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class _Exhausted:
    """The first type that has too few nodes left for a job, and the limits that are left after them."""

    node_type: NodeType
    each: int  # how many pieces of the job a node takes
    slots: int
    has_free: bool
    nodes_left: int
    price_left: Decimal


def why_not_now(  # noqa: C901 - one arm a cause
    shape: Shape, want: int, supply: Supply, left: LeftToBuy, may_buy: Callable[[NodeType], bool]
) -> Obstacle:
    """The first obstacle to ``want`` pieces of a job that a fleet without other jobs could serve.

    The figure ``short`` of its reason counts nodes of the type it names: those that are still missing if the job
    got everything that is free or may be bought. ``may_buy``: whether nodes of a type are bought for the job.
    """
    policy = supply.policy
    nodes_left, price_left = left.nodes, left.price
    first: Reason | _Exhausted | None = None
    full: TypeName | None = None
    share_max: Reason | None = None
    within_share = 0  # how many pieces all slots could take, as far as spot_share_max allows
    memory = memory_per_piece(shape, supply)
    lacks = want
    for node_type in filter(may_buy, by_preference(policy, shape)):
        name, each = node_type.name, pieces_per_node(node_type, shape, memory)
        slots = supply.count_slots_for(node_type, shape.constraint) if each else 0
        if not slots or want <= 0:
            continue
        if name in supply.blocked:
            if first is None or (isinstance(first, _Exhausted) and first.slots * first.each < lacks):
                first = supply.blocked[name]  # a type whose slots are all too few needs the others in any case
            full = full or (name if supply.is_full_for(node_type) else None)
            continue
        node_type = supply.cheapest(node_type)  # noqa: PLW2901 - as the size that is bought first
        price = node_type.price_per_hour
        payable = nodes_left if price <= 0 else min(nodes_left, int(price_left // price))
        free = min(left.free.get(name, 0), supply.count_free_for(node_type, shape.constraint))
        spot_left = supply.spot_left(node_type)
        within_share += each * (slots if spot_left is None else min(slots, spot_left))
        if spot_left is not None and spot_left < -(-want // each):
            share = policy.rules.spot_share_max
            share_max = share_max or because(Code.SPOT_SHARE_MAX, node_type=name, spot_share_max=share)
            if spot_left < min(free, payable):
                first = first or share_max
                continue
        taken = max(0, min(free, payable, -(-want // each)))
        want -= taken * each
        nodes_left -= taken
        price_left -= taken * price
        has_free = taken < free
        if want > 0 and (first is None or (has_free and isinstance(first, _Exhausted) and not first.has_free)):
            # A limit that keeps this type from making up for one without free slots decides.
            first = _Exhausted(node_type, each, slots, has_free, nodes_left, price_left)
    if share_max is not None and not isinstance(first, Reason) and within_share < lacks:
        first = share_max  # room below the limits would not help
    if isinstance(first, Reason):
        kind = Hindrance.SPOT_SHARE if first is share_max else Hindrance.UNAVAILABLE
        return Obstacle(Hindrance.PROVIDER_FULL if full else kind, first, full)
    if first is not None:
        return _limit_reached(first, max(1, -(-want // first.each)), shape.constraint, supply)
    # The parts fit but the whole does not: report a missing slot of the cheapest type.
    cheapest = next(filter(may_buy, by_preference(policy, shape)), None)
    if cheapest is None:  # it waits for a node that is no slot of the site
        reserved = tuple(it.name for it in policy.node_types)
        return Obstacle(Hindrance.UNAVAILABLE, because(Code.ONLY_FOR_GPU_JOBS, node_types=reserved))
    return _no_free_slot(cheapest, supply.count_slots_for(cheapest, shape.constraint), max(1, want))


def pieces_per_node(node_type: NodeType, shape: Shape, memory_bytes: int = 0) -> int:
    """How many pieces of a job an empty node of the type takes, as the scheduler counts them.

    At most 1 if the pieces need different nodes. ``memory_bytes``: the memory of each piece, which only matters for
    nodes to buy; the scheduler ignores it.
    """
    if memory_bytes:
        return min(pieces_per_node(node_type, shape), node_type.memory_bytes // memory_bytes)
    return pieces_in(node_type.cores, node_type.gpus, shape)


def pieces_in(cores: int, gpus: int, shape: Shape) -> int:
    """How many pieces of a job an empty node with these cores and GPUs takes."""
    slots = 1 if shape.exclusive else slots_per_piece(shape)
    if cores < slots * shape.cores_per_slot or gpus < slots * shape.gpus_per_slot:
        return 0
    if shape.nodes is not None or shape.exclusive:
        return 1
    by_cores = cores // max(1, shape.cores_per_slot)
    return min(by_cores, gpus // shape.gpus_per_slot) if shape.gpus_per_slot else by_cores


def _limit_reached(first: _Exhausted, short: int, constraint: Constraint, supply: Supply) -> Obstacle:
    node_type, policy = first.node_type, supply.policy
    if not first.has_free and supply.is_held_back(node_type.name):
        reason = _with_end(type_limit(policy.types[node_type.name], short), policy.types[node_type.name], supply)
        return Obstacle(Hindrance.NO_FREE_SLOT, reason, node_type.name)
    if not first.has_free:
        held_back = supply.why_no_more(node_type, constraint)
        if held_back is not None:
            return Obstacle(Hindrance.PROVIDER_FULL, held_back, node_type.name)
        return _no_free_slot(node_type, first.slots, short)
    if first.nodes_left <= 0:
        reason = because(Code.NODES_MAX, node_type=node_type.name, nodes_max=policy.limits.nodes_max, short=short)
        return Obstacle(Hindrance.LIMIT_REACHED, reason)
    if supply.budget_left is not None:
        return Obstacle(Hindrance.UNAVAILABLE, supply.budget_left)
    reason = because(
        Code.PRICE_PER_HOUR_MAX,
        node_type=node_type.name,
        price_per_hour=node_type.price_per_hour,
        left=first.price_left,
        price_per_hour_max=policy.limits.price_per_hour_max,
    )
    return Obstacle(Hindrance.LIMIT_REACHED, reason)


def type_limit(node_type: NodeType, short: int) -> Reason:
    """A schedule's limits of a type allow too few nodes."""
    most, schedule = nodes_max_of_type(node_type) or 0, node_type.limits.schedule
    return because(Code.TYPE_LIMIT, schedule=schedule, node_type=node_type.name, nodes_max=most, short=short)


def _with_end(reason: Reason, node_type: NodeType, supply: Supply) -> Reason:
    """The reason with when schedules allow more nodes of the type; or that they never do."""
    most = nodes_max_of_type(node_type) or 0
    for from_at, later in supply.limits_ahead:
        then = nodes_max_of_type(later.types[node_type.name])
        if then is None or then > most:
            return reason.with_figures(until_at=from_at)
    return reason.with_figures(ends=NO_MORE)


def _no_free_slot(node_type: NodeType, slots: int, short: int) -> Obstacle:
    reason = because(Code.NO_FREE_SLOT, node_type=node_type.name, slots=slots, short=short)
    return Obstacle(Hindrance.NO_FREE_SLOT, reason, node_type.name)


def why_no_type_fits(shape: Shape, policy: Policy) -> Reason:
    """No type could ever serve it: name the nearest one, and what it lacks."""
    nearest = max(policy.node_types, key=lambda it: (-len(_lacks(it, shape)), it.cores), default=None)
    if nearest is None:
        return because(Code.NO_NODE_TYPE)
    return because(Code.NO_TYPE_FITS, nearest=nearest.name, lacks=_lacks(nearest, shape))


def _lacks(node_type: NodeType, shape: Shape) -> tuple[str, ...]:
    return _lacks_size(node_type, shape) or ("constraint: not met by any of its slots",)


def _lacks_size(node_type: NodeType, shape: Shape) -> tuple[str, ...]:
    slots = slots_per_piece(shape)
    lacks = []
    if node_type.cores < slots * shape.cores_per_slot:
        lacks.append(f"cores: has {node_type.cores}, needs {slots * shape.cores_per_slot}")
    if node_type.gpus < slots * shape.gpus_per_slot:
        lacks.append(f"gpus: has {node_type.gpus}, needs {slots * shape.gpus_per_slot}")
    return tuple(lacks)


# --- refused gangs ----------------------------------------------------------------------------------------
#
# Find jobs of several nodes that are to be put off: the provider refused a node, and nothing makes up for it.


REFUSALS = (FailureKind.CAPACITY, FailureKind.QUOTA)
ORDERED = (NodeState.REQUESTED, NodeState.BOOTING)


def note_refused_node(snapshot: Snapshot, node: Node, kind: FailureKind, detail: str, policy: Policy) -> Snapshot:
    """Put off the jobs of several nodes for which a refused node was bought, if nothing else makes up for it."""
    if kind not in REFUSALS:
        return snapshot
    for shape, _, _, pieces in node.create.load:
        if pieces_of(shape) <= pieces:
            continue
        if is_put_off(shape, snapshot):
            snapshot = note_granted(snapshot, shape, node)  # another node of the same try
        elif not _may_be_filled(shape, snapshot, policy):
            snapshot = put_off(snapshot, shape, node, detail, policy)
    return snapshot


def _may_be_filled(shape: Shape, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether room on the nodes that exist, and nodes that may be bought now, could take the whole job."""
    supply = current_supply(snapshot, policy, fleet_price_per_hour(snapshot, policy))
    zones = dict.fromkeys(zone for it in policy.node_types for zone in zones_of(it)) if shape.one_zone else (None,)
    return any(_may_be_filled_in(zone, shape, supply) for zone in zones)


def _may_be_filled_in(zone: str | None, shape: Shape, supply: Supply) -> bool:
    """The same for nodes of one zone; of all zones if it is None."""
    policy, counts = supply.policy, dict[TypeName, int]()
    nodes_left, price_left = supply.nodes_left, supply.price_left
    pieces = _pieces_on_nodes(zone, shape, supply)
    for node_type in policy.node_types:
        each = pieces_per_node(node_type, shape)
        if not each:
            continue
        usable = pieces[node_type.name] // each
        nodes_left += usable
        price_left += max(0, usable - node_type.prepaid) * node_type.price_per_hour
        may_get_more = _is_on_sale(node_type, zone, supply) and may_buy(node_type, shape, supply)
        more = supply.count_free_for(node_type, shape.constraint) if may_get_more else 0
        if (spot_left := supply.spot_left(node_type)) is not None:
            more = min(more, spot_left)
        counts[node_type.name] = usable + more
    limits = replace(policy.limits, nodes_max=max(0, nodes_left), price_per_hour_max=max(Decimal(0), price_left))
    return may_serve(shape, replace(supply, policy=replace(policy, limits=limits)), counts)


def _is_on_sale(node_type: NodeType, zone: str | None, supply: Supply) -> bool:
    """Whether nodes of the type may be bought now, in this zone if one is given."""
    sizes = supply.on_sale.get(node_type.name, ())
    if zone is None:
        return bool(sizes)
    return any(zone in zones_of(it) and block_on(it, zone, supply.snapshot) is None for it in sizes)


def _pieces_on_nodes(zone: str | None, shape: Shape, supply: Supply) -> Mapping[TypeName, int]:
    """How many pieces of the job there is room for, by type: on nodes that are up, and on those that boot.

    A node whose create is not answered yet counts if its type is not refused.
    """
    snapshot, types, pieces = supply.snapshot, supply.policy.types, Counter[TypeName]()
    for node in snapshot.nodes.values():
        node_type, rank = types.get(node.launch.type_name), node.rank
        if node_type is None or zone not in (None, node.launch.zone):
            continue
        if shape.constraint is not ANYWHERE:
            place = snapshot.slots.rank_of_slot.get(node.launch.slot)
            if place is None or not supply.matches.suits(shape.constraint, place):
                continue
        if rank is not None and rank.online:
            is_empty = rank.cores_free == rank.cores
            if rank.schedulable:
                pieces[node_type.name] += pieces_that_fit(shape, rank.cores_free, rank.gpus_free, is_empty=is_empty)
        elif node.state in ORDERED and (node.exists_at_provider or node_type.name not in supply.blocked):
            pieces[node_type.name] += pieces_per_node(node_type, shape)
    return pieces
