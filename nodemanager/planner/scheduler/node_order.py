"""The order in which a scheduler tries nodes, as sort keys: it takes the least first.

sched-simple's is in its source. Fluxion's follow its match policies (flux-sched's ``resource/policies``): ``low``
and ``high`` compare the ids of free cores, the ``node`` policies the numbers in host names, and ``first`` takes
what its traversal finds first. ``tests/live/test_match_policy.py`` compares them with Fluxion itself.
"""

from __future__ import annotations

import re

from nodemanager.core.jobs import NodeOrder
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.scheduler.sched_simple import preference

SortKey = tuple[int, int, int]
_NUMBER = re.compile(r"[0-9]+$")


def sort_key(
    order: NodeOrder, host: SlotName, rank: Rank, *, cores: int, gpus: int, used: int, is_empty: bool
) -> SortKey:
    """The key of a node. ``cores`` and ``gpus`` are free, ``used`` are cores. Less room never lowers the key."""
    match order:
        case NodeOrder.MOST_FREE:
            return preference(cores, gpus, rank)
        case NodeOrder.EMPTY_FIRST:
            return (0, 0, -rank) if is_empty else (1, -cores, -rank)
        case NodeOrder.LEAST_USED:
            return used, 0, rank
        case NodeOrder.LOWEST:
            return host_number(host), 0, rank
        case NodeOrder.HIGHEST:
            return -host_number(host), 0, -rank


def host_number(host: SlotName) -> int:
    """The number at the end of a host name; -1 if there is none."""
    found = _NUMBER.search(host)
    return int(found[0]) if found is not None else -1
