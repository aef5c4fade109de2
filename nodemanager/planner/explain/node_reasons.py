"""Why each node stays or goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from nodemanager.core.nodes import LaunchId
from nodemanager.core.reasons import Reason
from nodemanager.planner.state.node import Node


class LazyReasons(Protocol):
    """Reasons of nodes, each computed on access."""

    def get(self, id_: LaunchId) -> Reason | None:
        """The node's reason; None if it has none here."""
        ...

    def changed_since(self, before: Self) -> Iterable[LaunchId]:
        """The nodes whose reason may have another code than before."""
        ...


class NodeReasons(Mapping[LaunchId, Reason]):
    """Why each node stays or goes, by id. Most nodes are simply busy, and share the reason ``rest``."""

    def __init__(
        self,
        nodes: Mapping[LaunchId, Node],
        decided: Mapping[LaunchId, Reason],
        rest: Reason,
        resting: LazyReasons | None = None,
    ) -> None:
        self._nodes = nodes
        self.decided = decided  # of the nodes that took a step, and of those bought now
        self._rest = rest
        self._resting = resting  # of idle nodes that took none

    def __getitem__(self, id_: LaunchId) -> Reason:
        reason = self.decided.get(id_)
        if reason is None and self._resting is not None:
            reason = self._resting.get(id_)
        if reason is None and id_ not in self._nodes:
            raise KeyError(id_)
        return self._rest if reason is None else reason

    def __iter__(self) -> Iterator[LaunchId]:
        return iter(sorted({**dict.fromkeys(self._nodes), **dict.fromkeys(self.decided)}))

    def changed_since(self, before: NodeReasons) -> Sequence[LaunchId]:
        """The nodes whose reason may have another code. Nodes that were and are simply busy are left out."""
        ids = {*self.decided, *before.decided}
        if self._resting is not None and before._resting is not None:
            ids.update(self._resting.changed_since(before._resting))
        if self._nodes is not before._nodes:
            ids |= self._nodes.keys() - before._nodes.keys()
        return sorted(id_ for id_ in ids if id_ in self)

    def __len__(self) -> int:
        return len(self._nodes) + sum(id_ not in self._nodes for id_ in self.decided)
