"""Runs ``top``: one thread asks the service, this one reads keys and draws."""

from __future__ import annotations

import getpass
import os
import queue
import select
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.text import Text

from nodemanager.cli import tables
from nodemanager.cli.parsing.exit_status import EXIT_TERMINATED
from nodemanager.cli.service_client import Client, NotAllowed, RequestDeclined, ServiceUnreachable, quote_segment
from nodemanager.cli.tables import (
    STATES,
    STYLES,
    cloud_budgets,
    cloud_price,
    cloud_state,
    money,
    of_most,
    span,
    why,
)
from nodemanager.cli.terminal import escape_document, make_console, shows_unicode_ids, with_unicode_ids
from nodemanager.cli.top.screen import Command, Explain, Pane, Quit, Row, Screen, Steer, press

EVERY_S = 2.0
SEQUENCES: Mapping[bytes, str] = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
}


class NoTerminal(Exception):
    """Standard input or output is no terminal. The message says what to use instead."""


def run_top(client: Client) -> None:
    """Show the fleet until "q" is pressed. Raises ``NoTerminal``."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoTerminal("top needs a terminal. Use status, nodes, jobs and events --follow instead")
    news, wake = socket.socketpair()
    asker = Asker(client, wake)
    with news, wake, _raw_terminal(wake):
        asker.start()
        try:
            _show(asker, news)
        finally:
            asker.end()


def _show(asker: Asker, news: socket.socket) -> None:
    console = make_console()
    screen = Screen()
    with console.screen(hide_cursor=True) as terminal:
        while True:
            size = console.size
            terminal.update(Group(*draw(screen, size.width, size.height)))
            ready, _, _ = select.select([sys.stdin, news], [], [])
            if news in ready:
                news.recv(4096)
                screen = asker.taken(screen)
            if sys.stdin in ready:
                typed = os.read(sys.stdin.fileno(), 1024)
                if not typed:
                    return
                for key in keys(typed):
                    screen, command = press(screen, key)
                    if isinstance(command, Quit):
                        return
                    if command is not None:
                        screen = replace(screen, message="asking the service")
                        asker.ask(command)


def keys(typed: bytes) -> Iterator[str]:
    """The keys in what a terminal sent: a name for a special one, or else the character."""
    while typed:
        special = next((it for it in sorted(SEQUENCES, key=len, reverse=True) if typed.startswith(it)), None)
        length = len(special) if special is not None else 1
        yield SEQUENCES[special] if special is not None else typed[:1].decode("ascii", "replace")
        typed = typed[length:]


@contextmanager
def _raw_terminal(wake: socket.socket) -> Iterator[None]:
    """Give keys at once and without echo, and put the terminal back at the end, also after SIGTERM."""
    before = termios.tcgetattr(sys.stdin)
    wake.setblocking(False)  # noqa: FBT003 - the interface of sockets
    wakeup = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    handlers = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate),
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),  # wakes, so that the new size is used
    }
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(EXIT_TERMINATED)


# --- asking the service -----------------------------------------------------------------------------------


class Asker(threading.Thread):
    """Asks the service every two seconds, and carries out commands in between.

    ``wake``: a socket that is written after each answer.
    """

    def __init__(self, client: Client, wake: socket.socket) -> None:
        super().__init__(name="top", daemon=True)  # an answer that does not come must not keep the process
        self._client = client
        self._wake = wake
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def ask(self, command: Command) -> None:
        """Carry out a command soon."""
        self._commands.put(command)

    def end(self) -> None:
        """Ask nothing more."""
        self._commands.put(None)

    def taken(self, screen: Screen) -> Screen:
        """Return the screen with the answers that have come."""
        while not self._answers.empty():
            screen = replace(screen, **self._answers.get())
        return screen

    def run(self) -> None:
        self._answer(look(self._client))
        while True:
            try:
                command = self._commands.get(timeout=EVERY_S)
            except queue.Empty:
                self._answer(look(self._client))
                continue
            if command is None:
                return
            self._answer(carry_out(self._client, command))
            self._answer(look(self._client))

    def _answer(self, changes: Mapping[str, Any]) -> None:
        self._answers.put(changes)
        try:
            self._wake.send(b"a")
        except OSError:
            return  # the buffer is full, so it wakes anyway; or top has ended


def look(client: Client) -> Mapping[str, Any]:
    """Ask for what the screen shows. Return the fields of the screen that change."""
    try:
        status = client.status()
        many = status["nodes"]["total"] > NODES_IN_FULL_MAX
        nodes = client.get("/fleet" if many else "/nodes")
        jobs = client.get("/jobs", limit=JOBS_SHOWN)
        events = client.get("/events/recent", limit=EVENTS_SHOWN)
    except (ServiceUnreachable, NotAllowed, RequestDeclined) as error:
        return {"fault": readable(str(error).replace("\n", " "))}
    return {"status": readable(status), "rows": rows_of(nodes, jobs, events, _clock), "fault": ""}


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S")


def carry_out(client: Client, command: Command) -> Mapping[str, Any]:
    """Steer or explain. Return the fields of the screen that change."""
    try:
        match command:
            case Steer(verb, name):
                path = f"/{verb}/{quote_segment(name)}" if name else f"/{verb}"
                done = client.post(path, {"by": getpass.getuser()})
                return {"message": _done(command, readable(done))}
            case Explain(kind, name, at):
                return {"page": readable(_explained(client, kind, name, at)), "page_top": 0, "message": ""}
            case Quit():
                return {}
    except (ServiceUnreachable, NotAllowed, RequestDeclined) as error:
        return {"message": readable(str(error).replace("\n", " "))}


def _done(command: Steer, answer: Mapping[str, Any]) -> str:
    waits = f". Not yet: {answer['waits_for']}" if answer.get("waits_for") else ""
    kept = "" if answer["on_record"] else ", not yet on record"
    return f"{command.text}: done{kept}{waits}"


def _explained(client: Client, kind: str, name: str, at: float | None) -> Any:
    path = f"/explain/{kind}/{quote_segment(name)}"
    try:
        return client.get(path)
    except RequestDeclined:
        if at is None:
            raise
        return client.get(path, at=at)  # it is gone, so only the history knows it


# --- turns the service's documents into the rows of ``top`` -----------------------------------------------


NODES_IN_FULL_MAX = 500  # of more, only the compact list is asked for
EVENTS_SHOWN = 200
JOBS_SHOWN = 200
EVENT_STYLES: Mapping[str, str] = {
    "failed": "red",
    "alarm": "bold red",
    "standstill": "bold red",
    "would": "yellow",
}


def readable(document: Any) -> Any:
    """Return a document as the terminal may show it."""
    document = escape_document(document)
    return with_unicode_ids(document) if shows_unicode_ids() else document


def node_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of all nodes: slot, type, state, the rest of the paid time, cost, reason."""
    rows = []
    for node in document["nodes"]:
        mark = " held" if node["held"] else " retire" if node["to_retire"] else ""
        paid = span(node["window"]["left_s"]) if node["window"] else "-"
        because = f"runs {', '.join(node['jobs'])}" if node["jobs"] else why(node["reason"])
        cells = (node["slot"], node["node_type"], node["state"] + mark, paid, money(node["cost"]), because)
        rows.append(Row(node["node"], cells, STYLES.get(node["state"], ""), "node", node["slot"]))
    return rows


