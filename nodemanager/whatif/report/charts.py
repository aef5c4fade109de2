"""The report's charts, as SVG in the page's own colours, for light and dark mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from nodemanager.core.reason_text import format_total
from nodemanager.whatif.replay.result import Curve, Outcome
from nodemanager.whatif.report.findings import format_span, shorten
from nodemanager.whatif.study.study import pareto_front

WIDTH = 860.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 20.0, 30.0, 46.0
PARTS = (
    ("busy", "with jobs"),
    ("lost", "lost runs"),
    ("idle", "idle"),
    ("boot", "booting and stopping"),
    ("unused", "paid after its end"),
)
NAME_MAX = 26  # letters
UNDER_BOUND = 0.08  # of the range of costs: room for the name of the lowest bound, even below 0


# --- cost against wait ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one kind. ``joined``: they are steps of a sweep, and a line joins them."""

    kind: str
    outcomes: Sequence[Outcome]
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Plane:
    """Maps a cost and a mean wait to a place in the picture."""

    x_of_log: Scale
    y: Scale

    def place(self, outcome: Outcome) -> tuple[float, float]:
        return self.x_of_log(_log(outcome.wait_mean_s)), self.y(outcome.cost)


def cost_against_wait(groups: Sequence[Group], bounds: Sequence[tuple[str, float]]) -> str:
    """Draw each run by its mean wait and its cost, and the lower bounds as lines."""
    every = [outcome for group in groups for outcome in group.outcomes]
    waits = [_log(outcome.wait_mean_s) for outcome in every]
    costs = [outcome.cost for outcome in every] + [cost for _, cost in bounds]
    reach = (max(costs) - min(costs)) or max(costs) or 1.0
    low, high = max(0.0, min(costs) - 0.14 * reach), max(costs) + 0.14 * reach
    low = min([low, *(cost - UNDER_BOUND * reach for _, cost in bounds)])
    spare = 0.1 * (max(waits) - min(waits)) or 0.05
    early, late = min(waits) - spare, max(waits) + spare
    height = 420.0
    bottom = height - BOTTOM
    plane = Plane(scale(early, late, LEFT, WIDTH - RIGHT), scale(low, high, bottom, TOP))
    parts = _cost_axis(plane, low, high)
    for mark_s, label in wait_marks(10**early, 10**late):
        x = plane.x_of_log(_log(mark_s))
        parts += [rule(x, TOP, x, bottom), text(x, bottom + 17, label, "tick", "middle")]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, height - 8, "mean wait of a job", "axis", "middle"))
    labels = Labels((LEFT, TOP, WIDTH - RIGHT, bottom))
    for outcome in every:
        labels.keep_clear(*plane.place(outcome), 5.0)
    lines = [(plane.y(cost), name) for name, cost in bounds]
    parts += [rule(LEFT, y, WIDTH - RIGHT, y, "bound") for y, _ in lines]
    parts += labels.write_lines(lines, "tick")
    for group in groups:
        parts += _points(group, plane)
    for group in sorted(groups, key=lambda it: (it.kind != "main", it.joined)):
        parts += [_label(outcome, group, plane, labels) for outcome in group.outcomes]
    return svg(WIDTH, height, "cost against mean wait", parts)


def _log(wait_s: float) -> float:
    return math.log10(max(1.0, wait_s))


def _cost_axis(plane: Plane, low: float, high: float) -> list[str]:
    marks = steps(low, high)
    parts = []
    for mark, label in zip(marks, format_money(marks), strict=True):
        y = plane.y(mark)
        parts += [rule(LEFT, y, WIDTH - RIGHT, y), text(LEFT - 8, y + 4, label, "tick", "end")]
    parts.append(text(LEFT - 8, TOP - 14, "cost", "axis", "end"))
    return parts


def _points(group: Group, plane: Plane) -> list[str]:
    parts = []
    if group.joined and len(group.outcomes) > 1:
        places = (plane.place(it) for it in pareto_front(list(group.outcomes)))
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" class="line {group.kind}"/>')
    for outcome in group.outcomes:
        x, y = plane.place(outcome)
        wait = format_span(outcome.wait_mean_s)
        label = escape(f"{outcome.policy}: cost {format_total(outcome.cost)}, mean wait {wait}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if group.joined else 6}" class="dot {group.kind}">'
            f"<title>{label}</title></circle>"
        )
    return parts


