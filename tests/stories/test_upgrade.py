"""The state of version 0.1.0 is taken over: ``tests/data/state-0.1.0`` was written by that version."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nodemanager.core.nodes import JoinPhase, Launch, LaunchId, RosterEntry
from nodemanager.core.records import Mark, Spend, Steering
from nodemanager.core.slots import Billing, Rank, SlotName, SlotsWish, Tariff, TypeName
from nodemanager.flux import retype
from nodemanager.flux.records import own
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.join.exchange import decode_roster, encode_roster
from nodemanager.join.ticket_store import TicketStore
from nodemanager.join.tickets import SiteKey, hash_nonce
from tests.paths import DATA

STATE = DATA / "state-0.1.0"
RECORDS: dict[str, dict[str, Any]] = json.loads((STATE / "records.json").read_text(encoding="utf-8"))
KVS, JOIN = RECORDS["kvs"], RECORDS["join"]

LAUNCH = LaunchId("cloud1-5k3f")
LEASE = Launch(
    LAUNCH,
    SlotName("cloud1"),
    Rank(1),
    TypeName("cloud"),
    "cloud1-5k3f",
    1_799_999_400.5,
    "zone-a",
    Tariff(Decimal("0.68"), Billing(3600.0, 60.0)),
)
STEERING = Steering(
    {LAUNCH: Mark("ada", 1_799_999_500.0)},
    {LaunchId("gpu1-5k3g"): Mark("grace", 1_799_999_600.0)},
    Mark("ada", 1_799_999_700.0),
)
SPEND = Spend(
    {
        ("month", 1_798_761_600, ""): Decimal("12.3456"),
        ("day", 1_799_971_200, "user 1000"): Decimal("1.5"),
    },
    frozenset({LAUNCH}),
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder as that version left it."""
    for file in STATE.glob("*.sql"):
        with closing(sqlite3.connect(tmp_path / f"{file.stem}.sqlite")) as db:
            db.executescript(file.read_text(encoding="utf-8"))
    return tmp_path


def test_records_in_the_kvs_are_read_and_written_as_before() -> None:
    assert own.decode_lease(KVS["lease"], LEASE.slot) == LEASE
    assert own.decode_steering(KVS["steering"]) == STEERING
    assert own.decode_spend(KVS["spend"]) == SPEND
    assert retype.decode_wish(KVS["wish"]) == SlotsWish("wish-1", {TypeName("cloud"): 2, TypeName("gpu"): 1})
    # An older manager may take the instance over in turn.
    assert own.encode_lease(LEASE) == KVS["lease"]
    assert own.encode_steering(STEERING) == KVS["steering"]
    assert json.loads(own.encode_spend(SPEND)) == json.loads(KVS["spend"])


def test_a_node_keeps_its_ticket_and_its_lease_key() -> None:
    key = SiteKey(bytes.fromhex(JOIN["site_key"]))
    assert key.ticket(LAUNCH) == JOIN["ticket"]
    assert hash_nonce(JOIN["nonce"]) == JOIN["nonce_hash"]
    assert key.lease_key(LAUNCH, JOIN["nonce_hash"]) == JOIN["lease_key"]


def test_the_roster_is_the_same() -> None:
    roster = (
        RosterEntry(
            LAUNCH, SlotName("cloud1"), 1_800_000_300.0, may_start=True, online=False, addresses=("10.0.0.7",)
        ),
    )
    assert decode_roster(JOIN["roster"]) == (roster, 1_799_999_900.0)
    assert encode_roster(roster, 1_799_999_900.0) == JOIN["roster"]


def test_a_used_ticket_stays_used_and_reports_are_kept(state: Path) -> None:
    with closing(TicketStore(state / "used-tickets.sqlite")) as store:
        assert store.mark_used(LAUNCH, "of another", "10.0.0.8", 1_800_000_000.0) == JOIN["nonce_hash"]
        phases = [getattr(fact, "phase", None) for _, fact in store.reports(0)]
    assert phases == [JoinPhase.REDEEMED, JoinPhase.STARTED]


def test_the_history_goes_on(state: Path) -> None:
    reader = HistoryReader(state / HISTORY_FILE)
    before = reader.events()
    lives = list(reader.lives(1e9))
    assert before
    assert [life.launch for life in lives] == ["cloud1-1"]
    writer = HistoryWriter(state / HISTORY_FILE)
    writer.write([])
    writer.close()
    assert not writer.failure
    assert reader.events() == before
    assert reader.count_jobs() == 1