def fleet_rows(fleet: Mapping[str, Any]) -> list[Row]:
    """The same from the compact list, which has neither costs nor reasons."""
    held = set(fleet["held"])
    rows = []
    for index, node in enumerate(fleet["node"]):
        state = fleet["states"][fleet["state"][index]]
        slot, left_s = fleet["slot"][index], fleet["left_s"][index]
        cells = (
            slot,
            fleet["types"][fleet["type"][index]],
            state + (" held" if index in held else ""),
            span(left_s),
        )
        rows.append(Row(node, (*cells, "", "Enter explains"), STYLES.get(state, ""), "node", slot))
    return rows


def job_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of the waiting jobs: id, user, how long it waits, reason."""
    if not document["shown"]:
        return [Row("", ("", "", "", "only the owner may see jobs: the token is missing"))]
    waiting = [job for job in document["jobs"] if job["waits_s"] is not None]
    return [
        Row(job["job"], (job["job"], job["user"], span(job["waits_s"]), why(job["reason"])), "", "job", job["job"])
        for job in waiting
    ]


def event_rows(events: Sequence[Mapping[str, Any]], clock: Any) -> list[Row]:
    """The rows of the events, latest first: time, kind, what, subject, reason. ``clock``: formats a time."""
    rows = []
    for event in reversed(events):
        detail = why(event["reason"]) or str(event["figures"].get("detail", ""))
        cells = (clock(event["at"]), event["kind"], event["what"], event["subject"], detail)
        is_node = bool(event["subject"] and event["node_type"])
        rows.append(
            Row(
                str(event["number"]),
                cells,
                EVENT_STYLES.get(event["kind"], ""),
                "node" if is_node else "",
                event["subject"] if is_node else "",
                event["at"],
            )
        )
    return rows


def rows_of(
    nodes: Mapping[str, Any], jobs: Mapping[str, Any], events: Mapping[str, Any], clock: Any
) -> Mapping[Pane, Sequence[Row]]:
    """All rows. ``nodes``: the full or the compact list."""
    nodes, jobs, events = readable(nodes), readable(jobs), readable(events)
    return {
        Pane.NODES: node_rows(nodes) if "nodes" in nodes else fleet_rows(nodes),
        Pane.JOBS: job_rows(jobs),
        Pane.EVENTS: event_rows(events["events"], clock),
    }


# --- draws the screen of ``top`` as lines of exactly the terminal's size ----------------------------------
#
# Pure.


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
    waiting = status["jobs_waiting_for_nodes"]
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
