"""What no fleet can undercut: lower bounds of cost, with their proofs.

**Units.** Let q be the least price of a core, min over types of p / c. A node that costs p is worth p / q units,
which is c at the least. A job that asks for cores holds a unit for each of them while it runs, wherever it runs.
One that takes n nodes whole holds n nodes that its slots fit on, whichever the fleet chose: n times the least
worth of a type that they fit on. So whatever runs on a node at one moment holds no more units than the node is
worth: cores share it with cores, up to c, and a job that has it whole shares it with none.

**Work.** A node-second that is paid for costs q for each of the node's units. So whatever the waits, a fleet that
ran the jobs has paid at least q for each unit and second that they held.

**The same starts.** Let d(x) be the units held at each moment x when every job that was served starts exactly as
it did on the fixed cluster that is always up; what ran until a reclaim and had to begin anew is none of d. A
fleet that starts each of them at that moment, neither later nor sooner, has at each moment nodes up that are
worth d(x) or more, and pays for each in whole windows. (One that starts some sooner and none later may cost less:
it may need fewer nodes at once.) Take that fleet apart: a window of W' seconds of a node worth u is u W' / W
windows of one unit and of length W, where W divides every W'; each costs q W. They cover d. So the fleet has paid
at least q W times the least number of windows of length W, begun at any moments, in whole or in part, that cover
d. (With one type the unit is a node instead of a core, and d is rounded up to nodes: jobs are thought to move
freely between nodes, which only helps.)

That least number is what the sweep below finds. It begins windows only when they are short, and as many as are.
Let G(x) be how many it has begun up to x, and O(x) those of any cover: then G(x) <= O(x) at each moment. Suppose
that holds before x, and the sweep begins some at x. Then those that it has there are just enough, G(x) - G(x - W)
= d(x), and the other cover has O(x) - O(x - W) >= d(x). So O(x) - G(x) >= O(x - W) - G(x - W) >= 0. For windows
under a minute the area under d is taken, which is no more.

Boot time, the time a node takes to stop, and minimum charges are left out, which only lowers the bounds. Both are
of the jobs that were served: a fleet that serves fewer may cost less.
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
from nodemanager.planner.cost.billing import SECONDS_PER_HOUR
from nodemanager.whatif.replay.sched_simple import count_fits, wanted_count

SWEPT_S_MIN = 60.0

Units = int | Fraction


@dataclass(slots=True)
class WindowCover:
    """The sweep: told of the units held whenever that changes, it counts the windows that are needed."""

    node_types: Sequence[NodeType]
    windows: Units = 0
    area_unit_s: float = 0.0
    _needed: Units = 0
    _at_s: float = 0.0
    _covered: Units = 0
    _until: deque[tuple[float, Units]] = field(default_factory=deque)  # when so many windows end

    @property
    def unit_cores(self) -> int:
        return self.node_types[0].cores if len(self.node_types) == 1 else 1

    @property
    def window_s(self) -> int:
        return math.gcd(*(round(node_type.billing.window_s) for node_type in self.node_types))

    def note(self, now_s: float, units: Units) -> None:
        """So many are held from now on."""
        self.area_unit_s += self._needed * (now_s - self._at_s)
        swept = self.window_s >= SWEPT_S_MIN
        while swept and self._until and self._until[0][0] <= now_s:
            ended_s, count = self._until.popleft()
            self._covered -= count
            if ended_s < now_s:  # what is needed from now on is known only below
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
        """The bound, in the site's currency."""
        price = least_price_per_core(self.node_types) * self.unit_cores
        unit_s = self.windows * self.window_s if self.window_s >= SWEPT_S_MIN else self.area_unit_s
        return _money(price, unit_s)


@dataclass(slots=True)
class UnitChange:
    """How many more are held from a moment on, or fewer."""

    at_s: float
    units: Units = 0


@dataclass(slots=True)
class UnitDemand:
    """What the jobs of a run hold at the least on any fleet, by their shapes and not by what this one gave them.

    ``loses_lives``: what runs may have to begin anew, and is then none of it. Whether it has to is known only at
    its end, so what came since the oldest that runs began is kept until then; without that, nothing is.
    """

    cover: WindowCover
    loses_lives: bool = True
    work_unit_s: float = 0.0  # of jobs that have ended
    _held: dict[Shape, Units] = field(default_factory=dict)
    _changes: deque[UnitChange] = field(default_factory=deque)
    _begun: dict[JobId, UnitChange] = field(default_factory=dict)
    _units: Units = 0  # as of the changes that the cover was told of

    def units_of(self, shape: Shape) -> Units:
        """How many units a job of the shape holds at the least."""
        if shape not in self._held:
            self._held[shape] = least_units(self.cover.node_types, shape)
        return self._held[shape]

    def begin_job(self, job: JobId, shape: Shape, now_s: float) -> None:
        change = self._change_at(now_s)
        change.units += self.units_of(shape)
        if self.loses_lives:
            self._begun[job] = change

    def lose_job(self, job: JobId, shape: Shape) -> None:
        """It has to begin anew."""
        self._begun.pop(job).units -= self.units_of(shape)

    def end_job(self, job: JobId, shape: Shape, run_s: float, now_s: float) -> None:
        self._begun.pop(job, None)
        self._change_at(now_s).units -= self.units_of(shape)
        self.work_unit_s += run_s * float(self.units_of(shape))

    def settle(self, now_s: float) -> None:
        """Tell the cover what is known for good: all that happened before now, but for what may yet be lost."""
        oldest = next(iter(self._begun.values()), None)
        until_s = min(now_s, oldest.at_s) if oldest is not None else now_s
        while self._changes and self._changes[0].at_s < until_s:
            change = self._changes.popleft()
            self._units += change.units
            self.cover.note(change.at_s, self._units)

    def work_cost(self) -> Decimal:
        """What the jobs' own units and seconds cost at the least, in the site's currency."""
        return _money(least_price_per_core(self.cover.node_types), self.work_unit_s)

    def _change_at(self, now_s: float) -> UnitChange:
        """What changes at one moment changes at once: a job of no length holds nothing."""
        if not self._changes or self._changes[-1].at_s < now_s:
            self._changes.append(UnitChange(now_s))
        return self._changes[-1]


def least_units(node_types: Sequence[NodeType], shape: Shape) -> Units:
    """The units that a job of the shape holds at the least on nodes of these types."""
    count, _ = wanted_count(shape)
    least = least_price_per_core(node_types)
    if not shape.exclusive or not least:
        return count * shape.cores_per_slot * (1 if shape.nodes is None else shape.slots)
    fitting = [it for it in node_types if count_fits(shape, it.cores, it.gpus, whole=True)]
    worth = min((Fraction(it.price_per_hour) / Fraction(least) for it in fitting), default=Fraction(0))
    units = count * worth
    return units.numerator if units.denominator == 1 else units


def least_price_per_core(node_types: Sequence[NodeType]) -> Fraction:
    """A core's hour at the least; 0 where some type costs nothing by staying."""
    if any(node_type.billing.window_s <= 0 for node_type in node_types):
        return Fraction(0)
    return min(Fraction(node_type.price_per_hour) / node_type.cores for node_type in node_types)


def _money(per_hour: Fraction, lasting_s: float | Fraction) -> Decimal:
    cost = per_hour * Fraction(lasting_s) / SECONDS_PER_HOUR
    return Decimal(cost.numerator) / Decimal(cost.denominator)