def _label(outcome: Outcome, group: Group, plane: Plane, labels: Labels) -> str:
    """Label a point with its run's name, or with its value if it is a step of a sweep."""
    name = outcome.policy.partition("=")[2] or outcome.policy if group.joined else outcome.policy
    return labels.write(*plane.place(outcome), shorten(name, NAME_MAX), "tick" if group.joined else "label")


# --- over time --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the axes, shared by the pictures of all runs so they can be compared."""

    end_s: float
    nodes: float
    waiting: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Extent:
        return cls(
            max([1.0, *(it.ended_s for it in outcomes)]),
            max([1.0, *(mean for it in outcomes for mean in it.nodes.means)]),
            max([1.0, *(mean for it in outcomes for mean in it.waiting.means)]),
        )


TIME_UNITS = ((3 * 86_400.0, 86_400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (0.0, 60.0, "minutes"))


def over_time(outcome: Outcome, extent: Extent) -> str:
    """Draw all nodes and the nodes with jobs, and below them the waiting jobs."""
    height, middle, gap = 360.0, 210.0, 40.0
    x = scale(0.0, extent.end_s, LEFT, WIDTH - RIGHT)
    nodes_y = scale(0.0, extent.nodes, middle, TOP)
    waits_y = scale(0.0, extent.waiting, height - BOTTOM, middle + gap)
    parts: list[str] = []
    for to_y, high in ((nodes_y, extent.nodes), (waits_y, extent.waiting)):
        for mark in steps(0.0, high, 4, least=1.0):
            parts += [rule(LEFT, to_y(mark), WIDTH - RIGHT, to_y(mark))]
            parts += [text(LEFT - 8, to_y(mark) + 4, f"{mark:,g}", "tick", "end")]
    parts += [text(LEFT, TOP - 12, "nodes", "axis"), text(LEFT, middle + gap - 12, "jobs waiting", "axis")]
    parts += [_area(outcome.nodes, x, nodes_y, "there"), _area(outcome.busy, x, nodes_y, "busy")]
    parts += [_area(outcome.waiting, x, waits_y, "waiting")]
    unit_s, unit = next((unit_s, unit) for least_s, unit_s, unit in TIME_UNITS if extent.end_s >= least_s)
    for mark in steps(0.0, extent.end_s / unit_s, 8):
        parts.append(text(x(mark * unit_s), height - BOTTOM + 17, f"{mark:g}", "tick", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, height - 8, f"{unit} since the first job", "axis", "middle"))
    return svg(WIDTH, height, f"nodes and queue over time, {outcome.policy}", parts)


def _area(curve: Curve, x: Scale, y: Scale, kind: str) -> str:
    """Draw a curve's steps as a filled shape."""
    marks = [f"{x(0.0):.1f},{y(0.0):.1f}"]
    for index, mean in enumerate(curve.means):
        from_x, to_x = x(index * curve.step_s), x((index + 1) * curve.step_s)
        marks += [f"{from_x:.1f},{y(mean):.1f}", f"{min(to_x, WIDTH - RIGHT):.1f},{y(mean):.1f}"]
    last_x = min(x(len(curve.means) * curve.step_s), WIDTH - RIGHT)
    marks.append(f"{last_x:.1f},{y(0.0):.1f}")
    return f'<polygon points="{" ".join(marks)}" class="area {kind}"/>'


# --- where the money goes ---------------------------------------------------------------------------------


def cost_parts(outcomes: Sequence[Outcome]) -> Sequence[tuple[str, str]]:
    """The parts of the cost that the bars show: lost runs only if there are any."""
    lost = any(outcome.restarts for outcome in outcomes)
    return [part for part in PARTS if lost or part[0] != "lost"]


def where_money_goes(outcomes: Sequence[Outcome]) -> str:
    """Draw a bar for each run, divided into the parts of its cost."""
    row, most = 30.0, max([outcome.cost for outcome in outcomes] + [1e-9])
    top = 8.0
    height = top + row * len(outcomes) + BOTTOM
    left, right = 200.0, WIDTH - 150.0
    x = scale(0.0, most, left, right)
    marks = steps(0.0, most)
    parts: list[str] = []
    for mark, label in zip(marks, format_money(marks), strict=True):
        parts += [rule(x(mark), top, x(mark), height - BOTTOM)]
        parts += [text(x(mark), height - BOTTOM + 17, label, "tick", "middle")]
    for index, outcome in enumerate(outcomes):
        parts += _bar(outcome, x, left, top + index * row + 5, row - 10)
    parts.append(text((left + right) / 2, height - 8, "cost", "axis", "middle"))
    return svg(WIDTH, height, "where the money goes", parts)


def _bar(outcome: Outcome, x: Scale, left: float, y: float, tall: float) -> list[str]:
    parts = [text(left - 10, y + 14, shorten(outcome.policy, NAME_MAX), "label", "end")]
    paid = 0.0
    for kind, name in cost_parts([outcome]):
        cost = max(0.0, getattr(outcome, f"cost_{kind}"))
        label = escape(f"{outcome.policy}, {name}: {format_total(cost)} ({cost / (outcome.cost or 1):.1%})")
        wide = max(0.0, x(paid + cost) - x(paid) - 1.5)
        parts.append(
            f'<rect x="{x(paid):.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" class="part {kind}">'
            f"<title>{label}</title></rect>"
        )
        paid += cost
    wasted = 1.0 - (outcome.cost_busy + outcome.cost_lost) / outcome.cost if outcome.cost else 0.0
    parts.append(text(x(outcome.cost) + 8, y + 14, f"{wasted:.1%} without a job", "tick"))
    return parts


# --- scales, axis marks at round numbers, and labels that do not overlap, for the report's charts ---------


Scale = Callable[[float], float]

LETTER = 7.0  # the approximate width of a label's letter
LINE = 15.0  # the height of a label's line
UNITS_S = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
WAIT_MARKS_S = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
    *(3600.0, 2 * 3600.0, 4 * 3600.0, 8 * 3600.0),
    *(86_400.0, 2 * 86_400.0, 4 * 86_400.0, 7 * 86_400.0, 14 * 86_400.0, 30 * 86_400.0, 90 * 86_400.0),
)
MARKS_MAX = 9


