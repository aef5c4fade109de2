"""Lower bounds for the cost of any fleet, with their proofs.

**Units.** Let q be the lowest price of a core: the minimum over all types of p / c, for a node with price p and c
cores. A node with price p is worth p / q units, which is at least c. A job that asks for cores holds one unit for
each core while it runs, on any node. A job that uses n nodes exclusively holds n times the lowest worth of a type
that its slots fit on, whichever type the fleet chose. So the jobs that run on a node at one moment together hold no
more units than the node is worth: jobs that share the node hold at most c, and an exclusive job shares it with
none.

**Work.** A paid second of a node costs q for each of the node's units. So a fleet that ran the jobs has paid at
least q for each unit and second that the jobs held, whatever the waits were.

**The same starts.** Let d(x) be the units held at time x if every served job starts exactly when it did on the
fixed cluster, which is always up. Runs that were lost by a reclaim do not count in d. Consider a fleet that starts
each job at that time, neither later nor earlier. Its nodes that are up at time x are worth at least d(x), and it
pays for each node in whole billing windows. (A fleet that starts some jobs earlier and none later may cost less,
because it may need fewer nodes at once.) Split that fleet's payments: a window of W' seconds of a node worth u
equals u W' / W windows of one unit and of length W, if W divides every W'. Each of them costs q W. Together they
cover d. So the fleet has paid at least q W times the smallest number of windows of length W that cover d, where
windows may start at any time and may be fractions. (With a single type the unit is a node instead of a core, and d
is rounded up to whole nodes. Jobs are assumed to move freely between nodes, which only lowers the bound.)

The sweep below finds this smallest number. It starts windows only when d is not covered, and only as many as are
missing. Let G(x) be the number of windows that it has started up to x, and O(x) the number for any other cover.
Then G(x) <= O(x) at all times. Proof: suppose that this holds before x, and that the sweep starts windows at x.
Then its windows cover d exactly, G(x) - G(x - W) = d(x), and the other cover has O(x) - O(x - W) >= d(x). So O(x) -
G(x) >= O(x - W) - G(x - W) >= 0. For windows shorter than a minute, the area under d is used instead, which is no
larger.

Boot times, stop times and minimum charges are left out, which only lowers the bounds. Both bounds are for the jobs
that were served: a fleet that serves fewer jobs may cost less. With early release jobs give nodes back before they
end, so a fleet may cost less than both bounds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.slots import NodeType
from nodemanager.planner.billing import SECONDS_PER_HOUR
from nodemanager.planner.seating import pieces_of, pieces_that_fit

SWEPT_S_MIN = 60.0

Units = int | Fraction


@dataclass(slots=True)
class WindowCover:
    """The sweep: it is told whenever the held units change, and counts the windows that cover them."""

    node_types: Sequence[NodeType]
    windows: Units = 0
    area_unit_s: float = 0.0
    _needed: Units = 0
    _at_s: float = 0.0
    _covered: Units = 0
    _until: deque[tuple[float, Units]] = field(default_factory=deque)  # (end, number of windows)

    @property
    def unit_cores(self) -> int:
        return self.node_types[0].cores if len(self.node_types) == 1 else 1

    @property
    def window_s(self) -> int:
        return math.gcd(*(round(node_type.billing.window_s) for node_type in self.node_types))

    def note(self, now_s: float, units: Units) -> None:
        """Set the number of units held from ``now_s`` on."""
        self.area_unit_s += self._needed * (now_s - self._at_s)
        swept = self.window_s >= SWEPT_S_MIN
        while swept and self._until and self._until[0][0] <= now_s:
            ended_s, count = self._until.popleft()
            self._covered -= count
            if ended_s < now_s:  # the units needed from now on are not set yet
                self._begin(ended_s)
        self._needed, self._at_s = self._rounded(units), now_s
        if swept:
            self._begin(now_s)

    def _rounded(self, units: Units) -> Units:
        return units if self.unit_cores == 1 else -(-units // self.unit_cores)

    def _begin(self, at_s: float) -> None:
        short = self._needed - self._covered
        if short > 0:
            self.windows += short
            self._covered += short
            self._until.append((at_s + self.window_s, short))

    def cost(self) -> Decimal:
        """The lower bound in the site's currency."""
        price = least_price_per_core(self.node_types) * self.unit_cores
        unit_s = self.windows * self.window_s if self.window_s >= SWEPT_S_MIN else self.area_unit_s
        return _money(price, unit_s)


