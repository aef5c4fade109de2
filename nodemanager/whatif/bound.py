"""What no fleet can undercut: lower bounds of cost, with their proofs.

**Work.** A node-second that is paid for gives at most ``cores`` core-seconds to jobs. So whatever the waits, a
fleet that ran the jobs has paid at least their core-seconds at the least price of a core, min over types of p / c.

**No extra wait.** Let d(x) be the cores in use at each moment x when every job starts exactly as on the fixed
cluster that is always up. A fleet that makes no job start later than that, nor sooner, has at each moment nodes up
with d(x) cores or more, and pays for each in whole windows. Take that fleet apart: a window of W' seconds of a node
with c cores is c W' / W windows of one core and of length W, where W divides every W'; each costs p W / c, no less
than the least price. They cover d. So the fleet has paid at least that price times the least number of windows of
length W, begun at any moments, that cover d. (With one type the unit is a node instead of a core, and d is rounded
up to nodes: jobs are thought to move freely between nodes, which only helps.)

That least number is what the sweep below finds. It begins a window only when one is short. Let its windows begin at
g1 <= g2 <= ..., and those of any cover at o1 <= o2 <= ...; then oi <= gi for each i that the sweep has. Suppose
that holds below i, and oi > gi = x. Then only o1 ... o(i-1) can cover x, and each oj that does has
x - W < oj <= gj <= x, so gj covers x too. But the sweep began a window at x because those of g1 ... g(i-1) that
cover x are fewer than d(x): so those of the other cover are too few as well, and it is none. Hence no cover has
fewer windows than the sweep. For windows under a minute the area under d is taken, which is no more.

Boot time, the time a node takes to stop, and minimum charges are left out, which only lowers the bounds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.fleet.billing import SECONDS_PER_HOUR
from nodemanager.model import NodeType

SWEPT_S_MIN = 60.0


@dataclass(slots=True)
class Cover:
    """The sweep: told of the cores in use whenever that changes, it counts the windows that are needed."""

    node_types: Sequence[NodeType]
    windows: int = 0
    area_unit_s: float = 0.0
    _need: int = 0
    _at_s: float = 0.0
    _covered: int = 0
    _until: deque[tuple[float, int]] = field(default_factory=deque)  # when so many windows end

    @property
    def unit_cores(self) -> int:
        return self.node_types[0].cores if len(self.node_types) == 1 else 1

    @property
    def window_s(self) -> int:
        return math.gcd(*(round(node_type.billing.window_s) for node_type in self.node_types))

    def note(self, now_s: float, cores: int) -> None:
        """So many cores are in use from now on."""
        self.area_unit_s += self._need * (now_s - self._at_s)
        swept = self.window_s >= SWEPT_S_MIN
        while swept and self._until and self._until[0][0] <= now_s:
            ended_s, count = self._until.popleft()
            self._covered -= count
            if ended_s < now_s:  # what is needed from now on is known only below
                self._begin(ended_s)
        self._need, self._at_s = math.ceil(cores / self.unit_cores), now_s
        if swept:
            self._begin(now_s)

    def _begin(self, at_s: float) -> None:
        short = self._need - self._covered
        if short > 0:
            self.windows += short
            self._covered += short
            self._until.append((at_s + self.window_s, short))

    def cost(self) -> Decimal:
        """The bound, in the site's currency."""
        price = least_price_per_core(self.node_types) * self.unit_cores
        unit_s = self.windows * self.window_s if self.window_s >= SWEPT_S_MIN else self.area_unit_s
        return price * Decimal(unit_s) / SECONDS_PER_HOUR


def least_price_per_core(node_types: Sequence[NodeType]) -> Decimal:
    """A core's hour at the least; 0 where some type costs nothing by staying."""
    if any(node_type.billing.window_s <= 0 for node_type in node_types):
        return Decimal(0)
    return min(node_type.price_per_hour / node_type.cores for node_type in node_types)


def work_cost(node_types: Sequence[NodeType], core_s: float) -> Decimal:
    """What the jobs' own core-seconds cost at the least."""
    return least_price_per_core(node_types) * Decimal(core_s) / SECONDS_PER_HOUR
