"""The record of a launch: it is read completely or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.slots import DEFAULT_CLOUD, Billing, CloudName, Rank, SlotName, Tariff, TypeName
from nodemanager.flux.records import own

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
TARIFF = Tariff(Decimal("0.40"), Billing(3600.0, 60.0))
LAUNCH = Launch(
    LaunchId("launch-1"), SlotName("slot1"), Rank(1), TypeName("small"), "token-1", 1_790_000_000.25, "z1", TARIFF
)
TARIFFS = st.builds(
    Tariff, st.decimals(0, 10**6, places=7), st.builds(Billing, st.floats(0, 1e6), st.floats(0, 1e6))
)


@given(slot=NAMES)
def test_any_slot_name_is_one_part_of_a_key_and_comes_back(slot: str) -> None:
    key = own.lease_key(SlotName(slot))
    directory, _, name = key.rpartition(".")
    assert directory == own.LEASES
    assert own.slot_of_lease(name) == slot


@given(
    st.builds(
        Launch,
        NAMES,
        NAMES,
        st.integers(0, 10_000),
        NAMES,
        NAMES,
        st.floats(0, 4e9),
        tariff=st.none() | TARIFFS,
        group=st.just("") | NAMES,
    )
)
def test_what_is_written_is_read(launch: Launch) -> None:
    assert own.decode_lease(own.encode_lease(launch), launch.slot) == launch


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"version": 2}, "record.version"),
        ({"slot": "slot2"}, "record.slot"),
        ({"launch": 7}, "record.launch"),
        ({"rank": True}, "record.rank"),
        ({"type": None}, "record.type"),
        ({"client_token": []}, "record.client_token"),
        ({"requested_at": "now"}, "record.requested_at"),
        ({"zone": None}, "record.zone"),
        ({"tariff": None}, "record.tariff"),
        ({"tariff": {"price_per_hour": 0.4}}, "record.tariff.price_per_hour"),
        ({"tariff": {"price_per_hour": "-1"}}, "record.tariff.price_per_hour"),
        ({"tariff": {"price_per_hour": "1", "window_s": "hour"}}, "record.tariff.window_s"),
        ({"tariff": {"price_per_hour": "1", "window_s": 60}}, "record.tariff.minimum_s"),
    ],
)
def test_a_record_with_a_wrong_field_is_refused_by_its_place(changed: dict[str, object], place: str) -> None:
    fields = json.loads(own.encode_lease(LAUNCH)) | changed
    with pytest.raises(ValueError, match=place):
        own.decode_lease(json.dumps(fields), LAUNCH.slot)


def test_a_record_of_before_zones_and_tariffs_were_kept_is_read() -> None:
    fields = json.loads(own.encode_lease(LAUNCH))
    del fields["zone"], fields["tariff"]
    assert own.decode_lease(json.dumps(fields), LAUNCH.slot) == replace(LAUNCH, zone="", tariff=None)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own error or ours
        own.decode_lease(text, LAUNCH.slot)


def test_a_lease_names_its_cloud_only_if_there_is_another() -> None:
    launch = replace(LAUNCH, cloud=CloudName("east"))
    assert own.decode_lease(own.encode_lease(launch), launch.slot) == launch
    assert "cloud" not in json.loads(own.encode_lease(replace(LAUNCH, cloud=DEFAULT_CLOUD)))