@dataclass(slots=True)
class UnitChange:
    """A change of the number of held units at one moment."""

    at_s: float
    units: Units = 0


@dataclass(slots=True)
class UnitDemand:
    """The units that a run's jobs hold at least on any fleet, by their shapes and not by this fleet's nodes.

    ``may_lose_runs``: a run may be lost, and then does not count. This is known only at its end. So changes are
    kept back to the start of the oldest running job; without lost runs they need not be kept.
    """

    cover: WindowCover
    may_lose_runs: bool = True
    work_unit_s: float = 0.0  # unit-seconds of jobs that have ended
    _held: dict[Shape, Units] = field(default_factory=dict)
    _changes: deque[UnitChange] = field(default_factory=deque)
    _begun: dict[JobId, UnitChange] = field(default_factory=dict)
    _units: Units = 0  # held after the latest change that the cover knows

    def units_of(self, shape: Shape) -> Units:
        """The units that a job of the shape holds at least."""
        if shape not in self._held:
            self._held[shape] = least_units(self.cover.node_types, shape)
        return self._held[shape]

    def begin_job(self, job: JobId, shape: Shape, now_s: float) -> None:
        change = self._change_at(now_s)
        change.units += self.units_of(shape)
        if self.may_lose_runs:
            self._begun[job] = change

    def lose_job(self, job: JobId, shape: Shape) -> None:
        """Remove a run that was lost."""
        self._begun.pop(job).units -= self.units_of(shape)

    def end_job(self, job: JobId, shape: Shape, run_s: float, now_s: float) -> None:
        self._begun.pop(job, None)
        self._change_at(now_s).units -= self.units_of(shape)
        self.work_unit_s += run_s * float(self.units_of(shape))

    def settle(self, now_s: float) -> None:
        """Pass on the changes that are final: those before ``now_s`` and before any run that may still be lost."""
        oldest = next(iter(self._begun.values()), None)
        until_s = min(now_s, oldest.at_s) if oldest is not None else now_s
        while self._changes and self._changes[0].at_s < until_s:
            change = self._changes.popleft()
            self._units += change.units
            self.cover.note(change.at_s, self._units)

    def work_cost(self) -> Decimal:
        """The lowest cost of the jobs' unit-seconds, in the site's currency."""
        return _money(least_price_per_core(self.cover.node_types), self.work_unit_s)

    def _change_at(self, now_s: float) -> UnitChange:
        """Return the change at ``now_s``. One moment has one change, so a job without run time holds nothing."""
        if not self._changes or self._changes[-1].at_s < now_s:
            self._changes.append(UnitChange(now_s))
        return self._changes[-1]


def least_units(node_types: Sequence[NodeType], shape: Shape) -> Units:
    """The units that a job of the shape holds at least on nodes of these types."""
    count = pieces_of(shape)
    least = least_price_per_core(node_types)
    if not shape.exclusive or not least:
        return count * shape.cores_per_slot * (1 if shape.nodes is None else shape.slots)
    fitting = [it for it in node_types if pieces_that_fit(shape, it.cores, it.gpus, is_empty=True)]
    worth = min((Fraction(it.price_per_hour) / Fraction(least) for it in fitting), default=Fraction(0))
    units = count * worth
    return units.numerator if units.denominator == 1 else units


def least_price_per_core(node_types: Sequence[NodeType]) -> Fraction:
    """The lowest price of a core-hour; 0 if some type's running time is free."""
    if any(node_type.billing.window_s <= 0 for node_type in node_types):
        return Fraction(0)
    return min(Fraction(node_type.price_per_hour) / node_type.cores for node_type in node_types)


def _money(per_hour: Fraction, lasting_s: float | Fraction) -> Decimal:
    cost = per_hour * Fraction(lasting_s) / SECONDS_PER_HOUR
    return Decimal(cost.numerator) / Decimal(cost.denominator)
