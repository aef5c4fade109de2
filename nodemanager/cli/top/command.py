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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from rich.console import Group

from nodemanager.cli.parsing.exit_status import EXIT_TERMINATED
from nodemanager.cli.service_client import Client, NotAllowed, RequestDeclined, ServiceUnreachable, quote_segment
from nodemanager.cli.terminal import make_console
from nodemanager.cli.top.documents import EVENTS_SHOWN, JOBS_SHOWN, NODES_IN_FULL_MAX, readable, rows_of
from nodemanager.cli.top.picture import draw
from nodemanager.cli.top.screen import Command, Explain, Quit, Screen, Steer, press

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
