"""The dashboard in a real browser: few nodes and thousands, both themes, and no requests to other hosts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.cli.main import main
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_text import use_currency
from nodemanager.history.follower import Follower
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.planner.burst import Bursts, WayToRun
from nodemanager.planner.policy import CloudRules
from nodemanager.planner.snapshot import Source
from nodemanager.web.state.board import Board
from nodemanager.web.state.range_figures import RangeCache, chart_samples
from tests.builders import NOW_S, WALL_AT
from tests.history.publications import told
from tests.paths import CONFIG
from tests.planner.test_clouds import EAST, WEST, in_cloud, two_clouds
from tests.web.browser import Browser, a_browser
from tests.web.fleets import STOP_S, Stand, a_fleet, a_stand, later, published, served
from tests.web.views import VIEWS, a_full_stand

MANY = 5000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@contextmanager
def shown(nodes: int, moments: int = 3) -> Iterator[tuple[Stand, str]]:
    stand = a_stand(jobs_for_everybody=True, clock_s=[float(turn) for turn in range(10_000)])
    for moment in range(moments):
        stand.post(later(a_fleet(nodes, waiting=moment + 3, moment=moment * 20), 20.0 * moment))
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
        assert browser.value("document.querySelectorAll('#jobs tbody tr').length") == 5
        assert browser.value("document.querySelectorAll('#events li').length") > 3
        for chart, now in (
            ("nodes", "Now: busy"),
            ("queue", "running 4"),
            ("cores", "paid 160, used 1"),
            ("price", "6.8"),
        ):
            assert painted(browser, f"chart-{chart}")
            assert now in browser.value(f"document.getElementById('chart-{chart}').getAttribute('aria-label')")
        browser.screenshot(tmp_path / "few.png")
        assert browser.errors == []


@pytest.mark.parametrize(("currency", "shown_as"), [("EUR", "0.40 EUR"), ("€", "€0.40")])
def test_every_amount_has_the_currency_of_the_site(browser: Browser, currency: str, shown_as: str) -> None:
    use_currency(currency)
    try:
        with served(a_stand_of_two_clouds()) as url:
            browser.open(url, width=1440, height=1800)
            browser.until("document.body?.dataset.turns >= 1")
            row = browser.value("document.querySelectorAll('#clouds tbody tr')[1].innerText")
            tile = browser.value("document.getElementById('tile-price').textContent")
    finally:
        use_currency("")
    assert shown_as in row
    assert currency in tile


def test_a_click_explains(browser: Browser) -> None:
    with shown(5) as (_, url):
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        browser.value("document.querySelector('.strip').click()")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu1-1'")
        browser.value("document.querySelector('#jobs td a').click()")
        browser.until("document.querySelector('#subject .title')?.textContent === 'f2'")
        assert browser.value("document.querySelector('#subject .because').textContent.length") > 5
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
        browser.until("document.querySelectorAll('#events a').length > 5")
        browser.value(
            "[...document.querySelectorAll('#events a')].find((it) => it.textContent === 'cpu4-1').click()"
        )
        browser.until(
            "[...document.querySelectorAll('#subject h3')].some((it) => it.textContent.startsWith('History'))"
        )
        assert browser.value("document.querySelector('#subject dd a').getAttribute('href')") == "#/type/cpu"


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
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu1-1'")
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
    browser.until("document.getElementById('mode').textContent === 'unreachable'")
    assert browser.value("document.getElementById('troubles').textContent.includes('What follows is of 20')")
    assert browser.value("document.querySelectorAll('.strip').length") == 5, "what was known stays"


def test_costs_are_shown_by_day_and_by_what_one_chooses(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        browser.open(f"{url}#/costs")
        browser.until("document.body?.dataset.turns >= 1")
        browser.until(VIEWS["costs"])
        assert browser.value("document.querySelectorAll('.days rect').length") == 2, "cpu and large"
        browser.value(
            "(() => { const by = document.getElementById('costs-by'); by.value = 'user';"
            " by.dispatchEvent(new Event('change')); })()"
        )
        browser.until("document.querySelectorAll('#costs-body th').length === 3")
        assert browser.errors == []


def test_the_page_of_a_node_draws_its_states_and_lists_its_history(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        browser.open(f"{url}#/node/cpu2")
        browser.until("document.querySelectorAll('.timeline rect').length > 0")
        told = browser.value("document.querySelector('.timeline').getAttribute('aria-label')")
        assert "requested for" in told
        browser.screenshot(tmp_path / "node.png")
        browser.value("document.querySelector('nav a').click()")
        browser.until("document.body.dataset.view === 'overview'")
        assert browser.errors == []


def test_peers_delegated_jobs_and_ensembles_have_panels(browser: Browser) -> None:
    with served(a_full_stand()) as url:
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        panel = browser.value("document.getElementById('peers-body').textContent")
        assert "connection refused" in panel
        assert "up, sched-simple" in panel
        assert browser.value("document.querySelectorAll('#peers-body a').length") == 1, "the job that runs there"
        ensembles = browser.value("document.getElementById('ensembles-body').textContent")
        assert "surrogate  nodes kept for it: 2" in ensembles
        assert "elsewhere  nodes kept for it: 1; it runs beside the service" in ensembles
        browser.value("document.querySelector('#ensembles-body a').click()")
        browser.until("document.querySelector('#subject .title')?.textContent === 'surrogate'")
        shown = browser.value("document.getElementById('subject').textContent")
        assert "its share of nodes_max" in shown
        assert "Nodes kept for it" in shown
        assert browser.value("document.querySelectorAll('.share rect').length") == 8


def a_stand_of_two_clouds() -> Stand:
    """West has not answered for six minutes, and east has a budget."""
    rules = {EAST: CloudRules(nodes_max=20, price_per_hour_max=Decimal(32)), WEST: CloudRules()}
    world = two_clouds(rules_of=rules, budgets={("cloud east", "day"): Decimal(60)})
    for slot, cloud in (("east1", EAST), ("west1", WEST)):
        world = in_cloud(world.busy_node(slot), slot, cloud)
    account = replace(world.snapshot.account_of(WEST), source=Source(seen_s=NOW_S - 480.0, failure="no route"))
    world.but(accounts={**world.snapshot.accounts, WEST: account})
    stand = a_stand(jobs_for_everybody=True)
    stand.post(published(world.policy, world.snapshot))
    return stand


@pytest.mark.parametrize("width", [1440, 420])
def test_a_site_with_several_clouds_has_a_panel_of_them(browser: Browser, tmp_path: Path, width: int) -> None:
    with served(a_stand_of_two_clouds()) as url:
        browser.open(url, width=width, height=1800)
        browser.until("document.body?.dataset.turns >= 1")
        cells = "[...document.querySelectorAll('#clouds tbody tr')].map((it) => it.innerText.replace(/\\s+/g, ' '))"
        east, west = browser.value(cells)
        assert east == "east open 1 of 20 0.10 of 32.00 0.10 of 60.00 a day"
        assert west.startswith("west stale for 5m00s 1 0.40 ")
        note = browser.value("document.querySelector('#clouds .note').textContent")
        assert note.startswith("nothing is done in the cloud west")
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert not browser.value("document.getElementById('costs-by-cloud').hidden")
        browser.screenshot(tmp_path / "clouds.png")
        assert browser.errors == []


def test_a_site_with_one_cloud_has_no_panel_of_clouds(browser: Browser) -> None:
    with shown(5) as (_, url):
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 1")
        assert browser.value("document.getElementById('clouds').hidden")
        assert browser.value("document.getElementById('costs-by-cloud').hidden")


def test_a_job_s_page_shows_the_ways_that_it_did_not_take(browser: Browser, tmp_path: Path) -> None:
    stand = a_full_stand()
    published = a_fleet(2)
    waiting = next(iter(published.plan.jobs))
    weighed = Bursts(not_taken={waiting: [WayToRun("b", 90.0, Decimal("0.5"))]})
    job = published.snapshot.jobs[waiting]
    wish = replace(job.request, near_fault="data: there is no near")
    known = {**published.snapshot.jobs, waiting: replace(job, request=wish)}
    snapshot, plan = replace(published.snapshot, jobs=known), replace(published.plan, bursts=weighed)
    stand.post(replace(published, snapshot=snapshot, plan=plan))
    with served(stand) as url:
        browser.open(f"{url}#/job/{format_job_id(waiting)}")
        browser.until("document.body?.textContent.includes('b: wait 90 s, 0.5 an hour')")
        browser.until("document.body?.textContent.includes('its datadata: there is no near')")
        browser.screenshot(tmp_path / "job.png")
        assert browser.errors == []


def test_a_result_of_simulate_is_shown_and_another_file_is_refused(browser: Browser, tmp_path: Path) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["simulate", "poisson:jobs=20", "--config", str(CONFIG / "embedded.ini"), "--json"]) == 0
    with served(a_full_stand()) as url:
        browser.open(f"{url}#/whatif")
        browser.until("document.body?.dataset.turns >= 1")
        for text, expected in ((out.getvalue(), "'#study circle'"), ('{"a": 1}', "'#study .because'")):
            browser.value(
                "(() => { const file = document.getElementById('study-file'); const given = new DataTransfer();"
                f" given.items.add(new File([{json.dumps(text)}], 'study.json')); file.files = given.files;"
                " file.dispatchEvent(new Event('change')); })()"
            )
            browser.until(f"document.querySelector({expected}) !== null")
        assert browser.errors == []


def test_charts_go_on_after_a_restart(tmp_path: Path) -> None:
    before = HistoryWriter(tmp_path / "journal.sqlite")
    reader = HistoryReader(before.path)
    with pytest.raises(HistoryUnreadable):
        reader.fleet(0.0, WALL_AT, 60.0)
    before.write(told(*(later(a_fleet(5), moment) for moment in (0, 100, 200))))
    before.close()

    def shown(live: Board, now_at: float = WALL_AT + 1000) -> list[float]:
        figures = RangeCache().figures("1h", now_at, reader)
        return [it.at for it in chart_samples(figures.samples, live.samples(), 3600.0)]

    after = Board(lambda: 0.0)
    assert shown(after) == [WALL_AT, WALL_AT + 100, WALL_AT + 200]
    after.take_in(Follower().follow([later(a_fleet(5), 150)]))
    assert shown(after) == [WALL_AT, WALL_AT + 100, WALL_AT + 150], "its clock went back"
    before.path.write_text("no history", encoding="utf-8")
    assert shown(after) == [WALL_AT + 150], "a damaged file does no harm"
    assert "not a database" in RangeCache().figures("1h", WALL_AT, reader).failure
