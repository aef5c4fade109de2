"""Back off after refused creates.

A refusal blocks its scope for a while, and longer each time it recurs (:func:`apply_refusal`). A refusal for lack
of quota teaches how many nodes the provider allows. The manager then buys up to that number whenever needed, and
tries one more after a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from types import MappingProxyType

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Shape
from nodemanager.core.nodes import FailureKind, NodeState, QuotaScope, group_name
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, Market, NodePlacement, NodeType, Rank, TypeName
from nodemanager.planner import billing, timings
from nodemanager.planner.billing import CloudRoom, room_of
from nodemanager.planner.breakers import NOT_UP_YET, breaker_open, failed_boots, open_breaker
from nodemanager.planner.constraints import holds
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import bought_as, node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.seating import pieces_of, pieces_that_fit
from nodemanager.planner.snapshot import ALL_TYPES, Block, Bought, Node, Quota, RefusedGang, Scope, Snapshot

# Failures that pass by themselves, or when somebody mends a permission: each time one recurs, the wait doubles.
TRANSIENT_KINDS = frozenset(
    {FailureKind.TRANSIENT, FailureKind.THROTTLED, FailureKind.GONE, FailureKind.CREDENTIALS}
)


def apply_refusal(
    snapshot: Snapshot,
    node: Node,
    kind: FailureKind,
    detail: str,
    policy: Policy,
    retry_after_s: float = 0.0,
    reach: QuotaScope | None = None,
) -> Snapshot:
    """The snapshot after a refused create, or after the provider took a node back: block what it concerns."""
    if kind is FailureKind.QUOTA:
        return _learn_quota(snapshot, node, detail, policy, retry_after_s, reach)
    scope = _refusal_scope(node, kind, policy)
    known = snapshot.learned.blocks.get(scope)
    rounds = 1 if known is None else known.rounds + (known.until_s <= snapshot.now_s)
    wait_s = policy.fixed.block_s[kind]
    if kind in TRANSIENT_KINDS:
        wait_s = min(max(wait_s, policy.fixed.block_s_max), wait_s * 2.0 ** min(rounds - 1, 30))
    block = Block(snapshot.now_s + max(retry_after_s, wait_s), kind, detail, rounds)
    since_s = known.since_s if known is not None else snapshot.now_s
    longest = max(known or block, block, key=lambda it: it.until_s)
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned,
            blocks={**snapshot.learned.blocks, scope: replace(longest, rounds=rounds, since_s=since_s)},
        ),
    )


def apply_success(snapshot: Snapshot, node: Node, policy: Policy) -> Snapshot:
    """The snapshot after a successful create: expired blocks end, and a learned quota may grow."""
    node_type = policy.type_as_bought(node.launch)
    if node_type is None:
        return snapshot
    if not (snapshot.learned.blocks or snapshot.learned.quotas):
        return snapshot
    scopes = (*scopes_of(node_type), zone_scope(node_type, node.launch.zone))
    over = [
        scope
        for scope in scopes
        if scope in snapshot.learned.blocks and _has_expired(snapshot.learned.blocks[scope], snapshot)
    ]
    if over:
        blocks = {scope: block for scope, block in snapshot.learned.blocks.items() if scope not in over}
        snapshot = replace(snapshot, learned=replace(snapshot.learned, blocks=blocks))
    for scope in scopes:
        quota = snapshot.learned.quotas.get(scope)
        if quota is not None and (standing := count_granted(scope, snapshot, policy)) > quota.cap:
            # The quota is larger than learned. Try the next node at once; each success allows one more.
            more = replace(
                quota, cap=standing, probe_s=snapshot.now_s, pause_s=policy.fixed.block_s[FailureKind.QUOTA]
            )
            snapshot = replace(
                snapshot, learned=replace(snapshot.learned, quotas={**snapshot.learned.quotas, scope: more})
            )
    return snapshot


def _has_expired(block: Block, snapshot: Snapshot) -> bool:
    return block.until_s <= snapshot.now_s


def _learn_quota(
    snapshot: Snapshot, node: Node, detail: str, policy: Policy, retry_after_s: float, reach: QuotaScope | None
) -> Snapshot:
    """Learn a quota: the nodes that exist now are what the provider allows. A failed probe doubles the pause."""
    scope = _quota_scope(node, reach, policy)
    known = snapshot.learned.quotas.get(scope)
    least_s = policy.fixed.block_s[FailureKind.QUOTA]
    probed = known is not None and known.probe_s <= snapshot.now_s
    pause_s = least_s if known is None else min(policy.fixed.probe_s_max, known.pause_s * (2.0 if probed else 1.0))
    quota = Quota(
        cap=count_granted(scope, snapshot, policy),
        probe_s=snapshot.now_s + max(retry_after_s, pause_s),
        pause_s=pause_s,
        detail=detail,
    )
    return replace(snapshot, learned=replace(snapshot.learned, quotas={**snapshot.learned.quotas, scope: quota}))


def _refusal_scope(node: Node, kind: FailureKind, policy: Policy) -> Scope:
    """What a refused create blocks. Of a type with several sizes, it is only the size that was refused."""
    if kind not in (FailureKind.CAPACITY, FailureKind.CONFIG):
        return Scope(ALL_TYPES, cloud=policy.cloud_of(node.launch))
    node_type = policy.type_as_bought(node.launch)
    if kind is FailureKind.CAPACITY and node_type is not None:
        return zone_scope(node_type, node.launch.zone)
    return _type_scope(node, policy)


def _type_scope(node: Node, policy: Policy) -> Scope:
    """The scope of a node's type; of the size it was bought as, if the type has several."""
    node_type = policy.types.get(node.launch.type_name)
    sized = node_type is not None and bool(node_type.sizes)
    return Scope(node.launch.type_name, size=node.launch.size if sized else "")


