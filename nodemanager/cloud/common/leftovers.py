"""How what nodes left behind is deleted, at whichever provider."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.core.nodes import Leftover
from nodemanager.core.ports import CloudError


class LeftoverSweeper:
    """Deletes what two looks in a row have found: what a create is about to use is left alone."""

    def __init__(self) -> None:
        self._seen_before: frozenset[Leftover] = frozenset()

    def sweep(self, left: frozenset[Leftover], remove: Callable[[Leftover], None]) -> tuple[Leftover, ...]:
        """Give what was deleted of what is ``left``. Raises ``CloudError`` where all that was due failed."""
        twice_seen = sorted(left & self._seen_before, key=lambda leftover: leftover.provider_id)
        removed: list[Leftover] = []
        failed: CloudError | None = None
        for leftover in twice_seen:
            try:
                remove(leftover)
                removed.append(leftover)
            except CloudError as error:
                failed = error  # the others go all the same; this one is found again
        self._seen_before = left - frozenset(removed)
        if failed is not None and not removed:
            raise failed
        return tuple(removed)
