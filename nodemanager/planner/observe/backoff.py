"""Back off after refused creates and failed boots.

A refusal blocks its scope for a while, and longer each time it recurs (:func:`apply_refusal`). A refusal for lack
of quota teaches how many nodes the provider allows. The manager then buys up to that number whenever needed, and
tries one more after a while. Boots that fail in a row open the breaker of their node type and image: no more of it
is bought until a trial boot. Only boots ordered by this process count: for others the image is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from nodemanager.core.nodes import FailureKind, LaunchId, NodeState, QuotaScope
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, Market, NodeType, TypeName
from nodemanager.planner.cost.cloud_room import CloudRoom, room_of
from nodemanager.planner.observe.zones import block_on_all_zones, block_reason, scopes_of, zone_scope
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import bought_as, node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import (
    ALL_TYPES,
    Block,
    Bought,
    FailureStreak,
    Quota,
    Scope,
    Snapshot,
)

NOT_UP_YET = (NodeState.REQUESTED, NodeState.BOOTING)

# Failures that pass by themselves: each time one recurs, the wait doubles.
TRANSIENT_KINDS = frozenset({FailureKind.TRANSIENT, FailureKind.THROTTLED, FailureKind.GONE})
PROBE_S_MAX = 3600.0  # the longest pause before one node above a learned quota is tried
RETRY_S_MAX = 4 * 3600.0  # the longest pause before a trial boot while a breaker is open

DIED = "died_booting"


# --- taking in --------------------------------------------------------------------------------------------


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
    longest = max(known or block, block, key=lambda it: it.until_s)
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned, blocks={**snapshot.learned.blocks, scope: replace(longest, rounds=rounds)}
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
        if quota is not None and (standing := _count_granted(scope, snapshot, policy)) > quota.cap:
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
    pause_s = least_s if known is None else min(PROBE_S_MAX, known.pause_s * (2.0 if probed else 1.0))
    quota = Quota(
        cap=_count_granted(scope, snapshot, policy),
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


# --- boots that failed ------------------------------------------------------------------------------------


def count_ended_boots(
    before: Mapping[LaunchId, Node], changed: Mapping[LaunchId, Node], snapshot: Snapshot, policy: Policy
) -> Snapshot:
    """Count the boots that have just succeeded, and those whose node died although nobody stopped it."""
    for id_, node in changed.items():
        was = before.get(id_)
        if was is None or was.state is node.state or was.state not in NOT_UP_YET or node.state in NOT_UP_YET:
            continue
        if node.state in (NodeState.IDLE, NodeState.BUSY):
            snapshot = _forget_failures(snapshot, node)
        elif node.state is NodeState.GONE and node.cloud is not None and node.cloud.died_of is None:
            snapshot = count_failed_boot(snapshot, node, DIED, policy)
    return snapshot


def count_failed_boot(snapshot: Snapshot, node: Node, why: str, policy: Policy) -> Snapshot:
    """Count one more failed boot of the node's type and image."""
    if node.create.image is None:
        return snapshot
    key = (node.launch.type_name, node.create.image)
    known = snapshot.learned.streaks.get(key, FailureStreak(0, 0.0, 0.0, ""))
    failures = known.failures + 1
    retry_s, pause_s = known.retry_s, known.pause_s
    if failures == policy.rules.boot_failures_max:
        pause_s = policy.timing.boot_retry_s
        retry_s = snapshot.now_s + pause_s
    elif failures > policy.rules.boot_failures_max and snapshot.now_s >= known.retry_s:
        pause_s = min(RETRY_S_MAX, known.pause_s * 2.0)  # the trial boot has failed too
        retry_s = snapshot.now_s + pause_s
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned,
            streaks={**snapshot.learned.streaks, key: FailureStreak(failures, retry_s, pause_s, why)},
        ),
    )


def _forget_failures(snapshot: Snapshot, node: Node) -> Snapshot:
    key = (node.launch.type_name, node.create.image)
    if key not in snapshot.learned.streaks:
        return snapshot
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned, streaks={it: streak for it, streak in snapshot.learned.streaks.items() if it != key}
        ),
    )


