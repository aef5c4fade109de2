"""The report's pictures, as SVG in the page's own colours: for light and dark, and with nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from nodemanager.whatif.outcome import Curve, Outcome
from nodemanager.whatif.study import pareto, short_span, span

WIDTH = 860.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 20.0, 16.0, 44.0
PARTS = (("busy", "with jobs"), ("idle", "idle"), ("boot", "coming and going"), ("unused", "paid beyond its end"))
WAIT_MARKS_S = (1.0, 10.0, 100.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lies in a picture."""

    height: float
    x: Callable[[float], float]
    y: Callable[[float], float]

    @property
    def bottom(self) -> float:
        return self.height - BOTTOM


def _scale(low: float, high: float, at_low: float, at_high: float) -> Callable[[float], float]:
    factor = (at_high - at_low) / (high - low or 1.0)
    return lambda value: at_low + (value - low) * factor


def _steps(low: float, high: float, count: int = 5) -> list[float]:
    """Round marks from low to high."""
    rough = (high - low) / count or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _money(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


# --- cost against wait ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one kind. ``joined``: they are the steps of a sweep."""

    kind: str
    outcomes: Sequence[Outcome]
    joined: bool = False


def cost_against_wait(groups: Sequence[Group], bounds: Sequence[tuple[str, float]]) -> str:
    """Each run by its mean wait and its cost; the lower bounds as lines."""
    every = [outcome for group in groups for outcome in group.outcomes]
    waits = [_log(outcome.wait_mean_s) for outcome in every]
    costs = [outcome.cost for outcome in every] + [cost for _, cost in bounds]
    reach = (max(costs) - min(costs)) or max(costs) or 1.0
    low, high = max(0.0, min(costs) - 0.12 * reach), max(costs) + 0.12 * reach
    early, late = min(waits) - 0.06, max(waits) + 0.06
    height = 420.0
    frame = Frame(height, _scale(early, late, LEFT, WIDTH - RIGHT), _scale(low, high, height - BOTTOM, TOP))
    parts = _cost_axis(frame, low, high)
    for mark_s in _wait_marks(early, late):
        x = frame.x(_log(mark_s))
        parts += [_rule(x, TOP, x, frame.bottom), _text(x, frame.bottom + 16, short_span(mark_s), "tick", "middle")]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, "mean wait of a job", "axis", "middle"))
    for (name, cost), below in zip(bounds, (-5.0, 14.0), strict=False):
        y = frame.y(cost)
        parts += [_rule(LEFT, y, WIDTH - RIGHT, y, "bound"), _text(WIDTH - RIGHT, y + below, name, "tick", "end")]
    for group in groups:
        parts += _points(group, frame)
    parts += _labels([outcome for group in groups if not group.joined for outcome in group.outcomes], frame)
    return _svg(height, "cost against mean wait", parts)


def _log(wait_s: float) -> float:
    return math.log10(max(1.0, wait_s))


def _wait_marks(early: float, late: float) -> list[float]:
    marks = [mark_s for mark_s in WAIT_MARKS_S if early <= _log(mark_s) <= late]
    if len(marks) >= 2:
        return marks
    return [
        round(10**at, 1) for at in (early + 0.1 * (late - early), (early + late) / 2, late - 0.1 * (late - early))
    ]


def _cost_axis(frame: Frame, low: float, high: float) -> list[str]:
    parts = []
    for mark in _steps(low, high):
        y = frame.y(mark)
        parts += [_rule(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, _money(mark), "tick", "end")]
    parts.append(_text(LEFT - 8, TOP - 4, "cost", "axis", "end"))
    return parts


def _points(group: Group, frame: Frame) -> list[str]:
    parts = []
    if group.joined and len(group.outcomes) > 1:
        front = pareto(list(group.outcomes))
        line = " ".join(f"{frame.x(_log(it.wait_mean_s)):.1f},{frame.y(it.cost):.1f}" for it in front)
        parts.append(f'<polyline points="{line}" class="line {group.kind}"/>')
    for outcome in group.outcomes:
        x, y = frame.x(_log(outcome.wait_mean_s)), frame.y(outcome.cost)
        said = escape(f"{outcome.policy}: cost {outcome.cost:,.2f}, mean wait {span(outcome.wait_mean_s)}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if group.joined else 6}" class="dot {group.kind}">'
            f"<title>{said}</title></circle>"
        )
    return parts