def _quota_scope(node: Node, reach: QuotaScope | None, policy: Policy) -> Scope:
    """What a refusal for lack of quota limits: the whole account, unless the provider says otherwise."""
    if reach is QuotaScope.TYPE:
        return _type_scope(node, policy)
    node_type = policy.type_as_bought(node.launch)
    if reach is QuotaScope.MARKET and node_type is not None:
        return Scope(ALL_TYPES, node_type.market, cloud=node_type.cloud)
    return Scope(ALL_TYPES, cloud=policy.cloud_of(node.launch))


# --- how many nodes of each type quotas, blocks and breakers allow to buy now -----------------------------


# What nodes bought now may cost per hour by the budgets of clouds, and why no more.
BudgetsLeft = Mapping[CloudName, tuple[Decimal, Reason]]
NO_BUDGETS: BudgetsLeft = MappingProxyType({})


@dataclass(slots=True)
class Allowance:
    """How many more nodes quotas and breakers allow. ``take`` counts nodes as they are bought."""

    snapshot: Snapshot
    policy: Policy
    sent_only: bool = False  # count only nodes whose create was sent: used for leases that wait for theirs
    budget_left: BudgetsLeft = field(default_factory=lambda: NO_BUDGETS)
    _taken: dict[Scope, int] = field(default_factory=dict)
    _clouds: dict[CloudName, CloudRoom] = field(default_factory=dict)

    def why_none(self, node_type: NodeType) -> Reason | None:
        """Why no node of the type may be bought now; None if one may."""
        broken = self._why_breaker_open(node_type)
        if broken is not None:
            return broken
        room = self._room_of(node_type)
        if room is not None and (full := room.why_none(node_type)) is not None:
            return full
        for scope in scopes_of(node_type) if self.snapshot.learned.quotas else ():
            quota = self.snapshot.learned.quotas.get(scope)
            if quota is not None and self._left(scope, quota) <= 0:
                return because(
                    Code.AT_QUOTA,
                    scope=scope_name(scope),
                    node_count=quota.cap,
                    detail=quota.detail,
                    until_s=max(quota.probe_s, self.snapshot.now_s),
                )
        return None

    def count_left(self, node_type: NodeType) -> int | None:
        """How many more nodes of the type may be bought as this size; None if no quota is known."""
        quotas = self.snapshot.learned.quotas
        left = [self._left(scope, quotas[scope]) for scope in scopes_of(node_type) if scope in quotas]
        if (room := self._room_of(node_type)) is not None:
            left.append(room.count_left(node_type))
        return max(0, min(left)) if left else None

    def take(self, node_type: NodeType) -> bool:
        """Whether one more may be bought; if so, it is counted."""
        if self.why_none(node_type) is not None:
            return False
        if (room := self._room_of(node_type)) is not None:
            room.take(node_type)
        counts = self.snapshot.learned.quotas or self.snapshot.learned.streaks
        for scope in (*scopes_of(node_type), trial_scope(node_type)) if counts else ():
            self._taken[scope] = self._taken.get(scope, 0) + 1
        return True

    def _room_of(self, node_type: NodeType) -> CloudRoom | None:
        """What the limits of the type's cloud leave; None if it has none of its own."""
        cloud, left = node_type.cloud, self.budget_left.get(node_type.cloud)
        if left is None and not self.policy.has_limits(cloud):
            return None
        if cloud not in self._clouds:
            self._clouds[cloud] = room_of(
                cloud, self.snapshot, self.policy, sent_only=self.sent_only, budget_left=left
            )
        return self._clouds[cloud]

    def _left(self, scope: Scope, quota: Quota) -> int:
        probing = 1 if quota.probe_s <= self.snapshot.now_s else 0
        count = count_billed(scope, self.snapshot, self.policy, self.sent_only)
        return quota.cap + probing - count - self._taken.get(scope, 0)

    def _why_breaker_open(self, node_type: NodeType) -> Reason | None:
        streak = open_breaker(node_type, self.snapshot, self.policy)
        if streak is None:
            return None
        if self.snapshot.now_s < streak.retry_s:
            return breaker_open(node_type, streak)
        tried = self._count_trial_boots(node_type) + self._taken.get(trial_scope(node_type), 0)
        return because(Code.BREAKER_TRYING, **failed_boots(node_type, streak)) if tried else None

    def _count_trial_boots(self, node_type: NodeType) -> int:
        return sum(
            1
            for node in node_index_of(self.snapshot).to_check.values()
            if node.state in NOT_UP_YET
            and node.launch.type_name == node_type.name
            and (not self.sent_only or node.create.sent_s is not None)
        )


