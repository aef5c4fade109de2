"""Text from others in a verb's answer is shown literally and cannot control the terminal."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from nodemanager.cli.service_client import Client
from nodemanager.cli.terminal import escape_document, make_console
from nodemanager.cli.verbs import asking
from nodemanager.config.load import load_site
from nodemanager.core.reason_text import to_sentence
from nodemanager.web.listen import UnixSocket
from tests.paths import CONFIG

SITE = CONFIG / "embedded.ini"
BRACKETS = "disk [/dev/sdb] failed, [ticket 4711] :warning: [/]"
STEERS = "\x1b]0;owned\x07 \x1b[2J \x9b31m \u202e gone"


def a_node(text: str) -> dict[str, Any]:
    return {
        "node": "cloud1-1",
        "slot": "cloud1",
        "rank": 1,
        "node_type": "cloud",
        "size": "",
        "market": "",
        "cloud": "default",
        "zone": "",
        "jobs": [],
        "price_per_hour": 0.1,
        "state": "idle",
        "since_at": 0.0,
        "window": None,
        "cost": 0.1,
        "held": None,
        "to_retire": None,
        "reason": {"code": "held_by_drain", "text": text, "figures": {"drain_reason": text}},
    }


@dataclass(frozen=True)
class Answering(Client):
    """A service that gives one answer."""

    document: Any = None

    def get(self, path: str, **query: object) -> Any:
        del path, query
        return self.document


def printed(verb: Callable[..., None], document: Any, capsys: pytest.CaptureFixture[str], *subjects: str) -> str:
    kind, name = subjects or ("", "")
    chosen = Namespace(json=False, kind=kind, name=name, at=None, follow=False, format=None, no_headers=False)
    service = Answering(UnixSocket(Path("/nonexistent")), Path("/nonexistent"), document)
    verb(service, load_site(SITE), chosen, make_console(width=400))
    return capsys.readouterr().out


def in_nodes(text: str) -> tuple[Callable[..., None], Any, tuple[str, ...]]:
    return asking.nodes, {"at": 10.0, "nodes": [a_node(text)]}, ()


def in_explain(text: str) -> tuple[Callable[..., None], Any, tuple[str, ...]]:
    explained = {"subject": "cloud1-1", "at": 10.0, "reason": a_node(text)["reason"], "story": [text]}
    return asking.explain, explained, ("node", "cloud1")


def in_events(text: str) -> tuple[Callable[..., None], Any, tuple[str, ...]]:
    event = {"number": 1, "at": 1.0, "kind": "because", "what": "idle", "subject": "cloud1-1", "figures": {}}
    return asking.events, {"events": [{**event, "reason": {"text": text}}]}, ()


@pytest.mark.parametrize("where", [in_nodes, in_explain, in_events])
def test_brackets_in_a_drains_reason_are_shown_as_they_stand(
    where: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = to_sentence("held_by_drain", {"drain_reason": BRACKETS})
    verb, document, subjects = where(text)
    assert BRACKETS in text
    assert text in printed(verb, document, capsys, *subjects)


@pytest.mark.parametrize("where", [in_nodes, in_explain, in_events])
def test_what_a_node_reports_has_no_power_over_the_terminal(
    where: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    verb, document, subjects = where(STEERS)
    shown = printed(verb, document, capsys, *subjects)
    assert r"\x1b]0;owned\x07 \x1b[2J \x9b31m \u202e gone" in shown
    assert all(character.isprintable() for line in shown.split("\n") for character in line)


# --- job ids ----------------------------------------------------------------------------------------------

NEEDED = {"code": "wanted", "text": "needed by f6KVnbAAK, fast1", "figures": {"jobs": ["f6KVnbAAK"]}}


@pytest.fixture
def locale(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("LC_ALL", "LC_CTYPE", "FLUX_F58_FORCE_ASCII"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    return monkeypatch


def explained_job(capsys: pytest.CaptureFixture[str]) -> str:
    document = {"subject": "f6KVnbAAK", "at": 1.0, "reason": NEEDED, "nodes": [{**a_node("x"), "slot": "fast1"}]}
    return printed(asking.explain, document, capsys, "job", "f6KVnbAAK")


def test_job_ids_are_written_as_flux_writes_them(
    locale: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del locale
    shown = explained_job(capsys)
    assert shown.count("ƒ6KVnbAAK") == 3  # the subject, the sentence, the figure
    assert "f6KVnbAAK" not in shown
    assert shown.count("fast1") == 2, "no job, although it has the form of an id"


@pytest.mark.parametrize(
    ("name", "value"), [("LC_ALL", "C"), ("LANG", "de_DE.ISO-8859-1"), ("FLUX_F58_FORCE_ASCII", "1")]
)
def test_job_ids_are_ascii_where_the_terminal_has_no_other(
    locale: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    locale.setenv(name, value)
    shown = explained_job(capsys)
    assert shown.count("f6KVnbAAK") == 3
    assert "ƒ" not in shown


def test_json_is_for_programs(locale: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    del locale
    service = Answering(
        UnixSocket(Path("/nonexistent")), Path("/nonexistent"), {"subject": "f6KVnbAAK", "reason": NEEDED}
    )
    chosen = Namespace(json=True, kind="job", name="f6KVnbAAK", at=None, follow=False)
    asking.explain(service, load_site(SITE), chosen, make_console(width=400))
    assert "ƒ" not in capsys.readouterr().out


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
)


@given(JSON)
def test_no_text_of_a_document_is_left_with_what_steers(document: Any) -> None:
    assert all(text.isprintable() for text in _texts(escape_document(document)))


def _texts(document: Any) -> list[str]:
    match document:
        case str():
            return [document]
        case list():
            return [text for it in document for text in _texts(it)]
        case dict():
            return [text for name, it in document.items() for text in (name, *_texts(it))]
        case _:
            return []


def test_in_a_pipe_each_row_of_a_table_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("job", "because")
    table.add_row("f58", "a reason of many words " * 20)
    make_console().print(table)
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "words" in line)
    assert row.count("words") == 20
    monkeypatch.setenv("COLUMNS", "80")
    make_console().print(table)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
