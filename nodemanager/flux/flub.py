"""Slots where Flux gives out the ranks: ``join = flub``, a flux-core with pull request 5184 (RFC 44, a draft).

A broker that joins by FLUB is given the least rank that is free, whoever starts it. So a slot is no rank any more:
it is a name, which a node's broker has for its host name, and which goes to the rank that the broker comes online
as. All slots are of one node type there, and any of them is as good as another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Rank, SlotName


class FlubSlotNames:
    """Which slot each rank is, learned from what came online; for one instance."""

    def __init__(self) -> None:
        self._said: dict[Rank, SlotName] = {}
        self._names: Mapping[Rank, SlotName] = {}

    def ranks_to_ask(self, ranks: Sequence[FluxRank]) -> list[Rank]:
        """The ranks that came online since the last look, whose brokers are to be asked for their host name."""
        online = {rank.rank for rank in ranks if rank.online}
        self._said = {rank: name for rank, name in self._said.items() if rank in online}
        return sorted(online - self._said.keys())

    def learn(self, said: Mapping[Rank, SlotName]) -> None:
        self._said |= said

    def rename_ranks(self, ranks: Sequence[FluxRank]) -> tuple[FluxRank, ...]:
        """The ranks, each under the name of the slot that it is now."""
        self._names = assign_slot_names(ranks, self._said, self._names)
        names = self._names
        return tuple(
            rank if names[rank.rank] == rank.host else replace(rank, host=names[rank.rank]) for rank in ranks
        )


def assign_slot_names(
    ranks: Sequence[FluxRank], said: Mapping[Rank, SlotName], before: Mapping[Rank, SlotName]
) -> dict[Rank, SlotName]:
    """Each rank's slot: what its broker said; else the one it was before; else one that is left, in their order.

    Of two brokers with one name the lower rank has it. A name that is no slot is passed over.
    """
    slots = {rank.host: None for rank in ranks}
    names: dict[Rank, SlotName] = {}
    for wanted in (said, before, {rank.rank: rank.host for rank in ranks}):
        for rank in ranks:
            name = wanted.get(rank.rank)
            if name is not None and name in slots and rank.rank not in names:
                names[rank.rank] = name
                del slots[name]
    left = iter(slots)
    return {rank.rank: names[rank.rank] if rank.rank in names else next(left) for rank in ranks}
