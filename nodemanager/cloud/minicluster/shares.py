"""How many pods each MiniCluster may have when several share one total. Pure.

A wish that was refused is kept as an annotation of the MiniCluster for some minutes, so that the pods that others
give back go to whom they belong. A MiniCluster that has more than its share gets another annotation with the share:
its node manager drains the pods above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.cloud.minicluster.objects import SHARE_KEY, WANTED_KEY, MiniCluster
from nodemanager.cloud.minicluster.resize import Allowance
from nodemanager.ensemble.fair_share import Claim, share_nodes

WISH_S = 300.0  # longer than a refused manager waits before it asks again


def fair_shares(found: Mapping[str, MiniCluster], pods_max: int, now_at: float) -> dict[str, int]:
    """Return each MiniCluster's share of ``pods_max``. Each claims what it has, or its wish if that is fresh."""
    claims = {
        name: Claim(nodes=wish_of(it, now_at) or it.size, nodes_min=it.size_min, nodes_max=largest(it))
        for name, it in found.items()
    }
    return share_nodes(claims, pods_max)


def allowance(name: str, found: Mapping[str, MiniCluster], pods_max: int | None, now_at: float) -> Allowance:
    """Return what a MiniCluster may have now, if ``found`` holds its wish."""
    most = largest(found[name])
    limits = [Allowance(most, f"spec.maxSize is {most}")]
    if pods_max is not None:
        share = fair_shares(found, pods_max, now_at)[name]
        others = sum(_held(it) for other, it in found.items() if other != name)
        limits.append(Allowance(share, f"the fair share of {name} is {share} of {pods_max} pods"))
        left = max(0, pods_max - others)
        limits.append(Allowance(left, f"the other members still have {others} of {pods_max} pods"))
    return min(limits, key=lambda it: it.size)


def wish_of(found: MiniCluster, now_at: float) -> int:
    """The size that the MiniCluster asked for and did not get; 0 if there is none, or it is too old."""
    size, _, at = found.wanted.partition(" ")
    if not (size.isdecimal() and at.isdecimal()) or not 0 <= now_at - int(at) <= WISH_S:
        return 0
    return int(size)


def wish_text(size: int, now_at: float) -> str:
    """The value of the annotation for a wish."""
    return f"{size} {int(now_at)}"


def wish_change(found: MiniCluster, size: int, now_at: float) -> Mapping[str, str | None]:
    """What a size that is granted changes of the wish: it is fulfilled, or withdrawn by a smaller size."""
    wish = wish_of(found, now_at)
    return {WANTED_KEY: None} if found.wanted and not found.size < size < wish else {}


def share_changes(
    found: Mapping[str, MiniCluster], pods_max: int | None, now_at: float
) -> Mapping[str, Mapping[str, Any]]:
    """The annotations that must change so that those with more than their share know it, by MiniCluster."""
    shares = {} if pods_max is None else fair_shares(found, pods_max, now_at)
    changes: dict[str, Mapping[str, Any]] = {}
    for name, it in found.items():
        share = shares.get(name, it.size)
        due = str(share) if share < it.size else ""
        if due != it.share:
            changes[name] = {SHARE_KEY: due or None}
    return changes


def largest(found: MiniCluster) -> int:
    """The largest size that the operator carries out."""
    return found.size_max if found.size_max is not None else found.size


def _held(found: MiniCluster) -> int:
    """The pods that it has, those that are about to leave included."""
    return max(found.size, found.size_shown or 0)