def scale(low: float, high: float, at_low: float, at_high: float) -> Scale:
    """Return the linear function from values to coordinates."""
    factor = (at_high - at_low) / (high - low or 1.0)
    return lambda value: at_low + (value - low) * factor


def steps(low: float, high: float, count: int = 5, least: float = 0.0) -> list[float]:
    """Return about ``count`` round marks from low to high. ``least``: the smallest step."""
    rough = max((high - low) / count or 1.0, least)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)
    if least and step % least:
        step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 9) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def format_money(marks: Sequence[float]) -> list[str]:
    """Write all marks of an axis in one unit."""
    most = max(map(abs, marks), default=0.0)
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if most >= 10 * factor:
            return [f"{mark / factor:,g}{unit}" if mark else "0" for mark in marks]
    return [f"{mark:,.10g}" for mark in marks]


def wait_marks(early_s: float, late_s: float) -> list[tuple[float, str]]:
    """Return round durations in a range, with their texts, for a logarithmic axis; closer in a short range."""
    marks_s = [mark_s for mark_s in WAIT_MARKS_S if early_s <= mark_s <= late_s]
    if len(marks_s) >= 3:
        marks_s = marks_s[:: math.ceil(len(marks_s) / MARKS_MAX)]
        return [(mark_s, format_wait(mark_s)) for mark_s in marks_s]
    _, length_s = _unit_of(late_s)
    return [
        (mark * length_s, format_wait(mark * length_s)) for mark in steps(early_s / length_s, late_s / length_s)
    ]


def format_wait(duration_s: float) -> str:
    """Write a duration in its largest unit."""
    unit, length_s = _unit_of(duration_s)
    return f"{duration_s / length_s:.6g} {unit}"