# --- what may be bought -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Allowance:
    """How many more nodes quotas and breakers allow. ``take`` counts nodes as they are bought."""

    snapshot: Snapshot
    policy: Policy
    sent_only: bool = False  # count only nodes whose create was sent: used for leases that wait for theirs
    _taken: dict[Scope, int] = field(default_factory=dict)
    _clouds: dict[CloudName, CloudRoom] = field(default_factory=dict)

    def why_none(self, node_type: NodeType) -> Reason | None:
        """Why no node of the type may be bought now; None if one may."""
        broken = self._why_breaker_open(node_type)
        if broken is not None:
            return broken
        room = self._room_of(node_type)
        if room is not None and room.count_left(node_type) <= 0:
            return because(Code.CLOUD_FULL, cloud=node_type.cloud, why=room.limit_reached(node_type))
        for scope in scopes_of(node_type) if self.snapshot.learned.quotas else ():
            quota = self.snapshot.learned.quotas.get(scope)
            if quota is not None and self._left(scope, quota) <= 0:
                return because(
                    Code.AT_QUOTA,
                    scope=_scope_name(scope),
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
        for scope in (*scopes_of(node_type), _trial_scope(node_type)) if counts else ():
            self._taken[scope] = self._taken.get(scope, 0) + 1
        return True

    def _room_of(self, node_type: NodeType) -> CloudRoom | None:
        """What the limits of the type's cloud leave; None if it has none of its own."""
        if not self.policy.limits_of(node_type.cloud):
            return None
        if node_type.cloud not in self._clouds:
            self._clouds[node_type.cloud] = room_of(node_type.cloud, self.snapshot, self.policy, self.sent_only)
        return self._clouds[node_type.cloud]

    def _left(self, scope: Scope, quota: Quota) -> int:
        probing = 1 if quota.probe_s <= self.snapshot.now_s else 0
        count = _count_billed(scope, self.snapshot, self.policy, self.sent_only)
        return quota.cap + probing - count - self._taken.get(scope, 0)

    def _why_breaker_open(self, node_type: NodeType) -> Reason | None:
        streak = open_breaker(node_type, self.snapshot, self.policy)
        if streak is None:
            return None
        if self.snapshot.now_s < streak.retry_s:
            return _breaker_open(node_type, streak)
        tried = self._count_trial_boots(node_type) + self._taken.get(_trial_scope(node_type), 0)
        return because(Code.BREAKER_TRYING, **_failed_boots(node_type, streak)) if tried else None

    def _count_trial_boots(self, node_type: NodeType) -> int:
        return sum(
            1
            for node in node_index_of(self.snapshot).to_check.values()
            if node.state in NOT_UP_YET
            and node.launch.type_name == node_type.name
            and (not self.sent_only or node.create.sent_s is not None)
        )


def open_breaker(node_type: NodeType, snapshot: Snapshot, policy: Policy) -> FailureStreak | None:
    """The streak of failed boots that keeps the breaker of a type and its image open; None if it is closed."""
    streak = snapshot.learned.streaks.get((node_type.name, node_type.image))
    return streak if streak is not None and streak.failures >= policy.rules.boot_failures_max else None


def open_breakers(snapshot: Snapshot, policy: Policy) -> list[Reason]:
    """For each type whose boots failed in a row and that is not tried again yet: why, and until when."""
    streaks = ((it, open_breaker(it, snapshot, policy)) for it in policy.node_types if snapshot.learned.streaks)
    return [_breaker_open(it, streak) for it, streak in streaks if streak and snapshot.now_s < streak.retry_s]


def _breaker_open(node_type: NodeType, streak: FailureStreak) -> Reason:
    return because(Code.BREAKER_OPEN, **_failed_boots(node_type, streak)).with_figures(retry_s=streak.retry_s)


def _failed_boots(node_type: NodeType, streak: FailureStreak) -> Figures:
    return {
        "node_type": node_type.name,
        "image": node_type.image,
        "failures": streak.failures,
        "why": streak.why,
    }


def unavailable_sizes(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Mapping[tuple[str, Market], Reason]]:
    """The sizes of each type that blocks, quotas or breakers keep from being bought now, each with the reason."""
    learned = snapshot.learned
    limited = any(map(policy.limits_of, policy.clouds))
    if not (learned.blocks or learned.quotas or learned.streaks or limited):
        return {}
    allowance = Allowance(snapshot, policy)

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
    if not (learned.blocks or learned.quotas or learned.streaks or learned.drain_streaks):
        return inf
    moments = (
        *(block.until_s for block in learned.blocks.values()),
        *(quota.probe_s for quota in learned.quotas.values()),
        *(streak.retry_s for streak in learned.streaks.values()),
        *(streak.until_s for streak in learned.drain_streaks.values()),
    )
    return min((moment for moment in moments if moment > snapshot.now_s), default=inf)


def _trial_scope(node_type: NodeType) -> Scope:
    """The scope under which trial boots of a type are counted while its breaker is open."""
    return Scope(node_type.name, zone="trial")


def _scope_name(scope: Scope) -> str:
    if scope.type_name != ALL_TYPES:
        return f"{scope.type_name} as {scope.size}" if scope.size else str(scope.type_name)
    return str(scope.market) if scope.market is not None else "account"


# --- counting ---------------------------------------------------------------------------------------------


def _count_granted(scope: Scope, snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes of the scope exist at the provider, as far as it has listed them."""
    return sum(node.exists_at_provider for node in _nodes_in(scope, snapshot.nodes.values(), policy))


def _count_billed(scope: Scope, snapshot: Snapshot, policy: Policy, sent_only: bool) -> int:
    """How many nodes of the scope are, or may be, billed."""
    if sent_only:
        waits = sum(
            1
            for node in _nodes_in(scope, node_index_of(snapshot).to_check.values(), policy)
            if node.state is NodeState.REQUESTED and node.create.sent_s is None
        )
        return _count_billed(scope, snapshot, policy, sent_only=False) - waits
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
