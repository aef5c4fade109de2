"""What a refused create, and a boot that failed, say of the next one.

A refusal blocks what it concerns for a while, and for longer each time that it comes again (:func:`refused`). One
for want of quota teaches how many nodes we may have: so many are had again whenever there is need, and one more is
tried after a while. Boots that fail in a row open the breaker of their node type and image: nothing more of it is
bought until one is tried again. A node that an earlier process ordered says nothing here: its image may be another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nodemanager.core.nodes import FailureKind, LaunchId, NodeState, QuotaScope
from nodemanager.core.reasons import Figure, Reason, because
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.planner.observe.zones import scopes_of
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import (
    ALL_TYPES,
    EVERYTHING,
    Block,
    FailureStreak,
    Node,
    Quota,
    Scope,
    Snapshot,
)

NOT_UP_YET = (NodeState.REQUESTED, NodeState.BOOTING)

# What passes by itself, so it is waited out for longer each time that it does not.
TRANSIENT_KINDS = frozenset({FailureKind.TRANSIENT, FailureKind.THROTTLED, FailureKind.GONE})
PROBE_S_MAX = 3600.0  # the longest pause before one node above a learned quota is tried
RETRY_S_MAX = 4 * 3600.0  # and before a node of an open breaker is

# Why a node that never came up is given up: what says something of its image.
BOOT_FAILURES = frozenset({"never_joined", "failed_at_provider", "join_failed"})
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
    """The snapshot with what a refused create, or one that was taken back, says of the next."""
    if kind is FailureKind.QUOTA:
        return _quota_met(snapshot, node, detail, policy, retry_after_s, reach)
    scope = _scope(node, kind, policy)
    known = snapshot.blocks.get(scope)
    rounds = 1 if known is None else known.rounds + (known.until_s <= snapshot.now_s)
    wait_s = policy.block_s[kind]
    if kind in TRANSIENT_KINDS:
        wait_s = min(max(wait_s, policy.block_s_max), wait_s * 2.0 ** min(rounds - 1, 30))
    block = Block(snapshot.now_s + max(retry_after_s, wait_s), because(f"create_{kind}", detail=detail), rounds)
    longest = max(known or block, block, key=lambda it: it.until_s)
    return replace(snapshot, blocks={**snapshot.blocks, scope: replace(longest, rounds=rounds)})


def apply_success(snapshot: Snapshot, node: Node, policy: Policy) -> Snapshot:
    """The snapshot after a create brought a node: what was waited out is over, and a quota may be more."""
    node_type = policy.types.get(node.launch.type_name)
    if node_type is None:
        return snapshot
    if not (snapshot.blocks or snapshot.quotas):
        return snapshot
    scopes = (*scopes_of(node_type), Scope(node_type.name, node_type.market, node.launch.zone))
    over = [scope for scope in scopes if scope in snapshot.blocks and _is_over(snapshot.blocks[scope], snapshot)]
    if over:
        blocks = {scope: block for scope, block in snapshot.blocks.items() if scope not in over}
        snapshot = replace(snapshot, blocks=blocks)
    for scope in scopes:
        quota = snapshot.quotas.get(scope)
        if quota is not None and (standing := _standing(scope, snapshot, policy)) > quota.cap:
            # There is room: the next one is tried at once, and each success lets one more be tried.
            more = replace(quota, cap=standing, probe_s=snapshot.now_s, pause_s=policy.block_s[FailureKind.QUOTA])
            snapshot = replace(snapshot, quotas={**snapshot.quotas, scope: more})
    return snapshot


def _is_over(block: Block, snapshot: Snapshot) -> bool:
    return block.until_s <= snapshot.now_s


def _quota_met(
    snapshot: Snapshot, node: Node, detail: str, policy: Policy, retry_after_s: float, reach: QuotaScope | None
) -> Snapshot:
    """What stands is what we may have. Refused again, it is probed more rarely."""
    scope = _scope_of_quota(node, reach, policy)
    known = snapshot.quotas.get(scope)
    least_s = policy.block_s[FailureKind.QUOTA]
    probed = known is not None and known.probe_s <= snapshot.now_s
    pause_s = least_s if known is None else min(PROBE_S_MAX, known.pause_s * (2.0 if probed else 1.0))
    quota = Quota(
        cap=_standing(scope, snapshot, policy),
        probe_s=snapshot.now_s + max(retry_after_s, pause_s),
        pause_s=pause_s,
        detail=detail,
    )
    return replace(snapshot, quotas={**snapshot.quotas, scope: quota})


def _scope(node: Node, kind: FailureKind, policy: Policy) -> Scope:
    """What a refused create says something about."""
    name = node.launch.type_name
    if kind is FailureKind.CAPACITY and name in policy.types:
        return Scope(name, policy.types[name].market, node.launch.zone)
    return Scope(name) if kind in (FailureKind.CAPACITY, FailureKind.CONFIG) else EVERYTHING


def _scope_of_quota(node: Node, reach: QuotaScope | None, policy: Policy) -> Scope:
    """Where the provider does not say how far it reaches, it is taken for the account's."""
    name = node.launch.type_name
    if reach is QuotaScope.TYPE:
        return Scope(name)
    if reach is QuotaScope.MARKET and name in policy.types:
        return Scope(ALL_TYPES, policy.types[name].market)
    return EVERYTHING


