"""What each key does, and what the screen shows at 80 x 24.

The files in ``shown/`` are the screens as they should be. ``python -m tests.cli.top.test_screen`` writes them
again: look at the difference before you commit it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from starlette.testclient import TestClient

from nodemanager.cli.service_client import RequestDeclined
from nodemanager.cli.top import command
from nodemanager.cli.top.screen import Explain, Pane, Quit, Screen, Steer, press
from tests.web.fleets import HOST, a_fleet, a_stand

SHOWN = Path(__file__).parent / "shown"
WIDTH, HEIGHT = 80, 24


class Service:
    """The client of a service within this process."""

    def __init__(self, nodes: int) -> None:
        stand = a_stand(jobs_for_everybody=True, clock_s=[float(turn) for turn in range(1000)])
        for moment in range(3):
            stand.post(a_fleet(nodes, waiting=moment + 3, moment=moment * 20))
        self._http = TestClient(stand.application, base_url=f"http://{HOST}")

    def status(self) -> Any:
        return self.get("/status")

    def get(self, path: str, **query: Any) -> Any:
        answer = self._http.get(path, params={name: it for name, it in query.items() if it is not None})
        if not answer.is_success:
            raise RequestDeclined(answer.text)
        return answer.json()


@pytest.fixture(autouse=True)
def _one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and job ids are shown as the terminal's environment says."""
    monkeypatch.setattr(command, "_clock", lambda _: "12:00:00")
    monkeypatch.setattr("nodemanager.cli.tables.clock", lambda _: "2026-11-21 12:00:00")
    monkeypatch.setattr(command, "shows_unicode_ids", lambda: False)


def look(nodes: int) -> Screen:
    return replace(Screen(), **command.look(Service(nodes)))  # type: ignore[arg-type]


def pressed(screen: Screen, *keys: str) -> Screen:
    for key in keys:
        screen, _ = press(screen, key)
    return screen


def text_of(screen: Screen, width: int = WIDTH, height: int = HEIGHT) -> str:
    return "".join(f"{line.plain.rstrip()}\n" for line in command.draw(screen, width, height))


def screens() -> Iterator[tuple[str, Screen]]:
    few = look(5)
    yield "few", few
    yield "many", pressed(look(600), "end")
    yield "jobs", pressed(few, "tab", "down", "down")
    yield "confirm", pressed(few, "down", "t")
    yield "help", pressed(few, "?")
    yield "explain", replace(few, page=command.readable(Service(5).get("/explain/job/f3")))
    yield "fault", replace(few, fault="no service answers: is it running with this site?")
    yield "none", Screen()


@pytest.mark.parametrize("name", ["few", "many", "jobs", "confirm", "help", "explain", "fault", "none"])
def test_the_screen_is_as_it_should_be(name: str) -> None:
    assert text_of(dict(screens())[name]) == (SHOWN / f"{name}.txt").read_text(encoding="utf-8")


@given(
    st.integers(1, 200), st.integers(1, 60), st.lists(st.sampled_from(["tab", "down", "end", "h", "?", "enter"]))
)
def test_the_screen_fits_every_terminal(width: int, height: int, keys: list[str]) -> None:
    lines = command.draw(pressed(FEW, *keys), width, height)
    assert len(lines) == height
    assert max(cell_len(line.plain) for line in lines) <= width


FEW = look(5)


@pytest.mark.parametrize(("key", "verb"), [("h", "hold"), ("u", "release"), ("t", "retire")])
def test_an_order_is_carried_out_only_after_it_was_confirmed(key: str, verb: str) -> None:
    asks, done = press(pressed(FEW, "down"), key)
    assert (asks.asks, done) == (Steer(verb, "cpu2"), None)
    after, done = press(asks, "n")
    assert (after.asks, done, after.message) == (None, None, "nothing done")
    assert press(asks, "y")[1] == Steer(verb, "cpu2")


def test_what_is_confirmed_is_what_was_asked_even_if_the_list_changes_meanwhile() -> None:
    asks, _ = press(pressed(FEW, "down"), "t")
    changed = replace(asks, rows={**asks.rows, Pane.NODES: asks.rows[Pane.NODES][3:]})
    assert press(changed, "y")[1] == Steer("retire", "cpu2")


def test_the_selection_follows_the_node() -> None:
    down = pressed(FEW, "down", "down")
    assert down.row is not None
    moved = replace(down, rows={**down.rows, Pane.NODES: down.rows[Pane.NODES][1:]})
    assert (moved.row, moved.index(Pane.NODES)) == (down.row, 1)


def test_only_nodes_are_steered() -> None:
    asks, done = press(pressed(FEW, "tab"), "h")
    assert (asks.asks, done) == (None, None)
    assert "select a node" in asks.message


def test_pause_becomes_resume_while_paused() -> None:
    assert press(FEW, "p")[0].asks == Steer("pause")
    assert FEW.status is not None
    paused = replace(FEW, status={**FEW.status, "paused": {"by": "ana", "at": 1.0}})
    assert press(paused, "p")[0].asks == Steer("resume")
    assert press(Screen(), "p")[0].asks is None, "nothing is known yet"


def test_enter_explains_and_escape_goes_back() -> None:
    _, asked = press(pressed(FEW, "tab"), "enter")
    assert asked in {Explain("job", "f2"), Explain("job", "ƒ2")}, "as the terminal writes ids"
    page = replace(FEW, page={"subject": "f2", "reason": None})
    assert press(page, "q") == (FEW, None)
    assert press(FEW, "q")[1] == Quit()


def test_what_has_gone_is_explained_from_the_history() -> None:
    asked: list[Mapping[str, object]] = []

    class Gone(Service):
        def get(self, path: str, **query: Any) -> Any:
            asked.append(query)
            if not query:
                raise RequestDeclined("no such node")
            return {"subject": "cpu9-1"}

    answer = command.carry_out(Gone(1), Explain("node", "cpu9-1", 7.0))  # type: ignore[arg-type]
    assert (answer["page"], asked) == ({"subject": "cpu9-1"}, [{}, {"at": 7.0}])


def test_keys_are_read_from_what_a_terminal_sends() -> None:
    assert list(command.keys(b"j\x1b[B\x1b[5~\t\r\x1b")) == ["j", "down", "page up", "tab", "enter", "escape"]
    assert list(command.keys(b"\xffq")) == ["\ufffd", "q"]


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        _one_place.__wrapped__(patch)  # type: ignore[attr-defined]
        SHOWN.mkdir(exist_ok=True)
        for name, screen in screens():
            (SHOWN / f"{name}.txt").write_text(text_of(screen), encoding="utf-8")
