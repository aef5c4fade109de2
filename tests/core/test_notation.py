from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.notation import (
    compress_hostlist,
    expand_hostlist,
    format_bytes,
    format_fsd,
    format_idset,
    parse_bytes,
    parse_fsd,
    parse_idset,
)

HOST = st.from_regex(r"[a-z0-9.-]{1,8}(?:[0-9]{1,3})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("90s", 90),
        ("100ms", 0.1),
        ("5m", 300),
        ("1.5h", 5400),
        ("2d", 172_800),
        (".5s", 0.5),
        ("30", 30),
        ("1e3s", 1000),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93_784.005),
        ("infinity", math.inf),
    ],
)
def test_durations_are_read_as_flux_reads_them(text: str, seconds: float) -> None:
    assert parse_fsd(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 1, "a duration is needed"),
        ("soon", 1, "a duration is needed"),
        ("-5s", 1, "a duration is needed"),
        ("5 m", 2, "a unit is needed"),
        ("5min", 3, "a duration is needed"),
        ("1h30", 5, "a unit is needed"),
        ("30m1h", 4, "from large to small"),
        ("1h1h", 3, "from large to small"),
        ("nan", 1, "a duration is needed"),
        ("9e999s", 1, "too long"),
        ("٣s", 1, "a duration is needed"),
    ],
)
def test_a_duration_that_cannot_be_read_is_refused_at_its_place(text: str, column: int, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as refused:
        parse_fsd(text)
    assert f'"{text}", column {column}:' in str(refused.value)


# As printed by `flux.util.fsd`.
@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.05, "50ms"),
        (0.1, "0.1s"),
        (59, "59s"),
        (60, "1m"),
        (90, "1.5m"),
        (5400, "1.5h"),
        (86_400, "1d"),
        (math.inf, "infinity"),
    ],
)
def test_durations_are_printed_as_flux_prints_them(seconds: float, text: str) -> None:
    assert format_fsd(seconds) == text


@given(st.floats(min_value=0, max_value=1e12))
def test_a_printed_duration_reads_as_what_it_was(seconds: float) -> None:
    assert parse_fsd(format_fsd(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_what_is_no_duration_is_not_printed(seconds: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        format_fsd(seconds)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0B", 0), ("4GiB", 2**32), ("512MiB", 2**29), ("1.5KiB", 1536), ("2TiB", 2**41), ("4 GiB", 2**32)],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(1, "1B"), (1 << 30, "1GiB"), (1536 << 20, "1536MiB"), (1000, "1000B"), (1 << 50, "1024TiB")],
)
def test_a_size_is_written_in_the_largest_unit_in_which_it_is_whole(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a size is needed"),
        ("-1GiB", "a size is needed"),
        ("4G", 'did you mean "4GiB"'),
        ("4gb", 'did you mean "4GiB"'),
        ("512", "the unit must be one of B, KiB, MiB, GiB, TiB"),
        ("4XiB", "the unit must be one of"),
        ("0.3B", "a whole number of bytes"),
    ],
)
def test_a_size_that_may_be_misread_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as refused:
        parse_bytes(text)
    assert f'"{text}"' in str(refused.value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("head", ("head",)),
        ("cloud[1-4],gpu[01-02]", ("cloud1", "cloud2", "cloud3", "cloud4", "gpu01", "gpu02")),
        ("cloud[1-2]\n gpu1", ("cloud1", "cloud2", "gpu1")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("n[99-100]", ("n99", "n100")),
        ("n[2,1,1]", ("n2", "n1", "n1")),
        ("n[1-2]-ib", ("n1-ib", "n2-ib")),
        ("[0-2]", ("0", "1", "2")),
        ("a,,b,", ("a", "b")),
    ],
)
def test_host_lists_are_expanded_as_flux_expands_them(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("n[1-2", 2, "has no"),
        ("n]", 2, "has no"),
        ("n[]", 3, "a number or a range"),
        ("n[1,,2]", 5, "a number or a range"),
        ("n[1-x]", 3, "a number or a range"),
        ("a,n[1,4-3]", 7, "must ascend"),
        ("r[1-2]n[1-2]", 8, "one pair of brackets"),
        ("n[1-2]]", 7, "one pair of brackets"),
        ("n[1-200000]", 2, "more than 100000 hosts"),
        ("n[1-100000] m", 13, "more than 100000 hosts"),
        ("n[1-9999999999999999]", 3, "at most 15 digits"),
    ],
)
def test_a_host_list_that_cannot_be_read_is_refused_at_its_place(text: str, column: int, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as refused:
        expand_hostlist(text)
    assert f'"{text}", column {column}:' in str(refused.value)


# As printed by `flux hostlist`.
@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ((), ""),
        (("a1", "a2", "a4"), "a[1-2,4]"),
        (("a09", "a10", "a11"), "a[09-11]"),
        (("a9", "a10", "a011"), "a[9-10,011]"),
        (("a099", "a100"), "a[099-100]"),
        (("a2", "a1"), "a[2,1]"),
        (("a1", "b", "a2"), "a1,b,a2"),
        (("a", "a1", "a2"), "a,a[1-2]"),
        (("r1n1", "r1n2"), "r1n[1-2]"),
        (("1", "2"), "[1-2]"),
    ],
)
def test_hosts_are_compressed_as_flux_compresses_them(hosts: tuple[str, ...], text: str) -> None:
    assert compress_hostlist(hosts) == text