# --- boots that failed ------------------------------------------------------------------------------------


def count_ended_boots(
    before: Mapping[LaunchId, Node], changed: Mapping[LaunchId, Node], snapshot: Snapshot, policy: Policy
) -> Snapshot:
    """Take in which boots have just ended well, and which by a death that nobody ordered."""
    for id_, node in changed.items():
        was = before.get(id_)
        if was is None or was.state is node.state or was.state not in NOT_UP_YET or node.state in NOT_UP_YET:
            continue
        if node.state in (NodeState.IDLE, NodeState.BUSY):
            snapshot = _boot_succeeded(snapshot, node)
        elif node.state is NodeState.GONE and node.cloud is not None and node.cloud.died_of is None:
            snapshot = count_failed_boot(snapshot, node, DIED, policy)
    return snapshot


def count_failed_boot(snapshot: Snapshot, node: Node, why: str, policy: Policy) -> Snapshot:
    """One more boot of its type and image has failed."""
    if node.image is None:
        return snapshot
    key = (node.launch.type_name, node.image)
    known = snapshot.streaks.get(key, FailureStreak(0, 0.0, 0.0, ""))
    failures = known.failures + 1
    retry_s, pause_s = known.retry_s, known.pause_s
    if failures == policy.boot_failures_max:
        pause_s = policy.boot_retry_s
        retry_s = snapshot.now_s + pause_s
    elif failures > policy.boot_failures_max and snapshot.now_s >= known.retry_s:
        pause_s = min(RETRY_S_MAX, known.pause_s * 2.0)  # the one that was tried has failed, too
        retry_s = snapshot.now_s + pause_s
    return replace(snapshot, streaks={**snapshot.streaks, key: FailureStreak(failures, retry_s, pause_s, why)})


def _boot_succeeded(snapshot: Snapshot, node: Node) -> Snapshot:
    key = (node.launch.type_name, node.image)
    if key not in snapshot.streaks:
        return snapshot
    return replace(snapshot, streaks={it: streak for it, streak in snapshot.streaks.items() if it != key})


