"""The dashboard in a real browser: few nodes and thousands, both themes, and no requests to other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodemanager.history.store.writer import HistoryWriter
from tests.history.publications import told
from tests.web.browser import Browser, a_browser
from tests.web.fleets import STOP_S, Stand, a_fleet, a_stand, served

MANY = 5000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@contextmanager
def shown(nodes: int, moments: int = 3) -> Iterator[tuple[Stand, str]]:
    stand = a_stand(jobs_for_everybody=True, clock_s=[float(turn) for turn in range(10_000)])
    for moment in range(moments):
        stand.post(a_fleet(nodes, waiting=moment + 3, moment=moment * 20))
    with served(stand) as url:
        yield stand, url


def painted(browser: Browser, canvas: str) -> bool:
    """Whether anything but the background was drawn."""
    drawn = browser.value(
        f"(() => {{ const it = document.getElementById('{canvas}');"
        " const pixels = it.getContext('2d').getImageData(0, 0, it.width, it.height).data;"
        " return pixels.some((value) => value > 0); })()"
    )
    return bool(drawn)


@pytest.mark.parametrize("dark", [False, True])
def test_a_few_nodes_are_strips_that_say_what_each_does(browser: Browser, tmp_path: Path, dark: bool) -> None:
    with shown(5) as (_, url):
        browser.open(url, dark=dark)
        browser.until("document.body?.dataset.turns >= 1")
        assert browser.value("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert browser.value("document.querySelectorAll('.strip').length") == 5
        assert browser.value("document.getElementById('tile-nodes').textContent") == "5 of 9"
        assert browser.value("document.querySelectorAll('#jobs tr').length") == 5
        assert browser.value("document.querySelectorAll('#events li').length") > 3
        assert all(painted(browser, canvas) for canvas in ("chart-nodes", "chart-queue", "chart-price"))
        browser.screenshot(tmp_path / "few.png")
        assert browser.errors == []


def test_a_click_explains(browser: Browser) -> None:
    with shown(5) as (_, url):
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        browser.value("document.querySelector('.strip').click()")
        browser.until("document.querySelector('#drawer h3')?.textContent === 'cpu1-1'")
        browser.value("document.querySelector('#jobs tr').click()")
        browser.until("document.querySelector('#drawer h3')?.textContent === 'f2'")
        assert browser.value("document.querySelector('#drawer .because').textContent.length") > 5
        assert browser.errors == []


def test_a_click_on_what_happened_to_a_node_that_is_gone_shows_what_is_on_record(
    browser: Browser, tmp_path: Path
) -> None:
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    journal.start()
    stand = a_stand(journal.path)
    for publication in (a_fleet(5), a_fleet(1, moment=20)):
        stand.post(publication)
    for happened in told(a_fleet(5), a_fleet(1, moment=20)):
        journal.take_in(happened)
    journal.stop(STOP_S)
    with served(stand) as url:
        browser.open(url)
        browser.until("document.querySelectorAll('#events button').length > 5")
        browser.value(
            "[...document.querySelectorAll('#events button')].find((it) => it.textContent === 'cpu4-1').click()"
        )
        browser.until("document.querySelector('#drawer h4')?.textContent.startsWith('History')")


def test_thousands_of_nodes_are_a_grid(browser: Browser) -> None:
    with shown(MANY, moments=1) as (_, url):
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        assert browser.value("document.querySelectorAll('.strip').length") == 0
        assert painted(browser, "grid")
        # The first cell lies under the name of the first type.
        browser.value(
            "(() => { const grid = document.getElementById('grid'); const box = grid.getBoundingClientRect();"
            " grid.dispatchEvent(new MouseEvent('click', { clientX: box.left + 3, clientY: box.top + 28 })); })()"
        )
        browser.until("document.querySelector('#drawer h3')?.textContent === 'cpu1-1'")
        assert browser.errors == []


def test_what_happens_appears_while_one_looks(browser: Browser) -> None:
    with shown(5) as (stand, url):
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        before = browser.value("document.querySelectorAll('#events li').length")
        stand.post(a_fleet(5, moment=200))
        browser.until(f"document.querySelectorAll('#events li').length > {before}")
        assert browser.errors == []


def test_a_service_that_is_gone_is_said_on_the_page(browser: Browser) -> None:
    with shown(5) as (_, url):
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
    browser.until("document.getElementById('decides').textContent === 'unreachable'")
