"""Which process uses a launch's lease key, and whether two do: a disk that was copied has all of a node's secrets.

A client names itself by a word that it makes anew at each start and keeps nowhere. One that is started again has
another word, and the former is never heard again; of two that live, each is heard after the other.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemanager.core.nodes import LaunchId

FORMER_KEPT_MAX = 16  # of one launch


class HolderCheck(NamedTuple):
    """``holds``: a broker may be started by it. ``is_second``: two live, and this says it for the first time."""

    holds: bool
    is_second: bool


@dataclass(slots=True)
class _Holder:
    name: str
    heard_at: float
    last_name: str  # who was heard last, this one or another
    former: list[str] = field(default_factory=list)  # whoever was heard before another was
    alarmed: set[str] = field(default_factory=set)


class LeaseHolders:
    """By launch. One that has been silent for ``silent_s`` is taken to be gone, and whoever asks next holds."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._kept: dict[LaunchId, _Holder] = {}

    def note_request(self, launch: LaunchId, name: str, now_at: float) -> HolderCheck:
        """Take in that a process which knows the launch's key has asked. ``name`` "" is one that does not say."""
        if not name:
            return HolderCheck(holds=True, is_second=False)
        holder = self._kept.setdefault(launch, _Holder(name, now_at, name))
        is_second = self._is_new_return(holder, name)
        # A clock that jumps, to either side, lets the next one in.
        if name == holder.name or abs(now_at - holder.heard_at) >= self._silent_s:
            holder.name, holder.heard_at = name, now_at
        return HolderCheck(holder.name == name, is_second)

    def keep_only(self, launches: Container[LaunchId]) -> None:
        """Forget every other launch."""
        self._kept = {launch: holder for launch, holder in self._kept.items() if launch in launches}

    @staticmethod
    def _is_new_return(holder: _Holder, name: str) -> bool:
        if name == holder.last_name:
            return False
        holder.former = [*(it for it in holder.former if it != holder.last_name), holder.last_name][
            -FORMER_KEPT_MAX:
        ]
        holder.last_name = name
        is_new = name in holder.former and name not in holder.alarmed
        if is_new:
            holder.alarmed.add(name)
        return is_new
