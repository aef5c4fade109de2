"""Who is connected, and which connection gives way to a new one if there are too many.

The join service, the gRPC service and the dashboard share this rule: a connection that has proven to be of a launch
or has shown the token never gives way. Of the others, the source with the most loses its oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

C = TypeVar("C")


class OpenConnections(Generic[C]):
    """The open connections of one service. ``is_busy``: whether a connection should give way after all others."""

    def __init__(self, is_busy: Callable[[C], bool]) -> None:
        self._is_busy = is_busy
        self._proven: set[C] = set()
        self._unproven: dict[str, dict[C, None]] = {}  # of each source, the oldest first
        self._source_of: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._proven) + len(self._source_of)

    def __iter__(self) -> Iterator[C]:
        return iter([*self._proven, *self._source_of])

    def add(self, connection: C, source: str) -> None:
        """Add a connection that has proven nothing yet."""
        self._source_of[connection] = source
        self._unproven.setdefault(source, {})[connection] = None

    def prove(self, connection: C) -> None:
        """Count a connection towards no source from now on. It no longer gives way."""
        self.remove(connection)
        self._proven.add(connection)

    def remove(self, connection: C) -> None:
        """Forget a connection, if it is still known."""
        self._proven.discard(connection)
        source = self._source_of.pop(connection, None)
        if source is not None:
            del self._unproven[source][connection]
            if not self._unproven[source]:
                del self._unproven[source]

    def count(self, source: str) -> int:
        """Return how many unproven connections a source has."""
        return len(self._unproven.get(source, ()))

    def weakest(self, source: str | None = None) -> C | None:
        """Return the connection that gives way first, of one source or of all; None if there is none."""
        if source is not None:
            rivals = self._unproven.get(source, {})
        else:
            rivals = max(self._unproven.values(), key=len, default={})
        return min(rivals, key=self._is_busy, default=None)