def _labels(outcomes: Sequence[Outcome], frame: Frame) -> list[str]:
    """Names beside their points, moved down where they would lie on one another."""
    parts, taken = [], list[tuple[float, float]]()
    for outcome in sorted(outcomes, key=lambda it: -it.cost):
        x, y = frame.x(_log(outcome.wait_mean_s)), frame.y(outcome.cost) + 4
        while any(abs(y - other_y) < 15 and abs(x - other_x) < 150 for other_x, other_y in taken):
            y += 15
        taken.append((x, y))
        left = x > WIDTH - 170
        parts.append(_text(x - 11 if left else x + 11, y, outcome.policy, "label", "end" if left else "start"))
    return parts


# --- over time --------------------------------------------------------------------------------------------


def over_time(outcome: Outcome) -> str:
    """Nodes that are there and nodes with jobs; under them the jobs that wait."""
    height, middle, gap = 360.0, 210.0, 34.0
    end_s = max(outcome.ended_s, 1.0)
    x = _scale(0.0, end_s, LEFT, WIDTH - RIGHT)
    most = max([1.0, *outcome.nodes.means])
    waits = max([1.0, *outcome.waiting.means])
    nodes_y = _scale(0.0, most, middle, TOP)
    waits_y = _scale(0.0, waits, height - BOTTOM, middle + gap)
    parts: list[str] = []
    for scale, high in ((nodes_y, most), (waits_y, waits)):
        for mark in _steps(0.0, high, 3):
            parts += [_rule(LEFT, scale(mark), WIDTH - RIGHT, scale(mark))]
            parts += [_text(LEFT - 8, scale(mark) + 4, f"{mark:g}", "tick", "end")]
    parts += [_text(LEFT + 4, TOP - 4, "nodes", "axis")]
    parts += [_text(LEFT + 4, middle + gap - 8, "jobs waiting", "axis")]
    parts += [_area(outcome.nodes, x, nodes_y, "there"), _area(outcome.busy, x, nodes_y, "busy")]
    parts += [_area(outcome.waiting, x, waits_y, "waiting")]
    unit_s, unit = (86_400.0, "days") if end_s > 3 * 86_400 else (3600.0, "hours")
    for mark in _steps(0.0, end_s / unit_s, 8):
        parts.append(_text(x(mark * unit_s), height - BOTTOM + 16, f"{mark:g}", "tick", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, f"{unit} since the first job", "axis", "middle"))
    return _svg(height, f"nodes and queue over time, {outcome.policy}", parts)


def _area(curve: Curve, x: Callable[[float], float], y: Callable[[float], float], kind: str) -> str:
    """Steps, as a filled shape: each holds its mean over its span."""
    marks = [f"{x(0.0):.1f},{y(0.0):.1f}"]
    for index, mean in enumerate(curve.means):
        from_x, to_x = x(index * curve.step_s), x((index + 1) * curve.step_s)
        marks += [f"{from_x:.1f},{y(mean):.1f}", f"{min(to_x, WIDTH - RIGHT):.1f},{y(mean):.1f}"]
    last_x = min(x(len(curve.means) * curve.step_s), WIDTH - RIGHT)
    marks.append(f"{last_x:.1f},{y(0.0):.1f}")
    return f'<polygon points="{" ".join(marks)}" class="area {kind}"/>'


# --- where the money goes ---------------------------------------------------------------------------------


def where_money_goes(outcomes: Sequence[Outcome]) -> str:
    """A bar a run: what was paid with jobs on the node, and what was not."""
    row, most = 30.0, max([outcome.cost for outcome in outcomes] + [1e-9])
    height = TOP + row * len(outcomes) + BOTTOM
    left = 190.0
    x = _scale(0.0, most, left, WIDTH - RIGHT - 70)
    parts: list[str] = []
    for mark in _steps(0.0, most):
        parts += [_rule(x(mark), TOP, x(mark), height - BOTTOM)]
        parts += [_text(x(mark), height - BOTTOM + 16, _money(mark), "tick", "middle")]
    for index, outcome in enumerate(outcomes):
        y = TOP + index * row + 5
        parts.append(_text(left - 10, y + 14, outcome.policy, "label", "end"))
        paid = 0.0
        for kind, name in PARTS:
            cost = max(0.0, getattr(outcome, f"cost_{kind}"))
            said = escape(f"{outcome.policy}, {name}: {cost:,.2f} ({cost / (outcome.cost or 1):.1%})")
            wide, tall = max(0.0, x(paid + cost) - x(paid) - 1.5), row - 10
            parts.append(
                f'<rect x="{x(paid):.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" class="part {kind}">'
                f"<title>{said}</title></rect>"
            )
            paid += cost
        parts.append(_text(x(outcome.cost) + 6, y + 14, f"{outcome.cost:,.0f}", "tick"))
    parts.append(_text((left + WIDTH - RIGHT - 70) / 2, height - 8, "cost", "axis", "middle"))
    return _svg(height, "where the money goes", parts)
