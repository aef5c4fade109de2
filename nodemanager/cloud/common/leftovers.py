"""Decides which leftovers of terminated nodes are safe to delete, for every provider."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.core.nodes import Leftover
from nodemanager.core.ports import CloudError


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
