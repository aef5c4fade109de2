"""Batches: the launches of one plan whose nodes one call creates.

A provider gives all nodes of a batch the same tags and the same user-data. So the tags name the whole batch, and a
node's index among those of its call tells its launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.slots import SlotName


@dataclass(frozen=True, slots=True)
class Batch:
    """The launches of one call, in the order of the indexes of their nodes. ``stamp``: the plan that made them."""

    stamp: str
    slots: tuple[SlotName, ...]

    def launch(self, index: int) -> LaunchId:
        """The launch of the node with this index."""
        return launch_id(self.slots[index], self.stamp)


def launch_id(slot: SlotName, stamp: str) -> LaunchId:
    """The id of a slot's launch. ``stamp``: the same for all launches of one plan, and for no other plan's."""
    return LaunchId(f"{slot}-{stamp}")


def stamp_of(launch: LaunchId, slot: SlotName) -> str:
    """The stamp in a launch's id; "" if it has none, as the launch of a foreign stray may."""
    stamp = launch.removeprefix(slot).removeprefix("-")
    return stamp if launch == launch_id(slot, stamp) else ""


def batch_of(launches: Sequence[Launch]) -> Batch:
    """The batch of launches of one plan, in the order of their ranks. Raises ``ValueError`` for any others."""
    stamps = {stamp_of(launch.id, launch.slot) for launch in launches}
    if len(stamps) != 1 or "" in stamps:
        raise ValueError(f"not of one plan: {', '.join(launch.id for launch in launches)}")
    return Batch(stamps.pop(), tuple(launch.slot for launch in sorted(launches, key=lambda it: it.rank)))
