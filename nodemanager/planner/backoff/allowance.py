"""How many nodes of each type quotas, blocks and breakers allow to buy now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from types import MappingProxyType

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, Market, NodeType, TypeName
from nodemanager.planner.backoff.boot_failures import NOT_UP_YET, breaker_open, failed_boots, open_breaker
from nodemanager.planner.backoff.scopes import count_billed, scope_name, trial_scope
from nodemanager.planner.backoff.zones import block_on_all_zones, block_reason, scopes_of
from nodemanager.planner.cost.cloud_room import CloudRoom, room_of
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Quota, Scope, Snapshot

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
    if not (learned.blocks or learned.quotas or learned.streaks or learned.drain_streaks):
        return inf
    moments = (
        *(block.until_s for block in learned.blocks.values()),
        *(quota.probe_s for quota in learned.quotas.values()),
        *(streak.retry_s for streak in learned.streaks.values()),
        *(streak.until_s for streak in learned.drain_streaks.values()),
    )
    return min((moment for moment in moments if moment > snapshot.now_s), default=inf)
