"""Stop buying a node type whose boots fail.

Boots that fail in a row open the breaker of their node type and image: no more of it is bought until a trial boot.
Only boots ordered by this process count: for others the image is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import FailureStreak, Snapshot

NOT_UP_YET = (NodeState.REQUESTED, NodeState.BOOTING)
RETRY_S_MAX = 4 * 3600.0  # the longest pause before a trial boot while a breaker is open
DIED = "died_booting"


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
    retry_s, pause_s, since_s = known.retry_s, known.pause_s, known.since_s
    if failures == policy.rules.boot_failures_max:
        pause_s = policy.timing.boot_retry_s
        retry_s, since_s = snapshot.now_s + pause_s, snapshot.now_s
    elif failures > policy.rules.boot_failures_max and snapshot.now_s >= known.retry_s:
        pause_s = min(RETRY_S_MAX, known.pause_s * 2.0)  # the trial boot has failed too
        retry_s = snapshot.now_s + pause_s
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned,
            streaks={**snapshot.learned.streaks, key: FailureStreak(failures, retry_s, pause_s, why, since_s)},
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


def open_breaker(node_type: NodeType, snapshot: Snapshot, policy: Policy) -> FailureStreak | None:
    """The streak of failed boots that keeps the breaker of a type and its image open; None if it is closed."""
    streak = snapshot.learned.streaks.get((node_type.name, node_type.image))
    return streak if streak is not None and streak.failures >= policy.rules.boot_failures_max else None


def open_breakers(snapshot: Snapshot, policy: Policy) -> list[Reason]:
    """For each type whose boots failed in a row and that is not tried again yet: why, and until when."""
    streaks = ((it, open_breaker(it, snapshot, policy)) for it in policy.node_types if snapshot.learned.streaks)
    return [breaker_open(it, streak) for it, streak in streaks if streak and snapshot.now_s < streak.retry_s]


def breaker_open(node_type: NodeType, streak: FailureStreak) -> Reason:
    return because(Code.BREAKER_OPEN, **failed_boots(node_type, streak)).with_figures(retry_s=streak.retry_s)


def failed_boots(node_type: NodeType, streak: FailureStreak) -> Figures:
    return {
        "node_type": node_type.name,
        "image": node_type.image,
        "failures": streak.failures,
        "why": streak.why,
    }