def unavailable_sizes(
    snapshot: Snapshot, policy: Policy, budget_left: BudgetsLeft = NO_BUDGETS
) -> Mapping[TypeName, Mapping[tuple[str, Market], Reason]]:
    """The sizes of each type that blocks, quotas, breakers or clouds keep from being bought now, and why."""
    learned = snapshot.learned
    limited = bool(budget_left) or any(map(policy.has_limits, policy.clouds))
    if not (learned.blocks or learned.quotas or learned.streaks or limited):
        return {}
    allowance = Allowance(snapshot, policy, budget_left=budget_left)

    def why_none(node_type: NodeType) -> Reason | None:
        block = block_on_all_zones(node_type, snapshot)
        return block_reason(block) if block is not None else allowance.why_none(node_type)

    return {
        name: {(it.size, it.market): why for it in sizes if (why := why_none(it)) is not None}
        for name, sizes in policy.by_size.items()
    }


def _blocked_until_s(size: NodeType, snapshot: Snapshot) -> float:
    block = block_on_all_zones(size, snapshot)
    return block.until_s if block is not None else inf


def unavailable_types(
    snapshot: Snapshot,
    policy: Policy,
    sizes: Mapping[TypeName, Mapping[tuple[str, Market], Reason]] | None = None,
) -> Mapping[TypeName, Reason]:
    """The types that cannot be bought as any size, each with the reason that ends first; and the observed ones."""
    closed = unavailable_sizes(snapshot, policy) if sizes is None else sizes
    none_left = {}
    for name, reasons in closed.items():
        sizes_of_type = policy.by_size[name]
        if len(reasons) == len(sizes_of_type):
            first = min(sizes_of_type, key=lambda it: _blocked_until_s(it, snapshot))
            none_left[name] = reasons[first.size, first.market]
    observed = {name: because(Code.ONLY_OBSERVED, node_type=name) for name in policy.observed}
    return {**none_left, **_in_closed_clouds(snapshot, policy), **observed}


def _in_closed_clouds(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Reason]:
    closed = snapshot.closed_clouds
    return {it.name: closed[it.cloud] for it in policy.node_types if it.cloud in closed} if closed else {}


