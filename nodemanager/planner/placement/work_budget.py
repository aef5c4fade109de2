"""Limit the work of one plan, so that no user's queue can hold up everybody else's.

The work is estimated in steps before any job is placed, so it depends on the queue and the ranks alone. Each batch
costs something, and more for every group of nodes that it is compared with. A constraint that holds on some nodes
only divides them into more groups. A batch whose data is in one cloud is packed several times, so it counts as
several (``allocation.near``). ``STEPS_MAX`` is about one second.

The steps are shared fairly: the next batch is always one of the user who has used the fewest. A user whose next
batch is too much gets no more. So only the later shapes of the users with the most of them wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, JobId, Not, OnHosts, OnRanks
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.queue_index import BatchKey
from nodemanager.planner.supply.supply import Supply

STEPS_MAX = 1_000_000
STEPS_PER_BATCH = 350
STEPS_PER_GROUP = 200
STEPS_PER_COMPARISON = 8  # of a batch with a group; jobs that cannot all be served are compared more than once
STEPS_PER_TYPE = 250
STEPS_PER_TYPE_COMPARISON = 1  # of a batch with a node type: most types of a price list are left out by the packing
PACKINGS_IF_NEAR = 3
PAIRS_PER_STEP = 4  # of two batches that want different amounts of cores, GPUs or memory

Size = tuple[int, int, int, int, int | None, bool]


def batches_beyond(batches: Mapping[BatchKey, Sequence[JobId]], supply: Supply) -> Mapping[BatchKey, Reason]:
    """The batches for which one plan has no time, and why. ``batches``: in the order of the queue."""
    work = WorkEstimate(supply)
    types = len(supply.policy.node_types)
    plain = all(key.shape.constraint is ANYWHERE for key in batches)
    weights = sum(map(work.weight_of, batches))
    if plain and work.steps_of(weights, types, len(batches)) <= STEPS_MAX:
        return {}
    of_user: dict[int, list[BatchKey]] = {}
    for key in batches:
        of_user.setdefault(key.userid, []).append(key)
    # A heap of the users: their steps so far, and the index of their next batch.
    turns = [(0, userid, 0) for userid in of_user]
    heapify(turns)
    beyond: dict[BatchKey, Reason] = {}
    while turns:
        used, userid, index = heappop(turns)
        keys = of_user[userid]
        steps = work.add(keys[index])
        if steps is None:
            why = because(Code.TOO_MANY_SHAPES, shapes=len(keys), considered=index)
            beyond.update(dict.fromkeys(keys[index:], why))
        elif index + 1 < len(keys):
            heappush(turns, (used + steps, userid, index + 1))
    return beyond


@dataclass(slots=True)
class WorkEstimate:
    """The work for the batches so far."""

    supply: Supply
    reading: int = 0  # steps for reading constraints
    batches: int = 0  # one whose data is in one cloud counts as several
    sizes: dict[Size, None] = field(default_factory=dict)
    groups: list[int] = field(init=False)  # of ranks that the constraints so far do not tell apart
    masks: dict[int, None] = field(default_factory=dict)

    divided: bool = False  # whether ``groups`` hold ranks: only from the first constraint on

    def __post_init__(self) -> None:
        self.groups = [0] * len(self.supply.policy.node_types)

    @property
    def steps(self) -> int:
        """The steps for all batches so far."""
        return self.reading + self.steps_of(self.batches, len(self.groups), len(self.sizes))

    def weight_of(self, key: BatchKey) -> int:
        """As how many batches this one counts."""
        policy = self.supply.policy
        is_near = len(policy.cloud_names) > 1 and policy.home_of(key.shape) is not None
        return PACKINGS_IF_NEAR if is_near else 1

    def steps_of(self, batches: int, groups: int, sizes: int) -> int:
        """The steps for so many batches, groups of nodes and different sizes, without reading."""
        types = min(groups, len(self.supply.policy.node_types))
        more = groups - types
        each = STEPS_PER_BATCH + STEPS_PER_TYPE_COMPARISON * types + STEPS_PER_COMPARISON * more
        return batches * each + STEPS_PER_TYPE * types + STEPS_PER_GROUP * more + sizes * sizes // PAIRS_PER_STEP

    def add(self, key: BatchKey) -> int | None:
        """Add a batch, and return its steps; None if it is too much, and then nothing is added."""
        before = self.steps
        shape = key.shape
        reading = self.reading + (0 if shape.constraint is ANYWHERE else self._reading_steps(shape.constraint))
        size = _size_of(key)
        sizes = len(self.sizes) + (size not in self.sizes)
        batches = self.batches + self.weight_of(key)
        if reading + self.steps_of(batches, len(self.groups), sizes) > STEPS_MAX:
            return None
        groups, mask = self.groups, None
        if shape.constraint is not ANYWHERE:
            mask = self.supply.matches.of(shape.constraint)
            groups = self._groups_with(mask)
        after = reading + self.steps_of(batches, len(groups), sizes)
        if after > STEPS_MAX:
            return None
        self.reading, self.groups = reading, groups
        self.batches = batches
        if mask is not None:
            self.masks[mask] = None
        self.sizes[size] = None
        return after - before

    def _reading_steps(self, constraint: Constraint) -> int:
        match constraint:
            case HasProperty():
                return 1
            case OnRanks(texts):
                return 1 + sum(map(len, texts))
            case OnHosts(texts):
                # An entry with brackets may be compared with every host.
                brackets = sum(text.count("[") for text in texts)
                return 1 + sum(map(len, texts)) + brackets * self.supply.matches.count
            case All(parts) | AnyOf(parts):
                return 1 + sum(map(self._reading_steps, parts))
            case Not(part):
                return 1 + self._reading_steps(part)

    def _groups_with(self, mask: int) -> list[int]:
        """The groups, divided into ranks that are in the mask and others."""
        if not self.divided:
            self.divided = True
            self.groups = [mask for mask in self.supply.slots_mask.values() if mask]
        if mask in self.masks:
            return self.groups
        return [part for group in self.groups for part in (group & mask, group & ~mask) if part]


def _size_of(key: BatchKey) -> Size:
    shape = key.shape
    cores, gpus, memory = shape.cores_per_slot, shape.gpus_per_slot, shape.memory_bytes_per_slot
    return shape.slots, cores, gpus, memory, shape.nodes, shape.exclusive
