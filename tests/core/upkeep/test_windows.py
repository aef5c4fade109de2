"""Windows of the week: reading, and which moments they hold, over both changes of daylight-saving time."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.upkeep.windows import DAYS, is_open, next_change_at, opens_at, read_windows

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


CHANGE_AT = int(at("2026-03-29T03:00"))  # to summer time, in Berlin

NIGHTS = read_windows("Mon-Fri 22:00-06:00 Europe/Berlin")
OFFICE = read_windows("Mon-Fri 08:00-18:00 Europe/Berlin")


@pytest.mark.parametrize(
    ("moment", "opened"),
    [
        ("2026-11-23T21:59", False),  # a Monday
        ("2026-11-23T22:00", True),
        ("2026-11-24T05:59", True),
        ("2026-11-24T06:00", False),
        ("2026-11-28T05:00", True),  # Saturday, in Friday's night
        ("2026-11-28T22:30", False),
        ("2026-11-30T05:00", False),  # Monday: Sunday has no night
    ],
)
def test_a_night_belongs_to_the_day_on_which_it_begins(moment: str, opened: bool) -> None:
    assert is_open(NIGHTS, at(moment)) is opened


def test_without_windows_every_moment_is_open() -> None:
    assert is_open((), at("2026-11-23T12:00"))
    assert opens_at((), 5.0) == 5.0
    assert next_change_at((), 5.0) == float("inf")


def test_it_says_when_a_window_opens_next() -> None:
    assert opens_at(NIGHTS, at("2026-11-28T12:00")) == at("2026-11-30T22:00")
    assert opens_at(NIGHTS, at("2026-11-23T23:00")) == at("2026-11-23T23:00")
    assert next_change_at(NIGHTS, at("2026-11-23T22:00")) == at("2026-11-24T06:00")
    assert next_change_at(NIGHTS, at("2026-11-24T06:00")) == at("2026-11-24T22:00")


def test_office_hours_follow_daylight_saving_time_in_both_directions() -> None:
    """On 2026-03-29 Berlin goes to summer time, on 2026-10-25 back: 8 o'clock stays 8 o'clock."""
    assert next_change_at(OFFICE, at("2026-03-27T18:00")) == at("2026-03-30T08:00")
    assert at("2026-03-30T08:00") - at("2026-03-27T08:00") == 71 * 3600
    assert next_change_at(OFFICE, at("2026-10-23T18:00")) == at("2026-10-26T08:00")
    assert at("2026-10-26T08:00") - at("2026-10-23T08:00") == 73 * 3600


def test_a_night_is_an_hour_shorter_in_spring_and_longer_in_autumn() -> None:
    weekend = read_windows("Sat 22:00-06:00 Europe/Berlin")
    for saturday, hours in (("2026-03-28", 7), ("2026-10-24", 9)):
        begin_at = opens_at(weekend, at(f"{saturday}T12:00"))
        assert next_change_at(weekend, begin_at) - begin_at == hours * 3600


def test_a_time_that_is_skipped_counts_an_hour_later_and_one_that_occurs_twice_counts_once() -> None:
    windows = read_windows("Sun 02:30-05:00 Europe/Berlin")
    skipped = opens_at(windows, at("2026-03-29T00:00"))
    assert datetime.fromtimestamp(skipped, BERLIN).isoformat() == "2026-03-29T03:30:00+02:00"
    twice = opens_at(windows, at("2026-10-25T00:00"))
    assert datetime.fromtimestamp(twice, BERLIN).isoformat() == "2026-10-25T02:30:00+02:00"
    assert not is_open(read_windows("Sun 01:00-02:30 Europe/Berlin"), at("2026-10-25T02:29", fold=1))


@pytest.mark.parametrize("day", ["2026-03-22T12:00", "2026-03-25T00:00", "2026-03-28T23:59", "2026-03-29T03:00"])
def test_a_window_that_summer_time_skips_as_a_whole_opens_a_week_later(day: str) -> None:
    windows = read_windows("Sun 02:00-03:00 Europe/Berlin")
    assert not is_open(windows, at(day))
    assert opens_at(windows, at(day)) == at("2026-04-05T02:00")
    assert next_change_at(windows, at(day)) == at("2026-04-05T02:00")


def test_a_whole_week_and_single_days_can_be_written() -> None:
    (week,) = read_windows("Sat-Fri 00:00-24:00")
    assert str(week) == "Sat-Fri 00:00-24:00 UTC"
    assert all(is_open((week,), at(f"2026-11-{day}T23:59", ZoneInfo("UTC"))) for day in range(20, 28))
    assert [str(it) for it in read_windows("sat 00:00-24:00, SUN 1:00-2:00 Asia/Tokyo")] == [
        "Sat 00:00-24:00 UTC",
        "Sun 01:00-02:00 Asia/Tokyo",
    ]
    assert read_windows(" ") == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Mon-Fri 22-06 Europe/Berlin", "is needed"),
        ("Moo 22:00-06:00", '"Moo" is no day'),
        ("Mon 22:61-06:00", '"22:61" is no time of the day'),
        ("Mon 25:00-06:00", '"25:00" is no time of the day'),
        ("Mon 06:00-06:00", "for a whole day write 00:00-24:00"),
        ("Mon 24:00-06:00", "write 00:00 and the next day"),
        ("Mon 06:00-07:00 Europe/Berlyn", '"Europe/Berlyn" is no time zone'),
        ("Mon 06:00-07:00 ../etc/passwd", "is no time zone"),
        ("Mon 06:00-07:00,", "is needed"),
    ],
)
def test_a_wrong_window_is_refused_with_what_to_write(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + fault.replace("?", r"\?")):
        read_windows(text)


@given(
    first=st.sampled_from(DAYS),
    last=st.sampled_from(DAYS),
    begin=st.integers(0, 1439),
    end=st.integers(1, 1440),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    moment=st.integers(1_700_000_000, 1_900_000_000)
    | st.integers(-9 * 86_400, 2 * 86_400).map(lambda s: CHANGE_AT + s),
)
def test_a_window_is_open_exactly_from_its_begin_to_its_end(
    first: str, last: str, begin: int, end: int, zone: str, moment: int
) -> None:
    if begin == end:
        return
    text = f"{first}-{last} {begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d} {zone}"
    windows = read_windows(text)
    assert read_windows(str(windows[0])) == windows
    changes = [float(moment)]
    for _ in range(6):
        changes.append(next_change_at(windows, changes[-1]))
    for before, after in pairwise(changes):
        assert before < after <= before + 15 * 86_400
        assert is_open(windows, before) == is_open(windows, (before + after) / 2)
    opening_at = opens_at(windows, float(moment))
    assert is_open(windows, opening_at)
    assert datetime.fromtimestamp(opening_at, UTC).second in (0, datetime.fromtimestamp(moment, UTC).second)
