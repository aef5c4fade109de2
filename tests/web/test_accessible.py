"""The dashboard's views by the rules of axe-core, in both themes, wide and on a phone; and by the keyboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import Browser, a_browser
from tests.web.fleets import a_fleet, served
from tests.web.views import VIEWS, a_full_stand

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PHONE, DESK = 390, 1440


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(a_full_stand(tmp_path_factory.mktemp("history"))) as url:
        yield url


def opened(browser: Browser, url: str, view: str, **how: Any) -> None:
    browser.open(f"{url}#/{view}", **how)
    browser.until("document.body?.dataset.turns >= 1")
    browser.until(VIEWS[view])


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install --prefix tests/web")
@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_no_rule_is_violated(browser: Browser, url: str, view: str, dark: bool, width: int) -> None:
    opened(browser, url, view, dark=dark, width=width)
    browser.value(f"(() => {{ {AXE.read_text(encoding='utf-8')} }})()")
    tags = json.dumps({"runOnly": {"type": "tag", "values": RULES}})
    found = browser.value(f"axe.run(document, {tags})")
    told = [(it["id"], it["help"], [node["html"][:200] for node in it["nodes"]][:3]) for it in found["violations"]]
    assert told == []
    assert len(found["passes"]) > 15, "it did look"


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_a_phone(browser: Browser, url: str, view: str) -> None:
    opened(browser, url, view, width=PHONE, height=800)
    assert browser.value("document.documentElement.scrollWidth") <= PHONE
    assert browser.errors == []


def test_a_view_gets_the_focus_when_it_is_opened(browser: Browser, url: str) -> None:
    opened(browser, url, "")
    browser.value("document.querySelector('nav a[data-view=costs]').click()")
    browser.until("document.activeElement?.id === 'main'")
    assert browser.value("document.querySelector('nav a[aria-current]').dataset.view") == "costs"


def test_the_arrow_keys_reach_every_node_of_a_large_fleet(browser: Browser) -> None:
    stand = a_full_stand()
    stand.post(a_fleet(400))
    with served(stand) as url:
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        browser.value("document.getElementById('grid').focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            browser.press(key)
        assert browser.value("document.getElementById('grid-at').textContent").startswith("cpu1, cpu, ")
        browser.press("Enter")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu1-1'")
        browser.press("Escape")
        browser.until("document.body.dataset.view === 'overview'")