def retry_at_s(snapshot: Snapshot) -> float:
    """When the next refused or failed kind of node, or a user put off, gets nodes again; infinity if none waits."""
    learned = snapshot.learned
    if not (learned.blocks or learned.quotas or learned.streaks or learned.drain_streaks or learned.gangs):
        return inf
    moments = (
        *(block.until_s for block in learned.blocks.values()),
        *(quota.probe_s for quota in learned.quotas.values()),
        *(streak.retry_s for streak in learned.streaks.values()),
        *(streak.until_s for streak in learned.drain_streaks.values()),
        *(gang.until_s for gang in learned.gangs.values()),
    )
    return min((moment for moment in moments if moment > snapshot.now_s), default=inf)


# --- scopes -----------------------------------------------------------------------------------------------
#
# Which nodes a scope covers: a type, a size, a market, or the whole account; and how many of them exist.


def trial_scope(node_type: NodeType) -> Scope:
    """The scope under which trial boots of a type are counted while its breaker is open."""
    return Scope(node_type.name, zone="trial")


def scope_name(scope: Scope) -> str:
    if scope.type_name != ALL_TYPES:
        return f"{scope.type_name} as {scope.size}" if scope.size else str(scope.type_name)
    return str(scope.market) if scope.market is not None else "account"


def count_granted(scope: Scope, snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes of the scope exist at the provider, as far as it has listed them."""
    return sum(node.exists_at_provider for node in _nodes_in(scope, snapshot.nodes.values(), policy))


def count_billed(scope: Scope, snapshot: Snapshot, policy: Policy, sent_only: bool) -> int:
    """How many nodes of the scope are, or may be, billed."""
    if sent_only:
        waits = sum(
            1
            for node in _nodes_in(scope, node_index_of(snapshot).to_check.values(), policy)
            if node.state is NodeState.REQUESTED and node.create.sent_s is None
        )
        return count_billed(scope, snapshot, policy, sent_only=False) - waits
    counts = node_index_of(snapshot).count_by_size.items()
    return sum(count for bought, count in counts if _is_in_scope(scope, bought, policy))


def _nodes_in(scope: Scope, nodes: Iterable[Node], policy: Policy) -> Iterable[Node]:
    return (node for node in nodes if _is_in_scope(scope, bought_as(node.launch), policy))


def _is_in_scope(scope: Scope, bought: Bought, policy: Policy) -> bool:
    name, size, market = bought
    if scope.type_name != ALL_TYPES:
        return name == scope.type_name and scope.size in ("", size)
    node_type = policy.types.get(name)
    if node_type is not None and node_type.cloud != scope.cloud:
        return False
    return scope.market is None or (market or _market_of(name, policy)) is scope.market


def _market_of(name: TypeName, policy: Policy) -> Market | None:
    node_type = policy.types.get(name)
    return node_type.market if node_type is not None else None


# --- choose where nodes are created: in the first zone of a type that is not blocked ----------------------
#
# A create that fails for lack of capacity blocks its type in that zone and on that market for a while. The next
# zone is tried at once, then the next type. A failure of the whole account, such as bad credentials, blocks every
# type.
#
# The nodes of a type with ``placement = cluster`` are in one placement group for each zone. A job that needs
# several of them is planned as if it asked for a single zone: all its new nodes are bought in one group.


# By the kind of the failure. Kinds that block nothing are not in these tables.
REFUSED: Mapping[FailureKind, Code] = {
    FailureKind.CAPACITY: Code.CREATE_CAPACITY,
    FailureKind.THROTTLED: Code.CREATE_THROTTLED,
    FailureKind.CREDENTIALS: Code.CREATE_CREDENTIALS,
    FailureKind.CONFIG: Code.CREATE_CONFIG,
    FailureKind.GONE: Code.CREATE_GONE,
    FailureKind.TRANSIENT: Code.CREATE_TRANSIENT,
}
BLOCKED: Mapping[FailureKind, Code] = {
    FailureKind.CAPACITY: Code.BLOCKED_CREATE_CAPACITY,
    FailureKind.THROTTLED: Code.BLOCKED_CREATE_THROTTLED,
    FailureKind.CREDENTIALS: Code.BLOCKED_CREATE_CREDENTIALS,
    FailureKind.CONFIG: Code.BLOCKED_CREATE_CONFIG,
    FailureKind.GONE: Code.BLOCKED_CREATE_GONE,
    FailureKind.TRANSIENT: Code.BLOCKED_CREATE_TRANSIENT,
}


def zones_of(node_type: NodeType) -> tuple[str, ...]:
    """The zones of a type, in the order in which they are tried; "" lets the provider choose."""
    return node_type.zones or ("",)


def open_zones(node_type: NodeType, snapshot: Snapshot) -> tuple[str, ...]:
    """The zones for the type's next nodes: those that are not blocked, or the first one if all are."""
    zones = zones_of(node_type)
    if not snapshot.learned.blocks:
        return zones
    return tuple(zone for zone in zones if block_on(node_type, zone, snapshot) is None) or zones[:1]


def group_of(node_type: NodeType, zone: str, cluster_uuid: str) -> str:
    """The placement group of a type's new node in a zone; "" if it needs none."""
    clustered = node_type.placement is NodePlacement.CLUSTER
    return group_name(cluster_uuid, node_type.name, zone) if clustered else ""


def zones_passed_over(node_type: NodeType, zone: str, snapshot: Snapshot) -> tuple[str, ...]:
    """Why a node is not created in the zones that the site names before this one, in words."""
    zones = zones_of(node_type)
    before = zones[: zones.index(zone)] if zone in zones else ()
    found = ((name, block_on(node_type, name, snapshot)) for name in before)
    return tuple(f"{name} ({block.kind}: {block.detail})" for name, block in found if block is not None)


def gather_wide_jobs(fact: QueueSeen, snapshot: Snapshot, policy: Policy) -> QueueSeen:
    """The fact with ``one_zone`` set for each job that needs several nodes of a type with a placement group."""
    if not policy.clustered_types:
        return fact
    gathered = {
        request: replace(request, shape=replace(request.shape, one_zone=True))
        for request in {job.request for job in fact.jobs}
        if not request.shape.one_zone
        and any(_spans_nodes_of(of, request.shape, snapshot) for of in policy.clustered_types)
    }
    jobs = (replace(it, request=gathered[it.request]) if it.request in gathered else it for it in fact.jobs)
    return replace(fact, jobs=tuple(jobs))


def _spans_nodes_of(node_type: NodeType, shape: Shape, snapshot: Snapshot) -> bool:
    """Whether a job of this shape may run on nodes of the type, and needs more than one of them."""
    cores, gpus = shape.slots * shape.cores_per_slot, shape.slots * shape.gpus_per_slot
    if shape.nodes is not None:
        spans = shape.nodes > 1 and cores <= node_type.cores and gpus <= node_type.gpus
    else:
        spans = cores > node_type.cores or gpus > node_type.gpus
    ranks = snapshot.slots.rank_of_slot
    return spans and any(
        holds(shape.constraint, properties=node_type.properties, host=slot, rank=ranks.get(slot, Rank(-1)))
        for slot in node_type.slots
    )


def scopes_of(node_type: NodeType) -> tuple[Scope, ...]:
    """The scopes that include a type as one size, the account's first."""
    cloud = node_type.cloud
    account, market = Scope(ALL_TYPES, cloud=cloud), Scope(ALL_TYPES, node_type.market, cloud=cloud)
    scopes = account, market, Scope(node_type.name)
    return (*scopes, Scope(node_type.name, size=node_type.size)) if node_type.sizes else scopes


def zone_scope(node_type: NodeType, zone: str) -> Scope:
    """The scope of a type as one size, on its market, in one zone."""
    return Scope(node_type.name, node_type.market, zone, node_type.size if node_type.sizes else "")


def block_on(node_type: NodeType, zone: str, snapshot: Snapshot) -> Block | None:
    """What blocks the type in a zone now, the longest block; None if nothing does."""
    if not snapshot.learned.blocks:
        return None
    scopes = (*scopes_of(node_type), zone_scope(node_type, zone))
    blocks = [snapshot.learned.blocks[scope] for scope in scopes if scope in snapshot.learned.blocks]
    standing = [block for block in blocks if block.until_s > snapshot.now_s]
    return max(standing, key=lambda block: block.until_s, default=None)


def block_on_all_zones(node_type: NodeType, snapshot: Snapshot) -> Block | None:
    """The block that ends first, if no zone offers the type as this size now; None if a zone does."""
    blocks = [block_on(node_type, zone, snapshot) for zone in zones_of(node_type)]
    standing = [block for block in blocks if block is not None]
    return min(standing, key=lambda block: block.until_s) if len(standing) == len(blocks) else None


def block_reason(block: Block) -> Reason:
    """The reason that explains a block and when it ends."""
    return because(BLOCKED[block.kind], until_s=block.until_s, detail=block.detail)


def refusal_reason(block: Block) -> Reason:
    """The reason of the refused create that led to a block."""
    return because(REFUSED[block.kind], detail=block.detail)


# --- put off jobs of several nodes that the provider cannot fill ------------------------------------------
#
# ``planner.why_not`` says which these are.
#
# If the provider refuses one node of such a job, and nothing else makes up for it, the nodes that it did create
# stand idle. Only buying shows whether there are more. So the job is tried again after a pause that doubles with
# each refusal, up to an hour, whatever the billing. Meanwhile nothing is bought or kept for jobs of its shape.
#
# The pause ends early if other jobs have left so many nodes that the job's nodes and the rest of these are no
# more than existed at the refusal. For a job that wants all its nodes in one zone, only the nodes there count.


SHAPES_REMEMBERED = 1024
LAST_TRY_S = 60.0  # before the nodes of the latest try end
USABLE = (NodeState.IDLE, NodeState.BOOTING)


def gangs_put_off(snapshot: Snapshot) -> Mapping[Shape, Reason]:
    """The shapes of jobs for which no node is bought or kept now, each with the reason."""
    return {
        shape: because(
            Code.GANG_REFUSED,
            node_type=gang.type_name,
            node_count=gang.granted,
            detail=gang.detail,
            until_s=gang.until_s,
        )
        for shape, gang in snapshot.learned.gangs.items()
        if is_put_off(shape, snapshot)
    }


def is_put_off(shape: Shape, snapshot: Snapshot) -> bool:
    """Whether no node is bought or kept for jobs of the shape now."""
    gang = snapshot.learned.gangs.get(shape)
    return gang is not None and snapshot.now_s < gang.until_s


def end_pauses(snapshot: Snapshot) -> Snapshot:
    """End the pauses of jobs for which there should be enough nodes again, because other jobs have left them."""
    paused = {shape: it for shape, it in snapshot.learned.gangs.items() if snapshot.now_s < it.until_s}
    if not paused:
        return snapshot
    ended = {shape: replace(it, until_s=snapshot.now_s) for shape, it in paused.items() if _has_room(it, snapshot)}
    return _with_gangs(snapshot, {**snapshot.learned.gangs, **ended}) if ended else snapshot


def _has_room(gang: RefusedGang, snapshot: Snapshot) -> bool:
    """Whether as many nodes as existed at the refusal are enough for the job and those that others use."""
    return gang.needed is not None and _count_taken(gang, snapshot) + gang.needed <= gang.granted


def _count_taken(gang: RefusedGang, snapshot: Snapshot) -> int:
    """How many of the nodes that count other jobs use, or nobody can use."""
    return sum(it.may_be_billed and it.state not in USABLE and _counts(it, gang) for it in snapshot.nodes.values())


def count_lacking(gang: RefusedGang, snapshot: Snapshot) -> int:
    """How many nodes the job lacked at the refusal, without those that others have left since; 0 if unknown."""
    if gang.needed is None:
        return 0
    granted = sum(it.exists_at_provider and _counts(it, gang) for it in snapshot.nodes.values())
    return max(0, _count_taken(gang, snapshot) + gang.needed - max(gang.granted, granted))


def count_ended_others(gang: RefusedGang, snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes of other types have ended in its cloud since the refusal."""
    return max(0, gang.others - _count_others(gang, snapshot, policy))


def _count_others(gang: RefusedGang, snapshot: Snapshot, policy: Policy) -> int:
    cloud = policy.types[gang.type_name].cloud if gang.type_name in policy.types else None
    return sum(
        it.exists_at_provider and it.launch.type_name not in gang.types and policy.cloud_of(it.launch) == cloud
        for it in snapshot.nodes.values()
    )


def _counts(node: Node, gang: RefusedGang) -> bool:
    """Whether the node is of a type, and in a zone, that jobs like these may use."""
    return node.launch.type_name in gang.types and gang.zone in (None, node.launch.zone)


def put_off(snapshot: Snapshot, shape: Shape, node: Node, detail: str, policy: Policy) -> Snapshot:
    """Put off the jobs of a shape because the provider refused this node."""
    now_s, known = snapshot.now_s, snapshot.learned.gangs.get(shape)
    bought = [it for it in snapshot.nodes.values() if any(load[0] == shape for load in it.create.load)]
    types = frozenset((node.launch.type_name, *(it.launch.type_name for it in bought)))
    known_types = [policy.types[name] for name in types if name in policy.types]
    # A try follows soon after the pause. If it was refused long after, it had succeeded in between.
    goes_on = known is not None and now_s < known.until_s + max(known.pause_s, policy.timing.boot_timeout_s)
    least_s = policy.fixed.block_s[FailureKind.CAPACITY]
    pause_s = min(policy.fixed.probe_s_max, known.pause_s * 2.0) if known is not None and goes_on else least_s
    until_s, paid_s = now_s + pause_s, _paid_until_s(bought, snapshot, policy)
    if now_s + pause_s / 2.0 <= paid_s < until_s:
        until_s = paid_s  # the nodes are still there, so this try costs nothing
    needed = max((_nodes_needed(shape, it) for it in known_types), default=None)
    zone = node.launch.zone if shape.one_zone else None
    gang = RefusedGang(until_s, pause_s, node.launch.type_name, 0, detail, types, needed, zone)
    granted, of_others = _count_granted(gang, node, snapshot), _count_others(gang, snapshot, policy)
    gang = replace(gang, granted=granted, others=of_others)
    if _has_room(gang, snapshot):
        # It cannot use some of the nodes that exist, so their number says nothing.
        gang = replace(gang, needed=None)
    others = {it: put_off for it, put_off in snapshot.learned.gangs.items() if it != shape}
    for oldest in list(others)[: max(0, len(others) + 1 - SHAPES_REMEMBERED)]:
        del others[oldest]
    return _with_gangs(snapshot, {**others, shape: gang})


def _paid_until_s(nodes: Sequence[Node], snapshot: Snapshot, policy: Policy) -> float:
    """The last moment at which these nodes are all there for another try: just before their paid time ends."""
    ends_s = (
        billing.window_left_s(node_type.billing, billing.age_s(it, snapshot.now_s))
        - timings.stop_lead_s(snapshot, node_type.name, policy)
        for it in nodes
        if it.may_be_billed and (node_type := policy.types.get(it.launch.type_name)) is not None
    )
    return snapshot.now_s + min(ends_s, default=inf) - LAST_TRY_S


def note_granted(snapshot: Snapshot, shape: Shape, node: Node) -> Snapshot:
    """Note how many nodes exist by now: other creates of the same try were answered after the refusal."""
    gang = snapshot.learned.gangs[shape]
    granted = _count_granted(gang, node, snapshot)
    if granted <= gang.granted:
        return snapshot
    return _with_gangs(snapshot, {**snapshot.learned.gangs, shape: replace(gang, granted=granted)})


def _with_gangs(snapshot: Snapshot, gangs: Mapping[Shape, RefusedGang]) -> Snapshot:
    return replace(snapshot, learned=replace(snapshot.learned, gangs=gangs))


def _count_granted(gang: RefusedGang, refused: Node, snapshot: Snapshot) -> int:
    """How many nodes that count exist, without those that were accepted but never made."""
    return sum(
        it.exists_at_provider and _counts(it, gang)
        for it in snapshot.nodes.values()
        if it.id != refused.id and (it.cloud is None or it.cloud.died_of is None)
    )


def _nodes_needed(shape: Shape, node_type: NodeType) -> int:
    each = pieces_that_fit(shape, node_type.cores, node_type.gpus, is_empty=True)
    return -(-pieces_of(shape) // max(1, each))