@given(st.lists(HOST))
def test_a_compressed_host_list_expands_to_what_it_was(hosts: list[str]) -> None:
    assert expand_hostlist(compress_hostlist(hosts)) == tuple(hosts)


@given(st.lists(st.integers(0, 120).map(lambda number: f"n{number:02d}")))
def test_neighbouring_hosts_expand_to_what_they_were(hosts: list[str]) -> None:
    assert expand_hostlist(compress_hostlist(hosts)) == tuple(hosts)


@pytest.mark.parametrize("host", ["", "a b", "a,b", "n[1]"])
def test_what_is_no_host_name_is_not_compressed(host: str) -> None:
    with pytest.raises(ValueError, match="a host name has"):
        compress_hostlist([host])


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        *[("", ()), ("[]", ()), ("0-2,5", (0, 1, 2, 5)), ("[3]", (3,)), ("0", (0,))],
        *[("1,", (1,)), (",1", (1,)), ("1,,2", (1, 2)), ("[1-2,]", (1, 2)), (",", ())],  # as flux-core accepts them
    ],
)
def test_id_sets_are_read(text: str, ids: tuple[int, ...]) -> None:
    assert parse_idset(text) == ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2,1", "must ascend"),
        ("1,1", "must ascend"),
        ("1-3,2", "must ascend"),
        ("1-1", "must ascend"),
        ("2-1", "must ascend"),
        ("01", "no leading zero"),
        ("[1", "a number or a range"),
        ("-1", "a number or a range"),
        ("a", "a number or a range"),
        ("0-4294967295", "more than 1000000 ids"),
    ],
)
def test_an_id_set_that_cannot_be_read_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as refused:
        parse_idset(text)
    assert f'"{text}", column ' in str(refused.value)


@given(st.sets(st.integers(0, 200)))
def test_a_printed_id_set_reads_as_what_it_was(ids: set[int]) -> None:
    assert parse_idset(format_idset(ids)) == tuple(sorted(ids))


def test_a_negative_id_is_not_printed() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        format_idset([-1])


@pytest.mark.parametrize("parse", [parse_fsd, parse_bytes, expand_hostlist, parse_idset])
@given(text=st.text(alphabet="0123456789[]-,. abmshdGiB", max_size=20))
def test_no_text_brings_anything_but_a_value_or_a_value_error(parse: Callable[[str], object], text: str) -> None:
    with suppress(ValueError):
        parse(text)
