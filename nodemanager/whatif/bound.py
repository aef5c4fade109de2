r"""What no fleet can undercut: lower bounds of cost, with their proofs.

**Work.** A node-second that is paid for gives at most ``cores`` core-seconds to jobs. So whatever the waits, a fleet
that ran the jobs has paid at least their core-seconds at the least price of a core, :math:`\min_t p_t / c_t`.

**No extra wait.** Let :math:`d(x)` be the cores in use at each moment :math:`x` when every job starts exactly as on a
cluster of the full size that is always up. A fleet that makes no job wait longer than that, nor start sooner, has at
each moment nodes up with :math:`d(x)` cores or more, and pays for each in whole windows. Take the fleet apart: a
window of :math:`W_t` seconds of a node with :math:`c_t` cores is :math:`c_t W_t / W` windows of one core and of
length :math:`W`, where :math:`W` divides every :math:`W_t`; each costs :math:`p_t W / c_t`, no less than the least
price. They cover :math:`d`. So the fleet has paid at least the least price times the least number of windows of
length :math:`W`, begun at any moments, that cover :math:`d`. (With one type the unit is a node instead of a core, and
:math:`d` is rounded up to nodes: jobs are moved freely between nodes, which only helps.)

That least number is what the sweep below finds. It begins a window only when one is short. Let its windows begin at
:math:`g_1 \le g_2 \le \dots` and those of any cover at :math:`o_1 \le o_2 \le \dots`; then :math:`o_i \le g_i` for
each :math:`i` that the sweep has. Suppose it holds below :math:`i`, and :math:`o_i > g_i =: x`. Only
:math:`o_1 \dots o_{i-1}` can cover :math:`x`, and each that does has :math:`x - W < o_j \le g_j \le x`, so
:math:`g_j` covers :math:`x` too. But the sweep began a window at :math:`x` because those of :math:`g_1 \dots g_{i-1}`
that cover it are fewer than :math:`d(x)`: so those of the other cover are too few as well. Hence no cover has fewer
windows than the sweep. For windows under a minute the area under :math:`d` is taken, which is no more.

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
        need = math.ceil(cores / self.unit_cores)
        self.area_unit_s += self._need * (now_s - self._at_s)
        if self.window_s >= SWEPT_S_MIN:
            while self._until and self._until[0][0] <= now_s:
                ended_s, count = self._until.popleft()
                self._covered -= count
                self._begin(ended_s)
        self._need, self._at_s = need, now_s
        if self.window_s >= SWEPT_S_MIN:
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
