"""Tracks which process uses a launch's lease key, and detects if two processes do: a copied disk has all secrets.

A client names itself by a random word that it makes at each start and never stores. A restarted client has a new
word, and its former word never returns. If two processes run, their words alternate.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemanager.core.nodes import LaunchId

FORMER_KEPT_MAX = 16  # for each launch


class HolderCheck(NamedTuple):
    """The result of one request of a process."""

    holds: bool  # whether this process may start a broker
    is_second: bool  # whether this request is the first sign that two processes are running


@dataclass(slots=True)
class _Holder:
    """The process that holds a launch, and the other processes that used its lease key."""

    name: str
    heard_at: float
    last_name: str  # the process that made the last request, the holder or another
    former: list[str] = field(default_factory=list)  # processes whose requests another process's request followed
    alarmed: set[str] = field(default_factory=set)  # former processes whose return was already reported


class LeaseHolders:
    """Tracks the holder of each launch.

    If a holder has been silent for ``silent_s``, it counts as ended, and the next process to make a request becomes
    the holder.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._kept: dict[LaunchId, _Holder] = {}

    def note_request(self, launch: LaunchId, name: str, now_at: float) -> HolderCheck:
        """Note a request of a process that knows the launch's key.

        A process without a name is not checked until one with a name was heard. Then it can never hold the launch:
        else a copy would only have to leave out its name.
        """
        if not name and launch not in self._kept:
            return HolderCheck(holds=True, is_second=False)
        holder = self._kept.setdefault(launch, _Holder(name, now_at, name))
        is_second = self._is_new_return(holder, name)
        if not name:
            return HolderCheck(holds=False, is_second=is_second)
        # abs(): if the clock jumps, in either direction, the next process becomes the holder.
        if name == holder.name or abs(now_at - holder.heard_at) >= self._silent_s:
            holder.name, holder.heard_at = name, now_at
        return HolderCheck(holder.name == name, is_second)

    def keep_only(self, launches: Container[LaunchId]) -> None:
        """Forget every other launch."""
        self._kept = {launch: holder for launch, holder in self._kept.items() if launch in launches}

    @staticmethod
    def _is_new_return(holder: _Holder, name: str) -> bool:
        """Return whether a former process returns for the first time, and note the request."""
        if name == holder.last_name:
            return False
        others = [former for former in holder.former if former != holder.last_name]
        holder.former = [*others, holder.last_name][-FORMER_KEPT_MAX:]
        holder.last_name = name
        is_new = name in holder.former and name not in holder.alarmed
        if is_new:
            holder.alarmed.add(name)
        return is_new
