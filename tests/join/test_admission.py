"""Who is let in, and who is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.nodes import JoinPhase, LaunchId
from nodemanager.join.admission import REPORTS_BURST, SILENT_RENEWALS, AdmissionRules, Granted
from nodemanager.join.ticket_store import REPLAYS_KEPT_MAX
from tests.join.admission import (
    CURVE,
    KEY,
    LAUNCH,
    MATERIAL,
    NONCE,
    OTHER_NONCE,
    SOURCE,
    Desk,
    code,
    entry,
    granted,
)


def test_a_ticket_brings_all_that_a_broker_needs() -> None:
    given = granted(Desk().redeem())
    assert given["slot"] == "cloud1"
    assert given["bootstrap"] == MATERIAL.bootstrap
    assert given["curve_cert"] == CURVE
    assert given["flux_version"] == "0.88.0"
    assert given["owner_uid"] == 1000
    assert "-Shostname=cloud1" in given["command"]
    assert given["hosts"] == {"head": "10.0.0.1"}


def test_the_same_nonce_gets_the_same_after_a_restart_too() -> None:
    desk = Desk()
    first = granted(desk.redeem())
    desk.made_anew()
    assert granted(desk.redeem()) == first
    assert desk.reported(JoinPhase.REPLAYED) == []


def test_another_nonce_is_refused_and_an_alarm_after_a_restart_too() -> None:
    desk = Desk()
    key = desk.key()
    desk.made_anew()
    assert code(desk.redeem(OTHER_NONCE, "6.6.6.6")) == "used"
    assert desk.reported(JoinPhase.REPLAYED) == ["its ticket was shown again by 6.6.6.6"]
    granted(desk.desk.fetch(LAUNCH, key, SOURCE))  # who was first is not harmed


def test_a_replay_is_an_alarm_when_the_ticket_has_expired_too() -> None:
    desk = Desk()
    desk.key()
    desk.now_at = 2000.0
    assert code(desk.redeem(OTHER_NONCE)) == "used"
    assert code(desk.redeem(NONCE)) == "expired"
    assert len(desk.reported(JoinPhase.REPLAYED)) == 1


def test_replays_fill_no_disk() -> None:
    desk = Desk()
    desk.key()
    for _ in range(3 * REPLAYS_KEPT_MAX):
        desk.redeem(OTHER_NONCE)
    assert len(desk.reported(JoinPhase.REPLAYED)) == REPLAYS_KEPT_MAX


@pytest.mark.parametrize("now_at", [1000.0, 5000.0])
def test_a_ticket_that_came_too_late_is_not_used_up(now_at: float) -> None:
    desk = Desk(now_at=now_at)
    assert code(desk.redeem()) == "expired"
    desk.now_at = 999.0
    granted(desk.redeem(OTHER_NONCE))


def test_a_launch_that_is_not_on_the_roster_is_not_let_in_and_its_ticket_is_kept_for_it() -> None:
    desk = Desk(roster=())
    assert code(desk.redeem()) == "not_current"
    desk.roster = (entry(),)
    granted(desk.redeem(OTHER_NONCE))


@pytest.mark.parametrize("ticket", ["0" * 64, KEY.ticket(LaunchId("cloud1-2"))])
def test_a_wrong_ticket_is_refused_whatever_the_roster_says(ticket: str) -> None:
    for desk in (Desk(), Desk(roster=()), Desk(roster=None)):
        assert code(desk.redeem(ticket=ticket)) == "wrong"


def test_the_source_is_compared_where_the_site_wants_it() -> None:
    rules = AdmissionRules("head", "10.0.0.1", check_source=True)
    desk = Desk(rules, roster=(entry(addresses=("1.2.3.4", SOURCE)),))
    assert code(desk.redeem(source="6.6.6.6")) == "wrong_source"
    granted(desk.redeem(source=SOURCE))


@pytest.mark.parametrize(
    ("known", "source", "is_let_in"),
    [
        ("2001:DB8::0005", "2001:db8::5", True),
        ("10.0.0.5", "::ffff:10.0.0.5", True),
        ("2001:db8::6", "2001:db8::5", False),  # of the same /64
        ("node5", "node5", False),  # a name says nothing of where a request comes from
        ("node5", "", False),
    ],
)
def test_sources_are_compared_as_addresses_and_not_as_texts(known: str, source: str, is_let_in: bool) -> None:
    desk = Desk(AdmissionRules("head", "10.0.0.1", check_source=True), roster=(entry(addresses=(known,)),))
    answer = desk.redeem(source=source)
    assert isinstance(answer, Granted) or code(answer) == "wrong_source"
    assert isinstance(answer, Granted) is is_let_in


def test_without_a_roster_or_a_ledger_nobody_is_let_in_and_no_ticket_used_up() -> None:
    desk = Desk(roster=None)
    assert code(desk.redeem()) == "unavailable"
    desk.roster = (entry(),)
    key = desk.key()
    desk.ledger.close()
    assert code(desk.redeem()) == "unavailable"
    assert code(desk.desk.renew(LAUNCH, key, "", SOURCE)) == "unavailable"
    assert code(desk.desk.report(LAUNCH, key, JoinPhase.STARTED, "", SOURCE)) == "unavailable"


@pytest.mark.parametrize("key", ["0" * 64, KEY.lease_key(LAUNCH, ""), KEY.ticket(LAUNCH)])
def test_nothing_but_the_lease_key_opens_what_comes_later(key: str) -> None:
    desk = Desk()
    assert code(desk.desk.fetch(LAUNCH, key, SOURCE)) == "wrong"  # nobody has redeemed it
    desk.key()
    for answer in (
        desk.desk.fetch(LAUNCH, key, SOURCE),
        desk.desk.renew(LAUNCH, key, "", SOURCE),
        desk.desk.report(LAUNCH, key, JoinPhase.STARTED, "", SOURCE),
    ):
        assert code(answer) == "wrong"


def test_a_renewal_says_how_the_lease_stands_and_addresses_only_when_they_changed() -> None:
    desk = Desk()
    key = desk.key()
    desk.silence_s = 7.0
    said = granted(desk.desk.renew(LAUNCH, key, "", SOURCE))
    assert (said["may_start"], said["manager_silence_s"], said["hosts"]) == (True, 7.0, {"head": "10.0.0.1"})
    assert "hosts" not in granted(desk.desk.renew(LAUNCH, key, said["hosts_digest"], SOURCE))
    desk.roster = (
        entry(may_start=False, addresses=("8.8.8.8", "10.0.0.5")),
        entry(LaunchId("cloud2-1"), "cloud2", addresses=("not an address",)),
    )
    said = granted(desk.desk.renew(LAUNCH, key, said["hosts_digest"], SOURCE))
    assert said["hosts"] == {"head": "10.0.0.1", "cloud1": "10.0.0.5"}
    assert said["may_start"] is False
    assert "curve_cert" not in said


# --- two that use one lease key ---------------------------------------------------------------------------

SILENT_S = SILENT_RENEWALS * 10.0


def at(desk: Desk, now_at: float, what: str, instance: str, key: str) -> str:
    """Ask as one process; "granted", or the code of the refusal."""
    desk.now_at = now_at
    if what == "fetch":
        answer = desk.desk.fetch(LAUNCH, key, SOURCE, instance)
    else:
        answer = desk.desk.renew(LAUNCH, key, "", SOURCE, instance)
    return "granted" if isinstance(answer, Granted) else code(answer)


def test_a_copy_of_a_node_starts_no_broker_while_that_renews_and_is_an_alarm() -> None:
    desk = Desk()
    key = str(granted(desk.redeem(instance="a"))["lease_key"])
    for now_at in (10.0, 20.0, 30.0, 40.0):
        assert at(desk, now_at, "renew", "a", key) == "granted"
        assert at(desk, now_at + 1.0, "fetch", "b", key) == "in_use"
    alarms = desk.reported(JoinPhase.REPLAYED)
    assert len(alarms) == 2  # each of the two is said once
    assert "two processes at once" in alarms[0]


def test_a_client_that_is_started_again_is_let_in_when_the_former_is_silent_and_is_no_alarm() -> None:
    desk = Desk()
    key = str(granted(desk.redeem(instance="a"))["lease_key"])
    assert at(desk, 5.0, "fetch", "b", key) == "in_use"
    assert at(desk, SILENT_S - 0.1, "fetch", "b", key) == "in_use"
    assert at(desk, SILENT_S, "fetch", "b", key) == "granted"
    assert at(desk, SILENT_S + 1.0, "renew", "b", key) == "granted"
    assert at(desk, 3 * SILENT_S, "fetch", "c", key) == "granted"
    assert desk.reported(JoinPhase.REPLAYED) == []


def test_one_that_was_cut_off_and_another_that_took_its_place_are_an_alarm_when_it_is_back() -> None:
    desk = Desk()
    key = str(granted(desk.redeem(instance="a"))["lease_key"])
    assert at(desk, SILENT_S, "fetch", "b", key) == "granted"
    assert at(desk, SILENT_S + 1.0, "renew", "a", key) == "granted"  # it hears of its lease all the same
    assert at(desk, SILENT_S + 2.0, "fetch", "a", key) == "in_use"
    assert len(desk.reported(JoinPhase.REPLAYED)) == 1


def test_whoever_does_not_say_which_process_it_is_joins_as_ever() -> None:
    desk = Desk()
    key = desk.key()
    assert at(desk, 1.0, "fetch", "", key) == "granted"
    assert at(desk, 2.0, "fetch", "a", key) == "granted"
    assert at(desk, 3.0, "fetch", "", key) == "granted"


def test_a_key_that_is_wrong_makes_nobody_a_holder() -> None:
    desk = Desk()
    key = desk.key()
    assert at(desk, 1.0, "fetch", "a", "0" * 64) == "wrong"
    assert at(desk, 1.0, "fetch", "b", key) == "granted"


def test_a_lease_that_ended_is_said_so() -> None:
    desk = Desk()
    key = desk.key()
    desk.roster = ()
    assert code(desk.desk.renew(LAUNCH, key, "", SOURCE)) == "not_current"
    assert code(desk.desk.fetch(LAUNCH, key, SOURCE)) == "not_current"


def test_a_changed_certificate_is_told_by_the_digest() -> None:
    desk = Desk()
    key = desk.key()
    before = granted(desk.desk.renew(LAUNCH, key, "", SOURCE))["material"]
    desk.material = replace(MATERIAL, curve_certificate="another")
    assert granted(desk.desk.renew(LAUNCH, key, "", SOURCE))["material"] != before
    assert granted(desk.desk.fetch(LAUNCH, key, SOURCE))["curve_cert"] == "another"


def test_reports_are_kept_printable_and_bounded_in_number() -> None:
    desk = Desk()
    key = desk.key()
    granted(desk.desk.report(LAUNCH, key, JoinPhase.ENDED, "one\x1b[31m\ntwo" + "x" * 9000, SOURCE))
    (detail,) = desk.reported(JoinPhase.ENDED)
    assert detail.startswith("one [31m two")
    assert len(detail) == 2000
    answers = [desk.desk.report(LAUNCH, key, JoinPhase.ENDED, "", SOURCE) for _ in range(REPORTS_BURST)]
    assert code(answers[-1]) == "too_many"


def test_what_is_long_gone_is_forgotten_and_what_is_current_is_not() -> None:
    desk = Desk(roster=(entry(), entry(LaunchId("cloud2-1"), "cloud2")))
    key = desk.key()
    granted(desk.redeem(launch=LaunchId("cloud2-1")))
    desk.roster = (entry(),)
    desk.now_at = 100.0
    desk.desk.forget_older_than(50.0)
    granted(desk.desk.fetch(LAUNCH, key, SOURCE))
    assert desk.ledger.nonce_hash_of(LaunchId("cloud2-1")) is None
    assert {report.launch for _, report in desk.ledger.reports(0)} == {LAUNCH}


def test_no_value_shows_a_secret() -> None:
    desk = Desk()
    answer = desk.redeem()
    shown = repr(answer) + repr(desk.desk) + repr(KEY) + repr(MATERIAL) + repr(desk.redeem(OTHER_NONCE))
    for secret in (CURVE, KEY.ticket(LAUNCH), desk.key(), NONCE):
        assert secret not in shown
