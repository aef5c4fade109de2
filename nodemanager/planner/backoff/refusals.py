"""Back off after refused creates.

A refusal blocks its scope for a while, and longer each time it recurs (:func:`apply_refusal`). A refusal for lack
of quota teaches how many nodes the provider allows. The manager then buys up to that number whenever needed, and
tries one more after a while.
"""

from __future__ import annotations

from dataclasses import replace

from nodemanager.core.nodes import FailureKind, QuotaScope
from nodemanager.planner.backoff.scopes import count_granted
from nodemanager.planner.backoff.zones import scopes_of, zone_scope
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import ALL_TYPES, Block, Quota, Scope, Snapshot

# Failures that pass by themselves: each time one recurs, the wait doubles.
TRANSIENT_KINDS = frozenset({FailureKind.TRANSIENT, FailureKind.THROTTLED, FailureKind.GONE})


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
