"""Why nothing is decided now: the facts are old or doubtful, or another manager acts. Also of single clouds.

A closed cloud stops nothing of the others: nothing is bought there, and its nodes are left alone. Jobs still run on
those that are up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot, Source


def why_standstill(
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


def why_stale(name: str, source: Source, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why a source is not decided on; None if it is fresh."""
    if source.seen_s is None:
        return because(Code.NOT_SEEN_YET, source=name, failure=source.failure)
    limit_s = policy.timing.stale_after_s
    age_s = snapshot.now_s - source.seen_s
    if age_s > limit_s:
        return because(Code.STALE, source=name, age_s=age_s, stale_after_s=limit_s, failure=source.failure)
    return None


def source_name(cloud: CloudName, policy: Policy) -> str:
    """How a cloud is called among the sources: ``cloud``, or ``cloud NAME`` if there are several."""
    return "cloud" if len(policy.cloud_names) == 1 else f"cloud {cloud}"


def stale_clouds(snapshot: Snapshot, policy: Policy) -> Mapping[CloudName, Reason]:
    """The clouds of which the list is missing or old, each with the reason."""
    found = {
        name: why_stale(source_name(name, policy), snapshot.account_of(name).source, snapshot, policy)
        for name in policy.cloud_names
    }
    return {name: why for name, why in found.items() if why is not None}


def unsafe_clouds(snapshot: Snapshot, policy: Policy) -> Mapping[CloudName, Reason]:
    """The clouds in safe mode, each with the reason."""
    found = {name: why_safe_mode(snapshot, policy, name) for name in policy.cloud_names}
    return {name: why for name, why in found.items() if why is not None}


def clouds_with_nodes(snapshot: Snapshot, policy: Policy) -> tuple[CloudName, ...]:
    """The clouds of the site, and those that it has lost while nodes were left there."""
    return (*policy.cloud_names, *_lost_clouds(snapshot, policy))


def _lost_clouds(snapshot: Snapshot, policy: Policy) -> list[CloudName]:
    recorded = set(map(policy.cloud_of_name, node_index_of(snapshot).count_by_cloud))
    return sorted(recorded.difference(policy.cloud_names))


def closed_clouds(
    snapshot: Snapshot, policy: Policy, stale: Iterable[CloudName], unsafe: Iterable[CloudName]
) -> Mapping[CloudName, Reason]:
    """The clouds in which nothing is done now, with the reason that their types and nodes show."""
    words = dict.fromkeys(unsafe, "a large part of its nodes is gone or unready at once")
    for name in stale:
        seen = snapshot.account_of(name).source.seen_s is not None
        words[name] = "it has not answered for too long" if seen else "it has not answered yet"
    for name in _lost_clouds(snapshot, policy):
        words[name] = "nodes are there, and the site has no such cloud any more"
    return {name: because(Code.CLOUD_CLOSED, cloud=name, why=why) for name, why in words.items()}


# --- safe mode: do nothing in a cloud while a report about it is more likely wrong than true --------------
#
# If a large part of a cloud's nodes disappears at once, the manager suspects the report before it acts on it.
# Safe mode begins when many nodes are unready at once (a broken network, a rank 0 that has just returned) or when
# a list lacks many nodes. It ends by itself: the manager believes a report that persists long enough.


WERE_UP = (NodeState.IDLE, NodeState.BUSY, NodeState.LOST, NodeState.DRAINING)


def why_safe_mode(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Reason | None:
    """Why nothing is done in a cloud now, and until when; None if the reports may be true."""
    account = snapshot.account_of(cloud)
    if 0 < account.doubted_lists <= policy.timing.absences:
        return because(
            Code.SAFE_MODE,
            why="the provider's list lacks a large part of the fleet at once",
            ends="it shows the nodes again, or as many lists in a row as lists_max lack them",
            lists=account.doubted_lists,
            lists_max=policy.timing.absences + 1,
        )
    if account.unready_since_s is None:
        return None
    until_s = account.unready_since_s + policy.timing.safe_mode_max_s
    if snapshot.now_s >= until_s:
        return None  # they did not return: the report is true
    unready, up = _count_unready(snapshot, policy, cloud)
    return because(
        Code.SAFE_MODE,
        why="too large a part of the fleet is unready",
        ends="no more than unready_max are, or until then",
        unready=unready,
        node_count=up,
        unready_max=_unready_allowed(up, policy),
        until_s=until_s,
    )


def safe_mode_ends_s(snapshot: Snapshot, policy: Policy) -> float:
    """When safe mode ends by itself because many nodes have stayed unready; infinity if it is not that."""
    known = (it.unready_since_s for it in snapshot.accounts.values())
    ends_s = (since_s + policy.timing.safe_mode_max_s for since_s in known if since_s is not None)
    return min((until_s for until_s in ends_s if until_s > snapshot.now_s), default=inf)


def with_unready(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The snapshot with since when too large a part of each cloud's nodes is unready, after a look at the ranks."""
    for cloud in policy.cloud_names:
        account = snapshot.account_of(cloud)
        unready, up = _count_unready(snapshot, policy, cloud)
        since_s = account.unready_since_s
        if unready <= _unready_allowed(up, policy):
            since_s = None
        elif since_s is None:
            since_s = snapshot.now_s
        if since_s != account.unready_since_s:
            snapshot = snapshot.with_account(cloud, replace(account, unready_since_s=since_s))
    return snapshot


def _count_unready(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> tuple[int, int]:
    """How many nodes of a cloud are lost or hang, and how many were up."""
    node_index = node_index_of(snapshot)
    if len(node_index.count_by_cloud) > 1:
        up = [it for it in snapshot.nodes.values() if it.state in WERE_UP and policy.cloud_of(it.launch) == cloud]
        return sum(1 for node in up if node.state is NodeState.LOST or _hangs(node)), len(up)
    if not any(policy.cloud_of_name(name) == cloud for name in node_index.count_by_cloud):
        return 0, 0
    hung = [node for node in node_index.to_check.values() if node.state in WERE_UP and _hangs(node)]
    return node_index.count_by_state.get(NodeState.LOST, 0) + len(hung), sum(
        node_index.count_by_state.get(state, 0) for state in WERE_UP
    )


def _hangs(node: Node) -> bool:
    lost = node.state is NodeState.LOST
    return not node.is_sound and not lost and node.rank is not None and node.rank.torpid


def _unready_allowed(up: int, policy: Policy) -> int:
    return max(policy.fixed.unready_nodes, int(up * policy.rules.unready_max))


# --- whether the queue has been quiet for long enough to buy nodes for it ---------------------------------


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
