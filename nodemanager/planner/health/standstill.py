"""Why nothing is decided now: the facts are old or doubtful, or another manager acts. Also of single clouds.

A closed cloud stops nothing of the others: nothing is bought there, and its nodes are left alone. Jobs still run on
those that are up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName
from nodemanager.planner.health.safe_mode import why_safe_mode
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Source


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
