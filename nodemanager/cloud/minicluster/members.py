"""The members of the gRPC service in Kubernetes: it alone changes the sizes of their MiniClusters.

Nothing is kept in memory. Wishes and shares are annotations of the MiniClusters, and each change carries the
resource version of the object that it is based on.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import structlog

from nodemanager.cloud.minicluster.client import Client, Conflict
from nodemanager.cloud.minicluster.objects import (
    ANNOTATION,
    SHARE_KEY,
    WANTED_KEY,
    MiniCluster,
    UnreadableObject,
    read_minicluster,
)
from nodemanager.cloud.minicluster.port import Paths
from nodemanager.cloud.minicluster.resize import Allowance
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.ensemble.fair_share import Claim, share_nodes
from nodemanager.ensemble.operator import OUTDATED, ChangeDenied, ChangeFailed, SizeChange

_OF_MANAGERS = re.compile(rf"{ANNOTATION}/(cluster|index-[0-9]+)")

Found = Mapping[str, MiniCluster]


class MiniClusterMembers:
    """:class:`nodemanager.ensemble.operator.MembersPort` for MiniClusters of one namespace.

    ``pods_max``: how many pods they may have together, shared fairly; None is no limit but each one's ``maxSize``.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        names: Sequence[str],
        pods_max: int | None,
        wall_at: Callable[[], float],
    ) -> None:
        self._client = client
        self._paths = {name: Paths(namespace, name).minicluster for name in names}
        self._pods_max = pods_max
        self._wall_at = wall_at
        self._lock = threading.Lock()  # one decision at a time, by one connection

    def resize(self, change: SizeChange) -> int:
        """Change the size of a MiniCluster, and return its nodes: its pods without the lead broker's.

        Only a node manager may reduce it, because only it has drained the pods that leave.
        """
        with self._lock, _as_failures():
            found = self._read(change.name)
            mini = found[change.name]
            if mini.why_unusable:
                raise ChangeFailed(f"MiniCluster {change.name}: {mini.why_unusable}", FailureKind.CONFIG)
            if change.version and change.version != mini.resource_version:
                raise ChangeFailed(f"MiniCluster {change.name} has changed since it was read", OUTDATED)
            size = self._size_of(change, mini)
            if size < mini.size:
                _check_shrink(change, mini, size)
            elif size > mini.size:
                self._check_grow(change, found, size)
            self._set_size(mini, size, change)
            return size - 1

    def status(self, name: str) -> Mapping[str, Any]:
        with self._lock, _as_failures():
            found = self._read(name)
        mini = found[name]
        allowed = allowance(name, found, self._pods_max, self._wall_at())
        size = {"size": mini.size, "min": mini.size_min, "max": largest(mini), "allowed": allowed.size}
        return {"nodes": {}, "queue": {}, "size": size, "metrics": {}}

    def keep(self) -> None:
        """Adapt the shares that the members are shown: wishes lapse."""
        try:
            with self._lock, _as_failures():
                self._show_shares(self._read_running())
        except ChangeFailed as fault:
            structlog.get_logger().warning("ensemble_members_not_kept", why=str(fault))

    # --- deciding ---

    @staticmethod
    def _size_of(change: SizeChange, mini: MiniCluster) -> int:
        if change.version or change.change < 0:
            return 1 + change.applied_to(mini.size - 1)
        # Others say how many nodes they want at least.
        return max(mini.size, 1 + change.applied_to(mini.size - 1))

    def _check_grow(self, change: SizeChange, found: Found, size: int) -> None:
        """Raise ``ChangeDenied`` if the size is too large now, and keep the wish."""
        now_at, mini = self._wall_at(), found[change.name]
        wish = wish_text(min(size, largest(mini)), now_at)
        wishing = {**found, change.name: replace(mini, wanted=wish)}
        allowed = allowance(change.name, wishing, self._pods_max, now_at)
        if size <= allowed.size:
            return
        if self._pods_max is not None and allowed.size < largest(mini):
            self._show_shares(wishing, {change.name: {WANTED_KEY: wish}})
        raise ChangeDenied(allowed.why, max(allowed.size, mini.size) - 1)

    def _show_shares(self, found: Found, more: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> None:
        """Write the shares that changed, and ``more`` annotations."""
        shares = share_changes(found, self._pods_max, self._wall_at())
        for name in {**more, **shares}:
            self._annotate(found[name], {**more.get(name, {}), **shares.get(name, {})})

    # --- the API server ---

    def _read(self, name: str) -> Found:
        """Read a member, and with a common limit the others that have pods. Raises ``ChangeFailed``."""
        if name not in self._paths:
            raise ChangeFailed(f'"{name[:200]}" is no member: {", ".join(self._paths)}', FailureKind.CONFIG)
        others = self._read_running() if self._pods_max is not None else {}
        return {**others, name: others.get(name) or self._read_one(name)}

    def _read_running(self) -> Found:
        """Read all members, but those that were deleted or have finished."""
        found = {}
        for name in self._paths:
            try:
                mini = self._read_one(name)
            except CloudError as error:
                if error.kind is not FailureKind.CONFIG:
                    raise
                structlog.get_logger().info("ensemble_member_missing", ensemble=name, why=error.detail)
            else:
                if not mini.finished:
                    found[name] = mini
        return found

    def _read_one(self, name: str) -> MiniCluster:
        return read_minicluster(self._client.get(self._paths[name]))

    def _set_size(self, mini: MiniCluster, size: int, change: SizeChange) -> None:
        annotations = {
            **{key: value for key, value in change.annotations.items() if _OF_MANAGERS.fullmatch(key)},
            **wish_change(mini, size, self._wall_at()),
        }
        if size == mini.size and not annotations:
            return
        self._client.patch(
            self._paths[mini.name],
            {
                "metadata": {"resourceVersion": mini.resource_version, "annotations": annotations},
                "spec": {"size": size},
            },
        )

    def _annotate(self, mini: MiniCluster, annotations: Mapping[str, Any]) -> None:
        """Change annotations. If somebody else has changed the object meanwhile, the next request repeats it."""
        changed = {"metadata": {"resourceVersion": mini.resource_version, "annotations": dict(annotations)}}
        try:
            self._client.patch(self._paths[mini.name], changed)
        except Conflict:
            return


def _check_shrink(change: SizeChange, mini: MiniCluster, size: int) -> None:
    if not change.version:
        raise ChangeDenied(
            "jobs may run on the pods that would leave: the node manager of the MiniCluster reduces its size when "
            "they are drained",
            mini.size - 1,
        )
    if size < mini.size_min:
        raise ChangeDenied(f"spec.minSize is {mini.size_min}", mini.size - 1)


@contextmanager
def _as_failures() -> Iterator[None]:
    try:
        yield
    except Conflict as error:
        raise ChangeFailed(str(error), OUTDATED) from error
    except UnreadableObject as error:
        raise ChangeFailed(f"a MiniCluster cannot be read: {error}", FailureKind.CONFIG) from error
    except CloudError as error:
        raise ChangeFailed(error.detail, error.kind) from error


# --- how many pods each MiniCluster may have when several share one total ---------------------------------
#
# Pure.
#
# A wish that was refused is kept as an annotation of the MiniCluster for some minutes, so that the pods that
# others give back go to whom they belong. A MiniCluster that has more than its share gets another annotation with
# the share: its node manager drains the pods above it.


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