# --- what follows -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Allowance:
    """How many more nodes may be bought, by quotas and breakers. ``take`` counts them as they are bought."""

    snapshot: Snapshot
    policy: Policy
    sent_only: bool = False  # count only nodes whose create was sent: for those that are leased and wait for it
    _taken: dict[Scope, int] = field(default_factory=dict)

    def why_none(self, node_type: NodeType) -> Reason | None:
        """Why no node of the type may be bought now; None if one may."""
        broken = self._broken(node_type)
        if broken is not None:
            return broken
        for scope in scopes_of(node_type) if self.snapshot.quotas else ():
            quota = self.snapshot.quotas.get(scope)
            if quota is not None and self._left(scope, quota) <= 0:
                return because(
                    "at_quota",
                    scope=_named(scope),
                    nodes=quota.cap,
                    detail=quota.detail,
                    until_s=max(quota.probe_s, self.snapshot.now_s),
                )
        return None

    def take(self, node_type: NodeType) -> bool:
        """Whether one more may be bought; if so, it is counted."""
        if self.why_none(node_type) is not None:
            return False
        counts = self.snapshot.quotas or self.snapshot.streaks
        for scope in (*scopes_of(node_type), _trial(node_type)) if counts else ():
            self._taken[scope] = self._taken.get(scope, 0) + 1
        return True

    def _left(self, scope: Scope, quota: Quota) -> int:
        probing = 1 if quota.probe_s <= self.snapshot.now_s else 0
        had = _counted(scope, self.snapshot, self.policy, self.sent_only)
        return quota.cap + probing - had - self._taken.get(scope, 0)

    def _broken(self, node_type: NodeType) -> Reason | None:
        streak = open_breaker(node_type, self.snapshot, self.policy)
        if streak is None:
            return None
        figures: dict[str, Figure] = {
            "node_type": node_type.name,
            "image": node_type.image,
            "failures": streak.failures,
            "why": streak.why,
        }
        if self.snapshot.now_s < streak.retry_s:
            return because("breaker_open", **figures, retry_s=streak.retry_s)
        tried = self._on_trial(node_type) + self._taken.get(_trial(node_type), 0)
        return because("breaker_trying", **figures) if tried else None

    def _on_trial(self, node_type: NodeType) -> int:
        return sum(
            1
            for node in node_index_of(self.snapshot).to_check.values()
            if node.state in NOT_UP_YET
            and node.launch.type_name == node_type.name
            and (not self.sent_only or node.create_sent_s is not None)
        )


def open_breaker(node_type: NodeType, snapshot: Snapshot, policy: Policy) -> FailureStreak | None:
    """The boots of the type and its image that failed in a row, where so many did that its breaker is open."""
    streak = snapshot.streaks.get((node_type.name, node_type.image))
    return streak if streak is not None and streak.failures >= policy.boot_failures_max else None


def unavailable_types(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Reason]:
    """The types of which no node may be bought now, by quotas and breakers."""
    if not snapshot.quotas and not snapshot.streaks:
        return {}
    allowance = Allowance(snapshot, policy)
    return {it.name: why for it in policy.node_types if (why := allowance.why_none(it)) is not None}


def _trial(node_type: NodeType) -> Scope:
    """Stands for those of a type that are tried while its breaker is open."""
    return Scope(node_type.name, node_type.market, "trial")


def _named(scope: Scope) -> str:
    if scope.type_name != ALL_TYPES:
        return str(scope.type_name)
    return str(scope.market) if scope.market is not None else "account"


# --- counting ---------------------------------------------------------------------------------------------


def _standing(scope: Scope, snapshot: Snapshot, policy: Policy) -> int:
    """How many the provider has given us, as far as it has shown them."""
    return sum(node.exists_at_provider for node in _in(scope, snapshot.nodes.values(), policy))


def _counted(scope: Scope, snapshot: Snapshot, policy: Policy, sent_only: bool) -> int:
    """How many of the scope are, or may be, on the bill."""
    if sent_only:
        waits = sum(
            1
            for node in _in(scope, node_index_of(snapshot).to_check.values(), policy)
            if node.state is NodeState.REQUESTED and node.create_sent_s is None
        )
        return _counted(scope, snapshot, policy, sent_only=False) - waits
    return sum(
        count for name, count in node_index_of(snapshot).count_by_type.items() if _is_in(scope, name, policy)
    )


def _in(scope: Scope, nodes: Iterable[Node], policy: Policy) -> Iterable[Node]:
    return (node for node in nodes if _is_in(scope, node.launch.type_name, policy))


def _is_in(scope: Scope, name: TypeName, policy: Policy) -> bool:
    if scope.type_name != ALL_TYPES:
        return name == scope.type_name
    return scope.market is None or _market_of(name, policy) is scope.market


def _market_of(name: TypeName, policy: Policy) -> Market | None:
    node_type = policy.types.get(name)
    return node_type.market if node_type is not None else None
