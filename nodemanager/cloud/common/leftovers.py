"""Decides which leftovers of terminated nodes are safe to delete, and makes placement groups, which may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Leftover, LeftoverKind, ProviderId
from nodemanager.core.ports import CloudError

T = TypeVar("T")


class LeftoverSweeper:
    """Deletes a leftover only if two sweeps in a row found it, so a create in progress keeps its resources."""

    def __init__(self) -> None:
        self._seen_before: frozenset[Leftover] = frozenset()

    def sweep(self, left: frozenset[Leftover], remove: Callable[[Leftover], None]) -> tuple[Leftover, ...]:
        """Delete the leftovers in ``left`` that the previous sweep found too, and return the deleted ones.

        Raises ``CloudError`` only if every deletion failed.
        """
        twice_seen = sorted(left & self._seen_before, key=lambda leftover: leftover.provider_id)
        removed: list[Leftover] = []
        failed: CloudError | None = None
        for leftover in twice_seen:
            try:
                remove(leftover)
                removed.append(leftover)
            except CloudError as error:
                failed = error  # continue with the others; the next sweep finds this one again
        self._seen_before = left - frozenset(removed)
        if failed is not None and not removed:
            raise failed
        return tuple(removed)


# --- placement groups: made before the first node in them, and swept once no node uses them ---------------
#
# The name of a node's group is in its launch, which is on record before anything is made. Making a group that
# exists is no error. So after a crash a repeated create finds the group, and a sweep finds one left behind.


class KnownGroups:
    """The groups that one port has made or found, each with the provider's reference to it.

    ``make`` makes the group of that name unless it exists, and returns the reference. ``is_missing`` says whether a
    create was refused because its group does not exist, which proves that no node was created.
    """

    def __init__(self, make: Callable[[str], str], is_missing: Callable[[CloudError], bool]) -> None:
        self._make = make
        self._is_missing = is_missing
        self._references: dict[str, str] = {}

    def create_in(self, group: str, create: Callable[[str], T]) -> T:
        """Call ``create`` with the reference of the group, or with "" for no group. Raises :class:`CloudError`.

        A sweep may have deleted a group that this port knows. Then it is made again, and the create repeated once.
        """
        if not group or group not in self._references:
            return create(self._reference(group) if group else "")
        try:
            return create(self._references[group])
        except CloudError as error:
            if not self._is_missing(error):
                raise
        del self._references[group]
        return create(self._reference(group))

    def _reference(self, group: str) -> str:
        self._references[group] = reference = self._make(group)
        return reference


def unused_groups(groups: Mapping[str, str], nodes: Iterable[CloudNode]) -> frozenset[Leftover]:
    """The groups, given as provider's id and name, that none of the nodes is in.

    List the groups before the nodes: a node may be created in between.
    """
    used = {node.group for node in nodes if node.state is not CloudState.TERMINATED}
    return frozenset(
        Leftover(LeftoverKind.GROUP, ProviderId(id_)) for id_, name in groups.items() if name not in used
    )


def groups_if_allowed(list_groups: Callable[[], Mapping[str, str]], *, needed: bool) -> Mapping[str, str]:
    """The groups that ``list_groups`` finds.

    A site that needs none may lack the right to list them, or a provider that knows them.
    """
    try:
        return list_groups()
    except CloudError as error:
        if needed or error.kind not in (FailureKind.CREDENTIALS, FailureKind.GONE):
            raise
        return {}
