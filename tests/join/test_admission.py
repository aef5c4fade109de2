"""Which requests the join service grants, and which it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from nodemanager.core.nodes import JoinPhase, LaunchId
from nodemanager.join.admission import REPORTS_BURST, SILENT_RENEWALS, AdmissionRules, Answer, Granted
from nodemanager.join.ticket_store import REPLAYS_KEPT_MAX
from tests.join.admission import (
    CURVE,
    KEY,
    LAUNCH,
    MATERIAL,
    NONCE,
    OTHER_NONCE,
    SOURCE,
    AdmissionRig,
    code,
    entry,
    granted,
)


def test_a_ticket_brings_the_start_data() -> None:
    given = granted(AdmissionRig().redeem())
    assert given["slot"] == "cloud1"
    assert given["bootstrap"] == MATERIAL.bootstrap
    assert given["curve_cert"] == CURVE
    assert given["flux_version"] == "0.88.0"
    assert given["owner_uid"] == 1000
    assert "-Shostname=cloud1" in given["command"]
    assert given["hosts"] == {"head": "10.0.0.1"}


def test_the_same_nonce_gets_the_same_after_a_restart_too() -> None:
    rig = AdmissionRig()
    first = granted(rig.redeem())
    rig.restart()
    assert granted(rig.redeem()) == first
    assert rig.reported(JoinPhase.REPLAYED) == []


def test_another_nonce_is_refused_with_an_alarm_even_after_a_restart() -> None:
    rig = AdmissionRig()
    key = rig.key()
    rig.restart()
    assert code(rig.redeem(OTHER_NONCE, "6.6.6.6")) == "used"
    assert rig.reported(JoinPhase.REPLAYED) == ["its ticket was shown again by 6.6.6.6"]
    granted(rig.admission.fetch(LAUNCH, key, SOURCE))  # the first node is not affected


def test_a_replay_is_an_alarm_when_the_ticket_has_expired_too() -> None:
    rig = AdmissionRig()
    rig.key()
    rig.now_at = 2000.0
    assert code(rig.redeem(OTHER_NONCE)) == "used"
    assert code(rig.redeem(NONCE)) == "expired"
    assert len(rig.reported(JoinPhase.REPLAYED)) == 1


def test_the_number_of_stored_replays_is_limited() -> None:
    rig = AdmissionRig()
    rig.key()
    for _ in range(3 * REPLAYS_KEPT_MAX):
        rig.redeem(OTHER_NONCE)
    assert len(rig.reported(JoinPhase.REPLAYED)) == REPLAYS_KEPT_MAX


@pytest.mark.parametrize("now_at", [1000.0, 5000.0])
def test_a_ticket_that_came_too_late_is_not_used_up(now_at: float) -> None:
    rig = AdmissionRig(now_at=now_at)
    assert code(rig.redeem()) == "expired"
    rig.now_at = 999.0
    granted(rig.redeem(OTHER_NONCE))


def test_a_launch_that_is_not_on_the_roster_is_not_let_in_and_its_ticket_is_kept_for_it() -> None:
    rig = AdmissionRig(roster=())
    assert code(rig.redeem()) == "not_current"
    rig.roster = (entry(),)
    granted(rig.redeem(OTHER_NONCE))


@pytest.mark.parametrize("ticket", ["0" * 64, KEY.ticket(LaunchId("cloud1-2"))])
def test_a_wrong_ticket_is_refused_whatever_the_roster_says(ticket: str) -> None:
    for rig in (AdmissionRig(), AdmissionRig(roster=()), AdmissionRig(roster=None)):
        assert code(rig.redeem(ticket=ticket)) == "wrong"


def test_the_source_is_compared_where_the_site_wants_it() -> None:
    rules = AdmissionRules("head", "10.0.0.1", check_source=True)
    rig = AdmissionRig(rules, roster=(entry(addresses=("1.2.3.4", SOURCE)),))
    assert code(rig.redeem(source="6.6.6.6")) == "wrong_source"
    granted(rig.redeem(source=SOURCE))


@pytest.mark.parametrize(
    ("known", "source", "is_let_in"),
    [
        ("2001:DB8::0005", "2001:db8::5", True),
        ("10.0.0.5", "::ffff:10.0.0.5", True),
        ("2001:db8::6", "2001:db8::5", False),  # in the same network
        ("node5", "node5", False),  # a name does not show where a request comes from
        ("node5", "", False),
    ],
)
def test_sources_are_compared_as_addresses_and_not_as_texts(known: str, source: str, is_let_in: bool) -> None:
    rig = AdmissionRig(AdmissionRules("head", "10.0.0.1", check_source=True), roster=(entry(addresses=(known,)),))
    answer = rig.redeem(source=source)
    assert isinstance(answer, Granted) or code(answer) == "wrong_source"
    assert isinstance(answer, Granted) is is_let_in


def test_without_a_roster_or_a_ledger_nobody_is_let_in_and_no_ticket_used_up() -> None:
    rig = AdmissionRig(roster=None)
    assert code(rig.redeem()) == "unavailable"
    rig.roster = (entry(),)
    key = rig.key()
    rig.store.close()
    assert code(rig.redeem()) == "unavailable"
    assert code(rig.admission.renew(LAUNCH, key, "", SOURCE)) == "unavailable"
    assert code(rig.admission.report(LAUNCH, key, JoinPhase.STARTED, "", SOURCE)) == "unavailable"


@pytest.mark.parametrize("key", ["0" * 64, KEY.lease_key(LAUNCH, ""), KEY.ticket(LAUNCH)])
def test_nothing_but_the_lease_key_opens_what_comes_later(key: str) -> None:
    rig = AdmissionRig()
    assert code(rig.admission.fetch(LAUNCH, key, SOURCE)) == "wrong"  # the ticket is unused
    rig.key()
    for answer in (
        rig.admission.fetch(LAUNCH, key, SOURCE),
        rig.admission.renew(LAUNCH, key, "", SOURCE),
        rig.admission.report(LAUNCH, key, JoinPhase.STARTED, "", SOURCE),
    ):
        assert code(answer) == "wrong"


def test_a_renewal_returns_the_status_and_the_hosts_only_when_they_changed() -> None:
    rig = AdmissionRig()
    key = rig.key()
    rig.silence_s = 7.0
    said = granted(rig.admission.renew(LAUNCH, key, "", SOURCE))
    assert (said["may_start"], said["manager_silence_s"], said["hosts"]) == (True, 7.0, {"head": "10.0.0.1"})
    assert "hosts" not in granted(rig.admission.renew(LAUNCH, key, said["hosts_digest"], SOURCE))
    rig.roster = (
        entry(may_start=False, addresses=("8.8.8.8", "10.0.0.5")),
        entry(LaunchId("cloud2-1"), "cloud2", addresses=("not an address",)),
    )
    said = granted(rig.admission.renew(LAUNCH, key, said["hosts_digest"], SOURCE))
    assert said["hosts"] == {"head": "10.0.0.1", "cloud1": "10.0.0.5"}
    assert said["may_start"] is False
    assert "curve_cert" not in said


# --- two that use one lease key ---------------------------------------------------------------------------

SILENT_S = SILENT_RENEWALS * 10.0


def at(rig: AdmissionRig, now_at: float, what: str, instance: str, key: str) -> str:
    """Make a request as one process. Return "granted", or the code of the refusal."""
    rig.now_at = now_at
    if what == "fetch":
        answer = rig.admission.fetch(LAUNCH, key, SOURCE, instance)
    else:
        answer = rig.admission.renew(LAUNCH, key, "", SOURCE, instance)
    return "granted" if isinstance(answer, Granted) else code(answer)


def test_a_copy_of_a_node_starts_no_broker_while_that_renews_and_is_an_alarm() -> None:
    rig = AdmissionRig()
    key = str(granted(rig.redeem(instance="a"))["lease_key"])
    for now_at in (10.0, 20.0, 30.0, 40.0):
        assert at(rig, now_at, "renew", "a", key) == "granted"
        assert at(rig, now_at + 1.0, "fetch", "b", key) == "in_use"
    alarms = rig.reported(JoinPhase.REPLAYED)
    assert len(alarms) == 2  # one for each of the two processes
    assert "two processes at once" in alarms[0]


def test_a_copy_gains_nothing_by_leaving_out_its_name() -> None:
    rig = AdmissionRig()
    key = str(granted(rig.redeem(instance="a"))["lease_key"])
    for now_at in (10.0, 20.0):
        assert at(rig, now_at, "renew", "a", key) == "granted"
        assert at(rig, now_at + 1.0, "fetch", "", key) == "in_use"
    assert rig.reported(JoinPhase.REPLAYED)
    assert at(rig, 20.0 + 2 * SILENT_S, "fetch", "", key) == "in_use", "not after a silence either"


def test_a_client_that_is_started_again_is_let_in_when_the_former_is_silent_and_is_no_alarm() -> None:
    rig = AdmissionRig()
    key = str(granted(rig.redeem(instance="a"))["lease_key"])
    assert at(rig, 5.0, "fetch", "b", key) == "in_use"
    assert at(rig, SILENT_S - 0.1, "fetch", "b", key) == "in_use"
    assert at(rig, SILENT_S, "fetch", "b", key) == "granted"
    assert at(rig, SILENT_S + 1.0, "renew", "b", key) == "granted"
    assert at(rig, 3 * SILENT_S, "fetch", "c", key) == "granted"
    assert rig.reported(JoinPhase.REPLAYED) == []


def test_one_that_was_cut_off_and_another_that_took_its_place_are_an_alarm_when_it_is_back() -> None:
    rig = AdmissionRig()
    key = str(granted(rig.redeem(instance="a"))["lease_key"])
    assert at(rig, SILENT_S, "fetch", "b", key) == "granted"
    assert at(rig, SILENT_S + 1.0, "renew", "a", key) == "granted"  # it still learns the state of its lease
    assert at(rig, SILENT_S + 2.0, "fetch", "a", key) == "in_use"
    assert len(rig.reported(JoinPhase.REPLAYED)) == 1


def test_a_client_that_does_not_name_its_process_is_not_checked_until_one_does() -> None:
    rig = AdmissionRig()
    key = rig.key()
    assert at(rig, 1.0, "fetch", "", key) == "granted"
    assert at(rig, 2.0, "fetch", "a", key) == "granted"
    assert at(rig, 3.0, "fetch", "", key) == "in_use"


def test_a_key_that_is_wrong_makes_nobody_a_holder() -> None:
    rig = AdmissionRig()
    key = rig.key()
    assert at(rig, 1.0, "fetch", "a", "0" * 64) == "wrong"
    assert at(rig, 1.0, "fetch", "b", key) == "granted"


def test_a_client_learns_that_its_lease_ended() -> None:
    rig = AdmissionRig()
    key = rig.key()
    rig.roster = ()
    assert code(rig.admission.renew(LAUNCH, key, "", SOURCE)) == "not_current"
    assert code(rig.admission.fetch(LAUNCH, key, SOURCE)) == "not_current"


def test_the_digest_changes_with_the_certificate() -> None:
    rig = AdmissionRig()
    key = rig.key()
    before = granted(rig.admission.renew(LAUNCH, key, "", SOURCE))["material"]
    rig.material = replace(MATERIAL, curve_certificate="another")
    assert granted(rig.admission.renew(LAUNCH, key, "", SOURCE))["material"] != before
    assert granted(rig.admission.fetch(LAUNCH, key, SOURCE))["curve_cert"] == "another"


def test_reports_are_kept_printable_and_bounded_in_number() -> None:
    rig = AdmissionRig()
    key = rig.key()
    granted(rig.admission.report(LAUNCH, key, JoinPhase.ENDED, "one\x1b[31m\ntwo" + "x" * 9000, SOURCE))
    (detail,) = rig.reported(JoinPhase.ENDED)
    assert detail.startswith("one [31m two")
    assert len(detail) == 2000
    answers = [rig.admission.report(LAUNCH, key, JoinPhase.ENDED, "", SOURCE) for _ in range(REPORTS_BURST)]
    assert code(answers[-1]) == "too_many"


def test_what_is_long_gone_is_forgotten_and_what_is_current_is_not() -> None:
    rig = AdmissionRig(roster=(entry(), entry(LaunchId("cloud2-1"), "cloud2")))
    key = rig.key()
    granted(rig.redeem(launch=LaunchId("cloud2-1")))
    rig.roster = (entry(),)
    rig.now_at = 100.0
    rig.admission.forget_older_than(50.0)
    granted(rig.admission.fetch(LAUNCH, key, SOURCE))
    assert rig.store.nonce_hash_of(LaunchId("cloud2-1")) is None
    assert {report.launch for _, report in rig.store.reports(0)} == {LAUNCH}


def test_no_value_shows_a_secret() -> None:
    rig = AdmissionRig()
    answer = rig.redeem()
    shown = repr(answer) + repr(rig.admission) + repr(KEY) + repr(MATERIAL) + repr(rig.redeem(OTHER_NONCE))
    for secret in (CURVE, KEY.ticket(LAUNCH), rig.key(), NONCE):
        assert secret not in shown


def statements(rig: AdmissionRig) -> list[str]:
    """Return the list of the statements that the store executes from now on."""
    seen: list[str] = []
    rig.store._db.set_trace_callback(seen.append)
    return seen


def redemption(rig: AdmissionRig, number: int) -> Callable[[], Answer]:
    launch = LaunchId(f"cloud{number}-1")
    return lambda: rig.redeem(launch=launch)


def test_requests_that_are_decided_together_wait_for_the_disk_once() -> None:
    rig = AdmissionRig(roster=tuple(entry(LaunchId(f"cloud{n}-1"), f"cloud{n}") for n in range(3)))
    seen = statements(rig)
    answers = rig.admission.decide_together([redemption(rig, number) for number in (0, 1, 2, 0)])
    assert [granted(it)["slot"] for it in answers] == ["cloud0", "cloud1", "cloud2", "cloud0"]
    assert seen.count("COMMIT") == 1
    assert len(rig.reported(JoinPhase.REDEEMED)) == 4


def test_if_one_of_several_cannot_be_stored_none_is_granted_by_the_failed_commit() -> None:
    rig = AdmissionRig(roster=tuple(entry(LaunchId(f"cloud{n}-1"), f"cloud{n}") for n in range(3)))
    rig.store._db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON used WHEN NEW.launch = 'cloud1-1'"
        " BEGIN SELECT RAISE(ROLLBACK, 'full'); END"
    )
    first, second, third = rig.admission.decide_together([redemption(rig, number) for number in (0, 1, 2)])
    assert code(second) == "unavailable"
    assert [granted(it)["slot"] for it in (first, third)] == ["cloud0", "cloud2"]
    marks = [rig.store.nonce_hash_of(LaunchId(f"cloud{number}-1")) is not None for number in range(3)]
    assert marks == [True, False, True], "what was granted is on disk"


def test_a_full_disk_stops_no_renewal() -> None:
    rig = AdmissionRig(roster=(entry(), entry(LaunchId("cloud2-1"), "cloud2")))
    key = rig.key()
    rig.store._db.execute("PRAGMA query_only = 1")
    ticket, renewal = rig.admission.decide_together(
        [redemption(rig, 2), lambda: rig.admission.renew(LAUNCH, key, "", SOURCE)]
    )
    assert code(ticket) == "unavailable"
    assert granted(renewal)["may_start"]
