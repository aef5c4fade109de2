"""``top`` in a terminal of its own: it draws, steers with the token, and leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.paths import CONFIG, ROOT
from tests.web.fleets import TOKEN, Stand, a_fleet, a_stand, served

WITHIN_S = 60.0


class Terminal:
    """The far end of a pseudo-terminal of 80 x 24."""

    def __init__(self, command: list[str]) -> None:
        self._fd, self._near = pty.openpty()
        termios.tcsetwinsize(self._near, (24, 80))
        self.before = termios.tcgetattr(self._near)
        environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        self.process = subprocess.Popen(
            command, stdin=self._near, stdout=self._near, stderr=self._near, env=environment, start_new_session=True
        )
        self._got = ""

    def type(self, keys: str) -> None:
        """Type, and forget what was shown before."""
        self._got = ""
        os.write(self._fd, keys.encode())

    def until(self, text: str) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._got):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                pytest.fail(f"{text!r} never came: {self._got[-3000:]!r}")
            self._got += os.read(self._fd, 65536).decode("utf-8", "replace")

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._near)[:4] == self.before[:4]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WITHIN_S)
        os.close(self._fd)
        os.close(self._near)


@contextmanager
def shown(tmp_path: Path, *, token: str = TOKEN) -> Iterator[tuple[Terminal, Stand]]:
    stand = a_stand(jobs_for_everybody=True, clock_s=[float(turn) for turn in range(10_000)])
    stand.post(a_fleet(5))
    with served(stand) as url:
        address = url.removeprefix("http://").rstrip("/")
        (tmp_path / "token").write_text(token, encoding="utf-8")
        (tmp_path / "token").chmod(0o600)
        text = (CONFIG / "embedded.ini").read_text(encoding="utf-8")
        assert "listen = 127.0.0.1:8080" in text
        text = text.replace("listen = 127.0.0.1:8080", f"listen = {address}\ntoken_file = {tmp_path / 'token'}")
        site = tmp_path / "site.ini"
        site.write_text(text, encoding="utf-8")
        terminal = Terminal([sys.executable, "-m", "nodemanager", "top", "--config", str(site)])
        try:
            terminal.until("5 of 9 nodes")
            yield terminal, stand
        finally:
            terminal.close()


def test_it_shows_explains_and_steers(tmp_path: Path) -> None:
    with shown(tmp_path) as (terminal, stand):
        terminal.type("\r")
        terminal.until("because")
        terminal.until("Escape closes")
        terminal.type("q")
        terminal.until("Enter explain")
        terminal.type("\x1b[Bh")
        terminal.until("hold cpu2? Press y")
        terminal.type("y")
        terminal.until("hold cpu2: done")
        terminal.until("requested held")
        assert [type(fact).__name__ for fact in stand.manager.told] == ["HoldPlaced"]
        terminal.type("q")
        assert terminal.process.wait(WITHIN_S) == 0
        assert terminal.is_as_before()


def test_without_the_right_token_it_steers_nothing_and_says_so(tmp_path: Path) -> None:
    with shown(tmp_path, token="wrong") as (terminal, stand):
        terminal.type("p")
        terminal.until("pause? Press y")
        terminal.type("y")
        terminal.until("this needs the token")
        assert stand.manager.told == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with shown(tmp_path) as (terminal, _):
        assert not terminal.is_as_before()
        terminal.process.send_signal(number)
        assert terminal.process.wait(WITHIN_S) == status
        assert terminal.is_as_before()


def test_without_a_terminal_it_names_what_to_use_instead() -> None:
    command = [sys.executable, "-m", "nodemanager", "top", "--config", str(CONFIG / "embedded.ini")]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ran.returncode, "top needs a terminal" in ran.stderr) == (2, True), ran.stderr
