"""Idle nodes in the order in which their time comes: a plan looks at the first few, not at all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from math import ceil

from nodemanager.core.nodes import LaunchId
from nodemanager.core.slots import Billing
from nodemanager.planner.state.queue_index import with_changes

EARLY_S = 1.0  # a time computed here may differ from the exact one by a rounding error

TimedNode = tuple[float, LaunchId]


@dataclass(frozen=True, slots=True)
class Resting:
    """The idle nodes of one type, by two times, the earliest first."""

    idle_since: Sequence[TimedNode] = ()
    billed_from: Sequence[TimedNode] = ()

    def changed(
        self, left: Iterable[tuple[float, float, LaunchId]], joined: Iterable[tuple[float, float, LaunchId]]
    ) -> Resting:
        """Without the nodes in ``left`` and with those in ``joined``: ``idle_since``, ``billed_from`` and id."""
        gone, come = list(left), list(joined)
        return Resting(
            with_changes(self.idle_since, [(at, id_) for at, _, id_ in gone], [(at, id_) for at, _, id_ in come]),
            with_changes(self.billed_from, [(at, id_) for _, at, id_ in gone], [(at, id_) for _, at, id_ in come]),
        )

    def by_time(self, billing: Billing, idle_timeout_s: float, lead_s: float, now_s: float) -> Iterator[TimedNode]:
        """The nodes, each with a time before which it is certainly not retired for its idleness, earliest first.

        That time is ``EARLY_S`` too early, because of rounding.

        If billing windows are no longer than ``idle_timeout_s``, that time ends the node's idle time. If they are
        longer, it is ``lead_s`` before the end of the node's paid window (``retirement``).
        """
        if billing.window_s <= idle_timeout_s:
            return ((since_s + idle_timeout_s - EARLY_S, id_) for since_s, id_ in self.idle_since)
        if billing.window_s <= lead_s:
            return ((now_s, id_) for _, id_ in self.idle_since)
        return merge(*self._by_window(billing, lead_s + EARLY_S, now_s))

    def _by_window(self, billing: Billing, lead_s: float, now_s: float) -> Iterator[Iterator[TimedNode]]:
        """For each number of paid windows, the nodes that are in the last one of these."""
        window_s, nodes = billing.window_s, self.billed_from
        ends_s = max(1, ceil(billing.minimum_s / window_s)) * window_s  # what the youngest have paid for
        stop = len(nodes)
        while stop:
            start = bisect_left(nodes, (now_s - ends_s - EARLY_S,), 0, stop)
            yield _before_end(nodes[start:stop], ends_s - lead_s)
            if start:
                # Windows in which no node is are left out.
                age_s = now_s - nodes[start - 1][0]
                ends_s = max(ends_s + window_s, ceil((age_s - EARLY_S) / window_s) * window_s)
            stop = start


def _before_end(nodes: Sequence[TimedNode], after_s: float) -> Iterator[TimedNode]:
    return ((from_s + after_s, id_) for from_s, id_ in nodes)
