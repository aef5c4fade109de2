"""Draws the screen of ``top`` as lines of exactly the terminal's size. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from nodemanager.cli import tables
from nodemanager.cli.tables import STATES, STYLES, cloud_budgets, cloud_price, cloud_state, money, of_most, why
from nodemanager.cli.top.screen import Pane, Row, Screen

ROWS_MIN = 2  # of a list that is not in use
TYPES_MAX = 5
CLOUDS_MAX = 5
KEYS = "Enter explain  h hold  u release  t retire  p pause  Tab list  ? keys  q quit"
HELP = (
    "Tab           use the next list",
    "Up, Down      select a row (also k, j, PgUp, PgDn, Home, End)",
    "Enter         explain the selected node or job",
    "h             hold the node: it gets no new job and is not terminated",
    "u             release the node from a hold or a retirement",
    "t             retire the node: drain it, then terminate it once it is free",
    "p             pause all decisions, or resume them",
    "y             confirm an order. Any other key drops it",
    "Escape        close an explanation",
    "q             quit",
    "",
    "Costs are estimates from the site's prices. To steer you need the site's token.",
)
COLUMNS: Mapping[Pane, Sequence[str]] = {
    Pane.NODES: ("slot", "type", "state", "paid for", "cost", "because"),
    Pane.JOBS: ("job", "user", "waits", "because"),
    Pane.EVENTS: ("at", "kind", "what", "subject", "because"),
}
WIDTHS_MAX: Mapping[Pane, Sequence[int]] = {
    Pane.NODES: (16, 12, 16, 8, 8),
    Pane.JOBS: (14, 12, 8),
    Pane.EVENTS: (8, 10, 16, 18),
}


def draw(screen: Screen, width: int, height: int) -> list[Text]:
    """Return ``height`` lines, each at most ``width`` cells wide."""
    head, foot = _head(screen), _foot(screen)
    space = max(0, height - len(head) - 1)
    body = _body(screen, width, space)[:space]
    body += [Text()] * (space - len(body))
    return [_cut(line, width) for line in (*head, *body, foot)[:height]]


def _cut(line: Text, width: int) -> Text:
    if cell_len(line.plain) > width:
        line = line.copy()
        line.truncate(width, overflow="ellipsis")
    return line


def _body(screen: Screen, width: int, space: int) -> list[Text]:
    if screen.helps:
        return [Text(line) for line in HELP]
    if screen.page is not None:
        return _page(screen.page, screen.page_top, width, space)
    if screen.status is None:
        return []
    above = _types(screen.status) + _clouds(screen.status)
    return above + _lists(screen, width, space - len(above))


# --- head and foot ----------------------------------------------------------------------------------------


def _head(screen: Screen) -> list[Text]:
    status = screen.status
    if status is None:
        return [Text(screen.fault or "waiting for the service", style="bold red" if screen.fault else "")]
    jobs, nodes, limits = status["jobs"], status["nodes"], status["limits"]
    running = sum(jobs.get(state, 0) for state in ("run", "cleanup"))
    waiting = sum(jobs.get(state, 0) for state in ("new", "depend", "priority", "sched"))
    first = Text.assemble((status["cluster"], "bold"), f"  {status['mode']}  decides: ", _decides(status))
    first.append(f"  {tables.clock(status['at'])}", style="dim")
    cost = f"{money(status['price_per_hour'])} an hour of {money(limits['price_per_hour_max'])}"
    second = Text(
        f"{nodes['total']} of {limits['nodes_max']} nodes  {waiting} jobs wait, {running} run  {cost}"
        f"  {money(status['spent']['today'])} today"
    )
    return [first, second, *_trouble(screen, status)]


def _decides(status: Mapping[str, Any]) -> Text:
    if status["paused"]:
        return Text(f"paused by {status['paused']['by']}", style="bold yellow")
    if status["stands_still"]:
        return Text("no", style="bold red")
    if status["safe_mode"]["on"]:
        return Text("safe mode", style="bold yellow")
    return Text("yes", style="green") if status["acts"] else Text("only reports", style="yellow")


def _trouble(screen: Screen, status: Mapping[str, Any]) -> list[Text]:
    """One line for all troubles: the worst, and how many more."""
    found = [screen.fault] if screen.fault else []
    found += [why(status["stands_still"])] if status["stands_still"] else []
    found += [why(warning) for warning in status["warnings"]]
    found += [f"{block['node_type']} is not bought: {why(block['reason'])}" for block in status["blocks"]]
    found += [f"{name}: {it['failure']}" for name, it in status["sources"].items() if it["failure"]]
    more = f" (and {len(found) - 1} more: see status)" if len(found) > 1 else ""
    style = "bold red" if screen.fault or status["stands_still"] else "yellow"
    return [Text(f"{found[0]}{more}", style=style)] if found else []


def _foot(screen: Screen) -> Text:
    if screen.asks is not None:
        return Text(f"{screen.asks.text}? Press y to confirm, any other key to drop it", style="bold reverse")
    if screen.helps:
        return Text("any key closes this page", style="dim")
    if screen.page is not None:
        return Text("Escape closes  Up, Down scroll", style="dim")
    return Text(screen.message, style="bold") if screen.message else Text(KEYS, style="dim")


# --- types ------------------------------------------------------------------------------------------------


def _types(status: Mapping[str, Any]) -> list[Text]:
    """The nodes of each type by state, how many are wanted, and what they cost an hour."""
    nodes = status["nodes"]
    names = sorted({*nodes["by_type"], *nodes["wanted"]})
    states = [state for state in STATES if any(it.get(state) for it in nodes["by_type"].values())]
    wide = max([4, *(min(16, cell_len(name)) for name in names)])
    lines = [Text("  ".join([set_cell_size("type", wide), *(f"{it:>6}" for it in (*states, "wanted", "an hour"))]))]
    lines[0].stylize("dim")
    for name in names[:TYPES_MAX]:
        counts = nodes["by_type"].get(name, {})
        line = Text(set_cell_size(name, wide))
        for state in states:
            line.append(f"  {counts.get(state) or '':>{max(6, len(state))}}", style=STYLES[state])
        cost = money(nodes.get("price_by_type", {}).get(name, 0.0))
        lines.append(line.append(f"  {nodes['wanted'].get(name, 0):>6}  {cost:>7}"))
    if len(names) > TYPES_MAX:
        lines.append(Text(f"and {len(names) - TYPES_MAX} more types", style="dim"))
    return lines


# --- clouds -----------------------------------------------------------------------------------------------


def _clouds(status: Mapping[str, Any]) -> list[Text]:
    """The clouds of a site that has several: nodes, price, budgets and state."""
    clouds = status.get("clouds", ())
    rows = [
        (it["name"], of_most(str(it["nodes"]), it["nodes_max"]), cloud_price(it), cloud_budgets(it))
        for it in clouds[:CLOUDS_MAX]
    ]
    heads = ("cloud", "nodes", "an hour", "of its budget")
    wide = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [Text("  ".join([*map(set_cell_size, heads, wide), "state"]), style="dim")] if rows else []
    for cloud, cells in zip(clouds, rows, strict=False):
        line = Text("  ".join([*map(set_cell_size, cells, wide), ""]))
        lines.append(line.append_text(cloud_state(cloud, status["at"])))
    if len(clouds) > CLOUDS_MAX:
        lines.append(Text(f"and {len(clouds) - CLOUDS_MAX} more clouds", style="dim"))
    return lines


# --- lists ------------------------------------------------------------------------------------------------


def _lists(screen: Screen, width: int, space: int) -> list[Text]:
    """The lists below one another, each with a title."""
    rows_max = _shares(screen, space - len(Pane))
    return [line for pane in Pane for line in _list(screen, pane, width, rows_max[pane])]


def _shares(screen: Screen, space: int) -> Mapping[Pane, int]:
    """The lines of each list: first a few for all, then those that the list in use wants, then the rest."""
    wants = {pane: max(1, len(screen.rows[pane])) for pane in Pane}
    shares = {pane: min(ROWS_MIN, wants[pane]) for pane in Pane}
    for pane in sorted(Pane, key=lambda pane: pane is not screen.pane):
        left = space - sum(shares.values())
        shares[pane] += max(0, min(left, wants[pane] - shares[pane]))
    return shares


def _list(screen: Screen, pane: Pane, width: int, rows_max: int) -> list[Text]:
    rows, in_use = screen.rows[pane], pane is screen.pane
    chosen = screen.index(pane)
    top = max(0, min(chosen - rows_max // 2, len(rows) - rows_max))
    shown = rows[top : top + rows_max]
    title = f"{pane} {len(rows)}"
    columns = _widths(pane, shown)
    columns[0] = max(columns[0], cell_len(title))  # the title stands over the first column
    names = [_fit(name, wide) for name, wide in zip(COLUMNS[pane][1:], columns[1:], strict=False)]
    head = Text(title, style="bold reverse" if in_use else "bold")
    head.append(" " * (columns[0] - cell_len(title)), style="not reverse")
    head.append(" " + " ".join([*names, COLUMNS[pane][-1]]), style="not bold not reverse dim")
    lines = [head]
    lines += [
        _row(row, columns, width, selected=in_use and at == chosen) for at, row in enumerate(shown, start=top)
    ]
    return lines if rows else [*lines, Text("none", style="dim")]


def _widths(pane: Pane, rows: Sequence[Row]) -> list[int]:
    """The width of each column but the last, by its contents."""
    names = COLUMNS[pane]
    return [
        min(most, max([cell_len(names[column]), *(cell_len(row.cells[column]) for row in rows)]))
        for column, most in enumerate(WIDTHS_MAX[pane])
    ]


def _row(row: Row, columns: Sequence[int], width: int, *, selected: bool) -> Text:
    cells = [_fit(cell, wide) for cell, wide in zip(row.cells, columns, strict=False)]
    text = " ".join([*cells, row.cells[-1]])
    if selected:
        return Text(set_cell_size(text, width), style="reverse")
    line = Text(text)
    if row.style:
        line.stylize(row.style, 0, len(text) - len(row.cells[-1]))
    return line


def _fit(cell: str, wide: int) -> str:
    return set_cell_size(cell, wide) if cell_len(cell) <= wide else set_cell_size(cell, wide - 1) + "…"


# --- one explanation --------------------------------------------------------------------------------------


def _page(page: Mapping[str, Any], page_top: int, width: int, space: int) -> list[Text]:
    console = Console(width=width, markup=False, emoji=False, highlight=False, color_system=None)
    rendered = console.render_lines(tables.explanation(page), console.options, pad=False)
    lines = [Text("".join(part.text for part in line)) for line in rendered]
    top = min(page_top, max(0, len(lines) - space))
    return lines[top:]
