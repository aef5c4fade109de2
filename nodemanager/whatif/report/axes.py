"""Scales, axis marks at round numbers, and labels that do not overlap, for the report's charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

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
