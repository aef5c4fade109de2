"""What the dashboard answers in a real browser: figures, ranges, groups, links both ways, steering."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.core.facts import DecisionsPaused, DecisionsResumed, HoldPlaced, NodeReleased, RetirementRequested
from nodemanager.core.nodes import NodeState
from nodemanager.history.store.writer import HistoryWriter
from tests.builders import NOW_S, WALL_AT, a_job, a_node, a_policy, a_snapshot, a_type, tasks
from tests.history.publications import a_moment, told
from tests.web.browser import Browser, a_browser
from tests.web.fleets import TOKEN, Stand, a_fleet, a_stand, published, served
from tests.web.views import a_full_stand

READY = "document.body?.dataset.turns >= 1"
ISO = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


def text(browser: Browser, id_: str) -> str:
    return str(browser.value(f"document.getElementById('{id_}').textContent"))


def click(browser: Browser, selector: str, named: str = "") -> None:
    browser.value(
        f"[...document.querySelectorAll({selector!r})].find((it) => it.textContent.includes({named!r})).click()"
    )


def type_in(browser: Browser, typed: str) -> None:
    """Answer the dialog."""
    browser.until("document.getElementById('dialog').open")
    browser.value(
        f"(() => {{ document.getElementById('dialog-input').value = {typed!r};"
        " document.getElementById('dialog-yes').click(); })()"
    )


def guarded() -> Stand:
    stand = a_stand()
    stand.post(a_fleet(5))
    return stand


# --- figures ----------------------------------------------------------------------------------------------


def test_the_tiles_say_what_is_used_how_long_jobs_wait_and_what_is_saved(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        browser.open(url)
        browser.until(READY)
        assert text(browser, "tile-cores") == "90 % now"
        assert re.fullmatch(r"144 of 160 paid; \d+ % in 6h", text(browser, "tile-cores-note"))
        assert text(browser, "tile-wait") == "15m00s"
        assert re.fullmatch(r"p95 1\dm00s; \d+ began in 6h", text(browser, "tile-wait-note"))
        assert re.fullmatch(r"\d+ %", text(browser, "tile-saved"))
        assert text(browser, "tile-saved-note").endswith("for as many nodes, always on")
        assert browser.errors == []


def test_a_budget_is_shown_with_what_will_be_spent(browser: Browser, tmp_path: Path) -> None:
    policy = a_policy(a_type("cpu", slots=2, cores=8, price="2.00"), budgets={("", "day"): Decimal(100)})
    node = a_node("cpu1", NodeState.IDLE, policy, billed_from_s=NOW_S)
    moments = [a_moment(minute * 60.0, nodes=[node], policy=policy) for minute in range(181)]
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    journal.write(told(*moments))
    journal.close()
    stand = a_stand(journal.path)
    stand.post(moments[-1])
    with served(stand) as url:
        browser.open(url)
        browser.until(READY)
        assert re.fullmatch(r"[\d.]+ of 100\.00", text(browser, "tile-spent"))
        assert re.fullmatch(r"[\d.]+ expected at the end of the day", text(browser, "tile-spent-note"))
        assert not browser.value("document.getElementById('budget').hidden")


def test_equal_waiting_jobs_are_one_row(browser: Browser) -> None:
    policy = a_policy(a_type("cpu", slots=4, cores=16))
    jobs = [a_job(number, tasks(1, cores=4), submitted_at=WALL_AT - number) for number in range(1, 35)]
    stand = a_stand(jobs_for_everybody=True)
    stand.post(published(policy, a_snapshot(policy, jobs=jobs, claimed=False)))
    with served(stand) as url:
        browser.open(url)
        browser.until(READY)
        assert browser.value("document.querySelectorAll('#jobs tbody tr').length") == 1
        assert browser.value("document.querySelector('#jobs td').textContent") == "34 jobs of 4 cores"


# --- one request, and the range ---------------------------------------------------------------------------


def test_a_refresh_is_one_request(browser: Browser) -> None:
    with served(a_full_stand()) as url:
        browser.open(url)
        browser.until("document.body?.dataset.turns >= 4")
        documents = [re.sub(r"\d+$", "N", it.removeprefix(url)) for it in browser.requested if "/static/" not in it]
        refreshes = documents.count("overview?range=6h")
        assert refreshes >= 4
        # The page itself, and the events: once those of before, then their stream.
        once = ["", "events/recent?limit=N", "events?after=N"]
        assert sorted(it for it in documents if it not in ("overview?range=6h", "about:blank")) == once


def test_the_range_is_in_the_address_and_all_follows_it(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        browser.open(f"{url}?range=7d")
        browser.until(READY)
        assert browser.value("document.getElementById('range').value") == "7d"
        assert text(browser, "tile-wait-note").endswith("began in 7d")
        browser.value(
            "(() => { const it = document.getElementById('range'); it.value = '1d';"
            " it.dispatchEvent(new Event('change')); })()"
        )
        browser.until("document.getElementById('tile-wait-note').textContent.endsWith('began in 1d')")
        assert browser.value("location.search") == "?range=1d"
        click(browser, "nav a", "Costs")
        browser.until("document.querySelectorAll('#costs-body td').length > 0")
        assert browser.value("location.search + location.hash") == "?range=1d#/costs"
        assert any(it.endswith("/costs?days=2") for it in browser.requested)
        browser.open(f"{url}?range=99y")
        browser.until(READY)
        assert browser.value("document.getElementById('range').value") == "6h", "an unknown one is not asked for"
        assert browser.errors == []


def test_loading_no_data_and_unreachable_are_told_apart(browser: Browser) -> None:
    stand = a_stand()
    with served(stand) as url:
        browser.open(url)
        browser.until(READY)
        assert text(browser, "mode") == "no data"
        assert text(browser, "fleet-empty") == "no data"
        assert "The service has nothing to show: nothing is known yet" in text(browser, "troubles")
        stand.post(published(a_policy(), a_snapshot(a_policy())))
        browser.until("document.body.dataset.state === 'live'")
        assert text(browser, "fleet-empty").startswith("No nodes.")
        assert text(browser, "tile-saved-note") == "no history"
    browser.until("document.getElementById('mode').textContent === 'unreachable'")
    assert "The service cannot be reached" in text(browser, "troubles")
    page = (Path(__file__).parents[2] / "nodemanager/web/static/index.html").read_text(encoding="utf-8")
    assert '<body data-state="loading">' in page


def test_every_time_has_its_zone(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        for view in ("", "#/node/cpu2", "#/job/f3", "#/type/cpu"):
            browser.open(f"{url}{view}")
            browser.until(READY)
            browser.until("document.querySelectorAll('main time').length > 0")
            times = browser.value(
                "[...document.querySelectorAll('time')].map((it) => [it.title || it.textContent, it.dateTime])"
            )
            for told, machine in times:
                assert ISO.fullmatch(told), (view, told)
                assert datetime.fromisoformat(machine).utcoffset() is not None
            shown = browser.value("document.body.innerText")
            assert not re.search(r"\d+/\d+/\d{4}|\d [AP]M\b", shown), view


# --- pages that lead on -----------------------------------------------------------------------------------


def test_types_nodes_and_jobs_lead_to_each_other(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        browser.open(url)
        browser.until(READY)
        click(browser, "#types-body a", "cpu")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu'")
        page = text(browser, "subject")
        for told in ("price per hour0.68", "slots8", "joined", "boot median", "failed0"):
            assert told in page, told
        assert browser.value("document.querySelector('#subject .timeline')") is None
        click(browser, "#subject .related a", "cpu1")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu1-1'")
        job = browser.value("document.querySelector('#subject .related a').textContent")
        click(browser, "#subject .related a")
        browser.until(f"document.querySelector('#subject .title')?.textContent === {job!r}")
        click(browser, "#subject .related a", "cpu1")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu1-1'")
        click(browser, "#subject dd a", "cpu")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu'")
        assert browser.errors == []


def test_a_job_that_has_ended_has_a_page_from_the_history(browser: Browser, tmp_path: Path) -> None:
    journal = HistoryWriter(tmp_path / "journal.sqlite")
    after = a_moment(60)
    journal.write(told(a_moment(jobs=[a_job(7, tasks(1))]), after))
    journal.close()
    stand = a_stand(journal.path, jobs_for_everybody=True)
    stand.post(after)
    with served(stand) as url:
        browser.open(f"{url}#/job/f8")
        browser.until(READY)
        browser.until("document.getElementById('subject').textContent.includes('History, latest first')")
        assert re.search(r"As of 20\S+ \S+, from the history", text(browser, "subject"))


def test_a_page_opened_at_once_says_boots_and_nodes_too(browser: Browser, tmp_path: Path) -> None:
    with served(a_full_stand(tmp_path)) as url:
        browser.open(f"{url}#/type/cpu")
        browser.until("document.querySelectorAll('#subject .related a').length === 4")
        assert "boot median" in text(browser, "subject")


# --- steering ---------------------------------------------------------------------------------------------


def enter_token(browser: Browser, token: str = TOKEN) -> None:
    click(browser, "#token")
    type_in(browser, token)


def test_without_a_token_there_are_no_buttons(browser: Browser) -> None:
    with served(guarded()) as url:
        browser.open(f"{url}#/node/cpu1")
        browser.until("document.querySelector('#subject .title')?.textContent === 'cpu1-1'")
        browser.until(READY)
        assert browser.value("document.querySelectorAll('#subject button').length") == 0
        assert browser.value("document.getElementById('pause').hidden")
        enter_token(browser, "wrong")
        browser.until("document.getElementById('said').textContent === 'This token is not valid here.'")
        assert browser.value("sessionStorage.length") == 0
        assert browser.value("document.getElementById('pause').hidden")


def test_with_the_token_one_pauses_resumes_holds_releases_and_retires(browser: Browser) -> None:
    stand = guarded()
    with served(stand) as url:
        browser.open(f"{url}#/node/cpu1")
        browser.until(READY)
        enter_token(browser)
        browser.until("!document.getElementById('pause').hidden")
        assert browser.value("document.getElementById('dialog-input').value") == "", "it is in no field"
        assert TOKEN not in browser.value("location.href")
        assert browser.value("JSON.stringify(localStorage)").find(TOKEN) == -1
        for first, now in (("Pause", "Resume"), ("Resume", "Pause")):
            click(browser, "#pause", first)
            type_in(browser, "the bill")
            browser.until(f"document.getElementById('pause').textContent === '{now}'")
        for verb, then in (("Hold", "Release"), ("Release", "Hold"), ("Retire", "Release")):
            browser.until(
                f"[...document.querySelectorAll('#subject button')].some((it) => it.textContent === '{verb}')"
            )
            click(browser, "#subject button", verb)
            type_in(browser, "looks odd")
            browser.until(f"document.getElementById('said').textContent === '{verb} cpu1: done.'")
            browser.until(
                f"[...document.querySelectorAll('#subject button')].some((it) => it.textContent === '{then}')"
            )
        assert browser.errors == []
    kinds = [DecisionsPaused, DecisionsResumed, HoldPlaced, NodeReleased, RetirementRequested]
    assert [type(it) for it in stand.manager.told] == kinds
    assert isinstance(stand.manager.told[0], DecisionsPaused)
    assert stand.manager.told[0].mark.why == "the bill"


def test_an_order_that_is_refused_or_cancelled_changes_nothing(browser: Browser) -> None:
    stand = guarded()
    with served(stand) as url:
        browser.open(f"{url}#/node/cpu1")
        browser.until(READY)
        enter_token(browser)
        browser.until("document.querySelectorAll('#subject button').length > 0")
        click(browser, "#subject button", "Hold")
        browser.until("document.getElementById('dialog').open")
        browser.value("document.getElementById('dialog-no').click()")
        browser.until("!document.getElementById('dialog').open")
        click(browser, "#subject button", "Hold")
        browser.until("document.getElementById('dialog').open")
        browser.press("Escape")
        browser.until("!document.getElementById('dialog').open")
        assert browser.value("document.body.dataset.view") == "subject", "it closed the dialog alone"
        assert stand.manager.told == []
        stand.served.access.token = "another-token-of-the-tests"  # it was replaced
        click(browser, "#subject button", "Hold")
        type_in(browser, "")
        browser.until("document.getElementById('said').textContent.startsWith('Hold cpu1: this needs the token')")
        assert stand.manager.told == []
        browser.until("document.querySelectorAll('#subject button').length === 0")


def test_the_token_can_be_forgotten_and_is_taken_from_no_address(browser: Browser) -> None:
    with served(guarded()) as url:
        browser.open(f"{url}#token={TOKEN}")
        browser.until(READY)
        assert browser.value("sessionStorage.length") == 0
        assert text(browser, "jobs-note") == "shown only with the token"
        enter_token(browser)
        browser.until("document.querySelectorAll('#jobs tr').length > 1")
        click(browser, "#token", "Forget")
        browser.until("document.getElementById('pause').hidden")
        assert browser.value("sessionStorage.length") == 0
        assert browser.value("document.querySelectorAll('#jobs tr').length") == 0