def _unit_of(duration_s: float) -> tuple[str, float]:
    return next(((unit, length_s) for unit, length_s in UNITS_S if duration_s >= length_s), UNITS_S[-1])


# --- SVG --------------------------------------------------------------------------------------------------


def svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """Wrap the parts of a picture in an SVG element."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, label: str, kind: str = "", anchor: str = "start") -> str:
    """Write an SVG text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(label)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    """Draw a straight SVG line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


# --- labels -----------------------------------------------------------------------------------------------

# The places of a label next to its point: the offset, and the text anchor.
LABEL_PLACES = (
    (11.0, 4.0, "start"),
    (-11.0, 4.0, "end"),
    (9.0, -9.0, "start"),
    (9.0, 18.0, "start"),
    (-9.0, -9.0, "end"),
    (-9.0, 18.0, "end"),
    (0.0, -13.0, "middle"),
    (0.0, 23.0, "middle"),
    (9.0, -24.0, "start"),
    (-9.0, -24.0, "end"),
    (9.0, 33.0, "start"),
    (-9.0, 33.0, "end"),
)


# The distance of a label's foot from its line, and the smallest distance of a label from any other line.
ABOVE, BELOW = -6.0, 15.0
APART = 6.0
LINE_STEPS = 12  # the number of places along a line


@dataclass(slots=True)
class Labels:
    """Labels that overlap no other label, no point, and no edge (left, top, right, bottom)."""

    edges: tuple[float, float, float, float]
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def keep_clear(self, x: float, y: float, reach: float) -> None:
        self.taken.append((x - reach, y - reach, x + reach, y + reach))

    def write(self, x: float, y: float, label: str, kind: str = "label") -> str:
        """Write a label next to a point; "" if there is no room: the report's table has the figures too."""
        for off_x, off_y, anchor in LABEL_PLACES:
            box = _box(x + off_x, y + off_y, label, anchor)
            if self._is_free(box):
                self.taken.append(box)
                return text(x + off_x, y + off_y, label, kind, anchor)
        return ""

    def write_lines(self, lines: Sequence[tuple[float, str]], kind: str) -> list[str]:
        """Write the labels of horizontal lines: above the highest line and below the others, if there is room.

        Each label is nearer to its own line than to any other.
        """
        highest = min((y for y, _ in lines), default=0.0)
        return [
            self._write_line(
                y, label, kind, [it for it, _ in lines if it != y], above=y == highest and len(lines) > 1
            )
            for y, label in lines
        ]

    def _write_line(self, y: float, label: str, kind: str, others: Sequence[float], *, above: bool) -> str:
        left, _, right, _ = self.edges
        sides = (ABOVE, BELOW) if above else (BELOW, ABOVE)
        reach = right - left - 6 - len(label) * LETTER
        places = [(right - reach * step / LINE_STEPS, y + side) for side in sides for step in range(LINE_STEPS + 1)]
        boxes = {place: _box(*place, label, "end") for place in places}
        apart = [
            it
            for it in places
            if all(_gap(boxes[it], at) >= min(APART, _gap(boxes[it], y) + abs(at - y)) - 1e-9 for at in others)
        ]
        free = [it for it in apart if self._is_free(boxes[it])]
        x, at_y = (free or apart or places)[0]
        self.taken.append(boxes[x, at_y])
        return text(x, at_y, label, kind, "end")

    def _is_free(self, box: tuple[float, float, float, float]) -> bool:
        left, top, right, bottom = self.edges
        if box[0] < left or box[1] < top or box[2] > right or box[3] > bottom:
            return False
        return not any(
            box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
            for other in self.taken
        )


def _gap(box: tuple[float, float, float, float], y: float) -> float:
    """The distance of a horizontal line from a box; below 0 if it crosses the box."""
    return max(box[1] - y, y - box[3])


def _box(x: float, y: float, label: str, anchor: str) -> tuple[float, float, float, float]:
    wide = len(label) * LETTER
    left = {"start": x, "end": x - wide, "middle": x - wide / 2}[anchor]
    return left, y - 0.8 * LINE, left + wide, y + 0.2 * LINE
