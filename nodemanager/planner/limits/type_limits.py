"""How many nodes of each type may leave, and must: the limits that a schedule sets for single types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodemanager.core.slots import NodeType, TypeName


@dataclass(slots=True)
class TypeCounts:
    """The nodes of the types that have limits of their own. The counts change as nodes take their steps.

    ``beyond_min``: nodes that take jobs, beyond ``nodes_min``. ``above_max``: billed nodes that do not leave yet,
    above ``nodes_max``; 0 or less if there are not too many.
    """

    beyond_min: dict[TypeName, int] = field(default_factory=dict)
    above_max: dict[TypeName, int] = field(default_factory=dict)

    def is_at_min(self, name: TypeName) -> bool:
        """Whether no further node of the type may leave."""
        return self.beyond_min.get(name, 1) <= 0

    def is_above_max(self, name: TypeName) -> bool:
        """Whether idle nodes of the type leave because there are too many."""
        return self.above_max.get(name, 0) > 0

    def note(self, name: TypeName, nodes: int, *, takes_jobs: bool) -> None:
        """Count so many more nodes of a type, or fewer."""
        if name in self.beyond_min:
            self.beyond_min[name] += nodes * takes_jobs
        if name in self.above_max:
            self.above_max[name] += nodes

    def copy(self) -> TypeCounts:
        """The same counts, which no longer change with these."""
        return TypeCounts(dict(self.beyond_min), dict(self.above_max))

    def signs(self) -> tuple[list[TypeName], list[TypeName]]:
        """The types at their minimum, and those above their maximum."""
        return [it for it in self.beyond_min if self.is_at_min(it)], [
            it for it in self.above_max if self.is_above_max(it)
        ]


def type_counts(
    node_types: Iterable[NodeType], taking_jobs: Mapping[TypeName, int], live: Mapping[TypeName, int]
) -> TypeCounts:
    """The counts for the types that have limits. ``taking_jobs``, ``live``: nodes by type."""
    types = list(node_types)
    return TypeCounts(
        {it.name: taking_jobs.get(it.name, 0) - it.limits.nodes_min for it in types if it.limits.nodes_min},
        {it.name: live.get(it.name, 0) - it.limits.nodes_max for it in types if it.limits.nodes_max is not None},
    )
